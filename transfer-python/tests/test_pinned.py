"""Arrays of the caller's: published where they lie, and landed in."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator

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
