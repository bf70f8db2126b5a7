"""What the workers of a job share: counters, barriers, weights that are updated in place; and what calls are told."""

from __future__ import annotations

import threading

import numpy as np
import pytest
import transferd as td
from conftest import GIVE_UP, Sidecar
from test_tensors import address


def test_a_counter_is_one_for_all(c, other):
    ours, theirs = c.counter("steps"), other.counter("steps")
    assert (ours.name, ours.home) == ("steps", c.node)
    start = ours.add(0)
    assert (ours.add(), theirs.add(4), ours.get()) == (start, start + 1, start + 5)
    assert theirs.compare_swap(start, 0) == (False, start + 5)
    assert theirs.compare_swap(start + 5, 2**64 - 1) == (True, start + 5)
    assert ours.add() == 2**64 - 1 and ours.get() == 0
    with pytest.raises(td.Invalid, match="n is a whole number from 0 to .*; this is -1"):
        ours.add(-1)


def test_a_barrier_lets_all_through_at_once(c, other):
    rounds = []
    threads = [
        threading.Thread(target=lambda of=of: rounds.append(of.barrier("of-three", 3).wait(timeout=GIVE_UP)))
        for of in (c, other)
    ]
    for thread in threads:
        thread.start()
    assert c.barrier("of-three", 3).wait(timeout=GIVE_UP) is not None
    for thread in threads:
        thread.join(GIVE_UP)
    assert sum(r.leader for r in rounds) <= 1 and len({r.number for r in rounds}) == 1
    with pytest.raises(td.Timeout) as e:
        c.barrier("of-three", 3).wait(timeout=0.01)
    assert e.value.key == "of-three"
    with pytest.raises(td.Invalid):
        c.barrier("of-three", 2).wait()


# Promise: python-gates
def test_a_gate_takes_a_version_back_once_nobody_reads_it(c, other):
    buffer = c.empty(64)
    buffer.numpy()[:] = 1
    where = address(buffer.numpy())
    c.push("w", buffer, version=1)
    reading = other.fetch("w")
    with pytest.raises(td.Timeout):
        c.take_back("w", timeout=0.05)
    assert other.fetch("w").version == 1
    del reading
    again = c.take_back("w", timeout=GIVE_UP)
    assert address(again.numpy()) == where and (again.numpy() == 1).all()
    with pytest.raises(td.Timeout):
        other.fetch("w", timeout=0.05)
    again.numpy()[:] = 2
    c.push("w", again, version=2)
    assert (other.fetch("w").numpy() == 2).all()


# Promise: python-gates
def test_two_buffers_take_turns_and_copy_nothing(c, other):
    weights = c.two_buffers("w", (8, 8))
    places, last = [], None
    for step in range(1, 7):
        buffer = weights.turn(timeout=GIVE_UP)
        places.append(address(buffer.numpy()))
        buffer.numpy()[:] = step
        assert weights.push(buffer, step).report.copied == 0
        last = other.fetch("w")
        assert last.version == step and (last.numpy() == step).all()
    assert len(set(places)) == 2 and places[0] == places[2] == places[4]
    buffer = weights.turn(timeout=GIVE_UP)
    view = buffer.numpy()
    with pytest.raises(td.StillExported):
        weights.push(buffer, 7)
    # It can still be pushed.
    del view
    weights.push(buffer, 7)


# Promise: python-require-and-traces
def test_what_is_required_is_kept_or_fails(c, other):
    c.push("k", b"1", require="local")
    assert other.fetch("k", require="local").report.fabric == "local"
    with pytest.raises(td.RequireUnmet) as e:
        other.fetch("k", require="verbs", timeout=5)
    assert e.value.code == "require_unmet"
    with pytest.raises(td.Invalid, match="local, tcp, shm, verbs"):
        other.fetch("k", require="pigeon")


# Promise: python-require-and-traces
def test_a_trace_goes_with_a_push_and_comes_with_a_fetch(c, other):
    parent = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
    c.push("k", b"1", trace=parent)
    assert other.fetch("k").report.origin == parent
    for wrong in ("00-0-0-0", "nonsense"):
        with pytest.raises(td.Invalid):
            c.push("k", b"1", trace=wrong)
        with pytest.raises(td.Invalid):
            c.fetch("k", trace=wrong)


