#!/usr/bin/env python3
"""Times `push_state` and `fetch_state` of 300 tensors of 500 MB in all: on one host, where each view is touched once, and over TCP between two
sidecars beside one contiguous tensor of the same length.

    PYTHONPATH=... transfer-python/benches/states.py [--transferd PATH] [--rounds N]
"""

from __future__ import annotations

import argparse
import contextlib
import gc
import statistics
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import transferd as td

TENSORS, BYTES = 300, 500_000_000
EACH = BYTES // TENSORS // 64 * 64


@contextlib.contextmanager
def sidecars(transferd: str) -> Iterator[tuple[str, str]]:
    """Two sidecars between which TCP is the only way. Yields their workers' sockets."""
    with tempfile.TemporaryDirectory() as folder, contextlib.ExitStack() as stack:
        sockets = [str(Path(folder, f"{name}.sock")) for name in "ab"]
        flags = ["--shm", "off", "--verbs", "off", "--pool-bytes", "2GiB", "--pinned-limit", "8GiB"]
        directory = "embedded"
        for name, socket in zip("ab", sockets):
            command = [transferd, "--node", name, "--socket", socket, "--listen", "127.0.0.1:0", "--directory", directory, *flags]
            process = stack.enter_context(subprocess.Popen(command, stdout=subprocess.PIPE, text=True))
            stack.callback(process.terminate)
            assert process.stdout is not None
            ready = process.stdout.readline()
            address = next(word.split("=", 1)[1] for word in ready.split() if word.startswith("grpc="))
            directory = directory if name == "b" else f"http://{address}"
        yield sockets[0], sockets[1]


def state(client: td.Client) -> dict[str, td.Buffer]:
    return {f"layer{n}/weight": client.empty((EACH,), "uint8") for n in range(TENSORS)}


def timed(call: Callable[[], object]) -> float:
    start = time.perf_counter()
    call()
    return time.perf_counter() - start


def show(what: str, seconds: list[float]) -> None:
    best, middle, worst = (f(seconds) * 1e6 for f in (min, statistics.median, max))
    print(f"{what:44} median {middle:9.0f} us   {best:9.0f} to {worst:9.0f}")


def one_host(owner: td.Client, reader: td.Client, rounds: int) -> None:
    buffers, pushes, fetches, touches = state(owner), [], [], []
    copied = 0
    for _ in range(rounds):
        pushes.append(timed(lambda: owner.push_state("policy", buffers)))
        start = time.perf_counter()
        found = reader.fetch_state("policy")
        fetches.append(time.perf_counter() - start)
        for tensor in found.values():
            tensor.numpy()[0]
        touches.append(time.perf_counter() - start)
        copied += found.report.copied
        del found, tensor
        buffers = owner.take_back_state("policy")
    show("push_state", pushes)
    show("fetch_state", fetches)
    show("fetch_state, and each view touched once", touches)
    print(f"bytes copied: {copied}")


def over_tcp(owner: td.Client, reader: td.Client, rounds: int) -> None:
    owner.push_state("policy", state(owner))
    owner.push("dense", owner.empty((EACH * TENSORS,), "uint8"))
    states, denses = [], []
    for _ in range(rounds):
        states.append(timed(lambda: reader.fetch_state("policy")))
        denses.append(timed(lambda: reader.fetch("dense")))
    report = reader.fetch("dense").report
    show(f"fetch_state over {report.fabric}", states)
    show("fetch of one tensor of the same length", denses)
    print(f"ratio of the medians: {statistics.median(denses) / statistics.median(states):.3f}")


def main() -> None:
    arguments = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    arguments.add_argument("--transferd", default="transferd", help="the program of the sidecars")
    arguments.add_argument("--rounds", type=int, default=30)
    given = arguments.parse_args()
    gc.disable()
    with sidecars(given.transferd) as (a, b), td.connect(a, arena="1100MiB") as owner:
        with td.connect(a, arena="1MiB") as near:
            one_host(owner, near, given.rounds)
        with td.connect(b, arena="1MiB") as far:
            over_tcp(owner, far, given.rounds)


if __name__ == "__main__":
    main()
