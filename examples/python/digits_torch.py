#!/usr/bin/env python3
"""Trains a model of torch on handwritten digits: a parameter server and its workers, each a process, through one
sidecar.

In each step the server publishes the state dict of its model, which lies in the arena, with no copy; each worker
fetches it into its own model, computes the gradients of its share of the rows, and publishes those as one version;
the server adds them in the workers' order, and its optimizer makes a step. The check: the model equals, bit for bit,
the one that a single process trains, and most of the held-out digits are read right. The data, and how they are
shared out, are those of digits.py.

    examples/python/digits_torch.py [--socket PATH] [--workers N] [--steps N]

Without --socket a sidecar runs inside of the server's process. It ends with 1 where the check fails.
"""

from __future__ import annotations

import argparse
import multiprocessing
import sys

import torch
import transferd as td
from digits import DIGITS, HIDDEN, PIXELS, TRAINED_ROWS, rows, shares

# So that a sum is added up in the same order everywhere.
torch.set_num_threads(1)

Gradients = dict[str, torch.Tensor]
# How many seconds the processes may take to start.
START = 120


def new_model() -> torch.nn.Module:
    torch.manual_seed(1)
    return torch.nn.Sequential(torch.nn.Linear(PIXELS, HIDDEN), torch.nn.ReLU(), torch.nn.Linear(HIDDEN, DIGITS))


def new_optimizer(model: torch.nn.Module) -> torch.optim.Optimizer:
    return torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)


def tensors() -> tuple[torch.Tensor, torch.Tensor]:
    pixels, labels = rows()
    return torch.from_numpy(pixels), torch.from_numpy(labels)


def gradients(model: torch.nn.Module, pixels: torch.Tensor, labels: torch.Tensor) -> Gradients:
    """The gradient of the mean loss over these rows, by the names of the parameters."""
    model.zero_grad()
    torch.nn.functional.cross_entropy(model(pixels), labels).backward()
    return {name: parameter.grad for name, parameter in model.named_parameters()}


def update(model: torch.nn.Module, optimizer: torch.optim.Optimizer, parts: list[Gradients]) -> None:
    """Makes a step with the mean of the workers' gradients, added in their order."""
    for name, parameter in model.named_parameters():
        parameter.grad = torch.stack([part[name] for part in parts]).sum(0) / len(parts)
    optimizer.step()


def worker(path: str, number: int, workers: int, steps: int) -> None:
    pixels, labels = tensors()
    mine = shares(workers)[number]
    model = new_model()
    with td.connect(path, name=f"worker-{number}", arena="4MiB") as c:
        for step in range(1, steps + 1):
            c.fetch_state("weights", into=model.state_dict(), at_least=step)
            c.push_state(f"gradients/{number}", gradients(model, pixels[mine], labels[mine]), version=step)
        # What this worker has published ends with it: it stays until the server has the last gradients.
        c.barrier("done", workers + 1).wait()


def serve(c: td.Client, workers: int, steps: int) -> torch.nn.Module:
    model = new_model()
    optimizer = new_optimizer(model)
    shared = td.nn.share_(c, model)
    for step in range(1, steps + 1):
        shared.push("weights", version=step)
        states = [c.fetch_state(f"gradients/{number}", at_least=step, timeout=START) for number in range(workers)]
        shared.take_back()
        update(model, optimizer, [{name: tensor.torch() for name, tensor in state.items()} for state in states])
    c.barrier("done", workers + 1).wait()
    return model


def alone(workers: int, steps: int) -> torch.nn.Module:
    """The same, in one process and without a sidecar."""
    pixels, labels = tensors()
    model, copy = new_model(), new_model()
    optimizer = new_optimizer(model)
    for _ in range(steps):
        copy.load_state_dict(model.state_dict())
        found = []
        for share in shares(workers):
            found.append({name: value.clone() for name, value in gradients(copy, pixels[share], labels[share]).items()})
        update(model, optimizer, found)
    return model


def equal(a: torch.nn.Module, b: torch.nn.Module) -> bool:
    ours, theirs = a.state_dict(), b.state_dict()
    return all(ours[name].numpy().tobytes() == theirs[name].numpy().tobytes() for name in ours | theirs)


def main() -> bool:
    arguments = argparse.ArgumentParser(description="Trains a model of torch on handwritten digits.")
    arguments.add_argument("--socket", help="the sidecar's; without it one runs in this process")
    arguments.add_argument("--workers", type=int, default=2)
    arguments.add_argument("--steps", type=int, default=200)
    given = arguments.parse_args()

    with td.connect(given.socket) if given.socket else td.embedded() as c:
        context = multiprocessing.get_context("spawn")
        processes = [
            context.Process(target=worker, args=(c.path, number, given.workers, given.steps))
            for number in range(given.workers)
        ]
        for process in processes:
            process.start()
        model = serve(c, given.workers, given.steps)
        for process in processes:
            process.join()
        ended_well = all(process.exitcode == 0 for process in processes)

    pixels, labels = (tensor[TRAINED_ROWS:] for tensor in tensors())
    right = float((model(pixels).argmax(1) == labels).float().mean())
    as_one = equal(model, alone(given.workers, given.steps))
    print(f"{right:.1%} of {len(labels)} held-out digits are read right; equal to one process: {as_one}")
    return ended_well and as_one and (right > 0.8 or given.steps < 200)


if __name__ == "__main__":
    sys.exit(0 if main() else 1)
