"""Tensors on a real GPU, by torch and by DLPack. `make test-gpu` runs these tests on a machine that has one."""

from __future__ import annotations

import asyncio
import gc
import os

import cupy
import numpy as np
import pytest
import torch
import transferd as td
from conftest import Sidecar, until
from test_examples import recipes, run_recipe
from test_tensors import DTYPES
from torchrun import free_port

# Across the chunks that are registered one by one, 32 MiB each.
LARGE = (33 << 18, 4)
# Work that takes a GPU 0.1 s or more: so many cycles of its clock.
LONG = 200_000_000


def values(name: str, shape: tuple[int, ...]) -> torch.Tensor:
    count = int(np.prod(shape))
    return (torch.arange(count) % 2).to(getattr(torch, name)).reshape(shape)


def raw(a: torch.Tensor) -> bytes:
    return a.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy().tobytes()


def same(a: torch.Tensor, b: torch.Tensor) -> bool:
    """Whether two tensors have the same type, shape and bytes."""
    return a.dtype == b.dtype and a.shape == b.shape and raw(a) == raw(b)


# Promise: gpu-pushes
@pytest.mark.parametrize("name", DTYPES)
@pytest.mark.parametrize("shape", [(), (0,), (3, 0, 2), (3, 4, 5), (257, 1023)])
def test_every_type_and_shape_goes_both_ways_and_no_cpu_copies(c, other, name, shape):
    expected = values(name, shape)
    assert c.push("w", expected.cuda()).report.copied == 0
    tensor = other.fetch("w")
    found = tensor.torch(device="cuda")
    assert found.device == torch.device("cuda", 0) and found.is_contiguous()
    assert same(found, expected) and tensor.exports_copied == 0
    assert same(tensor.torch(), expected)


# Promise: gpu-pushes
def test_large_tensors_are_copied_in_pieces(sidecar):
    with td.connect(sidecar.path, arena="512MiB") as c:
        expected = torch.randn(LARGE, device="cuda")
        assert c.push("w", expected).report.copied == 0
        tensor = c.fetch("w")
        assert torch.equal(tensor.torch("cuda"), expected) and tensor.exports_copied == 0
        assert np.array_equal(tensor.numpy(), expected.cpu().numpy())


# Promise: gpu-errors
def test_devices_are_named_as_torch_names_them(c):
    c.push("w", np.arange(8.0))
    tensor = c.fetch("w")
    for device in ("cuda", "cuda:0", torch.device("cuda"), torch.device("cuda", 0)):
        assert tensor.torch(device=device).device == torch.device("cuda", 0)
    for device in (None, "cpu", torch.device("cpu")):
        assert tensor.torch(device=device).device.type == "cpu"
    with pytest.raises(td.NoDevice, match="there is no GPU 99: this process sees one, number 0") as e:
        tensor.torch(device="cuda:99")
    assert (e.value.code, e.value.can_retry, e.value.fault) == ("no_device", False, "caller")
    with pytest.raises(td.Invalid, match="meta is neither"):
        tensor.torch(device="meta")


# Promise: gpu-pushes
def test_a_push_waits_for_the_work_on_its_tensor(c):
    side, x = torch.cuda.Stream(), torch.zeros(1 << 20, device="cuda")
    torch.cuda.synchronize()
    with torch.cuda.stream(side):
        torch.cuda._sleep(LONG)
        x.fill_(3)
        assert not side.query()
        c.push("w", x)
    assert (c.fetch("w").numpy() == 3).all()


# Promise: gpu-pushes
def test_a_tensor_may_change_once_its_push_has_returned(c):
    x = torch.ones(1 << 22, device="cuda")
    for version in range(1, 20):
        x.fill_(version)
        c.push("w", x, version=version)
        x.fill_(-1)
        assert (c.fetch("w").numpy() == version).all()


# Promise: gpu-fetches
def test_a_fetched_copy_is_ordered_in_the_current_stream(c):
    c.push("w", np.ones(1 << 20, "float32"))
    tensor, side = c.fetch("w"), torch.cuda.Stream()
    with torch.cuda.stream(side):
        # The first time, memory is registered and allocated, and the kernel is loaded, which waits for the GPU.
        tensor.torch("cuda") * 2
        side.synchronize()
        torch.cuda._sleep(LONG)
        found = tensor.torch("cuda")
        was_busy = not side.query()
        doubled = found * 2
    side.synchronize()
    # It has returned before the copy was made, and what came behind it saw its values.
    assert was_busy
    assert (found == 1).all() and (doubled == 2).all()


# Promise: gpu-fetches
def test_a_version_is_kept_until_its_copy_is_done_and_no_longer(c):
    c.push("w", np.zeros(1))
    c.fetch("w").torch("cuda")
    torch.cuda.synchronize()
    free = c.arena_free_bytes
    c.push("once", np.ones(1 << 20, "float32"), keep=1)
    tensor = c.fetch("once")
    torch.cuda._sleep(2 * LONG)
    found = tensor.torch("cuda")
    del tensor
    gc.collect()
    while_busy = c.arena_free_bytes
    assert not torch.cuda.current_stream().query()
    assert while_busy < free
    until("the range is free", lambda: c.arena_free_bytes == free)
    assert torch.cuda.current_stream().query()
    assert (found == 1).all()


# Promise: gpu-pushes
@pytest.mark.parametrize(
    "made",
    [lambda x: x.t(), lambda x: x[::2, 1::3], lambda x: x[:, 5], lambda x: x[:1].expand(7, 64), lambda x: x[3:]],
    ids=["transposed", "steps", "column", "expanded", "rows"],
)
def test_tensors_of_any_layout_are_pushed_as_torch_sees_them(c, made):
    expected = made(torch.arange(4096.0, device="cuda").reshape(64, 64))
    c.push("w", expected)
    assert same(c.fetch("w").torch("cuda"), expected)


