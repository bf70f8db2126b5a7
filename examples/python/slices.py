#!/usr/bin/env python3
"""Workers that share the layers of one model: each fetches its part of every tensor, and no more.

The parent publishes a layer of two matrices as one state. Each worker takes some columns of the first and the same rows of the second, as for tensor
parallelism, and answers with its part of the result; the parts add up. The slices are views of the version that the parent published. The check: the sum
equals what the whole layer computes, and a CPU copied nothing on the way to the workers.

    examples/python/slices.py [--workers N]
"""

from __future__ import annotations

import argparse
import multiprocessing

import numpy as np
import transferd as td

ROWS, INPUTS, HIDDEN = 16, 256, 1024


def worker(path: str, number: int, workers: int) -> None:
    begin, end = number * HIDDEN // workers, (number + 1) * HIDDEN // workers
    with td.connect(path, arena="1MiB") as c:
        layer = c.fetch_state("layer", slices={"up": np.s_[:, begin:end], "down": np.s_[begin:end]})
        x = c.fetch("x").numpy()
        part = np.maximum(x @ layer["up"].numpy(), 0) @ layer["down"].numpy()
        c.push(f"copied/{number}", np.array([layer.report.copied]))
        c.push(f"part/{number}", part)
        c.barrier("read", workers + 1).wait()


def main() -> None:
    arguments = argparse.ArgumentParser(description="Workers that share the layers of one model.")
    arguments.add_argument("--workers", type=int, default=3)
    given = arguments.parse_args()

    random = np.random.default_rng(7)
    # Small whole numbers: their sums are exact in any order.
    up, down, x = (random.integers(-4, 5, shape).astype("float32") for shape in [(INPUTS, HIDDEN), (HIDDEN, INPUTS), (ROWS, INPUTS)])
    with td.embedded(arena="16MiB") as c:
        c.push_state("layer", {"up": up, "down": down})
        c.push("x", x)
        context = multiprocessing.get_context("spawn")
        processes = [context.Process(target=worker, args=(c.path, number, given.workers)) for number in range(given.workers)]
        for process in processes:
            process.start()
        result = sum(c.fetch(f"part/{number}").numpy() for number in range(given.workers))
        copied = sum(int(c.fetch(f"copied/{number}").numpy()[0]) for number in range(given.workers))
        c.barrier("read", given.workers + 1).wait()
        for process in processes:
            process.join()
            assert process.exitcode == 0, "a worker failed"
    equal = np.array_equal(result, np.maximum(x @ up, 0) @ down)
    print(f"{given.workers} workers; the parts add up to the whole: {equal}; bytes copied for slices: {copied}")
    assert equal and copied == 0


if __name__ == "__main__":
    main()
