#!/usr/bin/env python3
"""Times `c.fetch` of a published tensor on one host, and the copy of a numpy array into the arena beside numpy's own.

    PYTHONPATH=... transfer-python/benches/fetch.py [--socket PATH]
"""

from __future__ import annotations

import argparse
import gc
import statistics
import time

import numpy as np
import transferd as td


def p50_and_p99(call, count: int = 20_000) -> tuple[float, float]:
    """Microseconds."""
    clock, times = time.perf_counter_ns, []
    for _ in range(1000):
        call()
    for _ in range(count):
        start = clock()
        call()
        times.append(clock() - start)
    times.sort()
    return times[count // 2] / 1000, times[count * 99 // 100] / 1000


def main() -> None:
    arguments = argparse.ArgumentParser(description="Times calls of the Python client.")
    arguments.add_argument("--socket", help="a sidecar's; without it one runs in this process")
    given = arguments.parse_args()

    def client(arena: str) -> td.Client:
        return td.connect(given.socket, arena=arena) if given.socket else td.embedded(arena=arena)

    gc.disable()
    with client("600MiB") as owner, client("1MiB") as reader:
        print("what                                   p50 us    p99 us")
        print("a clock and an empty call            {:8.2f}  {:8.2f}".format(*p50_and_p99(lambda: None)))
        for size in (64, 64 << 10, 64 << 20):
            owner.push(f"k{size}", np.ones(size, "uint8"))
            print("fetch of {:>11} B               {:8.2f}  {:8.2f}".format(size, *p50_and_p99(lambda: reader.fetch(f"k{size}"))))
        tensor = reader.fetch(f"k{64 << 20}")
        print("fetched.numpy()                      {:8.2f}  {:8.2f}".format(*p50_and_p99(tensor.numpy)))
        print("numpy.from_dlpack(fetched), 64 MiB   {:8.2f}  {:8.2f}".format(*p50_and_p99(lambda: np.from_dlpack(tensor), 5000)))
        owner.delete(f"k{64 << 20}")
        del tensor
        source, target = np.ones(256 << 20, "uint8"), np.zeros(256 << 20, "uint8")
        ours, numpys = [], []
        for _ in range(9):
            start = time.perf_counter()
            np.copyto(target, source)
            numpys.append(time.perf_counter() - start)
            start = time.perf_counter()
            owner.push("copied", source)
            ours.append(time.perf_counter() - start)
        ours_s, numpys_s = statistics.median(ours), statistics.median(numpys)
        print(f"push of a 256 MiB array: {ours_s * 1e3:.1f} ms, numpy.copyto: {numpys_s * 1e3:.1f} ms, ratio {numpys_s / ours_s:.2f}")


if __name__ == "__main__":
    main()
