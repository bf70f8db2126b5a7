"""The client for asyncio: `async with transferd.aio.connect(path) as c: v = await c.fetch("layer0/w")`.

It waits on the session's descriptor in the event loop; no other thread is needed. Cancelling an `await` gives the call up, and what it may still
bring is released. A client belongs to the event loop that it was connected in.
"""

from __future__ import annotations

import asyncio
import functools
from collections.abc import AsyncIterator, Coroutine, Generator, Iterable, Mapping, Sequence
from functools import partial
from types import TracebackType
from typing import Any, Self, Unpack, overload

from . import _calls, _client, _native
from ._aio_exchange import Exchange, ExchangeReader, ExchangeTask
from ._calls import Aliases, FetchOptions, PushOptions, StateOptions
from ._client import Path
from ._errors import Error
from ._loop import Loop
from ._native import Buffer, FetchedInto, Pushed, Round, Table, Tensor
from ._pinned import AsyncPinned, AsyncPinning
from ._sharded import Shard
from ._staged import AsyncStaged, AsyncStateSubscriber
from ._state import State
from ._versions import AsyncSubscriber, Publisher, PublisherOptions

__all__ = ["AsyncPinned", "Barrier", "BatchReader", "BatchWriter", "Client", "Connecting", "Counter", "Exchange", "ExchangeReader", "ExchangeTask", "AsyncStaged", "AsyncStateSubscriber", "AsyncSubscriber", "Producing", "TwoBuffers", "TwoStateBuffers", "connect", "embedded"]


