"""A sidecar as a child of this process: started, waited for, ended."""

from __future__ import annotations

import json
import os
import select
import subprocess
import time
from collections.abc import Callable

from . import _programs
from ._errors import SidecarGone
from ._folder import PAUSE, Folder, GiveUp

# How much of a sidecar's log an error repeats, in bytes.
_LOG_TAIL_BYTES = 2000


def run(
    folder: Folder,
    flags: list[str],
    lock: int,
    directory: str | None,
    give_up: GiveUp,
    program: str = "sidecar_of_parent",
) -> subprocess.Popen[bytes]:
    """Runs the sidecar as a child that ends with this process. Answers when workers can connect to it.

    `lock` is the folder's, which the sidecar holds as long as it lives; `directory` describes where the directory is, for errors;
    `program` is one of `_programs`.
    """
    command = _programs.command(program, str(os.getpid()), folder.path, *flags)
    not_ready = "the sidecar of this node is not ready"
    while True:
        with open(folder.log, "wb") as out:
            # Ctrl-C at the terminal is for the ranks; the sidecar ends after them.
            child = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=out,
                pass_fds=(lock,),
                start_new_session=True,
            )
        try:
            ready = _is_ready(child, lambda: give_up(f"{not_ready}{log(folder, directory)}"))
        except BaseException:
            end(child)
            raise
        if ready:
            return child
        what = f"the sidecar of this node ended with status {child.returncode}{log(folder, directory)}"
        if "Address already in use" not in what:
            raise not_started(what)
        # The sidecar of an earlier start of the job may have the port, and still end.
        give_up(what)
        not_ready = f"{what}. It was started again, and is not ready"
        time.sleep(PAUSE)


def _is_ready(child: subprocess.Popen[bytes], give_up: Callable[[], None]) -> bool:
    """Waits until the sidecar says that it is ready. `False`: it has ended."""
    assert child.stdout is not None
    with child.stdout as out:
        waiting = select.poll()
        waiting.register(out, select.POLLIN)
        while not waiting.poll(PAUSE * 1000):
            give_up()
        # It writes the line at once.
        if out.readline().startswith(b"transferd ready"):
            return True
    child.wait()
    return False


def end(child: subprocess.Popen[bytes]) -> None:
    """Ends it at once."""
    child.kill()
    child.wait()


def log(folder: Folder, directory: str | None) -> str:
    """The end of an error: what the sidecar has said, and what it was told of the directory."""
    with open(folder.log, "rb") as file:
        file.seek(max(0, os.fstat(file.fileno()).st_size - _LOG_TAIL_BYTES))
        said = file.read().decode(errors="replace").strip() or "nothing"
    where = "" if directory is None else f". {directory}"
    return f"{where}. Its log {folder.log} says: {said}"


def wait_until_attached(node: str, directory: str, folder: Folder, give_up: GiveUp) -> None:
    """Waits until the directory knows this node: before that, keys of other nodes are not found."""
    command = _programs.command("transferctl", "status", "--json", "--admin", folder.admin)
    pause = PAUSE
    while True:
        status = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, text=True)
        if status.returncode != 0:
            raise not_started(f"the sidecar of {node} does not answer: {status.stderr.strip()}")
        state = json.loads(status.stdout)["directory"]
        if state["attached"]:
            return
        give_up(f"{node} is not attached to the directory: {state['why_not']}. {directory}")
        time.sleep(pause)
        pause = min(2 * pause, 1.0)


def not_started(text: str) -> SidecarGone:
    """The error of a sidecar that could not be started."""
    return SidecarGone(text, "not_started", False, "operator")
