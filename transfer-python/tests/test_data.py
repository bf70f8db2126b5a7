"""transferd.data without torch: what it reads, and where it goes on. tests_all has it with torch."""

from __future__ import annotations

import contextlib
import multiprocessing
import pickle
from collections.abc import Iterator
from types import SimpleNamespace

import pyarrow as pa
import pytest
import transferd as td
from conftest import GIVE_UP
from transferd import data
from transferd.data import PartitionDataset

PARTITIONS, TASKS, ROWS = 4, 3, 1000


@contextlib.contextmanager
def epoch(client: td.Client) -> Iterator[td.Exchange]:
    """An exchange with the numbers of 3,000 rows."""
    with client.exchange("epoch", partitions=PARTITIONS, tasks=TASKS) as x:
        for task in range(TASKS):
            with x.task(task) as rows:
                rows.write(pa.table({"n": range(task * ROWS, (task + 1) * ROWS)}), random=5)
        yield x


def numbers(batch: td.Table) -> list[int]:
    return pa.table(batch)["n"].to_pylist()


def read(dataset: PartitionDataset) -> list[int]:
    return [n for batch in dataset for n in batch]


# Promise: partition-datasets
def test_each_row_comes_once_in_the_order_of_the_seed(c):
    with epoch(c) as x:
        dataset = PartitionDataset(c, "epoch", seed=7, rows_per_batch=100, transform=numbers)
        found = read(dataset)
        assert sorted(found) == list(range(TASKS * ROWS)) and found != sorted(found)
        assert found == [n for p in range(PARTITIONS) for batch in x.partition(p, order=7) for n in numbers(batch)]
        assert read(dataset) == found, "at the end it begins anew"
        assert read(PartitionDataset(c, "epoch", seed=8, transform=numbers)) != found
        some = PartitionDataset(c, "epoch", seed=7, partitions=[2, 1], transform=numbers)
        assert read(some) == [n for p in (2, 1) for batch in x.partition(p, order=7) for n in numbers(batch)]


# Promise: partition-datasets
@pytest.mark.parametrize("stop", [0, 1, 8, 15, 30])
def test_a_reader_goes_on_from_its_state_in_another_process_too(c, stop):
    with epoch(c):
        dataset = PartitionDataset(c, "epoch", seed=7, rows_per_batch=100, transform=numbers)
        found, first = read(dataset), []
        batches = iter(dataset)
        for _ in range(stop):
            first += next(batches)
        state = pickle.loads(pickle.dumps(dataset.state_dict()))
        again = pickle.loads(pickle.dumps(dataset))
        again.load_state_dict(state)
        assert first + read(again) == found
        # One that was made anew, and not pickled.
        again = PartitionDataset(c, "epoch", seed=7, rows_per_batch=64, transform=numbers)
        again.load_state_dict(state)
        assert first + read(again) == found


# Promise: partition-datasets
@pytest.mark.parametrize("start", ["fork", "spawn"])
def test_the_state_of_what_workers_read_is_refused_in_their_parent(c, start):
    with epoch(c):
        dataset = PartitionDataset(c, "epoch", seed=7, rows_per_batch=100)
        worker = multiprocessing.get_context(start).Process(target=read_as_a_worker, args=(dataset,))
        worker.start()
        worker.join(GIVE_UP)
        assert worker.exitcode == 0
        with pytest.raises(td.Invalid, match="the workers of a DataLoader read this data set.*StatefulDataLoader"):
            dataset.state_dict()
        # A copy is another data set, and what this process reads itself is known.
        assert pickle.loads(pickle.dumps(dataset)).state_dict()["position"] == 0
        next(iter(dataset))
        assert (dataset.state_dict()["position"], dataset.state_dict()["workers"]) == (100, 0)


def read_as_a_worker(dataset: PartitionDataset) -> None:
    """Is the first of two workers of a `DataLoader`, and sees the state of its own."""
    data._get_worker_info = lambda: SimpleNamespace(id=0, num_workers=2)
    batches = iter(dataset)
    next(batches)
    state = dataset.state_dict()
    assert (state["partition"], state["position"], state["workers"]) == (0, 100, 2)
    dataset.load_state_dict(state)
    assert dataset.state_dict() == state


def test_a_state_of_something_else_is_refused(c):
    with epoch(c):
        dataset = PartitionDataset(c, "epoch", seed=7)
        state = dataset.state_dict()
        with pytest.raises(td.Invalid, match="seed 8, and this data set of 7"):
            dataset.load_state_dict({**state, "seed": 8})
        with pytest.raises(td.Invalid, match="exchange 'other', and this data set of 'epoch'"):
            dataset.load_state_dict({**state, "exchange": "other"})
        dataset.load_state_dict({**state, "partition": 5})
        with pytest.raises(td.Invalid, match="the state is of partition 5, and here are 4"):
            next(iter(dataset))
        dataset.load_state_dict({**state, "position": 1, "workers": 2})
        with pytest.raises(td.Invalid, match="the state is of 2 workers, and here are 0"):
            next(iter(dataset))
