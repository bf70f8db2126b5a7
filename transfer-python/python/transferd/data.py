"""Data sets of torch over exchanges: `PartitionDataset`. Importing this module imports torch, where it is installed."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, TypedDict

from . import _native
from ._calls import to_bytes
from ._client import Client, connect
from ._errors import Invalid
from ._native import Table

__all__ = ["PartitionDataset", "State"]

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
    """Where a `PartitionDataset` is: the partition, as its place among those of this process, and the rows of it that were read."""

    exchange: str
    seed: int
    partition: int
    position: int


class PartitionDataset(_IterableDataset):
    """An `IterableDataset` of torch: rows of partitions of an exchange, in an order that only `seed` chooses.

    It yields a `Table` for each `rows_per_batch` rows, or what `transform` makes of it; so a `DataLoader` takes it with `batch_size=None`.
    All tasks of the exchange must have committed, or commit within `timeout` seconds. `partitions` are those that this process reads, one after the other;
    all if nothing is said. The workers of a `DataLoader` share them: worker 1 of 4 reads the second, the sixth, and so on. Another process
    than the one of `client` connects to the same sidecar by itself, without an arena. A partition whose rows take more than `memory` is read several times.

    `state_dict()` says what was read, and `load_state_dict()` makes the next iteration go on from there, in another process too. What a
    `DataLoader` has fetched ahead counts as read; `torchdata.StatefulDataLoader` keeps the state of each worker with what it has
    returned. An iteration that has reached the end begins anew the next time.

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

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_client": None}

    def state_dict(self) -> State:
        """What was read so far."""
        return State(exchange=self._exchange, seed=self._seed, partition=self._partition, position=self._position)

    def load_state_dict(self, state: State) -> None:
        """Goes on from a state of the same exchange and seed, in the next iteration. Raises `Invalid` for any other."""
        for name, own in (("exchange", self._exchange), ("seed", self._seed)):
            if state[name] != own:  # type: ignore[literal-required]
                raise Invalid(f"the state is of the {name} {state[name]!r}, and this data set of {own!r}")  # type: ignore[literal-required]
        numbers = [_native._whole(name, state[name]) for name in ("partition", "position")]
        self._partition, self._position = numbers

    def __iter__(self) -> Iterator[Any]:
        exchange = self._here().join_exchange(self._exchange, timeout=self._timeout)
        worker = _get_worker_info()
        mine: Sequence[int] = range(exchange.partitions) if self._partitions is None else self._partitions
        if worker is not None:
            mine = mine[worker.id :: worker.num_workers]
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
