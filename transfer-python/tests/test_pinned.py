"""Arrays of the caller's: published where they lie, and landed in."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
import transferd as td
from conftest import Sidecar
from test_tensors import address


@pytest.fixture(scope="module")
def outside(tmp_path_factory) -> Iterator[tuple[str, td.Client]]:
    """A node of a cluster whose directory others find at this address, and a client there."""
    import socket

    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        listen = f"127.0.0.1:{one.getsockname()[1]}"
    sidecar = Sidecar(tmp_path_factory.mktemp("out"), "--node", "out", "--listen", listen, "--shm", "off")
    with td.connect(sidecar.path, arena="64MiB", name="far") as client:
        yield listen, client
    sidecar.stop()


def _inside(listen: str) -> td.Client:
    return td.embedded(arena="1MiB", name="near", sidecar=_settings(listen))


def _settings(listen: str) -> dict[str, str]:
    return {"node": "in", "directory": f"http://{listen}", "listen": "127.0.0.1:0", "shm": "off", "pool_bytes": "32MiB"}


# Promise: python-registered, seen to fail
def test_an_array_is_sent_from_where_it_lies_and_landed_in(outside) -> None:
    listen, far = outside
    with _inside(listen) as c:
        # It does not fit the arena.
        w = np.arange(1 << 20, dtype="float32").reshape(1024, 1024)
        at, free = address(w), c.arena_free_bytes
        with c.push_pinned("w", w) as pinned:
            assert (pinned.report.copied, c.arena_free_bytes, pinned.released) == (0, free, False)
            with pytest.raises(ValueError, match="read-only"):
                w[0, 0] = 1
            with pytest.raises(td.Error, match="pushed"):
                c.unregister(w)
            got = far.fetch("w")
            assert (got.numpy() == w).all()
            assert 2 * w.nbytes <= got.report.copied <= 2 * w.nbytes + (65 << 10), "by the sockets alone"
            here = c.fetch("w")
            assert (here.numpy() == w).all() and (here.report.fabric, here.report.copied) == ("local", w.nbytes)
            del got, here
        assert pinned.released
        with pytest.raises(td.VersionGone):
            far.fetch("w", exactly=pinned.version, timeout=5)
        # The next version, of the same memory.
        w += 1
        second = c.push_pinned("w", w)
        assert second.version > pinned.version and (far.fetch("w").numpy() == w).all()
        second.release()
        # Into all of it, and into a part.
        far.push("from-far", np.full((1024, 1024), 7, "float32"))
        got = c.fetch("from-far", into=w)
        assert (got.in_place, got.landing) == (True, "in place") and (w == 7).all() and address(w) == at
        far.push("rows", np.full((512, 1024), 9, "float32"))
        got = c.fetch("rows", into=w[256:768])
        assert got.in_place and (w[256:768] == 9).all() and (w[:256] == 7).all() and (w[768:] == 7).all()
        c.unregister(w)
        got = c.fetch("from-far", into=w)
        assert not got.in_place and (w == 7).all(), "it is copied into what is not registered"


# Promise: python-registered
def test_states_land_in_registered_arrays(outside) -> None:
    listen, far = outside
    with _inside(listen) as c:
        state = {f"layer{n}": np.full((64, 1024), n, "float32") for n in range(20)}
        far.push_state("state", state)
        into = {name: np.zeros_like(array) for name, array in state.items()}
        for array in into.values():
            c.register(array)
            c.register(array)
        got = c.fetch_state("state", into=into)
        assert all((into[name] == array).all() for name, array in state.items())
        assert all(way == "in place" for way in got.landings.values()), got.landings


# Promise: python-registered
def test_what_cannot_be_registered_says_why(outside, sidecar: Sidecar) -> None:
    listen, _ = outside
    with _inside(listen) as c:
        locked = np.zeros(1000, "float32")
        locked.flags.writeable = False
        for wrong, why in (
            (locked, "read-only"),
            (np.zeros((100, 100), "float32")[:, ::2], "in one piece"),
            (np.zeros(0, "float32"), "1 to"),
            (np.zeros(10, "datetime64[s]"), "datetime64"),
            (b"abc", "array of numpy"),
            ([1, 2], "array of numpy"),
        ):
            with pytest.raises(td.Error, match=why):
                c.register(wrong)
            with pytest.raises(td.Error, match=why):
                c.push_pinned("wrong", wrong)
    # Where the sidecar is another process, it is copied, and the report says so.
    with td.connect(sidecar.path, arena="16MiB") as c:
        w = np.ones(1000, "float32")
        c.register(w)
        with c.push_pinned("w", w) as pinned:
            assert (pinned.report.copied, pinned.released) == (w.nbytes, True)
            w[:] = 2
            assert (c.fetch("w").numpy() == 1).all()


# Promise: python-registered
def test_an_array_is_released_when_its_last_reader_is_done(outside) -> None:
    listen, _ = outside

    async def main() -> None:
        async with td.aio.embedded(arena="1MiB", name="near", sidecar=_settings(listen)) as c:
            w = np.ones(1 << 16, "float32")
            c.register(w)
            async with await c.push_pinned("async", w) as pinned:
                assert (pinned.report.copied, pinned.released) == (0, False)
                assert ((await c.fetch("async")).numpy() == 1).all()
            assert pinned.released and w.flags.writeable
            c.unregister(w)

    asyncio.run(main())


# Promise: python-registered, seen to fail
def test_what_is_registered_is_pushed_as_what_it_is(outside) -> None:
    listen, far = outside
    with _inside(listen) as c:
        w = np.arange(12, dtype="float32").reshape(3, 4)
        square = np.arange(16, dtype="float32").reshape(4, 4)
        for array in (w, square):
            c.register(array)
        for registered, other in ((w, w.T), (w, w.view("int32")), (w, w.reshape(4, 3)), (square, square.T)):
            for call in (c.register, lambda array: c.push_pinned("other", array)):
                with pytest.raises(td.Error, match=f"is not the array that is registered at {address(registered):#x}, which is"):
                    call(other)
            assert registered.flags.writeable and other.flags.writeable
        with c.push_pinned("square", square[:]):
            assert (far.fetch("square").numpy() == square).all() and not square.flags.writeable, "the same memory is the same array"
        square += 1


# Promise: python-registered, seen to fail
def test_numpy_does_not_resize_what_is_registered(outside) -> None:
    listen, _ = outside
    with _inside(listen) as c:
        w = np.zeros(4096, "float32")
        for registered in (w, w[:]):
            c.register(registered)
            for check in (True, False):
                with pytest.raises(ValueError, match="cannot resize"):
                    w.resize(8192, refcheck=check)
            c.unregister(registered)
        w.resize(8192, refcheck=False)
        assert w.nbytes == 32768


# Promise: python-registered, seen to fail
def test_no_memory_is_registered_twice(outside) -> None:
    listen, _ = outside
    with _inside(listen) as c, td.embedded(arena="1MiB", name="beside", sidecar=_settings(listen)) as beside:
        w = np.zeros((1000, 100), "float32")
        c.register(w)
        for client, part in ((c, w[:10]), (c, w[10:20]), (c, w[990:]), (beside, w), (beside, w[500:])):
            with pytest.raises(td.Error, match=f"{address(part):#x} to .* in common with what is registered at {address(w):#x} to"):
                client.register(part)
        c.unregister(w)
        for part in (w[10:20], w[:10], w[20:]):
            c.register(part)
        with pytest.raises(td.Error, match="in common"):
            beside.register(w)
        for part in (w[10:20], w[:10], w[20:]):
            c.unregister(part)
        # However many threads try.
        for _ in range(20):
            begin = threading.Barrier(2)

            def register(client: td.Client, part: np.ndarray, begin: threading.Barrier = begin) -> bool:
                begin.wait()
                try:
                    client.register(part)
                except td.Error:
                    return False
                return True

            with ThreadPoolExecutor(2) as threads:
                made = list(threads.map(register, (c, beside), (w[:600], w[400:])))
            assert any(made) and not all(made)
            c.unregister(w[:600])
            beside.unregister(w[400:])
        buffer = c.empty(1000)
        with pytest.raises(td.Error, match="in common with a buffer of this package"):
            c.push_pinned("buffer", buffer.numpy()[10:])


# Promise: python-registered, seen to fail
def test_an_array_whose_push_failed_or_whose_guard_is_lost_is_free_again(outside) -> None:
    listen, _ = outside
    with _inside(listen) as c:
        flat = np.zeros(1000, "float32")
        w = flat.reshape(10, 100)
        c.push("versions", b"x", version=5)
        with pytest.raises(td.Error, match="version"):
            c.push_pinned("versions", w, version=4)
        assert w.flags.writeable and flat.flags.writeable
        lost = c.push_pinned("lost", w)
        assert not w.flags.writeable and not flat.flags.writeable, "it is the same memory"
        for call in (lambda: c.push_pinned("again", w), lambda: c.unregister(w)):
            with pytest.raises(td.Error, match="was pushed already, as 'lost': release it, or delete that key"):
                call()
        assert not w.flags.writeable
        c.delete("lost")
        again = c.push_pinned("again", w)
        lost.release()
        assert (lost.released, again.released, w.flags.writeable) == (True, False, False)
        again.release()
        third = c.push_pinned("third", w)
        again.release()
        assert not third.released
        c.delete("third")
        c.unregister(w)
        third.release()
        assert third.released and w.flags.writeable and flat.flags.writeable


# Promise: python-registered, seen to fail
def test_an_array_is_free_after_its_client_was_closed(outside, monkeypatch) -> None:
    listen, _ = outside
    w = np.zeros(1000, "float32")
    kept: list[td.Buffer] = []
    for use in ("release", "with"):
        c = _inside(listen)
        # Something of the closed client may be left.
        kept.append(c.empty(10))
        pinned = c.push_pinned("w", w)
        if use == "with":
            with pytest.raises(KeyError, match="of the caller"), pinned:
                c.close()
                raise KeyError("of the caller")
        else:
            c.close()
        pinned.release()
        assert pinned.released and w.flags.writeable
        w += 1

    async def main() -> None:
        c = td.aio.embedded(arena="1MiB", name="near", sidecar=_settings(listen))
        async with c as c:
            pinned = await c.push_pinned("w", w)
        await pinned.release()
        assert pinned.released and w.flags.writeable

    asyncio.run(main())
    with _inside(listen) as c:
        pinned = c.push_pinned("w", w)

        def fails(*_: object) -> None:
            raise td.Error("it takes too long")

        with monkeypatch.context() as patch:
            patch.setattr("transferd._pinned.release", fails)
            with pytest.raises(KeyError) as caught, pinned:
                raise KeyError("of the caller")
            assert caught.value.__notes__ == ["the array for 'w' was not released: it takes too long"]
            with pytest.raises(td.Error, match="too long"), pinned:
                pass
        pinned.release()
