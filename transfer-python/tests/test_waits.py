"""Waits: threads, signals, asyncio, and what is given up."""

from __future__ import annotations

import asyncio
import gc
import inspect
import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
import transferd as td
from conftest import GIVE_UP, Sidecar, settled, until


# Promise: waits-and-signals
def test_threads_share_a_client_and_the_lock_is_let_go(c):
    results = []

    def wait(n):
        results.append(c.fetch(f"later-{n}", timeout=GIVE_UP).version)

    threads = [threading.Thread(target=wait, args=(n,)) for n in range(8)]
    for thread in threads:
        thread.start()
    # This thread could not go on if a wait kept the interpreter's lock.
    for n in range(8):
        c.push(f"later-{n}", b"x", version=n + 1)
    for thread in threads:
        thread.join(GIVE_UP)
    assert sorted(results) == list(range(1, 9))


def test_many_threads_wait_for_one_call(c):
    later = c.fetch_later("one", timeout=GIVE_UP)
    found = []
    threads = [threading.Thread(target=lambda: found.append(later.result())) for _ in range(4)]
    for thread in threads:
        thread.start()
    c.push("one", b"1")
    for thread in threads:
        thread.join(GIVE_UP)
    assert len(found) == 4 and all(tensor is found[0] for tensor in found)


# The number of the system call `futex_waitv`, on all machines.
FUTEX_WAITV = "449"


def sleeps_on_a_notice() -> bool:
    calls = (task / "syscall" for task in Path("/proc/self/task").iterdir())
    return any(call.read_text().split()[0] == FUTEX_WAITV for call in calls)


# Promise: woken-waiters, seen to fail
def test_a_waiting_fetch_is_woken_by_the_worker_that_pushes(sidecar, c, other):
    over = threading.Event()
    seen: list[int] = []
    version = 0

    def take():
        while not over.is_set():
            seen.append(other.fetch("k", at_least=len(seen) + 1, timeout=GIVE_UP).version)

    taker = threading.Thread(target=take)
    taker.start()
    try:
        # The first wait is at the sidecar, which tells the pusher of it. It announces later versions in shared memory.
        while not sleeps_on_a_notice():
            if sidecar.held()["operations"] == 1:
                version += 1
                c.push("k", b"x", version=version)
                until("it has come", lambda: len(seen) == version)
            assert version < 100, "it always asks the sidecar"
        assert sidecar.held()["operations"] == 0
    finally:
        over.set()
        c.push("k", b"x", version=version + 1)
        taker.join(GIVE_UP)
    assert seen == list(range(1, version + 2))


def sleeps(pid: int) -> bool:
    """Whether the first thread of a process does nothing but look for signals, every 40 ms."""
    ticks = lambda: Path(f"/proc/{pid}/stat").read_text().rpartition(") ")[2].split()[11:13]
    before = ticks()
    time.sleep(0.2)
    return ticks() == before


WAITS = {
    "fetch": "c.fetch('never', timeout=None)",
    "result": "c.fetch_later('never', timeout=None).result()",
    "barrier": "c.barrier('b', 2).wait(timeout=None)",
    "room": "[c.empty((1 << 20,), 'uint8', timeout=None) for _ in range(10)]",
    "stream": "next(c.fetch_stream('s', timeout=None))",
}


# Promise: waits-and-signals
@pytest.mark.parametrize("wait", WAITS)
def test_ctrl_c_ends_a_wait(sidecar, wait):
    script = f"""
import sys, transferd as td
c = td.connect({sidecar.path!r}, arena="2MiB")
try:
    print("waits", flush=True)
    {WAITS[wait]}
except KeyboardInterrupt:
    c.counter("after").add(1)
    print("it goes on", flush=True)
"""
    with subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout.readline() == "waits\n"
        if wait == "room":
            until("it waits for room", lambda: sleeps(process.pid))
        else:
            until("the sidecar knows of it", lambda: sidecar.counters()["operations"] or sidecar.counters()["queued"])
        process.send_signal(signal.SIGINT)
        assert process.stdout.readline() == "it goes on\n"
        assert process.wait(GIVE_UP) == 0
    until("it is given up", lambda: sidecar.held()["operations"] == 0)


# Promise: waits-and-signals
def test_a_signal_s_handler_runs_during_a_wait(sidecar, c):
    def handler(*_):
        c.push("from-handler", b"1")

    def send():
        until("the fetch waits", lambda: sidecar.held()["operations"] == 1)
        os.kill(os.getpid(), signal.SIGUSR1)

    before = signal.signal(signal.SIGUSR1, handler)
    try:
        sender = threading.Thread(target=send)
        sender.start()
        assert c.fetch("from-handler", timeout=2 * GIVE_UP).version == 1
        sender.join(GIVE_UP)
    finally:
        signal.signal(signal.SIGUSR1, before)


