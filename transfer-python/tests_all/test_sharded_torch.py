"""Sharded states of torch: DTensors of a mesh, read in other layouts, and FSDP2 with tensor parallelism."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from conftest import GIVE_UP, Sidecar
from torchrun import OURS

# Four ranks make a mesh of (2, 2), and push a small transformer as FSDP2 x TP, rank 0 and 1 at one node, 2 and 3 at another. Then each loads it
# as a layout of its own, and all compare the bits with the whole model, which every rank has made of one seed.
PUSH_AND_LOAD = """
import os, sys, torch, transferd as td
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor, Replicate, Shard, distribute_tensor
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

class Block(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.up, self.down, self.norm = torch.nn.Linear(48, 96), torch.nn.Linear(96, 48), torch.nn.LayerNorm(48)

    def forward(self, x):
        return x + self.down(torch.relu(self.up(self.norm(x))))

def model():
    torch.manual_seed(7)
    return torch.nn.Sequential(*(Block() for _ in range(2))).to(torch.bfloat16)

dist.init_process_group("gloo")
rank = dist.get_rank()
mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("dp", "tp"))
whole, sharded = model(), model()
for block in sharded:
    parallelize_module(block, mesh["tp"], {"up": ColwiseParallel(), "down": RowwiseParallel()})
    fully_shard(block, mesh=mesh["dp"])
with td.connect(sys.argv[1 + rank // 2], name=f"rank-{rank}", arena="32MiB") as c:
    pushed = c.push_state("model", sharded.state_dict(), version=3, whole=True)
    expected = whole.state_dict()
    # All of it.
    state = c.fetch_state("model", exactly=3)
    assert state.keys() == expected.keys()
    for name, tensor in state.items():
        assert torch.equal(tensor.torch(), expected[name]), name
    # As tensor parallel only, as FSDP only, and as it was pushed.
    line = init_device_mesh("cpu", (4,))
    for placements, of in (([Shard(0)], line), ([Replicate()], line), ([Shard(0), Replicate()], mesh), ([Replicate(), Shard(0)], mesh)):
        into = {name: distribute_tensor(torch.zeros_like(value), of, placements) for name, value in expected.items()}
        c.fetch_state("model", into=into)
        for name, tensor in into.items():
            assert torch.equal(tensor.full_tensor(), expected[name]), (name, placements)
        layout = c.fetch_state("model", layout=into)
        assert all(torch.equal(layout[name].torch(), tensor.to_local()) for name, tensor in into.items())
    again = {name: torch.zeros_like(value) for name, value in sharded.state_dict().items()}
    c.fetch_state("model", into=again)
    assert all(torch.equal(value.to_local(), sharded.state_dict()[name].to_local()) for name, value in again.items())
    partial = DTensor.from_local(torch.ones(4), line, [torch.distributed.tensor.Partial()])
    try:
        c.push_state("partial", {"w": partial}, version=1)
    except td.Invalid as error:
        assert "no rank has values of it" in str(error), error
    else:
        raise SystemExit("a Partial was pushed")
    dist.barrier()
    print(f"rank {rank}: {len(state)} tensors", flush=True)
dist.destroy_process_group()
"""


# Promise: python-sharded
def test_dtensors_of_a_mesh_are_loaded_in_other_layouts(tmp_path: Path, tmp_path_factory: pytest.TempPathFactory) -> None:
    import socket

    with socket.socket() as one, socket.socket() as two:
        one.bind(("127.0.0.1", 0))
        two.bind(("127.0.0.1", 0))
        listen = [f"127.0.0.1:{end.getsockname()[1]}" for end in (one, two)]
    a = Sidecar(tmp_path_factory.mktemp("a"), "--node", "a", "--listen", listen[0], "--shm", "off")
    b = Sidecar(tmp_path_factory.mktemp("b"), "--node", "b", "--listen", listen[1], "--shm", "off", "--directory", f"http://{listen[0]}")
    script = tmp_path / "train.py"
    script.write_text(PUSH_AND_LOAD)
    inherited = {name: value for name, value in os.environ.items() if not OURS.fullmatch(name)}
    command = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", "4", "--standalone", str(script), str(a.path), str(b.path)]
    ended = subprocess.run(command, env={**inherited, "OMP_NUM_THREADS": "1"}, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=12 * GIVE_UP)
    assert ended.returncode == 0, ended.stdout + ended.stderr
    assert sorted(ended.stdout.split("\n"))[-4:] == [f"rank {rank}: 12 tensors" for rank in range(4)], ended.stdout
    b.stop()
    a.stop()
