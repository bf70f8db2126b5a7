"""Digests of a state, which readers on another node compare with what has come."""

from __future__ import annotations

import asyncio

import numpy as np
import pyarrow as pa
import pytest
import transferd as td
from conftest import Sidecar


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


# Promise: python-digests, seen to fail
def test_subscribers_compare_each_version(nodes):
    """One that is wrong is not returned, and does not count as returned."""
    with td.connect(nodes[0].path) as giver, td.connect(nodes[1].path) as reader:

        def push(version: int, **how: object) -> np.ndarray:
            buffer = giver.empty((100_000,), "int32")
            view = buffer.numpy()
            view[:] = version
            giver.push_state("followed", {"w": buffer}, version=version, aliases="allow", **how)
            giver.push("followed-tensor", np.full(10, version), version=version, **how)
            giver.push_table("followed-table", pa.table({"n": np.full(100, version)}), version=version, **how)
            return view

        states = reader.state_subscriber("followed", require_digest=True)
        tensors, tables = reader.subscriber("followed-tensor", verify=True), reader.table_subscriber("followed-table", verify=True)
        view = push(1, digest=True)
        assert (states.next().report.verified, tensors.next().report.verified, tables.next().report.verified) == (400_000, 80, 832)
        view = push(2, digest="blake3")
        damage(view, 1000)
        for call in (states.next, lambda: states.stage().wait(), states.latest):
            with pytest.raises(td.WrongDigest, match='version 2 of key "followed"'):
                call()
        assert states.seen == 1 and tensors.next().version == 2
        damage(view, 1000)
        assert states.next().version == 2
        push(3)
        with pytest.raises(td.NoDigest):
            states.next()
        assert (tensors.next().report.verified, tables.next().report.verified) == (0, 0)

        async def follow() -> None:
            async with td.aio.connect(nodes[1].path) as c:
                view = push(4, digest=True)
                states, tensors = c.state_subscriber("followed", verify=True), c.subscriber("followed-tensor", require_digest=True)
                assert ((await states.next()).report.verified, (await tensors.next()).report.verified) == (400_000, 80)
                assert (await c.table_subscriber("followed-table", require_digest=True).next()).report.verified == 832
                damage(view, 399_999)
                with pytest.raises(td.WrongDigest):
                    await states.latest()

        asyncio.run(follow())


# Promise: python-digests, seen to fail
def test_shards_are_compared_with_the_digests_of_their_pushes(nodes):
    """Of two ranks at two nodes, which both have the bias."""
    rows = 1000

    def push(version: int, bias: tuple[int, int] = (3, 3), digests: tuple[object, object] = (True, "xxh3")) -> tuple[td.Pushed, list[td.Buffer]]:
        buffers = []
        for rank, client in enumerate(clients):
            buffer = client.empty((rows, 20), "float32")
            buffer.numpy()[:] = version
            buffers.append(buffer.numpy())
            state = {"w": td.Shard(buffer, (2 * rows, 20), (rank * rows, 0)), "bias": np.full(5, bias[rank]), "step": version}
            pushed = client.push_state("policy", state, version=version, rank=rank, world_size=2, digest=digests[rank], aliases="allow")
        return pushed, buffers

    with td.connect(nodes[0].path) as one, td.connect(nodes[1].path) as other:
        clients = (one, other)
        pushed, views = push(1)
        assert pushed.unproved == 0
        state = one.fetch_state("policy", require_digest=True)
        # Both tensors, and what the ranks have beside them.
        assert state["step"] == 1 and state.report.verified == state.report.bytes > 160_000
        assert one.fetch_state("policy", verify=True, only=["w"]).report.verified == 160_000
        part = one.fetch_state("policy", layout={"w": ((0, 0), (rows + 1, 20))}, verify=True)
        assert (part.report.verified, part.report.bytes) == (80_000, 80_080), "a row of the other rank is not compared"
        assert one.fetch_state("policy").report.verified == 0

        async def fetch() -> int:
            async with td.aio.connect(nodes[0].path) as c:
                return (await c.fetch_state("policy", require_digest=True)).report.verified

        assert asyncio.run(fetch()) == state.report.verified
        damage(views[1], 50_000)
        for call in (lambda: one.fetch_state("policy", verify=True), lambda: one.fetch_state("policy", require_digest=True, layout={"w": None})):
            with pytest.raises(td.WrongDigest, match=r'\[1000:2000, 0:20\] of tensor "w", from rank 1 at node "b", of version 1 of key "policy"'):
                call()
        with pytest.raises(td.WrongDigest, match=r'ranks 0 and 1 have different bytes of \[0:5\] of tensor "bias", by their xxh3 digests'):
            push(2, (3, 4))
        assert push(3, (3, 4), (None, True))[0].unproved == 2
        with pytest.raises(td.NoDigest, match="the shards of rank 0 of version 3 .* or digest= in Python"):
            one.fetch_state("policy", require_digest=True)
        one.push_shard("tensor", np.arange(4), global_shape=(4,), offset=(0,), rank=0, world_size=1, version=1, digest="blake3")
        assert other.fetch_global("tensor", require_digest=True).report.verified == 32