def run(sidecar, main):
    async def with_client():
        async with td.aio.connect(sidecar.path, arena="4MiB") as client:
            await asyncio.wait_for(main(client), GIVE_UP)

    asyncio.run(with_client(), debug=True)


# Promise: asyncio
def test_asyncio_waits_in_its_loop(sidecar, c):
    threads = threading.active_count()

    async def main(client):
        assert client.node == c.node and client.path == sidecar.path
        fetches = [asyncio.create_task(client.fetch(f"k{n}")) for n in range(50)]
        await asyncio.sleep(0)
        for n in range(0, 50, 2):
            await client.push(f"k{n}", np.full(4, n))
        for n in range(1, 50, 2):
            c.push(f"k{n}", np.full(4, n))
        assert [int(t.numpy()[0]) for t in await asyncio.gather(*fetches)] == list(range(50))
        async with client.produce("p", 3) as buffer:
            buffer.numpy()[:] = 1
        many = await client.fetch_many(["k1", "p"])
        assert [t.key for t in many] == ["k1", "p"]
        counter = await client.counter("n")
        assert (await counter.add(3), await counter.get(), await counter.compare_swap(3, 9)) == (0, 3, (True, 3))
        waits = [client.barrier("b", 3).wait() for _ in range(3)]
        assert sum(r.leader for r in await asyncio.gather(*waits)) == 1
        with pytest.raises(td.Timeout):
            await client.fetch("none", timeout=0.05)
        await client.delete("k0")
        with pytest.raises(td.Timeout):
            await client.fetch("k0", timeout=0)

    run(sidecar, main)
    # The executor's thread that connected ends with the loop.
    until("no thread is left", lambda: threading.active_count() == threads)


# Promise: asyncio
def test_cancelling_an_await_leaks_nothing(sidecar, c):
    async def main(client):
        before = client._loop.client.arena_free_bytes
        for n in range(200):
            task = asyncio.create_task(client.fetch(f"never{n}", timeout=None))
            for _ in range(n % 3):
                await asyncio.sleep(0)
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(client.fetch("never"), 0.01)
        # What comes for a fetch that was given up is released.
        task = asyncio.create_task(client.fetch("k"))
        await asyncio.sleep(0)
        c.push("k", b"1")
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        assert not client._loop._waiting
        until("nothing is under way", lambda: sidecar.held()["operations"] == 0)
        assert (await client.fetch("k")).version == 1
        gc.collect()
        assert client.arena_free_bytes == before

    run(sidecar, main)
    until("nothing is held", lambda: sidecar.held()["leases"] == 0)


# Promise: python-restarts
def test_a_restart_of_the_sidecar_is_survived(sidecar, c):
    c.push("w", np.full(8, 3))
    old = c.fetch("w")
    incarnation = c.incarnation
    sidecar.kill()
    with pytest.raises((td.SidecarGone, td.Timeout)):
        c.fetch("other", timeout=5)
    sidecar.start()
    until("it is back", lambda: c.gone is None and c.incarnation != incarnation)
    # What was published is published again, and what was fetched stays readable.
    with td.connect(sidecar.path) as reader:
        assert (reader.fetch("w", timeout=GIVE_UP).numpy() == 3).all()
    assert (old.numpy() == 3).all()


# Promise: python-restarts
def test_asyncio_survives_a_restart_too(sidecar):
    async def main(client):
        await client.push("w", np.full(8, 3))
        waiting = asyncio.create_task(client.fetch("never"))
        await asyncio.sleep(0)
        until("it waits", lambda: sidecar.held()["operations"] == 1)
        sidecar.kill()
        with pytest.raises(td.SidecarGone) as e:
            await waiting
        assert e.value.can_retry
        sidecar.start()
        while client._client.gone is not None:
            await asyncio.sleep(0.01)
        assert (await client.fetch("w")).numpy()[0] == 3

    run(sidecar, main)


def test_a_sidecar_that_is_not_there_or_does_not_come_back_is_an_error(sidecar, folder):
    with pytest.raises(td.SidecarGone) as e:
        td.connect(folder / "none.sock")
    assert e.value.code == "connect" and e.value.fault == "operator"
    with td.connect(sidecar.path, reconnect=False) as client:
        client.push("k", b"1")
        kept = client.fetch("k")
        sidecar.kill()
        with pytest.raises(td.SidecarGone) as gone:
            client.fetch("other", timeout=5)
        assert not gone.value.can_retry and client.gone is not None
        assert bytes(kept) == b"1"


