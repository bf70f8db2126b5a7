"""The console scripts: transferd and transferctl out of the module."""

from __future__ import annotations

import json
import signal
import subprocess
import sys

import transferd as td
from conftest import GIVE_UP


def command(program, *arguments):
    code = f"from transferd._programs import {program}; {program}()"
    return [sys.executable, "-c", code, *arguments]


# Promise: programs-of-the-package
def test_the_sidecar_and_the_tool_run_out_of_the_module(folder):
    path, admin = str(folder / "worker.sock"), str(folder / "admin.sock")
    sidecar = command("transferd", "--socket", path, "--admin-socket", admin)
    with subprocess.Popen(sidecar, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True) as process:
        assert process.stdout.readline().startswith("transferd ready")
        with td.connect(path) as c:
            c.push("k", b"1")
            found = subprocess.run(
                command("transferctl", "status", "--json", "--admin", admin), stdout=subprocess.PIPE, check=True
            )
            assert json.loads(found.stdout)["counters"]["tensors"] == 1
        process.send_signal(signal.SIGINT)
        assert process.wait(GIVE_UP) == 0


# Promise: programs-of-the-package
def test_exit_codes_are_the_programs_own():
    for program, arguments, code in [
        ("transferd", ["--version"], 0),
        ("transferd", ["--nonsense"], 2),
        ("transferctl", ["--help"], 0),
        ("transferctl", ["status", "--admin", "/nowhere.sock"], 3),
    ]:
        done = subprocess.run(command(program, *arguments), capture_output=True, text=True)
        assert done.returncode == code, done.stderr
        assert "Traceback" not in done.stderr
