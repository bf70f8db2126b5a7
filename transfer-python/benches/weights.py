#!/usr/bin/env python3
"""Measures the weights of one trainer process that go to receiver processes of this host, as verl and vLLM send them: by `transferd.verl`, and beside it by a broadcast of
gloo in buckets of the same size, which is what verl's engine for NCCL does with the only backend of torch that runs on a CPU. Both ways take turns.

A receiver reads a number of each page. The time is the sender's, until all have everything. The figures are medians.

    transfer-python/benches/weights.py [--mib N] [--receivers N] [--rounds N]
"""

from __future__ import annotations

import argparse
import asyncio
import multiprocessing
import os
import statistics
import time
from datetime import timedelta

import torch
import transferd as td

BUCKET = 64 << 20
TENSOR = 4 << 20


def join_gloo(port: int, rank: int, world: int) -> None:
    torch.set_num_threads(1)
    store = torch.distributed.TCPStore("127.0.0.1", port, world, rank == 0, timeout=timedelta(seconds=120))
    torch.distributed.init_process_group("gloo", store=store, rank=rank, world_size=world)


def by_gloo(weights: list[torch.Tensor], buffer: torch.Tensor, is_sender: bool) -> None:
    each = BUCKET // TENSOR
    for first in range(0, len(weights), each):
        part = weights[first : first + each]
        if is_sender:
            for n, weight in enumerate(part):
                buffer[n * TENSOR : (n + 1) * TENSOR].copy_(weight)
        torch.distributed.broadcast(buffer[: len(part) * TENSOR], 0)
        if not is_sender:
            float(buffer[::4096].sum())


def receive(path: str, port: int, rank: int, world: int, count: int, rounds: int, pipe) -> None:
    from transferd.verl import TransferdCheckpointEngine

    join_gloo(port, rank, world)
    engine = TransferdCheckpointEngine(BUCKET, socket=path)
    pipe.send(engine.prepare())
    buffer = torch.empty(BUCKET, dtype=torch.uint8)

    async def take() -> None:
        async for _, weight in engine.receive_weights():
            float(weight[::4096].sum())

    for _ in range(rounds):
        by_gloo([buffer] * count, buffer, False)
        engine.init_process_group(**pipe.recv())
        asyncio.run(take())


def main() -> None:
    arguments = argparse.ArgumentParser(description="Weights from a trainer to receivers.")
    arguments.add_argument("--mib", type=int, default=1024)
    arguments.add_argument("--receivers", type=int, default=2)
    arguments.add_argument("--rounds", type=int, default=5)
    given = arguments.parse_args()
    from transferd.verl import TransferdCheckpointEngine

    home, world, port = td.embedded(arena=0), given.receivers + 1, 29400 + os.getpid() % 1000
    path, weights = str(home.path), [torch.randint(0, 256, (TENSOR,), dtype=torch.uint8) for _ in range((given.mib << 20) // TENSOR)]
    pipes, context = [], multiprocessing.get_context("spawn")
    for rank in range(1, world):
        ours, theirs = context.Pipe()
        pipes.append(ours)
        context.Process(target=receive, args=(path, port, rank, world, len(weights), given.rounds, theirs), daemon=True).start()
    join_gloo(port, 0, world)
    engine, buffer = TransferdCheckpointEngine(BUCKET, is_master=True, socket=path), torch.empty(BUCKET, dtype=torch.uint8)
    others = [pipe.recv() for pipe in pipes]
    took: dict[str, list[float]] = {"gloo": [], "transferd": []}
    for _ in range(given.rounds):
        started = time.perf_counter()
        by_gloo(weights, buffer, True)
        took["gloo"].append(time.perf_counter() - started)
        trainer, rollouts = TransferdCheckpointEngine.build_topology(1, given.receivers, [engine.prepare(), *others])
        engine.init_process_group(**{name: value[0] for name, value in trainer.items()})
        for n, pipe in enumerate(pipes):
            pipe.send({name: value[n] for name, value in rollouts.items()})
        started = time.perf_counter()
        asyncio.run(engine.send_weights(iter([(str(n), weight) for n, weight in enumerate(weights)])))
        took["transferd"].append(time.perf_counter() - started)
    for name, times in took.items():
        seconds = statistics.median(times)
        print(f"{name}: {seconds:.3f} s for {given.mib} MiB to {given.receivers} receivers, {given.mib / 1024 / seconds:.2f} GiB/s to each")


if __name__ == "__main__":
    main()
