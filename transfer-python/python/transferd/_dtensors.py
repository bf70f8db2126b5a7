"""DTensors of torch 2.15 as what a state holds: their local tensors, and descriptions of numbers and texts, which are checked where they are read.

What is private to torch here: the specification of a DTensor, which has no public constructor, and a mesh without process groups. torchft's own transports
pickle both.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor, Partial, Placement, Replicate, Shard
from torch.distributed.tensor._dtensor_spec import DTensorSpec, TensorMeta
from torch.distributed.tensor.placement_types import _StridedShard

from ._errors import Invalid


def describe(tensor: Any) -> dict[str, Any]:
    """The description of a DTensor, to which `rebuilt` adds the local tensor. Raises `Invalid` where it has no description."""
    spec = tensor._spec
    strided = any(isinstance(placement, _StridedShard) for placement in spec.placements)
    if not strided and not DTensorSpec.is_default_device_order(spec.shard_order):
        raise Invalid("it is sharded in another order than that of the mesh's dimensions: redistribute it first")
    mesh, root = spec.mesh, spec.mesh._get_root_mesh()
    return {
        "device": mesh.device_type,
        "ranks": root.mesh.tolist(),
        "names": _names(root),
        # Those of its dimensions that the mesh has, if it is a part of a larger one.
        "part": None if mesh == root else _names(mesh),
        "placements": [_written(placement) for placement in spec.placements],
        "shape": list(tensor.shape),
        "stride": list(tensor.stride()),
    }


def _names(mesh: Any) -> list[str] | None:
    return None if mesh.mesh_dim_names is None else list(mesh.mesh_dim_names)


def _written(placement: Any) -> list[Any]:
    kind = type(placement)
    if kind is _StridedShard:
        return ["strided", placement.dim, placement.split_factor]
    if kind is Shard:
        return ["shard", placement.dim]
    if kind is Replicate:
        return ["replicate"]
    if kind is Partial:
        return ["partial", placement.reduce_op]
    raise Invalid(f"its placement {placement} is none of Shard, Replicate and Partial")


def _placement(said: list[Any]) -> Placement:
    match said:
        case ["shard", int(dim)]:
            return Shard(dim)
        case ["strided", int(dim), int(factor)]:
            return _StridedShard(dim, split_factor=factor)
        case ["replicate"]:
            return Replicate()
        case ["partial", str(op)]:
            return Partial(op)
    raise Invalid(f"{said!r} is no placement of a DTensor")


class Meshes:
    """The meshes of DTensors that are rebuilt: each one once. They have no process groups: a DTensor on one is copied to another one on an equal mesh, as
    `load_state_dict` does, and takes part in no collective."""

    def __init__(self) -> None:
        self._known: dict[str, Any] = {}

    def rebuilt(self, local: Any, said: dict[str, Any]) -> Any:
        """The DTensor of a local tensor and a description. Raises `Invalid` where that is none."""
        try:
            mesh = self._mesh(said)
            meta = TensorMeta(torch.Size(said["shape"]), tuple(said["stride"]), local.dtype)
            placements = tuple(_placement(placement) for placement in said["placements"])
            return DTensor(local, DTensorSpec(mesh, placements, tensor_meta=meta), requires_grad=False)
        except (KeyError, TypeError, ValueError, RuntimeError, AssertionError) as error:
            raise Invalid(f"{str(said)[:200]} describes no DTensor: {error}") from None

    def _mesh(self, said: dict[str, Any]) -> Any:
        device, ranks, names, part = said["device"], said["ranks"], said["names"], said["part"]
        key = repr((device, ranks, names, part))
        if key not in self._known:
            rank = dist.get_rank() if dist.is_initialized() else 0
            dims = None if names is None else tuple(names)
            mesh = DeviceMesh(device, torch.tensor(ranks, dtype=torch.int), mesh_dim_names=dims, _init_backend=False, _rank=rank)
            # It has none, and torch looks there for a part.
            mesh._dim_group_names = []
            self._known[key] = mesh if part is None else mesh[tuple(part)]
        return self._known[key]
