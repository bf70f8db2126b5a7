"""A whole vLLM on the CPU, with a tiny model of random weights: it generates what the trainer's new weights say."""

from __future__ import annotations

import subprocess
import sys

from conftest import ROOT


# Promise: vllm-rounds
def test_an_engine_generates_with_the_weights_that_it_was_sent():
    command = [sys.executable, str(ROOT / "examples/python/vllm_engine.py")]
    done = subprocess.run(command, capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "the engine generates what torch does: True" in done.stdout
