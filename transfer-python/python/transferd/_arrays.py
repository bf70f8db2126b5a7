"""Arrays of numpy. numpy is imported here alone, and only where somebody asks for an array."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from . import _errors, _native, _torch
from ._native import Buffer, Foreign, Tensor

if TYPE_CHECKING:
    from numpy.typing import NDArray

_ML_DTYPES = ("bfloat16", "float8_e4m3fn", "float8_e5m2", "float8_e8m0fnu", *_native._PACKED)


def view(of: Tensor | Buffer) -> NDArray[Any]:
    """An array that shares the memory of a tensor or buffer, and keeps it. Of a tensor with elements of 4 bits it is a copy."""
    import numpy

    dtype: Any
    if of.dtype in _ML_DTYPES:
        import ml_dtypes

        dtype = numpy.dtype(getattr(ml_dtypes, of.dtype))
    else:
        dtype = numpy.dtype(of.dtype)
    if of.dtype not in _native._PACKED:
        return _of_memory(of, dtype, of.shape)
    if isinstance(of, Buffer):
        raise _errors.Invalid(
            f"a buffer of {of.dtype} has two elements to a byte, and numpy one: write packed(), or push an array of numpy"
        )
    pairs = packed(of)
    unpacked = numpy.empty((*pairs.shape, 2), "uint8")
    numpy.bitwise_and(pairs, 15, out=unpacked[..., 0])
    numpy.right_shift(pairs, 4, out=unpacked[..., 1])
    of._count_copied(unpacked.nbytes)
    array: NDArray[Any] = unpacked.view(dtype).reshape(of.shape)
    return array


def packed(of: Tensor | Buffer) -> NDArray[Any]:
    """The bytes of a tensor or buffer with elements of 4 bits, as an array that shares its memory."""
    import numpy

    if of.dtype not in _native._PACKED:
        raise _errors.Invalid(f"elements of {of.dtype} have whole bytes: take numpy()")
    return _of_memory(of, numpy.dtype("uint8"), (*of.shape[:-1], of.shape[-1] // 2))


def _of_memory(of: Tensor | Buffer, dtype: Any, shape: tuple[int, ...]) -> NDArray[Any]:
    import numpy

    if of.nbytes == 0:
        return numpy.empty(shape, dtype)
    # Those of a buffer are row-major.
    array: NDArray[Any] = numpy.ndarray(shape, dtype, memoryview(of._raw()), strides=getattr(of, "strides", None))
    return array


def array(of: Tensor | Buffer, dtype: Any, copy: bool | None) -> NDArray[Any]:
    """What `numpy.asarray` and `numpy.array` ask for."""
    import numpy

    if copy is False and of.dtype in _native._PACKED:
        raise ValueError(f"a {of.dtype} tensor has two elements to a byte, and numpy one: there is no array without a copy; see packed()")
    found = view(of)
    if dtype is not None and numpy.dtype(dtype) != found.dtype:
        if copy is False:
            raise ValueError(f"a {found.dtype} tensor is no {dtype} without a copy")
        return found.astype(dtype)
    return found.copy() if copy else found


def foreign(value: object, key: str, entry: str | None, cast: Callable[[str], str]) -> Foreign:
    """The memory of anything that can be pushed, under `key`, as this entry of a state, with the element type that `cast` makes of its own."""
    try:
        return _foreign(value, cast)
    except Exception as error:
        if isinstance(error, (MemoryError, _errors.Error)) and not isinstance(error, _errors.Invalid):
            raise
        where = repr(key) if entry is None else f"{entry!r} of the state {key!r}"
        if isinstance(error, TypeError) and not hasattr(value, "__dlpack__"):
            raise TypeError(f"cannot push {where}: {error}") from None
        if isinstance(error, _errors.Invalid):
            raise _errors.Invalid(f"cannot push {where}: {error}", key=key) from None
        # Exporters raise what they like.
        text = f"cannot push {where}: the {_name(value)} does not give its memory: {error}"
        raise _errors.Invalid(text, key=key) from error


def is_masked(value: object) -> bool:
    """Whether it is an array with a mask, which numpy knows apart from its memory."""
    ma = sys.modules.get("numpy.ma")
    return ma is not None and isinstance(value, ma.MaskedArray)


def _name(value: object) -> str:
    return f"{type(value).__module__}.{type(value).__qualname__}".removeprefix("builtins.")


def _foreign(value: object, cast: Callable[[str], str]) -> Foreign:
    given: Any = value
    if _torch.is_tensor(given):
        given = _torch.in_memory(given)
    if getattr(given, "is_cuda", False):
        from . import _gpu

        return _gpu.foreign(given, cast)
    if is_masked(given):
        raise _errors.Invalid(f"the {_name(given)} has a mask, which would be lost: take .filled(), or .data and .mask as two tensors")
    dtype = getattr(given, "dtype", None)
    if (numpy := sys.modules.get("numpy")) is not None and isinstance(dtype, numpy.dtype):
        if not dtype.isnative or dtype.name not in _native._DTYPES:
            known = ", ".join(_native._DTYPES)
            raise _errors.Invalid(
                f"the {_name(given)} has the unsupported element type {dtype}; there are {known}: convert it first{_conversion(dtype)}"
            )
        if dtype.name in _native._PACKED:
            # jax gives this memory to numpy alone.
            given = numpy.asarray(given)
        if dtype.name in _ML_DTYPES and hasattr(given, "__array_interface__"):
            # The buffer protocol has no such elements; seen as integers of the same size they lie where they were.
            return Foreign(given.view("uint16" if dtype.itemsize == 2 else "uint8"), dtype.name)
    return Foreign(given)


def _conversion(dtype: Any) -> str:
    """What makes an array of an unsupported element type one that can be pushed."""
    if dtype.fields is not None:
        return ", for example to a state with an entry for each field"
    if dtype.type.__module__ == "ml_dtypes":
        return f', for example by .astype("{"int8" if "int" in dtype.name else "float32"}")'
    if dtype.kind in "fciub":
        native = dtype.newbyteorder("=").name
        other = "complex128" if dtype.kind == "c" else "float64" if dtype.kind == "f" else "int64"
        return f', for example by .astype("{native if native in _native._DTYPES else other}")'
    kinds = {"M": '.view("int64")', "m": '.view("int64")', "O": '.astype("float64")', "V": '.view("uint8")'}
    return f", for example by {kinds[dtype.kind]}" if dtype.kind in kinds else ", or push it as a column by push_table"
