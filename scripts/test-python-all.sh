#!/usr/bin/env bash
# Tests the Python package with torch, jax, polars and duckdb: transfer-python/tests_all, with the examples and the recipes of docs/python.md that need them. They
# are large (6 GB in the target folder), so `make test` does not install them. The module and the programs are those that cargo has built. Its
# arguments are pytest's: scripts/test-python-all.sh -k digits
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
target=$(realpath -m "${CARGO_TARGET_DIR:-target}")
venv=$(scripts/python-venv.sh all)
package=$(scripts/python-package.sh package-all)
export TRANSFERD=$target/debug/transferd PYTHONDONTWRITEBYTECODE=1 JAX_PLATFORMS=cpu
# The fixtures are those of the other tests.
export PYTHONPATH=$package:$PWD/transfer-python/tests

"$venv/bin/python" -m pytest --quiet -p no:cacheprovider -p conftest transfer-python/tests_all "$@"
