"""Element types of which two share a byte: numpy has a byte for each element, and the arena has not."""

from __future__ import annotations

import re

import ml_dtypes
import numpy as np
import pytest
import transferd as td
from test_tensors import DTYPES

PACKED = ["float4_e2m1fn", "int4", "uint4"]


def values(name: str, shape: tuple[int, ...]) -> np.ndarray:
    """Every value of the type, in turn."""
    return (np.arange(int(np.prod(shape))) % 16).astype("uint8").view(getattr(ml_dtypes, name)).reshape(shape)


def same(found: np.ndarray, expected: np.ndarray) -> bool:
    return (found.dtype, found.shape, found.tobytes()) == (expected.dtype, expected.shape, expected.tobytes())


def test_these_and_the_others_are_all_element_types():
    assert {*DTYPES, *PACKED} == {*td._native._DTYPES} and tuple(PACKED) == td._native._PACKED


# Promise: four-bit-elements, seen to fail
# Promise: python-four-bit-elements
@pytest.mark.parametrize("name", PACKED)
@pytest.mark.parametrize("shape", [(0,), (3, 0, 2), (3, 0), (2,), (5, 6), (3, 4, 32)])
def test_arrays_are_packed_at_the_push_and_unpacked_at_the_fetch(c, other, name, shape):
    expected = values(name, shape)
    assert c.push("k", expected).report.copied == expected.size // 2
    for client in (c, other):
        tensor = client.fetch("k")
        assert (tensor.shape, tensor.dtype, tensor.nbytes) == (shape, name, expected.size // 2)
        assert same(tensor.numpy(), expected) and tensor.exports_copied == expected.size
        assert same(np.asarray(tensor), expected) and tensor.exports_copied == 2 * expected.size
        with pytest.raises(ValueError, match="there is no array without a copy"):
            np.asarray(tensor, copy=False)
        # Along the last dimension, the first in the low bits.
        pairs = expected.view("uint8").reshape(*shape[:-1], shape[-1] // 2, 2)
        packed = tensor.packed()
        assert same(packed, pairs[..., 0] | pairs[..., 1] << 4) and (packed.size == 0 or not packed.flags.writeable)
        assert tensor.exports_copied == 2 * expected.size
    # A fetched tensor is pushed as it lies.
    assert c.push("again", other.fetch("k")).report.copied == expected.size // 2
    assert same(c.fetch("again").numpy(), expected)


# Promise: python-four-bit-elements
@pytest.mark.parametrize("name", PACKED)
def test_a_buffer_is_written_in_pairs(c, other, name):
    buffer = c.empty((4, 6), name)
    assert (buffer.shape, buffer.dtype, buffer.nbytes) == ((4, 6), name, 12)
    with pytest.raises(td.Invalid, match="two elements to a byte, and numpy one: write packed()"):
        buffer.numpy()
    buffer.packed()[:] = np.arange(12, dtype="uint8").reshape(4, 3) * 17
    assert c.push("k", buffer).report.copied == 0
    found = other.fetch("k").numpy()
    assert same(found.view("uint8"), np.repeat(np.arange(12, dtype="uint8"), 2).reshape(4, 6))
    with pytest.raises(td.Invalid, match="elements of float32 have whole bytes: take numpy()"):
        c.empty(4).packed()


# Promise: python-four-bit-elements
@pytest.mark.parametrize("name", PACKED)
def test_arrays_of_any_layout_are_packed_as_numpy_sees_them(c, name):
    base = values(name, (2, 4, 6, 8))
    for key, layout in {
        "transposed": base.transpose(3, 0, 1, 2),
        "reversed": base[::-1, ..., ::-1],
        "steps": base[:, ::2, 1::2, ::2],
        "one": base[1:2, :, 2:3, :2],
        "broadcast": np.broadcast_to(base[:1, :, :1], (3, 4, 5, 8)),
        "columns": base[..., 2:4],
        "fortran": np.asfortranarray(base),
    }.items():
        assert c.push(key, layout).report.copied == layout.size // 2, key
        assert same(c.fetch(key).numpy(), np.ascontiguousarray(layout)), key


# Promise: python-four-bit-elements
@pytest.mark.parametrize("name", PACKED)
def test_a_state_is_copied_into_arrays_and_buffers(c, name):
    expected = values(name, (3, 16))
    c.push_state("s", {"a": expected, "b": expected})
    array, buffer = np.zeros_like(expected), c.empty((3, 16), name)
    state = c.fetch_state("s", into={"a": array, "b": buffer})
    assert same(array, expected) and same(buffer.packed(), state["b"].packed())
    with pytest.raises(td.Invalid, match=re.escape(f"'a' is {name} [3, 16] in the state and {name} [3, 14] where")):
        c.fetch_state("s", into={"a": np.zeros_like(expected[:, :14])})


# Promise: four-bit-elements
# Promise: python-four-bit-elements
@pytest.mark.parametrize("name", PACKED)
def test_shapes_that_do_not_fill_their_last_byte_are_refused(c, name):
    says = re.escape("cannot be: two elements of ") + r"\w+ share a byte along the last dimension, so that has to be there, and even"
    for shape in ((), (3,), (4, 1), (0, 5)):
        with pytest.raises(td.Invalid, match=says):
            c.empty(shape, name)
        with pytest.raises(td.Invalid, match="cannot push 'k': .*" + says) as error:
            c.push("k", values(name, shape))
        assert error.value.key == "k"
        with pytest.raises(td.Invalid, match="cannot push 'w' of the state 's': .*" + says):
            c.push_state("s", {"a": np.ones(3), "w": values(name, shape)})


# Promise: python-four-bit-elements
def test_integers_of_4_bits_have_no_dlpack(c):
    for name in ("int4", "uint4"):
        c.push("k", values(name, (4,)))
        with pytest.raises(BufferError, match=f"no library takes {name} by DLPack: take numpy"):
            np.from_dlpack(c.fetch("k"))
