"""transferd.data without torch: what it reads, and where it goes on. tests_all has it with torch."""

from __future__ import annotations

import contextlib
import pickle
from collections.abc import Iterator

import pyarrow as pa
import pytest
import transferd as td
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
