#!/usr/bin/env python3
"""A trainer actor sends its weights to rollout actors by verl's checkpoint engine "transferd", in the order in which verl's manager makes the calls.

There is no process group: a rollout joins between two updates, and another one leaves. The check: each rollout has the trainer's weights of the last update
that it took part in, bit for bit.

    examples/python/verl_engine.py [--rollouts N] [--updates N]
"""

from __future__ import annotations

import argparse
import sys

import ray
import torch


def weights(step: int) -> dict[str, torch.Tensor]:
    generator = torch.Generator().manual_seed(step)
    return {f"layers.{n}.weight": torch.randn(512, 512, generator=generator).bfloat16() for n in range(24)}


class Worker:
    def __init__(self, is_master: bool) -> None:
        from verl.checkpoint_engine import CheckpointEngineRegistry

        # verl gives its `update_weights_bucket_megabytes`.
        self.engine = CheckpointEngineRegistry.new("transferd", bucket_size=4 << 20, is_master=is_master)

    def call(self, method: str, **arguments):
        return getattr(self.engine, method)(**arguments)

    async def send(self, step: int):
        return await self.engine.send_weights(iter(weights(step).items()), global_steps=step)

    async def receive(self, step: int) -> int:
        """Returns how many tensors came as they were sent."""
        sent = weights(step)
        return sum([torch.equal(weight, sent[name]) async for name, weight in self.engine.receive_weights(global_steps=step)])


def update(trainer, rollouts: list, step: int) -> list[int]:
    """What verl's manager does for each update."""
    from transferd.verl import TransferdCheckpointEngine

    metadata = ray.get([worker.call.remote("prepare") for worker in (trainer, *rollouts)])
    of_trainer, of_rollouts = TransferdCheckpointEngine.build_topology(1, len(rollouts), metadata)
    joined = [trainer.call.remote("init_process_group", **{name: value[0] for name, value in of_trainer.items()})]
    for n, rollout in enumerate(rollouts):
        joined.append(rollout.call.remote("init_process_group", **{name: value[n] for name, value in of_rollouts.items()}))
    ray.get(joined)
    metrics, *equal = ray.get([trainer.send.remote(step), *(rollout.receive.remote(step) for rollout in rollouts)])
    ray.get([worker.call.remote("finalize") for worker in (trainer, *rollouts)])
    print(f"update {step}: {metrics['transferd/sent_bytes'] / 1e6:.1f} MB to {len(rollouts)} rollouts in {metrics['transferd/seconds']:.3f} s")
    return equal


def main() -> None:
    arguments = argparse.ArgumentParser(description="Weights from a trainer to rollouts, by verl's checkpoint engine.")
    arguments.add_argument("--rollouts", type=int, default=2)
    arguments.add_argument("--updates", type=int, default=3)
    given = arguments.parse_args()

    ray.init(address="local", num_cpus=2, object_store_memory=150 << 20, include_dashboard=False, log_to_driver=False)
    actor = ray.remote(num_cpus=0)(Worker)
    trainer, rollouts = actor.remote(True), [actor.remote(False) for _ in range(given.rollouts)]
    equal = []
    for step in range(given.updates):
        equal += update(trainer, rollouts, step)
    rollouts = [*rollouts[1:], actor.remote(False)]
    equal += update(trainer, rollouts, given.updates)
    complete = equal == [len(weights(0))] * len(equal)
    print(f"every rollout has the trainer's weights: {complete}")
    ray.shutdown()
    assert complete


if __name__ == "__main__":
    sys.exit(main())
