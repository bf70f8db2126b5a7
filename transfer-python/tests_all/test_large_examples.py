"""The examples and the recipes that need torch or jax."""

from __future__ import annotations

import importlib
import subprocess
import sys

import pytest
import torch
from conftest import GIVE_UP, ROOT
from test_examples import recipes, run_example, run_recipe


@pytest.mark.parametrize(
    "name, arguments",
    [
        ("digits_torch", []),
        ("digits_torch", ["--workers", "3", "--steps", "20"]),
        ("weight_sync", []),
        ("weight_sync", ["--replicas", "3", "--steps", "20"]),
        ("weight_sync", ["--deltas", "--steps", "50"]),
        ("jax_dlpack", []),
        ("loader_torch", []),
        ("loader_torch", ["--workers", "1", "--epochs", "3"]),
        ("dcp", []),
    ],
)
def test_an_example_with_torch_or_jax_ends_well(name, arguments):
    run_example(name, arguments)


# What breaks the result of each example, before its `main`: in this process, and not in its workers.
BROKEN = {
    "digits_torch": "example.alone = lambda *_: example.new_model()",
    "weight_sync": "example.digest = lambda model: str(id(model))",
    "weight_sync --deltas": "example.bits = lambda weights: str(id(weights))",
    "jax_dlpack": "example.np.allclose = lambda *_, **__: False",
    "loader_torch": "example.expected = lambda index: torch.zeros(len(index), example.COLUMNS)",
}


@pytest.mark.parametrize("name", BROKEN)
def test_an_example_whose_check_fails_ends_with_1(name):
    folder, (program, *arguments) = str(ROOT / "examples/python"), name.split()
    script = f"import sys; sys.path.insert(0, {folder!r}); import torch, {program} as example\n{BROKEN[name]}\n"
    script += f"if __name__ == '__main__': sys.argv = {['example', *arguments]}; sys.exit(0 if example.main() else 1)"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=10 * GIVE_UP)
    assert (done.returncode, done.stderr) == (1, ""), done.stdout + done.stderr


@pytest.fixture
def weight_sync(monkeypatch):
    monkeypatch.syspath_prepend(ROOT / "examples/python")
    return importlib.import_module("weight_sync")


def test_a_state_of_two_versions_is_noticed(weight_sync):
    model, later = weight_sync.Policy(), weight_sync.Policy()
    model.number(1, False)
    later.number(2, False)
    old, new = model.state_dict(), later.state_dict()
    assert (weight_sync.versions(old), weight_sync.versions(new)) == ({1}, {2})
    for name in old:
        assert weight_sync.versions({**old, name: new[name]}) == {1, 2}, name
    # No output depends on the numbers.
    assert torch.equal(model(torch.ones(1, weight_sync.INPUTS)), later(torch.ones(1, weight_sync.INPUTS)))


@pytest.mark.parametrize("code", list(recipes(large=True)))
def test_a_recipe_with_torch_or_jax_does_what_it_says(sidecar, code):
    run_recipe(sidecar, code)
