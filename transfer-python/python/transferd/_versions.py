"""The versions of one key: a publisher and a subscriber of it, over the calls of a client."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any, Generic, NamedTuple, Protocol, Self, TypedDict, TypeVar, Unpack

from . import _native
from ._calls import Aliases, FetchOptions, PushOptions


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


class EpochBegan(NamedTuple):
    """The versions of a key began again: its owner goes on from an earlier one, as a trainer does from a checkpoint."""

    last: int
    """The version that was returned last before."""
    first: int
    """The first one that was returned since: a lower one."""


class Seen:
    """What a subscriber has returned so far."""

    def __init__(self, key: str, after: int | None, timeout: float | None, require: str | None) -> None:
        self.key = key
        """The key."""
        self.seen = None if after is None else _native._whole("after", after)
        """The newest version that it has returned of the key's current epoch, or the one that it begins after."""
        self.epoch_began: EpochBegan | None = None
        """The last time that the key's versions began again, with a lower one, while it read them."""
        _native._check_seconds("timeout", timeout)
        self._timeout, self._require, self._returned = timeout, require, False

    def _next(self) -> FetchOptions:
        options: FetchOptions = {"timeout": self._timeout, "require": self._require}
        if self.seen is not None and self._returned:
            options["after"] = self.seen
        elif self.seen is not None:
            options["at_least"] = self.seen + 1
        return options

    def _saw(self, before: int | None, value: V) -> V:
        """Notes what a fetch returned, which began when `before` had been returned."""
        if before is not None and value.version < before and before == self.seen:
            self.epoch_began = EpochBegan(before, value.version)
            self.seen = value.version
        else:
            self.seen = value.version if self.seen is None else max(self.seen, value.version)
        self._returned = True
        return value

    def _before(self) -> int | None:
        return self.seen if self._returned else None


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

    def push(
        self, value: object, *, aliases: Aliases = "refuse", dtype: object = None, **options: Unpack[PushOptions]
    ) -> P:
        """As `Client.push`. Options that are given here come first."""
        pushed: P = self._client.push(self.key, value, aliases=aliases, dtype=dtype, **{**self._options, **options})
        return pushed

    def push_state(
        self,
        state: Mapping[Any, object],
        *,
        aliases: Aliases = "refuse",
        dtype: object = None,
        **options: Unpack[PushOptions],
    ) -> P:
        """As `Client.push_state`."""
        pushed: P = self._client.push_state(self.key, state, aliases=aliases, dtype=dtype, **{**self._options, **options})
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
        """Fetches the newest version if it was not returned before, and waits for such a one.

        A call that raises skips nothing. A slow reader misses versions that were replaced meanwhile. If the owner begins again with
        lower versions, it returns those, and `epoch_began` says so.
        """
        return self._saw(self._before(), self._fetch(self.key, **self._next()))

    def latest(self) -> V:
        """Fetches the newest version, also if it was returned before, and waits for the first one."""
        return self._saw(self._before(), self._fetch(self.key, timeout=self._timeout, require=self._require))

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
        before = self._before()
        return self._saw(before, await self._fetch(self.key, **self._next()))

    async def latest(self) -> V:
        """As `Subscriber.latest`."""
        before = self._before()
        return self._saw(before, await self._fetch(self.key, timeout=self._timeout, require=self._require))

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> V:
        return await self.next()
