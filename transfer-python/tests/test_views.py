"""Views and exports: what keeps memory, who may write it, and that nothing of Python's is touched when they end."""

from __future__ import annotations

import ctypes
import gc
import os
import signal
import subprocess
import sys
import threading

import ml_dtypes
import numpy as np
import pytest
import transferd as td
from conftest import until
from test_tensors import address


class DLDevice(ctypes.Structure):
    _fields_ = [("type", ctypes.c_int32), ("id", ctypes.c_int32)]


class DLDataType(ctypes.Structure):
    _fields_ = [("code", ctypes.c_uint8), ("bits", ctypes.c_uint8), ("lanes", ctypes.c_uint16)]


class DLTensor(ctypes.Structure):
    _fields_ = [
        ("data", ctypes.c_void_p),
        ("device", DLDevice),
        ("ndim", ctypes.c_int32),
        ("dtype", DLDataType),
        ("shape", ctypes.POINTER(ctypes.c_int64)),
        ("strides", ctypes.POINTER(ctypes.c_int64)),
        ("byte_offset", ctypes.c_uint64),
    ]


DELETER = ctypes.CFUNCTYPE(None, ctypes.c_void_p)


class Managed(ctypes.Structure):
    _fields_ = [("tensor", DLTensor), ("context", ctypes.c_void_p), ("deleter", DELETER)]


class Versioned(ctypes.Structure):
    _fields_ = [
        ("major", ctypes.c_uint32),
        ("minor", ctypes.c_uint32),
        ("context", ctypes.c_void_p),
        ("deleter", DELETER),
        ("flags", ctypes.c_uint64),
        ("tensor", DLTensor),
    ]


READ_ONLY, IS_COPIED = 1, 2
is_valid = ctypes.pythonapi.PyCapsule_IsValid
is_valid.argtypes, is_valid.restype = [ctypes.py_object, ctypes.c_char_p], ctypes.c_int
pointer_of = ctypes.pythonapi.PyCapsule_GetPointer
pointer_of.argtypes, pointer_of.restype = [ctypes.py_object, ctypes.c_char_p], ctypes.c_void_p
set_name = ctypes.pythonapi.PyCapsule_SetName
set_name.argtypes, set_name.restype = [ctypes.py_object, ctypes.c_char_p], ctypes.c_int

USED, USED_VERSIONED = b"used_dltensor", b"used_dltensor_versioned"


def consume(of, **asked):
    """Takes a capsule over, as a consumer does that holds on to its managed tensor."""
    capsule = of.__dlpack__(**asked)
    if is_valid(capsule, b"dltensor_versioned"):
        managed = ctypes.cast(pointer_of(capsule, b"dltensor_versioned"), ctypes.POINTER(Versioned)).contents
        assert set_name(capsule, USED_VERSIONED) == 0
    else:
        managed = ctypes.cast(pointer_of(capsule, b"dltensor"), ctypes.POINTER(Managed)).contents
        assert set_name(capsule, USED) == 0
    return managed


def dispose(managed):
    managed.deleter(ctypes.addressof(managed))


def content(managed, length):
    return ctypes.string_at(managed.tensor.data, length)


@pytest.fixture
def big(c):
    """A tensor that is mapped privately for DLPack."""
    c.push("big", np.arange(1 << 18, dtype="float32").reshape(512, 512))
    return c.fetch("big")


# Promise: dlpack-views
@pytest.mark.parametrize("who", ["own", "other"])
def test_dlpack_of_a_fetched_tensor_is_a_private_mapping(c, other, big, who):
    tensor = big if who == "own" else other.fetch("big")
    where, expected = address(tensor.numpy()), tensor.numpy().tobytes()
    assert tensor.__dlpack_device__() == (1, 0)
    managed = consume(tensor, max_version=(1, 1))
    assert (managed.major, managed.flags) == (1, READ_ONLY)
    of = managed.tensor
    assert (of.device.type, of.device.id, of.ndim, of.byte_offset) == (1, 0, 2, 0)
    assert (of.dtype.code, of.dtype.bits, of.dtype.lanes) == (2, 32, 1)
    assert (of.shape[:2], of.strides[:2]) == ([512, 512], [512, 1])
    assert of.data != where and content(managed, len(expected)) == expected
    assert tensor.exports_copied == 0
    # It is the same file's pages, until somebody writes: then it is a page of the writer's alone.
    old = consume(tensor)
    assert not isinstance(old, Versioned) and old.tensor.data not in (where, of.data)
    ctypes.memset(old.tensor.data, 0xFF, 10_000)
    assert content(old, 10_000) == b"\xff" * 10_000 and content(old, len(expected))[16_384:] == expected[16_384:]
    assert content(managed, len(expected)) == expected == tensor.numpy().tobytes()
    dispose(old)
    dispose(managed)


