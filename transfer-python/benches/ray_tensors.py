#!/usr/bin/env python3
"""Measures a tensor that goes from actor to actor, beside Ray's object store: on one node, and between two raylets of this host.

The time is that of the whole: the first actor returns a tensor of torch, and the second one has read it. Both ways take turns; the figures are
medians. Each tensor is a new one, and is written before the time begins.

    transfer-python/benches/ray_tensors.py [--mib N] [--rounds N]
"""

from __future__ import annotations

import argparse
import statistics
import time

import ray
import torch
import transferd.ray as tr
from ray.cluster_utils import Cluster
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

tr.register()


@ray.remote(enable_tensor_transport=True, num_cpus=0)
class Worker:
    def __init__(self, mib: int) -> None:
        self.tensor = torch.rand(mib << 18)

    def turn(self) -> None:
        self.tensor = self.tensor.roll(1)

    def plain(self) -> torch.Tensor:
        return self.tensor

    @ray.method(tensor_transport="transferd")
    def direct(self) -> torch.Tensor:
        return self.tensor

    def take(self, tensor: torch.Tensor) -> float:
        # A number of each page, so that all of it is there.
        return float(tensor[::1024].sum())


def main() -> None:
    arguments = argparse.ArgumentParser(description="A tensor from actor to actor.")
    arguments.add_argument("--mib", type=int, default=64)
    arguments.add_argument("--rounds", type=int, default=15)
    given = arguments.parse_args()

    store = max(300, 4 * given.mib) << 20
    node = {"num_cpus": 2, "object_store_memory": store, "include_dashboard": False}
    cluster = Cluster(head_node_args=node, initialize_head=True)
    cluster.add_node(**node)
    ray.init(address=cluster.address, log_to_driver=False)
    tr.init(arena=4 * given.mib << 20)
    own = ray.get_runtime_context().get_node_id()
    places = [own, *(found["NodeID"] for found in ray.nodes() if found["NodeID"] != own)]

    def at(place: str):
        return Worker.options(scheduling_strategy=NodeAffinitySchedulingStrategy(place, soft=False)).remote(given.mib)

    source, near, far = at(places[0]), at(places[0]), at(places[1])
    for where, destination in (("one node", near), ("two nodes", far)):
        times: dict[str, list[float]] = {"plain": [], "direct": []}
        for number in range(given.rounds + 2):
            for way, found in times.items():
                ray.get(source.turn.remote())
                started = time.perf_counter()
                ray.get(destination.take.remote(getattr(source, way).remote()))
                if number >= 2:  # the first ones start what is needed
                    found.append(time.perf_counter() - started)
        plain, direct = (statistics.median(found) * 1000 for found in times.values())
        print(f"{given.mib} MiB, {where}: Ray's object store {plain:.1f} ms, transferd {direct:.1f} ms: {plain / direct:.1f} times", flush=True)
    ray.shutdown()
    cluster.shutdown()


if __name__ == "__main__":
    main()