class Client(AsyncPinning):
    """A session with the sidecar of this node, for asyncio. `connect` and `embedded` make one. The calls are those of `transferd.Client`."""

    def __init__(self, client: _client.Client) -> None:
        self._client, self._loop = client, Loop(client)
        self._closing: asyncio.Future[None] | None = None

    @property
    def name(self) -> str:
        """This worker's name."""
        return self._client.name

    @property
    def node(self) -> str:
        """The name of the sidecar's node."""
        return self._client.node

    @property
    def path(self) -> str | None:
        """The socket of the sidecar."""
        return self._client.path

    @property
    def arena_free_bytes(self) -> int:
        """What is free in the arena, in bytes."""
        return self._client.arena_free_bytes

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None
    ) -> None:
        await self.close()

    def close(self) -> asyncio.Future[None]:
        """As `transferd.Client.close`: `await` it, and another worker can have the name. It is closed also if nobody awaits it.

        The executor's thread waits for the sidecar, for at most 5 s if that does not answer, and the event loop goes on.
        """
        if self._closing is None:
            self._loop.closed = True
            self._closing = self._loop.loop.run_in_executor(None, self._client.close)
            self._closing.add_done_callback(lambda _: self._loop.close())
        # Who gives this one up does not take the end from the others.
        return asyncio.shield(self._closing)

    def __repr__(self) -> str:
        return f"<aio.Client {self.name!r} at node {self.node!r}>"

    async def empty(
        self, shape: int | Sequence[int], dtype: object = "float32", *, timeout: float | None = 0.0
    ) -> Buffer:
        """As `transferd.Client.empty`."""
        return await self._loop.run(_calls.allocate(self._client, shape, dtype, timeout))

    async def push(
        self,
        key: str,
        value: object,
        *,
        aliases: Aliases = "refuse",
        dtype: object = None,
        **options: Unpack[PushOptions],
    ) -> Pushed:
        """As `transferd.Client.push`. What has to be copied is copied in the event loop's thread."""
        return await self._loop.run(_calls.push(self._client, key, value, aliases, dtype, options))

    def produce(
        self,
        key: str,
        shape: int | Sequence[int],
        dtype: object = "float32",
        *,
        room: float | None = 0.0,
        **options: Unpack[PushOptions],
    ) -> Producing:
        """As `transferd.Client.produce`, with `async with`."""
        return Producing(self, key, shape, dtype, room, options)

    async def push_snapshot(self, key: str, buffer: Buffer, **options: Unpack[PushOptions]) -> Pushed:
        """As `transferd.Client.push_snapshot`."""
        return await self._loop.run(_calls.push_snapshot(self._client, key, buffer, options))

    @overload
    async def fetch(self, key: str, *, slice: object = None, into: None = None, **options: Unpack[FetchOptions]) -> Tensor: ...

    @overload
    async def fetch(
        self, key: str, *, into: object, slice: object = None, staged: bool = False, **options: Unpack[FetchOptions]
    ) -> FetchedInto: ...

    async def fetch(
        self, key: str, *, slice: object = None, into: object = None, staged: bool = False, **options: Unpack[FetchOptions]
    ) -> Tensor | FetchedInto:
        """As `transferd.Client.fetch`. A task that is cancelled waits until nobody can write into `into`."""
        if into is None:
            return await self._loop.wait(self._client.fetch_later(key, slice=slice, staged=staged, **options))
        return await self._loop.wait(self._client.fetch_later(key, slice=slice, into=into, staged=staged, **options))

    async def fetch_many(self, keys: Sequence[str], **options: Unpack[FetchOptions]) -> list[Tensor | Error]:
        """As `transferd.Client.fetch_many`."""
        return await self._loop.wait(self._client._fetch_many(_calls.keys_of(keys), **options))

    async def take(self, key: str, indices: object, **options: Unpack[FetchOptions]) -> Tensor:
        """As `transferd.Client.take`."""
        return await self._loop.run(_calls.take(self._client, key, indices, options))

    async def delete(self, key: str, *, timeout: float | None = 30.0) -> None:
        """As `transferd.Client.delete`."""
        await self._loop.wait(self._client._delete(key, timeout))

    async def reserve(
        self, key: str, shape: Sequence[int], dtype: object, to: str, *, timeout: float | None = 30.0
    ) -> None:
        """As `transferd.Client.reserve`."""
        await self._loop.wait(self._client._reserve(key, shape, dtype, to, timeout))

    def publisher(self, key: str, **options: Unpack[PublisherOptions]) -> Publisher[Coroutine[Any, Any, Pushed], Producing]:
        """As `transferd.Client.publisher`. Its pushes are awaited."""
        return Publisher(self, key, options)

    def subscriber(
        self,
        key: str,
        *,
        after: int | None = None,
        timeout: float | None = 30.0,
        require: str | None = None,
        slice: object = None,
        verify: bool = False,
        require_digest: bool = False,
    ) -> AsyncSubscriber[Tensor]:
        """As `transferd.Client.subscriber`, with `async for`."""
        fetch = partial(self.fetch, slice=slice, verify=verify, require_digest=require_digest)
        return AsyncSubscriber(fetch, key, after, timeout, require)

    def state_subscriber(
        self,
        key: str,
        *,
        after: int | None = None,
        timeout: float | None = 30.0,
        require: str | None = None,
        slices: Mapping[str, object] | None = None,
        base: Mapping[Any, object] | None = None,
        verify: bool = False,
        require_digest: bool = False,
    ) -> AsyncStateSubscriber:
        """As `transferd.Client.state_subscriber`, with `async for`."""
        return AsyncStateSubscriber(self, key, slices, after, timeout, require, {"verify": verify, "require_digest": require_digest}, base)

    def table_subscriber(
        self,
        key: str,
        *,
        after: int | None = None,
        timeout: float | None = 30.0,
        require: str | None = None,
        verify: bool = False,
        require_digest: bool = False,
    ) -> AsyncSubscriber[Table]:
        """As `transferd.Client.table_subscriber`, with `async for`."""
        fetch = partial(self.fetch_table, verify=verify, require_digest=require_digest)
        return AsyncSubscriber(fetch, key, after, timeout, require)

    async def push_state(
        self,
        key: str,
        state: Mapping[Any, object],
        *,
        aliases: Aliases = "refuse",
        dtype: object = None,
        rank: int | None = None,
        world_size: int | None = None,
        whole: bool = False,
        restart: int = 0,
        **options: Unpack[PushOptions],
    ) -> Pushed:
        """As `transferd.Client.push_state`. What has to be copied is copied in the event loop's thread."""
        commit = _calls.Commit(rank, world_size, whole, restart)
        return await self._loop.run(_calls.push_any_state(self._client, key, state, aliases, dtype, commit, options))

    async def push_shard(
        self,
        key: str,
        tensor: object,
        *,
        global_shape: Sequence[int],
        offset: Sequence[int],
        rank: int | None = None,
        world_size: int | None = None,
        whole: bool = False,
        restart: int = 0,
        **options: Unpack[PushOptions],
    ) -> Pushed:
        """As `transferd.Client.push_shard`."""
        state, commit = {key: Shard(tensor, global_shape, offset)}, _calls.Commit(rank, world_size, whole, restart)
        return await self._loop.run(_calls.push_shards(self._client, key, state, "refuse", None, commit, options))

    async def fetch_global(self, key: str, *, slice: object = None, **options: Unpack[FetchOptions]) -> Tensor:
        """As `transferd.Client.fetch_global`."""
        return await self._loop.run(_calls.fetch_global(self._client, key, slice, options))

    async def fetch_state(
        self,
        key: str,
        *,
        into: Mapping[Any, Any] | None = None,
        only: Iterable[str] | None = None,
        slices: Mapping[str, object] | None = None,
        layout: Mapping[str, object] | None = None,
        staged: bool = False,
        base: Mapping[Any, object] | None = None,
        **options: Unpack[StateOptions],
    ) -> State:
        """As `transferd.Client.fetch_state`."""
        return await self._loop.run(_calls.fetch_state(self._client, key, into, only, slices, layout, staged, options, base))

    async def push_table(self, key: str, table: object, **options: Unpack[PushOptions]) -> Pushed:
        """As `transferd.Client.push_table`."""
        return await self._loop.run(_calls.push_table(self._client, key, table, options))

    async def fetch_table(self, key: str, **options: Unpack[FetchOptions]) -> Table:
        """As `transferd.Client.fetch_table`."""
        return await self._loop.wait(self._client._fetch_table(key, dict(options)))

    def push_stream(self, key: str, schema: object, *, readers: int = 1) -> BatchWriter:
        """As `transferd.Client.push_stream`."""
        return BatchWriter(self._loop, self._client._push_stream(key, _native.Rows(schema), readers))

    def fetch_stream(self, key: str, *, timeout: float | None = 30.0) -> BatchReader:
        """As `transferd.Client.fetch_stream`, with `async for`."""
        return BatchReader(self._loop, self._client._fetch_stream(key, timeout))

    async def exchange(
        self,
        name: str,
        *,
        partitions: int,
        tasks: int,
        deadline: float | None = None,
        timeout: float | None = 30.0,
    ) -> Exchange:
        """As `transferd.Client.exchange`."""
        native = await self._loop.wait(self._client._open_exchange(name, partitions, tasks, deadline, timeout))
        return Exchange(self._loop, native)

    async def join_exchange(self, name: str, *, timeout: float | None = 30.0) -> Exchange:
        """As `transferd.Client.join_exchange`."""
        return Exchange(self._loop, await self._loop.wait(self._client._join_exchange(name, timeout)))

    async def counter(self, name: str, *, timeout: float | None = 30.0) -> Counter:
        """As `transferd.Client.counter`."""
        return Counter(self._loop, await self._loop.wait(self._client._counter(name, timeout)))

    def barrier(self, name: str, members: int) -> Barrier:
        """As `transferd.Client.barrier`."""
        return Barrier(self._loop, self._client._barrier(name, members))

    async def take_back(self, key: str, *, timeout: float | None = 30.0) -> Buffer:
        """As `transferd.Client.take_back`."""
        return await self._loop.wait(self._client._take_back(key, timeout))

    def two_buffers(self, key: str, shape: Sequence[int], dtype: object = "float32") -> TwoBuffers:
        """As `transferd.Client.two_buffers`."""
        return TwoBuffers(self._loop, self._client._two_buffers(key, shape, dtype))

    async def push_state_snapshot(
        self, key: str, state: Mapping[Any, object], **options: Unpack[PushOptions]
    ) -> Pushed:
        """As `transferd.Client.push_state_snapshot`."""
        return await self._loop.run(_calls.push_state(self._client, key, state, "refuse", None, options, copies=True))

    async def take_back_state(self, key: str, *, timeout: float | None = 30.0) -> dict[Any, Any]:
        """As `transferd.Client.take_back_state`."""
        return await self._loop.run(_calls.take_back_state(self._client, key, timeout))

    def two_state_buffers(
        self, key: str, tensors: Mapping[str, tuple[Sequence[int], object]]
    ) -> TwoStateBuffers:
        """As `transferd.Client.two_state_buffers`."""
        return TwoStateBuffers(self._loop, _calls.two_state_buffers(self._client, key, tensors))


