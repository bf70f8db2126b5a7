#!/usr/bin/env python3
"""A trainer actor publishes its state dict after each step, as one version; replica actors of Ray follow it.

The trainer's module lies in its arena (`td.nn.share_`), so a push copies nothing. A replica asks for the next version and copies it into its own
module. The check: each replica has computed with the weights of every step, never with a mix of two, and no push copied a byte.

    examples/python/ray_weight_sync.py [--replicas N] [--steps N] [--address ADDRESS]
"""

from __future__ import annotations

import argparse
import sys

import ray
import torch
import transferd as td
import transferd.ray as tr

KEY = "policy"


def module() -> torch.nn.Module:
    return torch.nn.Sequential(torch.nn.Linear(256, 512), torch.nn.Linear(512, 64))


def fill(of: torch.nn.Module, step: int) -> None:
    """Stands for a step of training: all weights are those of the step."""
    with torch.no_grad():
        for parameter in of.parameters():
            parameter.fill_(step)


@ray.remote(num_cpus=0)
class Trainer:
    def __init__(self) -> None:
        self.model = module()
        self.shared = td.nn.share_(tr.client(), self.model)

    def train(self, steps: int) -> int:
        """Returns how many bytes were copied."""
        copied = 0
        for step in range(1, steps + 1):
            self.shared.take_back(timeout=60)  # no replica reads the last version
            fill(self.model, step)
            copied += self.shared.push(KEY, version=step).report.copied
        return copied


@ray.remote(num_cpus=0)
class Replica:
    def __init__(self) -> None:
        self.model = module()

    def follow(self, steps: int) -> tuple[str, list[float]]:
        """Returns the node, and the sum of a row of each version that it has loaded. Steps that it was too slow for are left out."""
        c, step, seen = tr.client(), 0, []
        while step < steps:
            state = c.fetch_state(KEY, into=self.model.state_dict(), at_least=step + 1, timeout=60)
            step = state.version
            del state  # the trainer waits for its readers
            values = {float(value) for parameter in self.model.parameters() for value in (parameter.min(), parameter.max())}
            assert values == {float(step)}, f"a mix of versions: {values}"
            seen.append(float(step))
        return c.node, seen


def main() -> None:
    arguments = argparse.ArgumentParser(description="A trainer and replicas, as actors of Ray.")
    arguments.add_argument("--replicas", type=int, default=2)
    arguments.add_argument("--steps", type=int, default=20)
    arguments.add_argument("--address", help="of a cluster that runs; without it one is started on this host")
    given = arguments.parse_args()

    started = {} if given.address else {"num_cpus": 2, "object_store_memory": 150 << 20, "include_dashboard": False}
    ray.init(address=given.address, log_to_driver=False, **started)
    tr.init(arena="32MiB")
    # Replicas are spread over the nodes. They follow before there is anything to load.
    replicas = [Replica.options(scheduling_strategy="SPREAD").remote() for _ in range(given.replicas)]
    followed = [replica.follow.remote(given.steps) for replica in replicas]
    # Ray ends an actor that nobody refers to, and its last version with it.
    trainer = Trainer.remote()
    copied = ray.get(trainer.train.remote(given.steps))
    last = []
    for node, seen in ray.get(followed):
        print(f"a replica at {node} has loaded {len(seen)} versions of {given.steps}")
        assert seen == sorted(set(seen))
        last.append(seen[-1])
    complete = last == [float(given.steps)] * given.replicas
    print(f"every replica has the last weights: {complete}; bytes that the trainer's pushes copied: {copied}")
    ray.shutdown()
    assert complete and copied == 0


if __name__ == "__main__":
    sys.exit(main())
