"""Pushing and fetching: what comes is what was pushed, and where it lies."""

from __future__ import annotations

import array
import re

import ml_dtypes
import numpy as np
import pytest
import transferd as td

DTYPES = [
    "bool",
    "int8",
    "uint8",
    "int16",
    "uint16",
    "int32",
    "uint32",
    "int64",
    "uint64",
    "float16",
    "float32",
    "float64",
    "complex64",
    "bfloat16",
    "float8_e4m3fn",
    "float8_e5m2",
    "complex128",
    "float8_e8m0fnu",
]


def dtype_of(name: str) -> np.dtype:
    return np.dtype(getattr(ml_dtypes, name, name))


def values(name: str, shape: tuple[int, ...]) -> np.ndarray:
    count = int(np.prod(shape))
    return (np.arange(count) % 7).astype("float32").astype(dtype_of(name)).reshape(shape)


def address(a: np.ndarray) -> int:
    return a.__array_interface__["data"][0]


# Promise: python-types-and-layouts
@pytest.mark.parametrize("name", DTYPES)
@pytest.mark.parametrize("shape", [(), (0,), (3, 0, 2), (5,), (3, 4, 5)])
def test_every_type_and_shape_comes_as_it_was_pushed(c, other, name, shape):
    expected = values(name, shape)
    buffer = c.empty(shape, name)
    assert (buffer.shape, buffer.dtype, buffer.nbytes) == (shape, name, expected.nbytes)
    buffer.numpy()[...] = expected
    assert c.push("own", buffer).report.copied == 0
    assert c.push("foreign", expected).report.copied == expected.nbytes
    for key in ("own", "foreign"):
        for client in (c, other):
            tensor = client.fetch(key)
            assert (tensor.shape, tensor.dtype, tensor.nbytes) == (shape, name, expected.nbytes)
            found = tensor.numpy()
            assert found.dtype == expected.dtype and found.shape == expected.shape
            assert found.tobytes() == expected.tobytes()


# Promise: python-no-copy
def test_nothing_is_copied_on_one_host(c, other, sidecar):
    copied = sidecar.counters()["published"]["copied_bytes"]
    buffer = c.empty((1024, 256), "float32")
    view = buffer.numpy()
    view[:] = np.arange(1024 * 256, dtype="float32").reshape(1024, 256)
    where = address(view)
    assert view.flags.writeable and np.shares_memory(view, buffer.numpy())
    del view
    pushed = c.push("w", buffer)
    assert (pushed.version, pushed.report.copied, pushed.report.fabric) == (1, 0, "local")
    own = c.fetch("w")
    # The very pages that the producer wrote, through a mapping that is read-only, in its own process as well.
    assert offset_in_file(address(own.numpy())) == offset_in_file(where) and address(own.numpy()) != where
    fetched = other.fetch("w")
    assert fetched.report.copied == 0 and fetched.report.bytes == 1 << 20
    a, b = fetched.numpy(), fetched.numpy()
    assert address(a) == address(b) and address(a) != where
    assert offset_in_file(where) == offset_in_file(address(a))
    assert a[-1, -1] == 1024 * 256 - 1
    assert sidecar.counters()["published"]["copied_bytes"] == copied


def offset_in_file(where: int) -> tuple[str, int]:
    """Which file's bytes are mapped at an address: its inode, and the offset there."""
    for line in open("/proc/self/maps"):
        span, _, offset, _, inode, *_ = line.split()
        start, end = (int(part, 16) for part in span.split("-"))
        if start <= where < end:
            return inode, int(offset, 16) + where - start
    raise AssertionError(f"{where:#x} is not mapped")


# Promise: read-only-arrays
def test_what_was_fetched_is_read_only_and_what_was_pushed_has_no_memory(c):
    buffer = c.empty(8)
    buffer.numpy()[:] = 1
    c.push("w", buffer)
    array = c.fetch("w").numpy()
    assert not array.flags.writeable
    with pytest.raises(ValueError):
        array[0] = 2
    with pytest.raises(ValueError):
        array.flags.writeable = True
    assert buffer.pushed
    with pytest.raises(td.Error) as e:
        buffer.numpy()
    assert e.value.code == "pushed"
    with pytest.raises(td.Error):
        c.push("again", buffer)