class Producing:
    """A tensor that is being written, and is pushed at the end; see `Client.produce`."""

    def __init__(
        self,
        client: Client,
        key: str,
        shape: int | Sequence[int],
        dtype: object,
        room: float | None,
        options: PushOptions,
    ) -> None:
        _native._check_seconds("room", room)
        self._client, self._key, self._options = client, key, options
        self._of = (shape, dtype, room)
        self._buffer: Buffer | None = None
        self.pushed: Pushed | None = None
        """How the push went, after the end."""

    async def __aenter__(self) -> Buffer:
        shape, dtype, room = self._of
        self._buffer = await self._client.empty(shape, dtype, timeout=room)
        return self._buffer

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None
    ) -> None:
        buffer, self._buffer = self._buffer, None
        if error is None and buffer is not None:
            self.pushed = await self._client.push(self._key, buffer, **self._options)


class Counter:
    """As `transferd.Counter`."""

    def __init__(self, loop: Loop, counter: _native.Counter) -> None:
        self._loop, self._counter = loop, counter

    @property
    def name(self) -> str:
        """Its name."""
        return self._counter.name

    @property
    def home(self) -> str:
        """The node where it lives."""
        return self._counter.home

    async def add(self, n: int = 1, *, timeout: float | None = 30.0) -> int:
        """Adds `n`. Returns what it held before. One that is cancelled may have been done."""
        return await self._loop.wait(self._counter._add(n, timeout))

    async def get(self, *, timeout: float | None = 30.0) -> int:
        """Reads it."""
        return await self._loop.wait(self._counter._get(timeout))

    async def compare_swap(self, expected: int, new: int, *, timeout: float | None = 30.0) -> tuple[bool, int]:
        """Makes it `new` where it is `expected`. Returns whether it was, and what it held before."""
        return await self._loop.wait(self._counter._compare_swap(expected, new, timeout))