@pytest.mark.parametrize(
    "options", [{"keep": "for ever"}, {"keep": 0}, {"timeout": -1}, {"timeout": float("nan")}, {"readable_by": [""]}]
)
def test_options_that_cannot_be_say_why(c, options):
    with pytest.raises(td.Invalid):
        c.push("k", b"1", **options)
    with pytest.raises(TypeError):
        c.push("k", b"1", **{"nonsense": 1})


def test_arguments_that_cannot_be_say_why(c):
    with pytest.raises(td.Invalid, match="one of at_least, exactly and after"):
        c.fetch("k", at_least=1, exactly=1)
    with pytest.raises(td.Invalid):
        c.fetch("")
    with pytest.raises(td.Invalid):
        c.push("k" * 513, b"1")
    with pytest.raises(ValueError):
        c.push("k", b"1", aliases="perhaps")
    with pytest.raises(td.ArenaFull) as e:
        c.empty(1 << 40)
    assert isinstance(e.value, MemoryError) and e.value.code == "too_large_for_arena" and not e.value.can_retry
    kept = [c.empty(1 << 20, "uint8") for _ in range(63)]
    with pytest.raises(td.ArenaFull) as e:
        c.empty(8 << 20, "uint8")
    assert e.value.code == "arena_full" and e.value.can_retry
    threading.Timer(0.05, kept.clear).start()
    assert c.empty(8 << 20, "uint8", timeout=GIVE_UP).nbytes == 8 << 20
    for wrong in ("4 parsecs", "x", ""):
        with pytest.raises(td.Invalid, match="arena is a whole number of bytes"):
            td.connect("/nowhere", arena=wrong)


@pytest.mark.parametrize("text, size", [("1MiB", 1 << 20), ("1.5 MiB", 3 << 19), ("2097152", 2 << 20), ("2MB", 2_000_000)])
def test_sizes_of_arenas(sidecar, text, size):
    with td.connect(sidecar.path, arena=text) as c:
        # Whole pages.
        assert c.arena_bytes == -(-size // 4096) * 4096


def test_errors_are_those_of_python_too():
    for error, also in [
        (td.Timeout, TimeoutError),
        (td.ArenaFull, MemoryError),
        (td.PeerLost, ConnectionError),
        (td.StillExported, BufferError),
        (td.PermissionDenied, PermissionError),
        (td.Invalid, ValueError),
    ]:
        assert issubclass(error, td.Error) and issubclass(error, also)
        made = error("what is wrong", "a_code", True, "nobody", "key", 1.5)
        assert (str(made), made.code, made.can_retry, made.fault) == ("what is wrong", "a_code", True, "nobody")
        assert (made.key, made.waited) == ("key", 1.5)
    for error in (td.SidecarGone, td.VersionGone, td.KeyOwned, td.RequireUnmet, td.Forked):
        assert issubclass(error, td.Error)


def test_between_two_nodes(folder):
    import socket

    with socket.socket() as one, socket.socket() as two:
        one.bind(("127.0.0.1", 0))
        two.bind(("127.0.0.1", 0))
        ports = one.getsockname()[1], two.getsockname()[1]
    for name in "ab":
        (folder / name).mkdir()
    listen = [f"127.0.0.1:{port}" for port in ports]
    a = Sidecar(folder / "a", "--node", "a", "--listen", listen[0], "--shm", "off")
    b = Sidecar(folder / "b", "--node", "b", "--listen", listen[1], "--shm", "off", "--directory", f"http://{listen[0]}")
    try:
        with td.connect(a.path, name="pusher") as pusher, td.connect(b.path, name="reader") as reader:
            pusher.push("w", np.arange(1 << 18))
            tensor = reader.fetch("w", require="tcp")
            assert tensor.report.fabric == "tcp" and tensor.report.copied >= tensor.nbytes
            assert (np.from_dlpack(tensor) == np.arange(1 << 18)).all() and tensor.exports_copied == 0
            pusher.reserve("to", (4,), "int64", "reader")
            pushed = pusher.push("to", np.arange(4), to="reader")
            assert pushed.report.fabric == "tcp"
            assert list(reader.fetch("to").numpy()) == [0, 1, 2, 3]
            a.kill()
            with pytest.raises((td.PeerLost, td.Timeout)) as e:
                reader.fetch("other", timeout=2)
            assert e.value.can_retry
            assert tensor.numpy()[-1] == (1 << 18) - 1
    finally:
        for sidecar in (a, b):
            if sidecar.process.poll() is None:
                sidecar.stop()
