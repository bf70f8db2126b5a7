"""A fetched tensor to a GPU, and a push from there, beside pinned memory of torch and beside the way through a pageable copy. In turns.

    python transfer-python/benches/gpu.py --transferd PATH
"""

from __future__ import annotations

import argparse
import statistics
import subprocess
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import torch
import transferd as td

MIB = 1 << 20


def measure(calls: dict[str, Callable[[], object]], rounds: int) -> dict[str, float]:
    """The median time of each call until the GPU is idle again, in seconds. The calls take turns; the first round does not count."""
    times: dict[str, list[float]] = {name: [] for name in calls}
    for _ in range(rounds + 1):
        for name, call in calls.items():
            torch.cuda.synchronize()
            started = time.perf_counter()
            kept = call()
            torch.cuda.synchronize()
            times[name].append(time.perf_counter() - started)
            del kept
    return {name: statistics.median(all_of_it[1:]) for name, all_of_it in times.items()}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--transferd", default="transferd", help="the sidecar's program")
    parser.add_argument("--mib", type=int, nargs="*", default=[1, 16, 256])
    parser.add_argument("--rounds", type=int, default=20)
    arguments = parser.parse_args()
    print(f"{torch.cuda.get_device_name()}, torch {torch.__version__}")
    with tempfile.TemporaryDirectory() as folder:
        path = str(Path(folder) / "worker.sock")
        command = [arguments.transferd, "--socket", path, "--admin-socket", str(Path(folder) / "admin.sock")]
        sidecar = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
        assert sidecar.stdout is not None
        sidecar.stdout.readline()
        with td.connect(path, arena="1GiB") as c:
            for mib in arguments.mib:
                run(c, mib, arguments.rounds)
        sidecar.terminate()
        sidecar.wait()


def run(c: td.Client, mib: int, rounds: int) -> None:
    x = torch.randn(mib * MIB // 4, device="cuda")
    pinned = torch.empty(x.shape, pin_memory=True).copy_(x)
    c.push("fetched", x)
    v = c.fetch("fetched")
    rows = {
        "v.torch(device='cuda')": lambda: v.torch(device="cuda"),
        "  pinned.to('cuda')": lambda: pinned.to("cuda", non_blocking=True),
        "  v.torch().to('cuda'), pageable": lambda: v.torch().to("cuda"),
        "c.push('w', x)": lambda: c.push("w", x),
        "  pinned.copy_(x)": lambda: pinned.copy_(x, non_blocking=True),
        "  c.push('w', x.cpu()), pageable": lambda: c.push("w", x.cpu()),
    }
    for name, seconds in measure(rows, rounds).items():
        print(f"{mib:5} MiB  {name:34} {seconds * 1e6:10.0f} us {mib * MIB / seconds / 1e9:7.2f} GB/s", flush=True)
    assert torch.equal(v.torch(device="cuda"), x) and torch.equal(c.fetch("w").torch(device="cuda"), x)
    del v
    for key in ("fetched", "w"):
        c.delete(key)


if __name__ == "__main__":
    main()
