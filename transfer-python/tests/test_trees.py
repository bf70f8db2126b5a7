"""States as they are: what is no tensor travels beside the tensors, and what is one memory is pushed once."""

from __future__ import annotations

import asyncio
import enum
import json
import math
import socket
import struct
import subprocess
import sys
import threading
from collections import OrderedDict, namedtuple
from types import MappingProxyType

import ml_dtypes
import numpy as np
import pytest
import transferd as td
from conftest import Sidecar, settled, until
from test_tensors import address


def exact(a: object) -> object:
    """What tells any two states apart: types, signs and payloads of floats, the order of entries."""
    if isinstance(a, dict):
        return "dict", [(exact(key), exact(value)) for key, value in a.items()]
    if type(a) in (list, tuple):
        return type(a), [exact(value) for value in a]
    if type(a) is float:
        return float, struct.pack("<d", a)
    if hasattr(a, "shape"):
        array = np.asarray(a)
        return "tensor", array.dtype, array.shape, array.tobytes()
    return type(a), a


def optimizer() -> dict:
    return {
        "state": {n: {"step": np.array(7.0, "f4"), "exp_avg": np.full((n + 1, 4), n, "f4")} for n in range(3)},
        "param_groups": [{"lr": 1e-3, "betas": (0.9, 0.95), "foreach": None, "params": [0, 1, 2]}],
    }


STATES = {
    "an optimizer's": optimizer(),
    "a checkpoint": {"model": OrderedDict(w=np.ones(3)), "optimizer": optimizer(), "step": 12, "rng": b"\x00\xff" * 50, "done": False},
    "integers": {"i": [0, -1, 2**53 + 1, 2**63 - 1, 2**63, -(2**63), -(2**64) - 1, 10**30_000]},
    "floats": {"f": [0.0, -0.0, 1.0, 0.1, 1e-320, 1.7e308, math.inf, -math.inf, *struct.unpack("<2d", struct.pack("<2Q", 0xFFF8 << 48, (0x7FF8 << 48) + 5))]},
    "texts": {"t": ["", "ü", "\x00\n\"\\", "\U0001f600", "\ud83d\ude00", "\udc80 alone"], "\udc80": 1, "": 2},
    "keys": {0: 1, 1.5: 2, None: 3, b"x": 4, "0": 5, "a/b": np.ones(1), "a": {"b": np.zeros(2), 7: np.ones(3)}, True: np.ones(4)},
    "tuples and lists": {"n": [(), [], {}, ((1,), [2, (3,)]), [np.ones(2), (np.zeros(1), None)]]},
    "a number as a key": {"a": {10**5000: 1}},
    "numpy's numbers": {"a": np.float64(1.5), "b": np.int32(4), "c": 1.5},
    "types": {"a": np.ones(4, ml_dtypes.int4), "b": [np.ones((2, 2), ml_dtypes.bfloat16)]},
    "no tensors": {"a": 1, "b": None},
}


# Promise: trees
@pytest.mark.parametrize("which", STATES)
@pytest.mark.parametrize("module", [td, td.aio])
def test_a_state_comes_back_as_it_was(sidecar, module, which):
    async def there_and_back():
        c, other = await settled(module.connect(sidecar.path, arena="16MiB")), await settled(module.connect(sidecar.path))
        copied = (await settled(c.push_state("s", STATES[which]))).report.copied
        assert copied == sum(size for size in sizes(STATES[which]))
        state = await settled(other.fetch_state("s", at_least=1))
        assert exact(state) == exact(STATES[which]) and state.version == 1
        follow = other.state_subscriber("s")
        assert exact(await settled(follow.next())) == exact(state)
        # What was fetched is a state as well.
        await settled(other.push_state("again", {"nested": state}))
        assert exact(await settled(c.fetch_state("again"))) == exact({"nested": STATES[which]})
        await settled(c.close())
        await settled(other.close())

    asyncio.run(there_and_back())