# Promise: python-types-and-layouts
def test_views_of_any_layout_are_pushed_as_numpy_sees_them(c):
    base = np.arange(2 * 3 * 4 * 5, dtype="int16").reshape(2, 3, 4, 5)
    layouts = {
        "fortran": np.asfortranarray(base),
        "transposed": base.transpose(2, 0, 3, 1),
        "reversed": base[::-1, :, ::-2],
        "backwards": base[..., ::-1],
        "columns": base[..., 1:4:2],
        "broadcast": np.broadcast_to(base[:1], (3, 3, 4, 5)),
        "one": base[1:2, :, 2:3],
        "bytes": base.view("int8")[..., ::3],
        "wide": base.astype("complex64")[:, ::2],
        "widest": base.astype("complex128")[..., ::2],
    }
    for name, layout in layouts.items():
        report = c.push(name, layout).report
        assert report.copied == layout.nbytes, name
        assert np.array_equal(c.fetch(name).numpy(), layout), name
    bf16 = base.astype(ml_dtypes.bfloat16).T
    c.push("bf16", bf16)
    assert np.array_equal(c.fetch("bf16").numpy(), bf16)


# Promise: python-foreign-memory
def test_anything_with_the_buffer_protocol_or_dlpack_is_pushed(c):
    class OnlyDlpack:
        def __init__(self, of):
            self.of = of

        def __dlpack__(self, **asked):
            return self.of.__dlpack__(**asked)

        def __dlpack_device__(self):
            return self.of.__dlpack_device__()

    class Old(OnlyDlpack):
        def __dlpack__(self):
            return self.of.__dlpack__()

    for key, value in {
        "bytes": b"hello",
        "bytearray": bytearray(b"hello"),
        "memoryview": memoryview(b"hello")[::-2],
        "array": array.array("d", [1.5, 2.5]),
        "dlpack": OnlyDlpack(np.arange(6, dtype="float64").reshape(2, 3).T),
        "old": Old(np.arange(5, dtype="uint8")),
    }.items():
        c.push(key, value)
        of = value.of if isinstance(value, OnlyDlpack) else value
        expected = np.asarray(of if key in ("array", "dlpack", "old") else memoryview(of))
        assert np.array_equal(c.fetch(key).numpy(), expected), key
    c.push("tensor", c.fetch("array"))
    assert list(c.fetch("tensor").numpy()) == [1.5, 2.5]
    buffer = c.empty(3, "int64")
    buffer.numpy()[:] = 4
    assert c.push_snapshot("snapshot", buffer).report.copied == 24
    buffer.numpy()[:] = 5
    assert list(c.fetch("snapshot").numpy()) == [4, 4, 4]


# Promise: python-refused-arrays
# Promise: gpu-errors
def test_what_is_no_tensor_is_refused_with_a_reason(c):
    for value, reason in [
        (np.zeros(2, "clongdouble"), "complex256"),
        (np.zeros(2, ">i4"), ">i4"),
        (np.array(["a"]), "unsupported element type"),
        (np.array([None]), "unsupported element type"),
        (np.zeros(2, "datetime64[s]"), "datetime64[s]"),
    ]:
        with pytest.raises(td.Invalid) as e:
            c.push("k", value)
        assert reason in str(e.value)
    for value in ([1, 2], 3, None, "text", object()):
        with pytest.raises(TypeError, match="cannot be pushed"):
            c.push("k", value)

    class OnDevice:
        def __init__(self, kind, number):
            self.device = kind, number

        def __dlpack_device__(self):
            return self.device

        def __dlpack__(self, **asked):
            raise AssertionError("it is not asked")

    # ROCm's. CUDA's that no machine has: without a driver the error names its library.
    with pytest.raises(td.Invalid, match="no GPU of CUDA"):
        c.push("k", OnDevice(10, 0))
    with pytest.raises(td.NoDevice, match="libcuda.so.1|there is no GPU 4096|shows no GPU") as e:
        c.push("k", OnDevice(2, 4096))
    assert e.value.code == "no_device" and not e.value.can_retry


def test_types_are_named_as_their_libraries_name_them(c):
    for dtype, name in [
        ("f32", "float32"),
        ("torch.bfloat16", "bfloat16"),
        (np.float16, "float16"),
        (np.dtype("int8"), "int8"),
        (ml_dtypes.bfloat16, "bfloat16"),
        (float, "float64"),
        (bool, "bool"),
        (complex, "complex128"),
        ("c128", "complex128"),
        (ml_dtypes.float8_e8m0fnu, "float8_e8m0fnu"),
    ]:
        assert c.empty(1, dtype).dtype == name
    for wrong in ("float128", "U8", np.dtype(">f4")):
        with pytest.raises(td.Invalid, match="element type"):
            c.empty(1, wrong)
    with pytest.raises(td.Invalid, match="counts elements here, and not pairs, so say float4_e2m1fn"):
        c.empty(1, "torch.float4_e2m1fn_x2")


