"""The folder in which the processes of a node find their sidecar."""

from __future__ import annotations

import errno
import fcntl
import os
import socket
import stat
import struct
import time
from collections.abc import Callable
from typing import NamedTuple

from ._errors import Invalid, PermissionDenied, SidecarGone

# The longest path of a Unix socket, and the longest name of one that the sidecar makes there.
_MAX_PATH_BYTES, _MAX_NAME_BYTES = 107, 20

# How long a wait sleeps before it looks again, in seconds.
PAUSE = 0.02

_LOCK, _FAILED = "lock", "failed"

# Called while something is waited for, with what it is: raises once the time is over.
GiveUp = Callable[[str], None]


class Starter(NamedTuple):
    """Who starts the sidecar in a folder, in the words of errors."""

    name: str
    """Such as "local rank 0"."""
    taken: str
    """What to do if another sidecar lives in the folder."""


RANK_0 = Starter(
    "local rank 0",
    "Two jobs need names of their own: torchrun --rdzv-id. A child of local rank 0 uses td.connect(client.path)",
)


class _Failure(NamedTuple):
    """What the starter has said."""

    text: str
    lives: bool
    """Whether the process that said it lives. Where it does not, an earlier start may have left it."""
    written: int
    """When it was written, to tell it from another one."""


def parent() -> str:
    """Where the folders of jobs are: XDG_RUNTIME_DIR where that is a folder of this user's, else /tmp."""
    given = os.environ.get("XDG_RUNTIME_DIR", "")
    try:
        own = os.path.isabs(given) and os.path.isdir(given) and os.stat(given).st_uid == os.geteuid()
    except OSError:
        own = False
    return given if own else "/tmp"


