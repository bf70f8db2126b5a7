"""Values of TransferQueue as columns: tensors of one type lie behind each other in one, and all else is JSON in another.

Nothing is unpickled that another process has written, unless the settings of the backend say `pickle`.
"""

from __future__ import annotations

import json
import pickle
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import numpy
import torch
from tensordict import TensorDictBase

from .. import _torch, _tree
from .._client import Client
from .._errors import Invalid

TEXTS = -1
"""The number of the column of bytes in which everything lies that is no tensor."""
SCALAR = -1
"""Where a tensor without dimensions ends."""
_JSON, _PICKLE = b"J", b"P"


class Range(NamedTuple):
    """Where a tensor or a text lies: in the rows `start` to `stop` of a column."""

    column: int
    start: int
    stop: int

    @property
    def end(self) -> int:
        """The row behind its last one."""
        return self.start + 1 if self.stop == SCALAR else self.stop

    @classmethod
    def read(cls, said: Any) -> Range:
        """One inside of a value, which another process has written. Raises `ValueError` where it cannot be."""
        if isinstance(said, list) and len(said) == 3 and all(type(number) is int for number in said):
            found = cls(*said)
            if found.column >= 0 and found.start >= 0 and (found.stop == SCALAR or found.start <= found.stop):
                return found
        raise ValueError(f"{said!r} is no range of a column")


class Packer:
    """Values that are about to be published as one bundle."""

    def __init__(self, pickles: bool) -> None:
        self._pickles = pickles
        self._columns: dict[tuple[torch.dtype, torch.Size], tuple[int, list[torch.Tensor]]] = {}
        self._lengths: list[int] = []
        self._texts: list[bytes] = []
        self._text_bytes = 0
        self.ranges: list[Range] = []
        """Where each value lies that was added."""

    def add(self, key: str, value: Any) -> int:
        """Adds a value, which `key` names in errors. Answers how many bytes it has. Raises `TypeError` where it cannot be stored."""
        if isinstance(value, torch.Tensor) and not value.is_nested:
            self.ranges.append(self._tensor(value))
            return int(value.nbytes)
        text = self._text(key, value)
        self._texts.append(text)
        self.ranges.append(Range(TEXTS, self._text_bytes, self._text_bytes + len(text)))
        self._text_bytes += len(text)
        return len(text)

    def _tensor(self, value: torch.Tensor) -> Range:
        if type(value) is not torch.Tensor or value.layout is not torch.strided:
            _torch.check(value)
        if value.dim() == 0:
            column, start = self._append(value.reshape(1), 1)
            return Range(column, start, SCALAR)
        rows = value.shape[0]
        column, start = self._append(value, rows)
        return Range(column, start, start + rows)

    def _append(self, value: torch.Tensor, rows: int) -> tuple[int, int]:
        kind = (value.dtype, value.shape[1:])
        if (found := self._columns.get(kind)) is None:
            found = self._columns[kind] = (len(self._lengths), [])
            self._lengths.append(0)
        column, values = found
        values.append(value if value.device.type == "cpu" else value.cpu())
        start = self._lengths[column]
        self._lengths[column] += rows
        return column, start

    def _text(self, key: str, value: Any) -> bytes:
        """A value that is no tensor, with the tensors inside of it in columns."""
        writer = _Writer(f"the value of {key!r}")
        try:
            node = writer.node(value, ("value",))
            said = {name: self._said(writer.where, found) for name, found in writer.tensors.items()}
        except (TypeError, Invalid) as error:
            if not self._pickles:
                raise TypeError(
                    f"{error}: store tensors, arrays, numbers, texts, bytes, dicts, lists and tuples, or set `pickle` of the backend to true"
                ) from None
            return _PICKLE + pickle.dumps(value, protocol=pickle.HIGHEST_PROTOCOL)
        return _JSON + json.dumps({"with": [said, node]} if said else node, separators=(",", ":")).encode()

    def _said(self, where: str, value: Any) -> Any:
        """What stands for a tensor or an array inside of a value."""
        if isinstance(value, torch.Tensor):
            if not value.is_nested:
                return self._tensor(value)
            parts = [self._tensor(part) for part in value.unbind()]
            return {"nested": ["jagged" if value.layout is torch.jagged else "strided", parts]}
        if isinstance(value, (numpy.ndarray, numpy.generic)) and not value.dtype.hasobject:
            array = numpy.asarray(value, order="C")
            rows = torch.from_numpy(numpy.frombuffer(array.tobytes(), "uint8").copy()) if array.size else torch.empty(0, dtype=torch.uint8)
            return {"numpy": [array.dtype.str, list(array.shape), isinstance(value, numpy.generic), self._tensor(rows)]}
        raise TypeError(f"{where} has a {type(value).__module__}.{type(value).__qualname__}, which is not stored without pickle")

    def write(self, client: Client, timeout: float) -> dict[str, Any]:
        """The columns, written into the arena, each value once: a state for a push."""
        state: dict[str, Any] = {}
        with torch.no_grad():
            for (dtype, inner), (column, values) in self._columns.items():
                buffer = client.empty((self._lengths[column], *inner), dtype, timeout=timeout)
                target = buffer.torch()
                if target.numel():
                    if dtype.itemsize == 1:
                        # torch joins no floats of 8 bits.
                        target, values = target.view(torch.uint8), [value.view(torch.uint8) for value in values]
                    torch.cat(values, out=target)
                del target
                state[str(column)] = buffer
        if self._texts:
            buffer = client.empty(self._text_bytes, "uint8", timeout=timeout)
            memoryview(buffer)[:] = b"".join(self._texts)
            state[str(TEXTS)] = buffer
        return state


