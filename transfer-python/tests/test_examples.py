"""The examples, which end with a check of their results; and the documents."""

from __future__ import annotations

import re
import subprocess
import sys
from operator import attrgetter

import pytest
import transferd as td
from conftest import GIVE_UP, ROOT

PAGE = (ROOT / "docs/python.md").read_text()


@pytest.mark.parametrize(
    "name, arguments",
    [
        ("digits", []),
        ("digits", ["--workers", "3", "--steps", "20"]),
        ("loader", []),
        ("loader", ["--workers", "4"]),
        ("slices", []),
    ],
)
def test_an_example_ends_well(name, arguments):
    run_example(name, arguments)


def run_example(name, arguments):
    command = [sys.executable, str(ROOT / f"examples/python/{name}.py"), *arguments]
    done = subprocess.run(command, capture_output=True, text=True, timeout=10 * GIVE_UP)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "True" in done.stdout and done.stderr == ""


def recipes(*, large: bool = True, gpu: bool = False):
    """The recipes of the page; those that import torch or jax where `large` says so, and the others where not. Those that
    need a GPU only where `gpu` says so."""
    for heading, text in re.findall(r"^## (.*?)$(.*?)(?=^## |\Z)", PAGE, re.M | re.S):
        code = "\n".join(re.findall(r"^```python\n(.*?)^```", text, re.M | re.S))
        # Those of `init` are run as torchrun would, by test_init.py.
        if code and "td.init(" not in code and (large, gpu) == (bool(re.search(r"^import (torch|jax)", code, re.M)), '"cuda"' in code):
            yield pytest.param(code, id=heading)


def run_recipe(sidecar, code):
    script = f"path = {sidecar.path!r}\n{code}"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=GIVE_UP * 3)
    assert done.returncode == 0, script + done.stderr


def test_the_ten_lines_of_the_readme_do_what_they_say():
    (code,) = re.findall(r"^```python\n(.*?)^```", (ROOT / "README.md").read_text(), re.M | re.S)
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=GIVE_UP * 3)
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("16384.0 (256, 64) <Report fabric=local") and "copied=0 B" in done.stdout


# Those that need torch or jax are in tests_all: neither is installed for these tests.
@pytest.mark.parametrize("code", list(recipes(large=False)))
def test_a_recipe_does_what_it_says(sidecar, code):
    run_recipe(sidecar, code)


def test_help_is_complete():
    names = [name for name in td.__all__ if name not in ("__version__", "aio", "nn")] + ["nn.Shared", "nn.share_"]
    for name in names:
        thing = attrgetter(name)(td)
        assert thing.__doc__, name
        for method, value in vars(thing).items() if isinstance(thing, type) else ():
            if not method.startswith("_") and callable(value):
                assert value.__doc__, f"{name}.{method}"
