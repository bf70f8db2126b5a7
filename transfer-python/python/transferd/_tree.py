"""States as trees. The tensors of a state are those of its bundle. What else it is lies in its record, one more tensor of the bundle: JSON, and no
pickle, since any worker of the tenant can have written it."""

from __future__ import annotations

import base64
import json
import math
import re
import struct
import sys
from collections.abc import Callable, Iterable, Mapping
from typing import Any, NamedTuple, TypeVar

from . import _torch
from ._errors import Invalid
from ._native import Buffer, Tensor

B = TypeVar("B", Tensor, Buffer)
R = TypeVar("R")

RECORD = "__tree__"
"""The name of the record in its bundle. No tensor can have it."""
DEEPEST = 100
"""How many dicts, lists and tuples of a state can be inside of each other."""
LONGEST = 64 << 20
"""How many bytes the record of a state can have."""
MOST_MARKS = 2 << 20
"""How many brackets, braces and commas a record can have outside of its texts. A value in a list has one, and a tensor in a dict four."""
_KEYS = (str, int, float, bool, bytes, type(None))
_TEXTS = re.compile(b'"[^"]*"?')
_NO_MARKS = bytes(set(range(256)) - set(b"[]{},"))
_SHOWN = 200


class Flat(NamedTuple):
    """A state that is about to be pushed."""

    tensors: dict[str, Any]
    """Its tensors, by their names in the bundle: each memory once."""
    record: bytes | None
    """What makes the state of them, if it is more than a mapping of tensors."""


def flatten(where: str, state: Mapping[Any, object]) -> Flat:
    """Takes a state apart, which `where` names in errors."""
    if not isinstance(state, Mapping):
        raise TypeError(f"{where} is a {type(state).__name__}, where a mapping is needed")
    writer = _Writer(where)
    tree = writer.node(state, ())
    if list(writer.tensors) == list(state):
        return Flat(writer.tensors, None)
    record = json.dumps({"tree": tree, "ties": writer.ties}, separators=(",", ":")).encode()
    _check_size(f"the record of {where}", len(record), len(_marks(record)))
    return Flat(writer.tensors, record)


def check_names(where: str, names: Iterable[object]) -> None:
    """Raises where one of the names that tensors have there cannot be."""
    for at, name in enumerate(names):
        _check_name(f"entry {at} of {where}", name)


def _check_name(what: str, name: object) -> None:
    try:
        fits = isinstance(name, str) and 1 <= len(name.encode()) <= 512
    except UnicodeEncodeError:
        fits = False
    if not fits:
        raise Invalid(f"{what} has the name {name!r}: a name is a text of 1 to 512 bytes of UTF-8")
    if name == RECORD:
        raise Invalid(f"{what} has the name {name!r}, which is the one of a state's record: a tensor needs another one")


