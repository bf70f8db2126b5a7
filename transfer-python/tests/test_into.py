"""Fetches into the caller's buffers: where the bytes land, and when the buffer is the caller's again."""

from __future__ import annotations

import asyncio
import signal
import sys
import threading
import time
from collections.abc import Iterator

import numpy as np
import pytest
import transferd as td
from conftest import Sidecar, start_two, until
from test_tensors import DTYPES, address, values


@pytest.fixture(scope="module")
def nodes(tmp_path_factory) -> Iterator[tuple[td.Client, td.Client, str]]:
    """Clients at two nodes, between which bytes go over TCP, and the path of the second."""
    a, b = start_two(tmp_path_factory, "--shm", "off")
    with td.connect(a.path, arena="64MiB") as giver, td.connect(b.path, arena="64MiB") as taker:
        yield giver, taker, b.path
    b.stop()
    a.stop()


# Promise: python-into
def test_bytes_land_in_the_buffer_and_its_views_see_them(nodes) -> None:
    giver, taker, _ = nodes
    for version in (1, 2, 3):
        w = np.full((256, 512), version, "float32")
        giver.push("w", w, version=version)
        buffer = taker.empty((256, 512), "float32") if version == 1 else buffer
        view = buffer.numpy()
        at = address(view)
        got = taker.fetch("w", at_least=version, into=buffer)
        assert isinstance(got, td.FetchedInto) and got.buffer is buffer and not buffer.pushed
        assert (got.version, got.in_place, got.landing) == (version, True, "in place")
        # The sockets copy at both ends, and up to 64 KiB pass through the buffer of the stream, as in a plain fetch. Nothing else is copied.
        assert (got.report.fabric, got.report.bytes) == ("tcp", w.nbytes)
        assert 2 * w.nbytes <= got.report.copied <= 2 * w.nbytes + (65 << 10)
        assert (view == version).all() and address(buffer.numpy()) == at
        del view
    here = giver.empty((256, 512), "float32")
    got = giver.fetch("w", into=here)
    assert (got.in_place, got.report.copied) == (False, here.nbytes) and "this host" in got.landing
    assert (here.numpy() == 3).all()
    # What was landed in can be pushed on.
    taker.push("copy", buffer)
    assert (giver.fetch("copy").numpy() == 3).all()


# Promise: python-into
@pytest.mark.parametrize("dtype", DTYPES)
def test_every_type_and_a_slice_land(nodes, dtype: str) -> None:
    giver, taker, _ = nodes
    w = values(dtype, (6, 8))
    giver.push(f"t/{dtype}", w)
    for client in (giver, taker):
        whole, part = client.empty((6, 8), dtype), client.empty((3, 4), dtype)
        client.fetch(f"t/{dtype}", into=whole)
        assert whole.numpy().tobytes() == w.tobytes()
        client.fetch(f"t/{dtype}", slice=np.s_[3:, ::2], into=part)
        assert part.numpy().tobytes() == np.ascontiguousarray(w[3:, ::2]).tobytes()


# Promise: python-into
def test_a_buffer_that_does_not_fit_stays_as_it_was(nodes) -> None:
    giver, taker, _ = nodes
    giver.push("fit", np.zeros((4, 4), "float32"))
    for client in (giver, taker):
        for shape, dtype in (((4, 5), "float32"), ((16,), "float32"), ((4, 4), "int32")):
            buffer = client.empty(shape, dtype)
            buffer.numpy()[...] = 7
            with pytest.raises(td.Invalid, match=r"f32\[4, 4\].*the destination is"):
                client.fetch("fit", into=buffer)
            assert (buffer.numpy() == 7).all() and not buffer.pushed
        with pytest.raises(td.Timeout):
            client.fetch("nobody", timeout=0.05, into=buffer)
        assert (buffer.numpy() == 7).all()


