#!/usr/bin/env python3
"""A trainer publishes the weights of its torch model while it trains on, and replicas in other processes follow.

After each step the trainer publishes the state dict as one version, in the memory that the model trains in: nothing is
copied. It computes the next gradients while the replicas copy the version into their own models, and waits for them at
the gate, before the weights change. Every tensor of the model carries the number of its version, in a last row
that no output depends on, so that a state of two versions would be noticed. The check: no replica ever saw one, each
saw several versions, their numbers only rose, and the last one equals the trainer's weights.

    examples/python/weight_sync.py [--socket PATH] [--replicas N] [--steps N] [--deltas]

Without --socket a sidecar runs inside of the trainer's process. It ends with 1 where the check fails.

With --deltas each replica has a sidecar of its own, as on another host, and gets what has changed. The trainer keeps its weights in F32, and publishes copies
in BF16: in a step of post-training most of those stay as they were, since they have fewer bits than the step changes. It prints how many do not. The check:
each version at each replica has the bits that were pushed, and all but the first came as a delta.
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
# How far Adam moves a weight in a step: with --deltas as in post-training.
RATE, SMALL_RATE = 0.01, 3e-6
# A sidecar with --deltas: nothing is read by reference, so everything moves.
NODE = {"listen": "127.0.0.1:0", "shm": "off", "verbs": "off"}

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


def lowered(model: torch.nn.Module) -> dict[str, torch.Tensor]:
    """The weights that replicas compute with."""
    return {name: value.to(torch.bfloat16) for name, value in model.state_dict().items()}


def bits(weights: Mapping[str, torch.Tensor]) -> str:
    """What tells weights apart that differ in one bit."""
    return hashlib.sha256(b"".join(value.contiguous().view(torch.uint8).numpy().tobytes() for value in weights.values())).hexdigest()


def distant_replica(directory: str, mine: int, replicas: int) -> None:
    found, deltas, is_last = [], 0, False
    with td.embedded(arena="1MiB", sidecar={"node": f"replica-{mine}", "directory": directory, **NODE}) as c:
        step = c.barrier("step", replicas + 1)
        step.wait(timeout=START)
        while not is_last:
            state = c.fetch_state("policy", at_least=len(found) + 1)
            found.append(bits({name: tensor.torch() for name, tensor in state["weights"].items()}))
            deltas += state.report.delta > 0
            is_last = state["last"]
            step.wait()
        c.push(f"result/{mine}", " ".join([str(deltas), *found]).encode())
        step.wait()


def train_with_deltas(c: td.Client, replicas: int, steps: int) -> bool:
    model = Policy()
    optimizer = torch.optim.Adam(model.parameters(), lr=SMALL_RATE)
    inputs, wanted = torch.randn(ROWS, INPUTS), torch.randn(ROWS, OUTPUTS)
    ready = c.barrier("step", replicas + 1)
    ready.wait(timeout=START)
    losses, pushed, compared, changed, sent, whole = [], [], 0, 0, 0, 0
    for step in range(1, steps + 1):
        optimizer.zero_grad()
        loss = torch.nn.functional.mse_loss(model(inputs), wanted)
        loss.backward()
        optimizer.step()
        weights = lowered(model)
        report = c.push_state("policy", {"weights": weights, "last": step == steps}, version=step, delta_of=step - 1)
        # There is nothing of which the first could be a delta.
        if step > 1:
            compared, changed = compared + report.delta.compared, changed + report.delta.changed
            sent, whole = sent + report.delta.bytes, whole + report.report.bytes
        losses.append(loss.item())
        pushed.append(bits(weights))
        ready.wait()

    results = [bytes(c.fetch(f"result/{mine}")).decode().split() for mine in range(replicas)]
    same, deltas = all(found == pushed for _, *found in results), [int(deltas) for deltas, *_ in results]
    ready.wait()
    print(
        f"{steps} versions in BF16; {100 * changed / max(compared, 1):.2f} % of the elements change in a step; deltas have {sent} bytes in place of {whole};"
        f" the replicas got {deltas} deltas, and the bits that were pushed: {same}"
    )
    return same and deltas == [steps - 1] * replicas and losses[-1] < losses[0]


def train(c: td.Client, processes: list[SpawnProcess], steps: int) -> bool:
    model, replicas = Policy(), len(processes)
    optimizer = torch.optim.Adam(model.parameters(), lr=RATE)
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
    arguments.add_argument("--deltas", action="store_true", help="replicas on nodes of their own, which get what has changed")
    given = arguments.parse_args()
    if given.deltas and given.socket:
        arguments.error("--deltas starts its own sidecars, and takes no --socket")

    with td.connect(given.socket) if given.socket else td.embedded(sidecar={"node": "trainer", **NODE} if given.deltas else None) as c:
        context = multiprocessing.get_context("spawn")
        target, where = (distant_replica, f"http://{td.embedded_address()}") if given.deltas else (replica, c.path)
        processes = [context.Process(target=target, args=(where, mine, given.replicas)) for mine in range(given.replicas)]
        for process in processes:
            process.start()
        holds = train_with_deltas(c, given.replicas, given.steps) if given.deltas else train(c, processes, given.steps)
        for process in processes:
            process.join()
    return holds and all(process.exitcode == 0 for process in processes)


if __name__ == "__main__":
    sys.exit(0 if main() else 1)
