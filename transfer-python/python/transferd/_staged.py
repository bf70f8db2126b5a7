"""Versions of a state that are brought in the background, and then copied into place in one short call."""

from __future__ import annotations

import asyncio
import hashlib
import sys
import threading
import weakref
from collections.abc import Awaitable, Callable, Generator, Iterator, Mapping
from typing import Any, NamedTuple, Self, cast

from . import _calls, _native, _torch, _tree
from ._arrays import packed, view
from ._calls import FetchOptions, StateOptions
from ._errors import Invalid, make
from ._native import Pending, Tensor
from ._state import Held, Landed, State, landed, planned
from ._versions import AsyncSubscriber, Subscriber

_Path = tuple[Any, ...]

_CHUNK_BYTES = 256 << 10
"""The length of what is compared and copied for itself of a tensor. A digest of it takes a hundred times as long as a call of one."""


class _Committed(NamedTuple):
    """What was committed of one tensor, and where to."""

    digests: tuple[bytes, ...]
    place: tuple[object, ...]
    is_same_memory: Callable[[Any], bool]


class _Arrived(NamedTuple):
    """A version that is there."""

    state: State
    digests: dict[_Path, tuple[bytes, ...]]


def _arrived(state: State) -> _Arrived:
    found = list(_tensors(state, ()))
    # Tied ones are one object.
    digests = {id(tensor): _digests(tensor) for tensor in {id(tensor): tensor for _, tensor in found}.values()}
    return _Arrived(state, {path: digests[id(tensor)] for path, tensor in found})


def _tensors(value: Any, path: _Path) -> Iterator[tuple[_Path, Tensor]]:
    if isinstance(value, Tensor):
        yield path, value
    elif isinstance(value, dict):
        for name, item in value.items():
            yield from _tensors(item, (*path, name))
    elif isinstance(value, (list, tuple)):
        for at, item in enumerate(value):
            yield from _tensors(item, (*path, at))


def _at(state: Any, path: _Path) -> Tensor:
    for step in path:
        state = state[step]
    return cast(Tensor, state)


def _digests(tensor: Tensor) -> tuple[bytes, ...]:
    """What two tensors have in common that are equal in type, shape and bytes, and no others, and behind that what their chunks have: another worker has made
    the bytes, so nobody may be able to find two that collide. hashlib lets go of the interpreter's lock."""
    described = repr((tensor.dtype, tensor.shape)).encode()
    if tensor.nbytes == 0:
        return (described,)
    # Between the elements of a slice lie others.
    is_packed = tensor.dtype in _native._PACKED
    raw = memoryview((packed if is_packed else view)(tensor).tobytes() if tensor._is_slice else tensor._raw()).cast("B")
    chunks = range(0, raw.nbytes, _CHUNK_BYTES)
    return (described, *(hashlib.blake2b(raw[at : at + _CHUNK_BYTES], digest_size=32).digest() for at in chunks))


def _ranges(old: tuple[bytes, ...] | None, new: tuple[bytes, ...], nbytes: int) -> list[tuple[int, int]]:
    """The ranges of a tensor's bytes that differ: begin and end, in chunks. Without an old one of the same type and shape it is all."""
    if old is None or old[0] != new[0]:
        return [(0, nbytes)] if nbytes > 0 else []
    ranges: list[tuple[int, int]] = []
    for at, (before, now) in enumerate(zip(old[1:], new[1:], strict=True)):
        if before != now:
            begin, end = at * _CHUNK_BYTES, min((at + 1) * _CHUNK_BYTES, nbytes)
            if ranges and ranges[-1][1] == begin:
                begin = ranges.pop()[0]
            ranges.append((begin, end))
    return ranges


def _memory(target: Any) -> Callable[[Any], bool]:
    """Says of another target whether it lies in the same memory. It does not keep that: memory that was freed is the same as no other, whatever its address."""
    if _torch.is_tensor(target):
        from torch.multiprocessing.reductions import StorageWeakRef

        storage = StorageWeakRef(target.untyped_storage())
        return lambda other: _torch.is_tensor(other) and storage == StorageWeakRef(other.untyped_storage())
    owner = weakref.ref(_owner(target))
    return lambda other: not _torch.is_tensor(other) and owner() is _owner(other)


def _owner(target: Any) -> Any:
    """What has the memory of a target: a buffer, or an array that is no view."""
    if isinstance(target, Held):
        return target.buffer
    while isinstance(base := target.base, sys.modules["numpy"].ndarray):
        target = base
    return target


