"""A stream of named tensors of torch that goes from one sender to its receivers in buckets, each of them a version of one key.

`transferd.verl` and `transferd.vllm` are made of it. A round is one pass over the weights. Its buckets have versions that follow each other, and the next
round begins two above the last one.

A bucket is published once every receiver has asked for it. So the fetches of a node are under way together, and it pulls the bucket once. A receiver asks
for the next bucket before it uses the last one, and the sender fills the next one meanwhile.

    key                     bytes of many tensors, then a description of them in JSON, then its length in 8 bytes. The description is {"tensors": what lies
                            where, "note": ..., "last": bool}, or {"failed": text}
    key/sender              is there as long as its sender
    key/asks/<receiver>     has the version that the receiver waits for; its content is why it does not, where it has stopped

A bucket is one tensor and no state: the workers of a node share requests for tensors.
"""

from __future__ import annotations

import contextlib
import json
import math
import os
import platform
import time
import weakref
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from functools import partial
from typing import Any

from . import _plug, _torch
from ._client import Client, connect
from ._errors import ArenaFull, Error, Invalid, PeerLost, Timeout
from ._native import Buffer, Pending, Tensor

# A bucket where nothing is said: three of them are on their way, and fit the default landing pool of a node.
BUCKET_BYTES = 64 << 20
# Enough for a receiver, which publishes what it asks for and nothing else.
RECEIVER_ARENA = 1 << 20

_LEAST_BYTES = 64 << 10
# The end of a bucket: the length of its description. What is in that beside tensors has room in the other number.
_LENGTH_BYTES, _NOTE_BYTES = 8, 1 << 10
# Tensors begin at multiples of this, for every element type and for vector instructions.
_ALIGNMENT = 64
# How often somebody who waits looks whether the other side is there, in seconds.
_LOOK_EVERY = 1.0
# How often one who waits for room looks again: memory that another process gives back does not always end the wait.
_ROOM_EVERY = 0.02

# A tensor, or a piece of one: its name, element type, shape, the offset in the bucket, how many bytes are there, and where in the tensor they begin.
Entry = tuple[str, str, list[int], int, int, int]
Named = tuple[str, Any]


def name_here() -> str:
    """A name of this process, for asks and errors."""
    return f"{platform.node()}-{os.getpid()}-{_plug.unique()[:8]}"


class RoundFailed(Error, RuntimeError):
    """A round of weights that has ended early, on the other side or on this one; the text says why. The next round may go well."""

    def __init__(self, text: str, key: str) -> None:
        super().__init__(text, "round_failed", True, "nobody", key)

    def __reduce__(self) -> tuple[object, ...]:
        return RoundFailed, (str(self), self.key)


def connect_to(socket: str, arena: int, timeout: float) -> Client:
    """A session of the sidecar at `socket`, with an arena of so many bytes."""
    return connect(socket, arena=arena, timeout=timeout, reconnect=False)


