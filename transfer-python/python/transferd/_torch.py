"""Tensors of torch that are more than memory. torch is used here only where a program has imported it already."""

from __future__ import annotations

import sys
from typing import Any, NamedTuple

from ._errors import Invalid
from ._native import _DTYPES, _PACKED, Tensor

# torch has pairs of such elements, where others count them.
_PAIRS = "float4_e2m1fn_x2"
# What tensors of torch can have: its own types of 4 bits have a byte for each element, and no values yet.
_TYPES = (*(name for name in _DTYPES if name not in _PACKED), _PAIRS)


def is_tensor(value: object) -> bool:
    """Whether this is a tensor of torch, of any class."""
    torch = sys.modules.get("torch")
    return torch is not None and isinstance(value, torch.Tensor)


def description(of: Any) -> tuple[str, tuple[int, ...]]:
    """The element type and the shape of a tensor of torch, as this package says them."""
    name, shape = str(of.dtype).removeprefix("torch."), tuple(of.shape)
    if name == _PAIRS and shape:
        return _PAIRS.removesuffix("_x2"), (*shape[:-1], 2 * shape[-1])
    return name, shape


def layout(of: Tensor) -> tuple[tuple[int, ...], Any]:
    """The shape and the element type of torch's tensor for a fetched one."""
    import torch

    if of.dtype not in _PACKED:
        return of.shape, getattr(torch, of.dtype)
    if not _PAIRS.startswith(of.dtype + "_"):
        raise Invalid(f"torch has no pairs of {of.dtype}: take packed(), which has two elements in each uint8")
    return (*of.shape[:-1], of.shape[-1] // 2), getattr(torch, _PAIRS)


def copy_of(of: Tensor) -> Any:
    """A tensor of torch with memory of its own."""
    import torch

    shape, dtype = layout(of)
    copy = torch.empty(shape, dtype=dtype)
    assign(copy, of)
    return copy


def assign(target: Any, source: Any) -> None:
    """Copies a `Tensor` into a tensor of torch of its type and shape on the CPU, or a tensor of torch into a `Buffer`.

    What lies in one piece is copied by one thread, out of its own pages. torch would share the copy among threads that wait for each other, which takes four times
    the processor time where the machine has work for all cores; and its view of a fetched tensor is a mapping, whose pages come one after the other.
    """
    import torch

    with torch.no_grad():
        if (to := flat(target)) is not None and (of := flat(source)) is not None:
            to[:] = of
            return
        target, source = (it if is_tensor(it) else it.torch() for it in (target, source))
        if str(target.dtype) == f"torch.{_PAIRS}":
            # torch copies no pairs that are not contiguous.
            source, target = source.contiguous().view(torch.uint8), target.view(torch.uint8)
        target.copy_(source)


def flat(value: Any) -> Any:
    """The bytes of a tensor or buffer on the CPU that lies in one piece, as an array of numpy that shares its memory."""
    try:
        import numpy
    except ModuleNotFoundError:
        return None
    import torch

    if not isinstance(value, torch.Tensor):
        is_flat = value.nbytes > 0 and not getattr(value, "_is_slice", False)
        return numpy.frombuffer(memoryview(value._raw()), "uint8") if is_flat else None
    if not lies_flat(value):
        return None
    return value.detach().reshape(-1).view(torch.uint8).numpy()


def lies_flat(value: Any) -> bool:
    """Whether the elements of a tensor of torch lie in the host's memory, row-major, in one piece, as they are."""
    return lies_plainly(value) and bool(value.is_contiguous())


def lies_plainly(value: Any) -> bool:
    """Whether the elements of a tensor of torch lie in the host's memory as they are, whatever its strides."""
    import torch

    if type(value) not in (torch.Tensor, torch.nn.Parameter, torch.nn.Buffer) or not value.is_cpu or place(value) is None:
        return False
    return not (value.is_conj() or value.is_neg() or value._is_zerotensor())


def note_change(target: Any) -> None:
    """Lets torch know that others have written a tensor, as an operation in place does."""
    import torch

    if not target.is_inference():
        torch.autograd.graph.increment_version(target)


class Place(NamedTuple):
    """Where a tensor lies: the same for those that are tied."""

    start: int
    end: int
    kind: str
    shape: tuple[int, ...]
    strides: tuple[int, ...]


def place(value: Any) -> Place | None:
    """Where a dense tensor lies. None where it has no elements, or does not say."""
    import torch

    if type(value) not in (torch.Tensor, torch.nn.Parameter, torch.nn.Buffer):
        return None
    try:
        shape, strides, start = tuple(value.shape), tuple(value.stride()), value.data_ptr()
    except (RuntimeError, NotImplementedError):
        return None
    if value.numel() == 0 or start == 0:
        return None
    last = sum((length - 1) * stride for length, stride in zip(shape, strides))
    kind = f"{value.dtype} {value.device} {value.is_conj()} {value.is_neg()}"
    return Place(start, start + (last + 1) * value.element_size(), kind, shape, strides)


def in_memory(given: Any) -> Any:
    """A tensor whose memory holds exactly the values of `given`. It is `given` itself, without its gradient, where that is so.

    Raises `Invalid` where the values do not lie in memory of the tensor.
    """
    import torch

    check(given)
    with torch.no_grad():
        if given._is_zerotensor():
            return torch.zeros(given.shape, dtype=given.dtype, device=given.device)
        return given.detach().resolve_conj().resolve_neg()


def check(given: Any) -> None:
    """Raises `Invalid` where a tensor's values do not lie in its own memory, as a whole.

    DLPack does not say so: torch exports such tensors with a pointer that is null, or that has less behind it than it says.
    """
    import torch

    # Classes that answer for themselves do not say what the tensor below them has.
    with torch._C.DisableTorchFunctionSubclass(), torch.no_grad():
        reason = _reason(torch, given)
    if reason is not None:
        raise Invalid(f"{named(given)} {reason}")


def named(given: Any) -> str:
    """The class of a tensor, and its layout if that is another than a dense tensor's."""
    name, layout = type(given).__name__, str(given.layout).removeprefix("torch.")
    return f"the {name}" if layout == "strided" else f"the {name} of the layout {layout}"


def _reason(torch: Any, given: Any) -> str | None:
    if torch.nn.parameter.is_lazy(given):
        return "has no shape yet: run its module once first"
    if torch._C._functorch.is_functorch_wrapped_tensor(given):
        return "stands for others inside of a function of torch.func: return it from there first"
    if given.is_nested:
        return "is nested, and has no shape: take .to_padded_tensor(), or its parts by .unbind()"
    if given.layout is not torch.strided:
        return "is not dense: take .to_dense()"
    if given.is_quantized:
        return "is quantized: take .dequantize() or .int_repr()"
    if (dtype := str(given.dtype).removeprefix("torch.")) not in _TYPES:
        other = "complex64" if dtype == "complex32" else "int8" if "int" in dtype else "float32"
        known = ", ".join(_TYPES)
        return f"has the unsupported element type {dtype}; there are {known}: convert it first, for example by .to(torch.{other})"
    if given.device.type == "meta":
        return "is on the device meta, where no values are"
    if given.numel() == 0 or given._is_zerotensor():
        return None
    try:
        address, held = given.data_ptr(), given.untyped_storage().nbytes()
    except (RuntimeError, NotImplementedError):
        address, held = 0, 0
    last = given.storage_offset() + sum((n - 1) * step for n, step in zip(given.shape, given.stride()))
    needed = (last + 1) * given.element_size()
    if address and held >= needed:
        return None
    if ways := _ways(torch, given):
        return f"has no memory of its own: take {' or '.join(ways)}"
    if type(given) in (torch.Tensor, torch.nn.Parameter) and not torch._is_functional_tensor(given):
        return f"has {needed} bytes, and its storage {held}: the storage was freed or cut, for example by FSDP"
    return "has no memory of its own: take the tensors that it is made of"


def _ways(torch: Any, given: Any) -> list[str]:
    """The methods of a tensor's own class that make a tensor with memory."""
    names = ("to_local", "full_tensor", "dequantize", "wait", "get_data")
    of, base = type(given), torch.Tensor
    return [f".{name}()" for name in names if getattr(of, name, None) is not getattr(base, name, None)]


def check_writable(target: Any) -> None:
    """Raises `Invalid` where values cannot be copied into a tensor."""
    import torch

    check(target)
    if is_overlapping(target.shape, target.stride(), 1):
        raise Invalid(f"{named(target)} has elements that lie at one address, as expand() and unfold() make them")
    if target.is_inference() and not torch.is_inference_mode_enabled():
        raise Invalid(f"{named(target)} was made in inference mode, and is written there alone")


def is_overlapping(shape: Any, strides: Any, size: int) -> bool:
    """Whether elements lie in each other, as in what was expanded, or in windows. `size` is an element's, in the unit of the strides."""
    if 0 in shape:
        return False
    extent = size
    for stride, n in sorted((abs(stride), n) for n, stride in zip(shape, strides) if n > 1):
        if stride < extent:
            return True
        extent += (n - 1) * stride
    return False
