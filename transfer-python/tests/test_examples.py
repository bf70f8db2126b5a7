"""The examples, which end with a check of their results; and the documents."""

from __future__ import annotations

import re
import subprocess
import sys

import pytest
import transferd as td
from conftest import GIVE_UP, ROOT

PAGE = (ROOT / "docs/python.md").read_text()


@pytest.mark.parametrize(
    "name, arguments",
    [("digits", []), ("digits", ["--workers", "3", "--steps", "20"]), ("loader", []), ("loader", ["--workers", "4"])],
)
def test_an_example_ends_well(name, arguments):
    command = [sys.executable, str(ROOT / f"examples/python/{name}.py"), *arguments]
    done = subprocess.run(command, capture_output=True, text=True, timeout=10 * GIVE_UP)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "True" in done.stdout and done.stderr == ""


def recipes():
    for heading, text in re.findall(r"^## (.*?)$(.*?)(?=^## |\Z)", PAGE, re.M | re.S):
        code = "\n".join(re.findall(r"^```python\n(.*?)^```", text, re.M | re.S))
        # What is large is not installed for the tests. Those of `init` are run as torchrun would, by test_init.py.
        if code and not re.search(r"^import (torch|jax)|td\.init\(", code, re.M):
            yield pytest.param(code, id=heading)


@pytest.mark.parametrize("code", list(recipes()))
def test_a_recipe_does_what_it_says(sidecar, code):
    script = f"path = {sidecar.path!r}\n{code}"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=GIVE_UP * 3)
    assert done.returncode == 0, script + done.stderr


def test_each_promise_of_the_page_has_a_test():
    named = re.findall(r"`(test_\w+)\.py::(test_\w+)`", PAGE)
    assert len(named) > 20
    for file, name in named:
        assert f"def {name}(" in (ROOT / f"transfer-python/tests/{file}.py").read_text(), (file, name)


def test_help_is_complete():
    names = [name for name in td.__all__ if name not in ("__version__", "aio")]
    for name in names:
        thing = getattr(td, name)
        assert thing.__doc__, name
        for method, value in vars(thing).items() if isinstance(thing, type) else ():
            if not method.startswith("_") and callable(value):
                assert value.__doc__, f"{name}.{method}"
