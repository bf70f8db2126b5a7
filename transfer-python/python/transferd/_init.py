"""`init`: a client for each process that torchrun starts, and one sidecar for each node."""

from __future__ import annotations

import os
import socket
import subprocess
import threading
import time

from . import _child, _native
from ._client import Client, connect
from ._errors import Timeout
from ._folder import Folder, GiveUp
from ._torchrun import Directory, Job, read, with_port

_starts = threading.Lock()
_running: tuple[int, str, subprocess.Popen[bytes]] | None = None
"""The sidecar that this process has started: the process's own id, the folder, the child."""


def init(*, name: str | None = None, arena: int | str | None = None, timeout: float | None = 60.0) -> Client:
    """Connects a process that torchrun has started to the sidecar of its node, which local rank 0 starts.

    Every rank calls it. The worker is named `rank-<RANK>` and the node `node-<GROUP_RANK>`; `name` is another name for the worker, and
    `arena` is that of `connect`. The sidecar ends with the process of local rank 0. The ranks find it in a folder of mode 0700 named by
    user, job, node and restart, below XDG_RUNTIME_DIR or /tmp. They wait up to `timeout` seconds for it; None is for ever.

    Where the job has several nodes, the sidecar of node-0 hosts the directory and listens at MASTER_ADDR, at port MASTER_PORT + 1, or
    TRANSFERD_PORT. The sidecars then need certificates, unless MASTER_ADDR is on loopback: TRANSFERD_TLS_CERT, TRANSFERD_TLS_KEY and
    TRANSFERD_TLS_CA name the files; `{node}` in them stands for the node's name. `transferctl certs` makes them. All other settings of
    the sidecar are environment variables of its own, such as TRANSFER_PINNED_LIMIT=64GiB.

    Raises `Invalid` where torchrun's variables are missing or the settings cannot be, `PermissionDenied` where the folder or the sidecar
    is another user's, `SidecarGone` where local rank 0 cannot start the sidecar, and `Timeout`.
    """
    _native._check_seconds("timeout", timeout)
    job = read(os.environ)
    folder = Folder(f"{job.name}-n{job.group_rank}-r{job.restart}")
    started = time.monotonic()

    def give_up(what: str) -> None:
        waited = time.monotonic() - started
        if timeout is not None and waited >= timeout:
            text = f"rank {job.rank} has waited {waited:.1f} s, and {what}"
            raise Timeout(text, "deadline", True, "operator", None, waited)

    if job.local_rank == 0:
        with _starts:
            _start_once(job, folder, give_up)
    else:
        folder.wait(give_up)
    return connect(folder.socket, name=name or f"rank-{job.rank}", arena=arena)


def _start_once(job: Job, folder: Folder, give_up: GiveUp) -> None:
    """Starts this node's sidecar, unless this process has. A child that was forked from it finds the parent's."""
    global _running
    if _running is not None and _running[1] == folder.path:
        process_id, _, child = _running
        if process_id != os.getpid():
            return folder.wait(give_up)
        # One that does not answer is ending; the next one waits for that.
        if child.poll() is None and folder.answers():
            return None
    lock = folder.take(give_up)
    try:
        child = _start(job, folder, lock, give_up)
    except BaseException as error:
        folder.tell_failure(str(error) or type(error).__name__)
        raise
    finally:
        os.close(lock)
    _running = (os.getpid(), folder.path, child)
    return None


def _start(job: Job, folder: Folder, lock: int, give_up: GiveUp) -> subprocess.Popen[bytes]:
    directory = job.directory
    flags = ["--node", job.node, "--socket", folder.socket, "--socket-mode", "600", "--admin-socket", folder.admin]
    if directory is None or job.group_rank == 0:
        flags += ["--directory", "embedded"]
    else:
        # A sidecar of an earlier start may have the name, and still end.
        flags += ["--directory", directory.url, "--replace"]
    if directory is not None:
        own = directory.address if job.group_rank == 0 else _own_address(directory)
        flags += ["--listen", with_port(own, directory.port if job.group_rank == 0 else 0)]
        for flag, file in zip(("--tls-cert", "--tls-key", "--tls-ca"), directory.tls or (), strict=False):
            flags += [flag, file]
    described = None if directory is None else directory.described
    child = _child.run(folder, flags, lock, described, give_up)
    try:
        if described is not None and job.group_rank != 0:
            _child.wait_until_attached(job.node, described, folder, give_up)
    except BaseException:
        _child.end(child)
        raise
    return child


def _own_address(directory: Directory) -> str:
    """The address by which this host reaches that of the directory, and at which the other nodes reach this one."""
    family = socket.AF_INET6 if ":" in directory.address else socket.AF_INET
    with socket.socket(family, socket.SOCK_DGRAM) as probe:
        # This sends nothing.
        probe.connect((directory.address, directory.port))
        return str(probe.getsockname()[0])
