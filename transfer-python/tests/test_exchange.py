"""Exchanges of record batches."""

from __future__ import annotations

import asyncio
import pickle
import socket
import subprocess
import sys

import pyarrow as pa
import pytest
import transferd as td
from conftest import GIVE_UP, Sidecar, until

P, T = 4, 3


def table(task: int, rows: int = 1000) -> pa.Table:
    n = list(range(rows))
    return pa.table({"task": [task] * rows, "n": n, "part": [i % P for i in n], "name": [f"user-{i % 7}" for i in n]})


def rows(batches) -> list[dict]:
    return sorted((row for batch in batches for row in pa.table(batch).to_pylist()), key=lambda row: (row["task"], row["n"]))


# Promise: attempts
# Promise: python-exchanges
def test_rows_of_all_tasks_come_to_their_partitions(c, other):
    free = c.arena_free_bytes
    x = c.exchange("epoch", partitions=P, tasks=T, timeout=GIVE_UP)
    joined = other.join_exchange("epoch", timeout=GIVE_UP)
    assert (joined.name, joined.partitions, joined.tasks) == ("epoch", P, T)
    for task in range(T):
        with [x, joined][task % 2].task(task) as writer:
            writer.write(table(task).slice(0, 600), column="part")
            writer.write(table(task).slice(600), column="part")
            assert (writer.task, writer.attempt, writer.rows) == (task, 0, 1000)
    for partition in range(P):
        expected = [row for task in range(T) for row in table(task).to_pylist() if row["part"] == partition]
        for reader in (x, joined):
            assert rows(reader.partition(partition)) == expected
    first = next(joined.partition(0))
    assert first.report.copied == 0
    x.release()
    assert rows([first])[0]["part"] == 0
    with pytest.raises(td.ExchangeOver):
        next(x.partition(0))
    del first
    until("all memory is free", lambda: c.arena_free_bytes == free)


# Promise: python-exchanges
@pytest.mark.parametrize(
    "how",
    [{"hash": "name"}, {"hash": ["name", "n"]}, {"random": 7}, {}, {"range": pa.table({"n": [100, 200, 700]})}],
    ids=["hash", "hashes", "random", "turns", "range"],
)
def test_every_way_to_partition_loses_no_row(c, how):
    with c.exchange("ways", partitions=P, tasks=1) as x:
        with x.task(0) as writer:
            writer.write(table(0), **how)
        parts = [rows(x.partition(partition)) for partition in range(P)]
        assert sorted(row["n"] for part in parts for row in part) == list(range(1000))
        if how == {"hash": "name"}:
            names = [{row["name"] for row in part} for part in parts]
            assert sum(map(len, names)) == 7
        if "range" in how:
            assert [len(part) for part in parts] == [100, 100, 500, 300]


# Promise: python-exchanges
def test_order_of_a_seed_is_the_same_again_and_goes_on(c):
    def run(attempt: int) -> list[int]:
        with c.exchange("order", partitions=1, tasks=T) as x:
            for task in range(T):
                with x.task(task, attempt) as writer:
                    writer.write(table(task))
            reader = x.partition(0, order=5, rows_per_batch=700)
            first = next(reader)
            assert (first.num_rows, reader.position) == (700, 700)
            all_of = [row for batch in x.partition(0, order=5) for row in pa.table(batch).to_pylist()]
            rest = [row for batch in x.partition(0, order=5, position=700) for row in pa.table(batch).to_pylist()]
            assert pa.table(first).to_pylist() + rest == all_of
            # In several passes.
            passes = [row for batch in x.partition(0, order=5, memory="16KiB") for row in pa.table(batch).to_pylist()]
            assert passes == all_of
            return [row["task"] * 1000 + row["n"] for row in all_of]

    assert run(0) == run(3)
    assert run(1) != sorted(run(1))


# Promise: python-exchanges
def test_one_attempt_wins_and_errors_say_what_is_wrong(c, other):
    with c.exchange("errors", partitions=P, tasks=2) as x:
        joined = other.join_exchange("errors")
        one, two = x.task(0, 0), joined.task(0, 1)
        one.write(table(0))
        two.write(table(0))
        assert one.commit() == 1000
        with pytest.raises(td.Committed, match="attempt 0 has committed task 0") as committed:
            two.commit()
        assert committed.value.code == "committed"
        with pytest.raises(td.Error, match="committed or dropped"):
            one.commit()
        with pytest.raises(td.Invalid, match="tasks are 0 to 1"):
            x.task(2)
        with pytest.raises(td.Invalid, match="partitions are 0 to 3"):
            next(x.partition(4))
        with pytest.raises(td.Timeout, match="task 1"):
            rows(x.partition(0, timeout=0.05))
        with pytest.raises(td.Error, match="already"):
            c.exchange("errors", partitions=1, tasks=1)
        with pytest.raises(td.Invalid, match="partitions is a whole number from 1 to .* this is 0"):
            c.exchange("none", partitions=0, tasks=1)
        with pytest.raises(TypeError, match="not by hash and random"):
            x.task(1, 0).write(table(1), hash="n", random=1)
        with pytest.raises(td.Invalid, match="no column"):
            x.task(1, 1).write(table(1), hash="nothing")
        with pytest.raises(RuntimeError), x.task(1, 2) as writer:
            writer.write(table(1))
            raise RuntimeError
        with pytest.raises(td.Error, match="opened by"):
            joined.release()
        with x.task(1, 3):
            pass
        assert len(rows(joined.partition(0))) == 250


