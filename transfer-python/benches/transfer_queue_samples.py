#!/usr/bin/env python3
"""Measures samples of TransferQueue that go from one process to another: with its own backend, and with that of transferd, in turns.

The driver puts samples of one size, an actor of Ray gets them and reads a number of each page, and the driver clears them; each call is timed for itself. Each
backend has a cluster of its own on this host, and is started anew for each turn. The figures are medians of all rounds.

    transfer-python/benches/transfer_queue_samples.py [--kib 1 16 ...] [--mib N] [--rounds N] [--turns N]
"""

from __future__ import annotations

import argparse
import json
import logging
import statistics
import subprocess
import sys
import time

BACKENDS = ("SimpleStorage", "transferd")
CALLS = ("put", "get", "clear")


def measure(backend: str, sizes: list[int], mib: int, rounds: int) -> dict[str, list[list[float]]]:
    """The seconds of each call of each round, by the size of a sample in KiB."""
    import ray
    import torch
    import transfer_queue as tq
    import transferd.transfer_queue  # noqa: F401
    from tensordict import TensorDict

    class Reader:
        def get(self, keys: list[str]) -> float:
            started = time.perf_counter()
            samples = tq.kv_batch_get(keys=keys, partition_id="bench")["x"]
            # A number of each page, so that all of it is there.
            assert float(samples.values()[::1024].sum()) >= 0
            return time.perf_counter() - started

    ray.init("local", num_cpus=4, include_dashboard=False, object_store_memory=150 << 20, log_to_driver=False, logging_level=logging.ERROR)
    arena = f"{4 * max(mib, max(sizes) >> 10)}MiB"
    tq.init({"controller": {"polling_mode": True}, "backend": {"storage_backend": backend, "transferd": {"arena": arena}}})
    reader = ray.remote(num_cpus=0)(Reader).remote()
    found: dict[str, list[list[float]]] = {}
    for kib in sizes:
        samples = max(1, min(4096, (mib << 10) // kib))
        keys = [f"sample-{number}" for number in range(samples)]
        data = torch.rand(samples, kib << 8)
        found[str(kib)] = []
        for number in range(rounds + 1):
            fields = TensorDict({"x": data.roll(1)}, batch_size=samples)
            started = time.perf_counter()
            tq.kv_batch_put(keys=keys, partition_id="bench", fields=fields)
            put = time.perf_counter() - started
            get = ray.get(reader.get.remote(keys))
            started = time.perf_counter()
            tq.kv_clear(keys=keys, partition_id="bench")
            if number:  # the first one starts what is needed
                found[str(kib)].append([put, get, time.perf_counter() - started])
    tq.close()
    ray.shutdown()
    return found


def main() -> None:
    arguments = argparse.ArgumentParser(description="Samples of TransferQueue from one process to another.")
    arguments.add_argument("--kib", type=int, nargs="+", default=[1, 16, 256, 1024, 16384])
    arguments.add_argument("--mib", type=int, default=64, help="how much is put at once, of at most 4,096 samples")
    arguments.add_argument("--rounds", type=int, default=5)
    arguments.add_argument("--turns", type=int, default=2)
    arguments.add_argument("--backend", choices=BACKENDS, help=argparse.SUPPRESS)
    given = arguments.parse_args()
    if given.backend:
        print(json.dumps(measure(given.backend, given.kib, given.mib, given.rounds)))
        return
    found: dict[str, dict[str, list[list[float]]]] = {backend: {} for backend in BACKENDS}
    for _ in range(given.turns):
        for backend in BACKENDS:
            command = [sys.executable, __file__, "--backend", backend, "--mib", str(given.mib), "--rounds", str(given.rounds)]
            done = subprocess.run([*command, "--kib", *map(str, given.kib)], stdout=subprocess.PIPE, text=True, check=True)
            for kib, times in json.loads(done.stdout.splitlines()[-1]).items():
                found[backend].setdefault(kib, []).extend(times)
    for kib in map(str, given.kib):
        samples = max(1, min(4096, (given.mib << 10) // int(kib)))
        medians = {backend: [statistics.median(column) * 1000 for column in zip(*found[backend][kib])] for backend in BACKENDS}
        for backend, times in medians.items():
            calls = ", ".join(f"{call} {ms:.1f} ms" for call, ms in zip(CALLS, times))
            print(f"{samples} samples of {kib} KiB, {backend}: {calls}, all {sum(times):.1f} ms")
        own, ours = (sum(medians[backend]) for backend in BACKENDS)
        print(f"{samples} samples of {kib} KiB: {own / ours:.2f} times", flush=True)


if __name__ == "__main__":
    main()