def sizes(a: object):
    """The bytes of the tensors of a state, as they lie in the arena."""
    if hasattr(a, "shape"):
        yield a.nbytes // 2 if a.dtype == ml_dtypes.int4 else a.nbytes
    elif isinstance(a, (dict, list, tuple)):
        for value in a.values() if isinstance(a, dict) else a:
            yield from sizes(value)


# Promise: trees
def test_a_flat_mapping_of_tensors_has_no_record(c, sidecar):
    tensors = {"w": np.ones(4), "b": np.zeros(3)}
    c.push_state("flat", tensors)
    c.push_state("deep", {"a": tensors})
    bundles = {key: c._fetch_bundle(key, None, {}).result()[0] for key in ("flat", "deep")}
    assert list(bundles["flat"]) == ["w", "b"] and list(bundles["deep"]) == ["a/w", "a/b", "__tree__"]
    record = json.loads(bytes(bundles["deep"]["__tree__"]))
    assert record == {"tree": {"dict": ["a", {"dict": ["w", {"tensor": "a/w"}, "b", {"tensor": "a/b"}]}]}, "ties": {}}
    assert repr(c.fetch_state("flat")) == "<State of 2 tensors, version 1>"
    assert repr(c.fetch_state("deep")) == "<State of 1 entries, version 1>"


class Part(enum.StrEnum):
    W = "w"


class Named(str, enum.Enum):
    B = "b"


# Promise: text-keys
@pytest.mark.parametrize("inside", [False, True])
def test_keys_that_are_texts_of_another_class_are_texts(c, inside):
    state = {Part.W: np.ones(3), Named.B: np.zeros(2), np.str_("x"): np.ones(1)}
    c.push_state("s", {"m": state, Part.W: 7} if inside else state)
    found = c.fetch_state("s")
    assert (found.pop("w") == 7) if inside else (list(c._fetch_bundle("s", None, {}).result()[0]) == ["w", "b", "x"])
    found = found["m"] if inside else {**found, "w": None}
    assert sorted(found) == ["b", "w", "x"] and {type(key) for key in found} == {str}
    name = np.str_("m/w" if inside else "w")
    assert list(c.fetch_state("s", only=[name])) == [str(name)]
    two = c.two_state_buffers("t", {Part.W: (3, "uint8")})
    assert list(two.turn()) == ["w"]


Point = namedtuple("Point", "x y")


class Color(enum.IntEnum):
    RED = 1


def shared_lists(times: int) -> list:
    a = [1]
    for _ in range(times):
        a = [a, a]
    return a


REFUSED = {
    "a set": ({"a": [{1}]}, TypeError, "cannot push 'a/0' of the state 's': a set cannot be pushed"),
    "an enumeration": ({"a": {"b": Color.RED}}, TypeError, "cannot push 'a/b' of the state 's': a Color cannot be pushed"),
    "a named tuple": ({"a": Point(1, 2)}, TypeError, "cannot push 'a' of the state 's': a Point cannot be pushed"),
    "a number of its own": ({"a": {3: 1j}}, TypeError, "cannot push 'a/3' of the state 's': a complex cannot be pushed"),
    "an array of dates": ({"a": [np.zeros(1, "M8[s]")]}, td.Invalid, "cannot push 'a/0' of the state 's': the numpy.ndarray has the unsupported"),
    "a list many times": ({"a": (shared_lists(22))}, td.Invalid, "the record of the state 's' has more than 2097152 brackets and commas: push long lists"),
    "a text many times": ({"a": ["x" * (1 << 20)] * 65}, td.Invalid, "the record of the state 's' has more than 67108864 bytes: push long texts"),
    "bytes many times": ({"a": [bytes(1 << 20)] * 65}, td.Invalid, "the record of the state 's' has more than 67108864 bytes"),
    "a large number many times": ({"a": [1 << (8 << 20)] * 33}, td.Invalid, "the record of the state 's' has more than 67108864 bytes"),
    "a text that JSON makes longer": ({"a": "\u20ac" * (12 << 20)}, td.Invalid, "the record of the state 's' has more than 67108864 bytes"),
    "a key of another type": ({"x": 1, "a": {"b": {(1, 2): 3}}}, td.Invalid, "entry 1 of the state 's', in 'a/b', has a key of the type tuple"),
    "the record's name": ({"__tree__": np.ones(1)}, td.Invalid, "entry 0 of the state 's' has the name '__tree__', which is the one of a state's record"),
    "a long path": ({"a" * 300: {"b" * 300: np.ones(1)}}, td.Invalid, "entry 0 of the state 's' has the name 'aaa"),
    "a path that is too long with its sign": ({"b": 1, "a": {"x" * 510: np.ones(1)}, "a/" + "x" * 510: np.ones(1)}, td.Invalid, "entry 2 of the state 's' has the name 'a/xxx"),
    "a number that is too long a path": ({"x": 1, 10**5000: np.ones(1)}, td.Invalid, "entry 1 of the state 's' has the name '0x"),
    "a list": ([np.ones(1)], TypeError, "the state 's' is a list, where a mapping is needed"),
}


