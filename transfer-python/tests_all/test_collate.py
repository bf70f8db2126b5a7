"""Batches that the workers of a DataLoader make in arenas, and the loop shares."""

from __future__ import annotations

import multiprocessing
import os
import pickle
import signal
from collections import namedtuple

import numpy as np
import pytest
import torch
import transferd as td
from conftest import until
from torch.utils.data import DataLoader, Dataset, IterableDataset
from transferd._collate import Batch
from transferd.data import Collate

ROWS = 8
Pair = namedtuple("Pair", "a b")


class Samples(Dataset):
    """Samples of all that default_collate takes, which say who has made them."""

    def __init__(self, count=24, columns=20_000):
        self.count, self.columns = count, columns

    def __len__(self):
        return self.count

    def __getitem__(self, index):
        return {
            "x": torch.full((self.columns,), float(index)),
            "n": index,
            "loss": index / 2,
            "name": f"sample {index}",
            "inner": (np.full((2, 3), index, "int16"), [torch.tensor(index, dtype=torch.bfloat16)]),
            "worker": os.getpid(),
        }


def loader(c, count=24, columns=20_000, arena="8MiB", timeout=60.0, **options):
    collate = Collate(c, arena=arena, timeout=timeout)
    return DataLoader(Samples(count, columns), ROWS, collate_fn=collate, **{"num_workers": 2, **options})


def check(batches, count=24):
    plain = DataLoader(Samples(count), ROWS)
    seen = 0
    for batch, wanted in zip(batches, plain, strict=True):
        assert list(batch) == list(wanted) and batch["name"] == wanted["name"]
        (array, (one,)), (wanted_array, (wanted_one,)) = batch["inner"], wanted["inner"]
        for found, want in ((batch["x"], wanted["x"]), (batch["n"], wanted["n"]), (batch["loss"], wanted["loss"]), (array, wanted_array), (one, wanted_one)):
            assert found.dtype == want.dtype and torch.equal(found, want)
        seen += 1
    assert seen == count // ROWS


def keys(sidecar):
    return sidecar.counters()["tensors"]


# Promise: collated-batches
@pytest.mark.parametrize("context", ["fork", "spawn", "forkserver"])
def test_a_batch_is_what_default_collate_makes(sidecar, c, context):
    check(loader(c, multiprocessing_context=context))


# Promise: collated-batches
def test_without_workers_and_with_samples_that_are_batches_already(c):
    check(loader(c, num_workers=0))
    rows = [{"x": torch.full((5,), float(n)), "n": [n, f"{n}"]} for n in range(4)]
    for found, wanted in zip(DataLoader(rows, batch_size=None, num_workers=1, collate_fn=Collate(c, arena="1MiB")), rows, strict=True):
        assert torch.equal(found["x"], wanted["x"]) and found["n"] == wanted["n"]

    def ragged(samples):
        return {"x": torch.cat([sample["x"][:2] for sample in samples])}

    made = DataLoader(rows, 2, num_workers=1, collate_fn=Collate(c, arena="1MiB", collate_fn=ragged))
    assert [batch["x"].tolist() for batch in made] == [[0, 0, 1, 1], [2, 2, 3, 3]]


# Promise: collated-copies
def test_a_batch_is_copied_once_and_shared(sidecar, c):
    """What the reports say of the way from the worker's arena to the loop."""
    with td.connect(sidecar.path, arena="8MiB") as worker:
        samples = [Samples()[n] for n in range(ROWS)]
        batch = Collate(c, arena="8MiB")._collated(samples, worker)
        assert isinstance(batch["x"], td.Buffer) and isinstance(batch["inner"][0], td.Buffer)
        pushed = worker.push_state("b", {"batch": {"x": batch["x"]}}, keep=1)
        state = c.fetch_state("b")
        x = state["batch"]["x"]
        seen = x.torch()
        assert (pushed.report.copied, state.report.copied, x.exports_copied) == (0, 0, 0)
        assert seen.nbytes == ROWS * 20_000 * 4 and torch.equal(seen, torch.arange(float(ROWS))[:, None].expand(-1, 20_000))
    # A write is the writer's own.
    for found in loader(c):
        found["x"].zero_()


