"""States of torchft: what is sent of one, and how one is put together of the buckets that come."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch.distributed.tensor import DTensor

from . import _torch, _tree
from ._arrays import foreign
from ._dtensors import Meshes, describe
from ._errors import Invalid
from ._native import Report, Tensor
from ._state import copy_tensor

BUCKETS = "buckets"
"""The name of the tensor that says which versions the buckets of a state are."""
# What a fetch over these brings is memory of this host, which takes no room of a landing pool.
_BY_REFERENCE = ("local", "shm")


def flattened(where: str, state: object) -> _tree.Flat:
    """The tensors of a state, each memory once, and its record, which also describes the DTensors: what is sent of one is its local tensor."""
    dtensors: list[Any] = []
    tensors, record = _tree.flatten(where, {"state": _local(where, state, (), dtensors), "dtensors": dtensors})
    for name, value in tensors.items():
        # What cannot be sent is refused before a receiver sees the rest.
        if not isinstance(value, torch.Tensor):
            foreign(value, where, name, lambda of: of)
            continue
        try:
            _torch.check(value)
        except Invalid as error:
            raise Invalid(f"{name!r} of {where}: {error}") from None
    return _tree.Flat(tensors, record)


def _local(where: str, value: Any, path: tuple[Any, ...], dtensors: list[Any]) -> Any:
    """What is at `path` of a state, with local tensors in place of DTensors, whose descriptions are added to `dtensors`."""
    if isinstance(value, DTensor):
        try:
            dtensors.append([list(path), describe(value)])
        except Invalid as error:
            raise Invalid(f"{_tree.joined(path)!r} of {where} is a DTensor that is not sent: {error}") from None
        with torch.no_grad():
            return value.to_local()
    if isinstance(value, Mapping):
        return {key: _local(where, item, (*path, key), dtensors) for key, item in value.items()}
    if type(value) in (list, tuple):
        return type(value)(_local(where, item, (*path, at), dtensors) for at, item in enumerate(value))
    return value


class Landing:
    """A state that comes in buckets, into the tensors of `into` where that has them."""

    def __init__(self, key: str, head: dict[str, Tensor], into: object) -> None:
        self._key = key
        try:
            first, count = head.pop(BUCKETS).torch().tolist()
            self.buckets = range(first, first + count)
            """Their versions."""
            self._record = head.pop(_tree.RECORD)
        except (KeyError, TypeError, ValueError) as error:
            raise self._foreign(error) from None
        self._targets = {} if into is None else flattened("the state that state_dict() has returned", into).tensors
        self._landed: dict[str, Any] = {}

    def add(self, bucket: dict[str, Tensor], report: Report) -> None:
        """Takes the tensors of a bucket, which came as `report` says."""
        for name, tensor in bucket.items():
            target = self._targets.get(name)
            if isinstance(target, torch.Tensor):
                copy_tensor(tensor, target, name)
                self._landed[name] = target
            else:
                self._landed[name] = tensor.torch() if report.fabric in _BY_REFERENCE else _torch.copy_of(tensor)

    def state(self) -> Any:
        """The state, once all buckets are there."""
        found = _tree.restore(self._key, {**self._landed, _tree.RECORD: self._record})
        try:
            said, state = found["dtensors"], found["state"]
            dtensors = {tuple(path): description for path, description in said}
        except (KeyError, TypeError, ValueError) as error:
            raise self._foreign(error) from None
        return _global(state, (), dtensors, Meshes())

    def _foreign(self, error: Exception) -> Invalid:
        return Invalid(f"the state {self._key!r} was not sent by a TransferTransport: {error!r}", key=self._key)


def _global(value: Any, path: tuple[Any, ...], dtensors: Mapping[Any, Any], meshes: Meshes) -> Any:
    """What is at `path` of a received state, with the DTensors that were sent."""
    if path in dtensors:
        return meshes.rebuilt(value, dtensors[path])
    if isinstance(value, dict):
        return {name: _global(item, (*path, name), dtensors, meshes) for name, item in value.items()}
    if isinstance(value, (list, tuple)):
        return type(value)(_global(item, (*path, at), dtensors, meshes) for at, item in enumerate(value))
    return value