# Promise: refused-entries
@pytest.mark.parametrize("which", REFUSED)
def test_what_cannot_travel_is_refused_by_path_and_type(c, which):
    state, error, reason = REFUSED[which]
    free = c.arena_free_bytes
    with pytest.raises(error) as raised:
        c.push_state("s", state)
    assert str(raised.value).startswith(reason)
    until("nothing is kept", lambda: c.arena_free_bytes == free)


def nested(depth: int) -> dict:
    state: dict = {"leaf": 1}
    for _ in range(depth - 1):
        state = {"x": state}
    return state


# Promise: refused-entries
def test_the_depth_of_a_state_has_a_limit(c):
    c.push_state("s", nested(100))
    assert exact(c.fetch_state("s")) == exact(nested(100))
    around: list = []
    around.append(around)
    for state in (nested(101), {"a": around}):
        with pytest.raises(td.Invalid, match="entry 0 of the state 's' has more than 100 dicts, lists and tuples inside of each other"):
            c.push_state("s", state)


def tree(node: object) -> dict:
    return {"tree": {"dict": ["a", node]}, "ties": {}}


HOSTILE = {
    "nothing": (b"", "Expecting value"),
    "no text": (b"\xff\xfe{\x00", "utf-8"),
    "no JSON": (b"{", "Expecting"),
    "a list": (b"[]", "a list is where a dict has to be"),
    "no tree": (b"{}", "it has no 'tree'"),
    "a root that is no dict": ({"tree": [1]}, "a list is where a dict has to be"),
    "a type that there is not": (tree({"pickle": "gASV"}), "the unknown type 'pickle'"),
    "two types": (tree({"int": "1", "float": ""}), "an object has 2 entries"),
    "no type": (tree({}), "an object has 0 entries"),
    "a tensor that there is not": (tree({"tensor": "b"}), "the bundle has no tensor 'b'"),
    "its own record": (tree({"tensor": "__tree__"}), "the bundle has no tensor '__tree__'"),
    "a tensor of another type": (tree({"tensor": ["w"]}), "a list is where a str has to be"),
    "a key that is a list": ({"tree": {"dict": [[1], 2]}}, "a list is a key"),
    "a key that is a tensor": ({"tree": {"dict": [{"tensor": "w"}, 2]}}, "no tensor 'w'"),
    "a key alone": ({"tree": {"dict": ["a"]}}, "a key has no value"),
    "no number": (tree({"int": "0xzz"}), "invalid literal"),
    "half of a float": (tree({"float": "00"}), "8 bytes"),
    "no bytes": (tree({"bytes": "=!"}), ""),
    "no characters": (tree({"text": "ffffffff"}), "utf-32"),
    "decimals without end": (b'{"tree": {"dict": ["a", ' + b"1" * 5000 + b"]}}", "4300 digits"),
    "lists in lists": (tree(json.loads("[" * 101 + "]" * 101)), "more than 100 dicts, lists and tuples"),
    "brackets without end": (b"[" * 1_000_000, "more than 100 dicts, lists and tuples"),
    "objects without end": (b'{"tree":{"tuple":[' * 200_000, "more than 100 dicts, lists and tuples"),
    "brackets behind an escape": (b'["\\\\",' * 1000, "more than 100 dicts, lists and tuples"),
    "lists without end": (b"[" + b"[]," * (1 << 20), "it has more than 2097152 brackets and commas"),
    "a long name": (tree({"x" * 100_000: 1}), "the unknown type 'xxx"),
    "a tensor of a long name": (tree({"tensor": "x" * 100_000}), "the bundle has no tensor 'xxx"),
}


