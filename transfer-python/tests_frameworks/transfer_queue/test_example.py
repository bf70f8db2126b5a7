"""The example, which ends with a check of its result."""

from __future__ import annotations

import subprocess
import sys

from conftest import GIVE_UP, ROOT


def test_the_example_ends_well():
    command = [sys.executable, str(ROOT / "examples/python/transfer_queue_samples.py")]
    done = subprocess.run(command, capture_output=True, text=True, timeout=15 * GIVE_UP)
    assert done.returncode == 0 and done.stdout.endswith("[] left: True\n"), done.stdout + done.stderr
