"""Checkpoints of torch's DCP (2.15) in the memory of the job: `TransferWriter` and `TransferReader`. Importing this module imports torch.

    writer = TransferWriter()
    dcp.save(state, checkpoint_id="step-100", storage_writer=writer)
    dcp.load(state, checkpoint_id="step-100", storage_reader=TransferReader())
"""

from __future__ import annotations

import copy
import io
import math
import os
import threading
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

import torch
from torch.distributed.checkpoint.metadata import Metadata
from torch.distributed.checkpoint.planner import SavePlan, SavePlanner, WriteItemType
from torch.distributed.checkpoint.staging import AsyncStager
from torch.distributed.checkpoint.storage import StorageWriter, WriteResult
from torch.distributed.tensor import DTensor
from torch.futures import Future

from . import _calls, _dcp_metadata, _native, _torch, _tree
from ._client import Client
from ._dcp_metadata import METADATA, Stored, plain
from ._dcp_metadata import prefix as prefix_of
from ._dcp_reader import TransferReader
from ._errors import Error, Invalid
from ._native import Buffer
from ._plug import home, path_of, room, session, staged, unique

__all__ = ["TransferReader", "TransferWriter"]

# How many seconds the metadata of an earlier checkpoint may take, where another node has it. One that is complete takes no time.
_METADATA_SECONDS = 5.0


class _Kept(NamedTuple):
    """What a rank holds of one checkpoint: the sessions that have published it, each with its keys."""

    prefix: str
    published: list[tuple[Client, str]]