# Promise: refused-entries
@pytest.mark.parametrize("which", HOSTILE)
def test_a_record_that_no_push_has_written_is_an_error(c, other, which):
    said, reason = HOSTILE[which]
    record = said if isinstance(said, bytes) else json.dumps(said).encode()
    buffers = {"w": c.empty(3), "__tree__": c.empty(len(record), "uint8")}
    if record:
        buffers["__tree__"].numpy()[:] = np.frombuffer(record, "uint8")
    c._push_bundle("s", list(buffers), list(buffers.values()), False, 0, {}).result()
    # What it lies beside can be fetched.
    assert list(other.fetch_state("s", only=["w"])) == ["w"]
    calls = [lambda: other.fetch_state("s")]
    if isinstance(said, bytes) and which != "no tree":
        calls.append(lambda: other.fetch_state("s", only=["head"]))
    for call in [*calls, lambda: c.take_back_state("s")]:
        with pytest.raises(td.Invalid, match="the record '__tree__' of the state 's' was not written by push_state: ") as error:
            call()
        assert reason in str(error.value) and error.value.key == "s" and len(str(error.value)) < 400


# Promise: refused-entries
def test_ties_that_no_push_has_written_are_an_error(c):
    for ties in ([], {"head": 3}, {"head": ["w"]}, {"head": "\ud800"}, {"head": "__tree__"}, {"head": ""}, {"head": "absent"}, {"head": "x" * 100_000}):
        record = json.dumps({"tree": {"dict": []}, "ties": ties}).encode()
        buffers = {"w": c.empty(3), "__tree__": c.empty(len(record), "uint8")}
        buffers["__tree__"].numpy()[:] = np.frombuffer(record, "uint8")
        c._push_bundle("s", list(buffers), list(buffers.values()), False, 0, {}).result()
        for only in (["head"], ["w", "head"]):
            with pytest.raises(td.Invalid, match="the record '__tree__' of the state 's' was not written by push_state") as error:
                c.fetch_state("s", only=only)
            assert len(str(error.value)) < 400


# Promise: refused-entries
def test_a_record_that_is_too_long_is_not_read(sidecar):
    with td.connect(sidecar.path, arena="80MiB") as c:
        record = c.empty((64 << 20) + 1, "uint8")
        record.numpy()[:] = ord(" ")
        c._push_bundle("s", ["__tree__"], [record], False, 0, {}).result()
        with pytest.raises(td.Invalid, match="was not written by push_state: it has more than 67108864 bytes"):
            c.fetch_state("s")


DEEP = """
import sys, numpy as np, transferd as td
sys.setrecursionlimit(100_000)
with td.connect(sys.argv[1], arena="4MiB") as c:
    record = c.empty(1_000_000, "uint8")
    record.numpy()[:] = ord("[")
    c._push_bundle("s", ["__tree__"], [record], False, 0, {}).result()
    try:
        c.fetch_state("s")
    except td.Invalid:
        print("refused")
"""


# Promise: refused-entries
def test_a_deep_record_does_not_end_the_process(sidecar):
    # With such a limit Python's parser would leave its stack.
    done = subprocess.run([sys.executable, "-c", DEEP, sidecar.path], capture_output=True, text=True)
    assert (done.returncode, done.stdout) == (0, "refused\n"), done.stderr