# Promise: python-into
def test_a_call_that_is_given_up_leaves_the_buffer_writable(nodes) -> None:
    giver, taker, path = nodes
    buffer = taker.empty((8,), "float32")
    pending = taker.fetch_later("later", into=buffer)
    assert buffer.pushed, "it is the fetch's meanwhile"
    with pytest.raises(td.Error, match="pushed"):
        taker.fetch("later", into=buffer, timeout=1)
    pending.cancel()
    assert not buffer.pushed
    buffer.numpy()[...] = 1

    async def cancelled() -> None:
        async with td.aio.connect(path) as c:
            mine = await c.empty((8,), "float32")
            task = asyncio.ensure_future(c.fetch("later", into=mine))
            await asyncio.sleep(0)
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
            assert not mine.pushed
            giver.push("later", np.arange(8, dtype="float32"))
            got = await c.fetch("later", into=mine)
            assert got.in_place and mine.numpy().tolist() == list(range(8))

    asyncio.run(cancelled())
    assert taker.fetch("later", into=buffer).in_place and buffer.numpy()[7] == 7


# Promise: python-into
def test_a_copy_of_a_version_of_this_host_lets_go_of_the_lock(nodes) -> None:
    giver, _, path = nodes
    giver.push("large", np.ones(4 << 20, "float32"))
    buffer = giver.empty((4 << 20,), "float32")
    seen, stop = 0, threading.Event()

    def run() -> None:
        nonlocal seen
        while not stop.is_set():
            seen += 1
            # Lets go of the lock: nobody has to wait for the next switch.
            time.sleep(0)

    interval = sys.getswitchinterval()
    sys.setswitchinterval(1000)
    thread = threading.Thread(target=run)
    try:
        thread.start()
        before = seen
        giver.fetch("large", into=buffer)
        after = seen
    finally:
        stop.set()
        sys.setswitchinterval(interval)
        thread.join()
    assert after > before and buffer.numpy()[-1] == 1


# Promise: python-into
def test_a_call_that_is_given_up_before_it_was_sent_is_not_sent(tmp_path) -> None:
    sidecar = Sidecar(tmp_path)
    with td.connect(sidecar.path, arena="1MiB") as c:
        buffer = c.empty((8,), "float32")
        sidecar.suspend()
        # They fill the ring to the sidecar.
        waits = [c.fetch_later(f"nobody/{n}", timeout=60) for n in range(10_000)]
        pending = c.fetch_later("nobody", into=buffer, timeout=60)
        sidecar.process.send_signal(signal.SIGCONT)
        until("there is room in the ring", lambda: sidecar.counters()["operations"] > 100)
        pending.cancel()
        assert not buffer.pushed
        for wait in waits:
            wait.cancel()
        c.push("somebody", np.arange(8, dtype="float32"))
        c.fetch("somebody", into=buffer)
        assert buffer.numpy()[7] == 7
    sidecar.stop()


# Promise: python-into
def test_a_staged_fetch_lands_beside_the_buffer_first(nodes) -> None:
    giver, taker, path = nodes
    giver.push("staged", np.arange(512, dtype="float32").reshape(16, 32))
    buffer, part = taker.empty((16, 32)), taker.empty((16, 2))
    got = taker.fetch("staged", into=buffer, staged=True)
    assert (got.in_place, got.landing, got.buffer is buffer) == (False, "copied: it landed beside first, as staged", True)
    assert buffer.numpy()[15, 31] == 511 and got.report.copied >= 3 * buffer.nbytes
    taker.fetch("staged", slice=np.s_[:, 1:3], into=part, staged=True)
    assert part.numpy()[15].tolist() == [481, 482]
    here = giver.fetch("staged", into=giver.empty((16, 32)), staged=True)
    assert "this host" in here.landing
    wrong = taker.empty((16, 31))
    wrong.numpy()[...] = 7
    with pytest.raises(td.Invalid, match=r"f32\[16, 32\].*the destination is"):
        taker.fetch("staged", into=wrong, staged=True)
    assert (wrong.numpy() == 7).all() and not wrong.pushed
    # Nobody else writes there, so nothing has to be waited for.
    pending = taker.fetch_later("later staged", into=buffer, staged=True)
    pending.cancel()
    assert not buffer.pushed and buffer.numpy()[15, 31] == 511
    with pytest.raises(td.Invalid, match="with into="):
        taker.fetch("staged", staged=True)

    async def run() -> None:
        async with td.aio.connect(path) as c:
            mine = await c.empty((16, 32))
            assert not (await c.fetch("staged", into=mine, staged=True)).in_place and mine.numpy()[0, 5] == 5

    asyncio.run(run())