class Barrier:
    """As `transferd.Barrier`."""

    def __init__(self, loop: Loop, barrier: _native.Barrier) -> None:
        self._loop, self._barrier = loop, barrier

    async def wait(self, *, timeout: float | None = 30.0) -> Round:
        """Arrives, and waits until all have. A wait that is cancelled does not count."""
        return await self._loop.wait(self._barrier._wait(timeout))


class TwoBuffers:
    """As `transferd.TwoBuffers`."""

    def __init__(self, loop: Loop, buffers: _native.TwoBuffers) -> None:
        self._loop, self._buffers = loop, buffers

    async def turn(self, *, timeout: float | None = 30.0) -> Buffer:
        """The buffer whose turn it is, once nobody reads the version that it held."""
        return await self._loop.wait(self._buffers._turn(timeout))

    async def push(self, buffer: Buffer, version: int, *, timeout: float | None = 30.0) -> Pushed:
        """Publishes the buffer as that version."""
        return await self._loop.wait(self._buffers._push(buffer, version, timeout))


class TwoStateBuffers:
    """As `transferd.TwoStateBuffers`."""

    def __init__(self, loop: Loop, buffers: _native.TwoBundleBuffers) -> None:
        self._loop, self._buffers = loop, buffers

    async def turn(self, *, timeout: float | None = 30.0) -> dict[str, Buffer]:
        """The buffers whose turn it is, once their version has no readers."""
        return await self._loop.wait(self._buffers._turn(timeout))

    async def push(self, buffers: Mapping[str, Buffer], version: int, *, timeout: float | None = 30.0) -> Pushed:
        """Publishes the buffers as that version."""
        return await self._loop.wait(self._buffers._push(list(buffers), list(buffers.values()), version, timeout))


class BatchWriter:
    """As `transferd.BatchWriter`."""

    def __init__(self, loop: Loop, stream: _native.StreamWriter) -> None:
        self._loop, self._stream = loop, stream

    async def push(self, table: object) -> list[Pushed]:
        """Pushes each batch of `table`, in order."""
        return [await self._loop.wait(pending) for pending in self._stream._push(_native.Rows(table))]

    async def finish(self, *, timeout: float | None = 30.0) -> None:
        """As `transferd.BatchWriter.finish`."""
        await self._loop.wait(self._stream._finish(timeout))

    @property
    def unread(self) -> int | None:
        """As `transferd.BatchWriter.unread`. It changes while another task waits in `finish`."""
        return self._stream.unread


class BatchReader:
    """As `transferd.BatchReader`, for `async for`. A read that is cancelled may have taken a batch with it."""

    def __init__(self, loop: Loop, stream: _native.StreamReader) -> None:
        self._loop, self._stream = loop, stream

    def __aiter__(self) -> AsyncIterator[Table]:
        return self

    async def __anext__(self) -> Table:
        pending = self._stream._next()
        batch = None if pending is None else await self._loop.wait(pending)
        if batch is None:
            raise StopAsyncIteration
        return batch


class Connecting:
    """A session to be begun: `await` it, or enter it with `async with`."""

    def __init__(self, path: Path | None, arguments: dict[str, Any]) -> None:
        self._path, self._arguments = path, arguments
        self._client: Client | None = None

    async def _connect(self) -> Client:
        # The handshake waits for the sidecar to fill the arena's pages.
        make = functools.partial(_client.Client, self._path, **self._arguments)
        return Client(await asyncio.get_running_loop().run_in_executor(None, make))

    def __await__(self) -> Generator[Any, Any, Client]:
        return self._connect().__await__()

    async def __aenter__(self) -> Client:
        self._client = await self._connect()
        return self._client

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None
    ) -> None:
        if self._client is not None:
            await self._client.close()


def connect(
    path: Path,
    *,
    name: str | None = None,
    arena: int | str | None = None,
    timeout: float | None = None,
    reconnect: bool = True,
) -> Connecting:
    """As `transferd.connect`: `await connect(path)`, or `async with connect(path) as c`."""
    return Connecting(path, {"name": name, "arena": arena, "timeout": timeout, "reconnect": reconnect})


def embedded(
    *,
    name: str | None = None,
    arena: int | str | None = None,
    timeout: float | None = None,
    sidecar: _calls.Settings | None = None,
) -> Connecting:
    """As `transferd.embedded`."""
    return Connecting(None, {"name": name, "arena": arena, "timeout": timeout, "sidecar": sidecar})