# Promise: refused-entries
def test_a_large_record_comes_back(c):
    # Texts do not count as what is around them.
    state = {"a": ["[{,]}" * 100_000, "\\\"[" * 100_000, "\\" * 1001], "n": list(range(300_000)), "deep": nested(99)}
    c.push_state("s", state)
    assert exact(c.fetch_state("s")) == exact(state)
    # A mapping of tensors alone has no record, whatever its names are.
    names = [f"{n:0512}" for n in range(3)]
    c.push_state("flat", dict.fromkeys(names, np.ones(0)))
    assert list(c.fetch_state("flat")) == names


def targets() -> dict:
    state = optimizer()
    for entry in state["state"].values():
        entry["exp_avg"] = np.zeros_like(entry["exp_avg"])
        entry["step"] = np.zeros_like(entry["step"])
    state["param_groups"][0].update(lr=1.0, foreach=True)
    return state


# Promise: states-into-states
def test_a_state_is_copied_into_one_that_has_its_entries(c):
    c.push_state("s", optimizer())
    into = targets()
    arrays = [entry["exp_avg"] for entry in into["state"].values()]
    buffer = into["state"][2]["exp_avg"] = c.empty((3, 4))
    state = c.fetch_state("s", into=into)
    assert exact(into["param_groups"]) == exact(optimizer()["param_groups"])
    assert all(entry["exp_avg"] is array for entry, array in zip(list(into["state"].values())[:2], arrays))
    assert exact({**into, "state": {n: into["state"][n] for n in (0, 1)}}) == exact({**optimizer(), "state": {n: optimizer()["state"][n] for n in (0, 1)}})
    assert (buffer.numpy() == 2).all()
    # A part of it, and what cannot be changed but is as it has to be.
    part = {"state": {1: {"exp_avg": np.zeros((2, 4), "f4")}}, "param_groups": MappingProxyType({})}
    with pytest.raises(td.Invalid, match="'param_groups' is a list in the state and a mappingproxy where"):
        state.copy_into(part)
    assert not part["state"][1]["exp_avg"].any()
    del part["param_groups"]
    state.copy_into(MappingProxyType(part))
    assert (part["state"][1]["exp_avg"] == 1).all()


class Exotic:
    """An array that is neither of numpy nor of torch."""

    def __dlpack__(self): ...


UNFIT = {
    "an entry that is not there": (lambda s: s["state"][1].update(x=1), KeyError, "no 'state/1/x' (1 of 3 names are missing)"),
    "a longer list": (lambda s: s["param_groups"].append({}), td.Invalid, "'param_groups' has 1 entries in the state and 2 where"),
    "another shape": (lambda s: s["state"][2].update(exp_avg=np.zeros(3, "f4")), td.Invalid, "'state/2/exp_avg' is float32 [3, 4] in the state"),
    "a read-only array": (lambda s: s["state"][2].update(exp_avg=np.broadcast_to(np.float32(0), (3, 4))), td.Invalid, "cannot copy into 'state/2/exp_avg': the array is read-only"),
    "a number for an array": (lambda s: s["state"][0].update(exp_avg=1.0), td.Invalid, "cannot copy into 'state/0/exp_avg': a float is not written"),
    "an array for a number": (lambda s: s["param_groups"][0].update(lr=np.zeros(1)), td.Invalid, "'param_groups/0/lr' is a float in the state and a ndarray where"),
    "an array of another library for a number": (lambda s: s["param_groups"][0].update(lr=Exotic()), td.Invalid, "'param_groups/0/lr' is a float in the state and a Exotic where"),
    "a list for a tuple": (lambda s: s["param_groups"][0].update(betas=[0.9, 0.95]), td.Invalid, "'param_groups/0/betas' is a tuple in the state and a list where"),
    "another value in a tuple": (lambda s: s["param_groups"][0].update(betas=(0.9, 0.5)), td.Invalid, "'param_groups/0/betas/1' is 0.95 in the state and 0.5 where"),
    "a list for a dict": (lambda s: s["state"].update({0: []}), td.Invalid, "'state/0' is a dict in the state and a list where"),
}


