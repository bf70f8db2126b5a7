#!/usr/bin/env bash
# Tests the Python package: its types with mypy, its stub against the module, and pytest with real sidecars and the examples. The module and the
# programs are those that `cargo build --workspace` has made. Its arguments are pytest's: scripts/test-python.sh -k fork
# What needs torch or jax is in scripts/test-python-all.sh.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
target=$(realpath -m "${CARGO_TARGET_DIR:-target}")
venv=$(scripts/python-venv.sh)
package=$(scripts/python-package.sh package)
export PYTHONPATH=$package TRANSFERD=$target/debug/transferd PYTHONDONTWRITEBYTECODE=1

(
    # First, for it takes seconds.
    cd transfer-python
    export MYPY_CACHE_DIR=$target/python/mypy
    "$venv/bin/python" -m mypy --config-file pyproject.toml python
    MYPYPATH=$package "$venv/bin/python" -m mypy.stubtest --mypy-config-file pyproject.toml --allowlist tests/stub-allowlist.txt \
        --ignore-unused-allowlist transferd
)
"$venv/bin/python" -m pytest --quiet -p no:cacheprovider transfer-python/tests "$@"