# Promise: dlpack-views
def test_dlpack_of_small_tensors_is_a_copy_and_says_so(c):
    c.push("small", np.arange(16_383, dtype="int32"))
    tensor = c.fetch("small")
    managed = consume(tensor, max_version=(1, 0))
    assert managed.flags == IS_COPIED and tensor.exports_copied == 65_532
    assert content(managed, 65_532) == tensor.numpy().tobytes()
    dispose(managed)
    # One element more, and it is mapped.
    c.push("large", np.arange(16_384, dtype="int32"))
    managed = consume(c.fetch("large"), max_version=(1, 0))
    assert managed.flags == READ_ONLY
    dispose(managed)


def test_dlpack_takes_what_a_consumer_asks(c, big):
    copy = consume(big, max_version=(1, 0), copy=True)
    assert copy.flags == IS_COPIED
    dispose(copy)
    with pytest.raises(BufferError, match="host"):
        big.__dlpack__(dl_device=(2, 0))
    with pytest.raises(TypeError):
        big.__dlpack__(nonsense=1)
    buffer = c.empty((2, 3), "bfloat16")
    managed = consume(buffer, max_version=(1, 0))
    assert managed.flags == 0 and (managed.tensor.dtype.code, managed.tensor.dtype.bits) == (4, 16)
    ctypes.memset(managed.tensor.data, 0, 12)
    assert (buffer.numpy() == 0).all()
    with pytest.raises(td.StillExported):
        c.push("b", buffer)
    dispose(managed)
    c.push("b", buffer)


# Promise: lifetime-of-views
def test_a_capsule_that_nobody_takes_keeps_nothing(c):
    free = c.arena_free_bytes
    buffer = c.empty(1 << 16, "uint8")
    buffer.__dlpack__(), buffer.__dlpack__(max_version=(1, 0))
    c.push("k", buffer)
    tensor = c.fetch("k")
    tensor.__dlpack__(), tensor.__dlpack__(max_version=(1, 0))
    del tensor
    c.delete("k")
    until("it is free again", lambda: c.arena_free_bytes == free)


# Promise: dlpack-views
def test_numpy_honours_the_flag(big):
    array = np.from_dlpack(big)
    assert not array.flags.writeable and array[-1, -1] == (1 << 18) - 1


# Promise: lifetime-of-views
def test_views_outlive_tensor_client_and_sidecar(sidecar):
    c = td.connect(sidecar.path, arena="4MiB")
    reader = td.connect(sidecar.path, arena=0)
    c.push("w", np.full(1 << 17, 7, "float32"))
    tensor = reader.fetch("w")
    views = [tensor.numpy(), memoryview(tensor), np.from_dlpack(tensor), np.asarray(tensor)]
    managed = consume(tensor)
    del tensor
    reader.close()
    c.close()
    sidecar.kill()
    del c, reader
    gc.collect()
    for view in views:
        assert (np.asarray(view) == 7).all()
    assert content(managed, 8) == np.full(2, 7, "float32").tobytes()
    dispose(managed)


# Promise: lifetime-of-views
def test_the_last_view_gives_the_memory_back(c, other, sidecar):
    c.push("w", np.zeros(1 << 16))
    tensor = other.fetch("w")
    view = tensor.numpy()[10:20]
    part = view[2:]
    del tensor, view
    free = c.arena_free_bytes
    c.delete("w")
    # The view still reads it.
    assert c.arena_free_bytes == free and (part == 0).all()
    del part
    until("the range is free", lambda: c.arena_free_bytes > free)


