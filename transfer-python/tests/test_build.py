"""The build backend: what it says of a tree that is not set up, and what it leaves to maturin."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
from conftest import ROOT

PACKAGE = ROOT / "transfer-python"

# Every hook of PEP 517 and PEP 660, and how a frontend calls it.
HOOKS = {
    "get_requires_for_build_wheel": "",
    "get_requires_for_build_editable": "",
    "get_requires_for_build_sdist": "",
    "prepare_metadata_for_build_wheel": "'out'",
    "prepare_metadata_for_build_editable": "'out'",
    "build_wheel": "'out'",
    "build_editable": "'out'",
    "build_sdist": "'out'",
}
# Those that compile, or come just before.
COMPILING = ("get_requires_for_build_wheel", "get_requires_for_build_editable", "build_wheel", "build_editable")

# Stands in for maturin, which would compile for minutes.
STAND_IN = "\n".join(f"def {hook}(*arguments): return 'maturin ' + {hook!r}" for hook in HOOKS)


class Tree:
    """A copy of what a frontend reads of the repository."""

    def __init__(self, folder: Path) -> None:
        self.root = folder / "clone"
        self.package = self.root / "transfer-python"
        self.package.mkdir(parents=True)
        shutil.copy(PACKAGE / "pyproject.toml", self.package)
        shutil.copytree(PACKAGE / "build_backend", self.package / "build_backend", ignore=lambda *_: {"__pycache__"})
        self.setup = self.root / "scripts/setup.sh"
        self.setup.parent.mkdir()
        self.setup.touch()
        self.cargo_home = folder / "cargo"
        (folder / "maturin.py").write_text(STAND_IN)
        self.modules = folder

    def is_set_up(self, text: str) -> None:
        config = self.root / ".cargo/config.toml"
        config.parent.mkdir(exist_ok=True)
        config.write_text(text)

    def call(self, hook: str, **others: str) -> subprocess.CompletedProcess[str]:
        """Calls a hook as a frontend does: in the folder of pyproject.toml, with the backend that it names."""
        system = tomllib.loads((self.package / "pyproject.toml").read_text())["build-system"]
        paths = [str(self.package / path) for path in system["backend-path"]]
        script = f"import sys; sys.path[:0] = {paths}; import {system['build-backend']} as b; print(b.{hook}({HOOKS[hook]}))"
        inherited = {name: value for name, value in os.environ.items() if name != "LIBCLANG_PATH"}
        environment = {**inherited, "PYTHONPATH": str(self.modules), "CARGO_HOME": str(self.cargo_home), **others}
        return subprocess.run([sys.executable, "-c", script], cwd=self.package, env=environment, capture_output=True, text=True)

    def refuses(self, hook: str) -> str:
        """The one line that a hook ends with."""
        done = self.call(hook)
        assert done.returncode == 1 and done.stdout == "" and done.stderr.count("\n") == 1, done
        return done.stderr

    def builds(self, hook: str, **others: str) -> None:
        done = self.call(hook, **others)
        assert (done.stdout, done.stderr) == (f"maturin {hook}\n", "")


@pytest.fixture
def tree(folder):
    return Tree(folder)


# Promise: builds-without-set-up
@pytest.mark.parametrize("hook", COMPILING)
def test_a_tree_that_is_not_set_up_is_refused_with_the_command(tree, hook):
    assert tree.refuses(hook) == f"transferd: this tree is not set up. Run {tree.setup}, then try again.\n"
    # A configuration of cargo that has nothing to do with it changes nothing.
    tree.is_set_up("[env]\nOTHER = '1'\n")
    assert "is not set up" in tree.refuses(hook)


@pytest.mark.parametrize("hook", COMPILING)
@pytest.mark.parametrize("form", ["'{}'", "{{ value = '{}', force = true }}"])
def test_a_tree_that_is_set_up_is_left_to_maturin(tree, hook, form):
    library = tree.root / "libclang.so"
    library.touch()
    tree.is_set_up(f"[env]\nLIBCLANG_PATH = {form.format(library)}\n")
    tree.builds(hook)


@pytest.mark.parametrize("hook", COMPILING)
def test_a_libclang_of_the_caller_s_own_is_left_to_maturin(tree, hook):
    tree.builds(hook, LIBCLANG_PATH="/usr/lib/llvm-14/lib")


@pytest.mark.parametrize("hook", [hook for hook in HOOKS if hook not in COMPILING])
def test_what_compiles_nothing_needs_no_set_up(tree, hook):
    tree.builds(hook)


# Promise: builds-without-set-up
def test_a_tree_that_was_moved_after_its_set_up_is_refused_with_the_command(tree):
    tree.is_set_up("[env]\nLIBCLANG_PATH = '/gone/libclang.so'\n")
    said = tree.refuses("build_wheel")
    assert "names the libclang /gone/libclang.so, which does not exist" in said and f"Run {tree.setup}" in said


def test_a_configuration_of_cargo_that_cannot_be_read_is_named(tree):
    tree.is_set_up("[env\n")
    assert f"{tree.root}/.cargo/config.toml cannot be read" in tree.refuses("build_wheel")


def test_a_source_distribution_names_what_it_needs(tree):
    tree.setup.unlink()
    said = tree.refuses("build_wheel")
    assert "Clone the repository" in said and "scripts/setup.sh" in said and "LIBCLANG_PATH" in said


def test_maturin_has_no_other_hook():
    import maturin

    words = ("build_", "get_requires_", "prepare_metadata_")
    assert {name for name in dir(maturin) if name.startswith(words)} == set(HOOKS)


def test_a_source_distribution_has_the_backend():
    settings = tomllib.loads((PACKAGE / "pyproject.toml").read_text())
    included = [entry["path"] for entry in settings["tool"]["maturin"]["include"] if entry["format"] == "sdist"]
    (folder,) = settings["build-system"]["backend-path"]
    assert included == [f"{folder}/*.py"] and list(PACKAGE.glob(included[0])) == [PACKAGE / folder / "transferd_build.py"]
