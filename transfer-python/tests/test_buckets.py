"""States, tensors and tables that do not fit the landing pool of the reader's node: they come in buckets, which are copied once more."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator

import numpy as np
import pytest
import transferd as td
from conftest import Sidecar, start_two

POOL = "4MiB"
STATE = {"w": np.arange(1 << 20, dtype="float64"), "layers": [np.full(1 << 18, n, "float32") for n in range(4)], "step": 7}
BYTES = STATE["w"].nbytes + sum(layer.nbytes for layer in STATE["layers"])


@pytest.fixture(scope="module")
def nodes(tmp_path_factory) -> Iterator[tuple[td.Client, Sidecar]]:
    """A client with a published state, and the sidecar of another node."""
    a, b = start_two(tmp_path_factory, "--pool-bytes", POOL)
    with td.connect(a.path, arena="64MiB") as giver:
        giver.push_state("policy", STATE)
        giver.push("w", STATE["w"])
        giver.push("proved", STATE["w"], digest=True)
        yield giver, b
    b.stop()
    a.stop()


def check(state: td.State) -> None:
    assert list(state) == list(STATE) and state["step"] == 7
    assert np.array_equal(state["w"].numpy(), STATE["w"])
    assert all(np.array_equal(found.numpy(), layer) for found, layer in zip(state["layers"], STATE["layers"], strict=True))
    assert state.report.copied >= BYTES


# Promise: states-in-buckets
def test_a_state_that_does_not_fit_the_pool_comes_in_buckets(nodes):
    with td.connect(nodes[1].path) as c:
        state = c.fetch_state("policy")
        check(state)
        check(next(iter(c.state_subscriber("policy"))))
        # It has no file, so what DLPack gets is a copy, and is counted.
        assert np.array_equal(np.from_dlpack(state["w"]), STATE["w"])
        assert state["w"].exports_copied == STATE["w"].nbytes
        target = {"w": np.zeros(1 << 20), "step": 0}
        check(c.fetch_state("policy", into=target))
        assert np.array_equal(target["w"], STATE["w"]) and target["step"] == 7
        part = c.fetch_state("policy", only=["w", "layers/2"])
        assert sorted(part) == ["layers/2", "w"] and np.array_equal(part["w"].numpy(), STATE["w"])
    # It stays readable when the session is over.
    assert state["w"].numpy().sum() == STATE["w"].sum()


# Promise: states-in-buckets
def test_asyncio_fetches_in_buckets(nodes):
    async def run() -> None:
        async with td.aio.connect(nodes[1].path) as c:
            check(await c.fetch_state("policy"))
            async for state in c.state_subscriber("policy"):
                check(state)
                break

    asyncio.run(run())


# Promise: states-in-buckets
def test_a_fetch_of_a_state_says_how_long_buckets_are(nodes):
    with td.connect(nodes[1].path) as c:
        check(c.fetch_state("policy", bucket_bytes=64 << 10))
        check(c.fetch_state("policy", bucket_bytes=None))
        for wrong in (1, "64KiB", 1.5, -1):
            with pytest.raises(td.Invalid, match="bucket_bytes is a whole number from 65536"):
                c.fetch_state("policy", bucket_bytes=wrong)
        with pytest.raises(td.Invalid, match="rows of a tensor have no bucket_bytes"):
            c.take("w", [1], bucket_bytes=1 << 20)


# Promise: states-in-buckets
def test_a_tensor_that_does_not_fit_the_pool_comes_in_buckets(nodes):
    w = STATE["w"]
    with td.connect(nodes[1].path) as c:
        tensor = c.fetch("w")
        assert np.array_equal(tensor.numpy(), w) and tensor.report.copied >= w.nbytes
        assert np.array_equal(np.from_dlpack(tensor), w) and tensor.exports_copied == w.nbytes
        assert np.array_equal(c.fetch("w", slice=np.s_[1:-1]).numpy(), w[1:-1])
        assert np.array_equal(c.fetch_later("w").result(10).numpy(), w)
        assert np.array_equal(next(iter(c.subscriber("w"))).numpy(), w)
        assert np.array_equal(c.fetch_many(["w"])[0].numpy(), w)
        proved = c.fetch("proved", require_digest=True)
        assert np.array_equal(proved.numpy(), w) and proved.report.verified == w.nbytes
        # Into an array that is in no buffer.
        target = np.zeros_like(w)
        c.fetch("w", into=target)
        assert np.array_equal(target, w)

    async def run() -> None:
        async with td.aio.connect(nodes[1].path) as c:
            assert np.array_equal((await c.fetch("w")).numpy(), w)
            assert np.array_equal((await c.fetch("w", slice=np.s_[1:])).numpy(), w[1:])
            async for tensor in c.subscriber("w"):
                assert np.array_equal(tensor.numpy(), w)
                break

    asyncio.run(run())
    # It stays readable when the session is over.
    assert np.array_equal(tensor.numpy(), w)


# Promise: states-in-buckets
def test_slices_of_a_state_have_to_fit_the_pool(nodes):
    with td.connect(nodes[1].path) as c:
        with pytest.raises(td.Error, match="the landing pool") as e:
            c.fetch_state("policy", slices={"w": np.s_[1:]})
        assert e.value.code == "too_large"
