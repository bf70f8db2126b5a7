#!/usr/bin/env python3
"""Four ranks train a model with FSDP2 and save a checkpoint of torch's DCP into the memory of the host, while they train on. Two other ranks load it: DCP plans
which slices each of them needs, and nothing else is fetched.

The ranks are processes with gloo, and the sidecar is in the process that starts them. The check: the model and the optimizer of the two ranks equal those of the
four, bit for bit, as they were when the checkpoint was made.

    examples/python/dcp.py [--savers N] [--loaders N]

It ends with 1 where the check fails.
"""

from __future__ import annotations

import argparse
import hashlib
import os
import sys
import warnings
from typing import Any

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
import torch.multiprocessing as mp
import transferd as td
from torch.distributed.checkpoint.state_dict import get_state_dict
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from transferd.checkpoint import TransferReader, TransferWriter

INPUTS, HIDDEN, OUTPUTS = 31, 130, 7
# How many seconds the processes may take for anything.
GIVE_UP = 240


def full(value: Any) -> Any:
    """A state with whole tensors in place of those that are sharded."""
    if isinstance(value, dict):
        return {name: full(item) for name, item in value.items()}
    return value.full_tensor() if hasattr(value, "full_tensor") else value


def digest(value: Any) -> bytes:
    """What tells two states apart that differ in one bit."""
    if isinstance(value, dict):
        return hashlib.sha256(b"".join(str(name).encode() + digest(value[name]) for name in sorted(value, key=str))).digest()
    return value.numpy().tobytes() if isinstance(value, torch.Tensor) else repr(value).encode()


def rank_of(rank: int, ranks: int, port: int, path: str, saves: bool, sides: tuple[int, int]) -> None:
    warnings.simplefilter("ignore")
    os.environ.update(MASTER_ADDR="localhost", MASTER_PORT=str(port))
    torch.set_num_threads(1)
    dist.init_process_group("gloo", rank=rank, world_size=ranks)
    mesh = init_device_mesh("cpu", (ranks,))
    # Each side begins with other weights: only the checkpoint makes them equal.
    torch.manual_seed(int(saves))
    model = torch.nn.Sequential(torch.nn.Linear(INPUTS, HIDDEN), torch.nn.Tanh(), torch.nn.Linear(HIDDEN, OUTPUTS))
    for layer in model:
        fully_shard(layer, mesh=mesh)
    fully_shard(model, mesh=mesh)
    adam = torch.optim.AdamW(model.parameters())

    def step() -> None:
        model(torch.ones(4, INPUTS)).square().mean().backward()
        adam.step()
        adam.zero_grad()

    step()
    parameters, optimizer = get_state_dict(model, adam)
    state = {"model": parameters, "optimizer": optimizer}
    with td.connect(path) as c:
        if saves:
            writer = TransferWriter(client=c)
            saved = digest(full(state))
            # The save has collectives of its own, while the training has others.
            done = dcp.async_save(state, checkpoint_id="run/1", storage_writer=writer, process_group=dist.new_group())
            step()
            done.result()
            if rank == 0:
                c.push("saved", saved)
        else:
            dcp.load(state, checkpoint_id="run/1", storage_reader=TransferReader(client=c, timeout=GIVE_UP))
            loaded = digest(full(state))
            if rank == 0:
                c.push("loaded", loaded)
        # A checkpoint ends with the processes that have saved it.
        c.barrier("end", sum(sides) + 1).wait(timeout=GIVE_UP)
    dist.destroy_process_group()


def main() -> bool:
    arguments = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    arguments.add_argument("--savers", type=int, default=4)
    arguments.add_argument("--loaders", type=int, default=2)
    given = arguments.parse_args()
    sides = given.savers, given.loaders
    with td.embedded(arena="1MiB") as c:
        started = []
        for ranks, saves in zip(sides, (True, False)):
            port = dist.TCPStore("localhost", 0, is_master=True, wait_for_workers=False).port
            started.append(mp.start_processes(rank_of, (ranks, port, c.path, saves, sides), nprocs=ranks, join=False, start_method="spawn"))
        saved, loaded = (bytes(c.fetch(key, timeout=GIVE_UP)) for key in ("saved", "loaded"))
        c.barrier("end", sum(sides) + 1).wait(timeout=GIVE_UP)
        for processes in started:
            while not processes.join():
                pass
    print(f"{sides[0]} ranks saved, {sides[1]} loaded; the states are equal: {saved == loaded}")
    return saved == loaded


if __name__ == "__main__":
    sys.exit(0 if main() else 1)
