#!/usr/bin/env python3
"""Measures batches that workers of torch's DataLoader hand to the loop: by its shared memory, and by transferd's `Collate`, in turns.

The data set has its samples in memory, so workers only collate them. The loop reads a number of each page of each batch. The figures are samples per second, of all
batches of an epoch but the first ones; medians over the turns.

    transfer-python/benches/loader.py [--workers N] [--batch N] [--shape N ...] [--batches N] [--turns N]
"""

from __future__ import annotations

import argparse
import statistics
import time

import torch
import transferd as td
from torch.utils.data import DataLoader, Dataset
from transferd.data import Collate


class Samples(Dataset):
    """Samples that are there: some tensors in turns, each with a label."""

    def __init__(self, shape: list[int], count: int) -> None:
        self._tensors, self._count = torch.rand(64, *shape), count

    def __len__(self) -> int:
        return self._count

    def __getitem__(self, index: int) -> tuple[torch.Tensor, int]:
        return self._tensors[index % 64], index


def epoch(loader: DataLoader, warm: int) -> float:
    """The seconds of an epoch, without its first batches."""
    started = 0.0
    for number, (tensors, labels) in enumerate(loader):
        assert float(tensors.flatten()[::1024].sum()) > 0 and labels.shape[0] == tensors.shape[0]
        if number + 1 == warm:
            started = time.perf_counter()
    return time.perf_counter() - started


def main() -> None:
    arguments = argparse.ArgumentParser(description="Batches of a DataLoader.")
    arguments.add_argument("--workers", type=int, default=2)
    arguments.add_argument("--batch", type=int, default=32)
    arguments.add_argument("--shape", type=int, nargs="+", default=[3, 224, 224])
    arguments.add_argument("--batches", type=int, default=60)
    arguments.add_argument("--turns", type=int, default=5)
    given = arguments.parse_args()

    warm = 2 * 2 * given.workers
    dataset = Samples(given.shape, given.batch * (given.batches + warm))
    nbytes = given.batch * dataset[0][0].nbytes
    with td.embedded(arena=0, sidecar={"pinned_limit": "16GiB"}) as client:
        ways = {"shared memory": None, "transferd": Collate(client, arena=6 * nbytes + (1 << 20))}
        loaders = {
            way: DataLoader(dataset, given.batch, num_workers=given.workers, collate_fn=collate, persistent_workers=True)
            for way, collate in ways.items()
        }
        found: dict[str, list[float]] = {way: [] for way in ways}
        for _ in range(given.turns):
            for way, loader in loaders.items():
                found[way].append(given.batch * given.batches / epoch(loader, warm))
    own, ours = (statistics.median(rates) for rates in found.values())
    what = f"batches of {given.batch} x {given.shape} float32, {nbytes / 2**20:.1f} MiB, {given.workers} workers"
    print(f"{what}: shared memory {own:.0f} samples/s, transferd {ours:.0f} samples/s: {ours / own:.2f} times")


if __name__ == "__main__":
    main()
