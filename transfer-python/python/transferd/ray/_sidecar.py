"""The sidecar of a node: a child of an actor, which Ray runs there."""

from __future__ import annotations

import json
import logging
import os
import shutil
import stat
import subprocess
import threading
import time
from collections.abc import Mapping
from typing import NamedTuple, TypeAlias

from .. import _child
from .._errors import Timeout
from .._folder import Folder
from .._torchrun import with_port
from . import _found
from ._certificates import Certificate
from ._places import Place

# Settings of `transferd` by the keys of its configuration file.
Settings: TypeAlias = Mapping[str, str | int | float | bool]

_ARENA = "arena"

# How long an actor waits before it tries again, in seconds.
_PAUSE = 1.0

_log = logging.getLogger("transferd.ray")


class Plan(NamedTuple):
    """What the sidecar of a node is told."""

    place: Place
    head: Place
    """The cluster's head node, as this job sees it."""
    address: str
    """Of the node."""
    port: int
    """Where it listens; 0 is a free one."""
    directory: str | None
    """The URL of the directory. None: it is hosted here."""
    certificate: Certificate
    settings: Settings
    arena: int | str
    """Of each worker."""
    timeout: float


class NodeSidecar:
    """The actor. It owns the process of the sidecar, which ends with it; where the sidecar ends first, the actor does, and Ray starts both anew."""

    def __init__(self, plan: Plan) -> None:
        self._folder = plan.place.folder
        self._failed: Exception | None = None
        try:
            child = _start(plan, self._folder)
        except Exception as error:
            if _found.ray().get_runtime_context().was_current_actor_reconstructed:
                # Ray tries it again. It would not if this raised.
                _log.error("the sidecar of this node was not started again: %s", error)
                time.sleep(_PAUSE)
                os._exit(1)
            self._failed = error
            return
        threading.Thread(target=_end_with, args=(child, self._folder), daemon=True).start()

    def socket(self) -> str:
        """Where workers connect. The sidecar runs by then, and is attached to the directory. Raises why it was not started."""
        if self._failed is not None:
            raise self._failed
        return self._folder.socket


def _start(plan: Plan, folder: Folder) -> subprocess.Popen[bytes]:
    started = time.monotonic()

    def give_up(what: str) -> None:
        waited = time.monotonic() - started
        if waited >= plan.timeout:
            text = f"{plan.place.name} has waited {waited:.1f} s, and {what}"
            raise Timeout(text, "deadline", True, "operator", None, waited)

    described = f"The directory is at {plan.directory or 'this node'}"
    lock = folder.take(give_up)
    try:
        flags = _flags(plan, folder)
        child = _child.run(folder, flags, lock, described, give_up, program="sidecar_of_grandparent")
        try:
            if plan.directory is not None:
                _child.wait_until_attached(plan.place.name, described, folder, give_up)
        except BaseException:
            _child.end(child)
            raise
    except BaseException:
        # The error repeats the end of the log.
        shutil.rmtree(folder.path, ignore_errors=True)
        raise
    finally:
        os.close(lock)
    return child


def _flags(plan: Plan, folder: Folder) -> list[str]:
    """Writes the sidecar's files, and answers its command line."""
    authority, certificate, key = (
        _write(folder, name, content)
        for name, content in zip(("ca.pem", "node.pem", "node.key"), plan.certificate, strict=True)
    )
    _write(folder, _ARENA, json.dumps(plan.arena).encode())
    # A text of JSON is one of TOML, too.
    toml = "".join(f"{name} = {json.dumps(value, ensure_ascii=False)}\n" for name, value in plan.settings.items())
    flags = ["--config", _write(folder, "transferd.toml", toml.encode()), "--node", plan.place.name]
    flags += ["--socket", folder.socket, "--socket-mode", "600", "--admin-socket", folder.admin]
    flags += ["--listen", with_port(plan.address, plan.port)]
    # A sidecar of an earlier start may have the name, and still end.
    flags += ["--directory", plan.directory, "--replace"] if plan.directory else ["--directory", "embedded"]
    if "shm_dir" not in plan.settings:
        flags += ["--shm-dir", _shared(plan, folder)]
    return [*flags, "--tls-ca", authority, "--tls-cert", certificate, "--tls-key", key]


def _shared(plan: Plan, folder: Folder) -> str:
    """The folder by which the sidecars of one host find each other's memory: that of the head node's, whose sidecar ends last, where it is here."""
    head = plan.head.folder.path
    try:
        found = os.stat(head, follow_symlinks=False)
    except FileNotFoundError:
        return folder.path
    ours = stat.S_ISDIR(found.st_mode) and found.st_uid == os.geteuid() and found.st_mode & 0o077 == 0
    return head if ours else folder.path


def _write(folder: Folder, name: str, content: bytes) -> str:
    path = folder.file(name)
    with open(os.open(path, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600), "wb") as file:
        file.write(content)
    return path


def _end_with(child: subprocess.Popen[bytes], folder: Folder) -> None:
    status = child.wait()
    _log.error("the sidecar of this node ended with status %d, and is started anew%s", status, _child.log(folder, None))
    # Where it could not remove its folder: nothing shall be left if Ray does not start this actor again.
    shutil.rmtree(folder.path, ignore_errors=True)
    os._exit(1)


def arena_of(folder: Folder) -> int | str:
    """The arena that `init` gave to each worker of this node."""
    with open(folder.file(_ARENA)) as file:
        found: int | str = json.load(file)
    return found