def bucket_bytes(arena: int, asked: int) -> int:
    """The size of a bucket: what was asked for, or less where four of them do not fit the arena. One is filled, one is published, one is still read, and the
    last one of a round is a copy."""
    fits = arena // 4 // _ALIGNMENT * _ALIGNMENT
    if fits < _LEAST_BYTES:
        raise Invalid(f"arena={arena} is too small for weights: a bucket is a quarter of it, and has at least {_LEAST_BYTES} bytes")
    return max(_LEAST_BYTES, min(asked // _ALIGNMENT * _ALIGNMENT, fits))


class Sender:
    """Sends rounds of weights. `add` and `finish` are generators of calls that may block, for the caller to make where it may wait."""

    def __init__(self, client: Client, key: str, bucket: int, timeout: float) -> None:
        self._client, self.key, self.bucket, self._timeout = client, key, bucket_bytes(client.arena_bytes, bucket), timeout
        self.next = 1
        """The version with which the next round begins."""
        self._seen: set[str] = set()
        self.begin(())

    def begin(self, receivers: Sequence[str], note: object = None, watch: Callable[[], object] = lambda: None) -> None:
        """Begins a round for these receivers, which get `note` with each bucket. `watch` is called while it waits, and raises what shall end the round."""
        self._receivers, self._note, self._watch = list(receivers), note, watch
        self._version, self.bytes_sent = self.next, 0
        self._drop()
        # Again in each round: a sidecar that was started anew does not know it.
        self._client.push(f"{self.key}/sender", b"1", timeout=self._timeout)

    def add(self, name: str, tensor: Any) -> Iterator[Callable[[], None]]:
        """Adds a tensor to the round. Its bytes are copied once, into the arena; those of one that lies in the bucket already are not copied again."""
        place = _torch.place(tensor)
        if place is not None and (known := self._places.get(place)) is not None and known[0]() is not None:
            self._described += len(json.dumps(name)) + len(json.dumps(known[1]))
            if self._filled + self._described < self.bucket:
                return self._entries.append((name, *known[1][1:]))
        of = _torch.in_memory(tensor)
        shape, dtype = list(of.shape), str(of.dtype).removeprefix("torch.")
        data, start = of.contiguous().reshape(-1).view(_uint8()), 0
        # What the description of a piece takes at most.
        described = len(json.dumps([name, dtype, shape])) + 64
        while start < data.numel() or start == 0:
            room = self.bucket - self._filled - self._described - described
            # A tensor that fits a bucket is not cut.
            if room <= 0 or data.numel() > room and self._entries and data.numel() <= self.bucket - _NOTE_BYTES - described:
                if not self._entries:
                    raise Invalid(f"a bucket has {self.bucket} bytes, and the description of {name[:80]!r} takes {described}: give a larger arena")
                yield partial(self._publish, False)
                continue
            if self._buffer is None:
                yield self._make_room
            take = min(data.numel() - start, room)
            self._fill(data[start : start + take])
            entry = (name, dtype, shape, self._filled, take, start)
            self._entries.append(entry)
            self._described += described
            if place is not None and take == data.numel():
                self._places[place] = weakref.ref(tensor), entry
            self._filled += -(-take // _ALIGNMENT) * _ALIGNMENT
            self.bytes_sent += take
            start += max(take, 1)

    def finish(self) -> Iterator[Callable[[], None]]:
        """Sends what is left, and waits until every receiver has all."""
        if self._buffer is None:
            yield self._make_room
        yield partial(self._publish, True)
        yield partial(self._wait_for_receivers, self._version)
        self.next = self._version + 1

    def send(self, weights: Iterable[Named]) -> None:
        """Sends a round that has begun, on this thread."""
        try:
            for name, tensor in weights:
                for call in self.add(name, tensor):
                    call()
            for call in self.finish():
                call()
        except BaseException as error:
            self.fail(error)
            raise

    def fail(self, error: BaseException) -> None:
        """Ends the round: its receivers raise `RoundFailed` with this error, and so does a call that still waits for one of them on another thread."""
        self._drop()
        self._watch = partial(_raise, RoundFailed(f"this round of {self.key!r} was given up", self.key))
        with contextlib.suppress(Error):
            text = _description({"failed": f"{type(error).__name__}: {error}"})
            self._client.push(self.key, text, version=self._version, timeout=_LOOK_EVERY)
        self.next = self._version + 2

    def release(self) -> None:
        """Gives the memory of the last bucket back."""
        with contextlib.suppress(Error):
            self._client.delete(self.key)

    def _drop(self) -> None:
        self._buffer: Buffer | None = None
        self._filled, self._described = 0, _NOTE_BYTES
        self._entries: list[Entry] = []
        self._places: dict[_torch.Place, tuple[weakref.ref[Any], Entry]] = {}

    def _make_room(self) -> None:
        self._buffer = self._allocate(self.bucket)

    def _fill(self, data: Any) -> None:
        assert self._buffer is not None
        place = slice(self._filled, self._filled + data.numel())
        if data.is_cpu:
            # torch would share the copy of each tensor among threads, which wait for each other where the machine has work for all cores.
            self._buffer.numpy()[place] = data.numpy()
        else:
            self._buffer.torch()[place].copy_(data)

    def _allocate(self, count: int) -> Buffer:
        give_up = time.monotonic() + self._timeout
        while True:
            try:
                return self._client.empty(count, "uint8", timeout=_ROOM_EVERY)
            except (ArenaFull, Timeout) as error:
                self._watch()
                if time.monotonic() >= give_up or error.code == "too_large_for_arena":
                    of = f"{self.key!r}, of which {self._client.arena_bytes} bytes hold what is still read"
                    text = f"no room for a bucket of {count} bytes in the arena of {of}: a receiver that keeps tensors needs a larger arena here"
                    raise ArenaFull(text, error.code, True, "operator", self.key, self._timeout) from error

    def _publish(self, last: bool) -> None:
        # First: what this raises would keep the buffer.
        self._wait_for_receivers(self._version)
        data = self._buffer
        assert data is not None
        text = _description({"tensors": self._entries, "note": self._note, "last": last})
        if last and (whole := self._filled + len(text)) < self.bucket:
            # Between nodes, all of the buffer would move.
            of, data = data, self._allocate(whole)
            data.numpy()[: self._filled] = of.numpy()[: self._filled]
        data.numpy()[data.nbytes - len(text) :] = bytearray(text)
        self._client.push(self.key, data, version=self._version, timeout=self._timeout)
        self._version += 1
        self._drop()

    def _wait_for_receivers(self, version: int) -> None:
        """Waits until all receivers ask for this version."""
        give_up = time.monotonic() + self._timeout
        waiting = self._receivers
        while waiting:
            self._watch()
            asked = self._client.fetch_many([f"{self.key}/asks/{name}" for name in waiting], at_least=version, timeout=_LOOK_EVERY)
            for name, found in zip(waiting, asked):
                if isinstance(found, Tensor):
                    self._seen.add(name)
                    if why := bytes(found)[1:]:
                        raise RoundFailed(f"receiver {name} has stopped: {why.decode(errors='replace')}", self.key)
                elif not isinstance(found, Timeout):
                    raise found
                elif name in self._seen and found.code == "unknown_key":
                    raise _gone(f"receiver {name} is gone: it has not asked for version {version} of {self.key!r}", self.key)
            waiting = [name for name, found in zip(waiting, asked) if not isinstance(found, Tensor)]
            if waiting and time.monotonic() >= give_up:
                text = f"{len(waiting)} of {len(self._receivers)} receivers have not asked for version {version} of {self.key!r}: {', '.join(waiting)}"
                raise Timeout(text, "deadline", True, "nobody", self.key, self._timeout)


class Receiver:
    """Receives rounds of weights, under a name of its own."""

    def __init__(self, client: Client, key: str, name: str, timeout: float) -> None:
        self._client, self.key, self.name, self._timeout = client, key, name, timeout
        self.next = 1
        """The version with which the next round begins."""

    def receive(self, device: Any = None) -> Generator[tuple[Any, list[Named]], None, None]:
        """The buckets of the next round: the sender's note, and the tensors. A tensor that has come in pieces is with the last one.

        On the node of the sender the tensors are views of what it has published; with a `device`, such as cuda:0, they are copied there as one. The sender waits
        for those who keep them. A write to one is private to this process.
        """
        version, asked, whole, last = self.next, self._ask(self.next), None, False
        why = "its caller took no more"
        try:
            while not last:
                bucket = self._wait(asked, version)
                described = _described(bucket)
                if (failed := described.get("failed")) is not None:
                    raise RoundFailed(f"the sender of {self.key!r} has ended the round at version {version}: {failed}", self.key)
                last, version = described["last"], version + 1
                if last:
                    self._say(version)
                    self.next = version + 1
                else:
                    asked = self._ask(version)
                tensors: list[Named] = []
                data = bucket.torch(device=device) if device is not None else bucket.torch()
                for name, dtype, shape, offset, count, start in described["tensors"]:
                    whole = _join(whole, data[offset : offset + count], dtype, shape, start)
                    if whole.numel() == start + count:
                        tensors.append((name, _shaped(whole, dtype, shape)))
                        whole = None
                del data, bucket
                yield described["note"], tensors
                del tensors
        except GeneratorExit:
            raise
        except BaseException as error:
            why = f"{type(error).__name__}: {error}"
            raise
        finally:
            if not last:
                asked.cancel()
                with contextlib.suppress(Error):
                    self._say(version + 1, why)

    def _ask(self, version: int) -> Pending[Tensor]:
        """Begins the fetch of a version, and then says so: it has to be under way when the version is published."""
        pending = self._client.fetch_later(self.key, exactly=version, timeout=self._timeout)
        self._say(version)
        return pending

    def _say(self, version: int, why: str = "") -> None:
        self._client.push(f"{self.key}/asks/{self.name}", b"." + why.encode(), version=version, timeout=self._timeout)

    def _wait(self, asked: Pending[Tensor], version: int) -> Tensor:
        give_up = time.monotonic() + self._timeout
        while True:
            try:
                return asked.result(timeout=_LOOK_EVERY)
            except Timeout as error:
                if error.waited is not None or time.monotonic() >= give_up:
                    text = f"version {version} of {self.key!r} did not come within {self._timeout:g} s"
                    raise Timeout(text, error.code, True, "nobody", self.key, self._timeout) from None
                self._look_for_sender(version)

    def _look_for_sender(self, version: int) -> None:
        try:
            self._client.fetch(f"{self.key}/sender", timeout=_LOOK_EVERY)
        except Timeout as error:
            if error.code == "unknown_key":
                raise _gone(f"the sender of {self.key!r} is gone: version {version} was not published", self.key) from None


def _description(of: dict[str, Any]) -> bytes:
    """The end of a bucket."""
    text = json.dumps(of).encode()
    return text + len(text).to_bytes(_LENGTH_BYTES, "little")


def _described(bucket: Tensor) -> dict[str, Any]:
    view = memoryview(bucket)
    length = int.from_bytes(view[-_LENGTH_BYTES:], "little")
    of: dict[str, Any] = json.loads(bytes(view[-_LENGTH_BYTES - length : -_LENGTH_BYTES]))
    return of


def _raise(error: Exception) -> None:
    raise error


def _gone(text: str, key: str) -> PeerLost:
    return PeerLost(text, "peer_lost", True, "nobody", key)


def _uint8() -> Any:
    import torch

    return torch.uint8


def _join(whole: Any, piece: Any, dtype: str, shape: Sequence[int], start: int) -> Any:
    """A tensor's bytes: the piece itself where it is all of them, else the memory where pieces are put together."""
    import torch

    total = math.prod(shape) * getattr(torch, dtype).itemsize
    if piece.numel() == total:
        return piece
    if whole is None:
        whole = torch.empty(total, dtype=torch.uint8, device=piece.device)
    whole[start : start + piece.numel()].copy_(piece)
    return whole


def _shaped(data: Any, dtype: str, shape: Sequence[int]) -> Any:
    import torch

    return data.view(getattr(torch, dtype)).view(tuple(shape))
