"""The actors that write blocks into an exchange. What they have committed is in their memory, so they live as long as the shuffle."""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Any

from .._client import Client, Exchange
from .._errors import Committed, PeerLost, SidecarGone
from . import _clients
from ._places import here
from ._sort import rows_of

# How long a mapper waits before it tries again, in seconds.
_PAUSE = 0.1


class Mapper:
    """The actor: a worker of the exchange with an arena of its own."""

    def __init__(self, arena: int, timeout: float) -> None:
        self._client: Client = _clients.connect_to(here(), timeout, arena)
        self._exchanges: dict[str, Exchange] = {}
        self._timeout = timeout

    def run(self, exchange: str, task: int, block: Any, how: Mapping[str, Any]) -> None:
        """Writes a block as one task, and commits it, unless another attempt has. Ray may call it any number of times."""
        started = time.monotonic()
        while True:
            try:
                return self._run(exchange, task, block, how)
            except Committed:
                return None
            except (SidecarGone, PeerLost):
                # A sidecar has ended, and comes back.
                if time.monotonic() - started >= self._timeout:
                    raise
            time.sleep(_PAUSE)

    def _run(self, name: str, task: int, block: Any, how: Mapping[str, Any]) -> None:
        client = self._client
        if name not in self._exchanges:
            self._exchanges[name] = client.join_exchange(name, timeout=self._timeout)
        # One that no other attempt has, also where Ray has tried this one before, in this process or in another.
        attempt = client.counter(_clients.attempts(), timeout=self._timeout).add(timeout=self._timeout)
        with self._exchanges[name].task(task, attempt, timeout=self._timeout) as rows:
            rows.write(rows_of(block), timeout=self._timeout, **how)
