"""States that are staged in the background, and committed in one short call."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator

import ml_dtypes
import numpy as np
import pytest
import transferd as td
from conftest import GIVE_UP, Sidecar, start_two, until

LOCAL, MOVED = "copied: the version lies on this host", "copied: a state lands as a whole before its first tensor is written"


@pytest.fixture
def nodes(tmp_path_factory) -> Iterator[tuple[Sidecar, Sidecar]]:
    """The sidecars of two nodes, between which bytes go over TCP."""
    a, b = start_two(tmp_path_factory, "--shm", "off")
    yield a, b
    b.stop()
    if a.process.poll() is None:
        a.stop()


def state(step: int, w: int, b: int) -> dict:
    return {"model": {"w": np.full((64, 32), w, "float32"), "b": np.full(32, b, "float64")}, "step": step}


def empty() -> dict:
    return state(0, 0, 0)


def is_state(found: dict, step: int, w: int, b: int) -> bool:
    expected = state(step, w, b)
    return found["step"] == step and all(np.array_equal(found["model"][name], expected["model"][name]) for name in "wb")


W, B = 64 * 32 * 4, 32 * 8


# Promise: staged-states
def test_only_what_has_changed_is_copied(c, other) -> None:
    follow, into = other.state_subscriber("policy"), empty()
    c.push_state("policy", state(1, 1, 1))
    staged = follow.stage().wait(GIVE_UP)
    assert (staged.version, staged.changed, follow.seen) == (1, ["model/w", "model/b"], 1)
    assert staged.commit(into) == ({"model/w": LOCAL, "model/b": LOCAL}, W + B)
    assert is_state(into, 1, 1, 1)

    c.push_state("policy", state(2, 1, 2))
    staged = follow.stage().wait(GIVE_UP)
    assert staged.changed == ["model/b"] and staged.state["step"] == 2
    into["model"]["w"][0] = 7
    landed = staged.commit(into)
    assert landed.copied == B and landed.landings["model/w"].startswith("not copied: it has these values")
    assert (into["model"]["w"][0] == 7).all(), "it was not written"
    assert staged.changed == ["model/b"], "it says what the commit has found"
    staged.state.copy_into(into)
    assert is_state(into, 2, 1, 2)

    # Values that were there before the last commit are other values.
    c.push_state("policy", state(3, 1, 1))
    staged = follow.stage().wait(GIVE_UP)
    assert staged.changed == ["model/b"]
    staged.commit({"model": {"b": into["model"]["b"]}})
    assert is_state(into, 2, 1, 1)


# Promise: staged-states, seen to fail
def test_only_ranges_that_have_changed_are_copied(nodes) -> None:
    chunk, shape = 256 << 10, (300, 1024)
    with td.connect(nodes[0].path) as giver, td.connect(nodes[1].path) as reader:
        w, targets = np.zeros(shape, "float32"), ({"w": np.ones(shape, "float32")}, {"w": reader.empty(shape)})
        follows = [reader.state_subscriber("ranges") for _ in targets]
        last = w.nbytes
        assert last > 4 * chunk and last % chunk != 0
        for version, (places, ranges) in enumerate(
            [((), [(0, last)]), ((0, 70_000), [(0, 2 * chunk)]), ((70_000, -1), [(chunk, 2 * chunk), (4 * chunk, last)])], 1
        ):
            for place in places:
                w.reshape(-1)[place] = version
            giver.push_state("ranges", {"w": w}, version=version, delta_of=version - 1)
            for follow, into in zip(follows, targets, strict=True):
                staged = follow.stage().wait(GIVE_UP)
                assert (staged.changed, staged.changed_ranges) == (["w"], {"w": ranges})
                landed = staged.commit(into)
                assert landed.copied == sum(end - begin for begin, end in ranges)
                assert landed.landings["w"].startswith("copied: ")
                assert np.array_equal(np.asarray(into["w"]), w) and staged.changed_ranges == {"w": ranges}
        # To other memory all is copied.
        follow, numpy = follows[0], {"w": np.zeros(shape, "float32")}
        assert [staged.commit(numpy).copied for _ in range(2)] == [last, 0] and np.array_equal(numpy["w"], w)
        # What does not lie in one piece is copied as a whole.
        wide = {"w": np.zeros((300, 2048), "float32")[:, ::2]}
        assert staged.commit(wide).copied == last
        w[0, 0] = 77
        giver.push_state("ranges", {"w": w})
        assert follow.stage().wait(GIVE_UP).commit(wide).copied == last and np.array_equal(wide["w"], w)


# Promise: staged-states, seen to fail
def test_ranges_of_other_representations_are_right(c, other) -> None:
    chunk = 256 << 10
    # Three chunks, and an array whose elements have their bytes in the other order.
    follow, w = other.state_subscriber("order"), np.arange(3 * chunk // 4, dtype="float32")
    into = {"w": np.zeros(w.shape, w.dtype.newbyteorder())}
    for version in (1, 2):
        w[70_000] = version
        c.push_state("order", {"w": w})
        staged = follow.stage().wait(GIVE_UP)
        assert staged.changed_ranges["w"] == ([(0, 3 * chunk)] if version == 1 else [(chunk, 2 * chunk)])
        assert staged.commit(into).copied == 3 * chunk and np.array_equal(into["w"], w)
    # A slice of elements of 4 bits has half as many bytes as numpy has for it.
    rows, columns = 1024, 1200
    small = np.zeros((rows, columns), ml_dtypes.uint4)
    follow, into = other.state_subscriber("small", slices={"w": np.s_[:, :1024]}), {"w": np.zeros((rows, 1024), small.dtype)}
    for place, ranges in [(0, [(0, 2 * chunk)]), (-1, [(chunk, 2 * chunk)])]:
        small[place, 0] = 7
        c.push_state("small", {"w": small})
        staged = follow.stage().wait(GIVE_UP)
        assert staged.changed_ranges == {"w": ranges}
        staged.commit(into)
        assert np.array_equal(into["w"], small[:, :1024])


# Promise: staged-states
def test_other_memory_gets_all(c, other) -> None:
    follow, into = other.state_subscriber("policy"), empty()
    c.push_state("policy", state(1, 1, 1))
    staged = follow.stage().wait(GIVE_UP)
    staged.commit(into)
    second = empty()
    assert staged.commit(second).copied == W + B and is_state(second, 1, 1, 1)
    # A view of the same memory is the same memory, and with other strides it is not.
    assert staged.commit({"model": {"w": second["model"]["w"][:]}}).copied == 0
    turned = np.zeros((32, 64), "float32")
    assert staged.commit({"model": {"w": turned.T}}).copied == W and (turned == 1).all()
    # Memory that was freed is not the same, also where the next array lies at its address.
    for _ in range(20):
        array = np.zeros(32)
        assert staged.commit({"model": {"b": array}}).copied == B and (array == 1).all()
        del array
    buffer = other.empty((64, 32))
    assert [staged.commit({"model": {"w": buffer}}).copied for _ in range(2)] == [W, 0]
    other.push("pushed", buffer)
    again = other.empty((64, 32))
    assert staged.commit({"model": {"w": again}}).copied == W and (again.numpy() == 1).all()


# Promise: staged-states
def test_a_commit_needs_no_peer(nodes) -> None:
    a, b = nodes
    with td.connect(a.path) as giver, td.connect(b.path) as taker:
        giver.push_state("policy", state(1, 1, 1))
        staged = taker.state_subscriber("policy").stage().wait(GIVE_UP)
        a.kill()
        into = empty()
        assert staged.commit(into) == ({"model/w": MOVED, "model/b": MOVED}, W + B)
        assert is_state(into, 1, 1, 1)


# Promise: staged-states
def test_what_does_not_fit_changes_nothing(c) -> None:
    c.push_state("policy", state(1, 1, 1))
    staged = c.state_subscriber("policy").stage().wait(GIVE_UP)
    into = empty()
    wrong = {"model": {"w": into["model"]["w"], "b": np.zeros(31)}, "step": 0}
    with pytest.raises(td.Invalid, match=r"'model/b' is float64 \[32\] in the state and float64 \[31\] where"):
        staged.commit(wrong)
    with pytest.raises(td.Invalid, match=r"'model/b' is float64 \[32\] in the state and float32 \[32\] where"):
        staged.commit({"model": {"w": into["model"]["w"], "b": np.zeros(32, "float32")}})
    with pytest.raises(KeyError, match="no 'model/c'"):
        staged.commit({"model": {"w": into["model"]["w"], "c": np.zeros(1)}})
    assert is_state(into, 0, 0, 0) and wrong["step"] == 0
    assert staged.changed == ["model/w", "model/b"]
    assert staged.commit(into).copied == W + B


# Promise: staged-states
def test_a_version_that_is_not_there_is_not_waited_for(c, other) -> None:
    follow = other.state_subscriber("policy", timeout=None)
    staged = follow.stage()
    assert not staged.done()
    for call in (lambda: staged.commit(empty()), lambda: staged.changed, lambda: staged.wait(0)):
        with pytest.raises(td.Timeout) as e:
            call()
        assert (e.value.code, e.value.key, e.value.can_retry) == ("not_staged", "policy", True)
    with pytest.raises(td.Invalid, match="'policy' is on its way"):
        follow.stage()
    staged.cancel()
    with pytest.raises(td.Error) as e:
        staged.commit(empty())
    assert e.value.code == "cancelled" and staged.done()
    # Nothing was skipped.
    c.push_state("policy", state(1, 1, 1))
    staged = follow.stage().wait(GIVE_UP)
    assert (staged.version, follow.seen) == (1, 1)
    staged.cancel()
    assert staged.commit(empty()).copied == W + B, "it was there"
    # The thread of one that waits ends with its client.
    waits = follow.stage()
    other.close()
    with pytest.raises(td.Error) as e:
        waits.wait(GIVE_UP)
    assert e.value.code == "closed"
    until("no thread is left", lambda: all(thread.name != "transferd-stage" for thread in threading.enumerate()))


# Promise: staged-states
def test_asyncio_stages_and_commits(sidecar, c) -> None:
    async def run() -> None:
        async with td.aio.connect(sidecar.path) as reader:
            follow, into = reader.state_subscriber("policy"), empty()
            staged = follow.stage()
            with pytest.raises(td.Timeout, match="not there yet"):
                staged.commit(into)
            with pytest.raises(td.Invalid, match="on its way"):
                follow.stage()
            await staged.cancel()
            with pytest.raises(td.Error) as e:
                await staged
            assert e.value.code == "cancelled" and staged.done() and follow.seen is None
            c.push_state("policy", state(1, 1, 1))
            staged = await follow.stage()
            assert staged.commit(into).copied == W + B and is_state(into, 1, 1, 1)
            c.push_state("policy", state(2, 2, 1))
            staged = await follow.stage()
            assert staged.changed == ["model/w"]
            assert staged.commit(into).copied == W and is_state(into, 2, 2, 1)

    asyncio.run(run())


# Promise: states-into-arrays
def test_a_state_says_how_it_came_into_arrays(nodes) -> None:
    a, b = nodes
    with td.connect(a.path) as giver, td.connect(b.path) as taker:
        giver.push_state("policy", state(1, 1, 1))
        for client, how in ((giver, LOCAL), (taker, MOVED)):
            assert client.fetch_state("policy").landings == {}
            plain, into = client.fetch_state("policy").report, empty()
            # The columns of a wider matrix.
            wide = np.zeros((64, 48), "float32")
            into["model"]["w"] = wide[:, :32]
            found = client.fetch_state("policy", into=into)
            assert found.landings == {"model/w": how, "model/b": how}
            assert (wide[:, :32] == 1).all() and not wide[:, 32:].any()
            if client is giver:
                assert (plain.copied, found.report.copied) == (0, W + B)
            else:
                assert found.report.copied >= found.report.bytes * 2 + W + B
