"""The build backend of the package: maturin's, after a check that this tree is set up.

The build of rdma-sys needs a libclang of version 15 or older. scripts/setup.sh finds or fetches one and writes its path into `.cargo/config.toml`.
Without it that build ends with a panic that names no remedy.
"""

import os
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path

# The hooks of PEP 517 and PEP 660 that need no check.
from maturin import (
    build_sdist,
    get_requires_for_build_sdist,
    prepare_metadata_for_build_editable,
    prepare_metadata_for_build_wheel,
)
import maturin

__all__ = [
    "build_editable",
    "build_sdist",
    "build_wheel",
    "get_requires_for_build_editable",
    "get_requires_for_build_sdist",
    "get_requires_for_build_wheel",
    "prepare_metadata_for_build_editable",
    "prepare_metadata_for_build_wheel",
]

# The variable of the environment, and of cargo's configuration, that names libclang.
_LIBCLANG = "LIBCLANG_PATH"


def get_requires_for_build_wheel(config_settings=None):
    _check()
    return maturin.get_requires_for_build_wheel(config_settings)


def get_requires_for_build_editable(config_settings=None):
    _check()
    return maturin.get_requires_for_build_editable(config_settings)


def build_wheel(wheel_directory, config_settings=None, metadata_directory=None):
    _check()
    return maturin.build_wheel(wheel_directory, config_settings, metadata_directory)


def build_editable(wheel_directory, config_settings=None, metadata_directory=None):
    _check()
    return maturin.build_editable(wheel_directory, config_settings, metadata_directory)


def _check() -> None:
    """Ends the build with one line if the tree is not set up. A backend runs in the folder of its pyproject.toml."""
    if _LIBCLANG in os.environ:
        return
    folder = Path.cwd()
    root = next((root for root in (folder, *folder.parents) if (root / "scripts/setup.sh").is_file()), None)
    for config in _cargo_configs(folder):
        library = _libclang(config)
        if library is None:
            continue
        if not Path(library).exists():
            remedy = f"Run {root / 'scripts/setup.sh'}, then try again." if root else f"Correct {_LIBCLANG} there."
            _end(f"{config} names the libclang {library}, which does not exist. {remedy}")
        return
    if root is not None:
        _end(f"this tree is not set up. Run {root / 'scripts/setup.sh'}, then try again.")
    _end(
        "a source distribution cannot set itself up. Clone the repository and run scripts/setup.sh there, then pip install ./transfer-python; "
        f"or set {_LIBCLANG} to the folder of a libclang of version 15 or older, and install the headers of libibverbs and librdmacm."
    )


def _cargo_configs(folder: Path) -> Iterator[Path]:
    """The files that cargo reads in this folder, the first one being the strongest."""
    home = Path(os.environ.get("CARGO_HOME", Path.home() / ".cargo"))
    for candidate in (*(parent / ".cargo" for parent in (folder, *folder.parents)), home):
        config = candidate / "config.toml"
        if config.is_file():
            yield config


def _libclang(config: Path) -> str | None:
    """The path of libclang in a file of cargo's configuration, if there is one."""
    try:
        environment = tomllib.loads(config.read_text()).get("env", {})
    except (OSError, ValueError) as error:
        _end(f"{config} cannot be read: {error}")
    value = environment.get(_LIBCLANG)
    # Cargo takes a text, or a table with the text and how to use it.
    found = value.get("value") if isinstance(value, dict) else value
    return found if isinstance(found, str) else None


def _end(text: str) -> None:
    # Without a stack trace: a frontend shows this as the whole output of the hook.
    sys.exit(f"transferd: {text}")
