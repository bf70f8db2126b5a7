"""The certificates of a job: an authority that the driver alone has, and a certificate for each node."""

from __future__ import annotations

import os
import subprocess
import tempfile
from typing import NamedTuple

from .. import _child, _programs

# Longer than any job should run: there is no renewal.
_DAYS = 365


class Certificate(NamedTuple):
    """What a node's sidecar needs, as PEM."""

    authority: bytes
    certificate: bytes
    key: bytes


class Authority:
    """Signs for the nodes of one job. Its key is in the memory of this process; on disk it is only while `transferctl certs` runs."""

    def __init__(self) -> None:
        self._files: dict[str, bytes] = {}

    def sign(self, node: str, address: str) -> Certificate:
        """Makes a certificate for the node at that IP address."""
        with tempfile.TemporaryDirectory(prefix="transferd-certs-") as folder:
            for name, content in self._files.items():
                with open(os.path.join(folder, name), "xb", opener=_private) as file:
                    file.write(content)
            flags = ("--out", folder, "--node", f"{node}={address}", "--days", str(_DAYS))
            command = _programs.command("transferctl", "certs", *flags)
            done = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, text=True)
            if done.returncode != 0:
                raise _child.not_started(f"transferctl certs made no certificate for {node}: {done.stderr.strip()}")
            self._files = {name: _read(folder, name) for name in ("ca.pem", "ca.key")}
            return Certificate(self._files["ca.pem"], _read(folder, f"{node}.pem"), _read(folder, f"{node}.key"))


def _read(folder: str, name: str) -> bytes:
    with open(os.path.join(folder, name), "rb") as file:
        return file.read()


def _private(path: str, flags: int) -> int:
    return os.open(path, flags, 0o600)
