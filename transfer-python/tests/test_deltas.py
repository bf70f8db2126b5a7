"""Deltas of states and tensors, which readers on another node get in place of whole versions."""

from __future__ import annotations

import asyncio

import numpy as np
import pytest
import transferd as td
from conftest import Sidecar, until


def weights(version: int) -> np.ndarray:
    """Of these, one in a hundred changes in each version."""
    w = np.arange(1 << 20, dtype="uint16")
    for v in range(1, version + 1):
        w[(v * 7) % 100 :: 100] = v
    return w


# Promise: python-deltas, seen to fail
def test_a_state_comes_as_what_has_changed(nodes):
    with td.connect(nodes[0].path) as giver, td.connect(nodes[1].path) as reader:
        kept = []
        for version in range(1, 5):
            pushed = giver.push_state("policy", {"w": weights(version), "step": version}, version=version, delta_of=version - 1)
            assert pushed.delta is not None
            assert (pushed.delta.bytes > 0, pushed.delta.whole is None) == (version > 1, version > 1), pushed.delta
            state = reader.fetch_state("policy", at_least=version)
            assert (state.report.delta > 0) == (version > 1), state.report
            assert state.report.delta * 10 < state.report.bytes
            kept.append(state)
        for version, state in enumerate(kept, 1):
            assert state["step"] == version
            np.testing.assert_array_equal(np.asarray(state["w"]), weights(version))


# Promise: python-deltas, seen to fail
def test_a_tensor_comes_as_what_has_changed_in_an_event_loop(nodes):
    async def play() -> list[int]:
        came = []
        async with td.aio.connect(nodes[0].path) as giver, td.aio.connect(nodes[1].path) as reader:
            for version in range(1, 4):
                pushed = await giver.push("w", weights(version), version=version, delta_of=version - 1)
                assert pushed.delta is not None and pushed.delta.took >= 0 and pushed.delta.changed <= pushed.delta.compared
                tensor = await reader.fetch("w", at_least=version)
                np.testing.assert_array_equal(tensor.numpy(), weights(version))
                came.append(tensor.report.delta)
        return came

    first, *others = asyncio.run(play())
    assert first == 0 and all(0 < delta < 100_000 for delta in others), others


# Promise: python-deltas, seen to fail
def test_a_sharded_state_comes_as_what_has_changed(nodes):
    ranks = [td.connect(nodes[0].path, name=f"rank-{rank}") for rank in range(2)]
    with td.connect(nodes[1].path) as reader:
        for version in range(1, 4):
            w = weights(version).reshape(1024, 1024)
            for rank, c in enumerate(ranks):
                rows = td.Shard(w[512 * rank : 512 * rank + 512], global_shape=w.shape, offset=(512 * rank, 0))
                state = {"w": rows, "step": version}
                pushed = c.push_state("policy", state, version=version, rank=rank, world_size=2, delta_of=version - 1)
                assert (pushed.delta.bytes > 0, pushed.delta.whole is None) == (version > 1, version > 1), pushed.delta
            state = reader.fetch_state("policy", at_least=version)
            np.testing.assert_array_equal(np.asarray(state["w"]), w)
            assert state["step"] == version
            assert (state.report.delta > 0) == (version > 1), state.report
            assert state.report.delta * 10 < state.report.bytes
    for c in ranks:
        c.close()


# Promise: python-deltas
@pytest.mark.parametrize(("options", "kept"), [({}, 2), ({"keep_chain": 0}, 0), ({"keep_chain": 1}, 1)])
def test_a_node_that_has_missed_versions_gets_the_deltas_that_are_kept(nodes, options, kept):
    with td.connect(nodes[0].path) as giver, td.connect(nodes[1].path) as reader:
        for version in range(1, 6):
            pushed = giver.push_state("policy", {"w": weights(version)}, version=version, delta_of=version - 1, **options)
            assert pushed.delta.kept == min(kept, max(0, version - 2)), pushed.delta
            if version in (1, 2, 5):
                state = reader.fetch_state("policy", at_least=version)
                np.testing.assert_array_equal(np.asarray(state["w"]), weights(version))
        # It has missed two.
        assert (state.report.delta > 0) == (kept == 2), state.report
        with pytest.raises(td.Error, match="keep_chain"):
            giver.push("other", weights(1), delta_of=1, keep_chain=9)


