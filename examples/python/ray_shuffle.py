#!/usr/bin/env python3
"""A data set of Ray is shuffled and sorted by the sidecars of its nodes, and a process that writes a part of it dies meanwhile.

The check: the shuffle has every row once, in the order that the seed alone chooses, also after the death; and the sorted data set is sorted.

    examples/python/ray_shuffle.py [--rows N] [--blocks N] [--partitions N] [--address ADDRESS]
"""

from __future__ import annotations

import argparse
import os
import signal
import sys
import tempfile

import numpy as np
import pyarrow as pa
import ray
import ray.data
import transferd.ray as tr


def ids(tables) -> list[int]:
    return [row for table in tables for row in table["id"].to_pylist()]


class DiesOnce:
    """A block whose first reader dies. Ray runs the task again, in another process."""

    def __init__(self, block: ray.ObjectRef, mark: str) -> None:
        self.block, self.mark = block, mark

    def __call__(self) -> pa.Table:
        if not os.path.exists(self.mark):
            with open(self.mark, "x"):
                os.kill(os.getpid(), signal.SIGKILL)
        return ray.get(self.block)


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
    with tempfile.TemporaryDirectory() as folder:
        mark = os.path.join(folder, "died")
        with tr.shuffle([DiesOnce(blocks[0], mark), *blocks[1:]], by=tr.Random(7), partitions=given.partitions) as shuffled:
            found = [ids(part) for part in shuffled]
        died = os.path.exists(mark)
    complete = sorted(row for part in found for row in part) == list(range(given.rows))
    print(f"every row came once: {complete}; in the order of the seed, with a process that died: {died and found == undisturbed}")

    with tr.shuffle(blocks, by=tr.Sort("key"), partitions=given.partitions) as shuffled:
        back = tr.to_dataset(shuffled)
    sorted_keys = [row["key"] for row in back.take_all()]
    in_order = sorted_keys == sorted(keys.tolist())
    print(f"the data set is sorted: {in_order}")
    ray.shutdown()
    assert complete and died and found == undisturbed and in_order


if __name__ == "__main__":
    sys.exit(main())