class _Staging:
    """A version of a state that is on its way, or there."""

    def __init__(self, key: str, committed: dict[_Path, _Committed]) -> None:
        self.key = key
        """The key."""
        self._committed = committed
        self._found: _Arrived | None = None
        self._error: BaseException | None = None
        self._changed: dict[str, list[tuple[int, int]]] | None = None

    def _here(self) -> _Arrived:
        if self._error is not None:
            raise self._error
        if self._found is None:
            text = f"the next version of {self.key!r} is not there yet: wait for it, or ask done() first"
            raise make("not_staged", text, True, "nobody", self.key, None)
        return self._found

    def done(self) -> bool:
        """Whether the version is there, or could not be fetched."""
        return self._found is not None or self._error is not None

    @property
    def state(self) -> State:
        """The state. It keeps its memory, as any other that was fetched does."""
        return self._here().state

    @property
    def version(self) -> int:
        """Its version."""
        return self._here().state.version

    @property
    def changed(self) -> list[str]:
        """The names of the tensors that differ from what the subscriber has committed last: of all, where it has not committed them. After its own
        `commit`: from what was committed before that."""
        return list(self.changed_ranges)

    @property
    def changed_ranges(self) -> dict[str, list[tuple[int, int]]]:
        """Of each tensor of `changed` the ranges of its bytes, row-major, that differ: begin and end, rounded to multiples of 256 KiB."""
        if self._changed is not None:
            return self._changed
        known = self._committed
        changed: dict[str, list[tuple[int, int]]] = {}
        for path, digests in self._here().digests.items():
            old = known[path].digests if path in known else None
            if old != digests:
                name = _tree.joined(path)
                while name in changed:
                    name += "~"
                changed[name] = _ranges(old, digests, _at(self._here().state, path).nbytes)
        return changed

    def commit(self, into: Mapping[Any, Any]) -> Landed:
        """Copies the state into one that has the same entries, as `State.copy_into` does, but for what was committed to the same memory before with the same
        values: tensors, and ranges of tensors where both lie in one piece in the host's memory. It asks no other process, so it cannot fail for want of a peer.

        What others write there is not seen: `state.copy_into` copies all. Raises what that raises, before the first array is written; the error of the
        fetch; and `Timeout` with the code "not_staged" where the version is not there yet.
        """
        state, digests = self._here()
        changed, copied = self.changed_ranges, 0
        landings = []
        for copy in planned(state, into).copies:
            now, known = digests[copy.path], self._committed.get(copy.path)
            is_there = known is not None and known.place == copy.place and known.is_same_memory(copy.target)
            ranges = _ranges(known.digests if known is not None and is_there else None, now, copy.tensor.nbytes)
            if is_there and not ranges:
                landings.append((copy, "not copied: it has these values since an earlier commit"))
                continue
            # One that fails half-way leaves nothing that is known.
            self._committed.pop(copy.path, None)
            copied += copy.make_ranges(ranges)
            self._committed[copy.path] = _Committed(now, copy.place, _memory(copy.target))
            landings.append((copy, copy.landing()))
        self._changed = changed
        return landed(landings, copied)


class Staged(_Staging):
    """The next version of a state, which a thread brings; see `StateSubscriber.stage`."""

    def __init__(self, key: str, committed: dict[_Path, _Committed], fetch: Callable[[Callable[[Pending[Any]], None]], State]) -> None:
        super().__init__(key, committed)
        self._lock, self._ended = threading.Lock(), threading.Event()
        self._pending: Pending[Any] | None = None
        self._is_cancelled = False
        # One that waits for ever shall not keep the process.
        threading.Thread(target=self._run, args=(fetch,), name="transferd-stage", daemon=True).start()

    def _run(self, fetch: Callable[[Callable[[Pending[Any]], None]], State]) -> None:
        try:
            self._found = _arrived(fetch(self._begins))
        except BaseException as error:
            self._error = error
        finally:
            self._ended.set()

    def _begins(self, pending: Pending[Any]) -> None:
        with self._lock:
            self._pending = pending
            if self._is_cancelled:
                pending.cancel()

    def wait(self, timeout: float | None = None) -> Self:
        """Waits until the version is there, at most `timeout` seconds; None is as long as the subscriber's `timeout` allows. Returns itself. Raises the error of
        the fetch, or `Timeout` with the code "not_staged": it goes on then."""
        if timeout is not None:
            _native._check_seconds("timeout", timeout)
        self._ended.wait(timeout)
        self._here()
        return self

    def cancel(self) -> None:
        """Gives the version up, if it is not there yet, and waits for the end of its thread."""
        with self._lock:
            self._is_cancelled = True
            if self._pending is not None:
                self._pending.cancel()
        self._ended.wait()