# Promise: python-killed-workers
def test_a_killed_worker_s_keys_end_and_others_go_on(sidecar, c):
    script = f"""
import sys, time, transferd as td
c = td.connect({sidecar.path!r})
c.push("theirs", b"x" * 100_000)
print("pushed", flush=True)
time.sleep(1000)
"""
    with subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout.readline() == "pushed\n"
        tensor = c.fetch("theirs")
        process.kill()
    until("its session is over", lambda: sidecar.counters()["sessions"] == 1)
    # What is being read stays.
    assert bytes(tensor) == b"x" * 100_000
    with pytest.raises(td.Timeout):
        c.fetch("theirs", timeout=0.05)
    c.push("theirs", b"mine")
    assert bytes(c.fetch("theirs")) == b"mine"


def resident_bytes():
    gc.collect()
    return int(open("/proc/self/statm").read().split()[1]) * os.sysconf("SC_PAGESIZE")


CALLS = int(os.environ.get("TRANSFER_PYTHON_CALLS", 100_000))
"""How many calls `test_many_calls_leave_nothing_behind` makes: they take 10 s on two cores."""


# Promise: python-leaks
def test_many_calls_leave_nothing_behind(sidecar, c, other):
    table, state = pa.table({"a": list(range(100))}), {"w": np.zeros(16), "b": np.zeros(3)}

    def round_of(i):
        """Calls of every kind. Answers how many."""
        with c.produce("k", 16) as buffer:
            buffer.numpy()[:] = i
        tensor = other.fetch("k")
        tensor.numpy(), np.from_dlpack(tensor)
        c.push("foreign", np.zeros(100))
        c.push("snapshot", c.empty(8))
        later = other.fetch_later("foreign")
        later.result()
        other.fetch_later("none").cancel()
        other.fetch_many(["k", "foreign"])
        c.push_table("table", table)
        other.fetch_table("table")
        c.push_state("state", state)
        other.fetch_state("state")
        steps.add(1), steps.get(), steps.compare_swap(0, 0)
        with pytest.raises(td.Timeout):
            other.fetch("none", timeout=0)
        return 17

    async def in_a_loop(client, n):
        for i in range(n):
            await client.push("async", b"1")
            await client.fetch("async")
            task = asyncio.create_task(client.fetch("none"))
            await asyncio.sleep(0)
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)

    def calls(n):
        made = 0
        while made < n * 9 // 10:
            made += round_of(made)
        asyncio.run(loop(-(-(n - made) // 3)))

    async def loop(n):
        async with td.aio.connect(sidecar.path, arena="1MiB") as client:
            await in_a_loop(client, n)

    steps = c.counter("steps")
    calls(2000)
    until("nothing is under way", lambda: sidecar.held()["operations"] == 0)
    until("the session of the event loop is over", lambda: sidecar.held()["sessions"] == 2)
    before, memory, free = sidecar.held(), resident_bytes(), c.arena_free_bytes
    calls(CALLS)
    until("all is as before", lambda: sidecar.held() == before)
    until("the arena is as before", lambda: c.arena_free_bytes == free)
    assert resident_bytes() < memory + (8 << 20)


def test_closing(sidecar):
    with td.connect(sidecar.path) as client:
        client.push("k", b"1")
        tensor = client.fetch("k")
        later, dropped = (client.fetch_later("never", timeout=GIVE_UP) for _ in range(2))
        assert not client.closed and not later.done()
    assert client.closed
    with pytest.raises(td.Error) as e:
        client.fetch("k")
    assert e.value.code == "closed"
    client.close()
    assert client.closed and bytes(tensor) == b"1"
    with pytest.raises(td.Error) as e:
        later.result()
    assert e.value.code == "closed"
    dropped.cancel()
    with pytest.raises(td.Error) as e:
        dropped.result()
    assert e.value.code == "cancelled"


def fill(client):
    """Leaves no room for half a MiB in an arena of one MiB, and gives the version of "held" a reader."""
    client.push("held", b"x" * (1 << 19))
    client.push_state("held-state", {"w": np.ones(4)})
    two = client.two_buffers("two", [4], "uint8")
    for version in (1, 2):
        two.push(two.turn(), version)
        held = client.fetch("two", exactly=version)
        fill.kept.append(held)
    fill.kept += [client.fetch("held"), client.fetch_state("held-state"), client.empty((1 << 18,), "uint8"), two]
    exchange = client.exchange("open", partitions=1, tasks=1)
    return two, exchange


fill.kept = []

SCHEMA = pa.schema([("a", pa.int64())])
ROWS = pa.table({"a": list(range(1 << 16))})


def raised(results):
    """Raises the last of many results, an error; in the event loop once they are there."""
    if inspect.isawaitable(results):
        return raised_later(results)
    raise results[-1]


async def raised_later(results):
    raise (await results)[-1]


CLOSED = {
    "fetch": lambda c, two, x: c.fetch("never", timeout=None),
    "at_least": lambda c, two, x: c.fetch("held", at_least=2, timeout=None),
    "fetch_many": lambda c, two, x: raised(c.fetch_many(["held", "never"], timeout=None)),
    "fetch_state": lambda c, two, x: c.fetch_state("never", timeout=None),
    "only": lambda c, two, x: c.fetch_state("never", only=["w"], timeout=None),
    "fetch_table": lambda c, two, x: c.fetch_table("never", timeout=None),
    "stream": lambda c, two, x: next(c.fetch_stream("never", timeout=None)),
    "push_stream": lambda c, two, x: c.push_stream("full", SCHEMA).push(ROWS),
    "result": lambda c, two, x: c.fetch_later("never", timeout=None).result(),
    "subscriber": lambda c, two, x: c.subscriber("held", after=1, timeout=None).next(),
    "state_subscriber": lambda c, two, x: c.state_subscriber("never", timeout=None).next(),
    "table_subscriber": lambda c, two, x: next(c.table_subscriber("never", timeout=None)),
    "barrier": lambda c, two, x: c.barrier("never", 2).wait(timeout=None),
    "join_exchange": lambda c, two, x: c.join_exchange("never", timeout=None),
    "partition": lambda c, two, x: next(x.partition(0, timeout=None)),
    "partition in order": lambda c, two, x: next(x.partition(0, order=1, timeout=None)),
    "empty": lambda c, two, x: c.empty((1 << 19,), "uint8", timeout=None),
    "push": lambda c, two, x: c.push("k", b"x" * (1 << 19), timeout=None),
    "push_state": lambda c, two, x: c.push_state("k", {"w": b"x" * (1 << 19)}, timeout=None),
    "push_table": lambda c, two, x: c.push_table("k", ROWS, timeout=None),
    "take_back": lambda c, two, x: c.take_back("held", timeout=None),
    "take_back_state": lambda c, two, x: c.take_back_state("held-state", timeout=None),
    "two_buffers": lambda c, two, x: two.turn(timeout=None),
}
"""Every call that waits, of a client, its two buffers, and its exchange."""


def is_asleep(thread):
    return Path(f"/proc/self/task/{thread.native_id}/stat").read_text().rpartition(") ")[2].startswith("S")


def check_closed(ended):
    for name, error in ended.items():
        assert isinstance(error, td.Error) and error.code == "closed", f"{name}: {error!r}"
        assert "this client was closed" in str(error) and not error.can_retry, f"{name}: {error!r}"


def connect(where, sidecar, name):
    if where == "embedded":
        return td.embedded(name=name, arena="1MiB")
    return td.connect(sidecar.path, name=name, arena="1MiB")


# Promise: closed-clients
# Promise: python-close
@pytest.mark.parametrize("where", ["sidecar", "embedded"])
def test_close_ends_every_wait(sidecar, where):
    client, ended = connect(where, sidecar, "closed"), {}
    two, exchange = fill(client)

    def wait(name, call):
        try:
            ended[name] = call(client, two, exchange)
        except BaseException as error:
            ended[name] = error

    threads = {name: threading.Thread(target=wait, args=(name, call)) for name, call in CLOSED.items()}
    for thread in threads.values():
        thread.start()
    for name, thread in threads.items():
        until(f"{name} waits", lambda thread=thread: ended or is_asleep(thread))
    assert not ended
    client.close()
    with connect(where, sidecar, "closed") as again:
        again.push("held", b"mine")
    for name, thread in threads.items():
        thread.join(GIVE_UP)
        assert not thread.is_alive(), f"{name} waits on"
    check_closed({name: ended[name] for name in CLOSED})
    fill.kept.clear()


# Promise: closed-clients, seen to fail
# Promise: python-close
@pytest.mark.parametrize("where", ["sidecar", "embedded"])
def test_close_ends_every_await(sidecar, where):
    async def first(iterator):
        return await anext(iterator)

    async def main():
        if where == "embedded":
            client = await td.aio.embedded(name="closed", arena="1MiB")
        else:
            client = await td.aio.connect(sidecar.path, name="closed", arena="1MiB")
        fill(client._client)
        two = client.two_buffers("two-too", [4], "uint8")
        for version in (1, 2):
            await two.push(await two.turn(), version)
            fill.kept.append(await client.fetch("two-too", exactly=version))
        exchange = await client.exchange("open too", partitions=1, tasks=1)
        tasks = {}
        # Its calls are awaited, so it has no `fetch_later`.
        calls = {name: call for name, call in CLOSED.items() if name != "result"}
        for name, call in calls.items():
            # `next` of an asyncio client's iterators is `anext`.
            call = type(call)(call.__code__, {**globals(), "next": first})
            tasks[name] = asyncio.ensure_future(call(client, two, exchange))
        for _ in range(3):
            await asyncio.sleep(0)
        assert not any(task.done() for task in tasks.values())
        await client.close()
        with connect(where, sidecar, "closed") as again:
            again.push("held", b"mine")
        ended = await asyncio.wait_for(asyncio.gather(*tasks.values(), return_exceptions=True), GIVE_UP)
        check_closed(dict(zip(calls, ended, strict=True)))
        with pytest.raises(td.Error) as e:
            await client.fetch("k")
        assert e.value.code == "closed"
        assert not client._loop._waiting

    asyncio.run(main())
    fill.kept.clear()


# Promise: python-close
def test_close_lets_the_event_loop_run_while_the_sidecar_answers_nothing(folder):
    sidecar = Sidecar(folder)

    async def main(leave):
        client = await td.aio.connect(sidecar.path, arena="1MiB")
        waiting = asyncio.create_task(client.fetch("never", timeout=None))
        await asyncio.sleep(0)
        sidecar.suspend()
        try:
            closing = asyncio.ensure_future(settled(leave(client)))
            steps = 0
            while not closing.done():
                await asyncio.sleep(0.01)
                steps += 1
            await closing
        finally:
            sidecar.process.send_signal(signal.SIGCONT)
        assert steps > 10, "the loop stands still"
        with pytest.raises(td.Error) as e:
            await asyncio.wait_for(waiting, GIVE_UP)
        check_closed({"fetch": e.value})
        await settled(client.close())

    try:
        asyncio.run(main(lambda client: client.close()))
        asyncio.run(main(lambda client: client.__aexit__(None, None, None)))
    finally:
        sidecar.stop()


# Promise: python-close
def test_a_close_that_nobody_awaits_closes_all_the_same(sidecar):
    async def main(given_up):
        client = await td.aio.connect(sidecar.path, arena="1MiB")
        waiting = asyncio.create_task(client.fetch("never", timeout=None))
        await asyncio.sleep(0)
        closing = client.close()
        if given_up:
            closing.cancel()
        # No call begins behind it, whether it has ended or not.
        with pytest.raises(td.Error) as e:
            await client.push("k", b"1")
        check_closed({"push": e.value})
        with pytest.raises(td.Error) as e:
            await asyncio.wait_for(waiting, GIVE_UP)
        check_closed({"fetch": e.value})

    for given_up in (False, True):
        asyncio.run(main(given_up))
        until("its session is over", lambda: sidecar.held()["sessions"] == 0)


# Promise: closed-clients
# Promise: python-close
def test_what_a_closed_client_fetched_stays_readable(sidecar, c):
    c.push("k", b"1" * 4096)
    with td.connect(sidecar.path) as reader:
        kept = [reader.fetch("k"), reader.fetch("k")]
    until("its session is over", lambda: sidecar.held()["sessions"] == 1)
    for _ in range(100):
        c.push("k", b"2" * 4096)
    assert [bytes(tensor) for tensor in kept] == [b"1" * 4096] * 2
    kept.clear()
    until("nothing is leased", lambda: sidecar.held()["leases"] == 0)


def test_embedded_ends_with_its_last_client():
    with td.embedded(name="a") as a, td.embedded(name="b", arena="1MiB") as b:
        a.push("k", b"1")
        assert bytes(b.fetch("k")) == b"1"
        path, incarnation = a.path, a.incarnation
        assert os.path.exists(path)
    until("its socket is gone", lambda: not os.path.exists(path))
    # The next one is another sidecar, and has nothing of this one.
    with td.embedded() as c:
        assert c.path != path and c.incarnation != incarnation
        with pytest.raises(td.Timeout):
            c.fetch("k", timeout=0)