class _Writer(_tree._Writer):
    """Takes a value apart as a state is taken apart."""

    def __init__(self, where: str) -> None:
        super().__init__(where)
        self.where = where

    def node(self, value: Any, path: tuple[Any, ...]) -> Any:
        if isinstance(value, TensorDictBase):
            # It is a mapping, and would come back as a dict.
            raise TypeError(f"{self.where} has a {type(value).__name__}, which is not stored without pickle")
        return super().node(value, path)


Columns = Callable[[Range], Any]
"""Looks a range up, of which the column is there: its rows, as a tensor of torch."""


class Text:
    """A value that is no tensor, as it was stored."""

    def __init__(self, key: str, text: bytes, pickles: bool) -> None:
        self._key, self._pickles = key, pickles
        self._kind, self._text = text[:1], text[1:]
        self._said, self._node = {}, None
        if self._kind == _PICKLE:
            return
        try:
            self._node = _tree.parsed(self._text)
            if isinstance(self._node, dict) and list(self._node) == ["with"]:
                said, self._node = self._node["with"]
                self._said = {name: _reference(of) for name, of in dict(said).items()}
        except (ValueError, TypeError, RecursionError) as error:
            raise self._wrong(error) from None

    def ranges(self) -> Iterator[Range]:
        """The ranges of the tensors inside of it."""
        for _, parts in self._said.values():
            yield from parts

    def value(self, columns: Columns) -> Any:
        """The value, once these ranges are there. Raises `Invalid` where it is nothing that was stored."""
        if self._kind == _PICKLE:
            if not self._pickles:
                raise Invalid(f"the value of {self._key!r} was stored with pickle: set `pickle` of the backend to true where it is read, too")
            return pickle.loads(self._text)
        try:
            tensors = {name: make([columns(part) for part in parts]) for name, (make, parts) in self._said.items()}
            return _tree._value(self._node, tensors, 0)
        except (ValueError, TypeError, KeyError, RuntimeError, RecursionError) as error:
            raise self._wrong(error) from None

    def _wrong(self, error: Exception) -> Invalid:
        return Invalid(f"what lies under {self._key!r} was not stored by transferd.transfer_queue: {error}", key=self._key)


def _reference(said: Any) -> tuple[Callable[[list[Any]], Any], list[Range]]:
    """What makes a tensor or an array inside of a value, and the ranges of which it is made."""
    if isinstance(said, list):
        return lambda parts: parts[0], [Range.read(said)]
    ((kind, about),) = said.items()
    if kind == "nested":
        layout, parts = about
        return lambda found: torch.nested.as_nested_tensor(found, layout=getattr(torch, layout)), [Range.read(part) for part in parts]
    if kind != "numpy":
        raise ValueError(f"{kind!r} is no kind of a tensor")
    dtype, shape, scalar, part = about
    element = numpy.dtype(dtype)
    if element.hasobject:
        raise ValueError(f"an array of {dtype!r} has objects of Python")

    def array(found: list[Any]) -> Any:
        made = numpy.frombuffer(found[0].numpy().tobytes(), element).reshape(shape).copy()
        return made[()] if scalar else made

    return array, [Range.read(part)]
