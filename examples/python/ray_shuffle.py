#!/usr/bin/env python3
"""A data set of Ray is shuffled and sorted by the sidecars of its nodes, and an actor that holds a part of it is killed meanwhile.

The check: the shuffle has every row once, in the order that the seed alone chooses, also after the kill; and the sorted data set is sorted.

    examples/python/ray_shuffle.py [--rows N] [--blocks N] [--partitions N] [--address ADDRESS]
"""

from __future__ import annotations

import argparse
import sys

import numpy as np
import pyarrow as pa
import ray
import ray.data
import transferd.ray as tr


def ids(tables) -> list[int]:
    return [row for table in tables for row in table["id"].to_pylist()]


def main() -> None:
    arguments = argparse.ArgumentParser(description="A shuffle and a sort through an exchange.")
    arguments.add_argument("--rows", type=int, default=20_000)
    arguments.add_argument("--blocks", type=int, default=8)
    arguments.add_argument("--partitions", type=int, default=4)
    arguments.add_argument("--address", help="of a cluster that runs; without it one is started on this host")
    given = arguments.parse_args()

    started = {} if given.address else {"num_cpus": 2, "object_store_memory": 150 << 20, "include_dashboard": False}
    ray.init(address=given.address, log_to_driver=False, **started)
    tr.init(arena="16MiB")
    keys = np.random.default_rng(7).integers(0, 1 << 40, given.rows)
    table = pa.table({"id": range(given.rows), "key": keys})
    size = -(-given.rows // given.blocks)
    dataset = ray.data.from_arrow([table.slice(at, size) for at in range(0, given.rows, size)])
    blocks = tr.from_dataset(dataset)

    with tr.shuffle(blocks, by=tr.Random(7), partitions=given.partitions) as shuffled:
        # What every partition has, read by tasks of Ray.
        undisturbed = ray.get(shuffled.map(ids))
    with tr.shuffle(blocks, by=tr.Random(7), partitions=given.partitions) as shuffled:
        parts = iter(shuffled)
        found = [ids(next(parts))]
        # Its rows are lost, and written again by its next process.
        ray.kill(shuffled.actors[0], no_restart=False)
        found += [ids(part) for part in parts]
    complete = sorted(row for part in found for row in part) == list(range(given.rows))
    print(f"every row came once: {complete}; in the order of the seed, with an actor killed: {found == undisturbed}")

    with tr.shuffle(blocks, by=tr.Sort("key"), partitions=given.partitions) as shuffled:
        back = tr.to_dataset(shuffled)
    sorted_keys = [row["key"] for row in back.take_all()]
    in_order = sorted_keys == sorted(keys.tolist())
    print(f"the data set is sorted: {in_order}")
    ray.shutdown()
    assert complete and found == undisturbed and in_order


if __name__ == "__main__":
    sys.exit(main())
