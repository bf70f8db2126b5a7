"""A state dict: many tensors that are one version."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from typing import Any

from . import _torch
from ._arrays import view
from ._errors import Invalid
from ._native import _PACKED, Buffer, Report, Tensor


class State(dict[str, Tensor]):
    """What `fetch_state` returns: the tensors by name, in the order in which they were pushed. All of them are of one version."""

    version: int
    """Their version."""
    report: Report
    """How the fetch of all of them went."""

    def __init__(self, tensors: dict[str, Tensor], version: int, report: Report) -> None:
        super().__init__(tensors)
        self.version, self.report = version, report

    def __repr__(self) -> str:
        return f"<State of {len(self)} tensors, version {self.version}>"

    def copy_into(self, into: Mapping[str, Any]) -> None:
        """Copies the tensors into arrays of the same names: of numpy, of torch, or `Buffer`s.

        Raises `KeyError` where one of the names is not there, and `ValueError` where a shape or an element type is another one, or where an
        array cannot be written: one that is read-only, broadcast, fetched, or pushed already. All arrays are checked before the first is
        written, so nothing was written then. Names that `into` does not have are left out.
        """
        if missing := [name for name in into if name not in self]:
            raise KeyError(f"the state has no {missing[0]!r} ({len(missing)} of {len(into)} names are missing)")
        targets = {}
        for name, target in into.items():
            try:
                targets[name] = _writable(target)
            except Invalid as error:
                raise Invalid(f"cannot copy into {name!r}: {error}") from None
            found, wanted = _description(self[name]), _description(target)
            if found != wanted:
                raise Invalid(f"{name!r} is {_words(found)} in the state and {_words(wanted)} where it shall be copied")
        for name, target in targets.items():
            _copy(self[name], target)


def _writable(target: Any) -> Any:
    """What a tensor is copied into: the array itself, or the memory of a buffer, which nothing can push meanwhile."""
    if isinstance(target, Buffer):
        if target.pushed:
            raise Invalid("the Buffer was pushed already")
        return memoryview(target._raw())
    if _torch.is_tensor(target):
        _torch.check_writable(target)
        return target
    numpy = sys.modules.get("numpy")
    if numpy is None or not isinstance(target, numpy.ndarray):
        raise Invalid(f"a {type(target).__qualname__} is not written: give an array of numpy, a tensor of torch or a Buffer")
    if not target.flags.writeable:
        raise Invalid("the array is read-only")
    if _torch.is_overlapping(target.shape, target.strides):
        raise Invalid("the array is broadcast: several of its elements lie at one address")
    return target


def _description(value: Any) -> tuple[str, tuple[int, ...]]:
    if _torch.is_tensor(value):
        return _torch.description(value)
    return str(getattr(value.dtype, "name", value.dtype)), tuple(value.shape)


def _words(description: tuple[str, tuple[int, ...]]) -> str:
    return f"{description[0]} {list(description[1])}"


def _copy(tensor: Tensor, target: Any) -> None:
    if isinstance(target, memoryview):
        if tensor.nbytes > 0:
            target[:] = memoryview(tensor._raw())
    elif _torch.is_tensor(target):
        import torch

        with torch.no_grad():
            if target.is_cuda:
                from ._gpu import copy_into

                copy_into(tensor, target)
            else:
                source = tensor.torch()
                if tensor.dtype in _PACKED:
                    # torch copies no pairs that are not contiguous.
                    source, target = source.view(torch.uint8), target.view(torch.uint8)
                target.copy_(source)
    else:
        target[...] = view(tensor)