class _Shelf:
    """What one writer holds in one process. A writer that was pickled finds that of its process again."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.kept: list[_Kept] = []
        # Arenas of checkpoints that have ended: an arena costs as much as the copy.
        self.spare: list[Client] = []

    def arena(self, path: str, need: int) -> Client:
        """A session whose arena has so much room."""
        with self.lock:
            while self.spare:
                client = self.spare.pop()
                if not client.closed and not client.gone and client.arena_free_bytes >= need:
                    return client
                client.close()
        return session(path, need)

    def end(self, ended: list[_Kept]) -> None:
        """Ends checkpoints. Readers keep what they have fetched."""
        for kept in ended:
            self.kept.remove(kept)
            for client, key in kept.published:
                try:
                    client.delete(key)
                    self.spare.append(client)
                except Error:
                    client.close()

    def close(self) -> None:
        with self.lock:
            self.end(list(self.kept))
            while self.spare:
                self.spare.pop().close()


_shelves: dict[tuple[int, str], _Shelf] = {}


class TransferWriter(StorageWriter, AsyncStager):  # type: ignore[misc]
    """Saves checkpoints into the memory of the host, by the sidecar of this process, or that of `client`. Each rank has one, and publishes what the planner has given it,
    as one state.

    The writer owns what it has saved. The newest `keep` complete checkpoints stay; earlier ones end when the next one is saved, and all with `close()`
    or the end of the process: reading them raises `VersionGone`, or a `Timeout`. While one is saved there is memory for one more.

    It is also the `AsyncStager` of `dcp.async_save`, which uses it where no other is named: `stage` copies the tensors into the arena, and the save publishes
    that copy.
    """

    _synchronize_after_execute = False

    def __init__(self, checkpoint_id: str | None = None, client: Client | None = None, *, keep: int = 1) -> None:
        self.checkpoint_id = checkpoint_id
        self._keep = _native._whole("keep", keep, 1)
        self._home: Client | None = home(client, "dcp")
        self._given = client is not None
        self._path, self._name = path_of(self._home), unique()
        self._staging: tuple[Client, dict[int, Buffer]] | None = None

    def __getstate__(self) -> dict[str, Any]:
        # For DCP's process of its own. The sidecar stays with this one.
        return {**self.__dict__, "_home": None, "_staging": None}

    @property
    def _shelf(self) -> _Shelf:
        return _shelves.setdefault((os.getpid(), self._name), _Shelf())

    # What DCP calls

    def reset(self, checkpoint_id: str | os.PathLike[str] | None = None) -> None:
        if checkpoint_id is not None:
            prefix_of(checkpoint_id)
            self.checkpoint_id = str(checkpoint_id)

    def set_up_storage_writer(self, is_coordinator: bool, *args: Any, **kwargs: Any) -> None:
        prefix_of(self.checkpoint_id)
        if not kwargs.get("use_collectives", True):
            raise Invalid("TransferWriter has one metadata for all ranks: save with use_collectives=True")

    def prepare_local_plan(self, plan: SavePlan) -> SavePlan:
        return plan

    def prepare_global_plan(self, plans: list[SavePlan]) -> list[SavePlan]:
        return plans

    def write_data(self, plan: SavePlan, planner: SavePlanner) -> Future[list[WriteResult]]:
        self._end_earlier()
        prefix, shelf = prefix_of(self.checkpoint_id), self._shelf
        staging, self._staging = self._staging, None
        blobs = {at: planner.resolve_data(item) for at, item in enumerate(plan.items) if item.type == WriteItemType.BYTE_IO}
        names = [f"{at}/{item.index.fqn}"[:120] for at, item in enumerate(plan.items)]
        kept = _Kept(prefix, [])
        with shelf.lock:
            shelf.kept.append(kept)
        results: list[WriteResult] = []

        def publish(client: Client, buffers: dict[int, Buffer]) -> None:
            key = f"{prefix}{unique()}"
            kept.published.append((client, key))
            if buffers:
                # Views of what was staged are in DCP's hands, which only reads them.
                pushed = client.push_state(key, {names[at]: buffer for at, buffer in buffers.items()}, aliases="allow")
                for at, buffer in buffers.items():
                    stored = Stored(key, pushed.version, names[at], buffer.nbytes, buffer.shape)
                    results.append(WriteResult(plan.items[at].index, buffer.nbytes, stored))

        taken: dict[int, Buffer] = {}
        if staging is not None:
            for at, item in enumerate(plan.items):
                if at not in blobs and (buffer := _of_stage(planner.resolve_data(item), staging[1])) is not None:
                    taken[at] = buffer
            staging[1].clear()
            publish(staging[0], taken)
        rest = [at for at in range(len(plan.items)) if at not in taken]
        if rest:
            sizes = [blobs[at].getbuffer().nbytes if at in blobs else _nbytes(plan.items[at]) for at in rest]
            client = shelf.arena(self._path, room(sizes))
            publish(client, {at: staged(client, _bytes(blobs[at]) if at in blobs else plain(planner.resolve_data(plan.items[at]))) for at in rest})
        done: Future[list[WriteResult]] = Future()
        done.set_result(results)
        return done

    def finish(self, metadata: Metadata, results: list[list[WriteResult]]) -> None:
        metadata.storage_data = {result.index: result.storage_data for rank in results for result in rank}
        prefix, shelf = prefix_of(self.checkpoint_id), self._shelf
        key = prefix + METADATA
        flat = _tree.flatten(f"the metadata of {self.checkpoint_id!r}", _dcp_metadata.written(metadata))
        client = session(self._path, room([len(flat.record or b"")]))
        # One of this name may be another process's.
        _calls.wait(_calls.push_flat(client, key, flat, {"takeover": True}))
        with shelf.lock:
            next(kept for kept in reversed(shelf.kept) if kept.prefix == prefix).published.append((client, key))

    @classmethod
    def validate_checkpoint_id(cls, checkpoint_id: str | os.PathLike[str]) -> bool:
        return isinstance(checkpoint_id, str) and checkpoint_id.startswith("transfer://")

    # As a stager

    def stage(self, state_dict: dict[str, Any]) -> dict[str, Any]:
        """Copies a state into the arena, and returns it with tensors that share the arena's memory. Blocks until that is done."""
        if self._staging is not None:
            # Of a save that has failed, or that another process made.
            self._staging[1].clear()
            self._shelf.spare.append(self._staging[0])
            self._staging = None
        self._end_earlier()
        flat: dict[object, torch.Tensor] = {}
        for tensor in _tensors(state_dict):
            flat.setdefault(_torch.place(tensor) or id(tensor), tensor)
        client = self._shelf.arena(self._path, room(tensor.nbytes for tensor in flat.values()))
        views, buffers = {}, {}
        for place, tensor in flat.items():
            buffer = staged(client, tensor)
            views[place] = buffer.torch()
            buffers[views[place].data_ptr()] = buffer
        self._staging = client, buffers
        copied: dict[str, Any] = _with(state_dict, views)
        return copied

    def synchronize_staging(self) -> None:
        """Does nothing: `stage` has waited."""

    # What a program calls

    def delete(self, checkpoint_id: str) -> None:
        """Ends what this rank has of a checkpoint. One that it has not is no error."""
        prefix, shelf = prefix_of(checkpoint_id), self._shelf
        with shelf.lock:
            shelf.end([kept for kept in shelf.kept if kept.prefix == prefix])

    def close(self) -> None:
        """Ends all that this rank has saved, and gives the memory back."""
        if (shelf := _shelves.pop((os.getpid(), self._name), None)) is not None:
            shelf.close()
        if self._staging is not None:
            self._staging[0].close()
        if self._home is not None and not self._given:
            self._home.close()

    def _end_earlier(self) -> None:
        """Ends checkpoints but for the newest complete ones. Which ones are complete only their metadata says, for the other ranks may have failed."""
        shelf = self._shelf
        with shelf.lock:
            complete = [kept for kept in shelf.kept if self._is_complete(kept)]
            shelf.end([kept for kept in shelf.kept if kept not in complete[-self._keep :]])

    def _is_complete(self, kept: _Kept) -> bool:
        client = kept.published[0][0] if kept.published else None
        if client is None or client.closed:
            return False
        try:
            named = _dcp_metadata.keys(client.fetch_state(kept.prefix + METADATA, timeout=_METADATA_SECONDS))
        except Error:
            return False
        # The coordinator may have nothing but the metadata.
        return any(key in named or key == kept.prefix + METADATA for _, key in kept.published)