# Promise: states-into-states
@pytest.mark.parametrize("which", UNFIT)
def test_a_target_that_does_not_fit_is_found_before_anything_is_written(c, which):
    change, error, reason = UNFIT[which]
    c.push_state("s", optimizer())
    into = targets()
    change(into)
    before = exact(into)
    with pytest.raises(error) as raised:
        c.fetch_state("s", into=into)
    assert reason in str(raised.value) and exact(into) == before


class Refusing(dict):
    def __setitem__(self, key: object, value: object) -> None:
        raise RuntimeError("it takes nothing")


# Promise: states-into-states
def test_a_dict_that_takes_no_value_leaves_the_arrays_as_they_were(c):
    c.push_state("s", {"w": np.ones(3), "of": {"step": 1}})
    into = {"w": np.zeros(3), "of": Refusing(step=0)}
    with pytest.raises(RuntimeError, match="it takes nothing"):
        c.fetch_state("s", into=into)
    assert not into["w"].any()


# Promise: states-into-states
def test_large_numbers_and_texts_are_compared_and_named(c):
    c.push_state("s", {"a": (10**5000,), "b": ("x" * 100_000,), "f": (float("nan"), -0.0)})
    c.fetch_state("s", into={"a": (10**5000,), "f": (float("nan"), -0.0)})
    for target in ({"a": (10**5000 + 1,)}, {"b": ("y",)}, {"f": (1.0, -0.0)}, {"f": (float("nan"), 0.0)}):
        with pytest.raises(td.Invalid, match="in what cannot be changed") as error:
            c.fetch_state("s", into=target)
        assert len(str(error.value)) < 800


# Promise: parts-of-states
def test_part_of_a_state_is_named_by_its_paths(c):
    c.push_state("s", {**optimizer(), "tied": (shared := np.ones(5)), "again": shared})
    part = c.fetch_state("s", only=["state/1/exp_avg", "state/0/step"])
    assert sorted(part) == ["state/0/step", "state/1/exp_avg"] and (part["state/1/exp_avg"].numpy() == 1).all()
    part = c.fetch_state("s", only=["again", "state/0/step"], exactly=1)
    assert list(part) == ["again", "state/0/step"] and (part["again"].numpy() == 1).all() and part.version == 1
    for name in ("param_groups/0/lr", "nothing"):
        with pytest.raises(td.Invalid, match=f'no tensor "{name}"'):
            c.fetch_state("s", only=[name])
        with pytest.raises(td.Invalid, match=f'no tensor "{name}"'):
            c.fetch_state("s", only=["tied", name])
    with pytest.raises(td.Invalid, match="which is the one of a state's record"):
        c.fetch_state("s", only=["__tree__"])


# Promise: parts-of-states
def test_a_tied_part_is_of_one_version_while_versions_are_replaced(c, other):
    over, seen = threading.Event(), []

    def publish() -> None:
        version = 0
        while not over.is_set():
            version += 1
            w = np.full(64, version, "f8")
            # The memory that it is tied to has another name in every other version.
            first = {"emb": w} if version % 2 else {"emb": -w, "own": w}
            c.push_state("s", {**first, "head": w, "b": np.full(3, version, "f8")}, version=version)

    writer = threading.Thread(target=publish)
    writer.start()
    try:
        while len(seen) < 50:
            try:
                part = other.fetch_state("s", only=["head", "b"])
            except td.VersionGone:
                continue
            seen.append({float(value) for tensor in part.values() for value in tensor.numpy()} == {part.version})
    finally:
        over.set()
        writer.join()
    assert all(seen)


