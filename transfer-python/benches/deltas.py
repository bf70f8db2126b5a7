#!/usr/bin/env python3
"""Measures how long a version of a state takes from the push until it is loaded on another node, as a delta and as a whole, over slow links: two sidecars in
network namespaces of their own, between which a token bucket (`tbf`) limits each direction of a pair of virtual interfaces. It needs root.

Both ways take turns in each round, with two keys. The time goes from the begin of the push, in which the delta is made, until the reader has copied the
state into memory of its own. In each version another 3 % of the elements change, of two bytes each, at random. The figures are medians.

    transfer-python/benches/deltas.py --transferd target/release/transferd [--mb N] [--rounds N] [--percent P] [--links none,1000,100]
"""

from __future__ import annotations

import argparse
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import transferd as td

ADDRESSES = ["10.213.7.1", "10.213.7.2"]


def run(*command: object, check: bool = True) -> None:
    done = subprocess.run([str(part) for part in command], capture_output=True, text=True)
    if check and done.returncode != 0:
        raise SystemExit(f"{' '.join(map(str, command))}: {done.stderr.strip()}")


@contextmanager
def namespaces(rate: str) -> Iterator[list[str]]:
    """Two namespaces with a link of so many MB/s in each direction, or without a limit."""
    names = [f"transferd-{os.getpid()}-{end}" for end in "ab"]
    ends = [f"td{os.getpid() % 100_000}{end}" for end in "ab"]
    try:
        for name in names:
            run("ip", "netns", "add", name)
        run("ip", "link", "add", ends[0], "netns", names[0], "type", "veth", "peer", "name", ends[1], "netns", names[1])
        for name, end, address in zip(names, ends, ADDRESSES, strict=True):
            run("ip", "-n", name, "addr", "add", f"{address}/24", "dev", end)
            run("ip", "-n", name, "link", "set", "lo", "up")
            run("ip", "-n", name, "link", "set", end, "up")
            if rate != "none":
                # The bucket has what the link carries in 2 ms, and behind it there is room for as much as TCP has under way.
                burst = max(int(rate) * 2_000, 65_536)
                limit = ["rate", f"{int(rate) * 8}mbit", "burst", burst, "limit", 16 << 20]
                run("tc", "-n", name, "qdisc", "add", "dev", end, "root", "tbf", *limit)
        yield names
    finally:
        for name in names:
            run("ip", "netns", "del", name, check=False)


@contextmanager
def sidecars(transferd: Path, names: list[str], pool: int) -> Iterator[list[str]]:
    """A sidecar in each namespace. Their workers are outside: those sockets are files."""
    with tempfile.TemporaryDirectory() as folder:
        paths, processes = [], []
        try:
            for n, (name, address) in enumerate(zip(names, ADDRESSES, strict=True)):
                path = f"{folder}/{n}.sock"
                command = ["ip", "netns", "exec", name, transferd, "--node", f"n{n}", "--socket", path, "--admin-socket", f"{path}-admin"]
                command += ["--listen", f"{address}:7471", "--shm", "off", "--verbs", "off", "--insecure", "--pinned-limit", 16 << 30]
                # The reader's has room for a whole version beside a base, what is made of it, and the delta.
                command += ["--pool-bytes", pool if n > 0 else 64 << 20]
                if n > 0:
                    command += ["--directory", f"http://{ADDRESSES[0]}:7471"]
                log = open(f"{path}-log", "w")
                processes.append(subprocess.Popen([str(part) for part in command], stdout=subprocess.PIPE, stderr=log, text=True))
                ready = processes[-1].stdout.readline()
                if not ready.startswith("transferd ready"):
                    raise SystemExit(f"the sidecar of {name} does not start: {Path(log.name).read_text()}")
                paths.append(path)
            yield paths
        finally:
            for process in processes:
                process.terminate()
                process.wait()


def measure(paths: list[str], length: int, rounds: int, percent: float) -> dict[str, list[float]]:
    random = np.random.default_rng(1)
    weights = random.integers(0, 1 << 16, length // 2, "uint16")
    loaded, took, sent = np.empty_like(weights), {"whole": [], "delta": [], "making it": []}, 0
    wholes = 0
    with td.connect(paths[0], arena=6 * length) as trainer, td.connect(paths[1], arena=0) as reader:
        # The first round is not measured: pages are touched, and there is no base.
        for version in range(1, rounds + 2):
            places = random.random(len(weights)) < percent / 100
            weights[places] = random.integers(0, 1 << 16, int(places.sum()), "uint16")
            for what, options in [("whole", {}), ("delta", {"delta_of": version - 1})]:
                # Both begin with memory that is there already.
                buffer = trainer.empty(weights.shape, "uint16")
                buffer.numpy()[:] = weights
                started = time.perf_counter()
                pushed = trainer.push_state(what, {"w": buffer}, version=version, timeout=300, **options)
                state = reader.fetch_state(what, at_least=version, into={"w": loaded} if what == "whole" else None, timeout=300)
                if what == "delta":
                    state.copy_into({"w": loaded})
                seconds = time.perf_counter() - started
                if not np.array_equal(loaded, weights):
                    raise SystemExit(f"version {version} is another one as a {what}")
                if version > 1:
                    took[what].append(seconds)
                    if what == "delta":
                        took["making it"].append(pushed.delta.took)
                        # Over fast links the push makes none.
                        sent = max(sent, state.report.delta)
                        wholes += pushed.delta.bytes == 0
                        if state.report.delta != pushed.delta.bytes:
                            raise SystemExit(f"version {version} came as a whole: {pushed.delta}")
                del state, buffer
    print(f"  the delta has {sent / 1e6:.1f} MB; {wholes} of {rounds} versions had none, at {pushed.delta.link_rate / 1e6:.0f} MB/s")
    return took


def main() -> None:
    arguments = argparse.ArgumentParser(description="Deltas over slow links.")
    arguments.add_argument("--transferd", type=Path, required=True)
    arguments.add_argument("--mb", type=int, default=500)
    arguments.add_argument("--rounds", type=int, default=5)
    arguments.add_argument("--percent", type=float, default=3.0)
    arguments.add_argument("--links", default="none,1000,100", help="MB/s of each, or none for no limit")
    given = arguments.parse_args()
    if os.geteuid() != 0:
        sys.exit("deltas.py needs root for network namespaces and tbf, and this is another user: run it with sudo")
    length = given.mb * 1_000_000
    for rate in given.links.split(","):
        with namespaces(rate) as names, sidecars(given.transferd, names, 4 * length) as paths:
            print(f"{given.mb} MB, {given.percent} % changed, {'no limit' if rate == 'none' else rate + ' MB/s'}, load {os.getloadavg()[0]:.1f}", flush=True)
            took = measure(paths, length, given.rounds, given.percent)
            whole = statistics.median(took["whole"])
            for what, times in took.items():
                seconds = statistics.median(times)
                print(f"  {what}: {seconds:.3f} s ({min(times):.3f} to {max(times):.3f}), {whole / seconds:.2f} of whole", flush=True)


if __name__ == "__main__":
    main()
