"""State dicts: many tensors as one version."""

from __future__ import annotations

import asyncio
import threading

import ml_dtypes
import numpy as np
import pytest
import transferd as td
from conftest import GIVE_UP, settled, until


def arrays(value: int = 3) -> dict[str, np.ndarray]:
    return {
        "layer0/w": np.full((3, 5), value, "float32"),
        "layer0/b": np.full((7,), value, ml_dtypes.bfloat16),
        "scale": np.array(value, "float64"),
        "nothing": np.empty((0, 4), "int64"),
        "mask": np.array([[True, False]]),
    }


def same(state, expected) -> bool:
    return list(state) == list(expected) and all(
        state[name].numpy().dtype == array.dtype and np.array_equal(state[name].numpy(), array)
        for name, array in expected.items()
    )


def buffers(client: td.Client, of: dict[str, np.ndarray]) -> dict[str, td.Buffer]:
    made = {name: client.empty(array.shape, array.dtype) for name, array in of.items()}
    for name, array in of.items():
        made[name].numpy()[...] = array
    return made


# Promise: states
def test_buffers_are_one_version_and_nothing_is_copied(c, other):
    free = c.arena_free_bytes
    for version in (1, 2):
        pushed = c.push_state("policy", buffers(c, arrays(version)), version=version)
        assert (pushed.version, pushed.report.copied) == (version, 0)
        for client in (c, other):
            state = client.fetch_state("policy", at_least=version)
            assert same(state, arrays(version))
            assert (state.version, state.report.copied, state["scale"].version) == (version, 0, version)
            assert repr(state) == f"<State of 5 tensors, version {version}>"
    del state
    c.delete("policy")
    until("all memory came back", lambda: c.arena_free_bytes == free)


# Promise: states
def test_foreign_arrays_are_copied_once(c, other):
    pushed = c.push_state("policy", arrays())
    assert pushed.report.copied == sum(array.nbytes for array in arrays().values())
    assert same(other.fetch_state("policy"), arrays())
    again = c.fetch_state("policy")
    other.push_state("again", again)
    assert same(c.fetch_state("again"), arrays())


# Promise: states-into-arrays
def test_a_state_is_copied_into_arrays(c):
    c.push_state("policy", arrays(4))
    into = {name: np.zeros_like(array) for name, array in arrays().items() if name != "nothing"}
    into["scale"] = c.empty((), "float64")
    assert c.fetch_state("policy", into=into).version == 1
    assert all(np.array_equal(np.asarray(array), arrays(4)[name]) for name, array in into.items())
    zeros = {"layer0/w": np.zeros((3, 5), "float32")}
    with pytest.raises(KeyError, match="no 'layer1/w'"):
        c.fetch_state("policy", into={**zeros, "layer1/w": np.zeros(1)})
    with pytest.raises(ValueError, match=r"'scale' is float64 \[\] in the state and float32 \[\] where"):
        c.fetch_state("policy", into={**zeros, "scale": np.zeros((), "float32")})
    with pytest.raises(ValueError, match=r"'mask' is bool \[1, 2\] in the state and bool \[2\] where"):
        c.fetch_state("policy", into={**zeros, "mask": np.zeros(2, "bool")})
    assert not zeros["layer0/w"].any()


def pushed_buffer(client: td.Client) -> td.Buffer:
    buffer = client.empty(4)
    client.push("pushed", buffer)
    return buffer


def read_only() -> np.ndarray:
    array = np.zeros(4, "float32")
    array.flags.writeable = False
    return array


WRONG_TARGETS = {
    "read-only": (lambda c: read_only(), "the array is read-only"),
    "broadcast": (lambda c: np.broadcast_to(np.float32(0), 4), "the array is read-only"),
    "broadcast and writable": (lambda c: np.lib.stride_tricks.as_strided(np.zeros(1, "f4"), (4,), (0,)), "is broadcast"),
    "windows": (lambda c: np.ndarray(4, "f4", bytearray(8), strides=(1,)), "sliding windows"),
    "masked": (lambda c: np.ma.masked_array(np.zeros(4, "f4"), [0, 1, 0, 0]), "the array has a mask"),
    "fetched": (lambda c: c.fetch_state("s")["b"], "a Tensor is not written"),
    "a view of a fetched one": (lambda c: c.fetch_state("s")["b"].numpy(), "the array is read-only"),
    "pushed": (pushed_buffer, "was pushed already"),
    "bytes": (lambda c: b"0123", "a bytes is not written"),
    "a list": (lambda c: [0.0] * 4, "a list is not written"),
}


