"""Sharded states: ranks push pieces, and readers take them in any layout."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
import transferd as td
from conftest import Sidecar, start_two
from test_slices import any_slice, nodes, same  # noqa: F401


@pytest.fixture
def ranks(sidecar: Sidecar) -> Iterator[list[td.Client]]:
    """Four workers of one sidecar."""
    clients = [td.connect(sidecar.path, name=f"rank-{rank}", arena="16MiB") for rank in range(4)]
    yield clients
    for client in clients:
        client.close()


def quarters(whole: np.ndarray) -> list[tuple[np.ndarray, tuple[int, ...]]]:
    """The four boxes of a mesh of (2, 2), of sizes that differ."""
    row, column = whole.shape[0] // 3, whole.shape[1] // 4
    places = [(slice(0, row), slice(0, column)), (slice(0, row), slice(column, None)), (slice(row, None), slice(0, column)), (slice(row, None), slice(column, None))]
    return [(whole[place], (place[0].start, place[1].start)) for place in places]


def push(c: td.Client, key: str, rank: int, w: np.ndarray, version: int, **how: object) -> td.Pushed:
    part, offset = quarters(w)[rank]
    state = {"w": td.Shard(part, w.shape, offset), "same": np.arange(3)}
    return c.push_state(key, state, version=version, rank=rank, world_size=4, **how)


# Promise: python-sharded
def test_every_slice_of_a_sharded_state_is_numpys(nodes: tuple[td.Client, td.Client]) -> None:  # noqa: F811
    """Of ranks at two nodes, by a reader at each of them."""
    rng, whole = random.Random(5), np.random.default_rng(5).random((37, 50))
    key = "sharded-slices"
    for rank in range(4):
        push(nodes[rank % 2], key, rank, whole, 1)
    for reader in nodes:
        state = reader.fetch_state(key)
        assert (state.version, list(state)) == (1, ["same", "w"]) and same(state["w"], whole) and same(state["same"], np.arange(3))
        assert state.report.bytes == whole.nbytes + 24
        for _ in range(40):
            part = any_slice(rng, whole.shape)
            state = reader.fetch_state(key, slices={"w": part})
            assert list(state) == ["w"] and same(state["w"], np.array(whole[part])), part
            assert state.report.bytes == whole[part].nbytes
        assert same(reader.fetch_state(key, only=["same"])["same"], np.arange(3))
        place = reader.fetch_state(key, layout={"w": ((3, 4), (10, 20)), "same": None})
        assert same(place["w"], whole[3:13, 4:24]) and same(place["same"], np.arange(3))
        with pytest.raises(td.Invalid, match=r"slice \[38:\] does not fit shape \[37, 50\]"):
            reader.fetch_state(key, slices={"w": np.s_[38:]})
        with pytest.raises(td.Invalid, match="'w' of layout= has an offset of 1 dimensions and a shape of 2"):
            reader.fetch_state(key, layout={"w": ((3,), (10, 20))})


def test_a_plain_fetch_brings_the_manifest_once(tmp_path_factory: pytest.TempPathFactory) -> None:
    """A call that does not know what the key is fetches it as a state first."""
    a, b = start_two(tmp_path_factory, "--shm", "off")
    with td.connect(a.path) as giver, td.connect(b.path) as reader:
        giver.push_state("policy", {f"w{n}": td.Shard(np.full(1, n), (1,), (0,)) for n in range(500)}, version=1, rank=0, world_size=1)
        # So that there is a link, whose transfers are counted.
        giver.push("other", np.arange(3))
        reader.fetch("other")
        moved = [b.ctl("links")["transfers_in"]]
        for only in (None, ["w7"]):
            state = reader.fetch_state("policy", only=only)
            assert state.report.bytes == (8 if only else 4000) and state["w7"].numpy().tolist() == [7]
            moved.append(b.ctl("links")["transfers_in"])
        # The manifest, and the shards. With names first the table, and the manifest alone; its layouts are known by then.
        assert (moved[1] - moved[0], moved[2] - moved[1]) == (2, 3)
    b.stop()
    a.stop()


# Promise: python-sharded
def test_version_is_there_when_all_ranks_have_pushed(ranks: list[td.Client]) -> None:
    follow = ranks[0].state_subscriber("waiting", timeout=20)
    for version in (1, 2):
        whole = np.full((9, 8), version)
        for rank in range(3):
            push(ranks[rank], "waiting", rank, whole, version)
        with pytest.raises(td.Timeout, match=rf"version {version} of state \"waiting\" is not whole.*1 of 4 ranks have not committed it: \[3\]") as error:
            ranks[3].fetch_state("waiting", layout={"w": None}, at_least=version, timeout=0.2)
        assert error.value.code == "deadline"
        push(ranks[3], "waiting", 3, whole, version, whole=True)
        state = follow.next()
        assert state.version == version and same(state["w"], whole)
    with pytest.raises(td.Error, match="not newer than version 2, which is whole"):
        push(ranks[0], "waiting", 0, whole, 2)
    for rank in range(4):
        push(ranks[rank], "waiting", rank, whole, 1, restart=5)
    assert follow.next().version == 1 and follow.epoch_began is not None
    with pytest.raises(td.VersionGone, match="restart 4 of rank 2 .* is older than restart 5"):
        push(ranks[2], "waiting", 2, whole, 2, restart=4)


# Promise: python-sharded
def test_ranks_in_threads_wait_until_their_version_is_whole(ranks: list[td.Client]) -> None:
    whole = np.random.default_rng(1).random((60, 40)).astype("float32")
    with ThreadPoolExecutor(4) as pool:
        pushed = pool.map(lambda rank: [push(ranks[rank], "threads", rank, whole * version, version, whole=True).version for version in range(1, 5)], range(4))
        assert list(pushed) == [[1, 2, 3, 4]] * 4
    assert same(ranks[0].fetch_state("threads")["w"], whole * np.float32(4))


# Promise: python-sharded
def test_state_of_ranks_has_the_trees_of_all(ranks: list[td.Client]) -> None:
    """As of stages of a pipeline: each has layers of its own, and numbers that all have."""
    for rank in range(4):
        state = {"model": {f"layer{rank}": {"w": np.full(3, rank)}}, "step": 17, "optimizer": [{"lr": 0.5}, td.Shard(np.full(2, rank), (8,), (2 * rank,))]}
        ranks[rank].push_state("run", state, version=7, rank=rank, world_size=4)
    state = ranks[0].fetch_state("run")
    assert list(state) == ["model", "step", "optimizer"] and (state["step"], state["optimizer"][0]) == (17, {"lr": 0.5})
    assert {name: layer["w"].numpy().tolist() for name, layer in state["model"].items()} == {f"layer{rank}": [rank] * 3 for rank in range(4)}
    assert state["optimizer"][1].numpy().tolist() == [0, 0, 1, 1, 2, 2, 3, 3]


def test_one_tensor_in_pieces(ranks: list[td.Client]) -> None:
    whole = np.arange(400, dtype="int32").reshape(20, 20)
    for rank in range(4):
        columns = np.s_[:, 5 * rank : 5 * rank + 5]
        buffer = ranks[rank].empty((20, 5), "int32")
        buffer.numpy()[:] = whole[columns]
        pushed = ranks[rank].push_shard("w", buffer, global_shape=(20, 20), offset=(0, 5 * rank), version=3, rank=rank, world_size=4)
        assert (pushed.version, pushed.report.copied) == (3, 0)
    found = ranks[2].fetch_global("w", slice=np.s_[3, 2:18])
    assert same(found, whole[3, 2:18]) and found.version == 3
    assert same(ranks[1].fetch_global("w"), whole)
    # What one rank has is read where it lies.
    assert ranks[1].fetch_global("w", slice=np.s_[:, 5:10]).report.copied == 0
    assert ranks[1].fetch_global("w", slice=np.s_[:, 5:7]).report.copied == 160
    assert ranks[1].fetch_global("w", slice=np.s_[4:5, 5:10]).report.copied == 0


def test_arguments_that_do_not_fit_are_named(ranks: list[td.Client]) -> None:
    c, part = ranks[0], np.ones((2, 2))
    with pytest.raises(td.Invalid, match="needs rank= and world_size=, since torch.distributed is not initialized"):
        c.push_state("bad", {"w": td.Shard(part, (4, 4), (0, 0))}, version=1)
    with pytest.raises(td.Invalid, match="the sharded state 'bad' needs version="):
        c.push_state("bad", {"w": part}, rank=0, world_size=1)
    with pytest.raises(td.Invalid, match="rank 4 of 4: a state has 1 to 16384 ranks"):
        c.push_state("bad", {"w": part}, version=1, rank=4, world_size=4)
    with pytest.raises(td.Invalid, match="shard of tensor \"w\".*ends behind the end of its tensor"):
        c.push_state("bad", {"w": td.Shard(part, (4, 4), (3, 0))}, version=1, rank=0, world_size=1)
    with pytest.raises(td.Invalid, match="no rank has .0:2, 2:4. of tensor \"w\""):
        c.push_state("bad", {"w": td.Shard(part, (2, 4), (0, 0))}, version=1, rank=0, world_size=1)
    with pytest.raises(td.Invalid, match="a push of a rank's shards has no argument \"takeover\""):
        c.push_state("bad", {"w": part}, version=1, rank=0, world_size=1, takeover=True)
    for restart in (True, -1, 2**64, "2"):
        with pytest.raises(td.Invalid, match=f"restart={restart!r} of the sharded state 'bad' has to be the number of the job's attempt, a whole number from 0 to"):
            c.push_state("bad", {"w": part}, version=1, rank=0, world_size=1, restart=restart)  # type: ignore[arg-type]
    with pytest.raises(td.Invalid, match="may come by several fabrics"):
        c.fetch_state("bad", layout={"w": None}, require="tcp")
    c.push("plain", part)
    with pytest.raises(td.Invalid, match="is no sharded state"):
        c.fetch_global("plain")
    buffer = c.empty((2, 2), "float64")
    with pytest.raises(td.Invalid, match="no rank has"):
        c.push_shard("bad", buffer, global_shape=(2, 4), offset=(0, 0), version=1, rank=0, world_size=1)


# Promise: python-sharded
def test_asyncio_pushes_and_fetches_shards(sidecar: Sidecar) -> None:
    async def main() -> None:
        clients = [await td.aio.connect(sidecar.path, name=f"async-{rank}", arena="4MiB") for rank in range(2)]
        whole = np.arange(100, dtype="float32")

        async def one(rank: int) -> td.Pushed:
            state = {"w": td.Shard(whole[50 * rank :][:50], (100,), (50 * rank,))}
            return await clients[rank].push_state("async", state, version=1, rank=rank, world_size=2, whole=True)

        assert [pushed.version for pushed in await asyncio.gather(one(0), one(1))] == [1, 1]
        state = await clients[0].fetch_state("async", slices={"w": np.s_[25:75]})
        assert same(state["w"], whole[25:75])
        for rank in range(2):
            await clients[rank].push_shard("one", whole[50 * rank :][:50], global_shape=(100,), offset=(50 * rank,), version=1, rank=rank, world_size=2)
        assert same(await clients[1].fetch_global("one"), whole)
        for client in clients:
            await client.close()

    asyncio.run(main())