def test_a_tensor_with_a_gradient_is_pushed_as_its_values(c):
    parameter = torch.nn.Parameter(torch.full((8,), 2.0, device="cuda"))
    c.push("leaf", parameter)
    c.push("result", parameter * 3)
    assert (c.fetch("leaf").numpy() == 2).all() and (c.fetch("result").numpy() == 6).all()


def test_a_state_dict_goes_from_one_gpu_model_to_another(c, other):
    trained, replica = (torch.nn.Sequential(torch.nn.Linear(300, 64), torch.nn.BatchNorm1d(64)).cuda() for _ in range(2))
    c.push_state("policy", trained.state_dict(), version=4)
    state = other.fetch_state("policy", into=replica.state_dict(), at_least=4)
    for (name, ours), theirs in zip(trained.state_dict().items(), replica.state_dict().values(), strict=True):
        assert torch.equal(ours, theirs) and torch.equal(state[name].torch("cuda"), ours), name
    # A target that does not lie in one piece.
    target = torch.zeros(300, 64, device="cuda").t()
    other.fetch_state("policy", into={"0.weight": target})
    assert torch.equal(target, trained[0].weight)


def test_an_event_loop_goes_on_while_the_gpu_copies(sidecar):
    async def main():
        ticks = 0

        async def tick():
            nonlocal ticks
            while True:
                ticks += 1
                await asyncio.sleep(0.001)

        async with td.aio.connect(sidecar.path, arena="64MiB") as c:
            ticker, x = asyncio.create_task(tick()), torch.zeros(1 << 20, device="cuda")
            await c.push("first", x)
            before = ticks
            torch.cuda._sleep(LONG)
            x.fill_(5)
            await c.push("w", x)
            ticker.cancel()
            assert ticks - before > 10
            assert ((await c.fetch("w")).numpy() == 5).all()

    asyncio.run(main())


# Promise: gpu-errors
def test_a_graph_contains_no_copy_of_a_tensor(c):
    c.push("w", np.ones(1 << 16))
    tensor = c.fetch("w")
    tensor.torch("cuda")
    with pytest.raises(td.Error, match="graph") as e:
        with torch.cuda.graph(torch.cuda.CUDAGraph()):
            tensor.torch("cuda")
    assert e.value.code == "capturing"
    assert (tensor.torch("cuda") == 1).all()


# Promise: gpu-fetches
def test_a_full_gpu_is_told_by_torch_and_nothing_is_kept(c):
    free = c.arena_free_bytes
    c.push("w", np.ones(1 << 20))
    tensor = c.fetch("w")
    torch.cuda.empty_cache()
    torch.cuda.set_per_process_memory_fraction(1e-6)
    try:
        with pytest.raises(torch.OutOfMemoryError):
            tensor.torch("cuda")
    finally:
        torch.cuda.set_per_process_memory_fraction(1.0)
    assert (tensor.torch("cuda") == 1).all()
    del tensor
    c.delete("w")
    until("the range is free", lambda: c.arena_free_bytes == free)


# Promise: gpu-errors
def test_a_forked_child_does_not_touch_the_gpu(sidecar, c):
    x = torch.ones(4, device="cuda")
    c.push("w", x)
    c.fetch("w").torch("cuda")
    child = os.fork()
    if child == 0:
        code = 1
        try:
            with td.connect(sidecar.path, name="child", arena="1MiB") as mine:
                for call in (lambda: mine.fetch("w").torch("cuda"), lambda: mine.push("x", x)):
                    with pytest.raises(td.Forked, match="fork"):
                        call()
                code = 0
        finally:
            os._exit(code)
    assert os.waitpid(child, 0)[1] == 0
    assert (c.fetch("w").torch("cuda") == 1).all()


# Promise: gpu-pushes
def test_arrays_of_other_libraries_are_pushed_by_dlpack(c):
    expected = cupy.arange(1 << 20, dtype="float32").reshape(1024, 1024) * 3
    assert c.push("w", expected).report.copied == 0
    assert np.array_equal(c.fetch("w").numpy(), cupy.asnumpy(expected))
    with pytest.raises(td.Invalid, match="does not lie in one piece; make it contiguous there first"):
        c.push("w", expected[:, ::2])


# Promise: gpu-to-gpu
@pytest.mark.parametrize("fabric, flags", [("tcp", ["--shm", "off"]), ("shm", ["--shm-reference", "off"]), ("shm", [])])
def test_a_tensor_goes_from_one_nodes_gpu_to_the_others(folder, fabric, flags):
    ports = [free_port() for _ in range(2)]
    a, b = folder / "a", folder / "b"
    a.mkdir()
    b.mkdir()
    listen = [f"127.0.0.1:{port}" for port in ports]
    flags = [*flags, "--shm-dir", str(folder)] if fabric == "shm" else flags
    first = Sidecar(a, "--node", "a", "--listen", listen[0], *flags)
    second = Sidecar(b, "--node", "b", "--listen", listen[1], "--directory", f"http://{listen[0]}", *flags)
    try:
        with td.connect(first.path, arena="256MiB") as c, td.connect(second.path, arena="1MiB") as other:
            for version in (1, 2):
                expected = torch.randn(1 << 24, device="cuda")
                c.push("w", expected, version=version)
                tensor = other.fetch("w", at_least=version)
                assert tensor.report.fabric == fabric
                assert torch.equal(tensor.torch("cuda"), expected) and tensor.exports_copied == 0
                del tensor
    finally:
        second.stop()
        first.stop()


@pytest.mark.parametrize("code", list(recipes(gpu=True)))
def test_a_recipe_does_what_it_says(sidecar, code):
    run_recipe(sidecar, code)
