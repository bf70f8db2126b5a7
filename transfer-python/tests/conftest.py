"""Real sidecars for the tests: `transferd` as `cargo build` made it, found by TRANSFERD, `transferctl` beside it."""

from __future__ import annotations

import gc
import inspect
import json
import os
import signal
import socket
import subprocess
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import transferd as td

ROOT = Path(__file__).resolve().parents[2]
TRANSFERD = Path(os.environ.get("TRANSFERD", ROOT / "target/debug/transferd"))
TRANSFERCTL = TRANSFERD.with_name("transferctl")

# No test asserts a maximum time: this is when one is given up.
GIVE_UP = 20.0


class Sidecar:
    """A process of `transferd` with sockets of its own."""

    def __init__(self, folder: Path, *arguments: str) -> None:
        self.folder, self.arguments = folder, arguments
        self.path, self.admin = str(folder / "worker.sock"), str(folder / "admin.sock")
        self.start()

    def start(self) -> None:
        command = [TRANSFERD, "--socket", self.path, "--admin-socket", self.admin, *self.arguments]
        with open(self.folder / "log", "a") as log:
            self.process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=log, text=True)
        assert self.process.stdout is not None
        self.ready = self.process.stdout.readline()
        assert self.ready.startswith("transferd ready"), (self.folder / "log").read_text()

    def kill(self) -> None:
        self.process.kill()
        self.process.wait()

    def suspend(self) -> None:
        """Stops the process with SIGSTOP, and waits until all its threads stand: the kernel stops each only where it can."""
        self.process.send_signal(signal.SIGSTOP)
        threads = Path(f"/proc/{self.process.pid}/task")
        while any((thread / "stat").read_text().rpartition(") ")[2][0] != "T" for thread in threads.iterdir()):
            pass

    def stop(self) -> None:
        self.process.terminate()
        self.process.wait(GIVE_UP)
        assert self.process.stdout is not None
        self.process.stdout.close()

    def ctl(self, *arguments: str) -> Any:
        command = [TRANSFERCTL, *arguments, "--json", "--admin", self.admin]
        return json.loads(subprocess.run(command, stdout=subprocess.PIPE, check=True).stdout)

    def counters(self) -> dict[str, Any]:
        found: dict[str, Any] = self.ctl("status")["counters"]
        return found

    def held(self) -> dict[str, int]:
        """What the sidecar holds for workers, by what it is."""
        counters = self.counters()
        return {name: counters[name] for name in ("blobs", "leases", "operations", "sessions", "tensors", "slots")}


def start_two(tmp_path_factory: pytest.TempPathFactory, *arguments: str) -> tuple[Sidecar, Sidecar]:
    """Starts the sidecars of two nodes with these arguments."""
    with socket.socket() as one, socket.socket() as two:
        one.bind(("127.0.0.1", 0))
        two.bind(("127.0.0.1", 0))
        listen = [f"127.0.0.1:{end.getsockname()[1]}" for end in (one, two)]
    a = Sidecar(tmp_path_factory.mktemp("a"), "--node", "a", "--listen", listen[0], *arguments)
    b = Sidecar(tmp_path_factory.mktemp("b"), "--node", "b", "--listen", listen[1], *arguments, "--directory", f"http://{listen[0]}")
    return a, b


@pytest.fixture(scope="module")
def nodes(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Sidecar, Sidecar]]:
    """The sidecars of two nodes."""
    # Nothing is read by reference, so everything moves.
    a, b = start_two(tmp_path_factory, "--shm", "off")
    yield a, b
    b.stop()
    a.stop()


def until(what: str, is_so: Any) -> Any:
    """Waits until something is so. Answers what it was."""
    give_up = time.monotonic() + GIVE_UP
    while not (found := is_so()):
        assert time.monotonic() < give_up, f"it is not so: {what}"
        time.sleep(0.005)
    return found


async def settled(value: Any) -> Any:
    """What a call of a client has returned, or, of one for asyncio, what it brings."""
    return await value if inspect.isawaitable(value) else value


@pytest.fixture
def folder() -> Iterator[Path]:
    with tempfile.TemporaryDirectory(prefix="transfer-python-") as name:
        yield Path(name)


@pytest.fixture(scope="session")
def house() -> Iterator[Sidecar]:
    with tempfile.TemporaryDirectory(prefix="transfer-python-") as name:
        sidecar = Sidecar(Path(name))
        yield sidecar
        sidecar.stop()


@pytest.fixture
def sidecar(house: Sidecar) -> Sidecar:
    """One for all tests: started again where a test has killed it, and empty."""
    if house.process.poll() is not None:
        house.start()
    gc.collect()
    until("no worker of another test is there", lambda: house.counters()["sessions"] == 0)
    return house


@pytest.fixture
def c(sidecar: Sidecar) -> Iterator[td.Client]:
    with td.connect(sidecar.path, arena="64MiB") as client:
        yield client


@pytest.fixture
def other(sidecar: Sidecar) -> Iterator[td.Client]:
    """Another worker, with an arena of its own."""
    with td.connect(sidecar.path, arena="16MiB") as client:
        yield client