# Promise: states-into-arrays
@pytest.mark.parametrize("which", WRONG_TARGETS)
def test_a_target_that_cannot_be_written_is_found_before_the_first_is(c, which):
    make, reason = WRONG_TARGETS[which]
    c.push_state("s", {"a": np.ones(4, "float32"), "b": np.ones(4, "float32"), "c": np.ones(4, "float32")})
    before, buffer = np.zeros(4, "float32"), c.empty(4)
    buffer.numpy()[:] = 0
    with pytest.raises(td.Invalid, match=f"cannot copy into 'b': .*{reason}"):
        c.fetch_state("s", into={"a": before, "c": buffer, "b": make(c)})
    assert not before.any() and not buffer.numpy().any()
    c.fetch_state("s", into={"a": before, "c": buffer})
    assert before.all() and buffer.numpy().all()
    # Nothing of it holds the buffer any more.
    c.push("c", buffer)


def joint(c: td.Client) -> dict[str, tuple[object, object, bool]]:
    """Two targets of four floats each, and whether they have memory in common."""
    flat, square, buffer = np.zeros(8, "f4"), np.zeros((4, 4), "f4"), c.empty(4)
    return {
        "the same": (flat[:4], flat[:4], True),
        "a part": (flat[:4], flat[2:6], True),
        "from behind": (flat[:4], flat[4:0:-1], True),
        "beside": (flat[:4], flat[4:], False),
        "in turn": (flat[::2], flat[1::2], False),
        "columns": (square[:, 0], square[:, 1], False),
        "rows and columns": (square[:, 0], square[2], True),
        "a buffer": (buffer, buffer, True),
    }


# Promise: states-into-states
@pytest.mark.parametrize("which", ["the same", "a part", "from behind", "beside", "in turn", "columns", "rows and columns", "a buffer"])
def test_two_tensors_are_not_copied_into_one_memory(c, which):
    first, second, is_joint = joint(c)[which]
    c.push_state("s", {"a": np.ones(4, "f4"), "b": np.full(4, 2, "f4"), "x": np.ones(1)})
    into = {"x": np.zeros(1), "a": first, "b": second}
    if is_joint:
        with pytest.raises(td.Invalid, match="^'[ab]' and '[ab]' have memory in common where they shall be copied, and differ in the state"):
            c.fetch_state("s", into=into)
        assert not into["x"].any() and (which == "a buffer" or not np.any(first) and not np.any(second))
    else:
        c.fetch_state("s", into=into)
        assert (first == 1).all() and (second == 2).all() and into["x"].all()
    # What is equal, or one tensor, can be.
    same = np.full(4, 3, "f4")
    for state in ({"a": same, "b": same}, {"a": same, "b": same.copy()}):
        c.push_state("s", state)
        if not is_joint or which in ("the same", "a buffer"):
            c.fetch_state("s", into={"a": first, "b": second})
            assert (np.asarray(first) == 3).all() and (np.asarray(second) == 3).all()


def test_part_of_a_state_has_only_its_tensors(c):
    c.push_state("policy", arrays(4))
    part = c.fetch_state("policy", only=(name for name in ["mask", "layer0/w"]))
    assert list(part) == [name for name in arrays() if name in ("mask", "layer0/w")]
    assert all(np.array_equal(tensor.numpy(), arrays(4)[name]) for name, tensor in part.items())
    assert part.report.bytes < c.fetch_state("policy").report.bytes and part.version == 1
    assert c.fetch_state("policy", only=[]) == {}
    with pytest.raises(td.Invalid, match='no tensor "layer1/w"'):
        c.fetch_state("policy", only=["layer1/w"])
    with pytest.raises(TypeError, match="'mask'"):
        c.fetch_state("policy", only="mask")


# Promise: states
def test_all_buffers_are_taken_or_none(c):
    made = buffers(c, arrays())
    view = made["mask"].numpy()
    with pytest.raises(td.StillExported):
        c.push_state("policy", made)
    assert not any(buffer.pushed for buffer in made.values())
    assert np.array_equal(made["layer0/w"].numpy(), arrays()["layer0/w"])
    del view
    c.push("taken", taken := c.empty(1))
    with pytest.raises(td.Error, match="pushed already"):
        c.push_state("policy", {**made, "taken": taken})
    assert not any(buffer.pushed for buffer in made.values())
    c.push_state("policy", made)
    assert all(buffer.pushed for buffer in made.values())


# Promise: buffers-with-views
def test_a_push_that_fails_gives_its_buffers_back(c, other):
    other.push("policy", b"owned by another worker")
    made = buffers(c, arrays())
    for _ in range(2):
        with pytest.raises(td.KeyOwned):
            c.push_state("policy", made)
        assert not any(buffer.pushed for buffer in made.values())
    with pytest.raises(td.Invalid, match="name"):
        c.push_state("mine", {**made, "": c.empty(1)})
    assert not any(buffer.pushed for buffer in made.values())
    for name, array in arrays().items():
        assert np.array_equal(made[name].numpy(), array), name
    made["layer0/w"].numpy()[:] = 3
    c.push_state("mine", made)
    assert (other.fetch_state("mine")["layer0/w"].numpy() == 3).all()


