"""Data sets of torch over exchanges, `PartitionDataset`, and batches that workers of a `DataLoader` share, `Collate`. Importing this module imports torch,
where it is installed."""

from __future__ import annotations

import ctypes
import os
from collections.abc import Callable, Iterator, Sequence
from multiprocessing import context, sharedctypes
from typing import TYPE_CHECKING, Any, NotRequired, TypedDict

from . import _native
from ._calls import to_bytes
from ._client import Client, connect
from ._collate import Collate
from ._errors import Invalid
from ._native import Table

__all__ = ["Collate", "PartitionDataset", "State"]

if TYPE_CHECKING:

    class _IterableDataset:
        """`torch.utils.data.IterableDataset`."""

    def _get_worker_info() -> Any:
        """`torch.utils.data.get_worker_info`."""

else:
    try:
        from torch.utils.data import IterableDataset as _IterableDataset
        from torch.utils.data import get_worker_info as _get_worker_info
    except ModuleNotFoundError:
        # Without torch it is an iterable like any other.
        _IterableDataset = object

        def _get_worker_info():
            return None


class State(TypedDict):
    """Where a `PartitionDataset` is: the partition, as its place among those of this process, and the rows of it that were read. `workers` is
    how many workers of a `DataLoader` share the partitions; 0 where the process reads by itself."""

    exchange: str
    seed: int
    partition: int
    position: int
    workers: NotRequired[int]


class PartitionDataset(_IterableDataset):
    """An `IterableDataset` of torch: rows of partitions of an exchange, in an order that only `seed` chooses.

    It yields a `Table` for each `rows_per_batch` rows, or what `transform` makes of it; so a `DataLoader` takes it with `batch_size=None`.
    All tasks of the exchange must have committed, or commit within `timeout` seconds. `partitions` are those that this process reads, one after the other;
    all if nothing is said. The workers of a `DataLoader` share them: worker 1 of 4 reads the second, the sixth, and so on. Another process
    than the one of `client` connects to the same sidecar by itself, without an arena. A partition whose rows take more than `memory` is read several times.

    `state_dict()` says what was read, and `load_state_dict()` makes the next iteration go on from there, in another process too. An iteration
    that has reached the end begins anew the next time. Each worker of a `DataLoader` has a state of its own, of which this process knows nothing:
    `state_dict()` raises `Invalid` here once they have read. torchdata's `StatefulDataLoader` keeps the state of each worker with what it has
    returned.

    Raises `Lost` with the tasks that have to run again; after that, iterate on with the same state.
    """

    def __init__(
        self,
        client: Client,
        exchange: str,
        *,
        seed: int,
        partitions: Sequence[int] | None = None,
        rows_per_batch: int = 8192,
        memory: int | str = "1GiB",
        timeout: float | None = 30.0,
        transform: Callable[[Table], Any] | None = None,
    ) -> None:
        super().__init__()
        if client.path is None:
            raise Invalid("the sidecar of this client has ended")
        seed = _native._whole("seed", seed)
        rows_per_batch = _native._whole("rows_per_batch", rows_per_batch, 1)
        to_bytes(memory, "memory")
        _native._check_seconds("timeout", timeout)
        self._path, self._process = client.path, os.getpid()
        self._client: Client | None = client
        self._exchange, self._seed, self._rows_per_batch, self._memory = exchange, seed, rows_per_batch, memory
        self._partitions = None if partitions is None else _numbers(partitions)
        self._timeout, self._transform = timeout, transform
        self._partition = self._position = 0
        # The workers of the state; None where it does not say.
        self._workers: int | None = 0
        # Shared with the workers of a loader, which set it: nothing else of them comes back to this process.
        self._read_by_workers = sharedctypes.RawValue(ctypes.c_bool, False)

    def __getstate__(self) -> dict[str, Any]:
        # Only a process that is being started can be given shared memory.
        shared = self._read_by_workers if context.get_spawning_popen() is not None else None
        return {**self.__dict__, "_client": None, "_read_by_workers": shared}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        if self._read_by_workers is None:
            self._read_by_workers = sharedctypes.RawValue(ctypes.c_bool, False)

    def state_dict(self) -> State:
        """What was read so far, by this process or this worker. Raises `Invalid` where the workers of a `DataLoader` have read it."""
        if _get_worker_info() is None and self._read_by_workers.value:
            raise Invalid(
                "the workers of a DataLoader read this data set, and each has a state of its own: use torchdata's StatefulDataLoader and its"
                " state_dict(), or read with num_workers=0"
            )
        state = State(exchange=self._exchange, seed=self._seed, partition=self._partition, position=self._position)
        if self._workers is not None:
            state["workers"] = self._workers
        return state

    def load_state_dict(self, state: State) -> None:
        """Goes on from a state of the same exchange and seed, in the next iteration. Raises `Invalid` for any other."""
        for name, own in (("exchange", self._exchange), ("seed", self._seed)):
            if state[name] != own:  # type: ignore[literal-required]
                raise Invalid(f"the state is of the {name} {state[name]!r}, and this data set of {own!r}")  # type: ignore[literal-required]
        numbers = [_native._whole(name, state[name]) for name in ("partition", "position")]
        self._partition, self._position = numbers
        self._workers = state.get("workers")
        if _get_worker_info() is None:
            self._read_by_workers.value = False

    def __iter__(self) -> Iterator[Any]:
        exchange = self._here().join_exchange(self._exchange, timeout=self._timeout)
        worker = _get_worker_info()
        mine: Sequence[int] = range(exchange.partitions) if self._partitions is None else self._partitions
        workers = 0 if worker is None else worker.num_workers
        if worker is not None:
            mine = mine[worker.id :: workers]
        if (self._partition or self._position) and self._workers not in (None, workers):
            raise Invalid(f"the state is of {self._workers} workers, and here are {workers}: read with as many workers as before")
        self._workers, self._read_by_workers.value = workers, worker is not None
        if self._partition > len(mine):
            raise Invalid(f"the state is of partition {self._partition}, and here are {len(mine)}: read with as many workers as before")
        for place in range(self._partition, len(mine)):
            reader = exchange.partition(
                mine[place],
                order=self._seed,
                position=self._position,
                rows_per_batch=self._rows_per_batch,
                memory=self._memory,
                timeout=self._timeout,
            )
            for table in reader:
                # Before the consumer has it: it asks for the state afterwards.
                self._position = reader.position
                yield table if self._transform is None else self._transform(table)
            self._partition, self._position = place + 1, 0
        self._partition = 0

    def _here(self) -> Client:
        """The client of this process."""
        if self._client is None or self._process != os.getpid():
            self._client, self._process = connect(self._path, arena=0), os.getpid()
        return self._client


def _numbers(partitions: Sequence[int]) -> list[int]:
    try:
        given = list(partitions)
    except TypeError:
        raise Invalid(f"partitions is a list of whole numbers, or None; this is {partitions!r}") from None
    return [_native._whole("partition", partition, 0, (1 << 32) - 1) for partition in given]
