"""The versions of one key: a publisher and a subscriber of it, over the calls of a client."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any, Generic, Protocol, Self, TypedDict, TypeVar, Unpack

from . import _native
from ._calls import Aliases, PushOptions


class Versioned(Protocol):
    """What a subscriber fetches: a `Tensor`, a `State`, a `Table`."""

    @property
    def version(self) -> int: ...


V = TypeVar("V", bound=Versioned)
# What a push returns, and what writes a tensor: those of a client, or of an asyncio client.
P = TypeVar("P")
W = TypeVar("W")


class PublisherOptions(TypedDict, total=False):
    """What holds for each push of a publisher: the options of `PushOptions` but `version`, `takeover` and `trace`."""

    to: str | None
    timeout: float | None
    require: str | None
    keep: str | int | None
    outlive: bool
    readable_by: Sequence[str]


class Seen:
    """What a subscriber has returned so far."""

    def __init__(self, key: str, after: int | None, timeout: float | None, require: str | None) -> None:
        self.key = key
        """The key."""
        self.seen = None if after is None else _native._whole("after", after)
        """The newest version that it has returned, or that it begins after."""
        _native._check_seconds("timeout", timeout)
        self._timeout, self._require = timeout, require

    def _next(self) -> int | None:
        return None if self.seen is None else self.seen + 1

    def _saw(self, value: V) -> V:
        self.seen = value.version if self.seen is None else max(self.seen, value.version)
        return value


class Publisher(Generic[P, W]):
    """Publishes versions of one key, with the same options for each; see `Client.publisher`. That of an asyncio client returns what is
    to be awaited."""

    def __init__(self, client: Any, key: str, options: PublisherOptions) -> None:
        for name in options:
            if name not in PublisherOptions.__annotations__:
                known = ", ".join(PublisherOptions.__annotations__)
                raise TypeError(f"a publisher takes {known}, not {name!r}: give that to each push")
        self._client, self._options = client, options
        self.key = key
        """The key."""

    def push(self, value: object, *, aliases: Aliases = "refuse", **options: Unpack[PushOptions]) -> P:
        """As `Client.push`. Options that are given here come first."""
        pushed: P = self._client.push(self.key, value, aliases=aliases, **{**self._options, **options})
        return pushed

    def push_state(
        self, state: Mapping[str, object], *, aliases: Aliases = "refuse", **options: Unpack[PushOptions]
    ) -> P:
        """As `Client.push_state`."""
        pushed: P = self._client.push_state(self.key, state, aliases=aliases, **{**self._options, **options})
        return pushed

    def push_table(self, table: object, **options: Unpack[PushOptions]) -> P:
        """As `Client.push_table`."""
        pushed: P = self._client.push_table(self.key, table, **{**self._options, **options})
        return pushed

    def produce(
        self,
        shape: int | Sequence[int],
        dtype: object = "float32",
        *,
        room: float | None = 0.0,
        **options: Unpack[PushOptions],
    ) -> W:
        """As `Client.produce`."""
        producing: W = self._client.produce(self.key, shape, dtype, room=room, **{**self._options, **options})
        return producing


class Subscriber(Seen, Generic[V]):
    """Reads the versions of one key, each at most once: an iterator without end; see `Client.subscriber`."""

    def __init__(
        self, fetch: Callable[..., V], key: str, after: int | None, timeout: float | None, require: str | None
    ) -> None:
        super().__init__(key, after, timeout, require)
        self._fetch = fetch

    def next(self) -> V:
        """Fetches the newest version if it is newer than all that were returned, and waits for such a one.

        A call that raises skips nothing. A slow reader misses versions that were replaced meanwhile.
        """
        return self._saw(self._fetch(self.key, at_least=self._next(), timeout=self._timeout, require=self._require))

    def latest(self) -> V:
        """Fetches the newest version, also if it was returned before, and waits for the first one."""
        return self._saw(self._fetch(self.key, timeout=self._timeout, require=self._require))

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> V:
        return self.next()


class AsyncSubscriber(Seen, Generic[V]):
    """As `Subscriber`, of an asyncio client: its calls are awaited, and it is for `async for`."""

    def __init__(
        self,
        fetch: Callable[..., Awaitable[V]],
        key: str,
        after: int | None,
        timeout: float | None,
        require: str | None,
    ) -> None:
        super().__init__(key, after, timeout, require)
        self._fetch = fetch

    async def next(self) -> V:
        """As `Subscriber.next`. One that is cancelled skips nothing."""
        fetch = self._fetch(self.key, at_least=self._next(), timeout=self._timeout, require=self._require)
        return self._saw(await fetch)

    async def latest(self) -> V:
        """As `Subscriber.latest`."""
        return self._saw(await self._fetch(self.key, timeout=self._timeout, require=self._require))

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> V:
        return await self.next()
