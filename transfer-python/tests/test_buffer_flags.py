"""Flags of the buffer protocol: every combination is answered as numpy answers it."""

from __future__ import annotations

import ctypes
import itertools

import numpy as np
import pytest
from conftest import until

BITS = {"WRITABLE": 1, "FORMAT": 4, "ND": 8, "STRIDES": 0x18, "C": 0x38, "F": 0x58, "ANY": 0x98, "INDIRECT": 0x118}


class View(ctypes.Structure):
    _fields_ = [
        ("buf", ctypes.c_void_p),
        ("obj", ctypes.c_void_p),
        ("len", ctypes.c_ssize_t),
        ("itemsize", ctypes.c_ssize_t),
        ("readonly", ctypes.c_int),
        ("ndim", ctypes.c_int),
        ("format", ctypes.c_char_p),
        ("shape", ctypes.POINTER(ctypes.c_ssize_t)),
        ("strides", ctypes.POINTER(ctypes.c_ssize_t)),
        ("suboffsets", ctypes.c_void_p),
        ("internal", ctypes.c_void_p),
    ]


def answer(of: object, flags: int) -> object:
    """What is answered to a consumer that asks with these flags."""
    view = View()
    get, release = ctypes.pythonapi.PyObject_GetBuffer, ctypes.pythonapi.PyBuffer_Release
    get.argtypes, release.argtypes = [ctypes.py_object, ctypes.POINTER(View), ctypes.c_int], [ctypes.POINTER(View)]
    try:
        get(of, view, flags)
    except (BufferError, ValueError):
        return "refused"
    listed = lambda of: of[: view.ndim] if of else None  # noqa: E731
    found = (view.len, view.itemsize, view.readonly, view.ndim, view.format, listed(view.shape), listed(view.strides))
    release(view)
    return found


# Promise: buffer-protocol-flags
@pytest.mark.parametrize("shape", [(), (0,), (5,), (2, 3), (1, 3), (3, 1), (0, 2), (1, 1), (2, 1, 3), (1, 4, 1)])
def test_flags_of_the_buffer_protocol_are_answered_as_numpy_answers_them(c, shape):
    array = np.zeros(shape, "int16")
    c.push("k", array)
    read_only = array.copy()
    read_only.flags.writeable = False
    for chosen in itertools.product([False, True], repeat=len(BITS)):
        flags = 0
        for bit, is_set in zip(BITS.values(), chosen):
            flags |= bit if is_set else 0
        for ours, theirs in ((c.empty(shape, "int16"), array), (c.fetch("k"), read_only)):
            assert answer(ours, flags) == answer(theirs, flags), (type(ours), hex(flags))


def test_an_exchange_of_flags_keeps_nothing(c):
    free = c.arena_free_bytes
    buffer = c.empty((2, 3), "int16")
    assert answer(buffer, BITS["F"]) == "refused" and answer(buffer, BITS["C"]) != "refused"
    # A view that was refused or released does not count.
    c.push("k", buffer)
    c.delete("k")
    until("it is free again", lambda: c.arena_free_bytes == free)
