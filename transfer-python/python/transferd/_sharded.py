"""Sharded states: boxes of global tensors that ranks push, and what other layouts are of them."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from . import _tree
from ._errors import Invalid
from ._native import Tensor

MANIFEST, LAYOUTS = "__ranks__", "__layouts__"
"""The names of the only tensors that the version of a sharded state has in its bundle."""
TREE = "__tree__@rank-"
"""What the names of the records begin with that say what a state is beside its tensors: one of each rank that has such a record."""


class Shard:
    """A box of a global tensor: `tensor` is the part of a tensor of `global_shape` that begins at `offset`, an index of each dimension."""

    __slots__ = ("tensor", "global_shape", "offset")

    def __init__(self, tensor: object, global_shape: Sequence[int], offset: Sequence[int]) -> None:
        self.tensor, self.global_shape, self.offset = tensor, tuple(global_shape), tuple(offset)

    def __repr__(self) -> str:
        return f"<Shard at {list(self.offset)} of {list(self.global_shape)}>"


class Piece(NamedTuple):
    """A part of a global tensor, in memory of this process."""

    tensor: Any
    global_shape: tuple[int, ...] | None
    """None: that of the tensor, which is all of it."""
    offset: tuple[int, ...]


class Place(NamedTuple):
    """Where the local part of a distributed tensor lies in it."""

    global_shape: tuple[int, ...]
    offset: tuple[int, ...]
    shape: tuple[int, ...]

    def slices(self) -> tuple[slice, ...]:
        return tuple(slice(start, start + length) for start, length in zip(self.offset, self.shape))


def world(rank: int | None, world_size: int | None) -> tuple[int, int]:
    """The rank and the number of ranks of this process. What is not given is taken from torch.distributed."""
    if rank is None or world_size is None:
        torch = sys.modules.get("torch")
        distributed = None if torch is None else torch.distributed
        if distributed is None or not distributed.is_available() or not distributed.is_initialized():
            raise Invalid("a sharded state needs rank= and world_size=, since torch.distributed is not initialized in this process")
        rank = distributed.get_rank() if rank is None else rank
        world_size = distributed.get_world_size() if world_size is None else world_size
    if not 0 <= rank < world_size <= 16_384:
        raise Invalid(f"rank {rank} of {world_size}: a state has 1 to 16384 ranks, counted from 0")
    return rank, world_size


def attempt(key: str, restart: object) -> int:
    """The number of the job's attempt. `True` would be 1 at every attempt."""
    if isinstance(restart, int) and not isinstance(restart, bool) and 0 <= restart < 2**64:
        return restart
    raise Invalid(
        f"restart={restart!r} of the sharded state {key!r} has to be the number of the job's attempt, a whole number from 0 to 2**64 - 1, the same one at all ranks"
    )


def is_distributed(value: object) -> bool:
    """Whether this is a DTensor of torch."""
    module = sys.modules.get("torch.distributed.tensor")
    return module is not None and isinstance(value, module.DTensor)


def _is_jax(value: object) -> bool:
    jax = sys.modules.get("jax")
    return jax is not None and isinstance(value, jax.Array)


def place_of(name: str, tensor: Any) -> Place:
    """Where the local part of a DTensor lies."""
    from torch.distributed.tensor._utils import compute_local_shape_and_global_offset

    for placement in tensor.placements:
        if placement.is_partial():
            raise Invalid(
                f"{name} is a DTensor with the placement {placement}: no rank has values of it, only terms of a sum; redistribute it"
                " to Shard or Replicate first"
            )
    shape, offset = compute_local_shape_and_global_offset(tensor.shape, tensor.device_mesh, tensor.placements)
    return Place(tuple(tensor.shape), tuple(offset), tuple(shape))


