"""The client of this process."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable
from typing import TypeVar

from .. import _native
from .._client import Client, connect
from .._errors import SidecarGone, Timeout
from ._places import Place, here
from ._sidecar import arena_of

T = TypeVar("T")

# How long a process waits before it tries a sidecar again that has ended, in seconds.
_PAUSE = 0.1

_lock = threading.Lock()
_clients: dict[tuple[int, Place], Client] = {}
_readers: dict[tuple[int, Place], Client] = {}


def client(*, timeout: float | None = 60.0) -> Client:
    """The client of this process, in a driver, task or actor of a job whose driver has called `init`. It is made once, and stays.

    It is connected to the sidecar of this node, with the arena that `init` was told. A process of a node that has just joined waits up to
    `timeout` seconds for it, and then raises `Timeout`; None is for ever.
    """
    return _found(_clients, _native._seconds("timeout", timeout), None)


def reader(*, timeout: float = 60.0) -> Client:
    """The same, or a client without an arena: an arena is memory, and who only fetches needs none."""
    key = (os.getpid(), here())
    with _lock:
        found = _clients.get(key)
    return found if found is not None and not found.closed else _found(_readers, timeout, 0)


def _found(among: dict[tuple[int, Place], Client], timeout: float, arena: int | None) -> Client:
    place = here()
    with _lock:
        found = among.get((os.getpid(), place))
        if found is None or found.closed:
            found = among[os.getpid(), place] = connect_to(place, timeout, arena)
        return found


def connect_to(place: Place, timeout: float, arena: int | None) -> Client:
    """A new client of this node's sidecar, with an arena of so many bytes, or with that of `init`."""
    started = time.monotonic()

    def give_up(what: str) -> None:
        waited = time.monotonic() - started
        if waited >= timeout:
            text = f"waited {waited:.1f} s for the sidecar of {place.name}, and {what}. The driver calls transferd.ray.init()"
            raise Timeout(text, "not_started", True, "caller", None, waited)

    while True:
        place.folder.wait(give_up)
        try:
            return connect(place.folder.socket, arena=arena_of(place.folder) if arena is None else arena)
        except (FileNotFoundError, SidecarGone) as error:
            # It has ended since, and is started anew.
            give_up(str(error))


def again(call: Callable[[Client], T], *, timeout: float = 60.0) -> T:
    """Makes a call of the client of this process, and makes it again where the sidecar has ended: Ray starts it anew.

    What the process had published has ended with it, so the call has to be one that may be made twice.
    """
    started = time.monotonic()
    while True:
        try:
            return call(client(timeout=timeout))
        except SidecarGone:
            if time.monotonic() - started >= timeout:
                raise
            time.sleep(_PAUSE)


def looks() -> str:
    """The counter of a job that answers as long as the job's directory does. `init` makes it."""
    return f"ray/{here().job}/looks"


def attempts() -> str:
    """The counter of a job that gives each attempt of a task of an exchange a number of its own. `init` makes it."""
    return f"ray/{here().job}/attempts"


def forget() -> None:
    """Closes the clients of this process."""
    with _lock:
        for (process, _), found in (*_clients.items(), *_readers.items()):
            if process == os.getpid():
                found.close()
        _clients.clear()
        _readers.clear()