class StateSubscriber(Subscriber[State]):
    """A `Subscriber` of states, which can also bring them in the background; see `Client.state_subscriber`."""

    def __init__(
        self,
        client: Any,
        key: str,
        slices: Mapping[str, object] | None,
        after: int | None,
        timeout: float | None,
        require: str | None,
        proving: FetchOptions,
        base: Mapping[Any, object] | None,
    ) -> None:
        # It is kept until this node has a version.
        self._base: Mapping[Any, object] | None = base

        def fetch(key: str, *, begins: Callable[[Pending[Any]], None] = lambda _: None, **options: Any) -> State:
            chosen = cast(StateOptions, {**proving, **options})
            state = _calls.wait(_calls.fetch_state(client, key, None, None, slices, None, False, chosen, self._base), begins)
            self._base = None
            return state

        super().__init__(fetch, key, after, timeout, require)
        self._committed: dict[_Path, _Committed] = {}
        self._staged: Staged | None = None

    def stage(self) -> Staged:
        """Begins to bring the version that `next` would return, on a thread, and returns at once. When it is there, `Staged.commit` copies it into place.

        It counts as returned when it is there. One version is staged at a time: `Invalid` is raised where another one has not come yet.
        """
        _check_alone(self.key, self._staged)
        before = self._before()

        def fetch(begins: Callable[[Pending[Any]], None]) -> State:
            return self._saw(before, self._fetch(self.key, begins=begins, **self._next()))

        self._staged = Staged(self.key, self._committed, fetch)
        return self._staged


def _check_alone(key: str, staged: _Staging | None) -> None:
    if staged is not None and not staged.done():
        raise Invalid(f"a version of {key!r} is on its way: wait for it, or cancel it, before the next one is staged", key=key)


class AsyncStaged(_Staging):
    """As `Staged`, of an asyncio client. It is awaited until it is there; `commit` copies in the event loop's thread."""

    def __init__(self, key: str, committed: dict[_Path, _Committed], fetch: Callable[[], Awaitable[State]]) -> None:
        super().__init__(key, committed)
        self._task = asyncio.ensure_future(self._run(fetch))
        self._task.add_done_callback(self._ended)

    async def _run(self, fetch: Callable[[], Awaitable[State]]) -> _Arrived:
        # The digests take a while.
        return await asyncio.get_running_loop().run_in_executor(None, _arrived, await fetch())

    def _ended(self, task: asyncio.Future[_Arrived]) -> None:
        if task.cancelled():
            self._error = make("cancelled", "the call was given up", False, "caller", self.key, None)
        elif (error := task.exception()) is not None:
            self._error = error
        else:
            self._found = task.result()

    def __await__(self) -> Generator[Any, Any, Self]:
        return self._wait().__await__()

    async def _wait(self) -> Self:
        # Who gives the wait up does not give the version up.
        await asyncio.wait([self._task])
        self._here()
        return self

    async def cancel(self) -> None:
        """As `Staged.cancel`."""
        self._task.cancel()
        await asyncio.wait([self._task])


class AsyncStateSubscriber(AsyncSubscriber[State]):
    """As `StateSubscriber`, of an asyncio client."""

    def __init__(
        self,
        client: Any,
        key: str,
        slices: Mapping[str, object] | None,
        after: int | None,
        timeout: float | None,
        require: str | None,
        proving: FetchOptions,
        base: Mapping[Any, object] | None,
    ) -> None:
        # It is kept until this node has a version.
        self._base: Mapping[Any, object] | None = base

        async def fetch(key: str, **options: Any) -> State:
            state: State = await client.fetch_state(key, slices=slices, base=self._base, **proving, **options)
            self._base = None
            return state

        super().__init__(fetch, key, after, timeout, require)
        self._committed: dict[_Path, _Committed] = {}
        self._staged: AsyncStaged | None = None

    def stage(self) -> AsyncStaged:
        """As `StateSubscriber.stage`, in a task of the event loop."""
        _check_alone(self.key, self._staged)
        self._staged = AsyncStaged(self.key, self._committed, self.next)
        return self._staged
