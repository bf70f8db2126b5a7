"""Shuffles through the sidecars of a cluster, with deaths in the middle."""

from __future__ import annotations

import math
import os
import pickle
import random
import signal

import pyarrow as pa
import pytest
import ray
import transferd as td
import transferd.ray as tr
from clusters import NODE, folder_of, nodes, on, sidecars
from conftest import until
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

P, T, N = 4, 6, 2000


def block(task: int, rows: int = N) -> pa.Table:
    chance = random.Random(task)
    ids = range(task * rows, (task + 1) * rows)
    return pa.table({"id": ids, "user": [f"user-{i % 97}" for i in ids], "key": [chance.randrange(10**6) for _ in ids]})


def blocks() -> list[pa.Table]:
    return [block(task) for task in range(T)]


@ray.remote
def made(task: int, rows: int = N) -> pa.Table:
    return block(task, rows)


def rows(tables) -> list[dict]:
    return sorted((row for table in tables for row in table.to_pylist()), key=lambda row: row["id"])


def all_rows() -> list[dict]:
    return rows(blocks())


def result(shuffled) -> list[list[dict]]:
    """The rows of each partition, in the order in which they come."""
    return [[row for table in part for row in table.to_pylist()] for part in shuffled]


# Promise: ray-partitions
def test_equal_keys_meet_and_no_row_is_lost(cluster):
    refs = [made.options(**on(nodes()[task % 2])).remote(task) for task in range(T)]
    with tr.shuffle(refs, by="user", partitions=P) as shuffled:
        assert shuffled.partitions == P
        found = result(shuffled)
        assert rows([pa.Table.from_pylist(part) for part in found]) == all_rows()
        users = [{row["user"] for row in part} for part in found]
        assert sum(map(len, users)) == 97
        # Tasks at both nodes read, too.
        places = [nodes()[number % 2] for number in range(P)]
        read = ray.remote(lambda shuffled, number: rows(shuffled.partition(number)))
        asked = [read.options(**on(place)).remote(shuffled, number) for number, place in enumerate(places)]
        assert ray.get(asked) == [sorted(part, key=lambda row: row["id"]) for part in found]


# Promise: ray-sorts
def test_a_sort_is_a_sort(cluster):
    values = [3.5, None, -1.0, math.nan, 0.0, 7.25, -math.inf, None, 2.0, math.nan] * 50
    chance = random.Random(1)
    tables = []
    for _ in range(3):
        chance.shuffle(values)
        tables.append(pa.table({"v": pa.array(values, pa.float64()), "n": range(len(values))}))
    with tr.shuffle(tables, by=tr.Sort("v", "n"), partitions=P) as shuffled:
        found = [row for part in result(shuffled) for row in part]

    def order(row):
        v = row["v"]
        return (v is not None, v is not None and math.isnan(v), 0 if v is None or math.isnan(v) else v, row["n"])

    expected = sorted((row for table in tables for row in table.to_pylist()), key=order)
    assert [str(row) for row in found] == [str(row) for row in expected]
    with tr.shuffle(blocks(), by=tr.Sort("key"), partitions=P) as shuffled:
        parts = result(shuffled)
    keys = [row["key"] for part in parts for row in part]
    assert keys == sorted(keys) and len(keys) == T * N and all(len(part) > N for part in parts)


# Promise: ray-sorts
def test_chance_is_that_of_the_seed(cluster):
    found = []
    for seed in (7, 7, 8):
        with tr.shuffle(blocks(), by=tr.Random(seed), partitions=P) as shuffled:
            found.append(result(shuffled))
    assert found[0] == found[1] != found[2]
    assert rows([pa.Table.from_pylist(part) for part in found[0]]) == all_rows()
    # Rows of one task would come in their order otherwise.
    ids = [row["id"] for row in found[0][0] if row["id"] < N]
    assert ids != sorted(ids)


# Promise: ray-partitions
def test_blocks_are_tables_references_and_functions(cluster):
    given = [block(0), ray.put(block(1)), lambda: block(2), block(3, 0)]
    with tr.shuffle(given, by=["user", "id"], partitions=P) as shuffled:
        assert rows(table for part in shuffled for table in part) == rows([block(0), block(1), block(2)])
    table = block(0).append_column("part", pa.array([n % 3 for n in range(N)]))
    with tr.shuffle([table], by=tr.Column("part"), partitions=P) as shuffled:
        assert [{row["part"] for row in part} for part in result(shuffled)] == [{0}, {1}, {2}, set()]


# Promise: ray-data-sets
def test_a_data_set_goes_through_and_back(cluster):
    import ray.data

    given = ray.data.from_arrow(blocks())
    with tr.shuffle(tr.from_dataset(given), by=tr.Sort("id"), partitions=P) as shuffled:
        back = tr.to_dataset(shuffled)
    assert back.take_all() == all_rows()


