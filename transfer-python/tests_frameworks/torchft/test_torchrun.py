"""Replica groups that torchrun starts: each is a job of its own, with sidecars of its own."""

from __future__ import annotations

import os
import subprocess
import sys

from conftest import GIVE_UP
from torchrun import OURS, free_port

# One process of a job sends, and one of another job receives. They share a folder, as managers share their lighthouse.
SENDS = """
import pathlib, sys, time
from datetime import timedelta
import torch
from transferd.torchft import TransferTransport

folder, sends = pathlib.Path(sys.argv[1]), sys.argv[2] == "sends"
transport = TransferTransport()
(folder / f"path-{sys.argv[2]}").write_text(transport._path)
if sends:
    transport.send_checkpoint([1], 3, {"w": torch.arange(1 << 16)}, timedelta(seconds=60))
    (folder / "metadata~").write_text(transport.metadata())
    (folder / "metadata~").rename(folder / "metadata")
    while not (folder / "received").exists():
        time.sleep(0.01)
else:
    while not (folder / "metadata").exists():
        time.sleep(0.01)
    state = transport.recv_checkpoint(0, (folder / "metadata").read_text(), 3, timedelta(seconds=60))
    assert torch.equal(state["w"], torch.arange(1 << 16))
    (folder / "received").write_text("")
transport.shutdown()
"""


# Promise: torchft-jobs
def test_groups_of_torchrun_send_to_each_other(folder, monkeypatch):
    for name in list(filter(OURS.fullmatch, os.environ)):
        monkeypatch.delenv(name)
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(folder))
    (folder / "program.py").write_text(SENDS)
    groups = []
    for kind in ("sends", "receives"):
        command = [sys.executable, "-m", "torch.distributed.run", "--nnodes", "1", "--nproc-per-node", "1", "--master-port", str(free_port())]
        command += ["--rdzv-id", kind, str(folder / "program.py"), str(folder), kind]
        groups.append(subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True))
    for group in groups:
        said, _ = group.communicate(timeout=10 * GIVE_UP)
        assert group.returncode == 0, said
    paths = [(folder / f"path-{kind}").read_text() for kind in ("sends", "receives")]
    # Both are sidecars of their jobs, and not one.
    assert paths[0] != paths[1] and all(path.startswith(str(folder)) and "transferd-" in path for path in paths)
