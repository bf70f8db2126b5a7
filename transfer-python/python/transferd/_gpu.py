"""Tensors of torch on GPUs. torch is imported here alone, and only where somebody asks for such a tensor."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from . import _native, _torch
from ._errors import Invalid
from ._native import Foreign, Tensor


def to_device(of: Tensor, device: Any) -> Any:
    """A tensor of torch on this device, a copy where that is a GPU."""
    import torch

    where = torch.device(device)
    if where.type == "cpu":
        return torch.from_dlpack(of)
    if where.type != "cuda":
        raise Invalid(f"a tensor is copied to a GPU of CUDA, or stays on the CPU; {where} is neither")
    if of._is_slice:
        return torch.from_dlpack(of).to(where)
    # Errors of this package, before torch fails with its own.
    _native._check_gpu(where.index if where.index is not None else 0)
    # Allocated in the current stream, as the copy is made there: torch uses its memory again only behind the copy.
    shape, dtype = _torch.layout(of)
    target = torch.empty(shape, dtype=dtype, device=where)
    of._copy_to_gpu(target.device.index, target.data_ptr(), torch.cuda.current_stream(target.device).cuda_stream)
    return target


def copy_into(of: Tensor, target: Any) -> None:
    """Copies to a tensor on a GPU, of the same shape and type, in torch's current stream there."""
    import torch

    stream = torch.cuda.current_stream(target.device)
    if target.is_contiguous() and not of._is_slice:
        # It may have been allocated in another stream.
        target.record_stream(stream)
        of._copy_to_gpu(target.device.index, target.data_ptr(), stream.cuda_stream)
    else:
        target.copy_(to_device(of, target.device))


def foreign(given: Any, cast: Callable[[str], str]) -> Foreign:
    """The memory of a tensor on a GPU, which casts it, once the work on it is done that is in torch's current stream there."""
    import torch

    _native._check_gpu(given.device.index)
    # DLPack's producer waits for the current stream of the current device.
    with torch.cuda.device(given.device):
        found = _torch.description(given)[0]
        return Foreign((given if cast(found) == found else given.to(getattr(torch, cast(found)))).contiguous())
