"""Arrays of the caller's that a sidecar inside of this process reads and writes where they lie."""

from __future__ import annotations

import sys
from collections.abc import Generator
from typing import TYPE_CHECKING, Any, NamedTuple, Self, TypeVar, Unpack

from . import _calls, _native, _torch
from ._arrays import foreign
from ._calls import PushOptions
from ._errors import Invalid
from ._loop import Loop
from ._native import Buffer, Pending, Pushed, Report
from ._spans import address_of

if TYPE_CHECKING:
    from ._client import Client

T = TypeVar("T")
Call = Generator[Pending[Any], Any, T]


def _registered(client: Any) -> dict[tuple[int, int], Buffer]:
    """What a client has registered, by address and length."""
    found: dict[tuple[int, int], Buffer] = client.__dict__.setdefault("_registered", {})
    return found


def _place(array: Any) -> tuple[int, int]:
    if not (_torch.is_tensor(array) or hasattr(array, "__array_interface__")) or getattr(array, "is_cuda", False):
        raise Invalid(f"a {type(array).__qualname__} cannot be registered: give an array of numpy, or a tensor of torch on the host")
    return address_of(array), array.nbytes


def register(client: Any, array: Any) -> Buffer | None:
    """Registers an array, once. None where the sidecar is another process."""
    place, known = _place(array), _registered(client)
    if place not in known:
        buffer = _native._register(client, foreign(array, "an array", None, lambda of: of))
        if buffer is None:
            return None
        known[place] = buffer
    return known[place]


def unregister(client: Any, array: Any) -> None:
    """Ends the registration of an array, if there is one."""
    if (buffer := _registered(client).get(_place(array))) is not None:
        _native._unregister(client, buffer)
        del _registered(client)[_place(array)]


class _Published(NamedTuple):
    client: Any
    key: str
    buffer: Buffer | None
    pushed: Pushed
    array: Any
    was_writable: bool
    """Whether it is an array of numpy that was made read-only."""
    changes: int | None
    """How often a tensor of torch had been changed."""


def _is_numpy(array: Any) -> bool:
    return (numpy := sys.modules.get("numpy")) is not None and isinstance(array, numpy.ndarray)


def _thaw(published: _Published) -> None:
    if published.was_writable:
        published.array.flags.writeable = True


def push(client: Any, key: str, array: Any, options: PushOptions) -> Call[_Published]:
    """Publishes an array where it lies."""
    buffer = register(client, array)
    changes = array._version if _torch.is_tensor(array) else None
    if buffer is None:
        pushed: Pushed = yield from _calls.push(client, key, array, "refuse", None, options)
        return _Published(client, key, None, pushed, array, False, changes)
    freezes = _is_numpy(array) and bool(array.flags.writeable)
    if freezes:
        array.flags.writeable = False
    try:
        chosen: PushOptions = {"keep": "deleted", **options}
        pushed = yield from _push(client, key, buffer, chosen)
    except BaseException:
        # Unless a reader may have it.
        if freezes and not buffer.pushed:
            array.flags.writeable = True
        raise
    return _Published(client, key, buffer, pushed, array, freezes, changes)


def _push(client: Any, key: str, buffer: Buffer, options: PushOptions) -> Call[Pushed]:
    _calls._check_readers(options)
    pushed: Pushed = yield _native._push_pinned(client, key, buffer, dict(options))
    return pushed


def release(published: _Published, timeout: float | None) -> Call[None]:
    """Ends the version. The array may be written afterwards."""
    if published.buffer is not None and published.buffer.pushed:
        yield published.client._regain(published.key, published.pushed.version, [published.buffer], timeout)
    _thaw(published)
    if published.buffer is not None and published.changes is not None and published.array._version != published.changes:
        raise Invalid(f"the tensor for {published.key!r} was written while it was published: readers may have seen a mixture", key=published.key)


class _Pin:
    def __init__(self, published: _Published) -> None:
        self._published = published

    @property
    def version(self) -> int:
        """The version."""
        return self._published.pushed.version

    @property
    def report(self) -> Report:
        """The report of the push. Where the sidecar is another process, it counts the copy that was published."""
        return self._published.pushed.report

    @property
    def array(self) -> Any:
        """The array, which must not be written until it is released."""
        return self._published.array

    @property
    def released(self) -> bool:
        """Whether the array may be written."""
        return self._published.buffer is None or not self._published.buffer.pushed

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self._published.key!r} version {self.version}{', released' if self.released else ''}>"


class Pinned(_Pin):
    """An array that is published where it lies. It must not be written until `release`, which leaving the `with` statement calls.

    An array of numpy is read-only meanwhile. A tensor of torch that is written by torch meanwhile is found out by `release`.
    """

    def release(self, *, timeout: float | None = 30.0) -> None:
        """Ends the version, and waits until no reader has it, here and elsewhere. Raises `Timeout` if they take longer: it stays published then."""
        _calls.wait(release(self._published, timeout))

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.release()


class Pinning:
    """What a client does with arrays of the caller's."""

    def register(self, array: Any) -> None:
        """Registers the memory of an array of numpy, or of a tensor of torch, with a sidecar inside of this process (`embedded`, or `init`).

        What is pushed of it by `push_pinned` is sent by tcp and verbs from where it lies, and `fetch(..., into=array)` and `fetch_state(..., into=...)` land there as
        in a `Buffer`, also in parts of it. The array has to be writable, and its elements in one piece. It is kept, and counts as pinned memory, until
        `unregister` or the end of the client. It blocks while devices register the memory. Where the sidecar is another process, which cannot reach it, nothing is
        registered: what is pushed and fetched is copied, and the reports count that.
        """
        register(self, array)

    def unregister(self, array: Any) -> None:
        """Ends the registration of an array, and waits until no device has it. Raises `Error` with the code "pushed" while it is published."""
        unregister(self, array)

    def push_pinned(self, key: str, array: Any, **options: Unpack[PushOptions]) -> Pinned:
        """Publishes an array where it lies, without a copy, and registers it if it is not. It must not be written until `Pinned.release`.

        Peers get it from there by tcp and verbs. Readers of this host, and peers over shared memory, cannot map it: they get a copy in the landing pool, which
        their reports count. The version stays until it is released, unless `keep` says otherwise. Where the sidecar is another process, the array is copied
        into the arena, which `report.copied` counts, and is free at once.
        """
        return Pinned(_calls.wait(push(self, key, array, options)))


class AsyncPinned(_Pin):
    """As `Pinned`, of an asyncio client: `await` its release, or leave its `async with`."""

    def __init__(self, published: _Published, loop: Loop) -> None:
        super().__init__(published)
        self._loop = loop

    async def release(self, *, timeout: float | None = 30.0) -> None:
        """As `Pinned.release`."""
        await self._loop.run(release(self._published, timeout))

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.release()


class AsyncPinning:
    """What an asyncio client does with arrays of the caller's."""

    _client: Client
    _loop: Loop

    def register(self, array: Any) -> None:
        """As `transferd.Client.register`. It blocks the event loop while devices register the memory."""
        register(self._client, array)

    def unregister(self, array: Any) -> None:
        """As `transferd.Client.unregister`."""
        unregister(self._client, array)

    async def push_pinned(self, key: str, array: Any, **options: Unpack[PushOptions]) -> AsyncPinned:
        """As `transferd.Client.push_pinned`. Where the sidecar is another process, the array is copied in the event loop's thread."""
        return AsyncPinned(await self._loop.run(push(self._client, key, array, options)), self._loop)