def test_the_buffer_protocol_shows_elements_and_says_what_it_cannot(c):
    c.push("w", np.arange(6, dtype="int16").reshape(2, 3))
    view = memoryview(c.fetch("w"))
    assert (view.format, view.shape, view.strides, view.readonly) == ("h", (2, 3), (6, 2), True)
    assert view.tolist() == [[0, 1, 2], [3, 4, 5]]
    with memoryview(c.empty((2, 3), "float32")) as writable:
        assert not writable.readonly
    c.push("b", np.ones(3, ml_dtypes.bfloat16))
    tensor = c.fetch("b")
    with pytest.raises(BufferError, match="element type"):
        memoryview(tensor)
    # Not as some integers: by __array__.
    assert np.asarray(tensor).dtype == ml_dtypes.bfloat16
    assert np.asarray(tensor, "float32").tolist() == [1, 1, 1]
    with pytest.raises(ValueError):
        np.array(tensor, "float32", copy=False)
    assert np.array(tensor, copy=True).flags.writeable


# Promise: threads-of-exports
def test_deleters_run_on_any_thread_without_the_interpreter_s_lock(c, big):
    # A thread that ctypes' deleter runs in has let go of the lock, as all of ctypes' foreign functions do.
    assert isinstance(DELETER, type)
    tensors = [consume(c.fetch("big"), max_version=(1, 0)) for _ in range(200)]
    threads = [threading.Thread(target=lambda part=tensors[i::4]: [dispose(m) for m in part]) for i in range(4)]
    [thread.start() for thread in threads]
    [thread.join() for thread in threads]


WRITES = """
import ctypes, sys
sys.path.insert(0, {tests!r})
import numpy as np, transferd as td
c = td.connect({path!r}, arena="4MiB") if {path!r} else td.embedded(arena="4MiB")
buffer = c.empty(1 << 14, "float32")
buffer.numpy()[:] = 1
if {kind!r} == "state":
    c.push_state("k", {{"w": buffer}})
    array = c.fetch_state("k")["w"].numpy()
else:
    c.push("k", buffer)
    array = c.fetch("k").numpy()
assert not array.flags.writeable and (array == 1).all()
# What is not published yet is written where it lies, and may be what was fetched before.
other = c.empty(4)
other.numpy()[:] = 2
print("reads", flush=True)
ctypes.memset(array.__array_interface__["data"][0], 0, 4)
print("has written", flush=True)
"""


# Promise: read-only-arrays
@pytest.mark.parametrize("kind", ["tensor", "state"])
@pytest.mark.parametrize("embedded", [False, True])
def test_a_version_cannot_be_written_in_the_process_that_published_it(sidecar, embedded, kind):
    from pathlib import Path

    script = WRITES.format(tests=str(Path(__file__).parent), path="" if embedded else sidecar.path, kind=kind)
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)
    assert (done.returncode, done.stdout) == (-signal.SIGSEGV, "reads\n"), done.stderr


AT_EXIT = """
import sys, ctypes
sys.path.insert(0, {tests!r})
import numpy as np, transferd as td
from test_views import consume
c = td.connect({path!r}, arena="4MiB") if {path!r} else td.embedded(arena="4MiB")
c.push("k", np.ones(1 << 17))
tensor = c.fetch("k")
keep = [tensor, tensor.numpy(), np.from_dlpack(tensor), memoryview(tensor), consume(tensor), c.empty(8).numpy()]
pending = c.fetch_later("never")
cycle = [c, keep]
cycle.append(cycle)
print(c.path)
{ending}
"""


# Promise: threads-of-exports
@pytest.mark.parametrize("ending", ["", "sys.exit(0)", "del c, cycle, keep, tensor, pending", "c.close()"])
@pytest.mark.parametrize("embedded", [False, True])
def test_an_interpreter_ends_with_open_sessions(sidecar, ending, embedded):
    from pathlib import Path

    script = AT_EXIT.format(tests=str(Path(__file__).parent), path="" if embedded else sidecar.path, ending=ending)
    done = subprocess.run([sys.executable, "-X", "dev", "-c", script], capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "")
    # A sidecar of the process's own leaves no folder behind.
    assert os.path.exists(os.path.dirname(done.stdout.strip())) != embedded
    until("its session is over", lambda: sidecar.counters()["sessions"] == 0)
