"""The tasks of Ray that write blocks into an exchange. What they have committed stays at the sidecar when they end."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from .._client import Client
from .._exchange import Exchange
from .._errors import Committed, PeerLost, SidecarGone
from . import _clients, _found
from ._places import here
from ._sort import rows_of

# How long a task waits before it tries again, in seconds.
_PAUSE = 0.1


class Work(NamedTuple):
    """What a task of Ray has to write: blocks, each as one task of the exchange, out of one arena."""

    exchange: str
    # The number of the exchange's task, and the block. References are in lists, so that Ray does not fetch all of them first.
    blocks: Sequence[tuple[int, list[Any]]]
    how: Mapping[str, Any]
    arena: int
    timeout: float


def write(work: Work) -> None:
    """Writes the blocks and commits each, unless another attempt has. Ray may call it any number of times."""
    ray = _found.connected()
    blocks = list(work.blocks)
    started = time.monotonic()
    while True:
        try:
            # The session ends with the exchange, and not with the client: readers may still come.
            with _clients.connect_to(here(), work.timeout, work.arena) as client:
                exchange = client.join_exchange(work.exchange, timeout=work.timeout)
                while blocks:
                    task, [block] = blocks[0]
                    block = ray.get(block) if isinstance(block, ray.ObjectRef) else block
                    _write(client, exchange, task, block, work)
                    del blocks[0], block
            return
        except (SidecarGone, PeerLost):
            # A sidecar has ended, and comes back.
            if time.monotonic() - started >= work.timeout:
                raise
        time.sleep(_PAUSE)


def _write(client: Client, exchange: Exchange, task: int, block: Any, work: Work) -> None:
    try:
        # One that no other attempt has, also where Ray has tried this one before, in this process or in another.
        attempt = client.counter(_clients.attempts(), timeout=work.timeout).add(timeout=work.timeout)
        with exchange.task(task, attempt, timeout=work.timeout) as rows:
            rows.write(rows_of(block), timeout=work.timeout, **work.how)
    except Committed:
        pass
