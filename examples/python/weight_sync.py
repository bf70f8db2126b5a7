#!/usr/bin/env python3
"""A trainer publishes the weights of its torch model while it trains on, and replicas in other processes follow.

After each step the trainer publishes the state dict as one version, in the memory that the model trains in: nothing is
copied. It computes the next gradients while the replicas copy the version into their own models, and waits for them at
the gate, before the weights change. Every tensor of the model carries the number of its version, in a last row
that no output depends on, so that a state of two versions would be noticed. The check: no replica ever saw one, each
saw several versions, their numbers only rose, and the last one equals the trainer's weights.

    examples/python/weight_sync.py [--socket PATH] [--replicas N] [--steps N]

Without --socket a sidecar runs inside of the trainer's process. It ends with 1 where the check fails.
"""

from __future__ import annotations

import argparse
import hashlib
import multiprocessing
import sys
from collections.abc import Mapping
from multiprocessing.context import SpawnProcess

import torch
import transferd as td

INPUTS, HIDDEN, OUTPUTS, ROWS = 32, 256, 8, 64
# How many versions each replica sees at least: the trainer trains on until then.
SEEN = 5
# How many seconds the processes may take to start.
START = 120

torch.set_num_threads(1)


class Layer(torch.nn.Module):
    """A linear layer whose tensors have one row more, for the number of their version."""

    def __init__(self, inputs: int, outputs: int) -> None:
        super().__init__()
        self.weight = torch.nn.Parameter(torch.randn(outputs + 1, inputs) / inputs**0.5)
        self.bias = torch.nn.Parameter(torch.zeros(outputs + 1))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x @ self.weight[:-1].t() + self.bias[:-1]


class Policy(torch.nn.Sequential):
    """The model. It says whether its version is the last one."""

    def __init__(self) -> None:
        torch.manual_seed(1)
        super().__init__(Layer(INPUTS, HIDDEN), torch.nn.Tanh(), Layer(HIDDEN, OUTPUTS))
        self.register_buffer("last", torch.zeros(2))

    def number(self, version: int, is_last: bool) -> None:
        """Writes the version into each tensor."""
        self.last[0] = is_last
        for value in self.state_dict().values():
            value[-1] = version


def versions(state: Mapping[str, torch.Tensor]) -> set[int]:
    """The numbers that the tensors carry: one, where they are all of one version."""
    return {int(found) for value in state.values() for found in value[-1].reshape(-1)}


def digest(model: torch.nn.Module) -> str:
    """What tells two models apart that differ in one bit."""
    return hashlib.sha256(b"".join(value.numpy().tobytes() for value in model.state_dict().values())).hexdigest()


def replica(path: str, mine: int, replicas: int) -> None:
    model = Policy()
    newest, mixed = 0, 0
    with td.connect(path, arena="1MiB") as c:
        seen = c.counter(f"seen/{mine}")
        c.barrier("ready", replicas + 1).wait(timeout=START)
        while not model.last[0]:
            state = c.fetch_state("policy", into=model.state_dict(), at_least=newest + 1)
            mixed += versions(model.state_dict()) != {state.version} or state.version <= newest
            newest = state.version
            # The trainer waits at its gate for everyone that holds the version.
            del state
            seen.add()
        c.push(f"result/{mine}", f"{mixed} {digest(model)}".encode())
        c.barrier("done", replicas + 1).wait()


def train(c: td.Client, processes: list[SpawnProcess], steps: int) -> bool:
    model, replicas = Policy(), len(processes)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    shared = td.nn.share_(c, model)
    inputs, wanted = torch.randn(ROWS, INPUTS), torch.randn(ROWS, OUTPUTS)
    counters = [c.counter(f"seen/{mine}") for mine in range(replicas)]
    c.barrier("ready", replicas + 1).wait(timeout=START)
    losses, step, copied, is_last = [], 0, 0, False
    while not is_last:
        step += 1
        followed = all(counter.get() >= SEEN for counter in counters)
        is_last = step >= steps and (followed or not all(process.is_alive() for process in processes))
        optimizer.zero_grad()
        loss = torch.nn.functional.mse_loss(model(inputs), wanted)
        loss.backward()
        shared.take_back()
        optimizer.step()
        model.number(step, is_last)
        copied += shared.push("policy", version=step).report.copied
        losses.append(loss.item())

    results = [bytes(c.fetch(f"result/{mine}")).decode().split() for mine in range(replicas)]
    mixed, same = sum(int(found) for found, _ in results), all(found == digest(model) for _, found in results)
    seen = ", ".join(str(counter.get()) for counter in counters)
    c.barrier("done", replicas + 1).wait()
    print(f"{step} versions, of which the replicas saw {seen}; mixed: {mixed}; copied: {copied}; the last one is the trainer's: {same}")
    return mixed == 0 and copied == 0 and same and followed and losses[-1] < losses[0]


def main() -> bool:
    arguments = argparse.ArgumentParser(description="Replicas follow the weights of a model that is being trained.")
    arguments.add_argument("--socket", help="the sidecar's; without it one runs in this process")
    arguments.add_argument("--replicas", type=int, default=2)
    arguments.add_argument("--steps", type=int, default=200)
    given = arguments.parse_args()

    with td.connect(given.socket) if given.socket else td.embedded() as c:
        context = multiprocessing.get_context("spawn")
        processes = [
            context.Process(target=replica, args=(c.path, mine, given.replicas)) for mine in range(given.replicas)
        ]
        for process in processes:
            process.start()
        holds = train(c, processes, given.steps)
        for process in processes:
            process.join()
    return holds and all(process.exitcode == 0 for process in processes)


if __name__ == "__main__":
    sys.exit(0 if main() else 1)
