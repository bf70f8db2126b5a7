"""torch: DLPack both ways, pushes of its tensors, and state dicts of its modules."""

from __future__ import annotations

import gc

import ml_dtypes
import numpy as np
import pytest
import torch
import transferd as td
from conftest import until
from test_tensors import DTYPES, address

# Above what is mapped privately for DLPack, 64 KiB.
LARGE = (256, 256)


def values(name: str, shape: tuple[int, ...]) -> torch.Tensor:
    count = int(np.prod(shape))
    return (torch.arange(count) % 2).to(getattr(torch, name)).reshape(shape)


def same(a: torch.Tensor, b: torch.Tensor) -> bool:
    """Whether two tensors have the same type, shape and bytes."""
    return a.dtype == b.dtype and a.shape == b.shape and raw(a) == raw(b)


def raw(a: torch.Tensor) -> bytes:
    return a.detach().contiguous().reshape(-1).view(torch.uint8).numpy().tobytes()


# Promise: torch-tensors
@pytest.mark.parametrize("name", DTYPES)
@pytest.mark.parametrize("shape", [(), (0,), (3, 0, 2), (5,), (3, 4, 5), LARGE])
def test_every_type_and_shape_goes_both_ways(c, other, name, shape):
    expected = values(name, shape)
    buffer = c.empty(shape, expected.dtype)
    written = buffer.torch()
    assert written.dtype == expected.dtype and tuple(written.shape) == shape
    written.copy_(expected)
    if expected.numel() > 0:
        # It is the buffer's memory.
        assert written.data_ptr() == address(buffer.numpy().view("uint8") if shape else buffer.numpy())
        assert buffer.numpy().tobytes() == raw(expected)
    del written
    assert c.push("own", buffer).report.copied == 0
    assert c.push("foreign", expected).report.copied == buffer.nbytes
    for key in ("own", "foreign"):
        for client in (c, other):
            assert same(client.fetch(key).torch(), expected)
            assert same(torch.from_dlpack(client.fetch(key)), expected)


