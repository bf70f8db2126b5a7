"""`TransferTransport`: the transport of torchft 0.2.0 that brings a state to a replica group which comes back. Importing this module imports torchft.

    manager = torchft.Manager(..., checkpoint_transport=TransferTransport())

A state goes in buckets, so that the copy at the sender, the transfer and the copy at the receiver overlap:

    key           the version `step`: the state's record, and [first, count], the versions of its buckets. It is published first
    key/buckets   versions that are never used again: bundles of the state's tensors, of about 32 MiB each
"""

from __future__ import annotations

import json
import os
import socket
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import timedelta
from typing import Any, Generic, NamedTuple, TypeVar

import torch
from torchft.checkpointing.transport import CheckpointTransport

from . import _calls, _torch, _tree
from ._calls import PushOptions
from ._client import Client
from ._errors import ArenaFull, Invalid, Timeout
from ._native import Buffer, Pending, Report, Tensor
from ._plug import home, path_of, reserved, room, session, unique
from ._torchft_state import BUCKETS, Landing, flattened

__all__ = ["TransferTransport"]

T = TypeVar("T")
_BUCKET_BYTES = 32 << 20
# How many buckets a receiver asks for at a time. Those of other nodes take room of the landing pool until it has copied them.
_AHEAD = 3
# What the versions of the buckets take in the head.
_HEAD_BYTES = 16


class TransferTransport(CheckpointTransport, Generic[T]):  # type: ignore[misc]
    """Sends states of torchft by the sidecar of this process, or that of `client`.

    `send_checkpoint` copies the state into shared memory, once for all receivers, and returns: the state may change then. A receiver on this host has the
    tensors with no further copy; a write to one is seen by the receiver alone. What is sent stays until the next one is sent, or `shutdown`.

    With `state_dict`, as of torchft's `PGTransport`, tensors are received into those of the state that this function returns, where it has one of that name.
    Shapes and types have to be equal. A call that fails may leave some of them new and some old.

    Without `client` receivers connect to the sender's sidecar by its socket, so they have to be on its host. Where both ends have a `client`, each uses its
    own sidecar, and those have to be of one cluster.

    A state is what `Client.push_state` takes, and DTensors; anything else is `Invalid`, with its path. Errors of a transfer are `transferd.Error`s; a `Timeout`
    is also a `TimeoutError`, and says "timed out".
    """

    def __init__(self, client: Client | None = None, state_dict: Callable[[], object] | None = None) -> None:
        self._given, self._home = client is not None, home(client, "torchft")
        self._path = path_of(self._home)
        self._key = f"torchft/{unique()}"
        self._state_dict = state_dict
        self._lock = threading.Lock()
        self._sender: Client | None = None
        self._published = False
        self._next_bucket = 1
        # To the sidecar that this process has received from: a session maps the arena of what it fetches, which costs as much as the rest of a fetch.
        self._reader: tuple[str, Client] | None = None

    def metadata(self) -> str:
        """What a receiver needs: the key, and how to reach the sidecar that has it."""
        return json.dumps({"key": self._key, "host": socket.gethostname(), "path": self._path, "cluster": self._given})

    def send_checkpoint(self, dst_ranks: list[int], step: int, state_dict: T, timeout: timedelta) -> None:
        """Publishes the state as the version `step`."""
        deadline = time.monotonic() + timeout.total_seconds()
        with self._lock, _in_time(f"sending step {step} of {self._key!r}"):
            flat = flattened(f"the state of step {step}", state_dict)
            need = room([*(_bytes(value) for value in flat.tensors.values()), len(flat.record or b""), _HEAD_BYTES])
            if self._published and self._sender is not None:
                # A step may be sent again, or be lower than the one before. And the arena has room for one.
                for key in (self._key, f"{self._key}/buckets"):
                    self._sender.delete(key, timeout=_left(deadline))
                self._published = False
            try:
                buffers = self._reserve(flat, need, deadline)
            except ArenaFull:
                # Receivers still read what the arena had before: it goes when they have dropped that.
                self._end_sender()
                buffers = self._reserve(flat, need, deadline)
            try:
                self._publish(flat, buffers, step, deadline)
            except BaseException:
                # So that nobody waits for the rest.
                self._end_sender()
                raise

    def disallow_checkpoint(self) -> None:
        """Does nothing: what is published is a copy, which stays as it is for receivers that are slow."""

    def recv_checkpoint(self, src_rank: int, metadata: str, step: int, timeout: timedelta) -> T:
        """Returns the state of exactly this step. Waits until it is sent."""
        deadline = time.monotonic() + timeout.total_seconds()
        where = _Where.read(metadata)
        path = self._path if self._given and where.cluster else where.path
        if path == where.path and not os.path.exists(path):
            raise Invalid(
                f"step {step} of {where.key!r} is at {path} of the host {where.host}, and no such sidecar is at this host, {socket.gethostname()}: it has ended,"
                " or both ends need a TransferTransport(client=...) of sidecars in one cluster"
            )
        with _in_time(f"receiving step {step} of {where.key!r} from replica {src_rank}"):
            reader = self._reading(path, deadline)
            (head,) = _bundles(reader, where.key, range(step, step + 1), deadline)
            landing = Landing(where.key, head[0], None if self._state_dict is None else self._state_dict())
            for tensors, _, report in _bundles(reader, f"{where.key}/buckets", landing.buckets, deadline):
                landing.add(tensors, report)
                # Room for the next one.
                del tensors
            state: T = landing.state()
        return state

    def shutdown(self, wait: bool = True) -> None:
        """Ends what was sent. What was received stays."""
        with self._lock:
            self._end_sender()
            if self._reader is not None:
                self._reader[1].close()
            if not self._given:
                self._home.close()

    def _arena(self, need: int, deadline: float) -> Client:
        """The session that publishes, with an arena of so many bytes at least. It stays, for an arena costs as much as the copy."""
        if self._sender is None or self._sender.closed or self._sender.gone or self._sender.arena_bytes < need:
            self._end_sender()
            self._sender = session(self._path, need, _left(deadline))
        return self._sender

    def _reading(self, path: str, deadline: float) -> Client:
        """The session that fetches from the sidecar at `path`."""
        with self._lock:
            if self._reader is not None:
                at, reader = self._reader
                if at == path and not reader.closed and not reader.gone:
                    return reader
                reader.close()
            reader = session(path, 0, _left(deadline))
            self._reader = path, reader
            return reader

    def _end_sender(self) -> None:
        if self._sender is not None:
            self._sender.close()
        self._sender, self._published = None, False

    def _reserve(self, flat: _tree.Flat, need: int, deadline: float) -> list[dict[str, Any]]:
        """The state in buckets, with the memory for its tensors: for all of them, before a receiver sees the first one."""
        sender, filled = self._arena(need, deadline), 0
        buckets: list[dict[str, Any]] = [{}]
        for name, value in flat.tensors.items():
            if filled > 0 and filled + _bytes(value) > _BUCKET_BYTES:
                buckets.append({})
                filled = 0
            buckets[-1][name] = reserved(sender, value) if isinstance(value, torch.Tensor) else value
            filled += _bytes(value)
        return buckets

    def _publish(self, flat: _tree.Flat, buckets: list[dict[str, Any]], step: int, deadline: float) -> None:
        assert self._sender is not None
        first, self._next_bucket = self._next_bucket, self._next_bucket + len(buckets)
        head = _tree.Flat({BUCKETS: torch.tensor([first, len(buckets)])}, flat.record)
        self._published = True
        _push(self._sender, self._key, head, {"version": step, "timeout": _left(deadline)})
        for version, bucket in enumerate(buckets, first):
            for name, value in bucket.items():
                if isinstance(value, Buffer):
                    _torch.assign(value, flat.tensors[name])
            options: PushOptions = {"version": version, "keep": "deleted", "timeout": _left(deadline)}
            _push(self._sender, f"{self._key}/buckets", _tree.Flat(bucket, None), options)