# Promise: states
def test_a_reader_sees_no_mix_of_versions(c, other):
    last, seen = 60, []

    def read() -> None:
        newest = 0
        while newest < last:
            state = other.fetch_state("w", at_least=newest + 1)
            newest = state.version
            seen.append({float(value) for tensor in state.values() for value in tensor.numpy().ravel()} == {newest})

    reader = threading.Thread(target=read)
    reader.start()
    for version in range(1, last + 1):
        c.push_state("w", {f"t{n}": np.full(n + 1, version, "float64") for n in range(10)}, version=version)
    reader.join(GIVE_UP)
    assert seen and all(seen)


# Promise: gated-states
def test_a_state_is_gated_and_nothing_is_copied(c, other):
    free = c.arena_free_bytes
    c.push_state("policy", buffers(c, arrays(1)), version=1)
    held = other.fetch_state("policy")
    with pytest.raises(td.Timeout, match="published again"):
        c.take_back_state("policy", timeout=0.05)
    assert same(other.fetch_state("policy", exactly=1), arrays(1))
    del held
    for version in (2, 3):
        taken = c.take_back_state("policy", timeout=GIVE_UP)
        assert list(taken) == list(arrays())
        for name, array in arrays(version).items():
            taken[name].numpy()[...] = array
        assert c.push_state("policy", taken, version=version).report.copied == 0
        assert same(other.fetch_state("policy", at_least=version), arrays(version))
    with pytest.raises(td.Error, match="is no bundle") as e:
        c.push("tensor", np.ones(2))
        c.take_back_state("tensor")
    assert e.value.code == "invalid"
    c.delete("policy")
    c.delete("tensor")
    del taken
    until("all memory came back", lambda: c.arena_free_bytes == free)


# Promise: gated-states
def test_two_state_buffers_take_turns_and_a_snapshot_is_a_copy(c, other):
    layout = {name: (array.shape, array.dtype) for name, array in arrays().items()}
    turns = c.two_state_buffers("turns", layout)
    live = buffers(c, arrays(0))
    for version in range(1, 6):
        turn = turns.turn(timeout=GIVE_UP)
        for name, array in arrays(version).items():
            turn[name].numpy()[...] = live[name].numpy()[...] = array
        assert turns.push(turn, version).report.copied == 0
        copied = c.push_state_snapshot("copies", live, version=version).report.copied
        assert copied == sum(array.nbytes for array in arrays().values())
        assert same(other.fetch_state("turns", exactly=version), arrays(version))
        assert same(other.fetch_state("copies", at_least=version), arrays(version))
    assert same(other.fetch_state("turns", exactly=4), arrays(4))
    assert not any(buffer.pushed for buffer in live.values())


def test_a_state_is_told_from_other_things(c):
    c.push_state("state", {"t": np.ones(2)})
    c.push("tensor", np.ones(2))
    with pytest.raises(td.Error, match="fetch_bundle"):
        c.fetch("state")
    with pytest.raises(td.Error, match="is no bundle"):
        c.fetch_state("tensor")
    with pytest.raises(td.Error, match="1 to 512 bytes"):
        c.push_state("state", {"": np.ones(2)})
    assert c.push_state("empty", {}).version == 1
    assert c.fetch_state("empty") == {}


async def awaited(path: str) -> None:
    async with td.aio.connect(path) as client:
        await client.push_state("awaited", arrays(9))
        assert same(await client.fetch_state("awaited"), arrays(9))
        taken = await client.take_back_state("awaited")
        await client.push_state_snapshot("awaited", taken)
        turns = client.two_state_buffers("turns", {"w": ((3,), "float32")})
        await turns.push(await turns.turn(), 1)
        assert list(await client.fetch_state("turns")) == ["w"]


def test_states_are_awaited(c):
    import asyncio

    asyncio.run(awaited(c.path))


# Promise: names-of-entries
@pytest.mark.parametrize("name", ["", "x" * 513, "\u20ac" * 171, "\ud800"])
@pytest.mark.parametrize("module", [td, td.aio])
def test_a_name_that_cannot_be_is_an_error_of_its_state_and_entry(sidecar, module, name):
    async def refused():
        c = await settled(module.connect(sidecar.path, arena="1MiB"))
        made = await settled(c.empty(1))
        free, where = c.arena_free_bytes, "the state 'policy'"
        for at, where, call in (
            (1, where, lambda: c.push_state("policy", {"a": made, name: made})),
            (1, where, lambda: c.push_state("policy", {"a": np.ones(4), name: np.ones(4)})),
            (0, where, lambda: c.publisher("policy").push_state({name: np.ones(4)})),
            (0, where, lambda: c.push_state_snapshot("policy", {name: made})),
            (0, where, lambda: c.two_state_buffers("policy", {name: (1, "uint8")})),
            (1, f"only= of {where}", lambda: c.fetch_state("policy", only=["a", name])),
        ):
            with pytest.raises(td.Invalid) as error:
                await settled(call())
            says = f"entry {at} of {where} has the name {name!r}: a name is a text of 1 to 512 bytes of UTF-8"
            assert (str(error.value), error.value.code) == (says, "invalid")
        assert not made.pushed and c.arena_free_bytes == free
        await settled(c.close())

    asyncio.run(refused())
