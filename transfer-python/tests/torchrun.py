"""Jobs for the tests of `td.init()`: processes with the environment that torchrun sets, and a look at their sidecars."""

from __future__ import annotations

import os
import re
import select
import signal
import socket
import struct
import subprocess
import sys
import textwrap
from pathlib import Path

from conftest import GIVE_UP, until

# What torchrun sets, and what `init` reads besides.
OURS = re.compile(
    "RANK|LOCAL_RANK|GROUP_RANK|(LOCAL_)?WORLD_SIZE|MASTER_(ADDR|PORT)|TORCHELASTIC_.*|TRANSFERD?_.*|XDG_RUNTIME_DIR"
)

INIT = """
import sys
import transferd as td
c = td.init(arena="2MiB", timeout=60)
print("ready", c.name, c.node, c.path, c.incarnation, flush=True)
"""


def free_port() -> int:
    """A port that is free, with the next one."""
    while True:
        with socket.socket() as one, socket.socket() as next_one:
            one.bind(("127.0.0.1", 0))
            port = one.getsockname()[1]
            try:
                next_one.bind(("127.0.0.1", port + 1))
            except OSError:
                continue
            return port


class Job:
    """A job as torchrun describes it to its processes, with nodes of as many processes each."""

    def __init__(self, folder: Path, nodes: int = 1, of_each: int = 2, **others: str) -> None:
        self.folder, self.of_each = folder, of_each
        self.all = {
            "XDG_RUNTIME_DIR": str(folder),
            "WORLD_SIZE": str(nodes * of_each),
            "LOCAL_WORLD_SIZE": str(of_each),
            "MASTER_ADDR": "127.0.0.1",
            "MASTER_PORT": str(free_port()),
            "TORCHELASTIC_RUN_ID": "job-7",
            "TORCHELASTIC_RESTART_COUNT": "0",
            # Other tests need memory, too.
            "TRANSFER_POOL_BYTES": "16MiB",
            **others,
        }

    def environment(self, rank: int, **others: str) -> dict[str, str]:
        group, local = divmod(rank, self.of_each)
        inherited = {name: value for name, value in os.environ.items() if not OURS.fullmatch(name)}
        own = {"RANK": str(rank), "LOCAL_RANK": str(local), "GROUP_RANK": str(group)}
        return {**inherited, **self.all, **own, **others}

    def rank(self, rank: int, code: str = "", **others: str) -> Rank:
        """Starts a process that calls `td.init()`, runs `code`, and ends when its standard input does."""
        script = INIT + textwrap.dedent(code) + "\nsys.stdin.read()\n"
        return Rank([sys.executable, "-c", script], self.environment(rank, **others))

    def sockets(self) -> list[Path]:
        return sorted(self.folder.glob("transferd-*/worker.sock"))

    def the_folder(self) -> Path:
        (found,) = self.folder.glob("transferd-*")
        return found


class Rank:
    """A process of a job."""

    def __init__(self, command: list[str], environment: dict[str, str]) -> None:
        self.process = subprocess.Popen(
            command, env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        )
        self.read = b""

    def __enter__(self) -> Rank:
        return self

    def __exit__(self, *_: object) -> None:
        self.process.kill()
        self.process.communicate()

    def line(self) -> str:
        """What it says next. That it ends instead is a failure of the test, with what it said at its end."""
        out = self.process.stdout.fileno()
        waiting = select.poll()
        waiting.register(out, select.POLLIN)
        while b"\n" not in self.read:
            assert waiting.poll(3 * GIVE_UP * 1000), "it says nothing"
            more = os.read(out, 4096)
            assert more, self.process.stderr.read()
            self.read += more
        line, _, self.read = self.read.partition(b"\n")
        return line.decode()

    def ready(self) -> dict[str, str]:
        line = self.line()
        assert line.startswith("ready "), line
        return dict(zip(("name", "node", "path", "incarnation"), line.split()[1:], strict=True))

    def end(self) -> None:
        """Ends it."""
        _, err = self.process.communicate(timeout=3 * GIVE_UP)
        assert self.process.returncode == 0, err

    def fails(self) -> str:
        """Waits until it ends with an error, and answers that."""
        _, err = self.process.communicate(timeout=3 * GIVE_UP)
        assert self.process.returncode == 1, err
        raised = err.rfind("\ntransferd._errors.")
        assert raised >= 0, err
        return err[raised + 1 :].strip()


def process_of(path: str) -> int:
    """The process that listens at a sidecar's socket."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as probe:
        probe.connect(path)
        return struct.unpack("3i", probe.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12))[0]


def kill_sidecar(path: str) -> None:
    """Kills the sidecar at a socket, and waits until nobody listens there."""
    os.kill(process_of(path), signal.SIGKILL)

    def is_refused() -> bool:
        try:
            process_of(path)
        except ConnectionRefusedError:
            return True
        return False

    until("nobody listens at the socket", is_refused)


def is_alive(process: int) -> bool:
    """Whether any thread of a process runs."""
    try:
        states = [
            Path(f"/proc/{process}/task/{task}/stat").read_text().rpartition(")")[2].split()[0]
            for task in os.listdir(f"/proc/{process}/task")
        ]
    except (FileNotFoundError, ProcessLookupError):
        # The process, or a thread meanwhile, which is looked for again.
        return os.path.exists(f"/proc/{process}")
    return any(state not in "ZX" for state in states)


def tcp_listeners(process: int) -> set[int]:
    """The ports at which a process listens."""
    inodes = set()
    for descriptor in Path(f"/proc/{process}/fd").iterdir():
        try:
            inodes.add(os.readlink(descriptor))
        except FileNotFoundError:
            continue
    ports = set()
    for table in ("tcp", "tcp6"):
        for line in Path(f"/proc/{process}/net/{table}").read_text().splitlines()[1:]:
            fields = line.split()
            if fields[3] == "0A" and f"socket:[{fields[9]}]" in inodes:
                ports.add(int(fields[1].rpartition(":")[2], 16))
    return ports