FOREIGN = "copied: the array is no part of a Buffer in which its elements rise"


# Promise: python-into, seen to fail
def test_a_tensor_comes_into_any_array(nodes) -> None:
    giver, taker, path = nodes
    w = np.arange(256 * 512, dtype="float32").reshape(256, 512)
    giver.push("any", w)
    flat = taker.empty(2 * w.nbytes, "uint8").numpy()
    part = flat[w.nbytes :].view("float32").reshape(256, 512)
    wide = taker.empty((4, 65536), "float32").numpy()
    wide[:] = -1
    for array, landing in (
        (taker.empty((256, 512), "float32").numpy(), "in place"),
        (part, "in place"),
        (np.zeros((256, 512), "float32"), FOREIGN),
        (np.zeros((256, 1024), "float32")[:, ::2], FOREIGN),
        # Its elements do not rise.
        (taker.empty((512, 256), "float32").numpy().T, FOREIGN),
        # Rows of 2 KiB are too short for a landing of their own.
        (taker.empty((256, 600), "float32").numpy()[:, 88:], "copied: it landed beside, since it has less than 64 KiB in one piece"),
        (giver.empty((256, 512), "float32").numpy(), "copied: it lies in the arena of another client"),
    ):
        got = taker.fetch("any", into=array)
        assert (got.buffer is array, got.landing, got.in_place, got.version) == (True, landing, landing == "in place", 1)
        assert (array == w).all() and got.report.bytes == w.nbytes
        further = 0 if got.in_place else w.nbytes
        assert 2 * w.nbytes + further <= got.report.copied <= 2 * w.nbytes + further + (65 << 10)
        array[...] = 0
        again = giver.fetch("any", into=array)
        assert not again.in_place and "this host" in again.landing and again.report.copied == w.nbytes and (array == w).all()
    # Columns with strides land, and nothing else is written.
    giver.push("columns", w.reshape(4, 32768))
    got = taker.fetch("columns", into=wide[:, 7:32775])
    assert got.in_place and (wide[:, :7] == -1).all() and (wide[:, 32775:] == -1).all() and (wide[:, 7:32775] == w.reshape(4, 32768)).all()
    row = part[3]
    assert taker.fetch("any", slice=np.s_[5], into=row).version == 1 and (row == w[5]).all() and (part[4] == w[4]).all()
    assert taker.fetch("any", slice=np.s_[5, ::7], into=(rare := np.zeros(74, "float32"))).landing == FOREIGN and (rare == w[5, ::7]).all()
    one = np.zeros((), "float32")
    taker.fetch("any", slice=np.s_[255, 511], into=one)
    assert one == w[255, 511]
    assert taker.fetch("any", into=part, staged=True).landing == "copied: it landed beside first, as staged" and (part == w).all()

    async def run() -> None:
        async with td.aio.connect(path) as c:
            for array in ((await c.empty((256, 512), "float32")).numpy(), np.zeros((256, 512), "float32")):
                got = await c.fetch("any", into=array)
                assert got.buffer is array and (array == w).all() and got.in_place == (got.landing != FOREIGN)

    asyncio.run(run())


def move(array: np.ndarray) -> None:
    """Gives an array other memory, with zeros."""
    array.__setstate__((1, array.shape, array.dtype, False, bytes(array.nbytes)))


