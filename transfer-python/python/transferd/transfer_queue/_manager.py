"""The backend as TransferQueue's factories know it: how it is started, and its storage manager."""

from __future__ import annotations

import itertools
import os
import uuid
from typing import Any

import torch
from omegaconf import OmegaConf
from tensordict import TensorDict
from transfer_queue.storage.bootstrap import StorageBootstrapProvider
from transfer_queue.storage.managers.base import KVStorageManager, StorageManagerFactory

from .. import ray as _ray
from ..ray._places import here
from . import _client
from ._settings import Settings

BACKEND = "transferd"

# The start of TransferQueue for which this process has started sidecars, until its client, which is the first one, is made.
_started: set[str] = set()


@StorageBootstrapProvider.register_provider(BACKEND)  # type: ignore[untyped-decorator]
def bootstrap(conf: Any) -> Any:
    """Starts a sidecar on each node where none is named and none runs for this job. TransferQueue calls it in the first `tq.init`."""
    settings = Settings.read(conf.backend.get(BACKEND))
    settings.run = uuid.uuid4().hex[:8]
    if settings.path is None:
        place = here()
        settings.job = place.job
        if not (place.folder.is_there() and place.folder.answers()):
            _ray.init(sidecar=settings.sidecar, timeout=max(60.0, settings.timeout))
            _started.add(settings.run)
    conf.backend[BACKEND] = OmegaConf.structured(settings)
    return _client.ledger(settings.run)


@StorageManagerFactory.register(BACKEND)
class TransferdManager(KVStorageManager):  # type: ignore[misc]
    """TransferQueue's manager of key-value backends, which joins columns that lie in one piece without a copy."""

    def __init__(self, controller_info: Any, config: Any, zmq_context: Any = None) -> None:
        super().__init__(controller_info, {**(config or {}), "client_name": _client.NAME}, zmq_context=zmq_context)
        run = Settings.read(config).run
        # The process whose sidecars end with this manager; a child that is forked from it inherits the manager.
        self._process = os.getpid() if run in _started else None
        _started.discard(run)

    async def put_data(self, data: Any, metadata: Any, data_parser: Any = None) -> None:
        fields = sorted(field for field in data.keys())
        before = [
            (f"{index}@{field}", stored)
            for field, (index, known) in itertools.product(fields, zip(metadata.global_indexes, metadata._custom_backend_meta))
            if (stored := known.get(field)) is not None
        ]
        await super().put_data(data, metadata, data_parser)
        if before:
            # What these samples had in these fields.
            keys, stored = zip(*before)
            self.storage_client.clear(list(keys), custom_backend_meta=list(stored))

    def _merge_tensors_to_tensordict(self, metadata: Any, values: list[Any]) -> Any:
        samples, fields = len(metadata.global_indexes), sorted(metadata.field_names)
        chunks = {field: values[at * samples : (at + 1) * samples] for at, field in enumerate(fields)}
        joined = {field: found for field, chunk in chunks.items() if (found := _joined(chunk)) is not None}
        if not joined:
            return super()._merge_tensors_to_tensordict(metadata, values)
        if others := [field for field in fields if field not in joined]:
            rest = [value for field in others for value in chunks[field]]
            joined.update(super()._merge_tensors_to_tensordict(metadata.select_fields(others), rest).items())
        return TensorDict(joined, batch_size=samples)

    def close(self) -> None:
        super().close()
        if (client := getattr(self, "storage_client", None)) is not None and not client.closed:
            client.close()
            if self._process == os.getpid():
                # All that was put ends with the sidecars, as it does with the storage units of TransferQueue.
                _ray.shutdown()


def _joined(chunk: list[Any]) -> Any:
    """What `torch.nested.as_nested_tensor` makes of these tensors, of the memory where they lie, if they lie behind each other."""
    first = chunk[0] if chunk else None
    if not isinstance(first, torch.Tensor) or first.dim() == 0 or first._base is None or not first.is_contiguous():
        return None
    base, position, inner = first._base, first.storage_offset(), first.shape[1:]
    lengths = []
    for value in chunk:
        if not isinstance(value, torch.Tensor) or value._base is not base or value.storage_offset() != position or value.shape[1:] != inner:
            return None
        position += value.numel()
        lengths.append(value.shape[0])
    if base.dim() != first.dim() or inner.numel() == 0:
        return None
    start = first.storage_offset() // inner.numel()
    offsets = torch.tensor([0, *itertools.accumulate(lengths)])
    rows = base[start : start + sum(lengths)]
    return torch.nested.nested_tensor_from_jagged(rows, offsets, min_seqlen=min(lengths), max_seqlen=max(lengths))
