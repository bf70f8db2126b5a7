"""`Collate`: batches of a `DataLoader` that its workers make in arenas."""

from __future__ import annotations

import itertools
import os
import uuid
from collections.abc import Callable
from typing import Any

from . import _native, _plug
from ._calls import to_bytes
from ._client import Client, connect
from ._errors import ArenaFull
from ._native import Tensor

# The sessions of this process and of those that it was forked from, by the process and the sidecar's socket.
_sessions: dict[tuple[int, str, bool], Client] = {}


class Collate:
    """The `collate_fn` of a `DataLoader` whose workers write batches into memory that the trainer shares.

        loader = DataLoader(dataset, batch_size=64, num_workers=4, collate_fn=Collate(client))

    It collates as torch's `default_collate` does. Each worker connects to the sidecar of `client` with an arena of its own, and stacks tensors and arrays there:
    the one copy of a batch. Through the queue of the `DataLoader` goes a key, and the loop gets tensors of torch that share the memory, and that it may write to.
    Tensors of less than 64 KiB are copied once more. A batch frees its memory when the loop drops it. A worker whose arena is full waits `timeout` seconds
    for that, and then raises `ArenaFull`.

    With `device`, such as "cuda", tensors come to that GPU, which reads them out of the arena, in torch's current stream. No `pin_memory` is needed.

    `collate_fn` is another function that makes the batch: its tensors are copied into the arena. With `batch_size=None` the samples themselves are. Without
    workers a batch is what that function makes. Batches have what a state can have; see docs/python.md.

    Without `client` it is the sidecar of the job, or one inside of this process.
    """

    def __init__(
        self,
        client: Client | None = None,
        *,
        arena: int | str = "256MiB",
        device: object = None,
        collate_fn: Callable[[Any], Any] | None = None,
        timeout: float = 60.0,
    ) -> None:
        to_bytes(arena, "arena")
        # Also a session for what the loop fetches: the first look for one finds it.
        self._client: Client | None = _plug.home(client, "data")
        path = self._client.path
        assert path is not None
        _sessions[os.getpid(), path, False] = self._client
        self._path, self._arena, self._collate_fn = path, arena, collate_fn
        self._device = None if device is None else str(device)
        self._timeout = _native._seconds("timeout", timeout)
        self._numbers = itertools.count()

    def __getstate__(self) -> dict[str, Any]:
        # A worker that is spawned connects by itself.
        return {**self.__dict__, "_client": None}

    def __call__(self, samples: Any) -> Any:
        """The batch, in a worker a `Batch`."""
        from torch.utils.data import get_worker_info

        if get_worker_info() is None:
            batch = self._collated(samples, None)
            return batch if self._device is None else _each(batch, lambda tensor: tensor.to(self._device))
        client = _session(self._path, self._arena)
        try:
            batch = self._collated(samples, client)
            # A worker that is started anew has the number 0 again.
            key = f"batches/{os.getpid()}-{uuid.uuid4().hex[:16]}/{next(self._numbers)}"
            client.push_state(key, {"batch": batch}, version=1, keep=1, timeout=self._timeout)
        except ArenaFull as error:
            hint = f"the loop holds all batches of this worker, or one does not fit: give Collate an arena of more than {self._arena}"
            raise ArenaFull(f"{error}: {hint}", error.code, True, "caller", error.key, error.waited) from None
        return Batch(self._path, key, self._device, self._timeout)

    def _collated(self, samples: Any, client: Client | None) -> Any:
        from torch.utils.data import _utils, default_collate

        if self._collate_fn is not None:
            return self._collate_fn(samples)
        if client is None or not isinstance(samples, list):
            return default_collate(samples) if isinstance(samples, list) else samples
        import torch

        def stack(tensors: Any, *, collate_fn_map: Any = None) -> Any:
            first = tensors[0]
            if first.is_nested or first.layout is not torch.strided or first.device.type != "cpu":
                return torch.stack(list(tensors))
            buffer = client.empty((len(tensors), *first.shape), first.dtype, timeout=self._timeout)
            with torch.no_grad():
                torch.stack(list(tensors), out=buffer.torch())
            return buffer

        known = _utils.collate.default_collate_fn_map
        return _utils.collate.collate(samples, collate_fn_map={**known, torch.Tensor: stack})


class Batch:
    """A batch that a worker has published. The process that unpickles it gets the batch itself."""

    def __init__(self, *where: Any) -> None:
        self._where = where

    def __reduce__(self) -> tuple[object, ...]:
        return fetch, self._where


def fetch(path: str, key: str, device: str | None, timeout: float) -> Any:
    """Fetches a batch, which is free when it is dropped."""
    state = _session(path, None).fetch_state(key, timeout=timeout)
    return _each(state["batch"], lambda tensor: tensor.torch(device=device) if device is not None else tensor.torch())


def _each(value: Any, make: Callable[[Any], Any]) -> Any:
    """The value with what `make` makes of each tensor."""
    if isinstance(value, dict):
        return {name: _each(item, make) for name, item in value.items()}
    if isinstance(value, (list, tuple)):
        return type(value)(_each(item, make) for item in value)
    return make(value) if isinstance(value, Tensor) or hasattr(value, "to") else value


def _session(path: str, arena: int | str | None) -> Client:
    """A session of this process, with an arena for a worker."""
    place = (os.getpid(), path, arena is not None)
    found = _sessions.get(place)
    if found is None or found.closed:
        found = _sessions[place] = connect(path, arena=0 if arena is None else arena)
    return found