# Promise: python-four-bit-elements
@pytest.mark.parametrize("shape", [(0,), (2,), (3, 4, 8), LARGE])
def test_pairs_of_4_bits_go_both_ways(c, other, shape):
    # A shape counts elements, and torch's counts pairs.
    pairs = (*shape[:-1], shape[-1] // 2)
    expected = torch.arange(int(np.prod(pairs))).to(torch.uint8).reshape(pairs).view(torch.float4_e2m1fn_x2)
    buffer = c.empty(shape, "float4_e2m1fn")
    written = buffer.torch()
    assert written.dtype == torch.float4_e2m1fn_x2 and tuple(written.shape) == pairs
    written.copy_(expected)
    del written
    assert c.push("own", buffer).report.copied == 0
    assert c.push("foreign", expected).report.copied == expected.numel()
    turned = expected.reshape(max(pairs[0], 1), -1).t()
    c.push("turned", turned)
    assert same(other.fetch("turned").torch(), turned.view(torch.uint8).contiguous().view(torch.float4_e2m1fn_x2))
    for key in ("own", "foreign"):
        tensor = other.fetch(key)
        assert (tensor.dtype, tensor.shape) == ("float4_e2m1fn", shape) and same(tensor.torch(), expected)
        low = raw(expected)[0] & 15 if expected.numel() else 0
        assert tensor.numpy().shape == shape and (not low or tensor.numpy().reshape(-1).view("uint8")[0] == low)
    c.push_state("s", {"w": expected})
    into = {"w": torch.empty_like(expected)}
    c.fetch_state("s", into=into)
    assert same(into["w"], expected)
    turned = torch.zeros((*pairs[:-1], 2 * pairs[-1]), dtype=torch.uint8)[..., ::2].view(torch.float4_e2m1fn_x2)
    c.fetch_state("s", into={"w": turned})
    assert torch.equal(turned.view(torch.uint8), expected.view(torch.uint8))
    with pytest.raises(td.Invalid, match="cannot push 'k': .*two elements of f4e2m1 share a byte"):
        c.push("k", torch.zeros((), dtype=torch.uint8).view(torch.float4_e2m1fn_x2))
    c.push("int4", np.zeros(4, ml_dtypes.int4))
    with pytest.raises(BufferError, match="no library takes int4 by DLPack"):
        c.fetch("int4").torch()


def test_a_buffer_with_a_view_of_torch_is_not_taken(c):
    buffer = c.empty(LARGE)
    view = buffer.torch()[1:]
    with pytest.raises(td.StillExported):
        c.push("w", buffer)
    view.fill_(2)
    del view
    c.push("w", buffer)
    assert (c.fetch("w").torch()[1:] == 2).all()


# Promise: torch-writes
@pytest.mark.filterwarnings("ignore:.*not writable")
@pytest.mark.parametrize("shape", [LARGE, (4, 4)])
def test_writing_to_what_was_fetched_is_seen_by_nobody_else(c, other, shape):
    c.push("w", torch.ones(shape))
    tensor, theirs = c.fetch("w"), other.fetch("w")
    seen = [tensor.numpy(), theirs.numpy(), tensor.torch(), theirs.torch()]
    scribbled = tensor.torch()
    scribbled.mul_(3).add_(1)
    assert (scribbled == 4).all()
    assert all((np.asarray(view) == 1).all() for view in seen)
    assert (other.fetch("w").numpy() == 1).all() and (c.fetch("w").torch() == 1).all()
    # Large ones are mapped, small ones are copied, and that is counted.
    assert tensor.exports_copied == (0 if shape == LARGE else 2 * tensor.nbytes)


def test_a_view_of_torch_outlives_tensor_client_and_sidecar(sidecar):
    with td.connect(sidecar.path, arena="4MiB") as c:
        c.push("w", torch.full(LARGE, 7.0))
        view, buffer = c.fetch("w").torch(), c.empty(LARGE).torch()
    sidecar.kill()
    gc.collect()
    buffer.copy_(view)
    assert (buffer == 7).all()


def test_the_last_view_of_torch_gives_the_memory_back(c):
    free = c.arena_free_bytes
    c.push("w", torch.ones(LARGE))
    view = c.fetch("w").torch()[3:]
    c.delete("w")
    assert c.arena_free_bytes < free and (view == 1).all()
    del view
    until("the range is free", lambda: c.arena_free_bytes == free)


# Promise: torch-tensors
@pytest.mark.parametrize(
    "made",
    [
        lambda x: x.t(),
        lambda x: x[::2, 1::3],
        lambda x: x[5],
        lambda x: x[:, 5],
        lambda x: x[:1].expand(7, 64),
        lambda x: x.reshape(1, 4, 32, 32).to(memory_format=torch.channels_last),
        lambda x: x.reshape(4, 4, 4, 64).permute(3, 1, 0, 2),
    ],
    ids=["transposed", "steps", "row", "column", "expanded", "channels_last", "permuted"],
)
def test_tensors_of_any_layout_are_pushed_as_torch_sees_them(c, made):
    expected = made(torch.arange(4096.0).reshape(64, 64))
    assert c.push("w", expected).report.copied == expected.numel() * 4
    found = c.fetch("w").torch()
    assert found.is_contiguous() and same(found, expected)


# Promise: torch-tensors
def test_a_tensor_with_a_gradient_is_pushed_as_its_values(c):
    parameter = torch.nn.Parameter(torch.full((8,), 2.0))
    result = parameter * 3
    c.push("leaf", parameter)
    c.push("result", result)
    c.push_state("state", {"leaf": parameter, "result": result})
    for found in (c.fetch("result"), c.fetch_state("state")["result"]):
        assert (found.torch() == 6).all() and not found.torch().requires_grad
    assert (c.fetch("leaf").torch() == 2).all()
    # The graph is as it was.
    result.sum().backward()
    assert (parameter.grad == 3).all()


# Promise: gpu-errors
def test_without_a_gpu_a_copy_to_one_is_refused(c):
    c.push("w", np.arange(5.0))
    tensor = c.fetch("w")
    assert (tensor.torch(device="cpu") == torch.arange(5.0)).all()
    with pytest.raises(td.NoDevice, match="CUDA driver|there is no GPU 120"):
        tensor.torch(device="cuda:120" if torch.cuda.is_available() else "cuda")
    with pytest.raises(td.Invalid, match="meta is neither"):
        tensor.torch(device="meta")


def model(seed: int) -> torch.nn.Module:
    torch.manual_seed(seed)
    return torch.nn.Sequential(
        torch.nn.Conv2d(1, 8, 3), torch.nn.BatchNorm2d(8), torch.nn.Flatten(), torch.nn.Linear(8 * 36, 300)
    )


def equal(a: torch.nn.Module, b: torch.nn.Module) -> bool:
    ours, theirs = a.state_dict(), b.state_dict()
    return list(ours) == list(theirs) and all(same(ours[name], theirs[name]) for name in ours)


# Promise: torch-models
def test_a_state_dict_goes_from_one_model_to_another(c, other):
    trained, replica = model(1), model(2)
    state = trained.state_dict()
    total = sum(value.numel() * value.element_size() for value in state.values())
    assert c.push_state("policy", state, version=4).report.copied == total
    assert not equal(trained, replica)
    found = other.fetch_state("policy", into=replica.state_dict(), at_least=4)
    assert found.version == 4 and equal(trained, replica)
    batch = torch.ones(2, 1, 8, 8)
    assert torch.equal(trained.eval()(batch), replica.eval()(batch))
    # The views themselves, with no copy into others.
    third = model(3)
    third.load_state_dict({name: tensor.torch() for name, tensor in found.items()})
    assert equal(trained, third)


@pytest.mark.parametrize("name", DTYPES)
def test_a_state_is_copied_into_tensors_of_every_type(c, name):
    shapes = {"large": LARGE, "small": (3,), "one": (), "none": (0, 2)}
    expected = {key: values(name, shape) for key, shape in shapes.items()}
    c.push_state("s", expected)
    into = {key: torch.zeros_like(value) for key, value in expected.items()}
    c.fetch_state("s", into=into)
    assert all(same(into[key], value) for key, value in expected.items())
    # Also into what is not contiguous, and what has a gradient.
    turned = torch.zeros(LARGE, dtype=getattr(torch, name)).t()
    c.fetch_state("s", into={"large": turned})
    assert same(turned, expected["large"])


# Promise: torch-models
def test_a_state_that_does_not_fit_a_model_writes_nothing(c):
    c.push_state("policy", model(1).state_dict())
    wider = torch.nn.Sequential(*model(2)[:3], torch.nn.Linear(8 * 36, 301))
    before = {name: value.clone() for name, value in wider.state_dict().items()}
    reason = r"'3.weight' is float32 \[300, 288\] in the state and float32 \[301, 288\] where"
    with pytest.raises(ValueError, match=reason):
        c.fetch_state("policy", into=wider.state_dict())
    halved = model(2).half()
    with pytest.raises(ValueError, match=r"'0.weight' is float32 \[8, 1, 3, 3\] in the state and float16"):
        c.fetch_state("policy", into=halved.state_dict())
    deeper = torch.nn.Sequential(*model(2), torch.nn.Linear(300, 1))
    with pytest.raises(KeyError, match="no '4.weight'"):
        c.fetch_state("policy", into=deeper.state_dict())
    assert all(torch.equal(value, before[name]) for name, value in wider.state_dict().items())


def test_parameters_are_written_where_they_are_leaves_of_a_graph(c):
    replica = model(2)
    c.push_state("policy", model(1).state_dict())
    c.fetch_state("policy", into=dict(replica.named_parameters()))
    assert all(parameter.is_leaf and parameter.requires_grad for parameter in replica.parameters())
    assert same(replica[0].weight, model(1)[0].weight)
