"""jax: fetched tensors by DLPack, and pushes of its arrays."""

from __future__ import annotations

import gc

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import transferd as td
from test_packed import PACKED
from test_packed import values as packed_values
from test_tensors import DTYPES, dtype_of, values

# Above what is mapped privately for DLPack, 64 KiB.
LARGE = (256, 256)


@pytest.fixture(autouse=True)
def _wide():
    """With 64-bit types, which jax has where they are asked for."""
    jax.config.update("jax_enable_x64", True)
    yield
    jax.config.update("jax_enable_x64", False)


# Promise: jax-arrays
@pytest.mark.parametrize("name", DTYPES)
@pytest.mark.parametrize("shape", [(), (0, 2), (3, 4, 5), LARGE])
def test_every_type_and_shape_goes_both_ways(c, other, name, shape):
    expected = values(name, shape)
    c.push("numpy", expected)
    found = jax.numpy.from_dlpack(other.fetch("numpy"))
    assert found.dtype == dtype_of(name) and found.shape == shape
    assert np.asarray(found).tobytes() == expected.tobytes()
    assert c.push("jax", found).report.copied == expected.nbytes
    again = other.fetch("jax")
    assert again.dtype == name and again.numpy().tobytes() == expected.tobytes()


# Promise: python-four-bit-elements
@pytest.mark.parametrize("name", PACKED)
@pytest.mark.parametrize("shape", [(0, 2), (3, 4, 6), LARGE])
def test_elements_of_4_bits_go_both_ways_by_numpy(c, other, name, shape):
    expected = packed_values(name, shape)
    assert c.push("jax", jnp.asarray(expected)).report.copied == expected.size // 2
    found = jnp.asarray(other.fetch("jax").numpy())
    assert found.dtype == expected.dtype and np.asarray(found).tobytes() == expected.tobytes()


# Promise: jax-arrays
def test_large_tensors_are_not_copied(c):
    c.push("w", np.arange(256 * 256, dtype="float32").reshape(LARGE))
    tensor = c.fetch("w")
    array = jnp.from_dlpack(tensor)
    # It lies where a private mapping shows the pages, at their offset, and not in memory of jax's own.
    assert tensor.exports_copied == 0
    assert array.unsafe_buffer_pointer() % 4096 == tensor.numpy().__array_interface__["data"][0] % 4096
    assert mapped_from_arena(array.unsafe_buffer_pointer())
    assert float(jax.jit(jnp.sum)(array)) == float(np.arange(256 * 256, dtype="float32").astype("float64").sum())


def mapped_from_arena(address: int) -> bool:
    with open("/proc/self/maps") as maps:
        for line in maps:
            start, end = (int(edge, 16) for edge in line.split()[0].split("-"))
            if start <= address < end:
                return "memfd" in line or "/dev/shm" in line
    return False


def test_what_was_computed_is_pushed(c):
    c.push("x", np.linspace(0, 1, 1 << 16, dtype="float32"))
    x = jnp.from_dlpack(c.fetch("x"))
    slope = jax.grad(lambda w: ((w * x - 3 * x) ** 2).mean())(jnp.float32(0))
    c.push("slope", slope)
    assert c.fetch("slope").shape == () and float(c.fetch("slope").numpy()) == float(slope)


def test_an_array_outlives_tensor_client_and_sidecar(sidecar):
    with td.connect(sidecar.path, arena="4MiB") as c:
        c.push("w", np.full(LARGE, 7, "float32"))
        array = jnp.from_dlpack(c.fetch("w"))
    sidecar.kill()
    gc.collect()
    assert bool((array == 7).all())


def test_a_state_is_fetched_as_arrays_of_jax(c):
    c.push_state("policy", {"w": jnp.ones(LARGE, "bfloat16"), "b": jnp.arange(3)}, version=2)
    state = {name: jnp.from_dlpack(tensor) for name, tensor in c.fetch_state("policy", at_least=2).items()}
    assert state["w"].dtype == "bfloat16" and bool((state["w"] == 1).all())
    assert state["b"].tolist() == [0, 1, 2]
