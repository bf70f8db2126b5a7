"""Exchanges of record batches, for a caller that waits on its thread."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from types import TracebackType
from typing import Self

from . import _calls, _native
from ._calls import wait
from ._native import Table


class Exchange:
    """Rows of record batches, moved from tasks to partitions; see `Client.exchange`. As a context manager its opener releases it."""

    def __init__(self, exchange: _native.Exchange) -> None:
        self._exchange = exchange

    @property
    def name(self) -> str:
        """The name."""
        return self._exchange.name

    @property
    def partitions(self) -> int:
        """The number of partitions."""
        return self._exchange.partitions

    @property
    def tasks(self) -> int:
        """The number of tasks."""
        return self._exchange.tasks

    def task(self, task: int, attempt: int = 0, *, timeout: float | None = 30.0) -> ExchangeTask:
        """Begins an attempt of a task. Each needs a number of its own. Raises `Committed` if another attempt has committed."""
        return ExchangeTask(wait(_calls.one(self._exchange._task(task, attempt, timeout))))

    def partition(
        self,
        partition: int,
        *,
        order: int | None = None,
        position: int = 0,
        rows_per_batch: int = 8192,
        memory: int | str = "1GiB",
        timeout: float | None = 30.0,
    ) -> ExchangeReader:
        """Reads a partition: an iterator of `Table`, as tasks commit. Each batch may take `timeout` seconds.

        With `order`, a seed, the rows come in an order that only the seed chooses, from the row `position` on, once all tasks have
        committed. If their partition takes more `memory` than that, it is read several times; the order is the same. An iterator raises
        `Lost` with the tasks that have to run again, and goes on afterwards.
        """
        in_order = None if order is None else (order, position, rows_per_batch, _calls.to_bytes(memory, "memory"))
        return ExchangeReader(self._exchange._partition(partition, in_order, timeout))

    def release(self, *, timeout: float | None = 30.0) -> None:
        """Ends the exchange for all workers. All its memory becomes free; what was read stays readable. Only its opener can."""
        wait(_calls.one(self._exchange._release(timeout)))

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.release()


class ExchangeTask:
    """One attempt of a task. As a context manager it commits at the end; on an exception nothing of it is left."""

    def __init__(self, task: _native.ExchangeTask) -> None:
        self._task = task

    @property
    def task(self) -> int:
        """The number of the task."""
        return self._task.task

    @property
    def attempt(self) -> int:
        """The number of the attempt."""
        return self._task.attempt

    @property
    def rows(self) -> int:
        """The number of rows that were written."""
        return self._task.rows

    def write(
        self,
        table: object,
        *,
        hash: str | Sequence[str] | None = None,
        column: str | None = None,
        range: object | None = None,
        random: int | None = None,
        timeout: float | None = 30.0,
    ) -> None:
        """Writes the rows of anything with Arrow's capsules, each into its partition: by the `hash` of columns, by a `column` of partition
        numbers, by a table of sorted bounds (`range`), or at `random` from a seed. Without one of these they take turns.

        Equal keys of one type have one hash. Cast those of two sides to one type: 1.5 of scale 1 and 1.50 of scale 2, or an instant in seconds
        and in microseconds, may be in different partitions.

        Each batch waits up to `timeout` seconds for room in the arena, and raises `ArenaFull`.
        """
        how = {"hash": hash, "column": column, "range": range, "random": random}
        wait(_calls.write_rows(self._task, table, how, timeout))

    def commit(self, *, timeout: float | None = 30.0) -> int:
        """Makes this attempt the task. Returns the number of its rows. Raises `Committed` if another attempt was faster."""
        return wait(_calls.one(self._task._commit(timeout)))

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        if error is None:
            self.commit()
        else:
            self._task.drop()


class ExchangeReader:
    """The rows of a partition: an iterator of `Table`, for one thread at a time."""

    def __init__(self, reader: _native.ExchangeReader) -> None:
        self._reader = reader

    @property
    def position(self) -> int:
        """The number of rows of an `order` that were read. A later reader goes on from there."""
        return self._reader.position

    def __iter__(self) -> Iterator[Table]:
        return self

    def __next__(self) -> Table:
        table = wait(_calls.one(self._reader._next()))
        if table is None:
            raise StopIteration
        return table
