"""Tensors of torch that are more than memory: every class and layout that this torch can make, each in a process of its own."""

from __future__ import annotations

import subprocess
import sys

import pytest
import torch

# How a tensor is made, and the values that are pushed, or a part of the reason why none are.
CLASSES = {
    "dense": ("torch.ones(3)", [1, 1, 1]),
    "negative": ("torch._neg_view(torch.ones(3))", [-1, -1, -1]),
    "conjugate": ("torch.full((2,), 1 + 2j).conj()", [1 - 2j, 1 - 2j]),
    "imaginary part of a conjugate": ("torch.full((2,), 1 + 2j).conj().imag", [-2, -2]),
    "zeros without memory": ("torch._efficientzerotensor((3,))", [0, 0, 0]),
    "expanded": ("torch.ones(1).expand(3)", [1, 1, 1]),
    "empty": ("torch.ones(0, 3)", []),
    "inference": ("inference()", [1, 1, 1]),
    "dual": ("dual()", [1, 1, 1]),
    "subclass with memory": ("torch.ones(3).as_subclass(Plain)", [1, 1, 1]),
    "Parameter": ("torch.nn.Parameter(torch.ones(3))", [1, 1, 1]),
    "Buffer": ("torch.nn.Buffer(torch.ones(3))", [1, 1, 1]),
    "freed": ("cut(0)", "the Tensor has 4000 bytes, and its storage 0: the storage was freed or cut"),
    "cut": ("cut(8)", "the Tensor has 4000 bytes, and its storage 8: the storage was freed or cut"),
    "DTensor": ("dtensor()", "the DTensor has no memory of its own: take .to_local() or .full_tensor()"),
    "AsyncCollectiveTensor": ("collective(torch.ones(3))", "take .wait()"),
    "MaskedTensor": ("torch.masked.masked_tensor(torch.ones(2), torch.tensor([True, False]))", "take .get_data()"),
    "LocalTensor": ("torch.distributed._local_tensor.LocalTensor({0: torch.ones(3)})", "take the tensors that it is made of"),
    "FakeTensor": ("fake()", "the FakeTensor has no memory of its own"),
    "functional": ("torch._to_functional_tensor(torch.ones(3))", "has no memory of its own"),
    "meta": ("torch.ones(3, device='meta')", "is on the device meta"),
    "UninitializedParameter": ("torch.nn.UninitializedParameter()", "has no shape yet: run its module once first"),
    "UninitializedBuffer": ("torch.nn.UninitializedBuffer()", "has no shape yet"),
    "batched": ("inside(torch.func.vmap, torch.ones(3, 2))", "inside of a function of torch.func"),
    "differentiated": ("inside(torch.func.grad, torch.ones(3))", "inside of a function of torch.func"),
    "sparse_coo": ("torch.eye(4).to_sparse()", "the Tensor of the layout sparse_coo is not dense: take .to_dense()"),
    "sparse_csr": ("torch.eye(4).to_sparse_csr()", "take .to_dense()"),
    "sparse_csc": ("torch.eye(4).to_sparse_csc()", "take .to_dense()"),
    "sparse_bsr": ("torch.eye(4).to_sparse_bsr((2, 2))", "take .to_dense()"),
    "sparse_bsc": ("torch.eye(4).to_sparse_bsc((2, 2))", "take .to_dense()"),
    "_mkldnn": ("torch.ones(3, 4).to_mkldnn()", "take .to_dense()"),
    "nested": ("torch.nested.nested_tensor([torch.ones(2), torch.ones(3)])", "is nested, and has no shape: take"),
    "jagged": ("torch.nested.nested_tensor([torch.ones(2), torch.ones(3)], layout=torch.jagged)", "is nested"),
    "quantized": ("torch.quantize_per_tensor(torch.ones(3), 0.1, 0, torch.quint8)", "take .dequantize()"),
    "quantized by channel": ("torch.quantize_per_channel(torch.ones(3, 2), torch.ones(3), torch.zeros(3), 0, torch.qint8)", "take .dequantize()"),
}
# Every element type that torch has and a tensor has not is refused by name.
for name in ("bits8", "uint4", "int3", "complex32", "bcomplex32", "float8_e4m3fnuz"):
    CLASSES[name] = (f"torch.empty(2, dtype=torch.{name})", f"the Tensor has the unsupported element type {name}; there are bool, ")