class Slow:
    """A block that says which process writes it at which node, and waits where it has to until it may go on."""

    def __init__(self, task, folder, waits):
        self.task, self.folder, self.waits = task, folder, waits

    def __call__(self):
        with open(self.folder / f"at-{self.task}", "a") as file:
            file.write(f"{os.getpid()} {ray.get_runtime_context().get_node_id()}\n")
        go = self.folder / "go"
        if self.waits:
            until("it may go on", go.exists)
        return block(self.task)


def writers(folder) -> list[tuple[int, str]]:
    """The processes, with their nodes, that have written such blocks, in the order of the blocks."""
    lines = [line for file in sorted(folder.glob("at-*")) for line in file.read_text().splitlines()]
    return [(int(process), node) for process, node in map(str.split, lines)]


@ray.remote(num_cpus=0)
class Job:
    """A process that shuffles, so that the test can kill others meanwhile."""

    def shuffle(self, given, seed):
        with tr.shuffle(given, by=tr.Random(seed), partitions=P, arena="16MiB") as shuffled:
            return result(shuffled)


def expected(seed) -> list[list[dict]]:
    with tr.shuffle(blocks(), by=tr.Random(seed), partitions=P, arena="16MiB") as shuffled:
        return result(shuffled)


# Promise: ray-shuffle-deaths
def test_a_task_that_is_killed_changes_nothing(cluster, tmp_path):
    job = Job.options(**on(nodes()[0])).remote()
    answer = job.shuffle.remote([Slow(task, tmp_path, task == 3) for task in range(T)], 5)
    at = tmp_path / "at-3"
    until("task 3 runs", lambda: at.exists() and at.read_text())
    first = int(at.read_text().split()[0])
    os.kill(first, signal.SIGKILL)
    (tmp_path / "go").touch()
    assert ray.get(answer) == expected(5)
    processes = {line.split()[0] for line in at.read_text().splitlines()}
    assert len(processes) == 2, "it ran again in another process"


# Promise: ray-shuffle-deaths
def test_what_a_process_had_committed_outlives_it(cluster, tmp_path):
    with tr.shuffle([Slow(task, tmp_path, False) for task in range(T)], by=tr.Random(5), partitions=P, arena="16MiB") as shuffled:
        reader = shuffled.partition(0)
        first = next(reader).to_pylist()
        for process in {process for process, _ in writers(tmp_path)}:
            os.kill(process, signal.SIGKILL)
        found = [first + [row for table in reader for row in table.to_pylist()]]
        found += ray.get(shuffled.map(lambda tables: [row for table in tables for row in table.to_pylist()]))[1:]
        assert len(writers(tmp_path)) == T, "nothing was written again"
    assert found == expected(5)


# Promise: ray-shuffle-deaths
def test_a_raylet_that_is_killed_changes_nothing(cluster, tmp_path):
    third = cluster.add_node(**NODE)
    until("it is there", lambda: third.node_id in nodes())
    # Ray makes blocks again that were at a node that has died; it cannot where they may be made at no other.
    place = on(third.node_id)
    place["scheduling_strategy"] = NodeAffinitySchedulingStrategy(third.node_id, soft=True)
    refs = [made.options(**place).remote(task) if task % 2 else Slow(task, tmp_path, False) for task in range(T)]
    ray.wait([ref for ref in refs if isinstance(ref, ray.ObjectRef)], num_returns=T // 2)
    with tr.shuffle(refs, by=tr.Random(6), partitions=P, arena="16MiB") as shuffled:
        assert third.node_id in {node for _, node in writers(tmp_path)}, "some of the rows are there"
        folder = folder_of(third.node_id)
        cluster.remove_node(third, allow_graceful=False)
        # Until then the rows that are there can be read.
        until("its sidecar is gone", lambda: not sidecars(folder) and not folder.exists())
        found = result(shuffled)
        assert len(writers(tmp_path)) > T // 2, "what was there was written again"
    assert found == expected(6)


# Promise: ray-shuffle-errors
def test_errors_say_what_would_be_right(cluster):
    for given, by, says in (
        (blocks(), "nothing", "no column"),
        ([], "user", "no blocks"),
        (blocks(), 7, "by is 7"),
        (blocks(), [], "by is"),
    ):
        with pytest.raises(td.Invalid, match=says):
            tr.shuffle(given, by=by, partitions=P)
    with pytest.raises(td.Invalid, match="takes the names of columns"):
        tr.Hash()
    with pytest.raises(ValueError, match="partitions is a whole number from 1 to .*; this is 0"):
        tr.shuffle(blocks(), by="user", partitions=0)
    with tr.shuffle(blocks()[:1], by="user", partitions=P) as shuffled:
        with pytest.raises(td.Invalid, match="partition is a whole number from 0 to 3; this is 4"):
            shuffled.partition(4)
        again = pickle.loads(ray.cloudpickle.dumps(shuffled))
    for released in (shuffled, again):
        with pytest.raises(td.ExchangeOver, match="were released"):
            next(released.partition(0))