class _Writer:
    def __init__(self, where: str) -> None:
        self._where, self._entry = where, where
        self.tensors: dict[str, Any] = {}
        self.ties: dict[str, str] = {}
        """The names that tensors would have which are tied to others, and the names of those."""
        self._places: dict[object, str] = {}
        self._bytes, self._marks = 0, 0

    def _count(self, size: int, marks: int) -> None:
        """Counts what the record has at least. What lies there many times, as one list in two of them in two others, would be written for hours."""
        self._bytes, self._marks = self._bytes + size, self._marks + marks
        _check_size(f"the record of {self._where}", self._bytes, self._marks)

    def node(self, value: Any, path: tuple[Any, ...]) -> Any:
        """What stands for `value` in the record. An object of JSON has one entry there, which says what it is."""
        kind = type(value)
        if value is None or kind is bool:
            return value
        if kind in (str, bytes) and path:
            self._count(len(value), 0)
        if kind is int:
            if abs(value) < 1 << 63:
                return value
            # Longer ones take Python a time that is not linear to write in decimals.
            self._count(value.bit_length() // 4, 2)
            return {"int": hex(value)}
        if kind is float:
            return value if math.isfinite(value) else {"float": struct.pack("<d", value).hex()}
        if kind is str:
            # JSON joins halves of characters.
            return {"text": value.encode("utf-32-le", "surrogatepass").hex()} if _has_halves(value) else value
        if kind is bytes:
            return {"bytes": base64.b64encode(value).decode()}
        is_dict = isinstance(value, Mapping)
        if not is_dict and kind not in (list, tuple):
            self._count(0, 2)
            return {"tensor": self._tensor(value, path)}
        if len(path) >= DEEPEST:
            raise Invalid(f"{self._entry} has more than {DEEPEST} dicts, lists and tuples inside of each other")
        self._count(0, 2 * len(value) + 3 if is_dict else len(value) + 1)
        if not is_dict:
            nodes = [self.node(item, (*path, at)) for at, item in enumerate(value)]
            return nodes if kind is list else {"tuple": nodes}
        pairs = []
        for at, (name, item) in enumerate(value.items()):
            if not path:
                self._entry = f"entry {at} of {self._where}"
            if isinstance(name, str):
                # Also of a class of its own, as numpy's texts are.
                name = str.__str__(name)
            if type(name) not in _KEYS:
                inside = f", in {joined(path)!r}," if path else ""
                raise Invalid(f"{self._entry}{inside} has a key of the type {type(name).__qualname__}: keys are texts, numbers, bytes or None")
            pairs += [self.node(name, path), self.node(item, (*path, name))]
        return {"dict": pairs}

    def _tensor(self, value: Any, path: tuple[Any, ...]) -> str:
        """The name of a tensor in the bundle. It is that of another entry where both are the same memory."""
        name = joined(path)
        while name in self.tensors or name in self.ties:
            # Of the entry "a/b", and of "b" in the entry "a".
            name += "~"
        _check_name(self._entry, name)
        place = _place(value)
        if place in self._places:
            self.ties[name] = self._places[place]
        else:
            self._places[place], self.tensors[name] = name, value
        return self._places[place]


def joined(path: tuple[Any, ...]) -> str:
    """The name of what lies there in a state."""
    return "/".join(str.__str__(key) if isinstance(key, str) else _written(key) for key in path)


def shown(value: object) -> str:
    """A value as errors have it: one of an unknown length, which another worker has chosen."""
    return _cut(_written(value))


def _written(value: object) -> str:
    # Python writes no longer ones in decimals.
    return hex(value) if type(value) is int and value.bit_length() > 2048 else repr(value)


def _cut(text: str) -> str:
    return text if len(text) <= _SHOWN else f"{text[:_SHOWN]}... ({len(text)} characters)"


def _has_halves(text: str) -> bool:
    return not text.isascii() and any("\ud800" <= char <= "\udfff" for char in text)


def _place(value: Any) -> object:
    """What tensors have in common that are the same memory, seen in the same way, for as long as they live."""
    numpy = sys.modules.get("numpy")
    if _torch.is_tensor(value):
        return _torch.place(value) or id(value)
    if numpy is not None and type(value) is numpy.ndarray and value.size > 0:
        return value.__array_interface__["data"][0], value.dtype, value.shape, value.strides
    return id(value)


class _Bad(ValueError):
    """What no push has written."""


def restore(key: str, tensors: dict[str, B]) -> dict[Any, Any]:
    """The state that was pushed as this bundle: its tensors, or what its record makes of them."""
    record = tensors.pop(RECORD, None)
    return tensors if record is None else _read(key, record, lambda said: _state(said["tree"], tensors))


def of_record(key: str, record: Tensor, tensors: Mapping[str, B]) -> dict[Any, Any]:
    """What a record makes of these tensors."""
    return _read(key, record, lambda said: _state(said["tree"], tensors))


def ties(key: str, record: Tensor) -> dict[str, str]:
    """The names of entries that are the same memory as another one, which has the name that follows."""
    return _read(key, record, lambda said: {name: _tied_to(name, of) for name, of in _only(dict, said["ties"]).items()})


def _tied_to(name: str, of: Any) -> str:
    _check_name(f"what is tied to {shown(name)}", _only(str, of))
    return str(of)


def no_record(key: str, reason: str) -> Invalid:
    """The error of a record that cannot be."""
    return Invalid(f"the record {RECORD!r} of the state {key!r} was not written by push_state: {_cut(reason)}", key=key)


def _read(key: str, record: Tensor | Buffer, take: Callable[[dict[str, Any]], R]) -> R:
    try:
        _check_size("it", record.nbytes, 0)
        text = bytes(memoryview(record._raw())) if record.nbytes > 0 else b""
        return take(_only(dict, parsed(text)))
    except (ValueError, KeyError, struct.error, RecursionError) as error:
        raise no_record(key, f"it has no {error}" if isinstance(error, KeyError) else str(error)) from None


def parsed(text: bytes) -> Any:
    """What a record says, of any worker's bytes. Raises `ValueError` where they are no JSON, or would take too much to read."""
    _check_marks(_marks(text))
    return json.loads(text.decode())


def _marks(text: bytes) -> bytes:
    """The brackets, braces and commas of a record that are outside of its texts."""
    return _TEXTS.sub(b"", text.replace(b"\\\\", b"").replace(b'\\"', b"")).translate(None, _NO_MARKS)


def _check_size(what: str, size: int, marks: int) -> None:
    if size > LONGEST:
        raise Invalid(f"{what} has more than {LONGEST} bytes: push long texts and bytes as arrays, and tensors under shorter names")
    if marks > MOST_MARKS:
        raise Invalid(f"{what} has more than {MOST_MARKS} brackets and commas: push long lists of numbers as arrays")


def _check_marks(marks: bytes) -> None:
    """Raises where json.loads would take much memory, or end the process on its stack."""
    _check_size("it", 0, len(marks))
    depth = 0
    for mark in marks:
        depth += mark in b"[{"
        depth -= mark in b"]}"
        # A dict or a tuple is a list in an object; the whole is an object, and so is a tensor.
        if depth > 2 * DEEPEST + 4:
            raise _Bad(f"it has more than {DEEPEST} dicts, lists and tuples inside of each other")


def _only(kind: type, value: Any) -> Any:
    if type(value) is not kind:
        raise _Bad(f"a {type(value).__name__} is where a {kind.__name__} has to be")
    return value


def _state(tree: Any, tensors: Mapping[str, B]) -> dict[Any, Any]:
    state: dict[Any, Any] = _only(dict, _value(tree, tensors, 0))
    return state


def _value(node: Any, tensors: Mapping[str, B], depth: int) -> Any:
    """What a node of a record stands for."""
    if depth > DEEPEST:
        raise _Bad(f"it has more than {DEEPEST} dicts, lists and tuples inside of each other")
    if isinstance(node, list):
        return [_value(item, tensors, depth + 1) for item in node]
    if not isinstance(node, dict):
        return node
    if len(node) != 1:
        raise _Bad(f"an object has {len(node)} entries and not one")
    ((kind, said),) = node.items()
    if kind == "tensor":
        if _only(str, said) not in tensors:
            raise _Bad(f"the bundle has no tensor {said!r}")
        return tensors[said]
    if kind == "tuple":
        return tuple(_value(item, tensors, depth + 1) for item in _only(list, said))
    if kind == "dict":
        names = [_value(name, {}, depth) for name in _only(list, said)[::2]]
        if bad := [name for name in names if type(name) not in _KEYS]:
            raise _Bad(f"a {type(bad[0]).__name__} is a key")
        if len(said) % 2:
            raise _Bad("a key has no value")
        return {name: _value(item, tensors, depth + 1) for name, item in zip(names, said[1::2])}
    if kind == "float":
        return struct.unpack("<d", bytes.fromhex(_only(str, said)))[0]
    if kind == "text":
        return bytes.fromhex(_only(str, said)).decode("utf-32-le", "surrogatepass")
    if kind == "int":
        return int(_only(str, said), 16)
    if kind == "bytes":
        return base64.b64decode(_only(str, said), validate=True)
    raise _Bad(f"it has the unknown type {kind!r}")