def _nbytes(item: Any) -> int:
    data = item.tensor_data
    size: int = math.prod(data.chunk.sizes) * data.properties.dtype.itemsize
    return size


def _bytes(blob: io.BytesIO) -> torch.Tensor:
    return torch.frombuffer(bytearray(blob.getbuffer()) or bytearray(1), dtype=torch.uint8)[: blob.getbuffer().nbytes]


def _of_stage(tensor: torch.Tensor, buffers: dict[int, Buffer]) -> Buffer | None:
    """The buffer that is exactly this tensor: the planner may have cut or cast it."""
    buffer = buffers.get(tensor.data_ptr())
    if buffer is None or not tensor.is_contiguous() or _torch.description(tensor) != (buffer.dtype, buffer.shape):
        return None
    del buffers[tensor.data_ptr()]
    return buffer


def _local(value: Any) -> Any:
    """The tensor of this process that a value of a state is, if it is one."""
    if isinstance(value, DTensor):
        with torch.no_grad():
            return value.to_local()
    return value if type(value) in (torch.Tensor, torch.nn.Parameter, torch.nn.Buffer) else None


def _tensors(value: Any) -> Iterator[torch.Tensor]:
    if isinstance(value, Mapping):
        for item in value.values():
            yield from _tensors(item)
    elif type(value) in (list, tuple):
        for item in value:
            yield from _tensors(item)
    elif (local := _local(value)) is not None:
        yield local


def _with(value: Any, views: Mapping[object, torch.Tensor]) -> Any:
    """A state with the staged tensors in place of its own, and copies of all else."""
    if isinstance(value, Mapping):
        return {key: _with(item, views) for key, item in value.items()}
    if type(value) in (list, tuple):
        return type(value)(_with(item, views) for item in value)
    if (local := _local(value)) is None:
        return copy.deepcopy(value)
    view = views[_torch.place(local) or id(local)]
    return DTensor(view, value._spec, requires_grad=False) if isinstance(value, DTensor) else view