SCRIPT = """
import os, sys, warnings
import numpy as np, torch, transferd as td, torch.masked, torch.distributed._local_tensor
import transferd.nn
warnings.simplefilter("ignore")

class Plain(torch.Tensor):
    pass

def cut(size):
    made = torch.ones(1000)
    made.untyped_storage().resize_(size)
    return made

def dtensor():
    import torch.distributed as dist
    from torch.distributed.tensor import Shard, distribute_tensor
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    return distribute_tensor(torch.ones(4, 4), dist.device_mesh.init_device_mesh("cpu", (1,)), [Shard(0)])

def collective(of):
    from torch.distributed._functional_collectives import AsyncCollectiveTensor
    return AsyncCollectiveTensor(of)

def fake():
    with torch._subclasses.fake_tensor.FakeTensorMode():
        return torch.ones(3)

def inference():
    with torch.inference_mode():
        return torch.ones(3)

def dual():
    torch.autograd.forward_ad.enter_dual_level()
    return torch.autograd.forward_ad.make_dual(torch.ones(3), torch.ones(3))

def inside(function, over):
    kept = []
    function(lambda x: kept.append(x) or x.sum())(over)
    return kept[0]

def refused(call, where, reason, why=td.Invalid):
    try:
        call()
    except why as error:
        assert where in str(error) and (reason is None or reason in str(error)), error
    else:
        raise AssertionError("it was not refused")

made, expected = {made}, {expected!r}
c = td.embedded(arena="16MiB")
if isinstance(expected, str):
    refused(lambda: c.push("k", made), "cannot push 'k': ", expected)
    # A state with a DTensor is a rank's part of a sharded one.
    is_part = type(made).__name__ == "DTensor"
    why = "the sharded state 's' needs version=" if is_part else expected
    refused(lambda: c.push_state("s", {{"first": torch.ones(2), "w": made}}), "'s'" if is_part else "cannot push 'w' of the state 's': ", why)
    first = torch.zeros(2)
    c.push_state("s", {{"first": torch.ones(2), "w": torch.ones(3)}})
    why = "is no sharded state" if is_part else expected
    refused(lambda: c.fetch_state("s", into={{"first": first, "w": made}}), "" if is_part else "cannot copy into 'w': ", why)
    assert not first.any()
else:
    c.push("k", made)
    c.push_state("s", {{"first": torch.ones(2), "w": made}})
    for found in (c.fetch("k"), c.fetch_state("s")["w"]):
        assert found.numpy().reshape(-1).tolist() == expected, found.numpy()
    target = torch.zeros_like(c.fetch("k").torch())
    c.fetch_state("s", into={{"w": target}})
    assert target.reshape(-1).tolist() == expected

# Modules may have them, too: they are moved with their values, or the module is as it was.
module = torch.nn.Linear(2, 2)
module._buffers["w"] = made
try:
    shared = transferd.nn.share_(c, module)
except td.Invalid as error:
    assert "'w'" in str(error), error
    assert module._buffers["w"] is made
else:
    assert not isinstance(expected, str)
    assert shared.buffers["w"].numpy().reshape(-1).tolist() == expected
print("done")
c.close()
os._exit(0)
"""


# Promise: torch-tensors
@pytest.mark.parametrize("which", CLASSES)
def test_every_class_of_tensor_is_pushed_as_its_values_or_refused(which):
    made, expected = CLASSES[which]
    done = subprocess.run([sys.executable, "-c", SCRIPT.format(made=made, expected=expected)], capture_output=True, text=True)
    assert (done.returncode, done.stdout) == (0, "done\n"), done.stderr


def test_every_layout_of_torch_is_in_the_table():
    layouts = {name for name in dir(torch) if isinstance(getattr(torch, name), torch.layout)}
    assert layouts - {"strided"} <= CLASSES.keys()


def test_a_target_that_was_expanded_is_found_before_the_first_is_written(c):
    c.push_state("s", {"a": torch.ones(4), "b": torch.ones(4)})
    a = torch.zeros(4)
    with torch.inference_mode():
        inference = torch.zeros(4)
    import transferd as td

    for b in (torch.zeros(1).expand(4), inference):
        with pytest.raises(td.Invalid, match="cannot copy into 'b'"):
            c.fetch_state("s", into={"a": a, "b": b})
    assert not a.any()
