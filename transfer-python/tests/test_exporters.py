"""Memory of other libraries: what an exporter says of it is checked."""

from __future__ import annotations

import ctypes
import re

import ml_dtypes
import numpy as np
import pytest
import transferd as td
from test_views import DELETER, DLDataType, DLDevice, DLTensor, Managed

new_capsule = ctypes.pythonapi.PyCapsule_New
new_capsule.argtypes, new_capsule.restype = [ctypes.c_void_p, ctypes.c_char_p, ctypes.c_void_p], ctypes.py_object


class Exporter:
    """An array of three float32 that says of itself what it is told to say."""

    def __init__(self, dims=(3,), strides=None, ndim=None, data="memory", offset=0, device=1, says=1, bits=32):
        self.memory = (ctypes.c_float * 3)(1, 2, 3)
        self.dims = None if dims is None else (ctypes.c_int64 * max(len(dims), 1))(*dims)
        self.strides = None if strides is None else (ctypes.c_int64 * len(strides))(*strides)
        data = ctypes.addressof(self.memory) if data == "memory" else data
        ndim = len(dims) if ndim is None else ndim
        tensor = DLTensor(data, DLDevice(device, 0), ndim, DLDataType(2, bits, 1), self.dims, self.strides, offset)
        self.managed, self.says = Managed(tensor, None, DELETER()), says

    def __dlpack_device__(self):
        return (self.says, 0)

    def __dlpack__(self, **asked):
        return new_capsule(ctypes.addressof(self.managed), b"dltensor", None)


class Failing(Exporter):
    def __dlpack__(self, **asked):
        raise RuntimeError("its own words")


class Nothing(Exporter):
    def __dlpack__(self, **asked):
        return "no capsule"


WRONG = {
    "null": (lambda: Exporter(data=None), "has no memory: its pointer is null"),
    "null with an offset": (lambda: Exporter(data=None, offset=64), "has no memory: its pointer is null"),
    "a negative dimension": (lambda: Exporter((3, -1)), "no dimensions such as [3, -1]"),
    "negative dimensions": (lambda: Exporter(ndim=-1), "the array has -1 dimensions"),
    "many dimensions": (lambda: Exporter(ndim=1 << 30), "the array has 1073741824 dimensions"),
    "no shape": (lambda: Exporter(None, ndim=2), "2 dimensions, and no shape"),
    "far strides": (lambda: Exporter((3, 3), (1 << 61, 1)), "exceeds the address space"),
    "strides before 0": (lambda: Exporter((1 << 40,), (-(1 << 20),)), "exceeds the address space"),
    "a far offset": (lambda: Exporter(offset=(1 << 64) - 1), "null"),
    "a GPU's capsule": (lambda: Exporter(device=2), "its capsule is of the device 2"),
    "another device's capsule": (lambda: Exporter(device=14), "its capsule is of the device 14"),
    "a third of a float": (lambda: Exporter(bits=11), "unsupported element type: DLPack's kind 2 with 11 bits"),
    "an error": (Failing, "the test_exporters.Failing does not give its memory: its own words"),
    "no capsule": (Nothing, "the test_exporters.Nothing does not give its memory"),
}


# Promise: python-refused-arrays
@pytest.mark.parametrize("which", WRONG)
def test_what_an_exporter_says_is_checked(c, which):
    make, reason = WRONG[which]
    with pytest.raises(td.Invalid, match=re.escape(reason)) as error:
        c.push("k", make())
    assert error.value.key == "k" and str(error.value).startswith("cannot push 'k': ")
    with pytest.raises(td.Invalid, match=re.escape("cannot push 'w' of the state 's': ") + ".*" + re.escape(reason)) as error:
        c.push_state("s", {"first": Exporter(), "w": make()})
    assert error.value.key == "s"
    c.push("k", Exporter())
    assert c.fetch("k").numpy().tolist() == [1, 2, 3]


UNSUPPORTED = {
    "datetime64[s]": (lambda: np.zeros(2, "datetime64[s]"), '.view("int64")'),
    "timedelta64[ns]": (lambda: np.zeros(2, "timedelta64[ns]"), '.view("int64")'),
    "[('a', '<i4')]": (lambda: np.zeros(2, [("a", "i4")]), "to a state with an entry for each field"),
    "object": (lambda: np.array([None]), '.astype("float64")'),
    "<U1": (lambda: np.array(["a"]), "push_table"),
    "|S1": (lambda: np.array([b"a"]), "push_table"),
    "|V3": (lambda: np.zeros(2, "V3"), '.view("uint8")'),
    ">i4": (lambda: np.zeros(2, ">i4"), '.astype("int32")'),
    ">f8": (lambda: np.zeros(2, ">f8"), '.astype("float64")'),
    "float128": (lambda: np.zeros(2, "longdouble"), '.astype("float64")'),
    "complex256": (lambda: np.zeros(2, "clongdouble"), '.astype("complex128")'),
    ">c16": (lambda: np.zeros(2, ">c16"), '.astype("complex128")'),
    "float8_e4m3fnuz": (lambda: np.zeros(2, ml_dtypes.float8_e4m3fnuz), '.astype("float32")'),
    "float6_e2m3fn": (lambda: np.zeros(2, ml_dtypes.float6_e2m3fn), '.astype("float32")'),
    "int2": (lambda: np.zeros(2, ml_dtypes.int2), '.astype("int8")'),
    "StringDType()": (lambda: np.array(["a"], np.dtypes.StringDType()), "push_table"),
}


# Promise: python-refused-arrays
@pytest.mark.parametrize("dtype", UNSUPPORTED)
def test_arrays_of_other_types_are_refused_with_what_to_convert_to(c, dtype):
    make, way = UNSUPPORTED[dtype]
    reason = rf"the numpy.ndarray has the unsupported element type {re.escape(dtype)}; there are bool, .*float32.*: convert it first, "
    pushes = {
        "'k'": lambda: c.push("k", make()),
        "'a' of the state 'k'": lambda: c.push_state("k", {"first": np.ones(2), "a": make()}),
    }
    for where, push in pushes.items():
        with pytest.raises(td.Invalid, match=f"cannot push {where}: {reason}") as error:
            push()
        assert way in str(error.value) and error.value.key == "k"


# Promise: python-refused-arrays
def test_an_array_with_a_mask_is_refused(c):
    masked = np.ma.masked_array(np.ones(3), [0, 1, 0])
    with pytest.raises(td.Invalid, match="cannot push 'k': the numpy.ma.*MaskedArray has a mask, which would be lost: take .filled") as error:
        c.push("k", masked)
    assert error.value.key == "k"
    with pytest.raises(td.Invalid, match="cannot push 'a/0' of the state 's': the numpy.ma.*MaskedArray has a mask"):
        c.push_state("s", {"a": [masked]})
    c.push("k", masked.filled(0))