# Promise: python-deltas, seen to fail
def test_what_has_no_delta_says_why(nodes):
    with td.connect(nodes[0].path) as giver:
        assert giver.push("other", weights(1)).delta is None
        pushed = giver.push("other", np.full(1 << 20, 7, "uint16"), version=2, delta_of=1)
        assert pushed.delta.bytes == 0 and pushed.delta.whole == "too much has changed" and "too much" in repr(pushed.delta)
        pushed = giver.push("other", weights(3), version=4, delta_of=3)
        assert "not published" in pushed.delta.whole
        with pytest.raises(td.Error, match="delta_of"):
            giver.push("other", weights(3), delta_of=-1)


def checkpoint(version: int) -> dict[str, object]:
    """A state as a file would have it."""
    return {"w": weights(version), "layers": [np.arange(7, dtype="float32"), np.full((3, 0), 1.0)], "about": {"name": "m", "rate": 0.5}}


def push_checkpoints(giver: td.Client, versions: range) -> None:
    for version in versions:
        giver.push_state("policy", checkpoint(version), version=version, delta_of=version - 1, digest=True)


def check_state(state: td.State, version: int) -> None:
    assert state.version == version
    np.testing.assert_array_equal(np.asarray(state["w"]), weights(version))
    assert state["about"] == {"name": "m", "rate": 0.5}


# Promise: python-deltas
@pytest.mark.parametrize(("of", "is_delta"), [(1, True), (3, True), (4, False), (9, False)])
def test_the_first_state_comes_as_what_has_changed_since_a_checkpoint(nodes, of, is_delta):
    with td.connect(nodes[0].path) as giver, td.connect(nodes[1].path) as reader:
        push_checkpoints(giver, range(1, 5))
        into = checkpoint(0)
        state = reader.fetch_state("policy", at_least=4, base=checkpoint(of), into=into, verify=True)
        check_state(state, 4)
        np.testing.assert_array_equal(into["w"], weights(4))
        assert (state.report.delta > 0) == is_delta, state.report
        with pytest.raises(td.Invalid, match="base="):
            reader.fetch_state("policy", base=checkpoint(of), only=["w"])
        until("nothing is lent", lambda: nodes[1].held()["operations"] == 0)


# Promise: python-deltas
@pytest.mark.parametrize("base", [{}, {"w": weights(3)}, {"about": {"name": "m"}}])
def test_a_base_of_another_layout_is_none(nodes, base):
    with td.connect(nodes[0].path) as giver, td.connect(nodes[1].path) as reader:
        push_checkpoints(giver, range(1, 5))
        state = reader.fetch_state("policy", at_least=4, base=base)
        check_state(state, 4)
        assert state.report.delta == 0, state.report


# Promise: python-deltas
def test_a_subscriber_begins_with_a_checkpoint(nodes):
    with td.connect(nodes[0].path) as giver, td.connect(nodes[1].path) as reader:
        push_checkpoints(giver, range(1, 3))
        came = []
        subscriber = reader.state_subscriber("policy", after=1, base=checkpoint(1))
        for version in (2, 3):
            state = subscriber.stage().wait().state if version == 2 else next(subscriber)
            check_state(state, version)
            came.append(state.report.delta > 0)
            push_checkpoints(giver, range(version + 1, version + 2))
        assert came == [True, True]


# Promise: python-deltas
def test_states_have_bases_in_an_event_loop(nodes):
    async def play() -> list[bool]:
        async with td.aio.connect(nodes[0].path) as giver, td.aio.connect(nodes[1].path) as reader:
            for version in (1, 2):
                await giver.push_state("policy", checkpoint(version), version=version, delta_of=version - 1, digest=True)
            state = await reader.fetch_state("policy", at_least=2, base=checkpoint(1))
            check_state(state, 2)
            came = [state.report.delta > 0]
            await giver.push_state("policy", checkpoint(3), version=3, delta_of=2, digest=True)
            subscriber = reader.state_subscriber("policy", after=2, base=checkpoint(1))
            state = await subscriber.next()
            check_state(state, 3)
            return [*came, state.report.delta > 0]

    assert asyncio.run(play()) == [True, True]


# Promise: python-deltas
def test_a_base_for_which_there_is_no_room_is_none(nodes):
    with td.connect(nodes[0].path) as giver, td.connect(nodes[1].path, arena="1MiB") as reader:
        push_checkpoints(giver, range(1, 3))
        state = reader.fetch_state("policy", at_least=2, base=checkpoint(1))
        check_state(state, 2)
        assert state.report.delta == 0, state.report
