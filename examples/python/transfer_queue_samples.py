#!/usr/bin/env python3
"""Samples of TransferQueue that lie in arenas of transferd: prompts, answers of two rollout workers, and a trainer that reads them by groups.

The driver puts prompts, each as many times as a group has answers. Rollout workers, which are actors of Ray, take samples and put answers of different lengths.
The trainer takes whole groups by TransferQueue's `GRPOGroupNSampler`, and the driver clears what it has read. One worker ends before its answers are read.
The check: every group came once and as a whole, every answer is the one that its worker made of its prompt, and nothing is left at the sidecar.

    examples/python/transfer_queue_samples.py [--groups N] [--answers N]

It ends with 1 where the check fails.
"""

from __future__ import annotations

import argparse
import json
import logging
import subprocess
import sys

import ray
import torch
import transfer_queue as tq
import transferd.ray as tr
import transferd.transfer_queue  # noqa: F401 - registers the backend in this process; the others get it with the settings
from omegaconf import OmegaConf
from tensordict import TensorDict

PARTITION = "train"


def answer(prompt: torch.Tensor) -> torch.Tensor:
    """As long as the prompt says, so that samples differ in their lengths."""
    return prompt[0] + torch.arange(1 + int(prompt[0]) % 7)


@ray.remote(num_cpus=0)
class Rollout:
    def run(self, answers: int) -> int:
        """Answers prompts until none is left. Returns how many it has answered."""
        client, answered = tq_client(), 0
        while (meta := client.get_meta(["prompt"], answers, PARTITION, mode="fetch", task_name="rollout")).size:
            samples = client.get_data(meta)
            made = torch.nested.as_nested_tensor([answer(prompt) for prompt in samples["prompt"]], layout=torch.jagged)
            client.put(data=TensorDict({"answer": made}, batch_size=answers), metadata=meta)
            answered += answers
        return answered


@ray.remote(num_cpus=0)
class Trainer:
    def run(self, answers: int) -> list[tuple[int, bool]]:
        """Reads groups until none is left. Returns the number of each, and whether it is as it should be."""
        client, groups = tq_client(), []
        while (meta := client.get_meta(["prompt", "number", "answer"], answers, PARTITION, mode="fetch", task_name="train")).size:
            group = client.get_data(meta)
            numbers = group["number"].tolist()
            right = all(torch.equal(made, answer(prompt)) for made, prompt in zip(group["answer"], group["prompt"]))
            groups.append((numbers[0], right and numbers == numbers[:1] * answers))
            client.clear_samples(meta)
        return groups


def tq_client() -> tq.TransferQueueClient:
    tq.init()
    return tq.get_client()


def main() -> int:
    arguments = argparse.ArgumentParser(description="Samples of TransferQueue in arenas of transferd.")
    arguments.add_argument("--groups", type=int, default=16)
    arguments.add_argument("--answers", type=int, default=4, help="of each group")
    given = arguments.parse_args()

    ray.init("local", num_cpus=4, include_dashboard=False, object_store_memory=150 << 20, log_to_driver=False, logging_level=logging.ERROR)
    tr.init(arena="16MiB")
    sampler = tq.GRPOGroupNSampler(n_samples_per_prompt=given.answers)
    controller = {"sampler": sampler, "polling_mode": True}
    settings = {"controller": controller, "backend": {"storage_backend": "transferd", "transferd": {"arena": "16MiB"}}}
    tq.init(OmegaConf.create(settings, flags={"allow_objects": True}))

    numbers = torch.arange(given.groups).repeat_interleave(given.answers)
    prompts = numbers[:, None] + torch.arange(8)
    tq.get_client().put(data=TensorDict({"prompt": prompts, "number": numbers}, batch_size=len(numbers)), partition_id=PARTITION)

    workers = [Rollout.remote(), Rollout.remote()]
    answered = ray.get([worker.run.remote(given.answers) for worker in workers])
    ray.kill(workers[0])
    groups = ray.get(Trainer.remote().run.remote(given.answers))
    right = sorted(groups) == [(number, True) for number in range(given.groups)]

    left = [tensor["key"] for tensor in tensors() if tensor["key"].startswith("transfer_queue/")]
    tq.close()
    print(f"{len(groups)} groups of {given.answers} answers by {len(answered)} workers, {left} left: {right and not left}")
    return 0 if right and not left and sum(answered) == len(numbers) else 1


def tensors() -> list[dict[str, str]]:
    """What the sidecar of this node has, as operators see it."""
    admin = tr.client().path.replace("worker.sock", "admin.sock")
    command = [sys.executable, "-c", "from transferd._programs import transferctl; transferctl()", "tensors", "--json", "--admin", admin]
    done = subprocess.run(command, stdout=subprocess.PIPE, check=True)
    return [json.loads(line) for line in done.stdout.splitlines()]


if __name__ == "__main__":
    sys.exit(main())
