#!/usr/bin/env python3
"""A DataLoader of torch whose forked workers fetch: each connects by itself, and the data set is in memory once.

The parent publishes a data set in shards. A worker of the DataLoader inherits the parent's client, which it cannot
use, and connects anew; it fetches a shard when it first needs a row of it, by reference, and cuts the rows out of it.
The check: every row came exactly once and unchanged, in each epoch, from more than one process, and no worker copied
a shard.

    examples/python/loader_torch.py [--workers N] [--epochs N]

It ends with 1 where the check fails.
"""

from __future__ import annotations

import argparse
import os
import sys

import numpy as np
import torch
import transferd as td
from torch.utils.data import DataLoader, Dataset

SHARDS, ROWS_PER_SHARD, COLUMNS, BATCH = 8, 256, 128, 32


class Rows(Dataset):
    """The rows of shards that were published as `shard/0` and so on."""

    def __init__(self, client: td.Client) -> None:
        self._client, self._process = client, os.getpid()
        self._shards: dict[int, td.Tensor] = {}

    def __len__(self) -> int:
        return SHARDS * ROWS_PER_SHARD

    def __getitem__(self, index: int) -> tuple[torch.Tensor, int, int, int]:
        """The row, its index, how many bytes were copied to fetch it, and which process did."""
        if self._process != os.getpid():
            self._connect_anew()
        number, row = divmod(index, ROWS_PER_SHARD)
        if number not in self._shards:
            self._shards[number] = self._client.fetch(f"shard/{number}")
        shard = self._shards[number]
        return torch.from_numpy(shard.numpy()[row].copy()), index, shard.report.copied, os.getpid()

    def _connect_anew(self) -> None:
        try:
            self._client.fetch("shard/0")
        except td.Forked:
            # It only fetches: it needs no arena.
            self._client = td.connect(self._client.path, arena=0)
            self._process, self._shards = os.getpid(), {}


def expected(index: torch.Tensor) -> torch.Tensor:
    return index.float().reshape(-1, 1).expand(-1, COLUMNS)


def main() -> bool:
    arguments = argparse.ArgumentParser(description="Forked workers of a DataLoader fetch rows.")
    arguments.add_argument("--workers", type=int, default=2)
    arguments.add_argument("--epochs", type=int, default=2)
    given = arguments.parse_args()

    complete, unchanged, copied, processes = True, True, 0, set()
    with td.embedded(arena="64MiB") as c:
        for number in range(SHARDS):
            with c.produce(f"shard/{number}", (ROWS_PER_SHARD, COLUMNS), "float32") as buffer:
                first = number * ROWS_PER_SHARD
                buffer.numpy()[:] = np.arange(first, first + ROWS_PER_SHARD)[:, None]
        loader = DataLoader(
            Rows(c), batch_size=BATCH, shuffle=True, num_workers=given.workers, multiprocessing_context="fork"
        )
        for _ in range(given.epochs):
            seen = []
            for rows, index, bytes_copied, process in loader:
                unchanged &= torch.equal(rows, expected(index))
                seen += index.tolist()
                copied += int(bytes_copied.sum())
                processes |= set(process.tolist())
            complete &= sorted(seen) == list(range(SHARDS * ROWS_PER_SHARD))
    forked = len(processes) == given.workers * given.epochs and os.getpid() not in processes
    print(f"{given.epochs} epochs by {len(processes)} processes; every row once: {complete}; bytes copied: {copied}")
    return complete and unchanged and forked and copied == 0


if __name__ == "__main__":
    sys.exit(0 if main() else 1)
