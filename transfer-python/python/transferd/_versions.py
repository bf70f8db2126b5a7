"""The versions of one key: a publisher and a subscriber of it, over the calls of a client."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Generic, Protocol, Self, TypedDict, TypeVar, Unpack

from . import _client
from ._calls import Aliases, PushOptions
from ._native import Pushed


class Versioned(Protocol):
    """What a subscriber fetches: a `Tensor`, a `State`, a `Table`."""

    @property
    def version(self) -> int: ...


V = TypeVar("V", bound=Versioned)


class PublisherOptions(TypedDict, total=False):
    """What holds for each push of a publisher: the options of `PushOptions` but `version`, `takeover` and `trace`."""

    to: str | None
    timeout: float | None
    require: str | None
    keep: str | int | None
    outlive: bool
    readable_by: Sequence[str]


def joined(lasting: PublisherOptions, options: PushOptions) -> PushOptions:
    """The options of one push. Its own come first."""
    return {**lasting, **options}


def checked(lasting: PublisherOptions) -> PublisherOptions:
    for name in lasting:
        if name not in PublisherOptions.__annotations__:
            known = ", ".join(PublisherOptions.__annotations__)
            raise TypeError(f"a publisher takes {known}, not {name!r}: give that to each push")
    return lasting


class Seen:
    """What a subscriber has returned so far."""

    def __init__(self, key: str, after: int | None, timeout: float | None, require: str | None) -> None:
        self.key = key
        """The key."""
        self.seen = after
        """The newest version that it has returned, or that it begins after."""
        self._timeout, self._require = timeout, require

    def _next(self) -> int | None:
        return None if self.seen is None else self.seen + 1

    def _saw(self, value: V) -> V:
        self.seen = value.version if self.seen is None else max(self.seen, value.version)
        return value


class Publisher:
    """Publishes versions of one key, with the same options for each; see `Client.publisher`."""

    def __init__(self, client: _client.Client, key: str, options: PublisherOptions) -> None:
        self._client, self._options = client, checked(options)
        self.key = key
        """The key."""

    def push(self, value: object, *, aliases: Aliases = "refuse", **options: Unpack[PushOptions]) -> Pushed:
        """As `Client.push`. Options that are given here come first."""
        return self._client.push(self.key, value, aliases=aliases, **joined(self._options, options))

    def push_state(
        self, state: Mapping[str, object], *, aliases: Aliases = "refuse", **options: Unpack[PushOptions]
    ) -> Pushed:
        """As `Client.push_state`."""
        return self._client.push_state(self.key, state, aliases=aliases, **joined(self._options, options))

    def push_table(self, table: object, **options: Unpack[PushOptions]) -> Pushed:
        """As `Client.push_table`."""
        return self._client.push_table(self.key, table, **joined(self._options, options))

    def produce(
        self,
        shape: int | Sequence[int],
        dtype: object = "float32",
        *,
        room: float | None = 0.0,
        **options: Unpack[PushOptions],
    ) -> _client.Producing:
        """As `Client.produce`."""
        return self._client.produce(self.key, shape, dtype, room=room, **joined(self._options, options))


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
