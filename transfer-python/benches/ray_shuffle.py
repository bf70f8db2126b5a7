#!/usr/bin/env python3
"""Measures a random shuffle and a sort beside those of ray.data, of the same blocks, with two raylets of this host.

Both ways take turns and begin with the same blocks in Ray's object store. Both end when every partition has been read by a task of Ray, which counts its
rows: what is made of the rows is not measured. The actors that hold the rows of transferd.ray are started within the time.

    transfer-python/benches/ray_shuffle.py [--mib N] [--blocks N] [--partitions N] [--rounds N] [--store MIB]
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable

import numpy as np
import pyarrow as pa
import ray
import ray.data
import transferd.ray as tr
from ray.cluster_utils import Cluster

COLUMNS = 8


@ray.remote
def block(seed: int, rows: int) -> pa.Table:
    chance = np.random.default_rng(seed)
    return pa.table({f"c{number}": chance.integers(0, 1 << 62, rows) for number in range(COLUMNS)})


def count(tables) -> int:
    return sum(table.num_rows for table in tables)


@ray.remote
def rows_of(table: pa.Table) -> int:
    return table.num_rows


def here(blocks: list[ray.ObjectRef], by: object, partitions: int) -> int:
    with tr.shuffle(blocks, by=by, partitions=partitions) as shuffled:
        return sum(ray.get(shuffled.map(count)))


def there(blocks: list[ray.ObjectRef], what: Callable[[ray.data.Dataset], ray.data.Dataset]) -> int:
    result = what(ray.data.from_arrow_refs(blocks)).materialize()
    return sum(ray.get([rows_of.remote(ref) for ref in result.to_arrow_refs()]))


def main() -> None:
    arguments = argparse.ArgumentParser(description="A random shuffle and a sort.")
    arguments.add_argument("--mib", type=int, default=1024)
    arguments.add_argument("--blocks", type=int, default=16)
    arguments.add_argument("--partitions", type=int, default=16)
    arguments.add_argument("--rounds", type=int, default=3)
    arguments.add_argument("--store", type=int, help="MiB of the object store of each raylet; three times the blocks if nothing is said")
    given = arguments.parse_args()

    store = given.store or max(300, 3 * given.mib)
    node = {"num_cpus": 2, "object_store_memory": store << 20, "include_dashboard": False}
    cluster = Cluster(head_node_args=node, initialize_head=True)
    cluster.add_node(**node)
    ray.init(address=cluster.address, log_to_driver=False)
    ray.data.DataContext.get_current().enable_progress_bars = False
    tr.init(arena="16MiB", sidecar={"pinned_limit": "16GiB"})
    rows = (given.mib << 20) // given.blocks // (8 * COLUMNS)
    made = block.options(scheduling_strategy="SPREAD")
    blocks = [made.remote(seed, rows) for seed in range(given.blocks)]
    ray.wait(blocks, num_returns=len(blocks))
    ways = {
        "random shuffle": (
            lambda: here(blocks, tr.Random(7), given.partitions),
            lambda: there(blocks, lambda data: data.random_shuffle(seed=7)),
        ),
        "sort": (
            lambda: here(blocks, tr.Sort("c0"), given.partitions),
            lambda: there(blocks, lambda data: data.sort("c0")),
        ),
    }
    for name, pair in ways.items():
        times: list[list[float]] = [[], []]
        for number in range(given.rounds + 1):
            for way, found in zip(pair, times, strict=True):
                started = time.perf_counter()
                assert way() == rows * given.blocks
                if number >= 1:  # the first one starts what is needed
                    found.append(time.perf_counter() - started)
        own, other = (statistics.median(found) for found in times)
        print(f"{given.mib} MiB, {name}: ray.data {other:.2f} s, transferd {own:.2f} s: {other / own:.2f} times", flush=True)
    ray.shutdown()
    cluster.shutdown()


if __name__ == "__main__":
    main()
