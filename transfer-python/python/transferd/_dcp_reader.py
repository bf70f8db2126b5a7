"""The reader of checkpoints of torch's DCP: `transferd.checkpoint.TransferReader`."""

from __future__ import annotations

import io
import math
import os
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

from torch.distributed.checkpoint.metadata import Metadata
from torch.distributed.checkpoint.planner import LoadItemType, LoadPlan, LoadPlanner, ReadItem
from torch.distributed.checkpoint.storage import StorageReader
from torch.futures import Future

from . import _dcp_metadata, _native, _torch
from ._client import Client
from ._dcp_metadata import METADATA, Stored, plain
from ._dcp_metadata import prefix as prefix_of
from ._errors import Invalid
from ._native import Tensor
from ._plug import home

# How many bytes of slices are fetched at once: between nodes they have to fit the landing pool together.
_AT_ONCE = 32 << 20


class TransferReader(StorageReader):  # type: ignore[misc]
    """Loads checkpoints that `TransferWriter`s have saved, by the sidecar of this process, or that of `client`, which has to be that of the writers, or of one cluster with it.
    It fetches the slices that the load plan asks for, and nothing else. A checkpoint that is not there yet is waited for, `timeout` seconds."""

    def __init__(self, checkpoint_id: str | None = None, client: Client | None = None, *, timeout: float | None = 30.0) -> None:
        self.checkpoint_id = checkpoint_id
        _native._check_seconds("timeout", timeout)
        self._home, self._timeout = home(client, "dcp"), timeout
        self._stored: Mapping[Any, Stored] = {}

    def reset(self, checkpoint_id: str | os.PathLike[str] | None = None) -> None:
        if checkpoint_id is not None:
            prefix_of(checkpoint_id)
            self.checkpoint_id = str(checkpoint_id)

    def read_metadata(self) -> Metadata:
        key = prefix_of(self.checkpoint_id) + METADATA
        return _dcp_metadata.read(key, self._home.fetch_state(key, timeout=self._timeout))

    def set_up_storage_reader(self, metadata: Metadata, is_coordinator: bool) -> None:
        self._stored = metadata.storage_data

    def prepare_local_plan(self, plan: LoadPlan) -> LoadPlan:
        return plan

    def prepare_global_plan(self, plans: list[LoadPlan]) -> list[LoadPlan]:
        return plans

    def read_data(self, plan: LoadPlan, planner: LoadPlanner) -> Future[None]:
        for (key, version), parts in self._rounds(plan):
            slices = {part.stored.name: part.slices for part in parts}
            found = self._home.fetch_state(
                key,
                only=[name for name, of in slices.items() if of is None],
                slices={name: of for name, of in slices.items() if of is not None},
                exactly=version,
                timeout=self._timeout,
            )
            for part in parts:
                part.load(found[part.stored.name], planner)
        done: Future[None] = Future()
        done.set_result(None)
        return done

    @classmethod
    def validate_checkpoint_id(cls, checkpoint_id: str | os.PathLike[str]) -> bool:
        return isinstance(checkpoint_id, str) and checkpoint_id.startswith("transfer://")

    def _rounds(self, plan: LoadPlan) -> Iterator[tuple[tuple[str, int], list[_Part]]]:
        """The fetches of a plan: parts of one state, each tensor once, and not too much at once."""
        waiting: dict[tuple[str, int], list[_Part]] = {}
        for item in plan.items:
            if item.storage_index not in self._stored:
                raise Invalid(f"the checkpoint {self.checkpoint_id!r} has no {item.storage_index}")
            stored = self._stored[item.storage_index]
            for part in _parts(item, stored):
                group = waiting.setdefault((stored.key, stored.version), [])
                if any(other.stored.name == stored.name for other in group) or sum(other.nbytes for other in group) + part.nbytes > _AT_ONCE:
                    if group:
                        yield (stored.key, stored.version), list(group)
                        group.clear()
                group.append(part)
        yield from waiting.items()


class _Part(NamedTuple):
    """What is fetched for an item of a load plan: a tensor, or a slice of it."""

    item: ReadItem
    stored: Stored
    slices: tuple[slice, ...] | None
    """None is the whole."""
    into: tuple[slice, ...] = ()
    """The part of the target, where it is only one of several."""
    is_last: bool = True

    @property
    def nbytes(self) -> int:
        if self.slices is None:
            return self.stored.nbytes
        elements: int = math.prod(of.stop - of.start for of in self.slices)
        return self.stored.nbytes * elements // max(1, math.prod(self.stored.shape))

    def load(self, found: Tensor, planner: LoadPlanner) -> None:
        """Hands what was fetched to the planner."""
        if self.item.type == LoadItemType.BYTE_IO:
            planner.load_bytes(self.item, io.BytesIO(found.numpy().tobytes()))
            return
        target = planner.resolve_tensor(self.item).detach()
        into = plain(target)[self.into]
        if _torch.description(into) == (found.dtype, found.shape):
            _torch.assign(into, found)
        else:
            into.copy_(found.torch())
        if self.is_last:
            planner.commit_tensor(self.item, target)


def _parts(item: ReadItem, stored: Stored) -> Iterator[_Part]:
    offsets, lengths = tuple(item.storage_offsets), tuple(item.lengths)
    if item.type == LoadItemType.BYTE_IO or lengths == stored.shape or 0 in lengths:
        # Nothing is also a slice of nothing.
        yield _Part(item, stored, None if 0 not in lengths or item.type == LoadItemType.BYTE_IO else tuple(slice(0, 0) for _ in lengths))
        return
    whole = _Part(item, stored, tuple(slice(at, at + n) for at, n in zip(offsets, lengths)))
    assert whole.slices is not None
    # Of one that is large, rows of its first dimension that has several.
    dim = next((dim for dim, n in enumerate(lengths) if n > 1), 0)
    step = max(1, lengths[dim] * _AT_ONCE // max(whole.nbytes, 1))
    for begin in range(0, lengths[dim], step):
        end = min(begin + step, lengths[dim])
        slices = (*whole.slices[:dim], slice(offsets[dim] + begin, offsets[dim] + end), *whole.slices[dim + 1 :])
        yield _Part(item, stored, slices, (*(slice(None) for _ in range(dim)), slice(begin, end)), end == lengths[dim])