def pieces(name: str, value: object) -> Iterator[Piece]:
    """The parts of an entry of a state that this rank pushes."""
    if isinstance(value, Shard):
        yield Piece(value.tensor, value.global_shape, value.offset)
    elif is_distributed(value):
        place = place_of(name, value)
        local: Any = value.to_local()  # type: ignore[attr-defined]
        if tuple(local.shape) != place.shape:
            raise Invalid(f"{name} is a DTensor whose local part is {list(local.shape)}, and its placements say {list(place.shape)}")
        yield Piece(local, place.global_shape, place.offset)
    elif _is_jax(value) and not value.is_fully_replicated:  # type: ignore[attr-defined]
        for shard in value.addressable_shards:  # type: ignore[attr-defined]
            # Of a box that several devices have, one is enough.
            if shard.replica_id == 0:
                yield Piece(shard.data, tuple(value.shape), tuple(part.start or 0 for part in shard.index))  # type: ignore[attr-defined]
    else:
        yield Piece(value, None, ())


def has_shards(state: object) -> bool:
    """Whether a state has a `Shard` or a DTensor. It may be of any depth, and refer to one thing many times: `flatten` checks that."""
    left: list[Any] = [state]
    seen: set[int] = set()
    while left:
        value = left.pop()
        if isinstance(value, Shard) or is_distributed(value):
            return True
        if isinstance(value, Mapping) or type(value) in (list, tuple):
            if id(value) not in seen:
                seen.add(id(value))
                left.extend(value.values() if isinstance(value, Mapping) else value)
    return False


def targets(into: Mapping[Any, Any]) -> dict[str, object] | None:
    """The slices of global tensors that the entries of `into` have, if one of them is a DTensor."""
    if not any(is_distributed(value) for value in into.values()):
        return None
    return {name: place_of(f"{name!r} of into=", value).slices() or None if is_distributed(value) else None for name, value in into.items()}


def local_parts(into: Mapping[Any, Any]) -> dict[Any, Any]:
    """`into` with the local part of each DTensor in its place."""
    return {name: value.to_local() if is_distributed(value) else value for name, value in into.items()}


def slices_of(layout: Mapping[str, object]) -> dict[str, object]:
    """The slices that a layout takes of global tensors: each entry is a DTensor, a pair of offset and shape, or None for all."""
    slices: dict[str, object] = {}
    for name, entry in layout.items():
        if is_distributed(entry):
            slices[name] = place_of(f"{name!r} of layout=", entry).slices() or None
        elif entry is None:
            slices[name] = None
        else:
            try:
                pair: Any = entry
                offset, shape = pair
                place = Place((), tuple(map(int, offset)), tuple(map(int, shape)))
            except (TypeError, ValueError):
                raise Invalid(f"{name!r} of layout= is a DTensor, a pair of offset and shape, or None; this is {entry!r}") from None
            if len(place.offset) != len(place.shape):
                raise Invalid(f"{name!r} of layout= has an offset of {len(place.offset)} dimensions and a shape of {len(place.shape)}")
            slices[name] = place.slices() or None
    return slices


def restore(key: str, tensors: dict[str, Tensor]) -> dict[Any, Any]:
    """The state that ranks have pushed: its tensors, or what the records of the ranks make of them."""
    records = [tensors.pop(name) for name in list(tensors) if name.startswith(TREE)]
    if not records:
        return tensors
    states = [_tree.of_record(key, record, tensors) for record in records]
    used: set[int] = set()
    for state in states:
        _collect(state, used)
    # Those of ranks whose part is a mapping of tensors and nothing else.
    flat = {name: tensor for name, tensor in tensors.items() if id(tensor) not in used}
    return merged([*states, flat])


def _collect(value: object, used: set[int]) -> None:
    if isinstance(value, dict):
        for item in value.values():
            _collect(item, used)
    elif isinstance(value, (list, tuple)):
        for item in value:
            _collect(item, used)
    else:
        used.add(id(value))


def merged(states: Sequence[dict[Any, Any]]) -> dict[Any, Any]:
    """One state of those that ranks have pushed: what several have is that of the first."""
    first, *others = states
    for other in others:
        for name, value in other.items():
            mine = first.get(name)
            if isinstance(mine, dict) and isinstance(value, dict):
                first[name] = merged([mine, value])
            elif name not in first:
                first[name] = value
    return first
