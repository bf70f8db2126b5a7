"""`td.init()` under the real torchrun: two ranks of one node, two nodes with certificates, and an elastic restart."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from conftest import GIVE_UP, until
from test_init import certificates
from torchrun import OURS, free_port

# Each rank publishes a tensor and reads that of every other rank; then they end together.
EXCHANGE = """
import os, torch, transferd as td

with td.init(arena="4MiB") as c:
    rank, world = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    assert c.name == f"rank-{rank}"
    c.push(f"from-{rank}", torch.full((1 << 16,), float(rank)), version=1)
    for other in range(world):
        tensor = c.fetch(f"from-{other}", at_least=1, timeout=60)
        assert torch.equal(tensor.torch(), torch.full((1 << 16,), float(other)))
    print(f"rank {rank} of {world} at {c.node}, {tensor.report.fabric}", flush=True)
    c.barrier("end", world).wait(timeout=60)
"""

# Rank 1 fails in the first start, after its sidecar has been used.
FAILS_ONCE = """
import os, torch, transferd as td

restart = int(os.environ["TORCHELASTIC_RESTART_COUNT"])
with td.init(arena="4MiB") as c:
    rank = int(os.environ["RANK"])
    if rank == 0:
        c.push("w", torch.full((1 << 16,), float(restart)))
    found = c.fetch("w", timeout=60).torch()
    # A sidecar of its own: nothing of the first start is there.
    assert torch.equal(found, torch.full((1 << 16,), float(restart)))
    if restart == 0 and rank == 1:
        raise SystemExit("rank 1 fails once")
    print(f"rank {rank} after {restart} restarts", flush=True)
    c.barrier("end", 2).wait(timeout=60)
"""


def torchrun(folder: Path, code: str, *arguments: str, **others: str) -> subprocess.Popen[str]:
    script = folder / "train.py"
    script.write_text(code)
    inherited = {name: value for name, value in os.environ.items() if not OURS.fullmatch(name)}
    environment = {**inherited, "XDG_RUNTIME_DIR": str(folder), "TRANSFER_POOL_BYTES": "16MiB", "OMP_NUM_THREADS": "1", **others}
    command = [sys.executable, "-m", "torch.distributed.run", *arguments, str(script)]
    return subprocess.Popen(command, env=environment, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def lines(process: subprocess.Popen[str]) -> list[str]:
    """What the ranks of a job have said at its end, in order."""
    out, err = process.communicate(timeout=9 * GIVE_UP)
    assert process.returncode == 0, out + err
    return sorted(line for line in out.splitlines() if line.startswith("rank "))


# Promise: torchrun
def test_two_ranks_of_one_node_exchange_tensors(folder):
    at = f"--master-port={free_port()}"
    assert lines(torchrun(folder, EXCHANGE, "--nproc-per-node", "2", at)) == [
        "rank 0 of 2 at node-0, local",
        "rank 1 of 2 at node-0, local",
    ]
    until("no folder is left", lambda: not list(folder.glob("transferd-*")))


# Promise: torchrun
def test_two_nodes_with_certificates_exchange_tensors(folder):
    tls = certificates(folder, "node-0=127.0.0.1", "node-1")
    meeting = ["--nnodes", "2", "--nproc-per-node", "1", "--master-addr", "127.0.0.1", "--master-port", str(free_port())]
    nodes = [torchrun(folder, EXCHANGE, *meeting, "--node-rank", str(node), **tls) for node in range(2)]
    said = [line for node in nodes for line in lines(node)]
    assert [line.rpartition(",")[0] for line in said] == ["rank 0 of 2 at node-0", "rank 1 of 2 at node-1"]
    until("no folder is left", lambda: not list(folder.glob("transferd-*")))


# Promise: torchrun
def test_a_rank_that_fails_once_is_restarted_with_a_fresh_sidecar(folder):
    at = f"--master-port={free_port()}"
    said = lines(torchrun(folder, FAILS_ONCE, "--nproc-per-node", "2", "--max-restarts", "1", at))
    assert said[-2:] == ["rank 0 after 1 restarts", "rank 1 after 1 restarts"] and "rank 1 after 0 restarts" not in said
