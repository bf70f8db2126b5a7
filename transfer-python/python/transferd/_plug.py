"""What the plugs for frameworks have in common: how one finds its sidecar, the sessions that it opens there, and how tensors of torch get into their arenas."""

from __future__ import annotations

import os
import uuid
from collections.abc import Iterable
from typing import Any

from . import _torch
from ._client import Client, connect, embedded
from ._errors import Invalid
from ._init import init
from ._native import Buffer

# What a tensor takes of an arena at most beside its bytes: ranges are aligned.
_ALIGNED = 4096


def home(client: Client | None, plug: str) -> Client:
    """A client of the sidecar that `plug` uses: `client`, if there is one; under torchrun a new one of the job's sidecar on this node, as by
    `init`; else a new one of the sidecar inside of this process, as by `embedded`. Neither of the new ones has an arena."""
    if client is not None:
        path_of(client)
        return client
    if os.environ.get("TORCHELASTIC_RUN_ID"):
        # The plain name of the rank may be that of another client of this process.
        return init(name=f"rank-{os.environ.get('RANK')}-{plug}-{unique()}", arena=0)
    return embedded(arena=0)


def path_of(client: Client) -> str:
    """The socket of a client's sidecar."""
    if client.path is None:
        raise Invalid("the sidecar of this client has ended")
    return client.path


def unique() -> str:
    """A part of a name that nobody else has, on no host."""
    return uuid.uuid4().hex[:16]


def session(path: str, arena: int, timeout: float | None = None) -> Client:
    """A new session with the sidecar at `path`, whose arena has so many bytes. It does not come back after a restart of the sidecar: what it has
    published is lost then, and its calls say so."""
    return connect(path, arena=arena, timeout=timeout, reconnect=False)


def room(sizes: Iterable[int]) -> int:
    """The arena that tensors of so many bytes need."""
    return sum(size + _ALIGNED for size in sizes) + _ALIGNED


def staged(client: Client, tensor: Any) -> Buffer:
    """A buffer of the arena that holds the values of a tensor of torch: one copy, by this thread, or by the GPU."""
    _torch.check(tensor)
    buffer = reserved(client, tensor)
    _torch.assign(buffer, tensor)
    return buffer


def reserved(client: Client, tensor: Any) -> Buffer:
    """A buffer of the arena for the values of a tensor of torch."""
    dtype, shape = _torch.description(tensor)
    return client.empty(shape, dtype)
