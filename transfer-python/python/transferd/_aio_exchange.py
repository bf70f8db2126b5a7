"""Exchanges of record batches, for asyncio."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from types import TracebackType
from typing import Self

from . import _calls, _native
from ._loop import Loop
from ._native import Table


class Exchange:
    """As `transferd.Exchange`."""

    def __init__(self, loop: Loop, exchange: _native.Exchange) -> None:
        self._loop, self._exchange = loop, exchange

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

    async def task(self, task: int, attempt: int = 0, *, timeout: float | None = 30.0) -> ExchangeTask:
        """As `transferd.Exchange.task`."""
        return ExchangeTask(self._loop, await self._loop.wait(self._exchange._task(task, attempt, timeout)))

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
        """As `transferd.Exchange.partition`, for `async for`."""
        in_order = None if order is None else (order, position, rows_per_batch, _calls.to_bytes(memory, "memory"))
        native = self._exchange._partition(partition, in_order, timeout)
        return ExchangeReader(self._loop, native)

    async def release(self, *, timeout: float | None = 30.0) -> None:
        """As `transferd.Exchange.release`."""
        await self._loop.wait(self._exchange._release(timeout))

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None
    ) -> None:
        await self.release()


class ExchangeTask:
    """As `transferd.ExchangeTask`."""

    def __init__(self, loop: Loop, task: _native.ExchangeTask) -> None:
        self._loop, self._task = loop, task

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

    async def write(
        self,
        table: object,
        *,
        hash: str | Sequence[str] | None = None,
        column: str | None = None,
        range: object | None = None,
        random: int | None = None,
        timeout: float | None = 30.0,
    ) -> None:
        """As `transferd.ExchangeTask.write`."""
        how = {"hash": hash, "column": column, "range": range, "random": random}
        await self._loop.run(_calls.write_rows(self._task, table, how, timeout))

    async def commit(self, *, timeout: float | None = 30.0) -> int:
        """As `transferd.ExchangeTask.commit`."""
        return await self._loop.wait(self._task._commit(timeout))

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None
    ) -> None:
        if error is None:
            await self.commit()
        else:
            self._task.drop()


class ExchangeReader:
    """As `transferd.ExchangeReader`, for `async for`. A read that is cancelled loses no rows."""

    def __init__(self, loop: Loop, reader: _native.ExchangeReader) -> None:
        self._loop, self._reader = loop, reader

    @property
    def position(self) -> int:
        """The number of rows of an `order` that were read."""
        return self._reader.position

    def __aiter__(self) -> AsyncIterator[Table]:
        return self

    async def __anext__(self) -> Table:
        table = await self._loop.wait(self._reader._next())
        if table is None:
            raise StopAsyncIteration
        return table
