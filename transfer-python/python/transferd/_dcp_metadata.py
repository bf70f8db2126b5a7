"""The metadata of a checkpoint of torch's DCP as what a state holds: numbers, texts and what the planner has added, and no pickle."""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

import torch
from torch.distributed.checkpoint.metadata import (
    BytesStorageMetadata,
    ChunkStorageMetadata,
    Metadata,
    MetadataIndex,
    TensorProperties,
    TensorStorageMetadata,
)

from . import _torch
from ._errors import Invalid
from ._native import _DTYPES, _PACKED

# A version of what is written here.
_FORMAT = 1
_MEMORY_FORMATS = {str(known): known for known in (torch.contiguous_format, torch.channels_last, torch.preserve_format)}


METADATA = ".metadata"
"""What follows the prefix in the key of a checkpoint's metadata."""


def prefix(checkpoint_id: str | os.PathLike[str] | None) -> str:
    """What the keys of a checkpoint begin with."""
    if not isinstance(checkpoint_id, str) or not (name := checkpoint_id.removeprefix("transfer://").strip("/")):
        raise Invalid(f'checkpoint_id is a text that names the checkpoint, such as "run-7/step-100"; this is {checkpoint_id!r}')
    return f"dcp/{name}/"


def plain(tensor: torch.Tensor) -> torch.Tensor:
    """Pairs of 4 bits as bytes: torch copies no pairs, and DCP counts them."""
    return tensor.view(torch.uint8) if _torch.description(tensor)[0] in _PACKED else tensor


class Stored(NamedTuple):
    """Where an item of a checkpoint is."""

    key: str
    version: int
    name: str
    """The tensor's name in the state of that key."""
    nbytes: int
    shape: tuple[int, ...]


def written(metadata: Metadata) -> dict[str, Any]:
    """The state that stands for a checkpoint's metadata, whose `storage_data` says where each item is."""
    entries = {name: _entry(name, entry) for name, entry in metadata.state_dict_metadata.items()}
    stored = [[i.fqn, i.offset and list(i.offset), i.index, *where[:4], list(where.shape)] for i, where in metadata.storage_data.items()]
    return {"format": _FORMAT, "entries": json.dumps(entries), "stored": json.dumps(stored), "planner": metadata.planner_data}


def keys(state: Mapping[str, Any]) -> set[str]:
    """The keys that a checkpoint's metadata names."""
    return {where[3] for where in json.loads(state["stored"])}


def read(key: str, state: Mapping[str, Any]) -> Metadata:
    """The metadata that a state stands for, which another worker has written: each part is checked."""
    try:
        if state["format"] != _FORMAT:
            raise ValueError(f"its format is {state['format']}, and {_FORMAT} is read")
        entries = {name: _metadata(entry) for name, entry in json.loads(state["entries"]).items()}
        return Metadata(entries, planner_data=state["planner"], storage_data=dict(_stored(json.loads(state["stored"]))))
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise Invalid(f"{key!r} is no metadata of a checkpoint: {error!r}", key=key) from None


def _entry(name: str, entry: Any) -> Any:
    if isinstance(entry, BytesStorageMetadata):
        return None
    properties = entry.properties
    if properties.layout is not torch.strided or str(properties.memory_format) not in _MEMORY_FORMATS:
        raise Invalid(f"{name!r} has the layout {properties.layout} and {properties.memory_format}, which is not saved: only strided tensors are")
    return {
        "dtype": str(properties.dtype).removeprefix("torch."),
        "grad": properties.requires_grad,
        "memory_format": str(properties.memory_format),
        "pinned": properties.pin_memory,
        "strides": properties.strides and list(properties.strides),
        "size": list(entry.size),
        "chunks": [[list(chunk.offsets), list(chunk.sizes)] for chunk in entry.chunks],
    }


def _metadata(entry: Any) -> Any:
    if entry is None:
        return BytesStorageMetadata()
    if entry["dtype"].removesuffix("_x2") not in _DTYPES:
        raise ValueError(f"{entry['dtype']!r} is no element type")
    strides = entry["strides"]
    properties = TensorProperties(
        dtype=getattr(torch, entry["dtype"]),
        requires_grad=bool(entry["grad"]),
        memory_format=_MEMORY_FORMATS[entry["memory_format"]],
        pin_memory=bool(entry["pinned"]),
        strides=None if strides is None else tuple(strides),
    )
    chunks = [ChunkStorageMetadata(torch.Size(offsets), torch.Size(sizes)) for offsets, sizes in entry["chunks"]]
    return TensorStorageMetadata(properties, torch.Size(entry["size"]), chunks)


def _stored(entries: Any) -> Iterable[tuple[MetadataIndex, Stored]]:
    for fqn, offset, index, key, version, name, nbytes, shape in entries:
        if [type(value) for value in (fqn, key, version, name, nbytes)] != [str, str, int, str, int]:
            raise ValueError(f"{fqn!r} is nowhere")
        yield MetadataIndex(fqn, offset, index), Stored(key, version, name, nbytes, tuple(shape))
