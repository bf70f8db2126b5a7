#!/usr/bin/env python3
"""jax computes on memory that another process published: by DLPack, with no copy.

The parent publishes the rows and the targets of a linear model. A worker hands them to jax as they lie, fits the
weights by gradient descent, and publishes them after each step. The check: jax had the rows with no copy, and the
weights that the parent fetches are those that made the targets.

    examples/python/jax_dlpack.py [--socket PATH] [--steps N]

Without --socket a sidecar runs inside of the parent. It ends with 1 where the check fails.
"""

from __future__ import annotations

import argparse
import multiprocessing
import sys

import jax
import jax.numpy as jnp
import numpy as np
import transferd as td

ROWS, COLUMNS = 4096, 64


@jax.jit
def step(weights: jax.Array, rows: jax.Array, targets: jax.Array) -> jax.Array:
    """One step down the mean squared error."""
    return weights - 0.2 * jax.grad(lambda w: ((rows @ w - targets) ** 2).mean())(weights)


def worker(path: str, steps: int) -> None:
    with td.connect(path, arena="1MiB") as c:
        fetched = c.fetch("rows")
        rows, targets = jnp.from_dlpack(fetched), jnp.from_dlpack(c.fetch("targets"))
        weights = jnp.zeros(COLUMNS)
        for version in range(1, steps + 1):
            weights = step(weights, rows, targets)
            c.push("weights", weights, version=version)
        c.push("copied", np.array([fetched.report.copied, fetched.exports_copied]))
        c.barrier("read", 2).wait()


def main() -> bool:
    arguments = argparse.ArgumentParser(description="jax computes on memory that another process published.")
    arguments.add_argument("--socket", help="the sidecar's; without it one runs in this process")
    arguments.add_argument("--steps", type=int, default=100)
    given = arguments.parse_args()

    random = np.random.default_rng(5)
    wanted = random.normal(size=COLUMNS).astype("float32")
    with td.connect(given.socket) if given.socket else td.embedded() as c:
        with c.produce("rows", (ROWS, COLUMNS), "float32") as buffer:
            rows = buffer.numpy()
            rows[:] = random.normal(size=(ROWS, COLUMNS))
            targets = rows @ wanted
            del rows
        c.push("targets", targets)
        process = multiprocessing.get_context("spawn").Process(target=worker, args=(c.path, given.steps))
        process.start()
        found = c.fetch("weights", at_least=given.steps, timeout=120)
        copied = int(c.fetch("copied").numpy().sum())
        right = bool(np.allclose(found.numpy(), wanted, atol=1e-3))
        c.barrier("read", 2).wait()
        process.join()
    print(f"the weights are those that made the targets: {right}; bytes copied of the rows: {copied}")
    return process.exitcode == 0 and right and copied == 0


if __name__ == "__main__":
    sys.exit(0 if main() else 1)