# Promise: buffers-with-views
def test_a_buffer_with_views_is_not_taken(c):
    buffer = c.empty(100_000, "uint8")
    for view in (buffer.numpy(), memoryview(buffer), np.from_dlpack(buffer)):
        with pytest.raises(td.StillExported) as e:
            c.push("w", buffer)
        assert isinstance(e.value, BufferError) and e.value.code == "still_exported"
        del view
    view = buffer.numpy()
    view[:] = 3
    c.push("w", buffer, aliases="allow")
    assert (c.fetch("w").numpy() == 3).all()
    # It was let in knowingly, and stays readable.
    c.delete("w")
    assert len(view) == 100_000 and view[0] is not None


# Promise: buffers-with-views
def test_a_refused_push_leaves_the_views_of_its_buffer_counted(c, other):
    other.push("theirs", b"x")
    calls = {
        "push": lambda key, buffer, **options: c.push(key, buffer, **options),
        "push_state": lambda key, buffer, **options: c.push_state(key, {"a": c.empty(1), "w": buffer}, **options),
    }
    for name, push in calls.items():
        buffer = c.empty(1000)
        view = buffer.numpy()
        view[:] = 1
        with pytest.raises(td.KeyOwned):
            push("theirs", buffer, aliases="allow")
        assert not buffer.pushed
        for refused in calls.values():
            with pytest.raises(td.StillExported):
                refused(name, buffer)
        # Views that are made now count, too, and the memory is the same.
        assert address(buffer.numpy()) == address(view) and (buffer.numpy() == 1).all()
        del view
        push(name, buffer)
    assert (other.fetch("push").numpy() == 1).all() and (other.fetch_state("push_state")["w"].numpy() == 1).all()


def test_produce_publishes_at_the_end_and_drops_on_an_exception(c):
    free = c.arena_free_bytes
    producing = c.produce("b", (4,), "float32", version=7)
    with producing as b:
        b.numpy()[:] = 2
    assert producing.pushed.version == 7 and c.fetch("b").version == 7
    with pytest.raises(RuntimeError):
        with c.produce("b", (4,), version=8) as b:
            b.numpy()[:] = 3
            raise RuntimeError
    del b
    assert c.fetch("b").version == 7
    c.delete("b")
    from conftest import until

    until("all is free again", lambda: c.arena_free_bytes == free)


def test_versions(c, other):
    c.push("k", b"1", version=5)
    assert other.fetch("k", exactly=5).version == 5
    with pytest.raises(td.Error) as e:
        c.push("k", b"1", version=5)
    assert e.value.code == "version_not_rising" and e.value.key == "k"
    later = other.fetch_later("k", at_least=6)
    assert not later.done()
    with pytest.raises(td.Timeout):
        later.result(timeout=0)
    c.push("k", b"2", version=6)
    assert later.result(timeout=60).version == 6 and later.done()
    assert later.result() is later.result()
    with pytest.raises(td.VersionGone):
        other.fetch("k", exactly=5)
    c.push("kept", b"1", keep="deleted")
    c.push("kept", b"2", keep=2)
    assert other.fetch("kept", exactly=1).version == 1
    tensors = other.fetch_many(["k", "kept"])
    assert [t.key for t in tensors] == ["k", "kept"]
    found, missing = other.fetch_many(["k", "none"], timeout=0.01)
    assert found.key == "k" and isinstance(missing, td.Timeout) and missing.key == "none"


# Promise: buffers-with-views
def test_a_push_that_fails_gives_the_buffer_back(c, other):
    other.push("k", b"mine")
    buffer = c.empty(4)
    buffer.numpy()[:] = 9
    with pytest.raises(td.KeyOwned) as e:
        c.push("k", buffer)
    assert (e.value.code, e.value.can_retry, e.value.fault) == ("key_owned", False, "caller")
    assert not buffer.pushed and (buffer.numpy() == 9).all()
    c.push("k", buffer, takeover=True)
    assert (other.fetch("k").numpy() == 9).all()


@pytest.mark.parametrize("value", ["3", 3.0, -1, 1 << 64, [1]])
@pytest.mark.parametrize("name", ["at_least", "exactly"])
def test_a_version_that_is_none_is_named(c, name, value):
    right = re.escape(f"{name} is a whole number from 0 to {(1 << 64) - 1}, or None; this is {value!r}")
    calls = [c.fetch, c.fetch_later, c.fetch_state, c.fetch_table, lambda key, **o: c.fetch_many([key], **o)]
    for call in calls:
        with pytest.raises(td.Invalid, match=right):
            call("k", **{name: value})
    with pytest.raises(td.Invalid, match=right.replace(name, "version")):
        c.push("k", b"x", version=value)
    for timeout in ("1", -1.0, [1]):
        with pytest.raises(td.Invalid, match=re.escape(f"timeout is seconds, a number from 0 on, or None; this is {timeout!r}")):
            c.fetch_state("k", timeout=timeout)
    c.push("k", b"x", version=np.int64(3))
    assert c.fetch("k", at_least=np.uint8(2), exactly=None).version == 3
    c.delete("k")