class Folder:
    """A folder of mode 0700 that belongs to this user, for the sidecar of one node of one start of a job.

    - `lock` is locked by the process that starts the sidecar, and then by the sidecar while it lives.
    - `worker.sock` and `admin.sock` are the sidecar's sockets, `log` is its log.
    - `failed` says why the sidecar could not be started.
    """

    def __init__(self, name: str, starter: Starter = RANK_0) -> None:
        self._starter = starter
        self.path = os.path.join(parent(), f"transferd-{os.geteuid()}-{name}")
        longest = len(os.fsencode(self.path)) + 1 + _MAX_NAME_BYTES
        if longest > _MAX_PATH_BYTES:
            raise Invalid(
                f"{self.path} is too long for the path of a socket, by {longest - _MAX_PATH_BYTES} bytes: set "
                f"XDG_RUNTIME_DIR to a folder with a shorter path"
            )
        self.socket, self.admin = self.file("worker.sock"), self.file("admin.sock")
        self.log = self.file("log")

    def file(self, name: str) -> str:
        """The path of a file in it."""
        return os.path.join(self.path, name)

    def is_there(self) -> bool:
        """Whether the folder exists. Raises `PermissionDenied` where another user could have made it, or could enter it."""
        try:
            found = os.lstat(self.path)
        except FileNotFoundError:
            return False
        mode = stat.S_IMODE(found.st_mode) & 0o777
        if stat.S_ISLNK(found.st_mode):
            wrong = "is a symbolic link"
        elif not stat.S_ISDIR(found.st_mode):
            wrong = "is no folder"
        elif found.st_uid != os.geteuid():
            wrong = f"belongs to user id {found.st_uid}"
        elif mode != 0o700:
            wrong = f"has mode {mode:04o}"
        else:
            return True
        raise _refused(
            f"{self.path} {wrong}: it has to be a folder of user id {os.geteuid()} with mode 0700. Remove it, or set "
            f"XDG_RUNTIME_DIR to a folder of your own"
        )

    def take(self, give_up: GiveUp) -> int:
        """Makes the folder and locks it, once no sidecar lives there. Removes what an earlier start left. Answers the lock's descriptor."""
        while True:
            try:
                os.mkdir(self.path, 0o700)
            except FileExistsError:
                pass
            self.is_there()
            try:
                lock = os.open(self.file(_LOCK), os.O_CREAT | os.O_RDWR | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
            except FileNotFoundError:
                # An ending sidecar has removed the folder.
                continue
            try:
                if self._locks(lock):
                    os.truncate(lock, 0)
                    os.pwrite(lock, str(os.getpid()).encode(), 0)
                    self._clear()
                    return lock
                holder = os.pread(lock, 20, 0).decode() or "unknown"
            except BaseException:
                os.close(lock)
                raise
            os.close(lock)
            give_up(
                f"a sidecar already runs in {self.path}, which process {holder} has started. It ends with that "
                f"process. {self._starter.taken}"
            )
            time.sleep(PAUSE)

    def _locks(self, lock: int) -> bool:
        """Locks it; `False` where another process has, or where the file is not the one in the folder any more."""
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            own, found = os.fstat(lock), os.stat(self.file(_LOCK))
        except (BlockingIOError, FileNotFoundError):
            return False
        return (own.st_dev, own.st_ino) == (found.st_dev, found.st_ino)

    def _clear(self) -> None:
        for name in os.listdir(self.path):
            if name != _LOCK:
                os.unlink(self.file(name))

    def tell_failure(self, text: str) -> None:
        """Tells the others that there will be no sidecar, and why. Only who has taken the folder may."""
        new = self.file(f"{_FAILED}.new")
        # It stays open and locked while this process lives, by which the others know that it is of this start.
        file = os.open(new, os.O_CREAT | os.O_TRUNC | os.O_WRONLY | os.O_CLOEXEC, 0o600)
        fcntl.flock(file, fcntl.LOCK_EX)
        os.write(file, text.encode(errors="replace"))
        os.rename(new, self.file(_FAILED))

    def _failure(self) -> _Failure | None:
        try:
            file = os.open(self.file(_FAILED), os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
        except FileNotFoundError:
            return None
        try:
            text, written = os.read(file, 1 << 16).decode(errors="replace"), os.fstat(file).st_mtime_ns
            try:
                fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
            except BlockingIOError:
                return _Failure(text, True, written)
            return _Failure(text, False, written)
        finally:
            os.close(file)

    def answers(self) -> bool:
        """Whether a sidecar listens at the socket. Raises `PermissionDenied` where it is another user's."""
        try:
            with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as probe:
                probe.settimeout(1.0)
                probe.connect(self.socket)
                credentials = probe.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, struct.calcsize("3i"))
        except (FileNotFoundError, ConnectionRefusedError, TimeoutError, BlockingIOError):
            return False
        except OSError as e:
            if e.errno == errno.EPROTOTYPE:
                raise _refused(f"{self.socket} is no socket of a sidecar: {e.strerror}. Remove it") from None
            raise
        user = struct.unpack("3i", credentials)[1]
        if user != os.geteuid():
            own = os.geteuid()
            raise _refused(f"the sidecar at {self.socket} runs as user id {user}, and this process as user id {own}")
        return True

    def wait(self, give_up: GiveUp) -> None:
        """Waits until the sidecar listens at the socket. Raises `SidecarGone` where its starter could not start it."""
        starter = self._starter.name
        before = self._failure() if self.is_there() else None
        while not (self.is_there() and self.answers()):
            failure = self._failure()
            # What was there before may be of an earlier start.
            if failure and (failure.lives or before is None or failure.written != before.written):
                text = f"{starter} did not start the sidecar at {self.socket}: {failure.text}"
                raise SidecarGone(text, "not_started", False, "operator")
            said = f"{starter} said: {failure.text}" if failure else f"{starter}, which starts it, did not say why"
            give_up(f"no sidecar listens at {self.socket}; {said}")
            time.sleep(PAUSE)


def _refused(text: str) -> PermissionDenied:
    """The error of something that may be another user's."""
    return PermissionDenied(text, "permission_denied", False, "operator")