# Promise: python-into, seen to fail
def test_an_array_that_moves_during_its_fetch_is_an_error(nodes) -> None:
    giver, taker, _ = nodes
    buffer = taker.empty((256, 256), "float32")
    array = buffer.numpy()
    array[:] = 0
    pending = taker.fetch_later("moves", into=array)
    move(array)
    giver.push("moves", np.ones((256, 256), "float32"))
    with pytest.raises(td.DestinationTorn, match="memory of the array for 'moves' is another one") as raised:
        pending.result(60)
    assert raised.value.tensors == ["moves"] and not array.any() and (buffer.numpy() == 1).all() and not buffer.pushed
    # numpy itself does not resize what it does not own.
    for check in (True, False):
        with pytest.raises(ValueError, match="does not own"):
            buffer.numpy().resize(7, refcheck=check)


# Promise: python-into, seen to fail
def test_an_array_that_does_not_fit_stays_as_it_was(nodes) -> None:
    giver, taker, _ = nodes
    giver.push("array", np.zeros((4, 4), "float32"))
    read_only = np.zeros((4, 4), "float32")
    read_only.flags.writeable = False
    for client in (giver, taker):
        for shape, dtype in (((4, 5), "float32"), ((16,), "float32"), ((4, 4), "int32")):
            for array in (np.full(shape, 7, dtype), client.empty(shape, dtype).numpy()):
                array[...] = 7
                with pytest.raises(td.Invalid, match=r"(f32|float32) ?\[4, 4\].*the destination is"):
                    client.fetch("array", into=array)
                assert (array == 7).all()
        for wrong, why in ((read_only, "read-only"), ([0.0], "a list is not written"), (b"", "a bytes is not written"), (np.broadcast_to(np.zeros(4, "float32"), (4, 4)), "read-only")):
            with pytest.raises(td.Invalid, match=why):
                client.fetch("array", into=wrong)
        mine = client.empty((4, 4), "float32")
        view = mine.numpy()
        pending = client.fetch_later("no array", into=view, timeout=60)
        assert mine.pushed
        with pytest.raises(td.Error, match="pushed already"):
            client.push("other", mine, aliases="allow")
        pending.cancel()
        assert not mine.pushed
        with pytest.raises(td.Timeout):
            client.fetch("no array", timeout=0.05, into=view)
        assert not mine.pushed


# Promise: python-into, seen to fail
def test_an_array_of_a_buffer_that_another_call_has_is_not_written(nodes) -> None:
    """Neither by a second fetch, while a peer may write there, nor when it was pushed, and others may read it."""
    giver, taker, _ = nodes
    giver.push("free", np.ones((256, 512), "float32"))
    giver.push_state("free state", {"w": np.ones((256, 512), "float32")})
    lent, published = (taker.empty((256, 512), "float32") for _ in range(2))
    views = [buffer.numpy() for buffer in (lent, published)]
    for view in views:
        view[:] = 7
    pending = taker.fetch_later("not there yet", into=views[0], timeout=60)
    taker.push("mine", published, aliases="allow")
    assert lent.pushed and published.pushed
    giver.push("turned", np.ones((512, 256), "float32"))
    for view in views:
        for client, key, array in ((taker, "free", view), (giver, "free", view), (taker, "turned", view.T), (taker, "turned", view[::-1].T)):
            for options in ({}, {"staged": True}):
                with pytest.raises(td.Error, match="was pushed already, or fetched into"):
                    client.fetch_later(key, into=array, timeout=60, **options).result(60)
        for client in (taker, giver):
            with pytest.raises(td.Invalid, match="was pushed already, or is fetched into"):
                client.fetch_state("free state", into={"w": view}, timeout=60)
            with pytest.raises(td.Invalid, match="was pushed already, or is fetched into"):
                client.fetch_state("free state", timeout=60).copy_into({"w": view})
        assert (view == 7).all()
    pending.cancel()
    assert taker.fetch("free", into=views[0]).in_place and (views[0] == 1).all()
