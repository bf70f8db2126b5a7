"""Where the targets lie that a state is copied into: no tensor shall overwrite another."""

from __future__ import annotations

import ctypes
import sys
from typing import Any, NamedTuple

from . import _torch
from ._errors import Invalid
from ._native import Buffer, Tensor


class Span(NamedTuple):
    """Where a target lies."""

    device: str
    start: int
    end: int
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    address: int
    size: int
    name: str
    tensor: Any

    def place(self) -> tuple[object, ...]:
        """What two targets have in common that are the same memory, seen in the same way."""
        return self[:5]


def address_of(target: Any) -> int:
    """Where the memory of a target on the host begins."""
    if isinstance(target, Buffer):
        return ctypes.addressof(ctypes.c_char.from_buffer(memoryview(target._raw())))
    return int(target.data_ptr() if _torch.is_tensor(target) else target.__array_interface__["data"][0])


def span_of(target: Any, name: str, tensor: Any) -> Span:
    """Where a target lies that can be written, and has elements."""
    device, size = "cpu", 1
    shape: tuple[int, ...] = (target.nbytes,)
    strides: tuple[int, ...] = (1,)
    if isinstance(target, Buffer):
        address = address_of(target)
    elif _torch.is_tensor(target):
        device, address, size, shape = str(target.device), target.data_ptr(), target.element_size(), tuple(target.shape)
        strides = tuple(stride * size for stride in target.stride())
    else:
        address, size, shape, strides = target.__array_interface__["data"][0], target.itemsize, target.shape, target.strides
    steps = [(n - 1) * stride for n, stride in zip(shape, strides)]
    start, last = address + sum(step for step in steps if step < 0), address + sum(step for step in steps if step > 0)
    return Span(device, start, last + size, shape, strides, address, size, name, tensor)


def check_apart(spans: list[Span]) -> None:
    """Raises where what is written to one target would be overwritten by what is written to another."""
    near: list[Span] = []
    for span in sorted(spans, key=lambda span: span[:3]):
        near = [other for other in near if other.device == span.device and other.end > span.start]
        for other in near:
            if _is_same(span, other) or not _shares(span, other):
                continue
            raise Invalid(f"{other.name} and {span.name} have memory in common where they shall be copied, and differ in the state: leave one out")
        near.append(span)


def _is_same(a: Span, b: Span) -> bool:
    """Whether both are the same target for the same values, as tied weights are."""
    if a.place() != b.place():
        return False
    if a.tensor is b.tensor:
        return True
    # Of one that is not there yet nothing is known.
    return isinstance(a.tensor, Tensor) and isinstance(b.tensor, Tensor) and memoryview(a.tensor._raw()) == memoryview(b.tensor._raw())


def _shares(a: Span, b: Span) -> bool:
    """Whether an element of the one lies in one of the other, as it does not in two ranges of the columns of a matrix."""
    if (numpy := sys.modules.get("numpy")) is None:
        return True
    try:
        return bool(numpy.shares_memory(*(numpy.asarray(_Layout(of)) for of in (a, b)), max_work=100_000))
    except numpy.exceptions.TooHardError:
        return True


class _Layout:
    """What numpy needs to know about memory that it does not touch."""

    def __init__(self, of: Span) -> None:
        at = {"data": (of.address, True), "shape": of.shape, "strides": of.strides, "typestr": f"|V{of.size}"}
        self.__array_interface__ = {**at, "version": 3}
