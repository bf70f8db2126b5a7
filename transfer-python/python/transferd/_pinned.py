"""Arrays of the caller's that a sidecar inside of this process reads and writes where they lie."""

from __future__ import annotations

import asyncio
import contextlib
import sys
import threading
import time
import weakref
from collections.abc import Generator
from dataclasses import dataclass, field
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self, TypeVar, Unpack

from . import _calls, _native, _torch
from ._arrays import foreign
from ._calls import PushOptions
from ._errors import Error, Invalid, Timeout
from ._loop import Loop
from ._native import Buffer, Foreign, Pending, Pushed, Report
from ._spans import address_of

if TYPE_CHECKING:
    from ._client import Client

T = TypeVar("T")
Call = Generator[Pending[Any], Any, T]

# The interval at which the end of what a closed client has published is looked for: no event tells it.
_POLL = 0.001


@dataclass(eq=False)
class _Registration:
    buffer: Buffer
    array: Any
    place: tuple[int, int]
    held: list[Any] = field(default_factory=list)
    """What has numpy refuse to resize the array meanwhile."""
    current: _Published | None = None
    """As what it is published."""
    frozen: list[Any] = field(default_factory=list)
    """The arrays of numpy that are read-only meanwhile, and were not before."""
    lock: threading.Lock = field(default_factory=threading.Lock)
    """Held while the array is published, and while its version ends."""

    def check_place(self) -> None:
        """Raises if the memory is not where it was."""
        if (now := _place(self.array)) != self.place:
            (was, length), (at, bytes_now) = self.place, now
            raise Invalid(
                f"the array that was registered at {was:#x} with {length} bytes lies at {at:#x} with {bytes_now} bytes now:"
                " memory that is registered must not be resized, moved or freed; unregister it first"
            )


@dataclass(eq=False)
class _Published:
    client: Any
    key: str
    array: Any
    registration: _Registration | None
    """None where the array was copied, and after its release."""
    changes: int | None
    """How often a tensor of torch had been changed."""
    done: bool = False
    pushed: Pushed = field(init=False)


def _registered(client: Any) -> dict[tuple[int, int], _Registration]:
    """What a client has registered, by address and length."""
    found: dict[tuple[int, int], _Registration] = client.__dict__.setdefault("_registered", {})
    return found


def _place(array: Any) -> tuple[int, int]:
    if not (_torch.is_tensor(array) or hasattr(array, "__array_interface__")) or getattr(array, "is_cuda", False):
        raise Invalid(f"a {type(array).__qualname__} cannot be registered: give an array of numpy, or a tensor of torch on the host")
    return address_of(array), array.nbytes


def _memory(array: Any) -> Foreign:
    return foreign(array, "an array", None, lambda of: of)


def _find(client: Any, array: Any) -> _Registration | None:
    """The registration of this memory, or of this array if its memory is another one by now."""
    known = _registered(client)
    return known.get(_place(array)) or next((it for it in known.values() if it.array is array), None)


def register(client: Any, array: Any) -> _Registration | None:
    """Registers an array, once. None where the sidecar is another process."""
    if (found := _find(client, array)) is not None:
        found.check_place()
        _native._check_registered(client, found.buffer, _memory(array), found.place[0])
        return found
    place = _place(array)
    buffer = _native._register(client, _memory(array), place[0])
    if buffer is None:
        return None
    made = _registered(client)[place] = _Registration(buffer, array, place, _hold(array))
    return made


def _hold(array: Any) -> list[Any]:
    """Has numpy refuse to resize an array, and those of which it is a view, for as long as this is kept. Has torch refuse to resize the storage of a
    tensor from here on."""
    if _torch.is_tensor(array):
        _torch.flat(array)
        return []
    held: list[Any] = []
    numpy = sys.modules.get("numpy")
    while numpy is not None and isinstance(array, numpy.ndarray):
        # numpy never resizes an array that has a weak reference.
        held.append(weakref.ref(array))
        array = array.base
    return held


def unregister(client: Any, array: Any) -> None:
    """Ends the registration of an array, if there is one."""
    if (found := _find(client, array)) is None:
        return
    _check_free(client, found)
    try:
        _native._unregister(client, found.buffer)
    except BaseException:
        # Unless it is registered still, the memory is freed later.
        if found.buffer.pushed:
            _registered(client).pop(found.place, None)
        raise
    del _registered(client)[found.place]


def closed(client: Any) -> None:
    """Ends all registrations of a client that was closed, but for what its readers still have, which is kept by what `push_pinned` has returned."""
    known = _registered(client)
    for registration in list(known.values()):
        _regain(client, registration)
    known.clear()


def _freeze(*arrays: Any) -> list[Any]:
    """Makes arrays of numpy read-only, and those of which they are views, if they have no other memory. Returns those that were writable."""
    frozen: list[Any] = []
    numpy = sys.modules.get("numpy")
    for array in arrays:
        at = array
        while numpy is not None and isinstance(at, numpy.ndarray):
            if at.nbytes == array.nbytes and at.flags.writeable:
                at.flags.writeable = False
                frozen.append(at)
            at = at.base
    return frozen


def _thaw(frozen: list[Any]) -> None:
    """Makes arrays writable again, as far as nobody else has made those read-only of which they are views."""
    before = 0
    while len(frozen) != before:
        before = len(frozen)
        for array in list(frozen):
            # A view can be writable only if the array below it is.
            with contextlib.suppress(ValueError):
                array.flags.writeable = True
                frozen[:] = [it for it in frozen if it is not array]
    frozen.clear()


def _regain(client: Any, registration: _Registration) -> bool:
    """Lets an array be written again, if nobody reads it. Returns whether it may be."""
    with registration.lock:
        if registration.buffer.pushed and not _native._regained(client, registration.buffer):
            return False
        _thaw(registration.frozen)
        registration.current = None
        return True


