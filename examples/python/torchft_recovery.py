#!/usr/bin/env python3
"""Two replica groups of torchft train one model. One of them is killed in the middle of a step, started again with other weights, and gets the state of
the other group by `transferd.torchft`, with which it trains on.

Each group is a process of one rank, with a sidecar inside. The check: the group that was killed is back after the first step that it begins, at the step
of the other one, and at the end both have the same weights, bit for bit.

    examples/python/torchft_recovery.py [--steps N]

It ends with 1 where the check fails.
"""

from __future__ import annotations

import argparse
import hashlib
import logging
import multiprocessing
import os
import sys
from datetime import timedelta
from multiprocessing.connection import Connection
from typing import Any

# torchft says each step on standard error, and torch that it ignores a call of torchft's.
os.environ.setdefault("RUST_LOG", "error")
os.environ.setdefault("TORCH_CPP_LOG_LEVEL", "ERROR")

import torch
import torch.distributed as dist
from torchft import DistributedDataParallel, Manager, Optimizer, ProcessGroupGloo
from torchft.coordination import LighthouseServer
from transferd.torchft import TransferTransport

INPUTS, HIDDEN, OUTPUTS, ROWS = 16, 64, 4, 8
# The step at which a group is killed, and how many seconds the groups may take for anything.
KILLED_AT, GIVE_UP = 3, 120
TIMEOUT = timedelta(seconds=30)


def digest(model: torch.nn.Module) -> str:
    """What tells two models apart that differ in one bit."""
    return hashlib.sha256(b"".join(value.numpy().tobytes() for value in model.state_dict().values())).hexdigest()


def group(number: int, start: int, lighthouse: str, last: Any, pipe: Connection) -> None:
    """Trains until the step `last`. Says which step the group has reached after its first try of one, and until it may be killed."""
    logging.disable(logging.CRITICAL)
    torch.set_num_threads(1)
    # Another model in each group, and in each start of one: only what is received makes them equal.
    torch.manual_seed(100 * start + number)
    model = torch.nn.Sequential(torch.nn.Linear(INPUTS, HIDDEN), torch.nn.Tanh(), torch.nn.Linear(HIDDEN, OUTPUTS))
    adam = torch.optim.Adam(model.parameters())
    store = dist.TCPStore("localhost", 0, is_master=True, wait_for_workers=False)

    def load(state: dict[str, Any]) -> None:
        model.load_state_dict(state["model"])
        adam.load_state_dict(state["adam"])

    manager = Manager(
        pg=ProcessGroupGloo(timeout=TIMEOUT),
        min_replica_size=1,
        load_state_dict=load,
        state_dict=lambda: {"model": model.state_dict(), "adam": adam.state_dict()},
        replica_id=f"group_{number}",
        store_addr="localhost",
        store_port=store.port,
        rank=0,
        world_size=1,
        lighthouse_addr=lighthouse,
        hostname="localhost",
        timeout=TIMEOUT,
        checkpoint_transport=TransferTransport(),
    )
    replica, optimizer = DistributedDataParallel(manager, model), Optimizer(manager, adam)
    tries = 0
    while manager.current_step() < last.value:
        optimizer.zero_grad()
        replica(torch.randn(ROWS, INPUTS)).square().mean().backward()
        optimizer.step()
        tries += 1
        if tries <= KILLED_AT:
            pipe.send(manager.current_step())
    pipe.send(digest(model))
    # Both end together, for one that ends early fails the other's step.
    pipe.recv()
    manager.shutdown(wait=False)


class Group:
    """A group's process, and what it has said."""

    def __init__(self, number: int, start: int, lighthouse: str, last: Any) -> None:
        context = multiprocessing.get_context("spawn")
        self.pipe, theirs = context.Pipe()
        self.process = context.Process(target=group, args=(number, start, lighthouse, last, theirs))
        self.process.start()
        theirs.close()

    def said(self) -> Any:
        """The next thing that it says."""
        if not self.pipe.poll(GIVE_UP):
            raise TimeoutError(f"{self.process.name} has said nothing for {GIVE_UP} s")
        return self.pipe.recv()


def main() -> bool:
    arguments = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    arguments.add_argument("--steps", type=int, default=5, help="how many steps both train after the recovery")
    given = arguments.parse_args()
    last = multiprocessing.get_context("spawn").Value("q", 1 << 40)
    lighthouse = LighthouseServer(bind="127.0.0.1:0", min_replicas=1, join_timeout_ms=10_000, heartbeat_timeout_ms=3_000)
    groups = [Group(number, 0, lighthouse.address(), last) for number in range(2)]
    try:
        for _ in range(KILLED_AT):
            groups[1].said()
        groups[1].process.kill()
        groups[1].process.join()
        # The other one goes on, also while that one is away.
        groups[1] = Group(1, 1, lighthouse.address(), last)
        step = groups[1].said()
        last.value = step + given.steps
        ends: list[str] = []
        for one in groups:
            while not isinstance(end := one.said(), str):
                pass
            ends.append(end)
        for one in groups:
            one.pipe.send("end")
            one.process.join(GIVE_UP)
        good = step > KILLED_AT and ends[0] == ends[1] and all(one.process.exitcode == 0 for one in groups)
        print(f"killed at step {KILLED_AT}, back after its first step, at {step}; equal weights at the end: {good}")
        return good
    finally:
        for one in groups:
            one.process.kill()
            one.process.join()
        lighthouse.shutdown()


if __name__ == "__main__":
    sys.exit(0 if main() else 1)
