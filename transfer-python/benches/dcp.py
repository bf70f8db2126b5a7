#!/usr/bin/env python3
"""Times saves and loads of a checkpoint of torch's DCP: by `transferd.checkpoint` beside DCP's own writer to a folder of tmpfs, in one run and one process. Also for how
long an async save holds the training up. Prints medians of wall time, and of the processor time of all threads, which depends less on what else
the machine does.

    PYTHONPATH=... transfer-python/benches/dcp.py [--rounds N] [--tensors N] [--mib N] [--tmpfs FOLDER]
"""

from __future__ import annotations

import argparse
import logging
import shutil
import statistics
import tempfile
import time
import warnings
from collections.abc import Callable
from typing import Any

import torch
import torch.distributed.checkpoint as dcp
from transferd.checkpoint import TransferReader, TransferWriter

Times = list[tuple[float, float]]


def timed(times: Times, call: Callable[[], Any]) -> Any:
    wall, processor = time.monotonic(), time.process_time()
    result = call()
    times.append((time.monotonic() - wall, time.process_time() - processor))
    return result


def show(what: str, first: tuple[float, float], times: Times) -> float:
    wall, processor = (statistics.median(column) for column in zip(*times))
    print(f"{what:34} first {first[0]:6.3f} s   warm {wall:6.3f} s   processor {processor:6.3f} s", flush=True)
    return processor


def measure(what: str, rounds: int, state: dict[str, Any], writer: Any, reader: Callable[[], Any], where: Callable[[int], str]) -> list[float]:
    saves: Times = []
    loads: Times = []
    stages: Times = []
    target = {name: torch.zeros_like(tensor) for name, tensor in state.items()}
    for n in range(rounds + 1):
        for tensor in state.values():
            tensor += 1
        timed(saves, lambda: dcp.save(state, checkpoint_id=where(n), storage_writer=writer))
        timed(loads, lambda: dcp.load(target, checkpoint_id=where(n), storage_reader=reader()))
        assert all(torch.equal(target[name], state[name]) for name in state), "the state is another one"
    for n in range(rounds + 1):
        done = timed(stages, lambda: dcp.async_save(state, checkpoint_id=where(rounds + 1 + n), storage_writer=writer))
        done.result()
    kinds = ("save", saves), ("load", loads), ("async_save, until it returns", stages)
    return [show(f"{what}: {kind}", times[0], times[1:]) for kind, times in kinds]


def main() -> None:
    arguments = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    arguments.add_argument("--rounds", type=int, default=7)
    arguments.add_argument("--tensors", type=int, default=64)
    arguments.add_argument("--mib", type=int, default=16, help="the size of each tensor")
    arguments.add_argument("--tmpfs", default="/dev/shm", help="a folder of tmpfs")
    given = arguments.parse_args()
    warnings.simplefilter("ignore")
    logging.disable(logging.CRITICAL)
    state = {f"layer{n}": torch.full((given.mib << 18,), float(n)) for n in range(given.tensors)}
    print(f"{given.tensors} tensors of {given.mib} MiB, {given.rounds} warm rounds, medians")
    with tempfile.TemporaryDirectory(dir=given.tmpfs) as folder:

        def path(n: int) -> str:
            # It keeps one, as the other does.
            shutil.rmtree(f"{folder}/{n - 2}", ignore_errors=True)
            return f"{folder}/{n}"

        base = measure("DCP to tmpfs", given.rounds, state, dcp.FileSystemWriter(folder), lambda: dcp.FileSystemReader(folder), path)
    writer = TransferWriter()
    ours = measure("transferd", given.rounds, state, writer, TransferReader, lambda n: f"bench/{n}")
    writer.close()
    for what, theirs, mine in zip(("a save", "a load", "the begin of an async save"), base, ours):
        print(f"{what} to tmpfs takes {theirs / mine:.1f} times the processor time of transferd")


if __name__ == "__main__":
    main()
