"""Slices: parts of tensors, of which nothing else moves, and which are views on one host."""

from __future__ import annotations

import asyncio
import hashlib
import random
import re
from collections.abc import Iterator

import numpy as np
import pytest
import transferd as td
from conftest import Sidecar, settled, start_two
from test_packed import PACKED
from test_packed import values as packed_values
from test_tensors import DTYPES, address, values
from test_views import consume, content, dispose


@pytest.fixture(scope="module")
def nodes(tmp_path_factory) -> Iterator[tuple[td.Client, td.Client]]:
    """Clients at two nodes, between which bytes go over TCP."""
    a, b = start_two(tmp_path_factory, "--shm", "off")
    with td.connect(a.path, arena="64MiB") as giver, td.connect(b.path) as taker:
        yield giver, taker
    b.stop()
    a.stop()


def same(tensor: td.Tensor, expected: np.ndarray) -> bool:
    found = tensor.numpy()
    return (found.dtype, found.shape, tensor.shape) == (expected.dtype, expected.shape, expected.shape) and found.tobytes() == expected.tobytes()


def any_slice(rng: random.Random, shape: tuple[int, ...], packed: bool = False) -> tuple:
    """A slice that numpy does not cut off, of any kind; even in the last dimension of what is packed."""
    entries: list = []
    for at, length in enumerate(shape[: rng.randint(1, len(shape))]):
        even = packed and at + 1 == len(shape)
        start, stop = sorted(rng.randint(0, length // 2) * 2 if even else rng.randint(0, length) for _ in range(2))
        step = 1 if even or rng.random() < 0.6 else rng.randint(1, 5)
        start, stop = rng.choice([(start, stop), (start - length if start < length else start, stop), (start, None), (None, stop), (stop, start)])
        entry = slice(start, stop, rng.choice([None, 1]) if step == 1 else step)
        if not even and length > 0 and rng.random() < 0.25:
            entry = rng.randint(-length, length - 1)
        entries.append(rng.choice([entry, entry, np.int64(entry)]) if isinstance(entry, int) else entry)
    if rng.random() < 0.2:
        entries.append(...)
    return entries[0] if len(entries) == 1 and rng.random() < 0.5 else tuple(entries)


# Promise: python-slices
@pytest.mark.parametrize("where", ["one host", "two nodes"])
@pytest.mark.parametrize("name", [*DTYPES, *PACKED])
def test_every_slice_is_numpy_s(c, other, nodes, where, name):
    giver, taker = (c, other) if where == "one host" else nodes
    rng = random.Random(name)
    for n in range(30):
        shape = tuple(rng.choice([0, 1, 2, 3, 4, 6, 17]) for _ in range(rng.randint(1, 5)))
        shape = (*shape[:-1], shape[-1] // 2 * 2) if name in PACKED else shape
        whole = (packed_values if name in PACKED else values)(name, shape)
        part = any_slice(rng, shape, name in PACKED)
        key = f"{where}/{name}/{n}"
        giver.push(key, whole)
        tensor = taker.fetch(key, slice=part)
        assert same(tensor, whole[part]), (shape, part)
        assert tensor.nbytes == tensor.report.bytes == whole[part].nbytes // (2 if name in PACKED else 1)
        giver.push_state(f"{key}/s", {"a": whole, "b": whole.copy(), "n": 1})
        state = taker.fetch_state(f"{key}/s", only=["a"], slices={"b": part})
        assert same(state["a"], whole) and same(state["b"], whole[part]), (shape, part)
        giver.delete(key)
        giver.delete(f"{key}/s")


# Promise: python-slice-views
def test_a_slice_on_this_host_is_a_view_with_strides(c, other):
    whole = np.arange(512 * 512, dtype="float32").reshape(512, 512)
    c.push("w", whole)
    full = other.fetch("w")
    tensor = other.fetch("w", slice=np.s_[8:500:3, -256::2])
    expected, array = whole[8:500:3, -256::2], tensor.numpy()
    assert tensor.strides == array.strides == expected.strides and np.array_equal(array, expected)
    assert address(array) == address(full.numpy()) + 4 * (8 * 512 + 256) and not array.flags.writeable
    assert tensor.report.copied == 0 and tensor.report.bytes == expected.nbytes
    # The buffer protocol, as numpy answers it.
    view = memoryview(tensor)
    assert (view.shape, view.strides, view.nbytes, view.contiguous) == (expected.shape, expected.strides, expected.nbytes, False)
    assert view.tolist() == expected.tolist()
    with pytest.raises(BufferError, match="lie apart, with strides"):
        hashlib.sha256(tensor)
    assert bytes(tensor) == expected.tobytes()
    # DLPack, with no copy for what spans 64 KiB.
    managed = consume(tensor, max_version=(1, 0))
    assert (managed.tensor.shape[:2], managed.tensor.strides[:2]) == ([164, 128], [3 * 512, 2]) and tensor.exports_copied == 0
    assert content(managed, 4) == array[0, 0].tobytes()
    dispose(managed)
    assert np.array_equal(np.from_dlpack(tensor), expected)
    # It is pushed, and copied into arrays, as it is seen.
    assert c.push("again", tensor).report.copied == expected.nbytes
    assert np.array_equal(c.fetch("again").numpy(), expected)
    buffer, into = c.empty(expected.shape), np.zeros(expected.shape, "float32")
    c.push_state("s", {"a": whole, "b": whole.copy()})
    c.fetch_state("s", slices={"a": np.s_[8:500:3, -256::2], "b": np.s_[8:500:3, -256::2]}, into={"a": buffer, "b": into})
    assert np.array_equal(buffer.numpy(), expected) and np.array_equal(into, expected)
    # A row is in one piece.
    assert bytes(other.fetch("w", slice=3)) == whole[3].tobytes()
    # It keeps the version.
    c.delete("w")
    del full
    assert np.array_equal(array, expected)


# Promise: python-slices
def test_only_the_slice_moves_between_nodes(nodes):
    giver, taker = nodes
    whole = np.arange(1 << 20, dtype="float32").reshape(1024, 1024)
    giver.push("w", whole)
    tensor = taker.fetch("w", slice=np.s_[0:1024, -512:-256])
    assert same(tensor, whole[:, -512:-256]) and tensor.report.bytes == 1 << 20 and tensor.report.fabric == "tcp"
    assert tensor.strides == (1024, 4)
    giver.push_state("s", {"w": whole, "head": whole, "b": np.ones(7)})
    for name in ("w", "head"):
        state = taker.fetch_state("s", slices={name: np.s_[10:20]})
        assert list(state) == [name] and same(state[name], whole[10:20]) and state.report.bytes < 50_000


# Promise: python-slices
def test_subscribers_and_asyncio_have_slices(sidecar):
    async def awaited():
        async with td.aio.connect(sidecar.path, arena="4MiB") as c:
            w = np.arange(12.0).reshape(3, 4)
            await c.push("w", w)
            await c.push_state("s", {"w": w, "b": w[0].copy()})
            assert same(await c.fetch("w", slice=np.s_[1:, ::2]), w[1:, ::2])
            assert same(await c.subscriber("w", slice=-1).next(), w[-1])
            state = await c.fetch_state("s", slices={"w": np.s_[:, 1]})
            assert list(state) == ["w"] and same(state["w"], w[:, 1])
            assert same((await c.state_subscriber("s", slices={"b": np.s_[2:]}).next())["b"], w[0, 2:])

    asyncio.run(awaited())
    with td.connect(sidecar.path, arena="4MiB") as c:
        follow, states = c.subscriber("w", slice=np.s_[1:2]), c.state_subscriber("s", slices={"w": 0})
        for version in (1, 2):
            w = np.full((3, 4), version)
            c.push("w", w, version=version)
            c.push_state("s", {"w": w}, version=version)
            assert same(follow.next(), w[1:2]) and same(states.next()["w"], w[0])
        assert same(c.fetch_later("w", slice=np.s_[0, 0]).result(), w[0, 0])


UNFIT = {
    "beyond the end": (np.s_[0:7], "slice [0:7] does not fit shape [6, 8]: bound 7 of dimension 0 lies outside of it, -6 to 6 would fit"),
    "before the beginning": (np.s_[:, -9:], "slice [:, -9:] does not fit shape [6, 8]: bound -9 of dimension 1"),
    "an index": (np.s_[0, 8], "slice [0, 8] does not fit shape [6, 8]: index 8 lies outside of dimension 1, which has 8"),
    "a step of 0": (np.s_[::0], "step 0 of dimension 0 is below 1"),
    "backwards": (np.s_[:, ::-1], "step -1 of dimension 1 is below 1"),
    "more dimensions": (np.s_[0, 0, 0], "does not fit shape [6, 8]: it has 3 dimensions, at most 2 would fit"),
}


# Promise: python-refused-slices
@pytest.mark.parametrize("where", ["one host", "two nodes"])
@pytest.mark.parametrize("which", UNFIT)
def test_a_slice_that_does_not_fit_is_an_error(c, other, nodes, where, which):
    giver, taker = (c, other) if where == "one host" else nodes
    part, reason = UNFIT[which]
    giver.push("w", np.zeros((6, 8)))
    giver.push_state("s", {"w": np.zeros((6, 8))})
    for call in (lambda: taker.fetch("w", slice=part), lambda: taker.fetch_state("s", slices={"w": part})):
        with pytest.raises(td.Invalid, match=re.escape(reason)):
            call()
    giver.push("scalar", np.float64(1))
    with pytest.raises(td.Invalid, match="a tensor without dimensions has no slices"):
        taker.fetch("scalar", slice=np.s_[0:1])


NO_SLICES = {
    "a float": (1.0, "a whole number"),
    "a float as a bound": (np.s_[0:2.0], "a whole number"),
    "a text": ("w", "a whole number"),
    "a list": (([0, 1],), "a whole number"),
    "a mask": (True, "a whole number"),
    "an array": (np.array([0, 1]), "a whole number"),
    "a new dimension": (np.s_[None, 0], "a whole number"),
    "a huge number": (1 << 63, "a whole number below 2^63"),
    "an ellipsis in front": (np.s_[..., 0], "an ellipsis is the last one, since the shape is not known here"),
}


# Promise: python-refused-slices
@pytest.mark.parametrize("which", NO_SLICES)
@pytest.mark.parametrize("module", [td, td.aio])
def test_what_is_no_slice_is_refused(sidecar, module, which):
    part, reason = NO_SLICES[which]

    async def refused():
        c = await settled(module.connect(sidecar.path, arena="1MiB"))
        await settled(c.push("w", np.zeros((2, 2))))
        await settled(c.push_state("s", {"w": np.zeros((2, 2))}))
        for call in (
            lambda: c.fetch("w", slice=part),
            lambda: c.fetch_state("s", slices={"w": part}),
            lambda: c.subscriber("w", slice=part).next(),
        ):
            with pytest.raises(td.Invalid, match=r"slice=.* has the entry .*: .*" + re.escape(reason)):
                await settled(call())
        await settled(c.close())

    asyncio.run(refused())


# Promise: python-refused-slices
@pytest.mark.parametrize("where", ["one host", "two nodes"])
def test_bounds_between_two_elements_of_a_byte_are_refused(c, other, nodes, where):
    giver, taker = (c, other) if where == "one host" else nodes
    giver.push("w", packed_values("int4", (4, 8)))
    giver.push_state("s", {"w": packed_values("int4", (4, 8))})
    for part in (np.s_[:, 1:3], np.s_[:, 0:3], np.s_[:, -3:], np.s_[:, ::2], np.s_[0, 0]):
        for call in (lambda: taker.fetch("w", slice=part), lambda: taker.fetch_state("s", slices={"w": part})):
            with pytest.raises(td.Invalid, match="two elements share a byte in dimension 1: its bounds have to be even, and its step 1"):
                call()
    tensor = taker.fetch("w", slice=np.s_[::2, 2:6])
    expected = packed_values("int4", (4, 8))[::2, 2:6]
    assert same(tensor, expected) and tensor.packed().shape == (2, 2) and tensor.nbytes == 4
    assert taker.fetch("w", slice=np.s_[1]).shape == (8,)


# Promise: python-refused-slices
def test_a_version_that_ends_by_its_fetches_has_no_slices(c):
    c.push("w", np.zeros(4), keep=2)
    with pytest.raises(td.Invalid, match="fetching a part does not count: fetch all of it"):
        c.fetch("w", slice=np.s_[0:2])
