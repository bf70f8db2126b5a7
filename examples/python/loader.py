#!/usr/bin/env python3
"""Forked workers prepare batches, as a DataLoader's do: the data set is published once, and no batch is pickled.

The parent publishes the data set, and forks. A worker reads the rows through the view that it inherited, connects by itself, and writes each batch
into its own arena; the parent fetches the batches in order, by reference. The check: every row came exactly once, and a CPU copied nothing on the way.

    examples/python/loader.py [--workers N] [--batches N]
"""

from __future__ import annotations

import argparse
import multiprocessing

import numpy as np
import transferd as td

ROWS_PER_BATCH, COLUMNS = 64, 256


def worker(path: str, rows: np.ndarray, number: int, workers: int) -> None:
    # The parent's client cannot be used here; what was fetched stays readable.
    with td.connect(path, arena="4MiB") as c:
        order = np.random.default_rng(7).permutation(len(rows))
        for batch in range(number, len(rows) // ROWS_PER_BATCH, workers):
            chosen = order[batch * ROWS_PER_BATCH : (batch + 1) * ROWS_PER_BATCH]
            # It stays until it was fetched once, and the arena holds the worker back where the parent is slower.
            with c.produce(f"batch/{batch}", (ROWS_PER_BATCH, COLUMNS), "float32", room=30, keep=1) as buffer:
                np.take(rows, chosen, axis=0, out=buffer.numpy())
        c.barrier("read", workers + 1).wait()


def main() -> None:
    arguments = argparse.ArgumentParser(description="Forked workers prepare batches.")
    arguments.add_argument("--workers", type=int, default=2)
    arguments.add_argument("--batches", type=int, default=50)
    given = arguments.parse_args()

    with td.embedded(arena="64MiB") as c:
        count = given.batches * ROWS_PER_BATCH
        with c.produce("rows", (count, COLUMNS), "float32") as buffer:
            buffer.numpy()[:] = np.arange(count, dtype="float32")[:, None]
        rows = c.fetch("rows").numpy()
        context = multiprocessing.get_context("fork")
        processes = [
            context.Process(target=worker, args=(c.path, rows, number, given.workers)) for number in range(given.workers)
        ]
        for process in processes:
            process.start()
        seen, copied = [], 0
        for batch in range(given.batches):
            tensor = c.fetch(f"batch/{batch}")
            array = tensor.numpy()
            assert (array == array[:, :1]).all()
            seen.append(array[:, 0].astype(int))
            copied += tensor.report.copied
        c.barrier("read", given.workers + 1).wait()
        for process in processes:
            process.join()
            assert process.exitcode == 0, "a worker failed"
    complete = sorted(np.concatenate(seen)) == list(range(count))
    print(f"{given.batches} batches of {ROWS_PER_BATCH} rows; every row once: {complete}; bytes copied: {copied}")
    assert complete and copied == 0


if __name__ == "__main__":
    main()
