"""transferd.data with a DataLoader of torch."""

from __future__ import annotations

import pyarrow as pa
import pytest
import torch
from test_data import ROWS, TASKS, epoch
from torch.utils.data import DataLoader, IterableDataset
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


def test_a_loader_goes_on_from_the_state(c):
    with epoch(c):
        dataset = PartitionDataset(c, "epoch", seed=7, rows_per_batch=100, transform=tensor)
        found = torch.cat(list(DataLoader(dataset, batch_size=None)))
        batches = iter(DataLoader(dataset, batch_size=None))
        first = torch.cat([next(batches) for _ in range(7)])
        again = PartitionDataset(c, "epoch", seed=7, rows_per_batch=100, transform=tensor)
        again.load_state_dict(dataset.state_dict())
        assert torch.equal(torch.cat([first, *DataLoader(again, batch_size=None)]), found)
