"""Arrays of numpy. numpy is imported here alone, and only where somebody asks for an array."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ._native import Buffer, Foreign, Tensor

if TYPE_CHECKING:
    from numpy.typing import NDArray

_ML_DTYPES = ("bfloat16", "float8_e4m3fn", "float8_e5m2")


def view(of: Tensor | Buffer) -> NDArray[Any]:
    """An array that shares the memory of a tensor or buffer, and keeps it."""
    import numpy

    dtype: Any
    if of.dtype in _ML_DTYPES:
        import ml_dtypes

        dtype = numpy.dtype(getattr(ml_dtypes, of.dtype))
    else:
        dtype = numpy.dtype(of.dtype)
    if of.nbytes == 0:
        empty: NDArray[Any] = numpy.empty(of.shape, dtype)
        return empty
    array: NDArray[Any] = numpy.frombuffer(memoryview(of._raw()), dtype).reshape(of.shape)
    return array


def array(of: Tensor | Buffer, dtype: Any, copy: bool | None) -> NDArray[Any]:
    """What `numpy.asarray` and `numpy.array` ask for."""
    import numpy

    found = view(of)
    if dtype is not None and numpy.dtype(dtype) != found.dtype:
        if copy is False:
            raise ValueError(f"a {found.dtype} tensor is no {dtype} without a copy")
        return found.astype(dtype)
    return found.copy() if copy else found


def foreign(value: object) -> Foreign:
    """The memory of anything that can be pushed."""
    given: Any = value
    if getattr(given, "requires_grad", False):
        # torch exports no tensor that has a gradient. What is pushed are its values.
        given = given.detach()
    if getattr(given, "is_cuda", False):
        from . import _gpu

        return _gpu.foreign(given)
    name = getattr(getattr(given, "dtype", None), "name", None)
    if name in _ML_DTYPES and hasattr(given, "__array_interface__"):
        # The buffer protocol has no such elements; seen as integers of the same size they lie where they were.
        return Foreign(given.view("uint16" if name == "bfloat16" else "uint8"), name)
    return Foreign(given)
