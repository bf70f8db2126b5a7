"""The programs of the package: transferd, the sidecar, and transferctl, the tool that looks into it."""

import os
import select
import shutil
import signal
import sys
import threading
import time
from typing import NoReturn

from . import _native

# How many seconds a sidecar has to stop by itself when the process that it belongs to has ended.
_STOP_SECONDS = 20.0


def transferd() -> NoReturn:
    """Runs the sidecar."""
    # It ends in its own way; Python's would raise at the end.
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    sys.exit(_native._transferd(["transferd", *sys.argv[1:]]))


def transferctl() -> NoReturn:
    """Runs the tool."""
    # It ends as any program does, also where it waits.
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    sys.exit(_native._transferctl(["transferctl", *sys.argv[1:]]))


def sidecar_of_parent() -> NoReturn:
    """Runs the sidecar until the process that started it ends.

    The arguments are that process's id, the folder of the sidecar's socket, and the sidecar's own. The folder is removed at an orderly end.
    """
    _run_until(_parent())


def sidecar_of_grandparent() -> NoReturn:
    """The same, in a child of this process, which waits for it and ends with its status.

    Workers of Ray kill their children before they exit. So this process is killed, and the sidecar still stops in order.
    """
    ended = _parent()
    if (child := os.fork()) == 0:
        _run_until(ended)
    code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    # As shells say that a signal has ended a process.
    sys.exit(code if code >= 0 else 128 - code)


def _parent() -> int:
    """A descriptor of the process that has started this one."""
    parent = int(sys.argv[1])
    try:
        ended = os.pidfd_open(parent)
    except ProcessLookupError:
        sys.exit(0)
    # Where the parent has ended, another process may have its id by now.
    if os.getppid() != parent:
        sys.exit(0)
    return ended


def _run_until(ended: int) -> NoReturn:
    """Runs the sidecar until the process behind the descriptor ends."""
    folder = sys.argv[2]
    threading.Thread(target=_stop_after, args=(ended,), daemon=True).start()
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    status = _native._transferd(["transferd", *sys.argv[3:]])
    if status == 0:
        shutil.rmtree(folder, ignore_errors=True)
    sys.exit(status)


def _stop_after(ended: int) -> None:
    """Stops this process when the one behind the descriptor has ended."""
    waiting = select.poll()
    waiting.register(ended, select.POLLIN)
    waiting.poll()
    os.kill(os.getpid(), signal.SIGTERM)
    time.sleep(_STOP_SECONDS)
    os.kill(os.getpid(), signal.SIGKILL)


def command(function: str, *arguments: str) -> list[str]:
    """The command line that runs a function of this file in a process of its own, out of this same package."""
    if not sys.executable:
        raise RuntimeError("sys.executable is empty: this interpreter does not know how to start another one")
    package = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
    code = f"import sys; sys.path.append({package!r}); from transferd._programs import {function}; {function}()"
    # -P: no module of the working directory takes the place of one of Python's.
    return [sys.executable, "-P", "-c", code, *arguments]
