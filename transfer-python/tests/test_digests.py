"""Digests of a state, which readers on another node compare with what has come."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator

import numpy as np
import pyarrow as pa
import pytest
import transferd as td
from conftest import Sidecar, start_two


@pytest.fixture(scope="module")
def nodes(tmp_path_factory) -> Iterator[tuple[Sidecar, Sidecar]]:
    """The sidecars of two nodes."""
    # Nothing is read by reference, so everything moves.
    a, b = start_two(tmp_path_factory, "--shm", "off")
    yield a, b
    b.stop()
    a.stop()


def damage(array: np.ndarray, at: int) -> None:
    """Turns a bit of published memory over, as a fault of the memory does."""
    address = array.__array_interface__["data"][0] + at
    with open("/proc/self/mem", "r+b", buffering=0) as memory:
        memory.seek(address)
        byte = memory.read(1)[0]
        memory.seek(address)
        memory.write(bytes([byte ^ 4]))


# Promise: python-digests, seen to fail
def test_a_state_is_compared_with_the_digests_of_its_push(nodes):
    with td.connect(nodes[0].path) as giver, td.connect(nodes[1].path) as reader:
        buffer = giver.empty((1 << 21,), "float32")
        buffer.numpy()[:] = 1
        view = buffer.numpy()
        pushed = giver.push_state("policy", {"w": buffer, "step": 7}, aliases="allow", digest=True)
        assert pushed.report.verified == 0
        state = reader.fetch_state("policy", verify=True, require_digest=True)
        assert state["step"] == 7 and state.report.verified > view.nbytes
        assert giver.fetch_state("policy", verify=True).report.verified == 0, "nothing has moved"
        assert reader.fetch_state("policy").report.verified == 0

        async def fetch() -> int:
            async with td.aio.connect(nodes[1].path) as c:
                state = await c.fetch_state("policy", verify=True)
                return state.report.verified

        assert asyncio.run(fetch()) == state.report.verified
        damage(view, 5 << 20)
        # Where it would land in place otherwise.
        into = {"w": reader.empty((1 << 21,), "float32").numpy(), "step": 0}
        into["w"][:] = 0
        for call in (lambda: reader.fetch_state("policy", verify=True), lambda: reader.fetch_state("policy", require_digest=True, into=into)):
            with pytest.raises(td.WrongDigest, match='chunk 1, bytes 4194304 to 8388608, of version 1 of key "policy"') as e:
                call()
            assert (e.value.code, e.value.can_retry, e.value.fault, e.value.key) == ("wrong_digest", True, "operator", "policy")
        assert into["step"] == 0 and not into["w"].any()
        assert reader.fetch_state("policy")["w"].numpy()[(5 << 20) // 4] != 1


# Promise: python-digests, seen to fail
def test_what_has_no_digests_is_refused_where_they_are_required(nodes):
    with td.connect(nodes[0].path) as giver, td.connect(nodes[1].path) as reader:
        state = {"w": np.arange(10.0), "b": np.arange(3)}
        giver.push_state("none", state)
        assert reader.fetch_state("none", verify=True).report.verified == 0
        with pytest.raises(td.NoDigest, match="digest= in Python") as e:
            reader.fetch_state("none", require_digest=True)
        assert (e.value.code, e.value.can_retry) == ("no_digest", False)
        giver.push_state("some", state, digest="blake3")
        assert reader.fetch_state("some", require_digest=True).report.verified > 0
        giver.push("tensor", np.arange(5), digest=True)
        tensor = reader.fetch("tensor", require_digest=True)
        assert list(tensor.numpy()) == list(range(5)) and tensor.report.verified == 40
        giver.push_table("table", pa.table({"n": np.arange(100)}), digest=True)
        assert reader.fetch_table("table", verify=True).report.verified == 832
        for call in (
            lambda: reader.fetch_state("some", verify=True, only=["w"]),
            lambda: reader.take("tensor", [1], verify=True),
            lambda: reader.fetch_many(["tensor"], require_digest=True),
        ):
            with pytest.raises(td.Invalid, match="digests"):
                call()
        with pytest.raises(td.Invalid, match='digest is a bool, "xxh3" or "blake3"; this is \'md5\''):
            giver.push_state("some", state, digest="md5")
        with pytest.raises(td.Invalid, match='no argument "digest"'):
            giver.push_shard("sharded", np.arange(4), global_shape=(4,), offset=(0,), rank=0, world_size=1, version=1, digest=True)