# Promise: collated-copies
def test_what_goes_through_the_queue_is_a_key(c):
    handle = pickle.dumps(Batch("/a/path", "batches/1/2", None, 60.0))
    assert len(handle) < 200


# Promise: collated-memory
def test_a_worker_that_is_ahead_waits_until_batches_are_dropped(sidecar, c):
    # Each batch has 640 KB, so each worker has room for six, and makes twenty.
    count = 40 * ROWS
    for number, batch in enumerate(loader(c, count, arena="4MiB", prefetch_factor=16)):
        assert batch["x"][0, 0] == number * ROWS
    until("no batch is left", lambda: keys(sidecar) == 0)
    with pytest.raises(MemoryError, match="the loop holds all batches of this worker.*arena of more than 4MiB"):
        list(loader(c, count, arena="4MiB", timeout=0.2))
    with pytest.raises(MemoryError, match="does not fit"):
        list(loader(c, arena="128KiB"))


# Promise: collated-memory
@pytest.mark.parametrize("persistent", [False, True])
def test_nothing_is_left_after_epochs_that_end_and_epochs_that_are_left(sidecar, c, persistent):
    made = loader(c, persistent_workers=persistent)
    for _ in range(3):
        check(made)
        for batch in made:
            break
    del batch, made
    until("no batch and no worker is left", lambda: keys(sidecar) == 0 and sidecar.counters()["sessions"] == 1)


# Promise: collated-memory
def test_a_batch_outlives_its_worker(sidecar, c):
    batches = list(loader(c))
    until("the workers have ended", lambda: sidecar.counters()["sessions"] == 1)
    check(batches)


class Deadly(Samples):
    def __getitem__(self, index):
        if index == 2 * ROWS:
            os.kill(os.getpid(), signal.SIGKILL)
        return super().__getitem__(index)


# Promise: collated-deaths
def test_a_worker_that_is_killed_ends_the_loop_as_torch_says(sidecar, c):
    with pytest.raises(RuntimeError, match="DataLoader worker .* (exited unexpectedly|is killed)"):
        list(DataLoader(Deadly(), ROWS, num_workers=2, collate_fn=Collate(c, arena="8MiB")))
    until("no batch and no worker is left", lambda: keys(sidecar) == 0 and sidecar.counters()["sessions"] == 1)


class Endless(IterableDataset):
    def __iter__(self):
        number = 0
        while True:
            yield torch.full((20_000,), float(number))
            number += 1


# Promise: collated-deaths
def test_a_sidecar_that_dies_ends_the_loop(sidecar, c):
    with pytest.raises(td.Error):
        for number, _ in enumerate(DataLoader(Endless(), ROWS, num_workers=1, collate_fn=Collate(c, arena="8MiB", timeout=5.0))):
            if number == 3:
                sidecar.kill()


# Promise: collated-batches
def test_without_a_client_there_is_a_sidecar_in_this_process():
    found = multiprocessing.get_context("spawn").Process(target=alone)
    found.start()
    found.join()
    assert found.exitcode == 0


def alone():
    check(DataLoader(Samples(), ROWS, num_workers=2, collate_fn=Collate(arena="8MiB")))


# Promise: collated-batches
def test_what_cannot_travel_is_named(c):
    rows = [Pair(torch.ones(2), 1)] * 4
    with pytest.raises(TypeError, match="Pair"):
        list(DataLoader(rows, 2, num_workers=1, collate_fn=Collate(c, arena="1MiB")))
    for arguments, says in (({"arena": "much"}, "arena is"), ({"timeout": -1}, "timeout")):
        with pytest.raises(ValueError, match=says):
            Collate(c, **arguments)


# Promise: collated-pins
def test_a_device_that_is_not_there_is_named(c):
    if torch.cuda.is_available():
        loaded = DataLoader(Samples(), ROWS, num_workers=1, collate_fn=Collate(c, arena="8MiB", device="cuda"))
        assert all(batch["x"].is_cuda and float(batch["x"][0, 0]) == ROWS * number for number, batch in enumerate(loaded))
        return
    with pytest.raises(td.NoDevice):
        list(DataLoader(Samples(), ROWS, num_workers=1, collate_fn=Collate(c, arena="8MiB", device="cuda")))
