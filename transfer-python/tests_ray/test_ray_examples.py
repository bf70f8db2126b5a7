"""The examples with Ray, which end with a check of their results; and docs/ray.md."""

from __future__ import annotations

import re
import subprocess
import sys

import pytest
import transferd.ray as tr
from clusters import NODE, folders
from conftest import ROOT, until

PAGE = (ROOT / "docs/ray.md").read_text()

# A cluster of one node, as small as those of the tests, beside theirs: else Ray finds one that runs.
START = f"import ray\nray.init('local', num_cpus={NODE['num_cpus']}, object_store_memory={NODE['object_store_memory']}, include_dashboard=False, log_to_driver=False)\n"


def recipes():
    for heading, text in re.findall(r"^##? (.*?)$(.*?)(?=^## |\Z)", PAGE, re.M | re.S):
        code = "\n".join(re.findall(r"^```python\n(.*?)^```", text, re.M | re.S))
        if code:
            yield pytest.param(code.replace("ray.init()\n", START, 1), id=heading)


@pytest.mark.parametrize("code", list(recipes()))
def test_a_recipe_does_what_it_says(tmp_path, code):
    before = folders()
    script = tmp_path / "recipe.py"
    script.write_text(code)
    done = subprocess.run([sys.executable, str(script)], capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, code + done.stdout + done.stderr
    until("its sidecars have ended", lambda: folders() == before)


@pytest.mark.parametrize("name", ["ray_weight_sync", "ray_shuffle"])
def test_an_example_ends_well_on_two_nodes(cluster, name):
    before = folders()
    command = [sys.executable, str(ROOT / f"examples/python/{name}.py"), "--address", cluster.address]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0 and "True" in done.stdout and "False" not in done.stdout, done.stdout + done.stderr
    until("its sidecars have ended", lambda: folders() == before)


def test_help_is_complete():
    for name in tr.__all__:
        thing = getattr(tr, name)
        assert thing.__doc__, name
        for method, value in vars(thing).items() if isinstance(thing, type) else ():
            if not method.startswith("_") and callable(value):
                assert value.__doc__, f"{name}.{method}"
