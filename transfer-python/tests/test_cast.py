"""Floats that are cast while they are pushed."""

from __future__ import annotations

import asyncio

import ml_dtypes
import numpy as np
import pytest
import transferd as td
from conftest import settled
from test_packed import PACKED
from test_packed import values as packed_values
from test_tensors import DTYPES, dtype_of, values

FLOATS = ["float16", "bfloat16", "float32", "float64"]


def numbers(name: str) -> np.ndarray:
    """Numbers of a type, those that lie in the middle between two of a shorter type and beside it, and those that no shorter one has."""
    one = np.float64(1)
    steps = [one + 2.0**-8, one + 3 * 2.0**-8, one + 2.0**-8 + 2.0**-40, one + 2.0**-11, one + 2.0**-11 + 2.0**-40, one + 3 * 2.0**-11, one + 2.0**-24 + 2.0**-50]
    small = [2.0**-24, 2.0**-25, 3 * 2.0**-25, 2.0**-149, 2.0**-150, 5e-324, 2.0**-133]
    large = [65504, 65519.99, 65520, 3.4e38, 3.39e38, 3.5e38, 1.7e308]
    found = np.array([0.0, *steps, *small, *large, np.inf])
    with np.errstate(over="ignore"):
        return np.concatenate([found, -found, [np.nan]]).astype(dtype_of(name)).reshape(1, -1)


def nearest(array: np.ndarray, name: str) -> np.ndarray:
    """As each number is rounded once: ml_dtypes rounds a float64 to a float32 on its way to a bfloat16."""
    with np.errstate(over="ignore"):
        if name != "bfloat16" or array.dtype != "float64":
            return array.astype(dtype_of(name))
        down = array.astype("float32")
        # The odd one of two neighbours keeps what lies between them apart from the middle.
        bits, inexact = down.view("uint32"), np.isfinite(down) & (down.astype("float64") != array)
        away = inexact & (np.abs(down.astype("float64")) > np.abs(array))
        bits[away] -= 1
        bits[inexact] |= 1
        return down.astype(ml_dtypes.bfloat16)


def same(found: np.ndarray, expected: np.ndarray) -> bool:
    nan = np.isnan(expected)
    return found.dtype == expected.dtype and np.array_equal(np.isnan(found), nan) and found[~nan].tobytes() == expected[~nan].tobytes()


# Promise: casts
@pytest.mark.parametrize("to", FLOATS)
@pytest.mark.parametrize("of", FLOATS)
def test_floats_are_rounded_to_the_nearest_in_every_layout(c, other, of, to):
    array = numbers(of)
    wide = np.repeat(array, 6, axis=0)
    for layout in (array, array[0, 0], array[:, ::-1], wide.T, wide[::2, 1::3], np.broadcast_to(array, (4, array.size)), array[:, :0], np.asfortranarray(wide)):
        layout = np.asarray(layout)
        pushed = c.push("k", layout, dtype=to)
        found, expected = other.fetch("k"), nearest(np.ascontiguousarray(layout).reshape(layout.shape), to)
        assert found.dtype == to and found.shape == layout.shape and same(found.numpy(), expected)
        assert pushed.report.copied == expected.nbytes


# Promise: casts
@pytest.mark.parametrize("of", [name for name in (*DTYPES, *PACKED) if name not in FLOATS])
def test_other_types_stay_as_they_are(c, of):
    array = packed_values(of, (2, 4)) if of in PACKED else values(of, (2, 4))
    c.push("k", array, dtype="bfloat16")
    found = c.fetch("k")
    assert found.dtype == of and found.numpy().tobytes() == array.tobytes()


# Promise: casts
@pytest.mark.parametrize("module", [td, td.aio])
def test_the_floats_of_a_state_are_cast(sidecar, module):
    async def cast():
        c = await settled(module.connect(sidecar.path, arena="4MiB"))
        w, ids = np.linspace(0, 1, 12, dtype="float32").reshape(3, 4), np.arange(5)
        buffer, half = await settled(c.empty(4)), await settled(c.empty(4, "bfloat16"))
        buffer.numpy()[:] = half.numpy()[:] = 1.5
        state = {"w": w, "tied": w, "ids": ids, "buffer": buffer, "half": half, "step": 3, "lr": 0.1}
        for push in (lambda: c.push_state("s", state, dtype=ml_dtypes.bfloat16), lambda: c.publisher("s").push_state({**state, "half": half}, dtype="bfloat16")):
            pushed = await settled(push())
            # Each memory once, in its new length; what is of the type already is taken as it lies.
            assert pushed.report.copied == 24 + 40 + 8
            found = await settled(c.fetch_state("s", at_least=pushed.version))
            assert found["w"] is found["tied"] and np.array_equal(found["w"].numpy(), w.astype(ml_dtypes.bfloat16))
            assert found["ids"].dtype == "int64" and found["step"] == 3 and found["lr"] == 0.1
            assert found["buffer"].dtype == "bfloat16" and (found["buffer"].numpy() == 1.5).all()
            assert half.pushed and not buffer.pushed
            half = await settled(c.empty(4, "bfloat16"))
        await settled(c.push("buffer", buffer, dtype="float64"))
        assert not buffer.pushed and (await settled(c.fetch("buffer"))).dtype == "float64"
        await settled(c.push("buffer", buffer, dtype="float32"))
        assert buffer.pushed
        await settled(c.close())

    asyncio.run(cast())


# Promise: casts
@pytest.mark.parametrize("dtype", ["int32", "float8_e4m3fn", "complex64", "bool"])
def test_what_floats_are_not_cast_to_is_refused(c, dtype):
    for push in (lambda: c.push("k", np.ones(3), dtype=dtype), lambda: c.push_state("k", {"a": np.ones(3)}, dtype=dtype)):
        with pytest.raises(td.Invalid, match=f"dtype= casts floats to float16, bfloat16, float32, float64, and not to {dtype}"):
            push()
    with pytest.raises(td.Invalid, match="nothing is no element type of a tensor"):
        c.push("k", np.ones(3), dtype="nothing")