class _Where(NamedTuple):
    """What `metadata` says."""

    key: str
    host: str
    path: str
    cluster: bool

    @classmethod
    def read(cls, metadata: str) -> _Where:
        try:
            said = json.loads(metadata)
            where = cls(*(said[name] for name in cls._fields))
        except (ValueError, TypeError, KeyError) as error:
            raise Invalid(f"{metadata[:200]!r} is no metadata of a TransferTransport: {error!r}") from None
        if [type(value) for value in where] != [str, str, str, bool]:
            raise Invalid(f"{metadata[:200]!r} is no metadata of a TransferTransport: it has other types")
        return where


def _bytes(value: Any) -> int:
    size: int = getattr(value, "nbytes", 0)
    return size


def _push(client: Client, key: str, flat: _tree.Flat, options: PushOptions) -> None:
    _calls.wait(_calls.push_flat(client, key, flat, options))


def _bundles(client: Client, key: str, versions: range, deadline: float) -> Iterator[tuple[dict[str, Tensor], int, Report]]:
    """Fetches these versions of a bundle, some of them ahead."""
    waiting: deque[Pending[tuple[dict[str, Tensor], int, Report]]] = deque()
    try:
        for version in versions:
            for ahead in versions[version - versions.start + len(waiting) :][: _AHEAD - len(waiting)]:
                waiting.append(client._fetch_bundle(key, None, {"exactly": ahead, "timeout": _left(deadline)}))
            yield waiting.popleft().result()
    finally:
        for pending in waiting:
            pending.cancel()


def _left(deadline: float) -> float:
    """How many seconds a call may take until then."""
    return max(0.0, deadline - time.monotonic())


@contextmanager
def _in_time(what: str) -> Iterator[None]:
    """Raises a time-out in torchft's words, which says what was waited for."""
    try:
        yield
    except Timeout as error:
        raise Timeout(f"timed out: {what}: {error}", error.code, error.can_retry, error.fault, error.key, error.waited) from None
