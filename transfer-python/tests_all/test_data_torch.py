"""transferd.data with a DataLoader of torch."""

from __future__ import annotations

import pickle

import pyarrow as pa
import pytest
import torch
import transferd as td
from test_data import ROWS, TASKS, epoch
from torch.utils.data import DataLoader, IterableDataset
from torchdata.stateful_dataloader import StatefulDataLoader
from transferd.data import PartitionDataset


def tensor(batch) -> torch.Tensor:
    return torch.tensor(pa.table(batch)["n"].to_numpy())


@pytest.mark.parametrize("start", ["fork", "spawn"])
def test_workers_of_a_loader_share_the_partitions(c, start):
    with epoch(c):
        dataset = PartitionDataset(c, "epoch", seed=7, rows_per_batch=100, transform=tensor)
        assert isinstance(dataset, IterableDataset)
        alone = torch.cat(list(DataLoader(dataset, batch_size=None)))
        loader = DataLoader(dataset, batch_size=None, num_workers=2, multiprocessing_context=start)
        shared = torch.cat(list(loader))
        assert torch.equal(shared.sort().values, torch.arange(TASKS * ROWS))
        assert torch.equal(alone.sort().values, shared.sort().values)
        assert torch.equal(shared, torch.cat(list(loader))), "the same order in each run"


# Promise: partition-datasets
@pytest.mark.parametrize("start", ["fork", "spawn", "forkserver"])
def test_the_state_of_what_workers_of_a_loader_read_is_refused(c, start):
    with epoch(c):
        dataset = PartitionDataset(c, "epoch", seed=7, rows_per_batch=100, transform=tensor)
        before = dataset.state_dict()
        loader = DataLoader(dataset, batch_size=None, num_workers=2, multiprocessing_context=start)
        batches = iter(loader)
        next(batches)
        with pytest.raises(td.Invalid, match="workers of a DataLoader read.*StatefulDataLoader"):
            dataset.state_dict()
        # Where it is pickled otherwise, the copy reads from the beginning.
        assert pickle.loads(pickle.dumps(dataset)).state_dict() == before
        del batches
        # What this process itself reads, or is told, is known again.
        dataset.load_state_dict(before)
        assert dataset.state_dict() == before
        list(loader)
        with pytest.raises(td.Invalid):
            dataset.state_dict()
        next(iter(dataset))
        assert dataset.state_dict()["position"] == 100


# Promise: partition-datasets
@pytest.mark.parametrize("workers", [0, 1, 2])
@pytest.mark.parametrize("stop", [0, 1, 20, 31])
def test_a_stateful_loader_brings_each_row_once(c, workers, stop):
    def loader():
        dataset = PartitionDataset(c, "epoch", seed=7, rows_per_batch=100, transform=tensor)
        return StatefulDataLoader(dataset, batch_size=None, num_workers=workers)

    with epoch(c):
        before = loader()
        batches = iter(before)
        first = [next(batches) for _ in range(stop)]
        state = pickle.loads(pickle.dumps(before.state_dict()))
        del batches, before
        again = loader()
        again.load_state_dict(state)
        read = torch.cat([*first, *again])
        assert torch.equal(read.sort().values, torch.arange(TASKS * ROWS))


# Promise: partition-datasets
def test_a_state_of_another_number_of_workers_is_refused(c):
    with epoch(c):
        dataset = PartitionDataset(c, "epoch", seed=7, rows_per_batch=100, transform=tensor)
        next(iter(dataset))
        assert dataset.state_dict()["workers"] == 0
        # Each worker would leave out as many rows of its own.
        with pytest.raises(td.Invalid, match="the state is of 0 workers, and here are 2: read with as many workers as before"):
            list(DataLoader(dataset, batch_size=None, num_workers=2))
        state = {**dataset.state_dict(), "workers": 2}
        dataset.load_state_dict(state)
        with pytest.raises(td.Invalid, match="the state is of 2 workers, and here are 0"):
            next(iter(dataset))


def test_a_loader_goes_on_from_the_state(c):
    with epoch(c):
        dataset = PartitionDataset(c, "epoch", seed=7, rows_per_batch=100, transform=tensor)
        found = torch.cat(list(DataLoader(dataset, batch_size=None)))
        batches = iter(DataLoader(dataset, batch_size=None))
        first = torch.cat([next(batches) for _ in range(7)])
        again = PartitionDataset(c, "epoch", seed=7, rows_per_batch=100, transform=tensor)
        again.load_state_dict(dataset.state_dict())
        assert torch.equal(torch.cat([first, *DataLoader(again, batch_size=None)]), found)