# Promise: gated-trees
def test_a_tree_is_gated_and_pushed_again(c, other):
    w = c.empty(4)
    w.numpy()[:] = 1
    assert c.push_state("s", {"m": {"w": w, "tied": w}, "step": 1}).report.copied == 0
    for step in (2, 3):
        taken = c.take_back_state("s")
        assert taken["m"]["w"] is taken["m"]["tied"] and taken["step"] == step - 1
        taken["m"]["w"].numpy()[:] = taken["step"] = step
        assert c.push_state("s", taken).report.copied == 0
        state = other.fetch_state("s", at_least=step)
        assert (state["m"]["tied"].numpy() == step).all() and state["step"] == step
        del state
    copies = c.take_back_state("s")
    assert c.push_state_snapshot("copy", copies).report.copied == 16
    assert not copies["m"]["w"].pushed and other.fetch_state("copy")["step"] == 3
    with pytest.raises(td.Invalid, match="which is the one of a state's record"):
        c.two_state_buffers("t", {"__tree__": (1, "uint8")})
    for name in (0, None):
        with pytest.raises(td.Invalid, match=f"entry 0 of the state 't' has the name {name}: a name is a text"):
            c.two_state_buffers("t", {name: (1, "uint8")})


# Entries that are one memory.


def ways(c: td.Client) -> dict[str, tuple[object, object, bool]]:
    """Two entries, and whether they are tied."""
    w = np.ones((512, 512), "f4")
    buffer = c.empty((512, 512))
    c.push("fetched", w)
    fetched = c.fetch("fetched")
    return {
        "an array": (w, w, True),
        "views that are the same": (w[:], w.T.T, True),
        "a buffer": (buffer, buffer, True),
        "a fetched tensor": (fetched, fetched, True),
        "transposed": (w, w.T, False),
        "other elements": (w[:256], w[256:], False),
        "another shape": (w, w.reshape(-1), False),
        "another type": (w, w.view("i4"), False),
        "another array": (w, w.copy(), False),
        "empty": (w[:0], w[:0], False),
        "equal bytes": (bytearray(8), bytearray(8), False),
    }


WAYS = ["an array", "views that are the same", "a buffer", "a fetched tensor", "transposed", "other elements", "another shape", "another type", "another array", "empty", "equal bytes"]


# Promise: ties
@pytest.mark.parametrize("which", WAYS)
def test_entries_of_one_memory_are_pushed_once_and_come_back_as_one(c, other, which):
    first, second, tied = ways(c)[which]
    owned = isinstance(first, td.Buffer)
    sizes = [memoryview(first).nbytes, memoryview(second).nbytes]
    report = c.push_state("t", {"emb": first, "head": second}).report
    assert report.copied == (0 if owned else sizes[0] if tied else sum(sizes))
    state = other.fetch_state("t")
    assert list(state) == ["emb", "head"] and (state["emb"] is state["head"]) == tied
    if tied:
        assert address(state["emb"].numpy()) == address(state["head"].numpy())
    # The other way round.
    into = {"head": np.zeros(state["head"].shape, state["head"].dtype), "emb": np.zeros(state["emb"].shape, state["emb"].dtype)}
    state.copy_into(into)
    assert all(np.array_equal(into[name], state[name].numpy()) for name in into)


# Promise: ties
def test_what_is_tied_moves_once_between_nodes(folder):
    with socket.socket() as one, socket.socket() as two:
        one.bind(("127.0.0.1", 0))
        two.bind(("127.0.0.1", 0))
        listen = [f"127.0.0.1:{end.getsockname()[1]}" for end in (one, two)]
    (folder / "a").mkdir()
    (folder / "b").mkdir()
    a = Sidecar(folder / "a", "--node", "a", "--listen", listen[0], "--shm", "off")
    b = Sidecar(folder / "b", "--node", "b", "--listen", listen[1], "--shm", "off", "--directory", f"http://{listen[0]}")
    w = np.ones((512, 512), "f4")
    with td.connect(a.path) as giver, td.connect(b.path) as taker:
        assert giver.push_state("t", {"emb": w, "head": w, "step": 3}).report.copied == 1 << 20
        state = taker.fetch_state("t")
        assert state["emb"] is state["head"] and state["step"] == 3 and (state["emb"].numpy() == 1).all()
        assert (1 << 20) < state.report.bytes < (1 << 20) + 4096 and state.report.fabric == "tcp"
        part = taker.fetch_state("t", only=["head"])
        assert (part["head"].numpy() == 1).all()
    b.stop()
    a.stop()