def _check_free(client: Any, registration: _Registration) -> None:
    if not _regain(client, registration):
        current = registration.current
        raise Error(
            f"the array was pushed already, as {current.key!r}: release it, or delete that key, and wait until nobody reads it"
            if current is not None
            else "the array was pushed already, or is being fetched into",
            "pushed",
            key=None if current is None else current.key,
        )


def _changes(array: Any) -> int | None:
    # Those of torch.inference_mode() do not count.
    return int(array._version) if _torch.is_tensor(array) and not array.is_inference() else None


def push(client: Any, key: str, array: Any, options: PushOptions) -> Call[_Published]:
    """Publishes an array where it lies."""
    registration = register(client, array)
    published = _Published(client, key, array, registration, _changes(array))
    if registration is None:
        published.pushed = yield from _calls.push(client, key, array, "refuse", None, options)
        return published
    _calls._check_readers(options)
    # What a push that failed, or one that nobody has released, has left.
    _check_free(client, registration)
    chosen: PushOptions = {"keep": "deleted", **options}
    try:
        with registration.lock:
            registration.frozen += _freeze(array, registration.array)
            pending: Pending[Pushed] = _native._push_pinned(client, key, registration.buffer, dict(chosen))
            registration.current = published
        published.pushed = yield pending
    except BaseException:
        # Unless a reader may have it: then the next call for the array tries again.
        _regain(client, registration)
        raise
    return published


def release(published: _Published, timeout: float | None) -> Call[bool]:
    """Ends the version. Returns whether the array may be written: False where the client is closed, and somebody still reads."""
    registration = published.registration
    if published.done:
        return True
    # If it is published anew, or not any more, it was free in between.
    if registration is not None and registration.current is published:
        try:
            if not published.client.closed:
                yield published.client._regain(published.key, published.pushed.version, [registration.buffer], timeout)
        except Error as error:
            if error.code != "closed":
                raise
        if not _regain(published.client, registration):
            return False
    # A buffer that nobody has keeps no memory of a closed client.
    published.done, published.registration = True, None
    if registration is not None:
        registration.check_place()
        if published.changes is not None and published.array._version != published.changes:
            raise Invalid(f"the tensor for {published.key!r} was written while it was published: readers may have seen a mixture", key=published.key)
    return True


def _late(published: _Published, timeout: float | None, since: float) -> bool:
    """Whether an end that nobody tells of is to be looked for again. Raises after the time-out."""
    waited = time.monotonic() - since
    if timeout is not None and waited >= timeout:
        text = f"the array for {published.key!r} is still being read {waited:.3f} s after its release, and its client is closed"
        raise Timeout(text, "deadline", True, "nobody", published.key, waited)
    return True


def _note(published: _Published, error: BaseException, late: Exception) -> None:
    """Tells of an array that was not released, beside the error for which the statement ends."""
    error.add_note(f"the array for {published.key!r} was not released: {late}")


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
        registration = self._published.registration
        return self._published.done or registration is None or registration.current is not self._published or not registration.buffer.pushed

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self._published.key!r} version {self.version}{', released' if self.released else ''}>"


class Pinned(_Pin):
    """An array that is published where it lies. It must not be written until `release`, which leaving the `with` statement calls.

    An array of numpy is read-only meanwhile, and those that have the same memory and of which it is a view. Other views of its memory must not be
    written, and that is not detected. A tensor of torch that is written by torch meanwhile is found out by `release`, but for one of `inference_mode`.
    """

    def release(self, *, timeout: float | None = 30.0) -> None:
        """Ends the version, and waits until no reader has it, here and elsewhere. Raises `Timeout` if they take longer: it stays published then.

        It may be called again, and after the client was closed.
        """
        since = time.monotonic()
        while not _calls.wait(release(self._published, timeout)) and _late(self._published, timeout, since):
            time.sleep(_POLL)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        try:
            self.release()
        except Exception as late:
            if error is None:
                raise
            _note(self._published, error, late)


class Pinning(_native.Client):
    """What a client does with arrays of the caller's."""

    def close(self) -> None:
        """Ends the session: calls that wait raise `Error` with the code "closed" at once, and so does every later call. Fetched tensors
        stay readable. When it returns, another worker can have the name. Arrays are registered no more."""
        super().close()
        closed(self)

    def register(self, array: Any) -> None:
        """Registers the memory of an array of numpy, or of a tensor of torch, with a sidecar inside of this process (`embedded`, or `init`).

        What is pushed of it by `push_pinned` is sent by tcp and verbs from where it lies, and `fetch(..., into=array)` and `fetch_state(..., into=...)` land there as
        in a `Buffer`, also in parts of it. The array has to be writable, and its elements in one piece. It is kept, and counts as pinned memory, until
        `unregister` or the end of the client. Until then its memory must not be moved or freed: numpy refuses to resize the array, and torch the
        storage of the tensor, also later. A tensor that gets another storage is found out by calls for it. No memory is registered twice, also not in parts, or by two
        clients: `Invalid` names both places. An array that is registered already has to have the same elements and shape. It blocks while devices register the memory. Where the sidecar is another process, which cannot reach it, nothing is
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
        since = time.monotonic()
        while not await self._released(timeout) and _late(self._published, timeout, since):
            await asyncio.sleep(_POLL)

    async def _released(self, timeout: float | None) -> bool:
        # The loop of a closed client runs nothing.
        if self._published.client.closed:
            return _calls.wait(release(self._published, timeout))
        return await self._loop.run(release(self._published, timeout))

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        try:
            await self.release()
        except Exception as late:
            if error is None:
                raise
            _note(self._published, error, late)


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