VICTIM = """
import sys, pyarrow as pa, transferd as td
with td.connect(sys.argv[1], arena="4MiB").join_exchange("lost").task(1) as writer:
    writer.write(pa.table({"task": [1], "n": [0], "part": [0], "name": [""]}))
"""


def test_what_a_process_has_committed_outlives_it(c, sidecar):
    with c.exchange("lost", partitions=1, tasks=2) as x:
        with x.task(0) as writer:
            writer.write(table(0))
        subprocess.run([sys.executable, "-c", VICTIM, sidecar.path], check=True)
        until("it is gone", lambda: sidecar.counters()["sessions"] == 1)
        assert len(rows(x.partition(0))) == 1001
    until("nothing of it is left", lambda: sidecar.counters()["tensors"] == 0)


# Promise: partition-limit
def test_more_partitions_than_the_limit_are_refused(folder):
    sidecar = Sidecar(folder, "--node", "a", "--limits", "partitions_per_exchange=8")
    with td.connect(sidecar.path) as c:
        with pytest.raises(td.Invalid, match='exchange "wide" would have 9 partitions, and the limit of node a is 8') as refused:
            c.exchange("wide", partitions=9, tasks=1)
        assert refused.value.code == "invalid" and "limits.partitions_per_exchange" in str(refused.value)
        with c.exchange("wide", partitions=8, tasks=1) as x:
            assert x.partitions == 8
    sidecar.stop()


# Promise: lost-tasks
# Promise: python-exchanges
def test_lost_tasks_are_named_and_run_again(folder):
    (folder / "a").mkdir()
    (folder / "b").mkdir()
    ports = []
    for _ in "ab":
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            ports.append(free.getsockname()[1])
    listen = [f"127.0.0.1:{port}" for port in ports]
    a = Sidecar(folder / "a", "--node", "a", "--listen", listen[0])
    b = Sidecar(folder / "b", "--node", "b", "--listen", listen[1], "--directory", f"http://{listen[0]}")
    with td.connect(a.path) as c, c.exchange("lost", partitions=1, tasks=3) as x:
        for task in (0, 2):
            with x.task(task) as writer:
                writer.write(table(task))
        # What a process has committed ends with its sidecar.
        subprocess.run([sys.executable, "-c", VICTIM, b.path], check=True)
        b.kill()
        reader, found = x.partition(0, timeout=60), []
        with pytest.raises(td.Lost, match="task 1") as lost:
            found.extend(reader)
        assert lost.value.tasks == [1] and lost.value.can_retry
        again = pickle.loads(pickle.dumps(lost.value))
        assert (again.tasks, str(again)) == ([1], str(lost.value))
        with x.task(1, 1) as writer:
            writer.write(table(1))
        found.extend(reader)
        assert len(rows(found)) == 3000
    a.stop()


# Promise: python-exchanges
def test_an_event_loop_reads_while_it_writes(sidecar):
    async def run() -> None:
        async with td.aio.connect(sidecar.path) as c:
            async with await c.exchange("loop", partitions=P, tasks=T) as x:

                async def read(partition: int) -> int:
                    return sum([table.num_rows async for table in x.partition(partition)])

                reads = [asyncio.ensure_future(read(partition)) for partition in range(P)]
                joined = await c.join_exchange("loop")
                for task in range(T):
                    async with await joined.task(task) as writer:
                        await writer.write(table(task), column="part")
                        assert (writer.task, writer.attempt, writer.rows) == (task, 0, 1000)
                assert await asyncio.gather(*reads) == [250 * T] * P
                assert (x.name, x.partitions, x.tasks) == ("loop", P, T)
                ordered = x.partition(1, order=3)
                assert [t.num_rows async for t in ordered] == [750] and ordered.position == 750
                with pytest.raises(td.Committed):
                    await x.task(0, 1)

    asyncio.run(run())
