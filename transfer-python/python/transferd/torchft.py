"""`TransferTransport`: the transport of torchft 0.2.0 that brings a state to a replica group which comes back. Importing this module imports torchft.

    manager = torchft.Manager(..., checkpoint_transport=TransferTransport())
"""

from __future__ import annotations

import json
import os
import socket
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from datetime import timedelta
from typing import Any, Generic, NamedTuple, TypeVar

import torch
from torch.distributed.tensor import DTensor
from torchft.checkpointing.transport import CheckpointTransport

from . import _calls, _torch, _tree
from ._calls import PushOptions
from ._client import Client
from ._dtensors import Meshes, describe
from ._errors import ArenaFull, Invalid, Timeout
from ._native import Tensor
from ._plug import home, path_of, room, session, staged, unique

__all__ = ["TransferTransport"]

T = TypeVar("T")


class TransferTransport(CheckpointTransport, Generic[T]):  # type: ignore[misc]
    """Sends states of torchft by the sidecar of this process, or that of `client`.

    `send_checkpoint` copies the state into shared memory, once for all receivers, and returns: the state may change then. A receiver on this host has the
    tensors with no further copy; a write to one is seen by the receiver alone. What is sent stays until the next one is sent, or `shutdown`.

    Without `client` receivers connect to the sender's sidecar by its socket, so they have to be on its host. Where both ends have a `client`, each uses its
    own sidecar, and those have to be of one cluster.

    A state is what `Client.push_state` takes, and DTensors; anything else is `Invalid`, with its path. Errors of a transfer are `transferd.Error`s; a `Timeout`
    is also a `TimeoutError`, and says "timed out".
    """

    def __init__(self, client: Client | None = None) -> None:
        self._given, self._home = client is not None, home(client, "torchft")
        self._path = path_of(self._home)
        self._key = f"torchft/{unique()}"
        self._lock = threading.Lock()
        self._sender: Client | None = None
        self._published = False
        # To the sidecar that this process has received from: a session maps the arena of what it fetches, which costs as much as the rest of a fetch.
        self._reader: tuple[str, Client] | None = None

    def metadata(self) -> str:
        """What a receiver needs: the key, and how to reach the sidecar that has it."""
        return json.dumps({"key": self._key, "host": socket.gethostname(), "path": self._path, "cluster": self._given})

    def send_checkpoint(self, dst_ranks: list[int], step: int, state_dict: T, timeout: timedelta) -> None:
        """Publishes the state as the version `step`."""
        deadline = time.monotonic() + timeout.total_seconds()
        with self._lock, _in_time(f"sending step {step} of {self._key!r}"):
            flat = _flat(f"the state of step {step}", state_dict)
            need = room([*(getattr(value, "nbytes", 0) for value in flat.tensors.values()), len(flat.record or b"")])
            if self._published and self._sender is not None:
                # A step may be sent again, or be lower than the one before. And the arena has room for one.
                self._sender.delete(self._key, timeout=_left(deadline))
                self._published = False
            try:
                self._push(self._arena(need, deadline), flat, step, deadline)
            except ArenaFull:
                # Receivers still read what the arena had before: it goes when they have dropped that.
                self._end_sender()
                self._push(self._arena(need, deadline), flat, step, deadline)
            self._published = True

    def disallow_checkpoint(self) -> None:
        """Does nothing: what is published is a copy, which stays as it is for receivers that are slow."""

    def recv_checkpoint(self, src_rank: int, metadata: str, step: int, timeout: timedelta) -> T:
        """Returns the state of exactly this step, with tensors in the memory of the host. Waits until it is sent."""
        deadline = time.monotonic() + timeout.total_seconds()
        where = _Where.read(metadata)
        path = self._path if self._given and where.cluster else where.path
        if path == where.path and not os.path.exists(path):
            raise Invalid(
                f"step {step} of {where.key!r} is at {path} of the host {where.host}, and no such sidecar is at this host, {socket.gethostname()}: it has ended,"
                " or both ends need a TransferTransport(client=...) of sidecars in one cluster"
            )
        with _in_time(f"receiving step {step} of {where.key!r} from replica {src_rank}"):
            found = self._reading(path, deadline).fetch_state(where.key, exactly=step, timeout=_left(deadline))
        state: T = _rebuilt(found, where.key)
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

    def _push(self, sender: Client, flat: _tree.Flat, step: int, deadline: float) -> None:
        buffers = {name: staged(sender, value) if isinstance(value, torch.Tensor) else value for name, value in flat.tensors.items()}
        options: PushOptions = {"version": step, "timeout": _left(deadline)}
        _calls.wait(_calls.push_flat(sender, self._key, _tree.Flat(buffers, flat.record), options))


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


def _flat(where: str, state: object) -> _tree.Flat:
    """The tensors of a state, each memory once, and its record, which also describes the DTensors: what is sent of one is its local tensor."""
    dtensors: list[Any] = []
    flat = _tree.flatten(where, {"state": _local(where, state, (), dtensors), "dtensors": dtensors})
    for name, value in flat.tensors.items():
        if isinstance(value, torch.Tensor):
            try:
                _torch.check(value)
            except Invalid as error:
                raise Invalid(f"{name!r} of {where}: {error}") from None
    return flat


def _local(where: str, value: Any, path: tuple[Any, ...], dtensors: list[Any]) -> Any:
    """What is at `path` of a state, with local tensors in place of DTensors, whose descriptions are added to `dtensors`."""
    if isinstance(value, DTensor):
        try:
            dtensors.append([list(path), describe(value)])
        except Invalid as error:
            raise Invalid(f"{_tree.joined(path)!r} of {where} is a DTensor that is not sent: {error}") from None
        with torch.no_grad():
            return value.to_local()
    if isinstance(value, Mapping):
        return {key: _local(where, item, (*path, key), dtensors) for key, item in value.items()}
    if type(value) in (list, tuple):
        return type(value)(_local(where, item, (*path, at), dtensors) for at, item in enumerate(value))
    return value


def _rebuilt(found: Mapping[Any, Any], key: str) -> Any:
    try:
        said, state = found["dtensors"], found["state"]
        dtensors = {tuple(path): description for path, description in said}
    except (KeyError, TypeError, ValueError) as error:
        raise Invalid(f"the state {key!r} was not sent by a TransferTransport: {error!r}", key=key) from None
    return _global(state, (), dtensors, {}, Meshes())


def _global(value: Any, path: tuple[Any, ...], dtensors: Mapping[Any, Any], tensors: dict[int, Any], meshes: Meshes) -> Any:
    """What is at `path` of a received state, with tensors of torch: one for each memory."""
    if isinstance(value, Tensor):
        if id(value) not in tensors:
            tensors[id(value)] = value.torch()
        local = tensors[id(value)]
        return meshes.rebuilt(local, dtensors[path]) if path in dtensors else local
    if isinstance(value, dict):
        return {name: _global(item, (*path, name), dtensors, tensors, meshes) for name, item in value.items()}
    if isinstance(value, (list, tuple)):
        return type(value)(_global(item, (*path, at), dtensors, tensors, meshes) for at, item in enumerate(value))
    return value
