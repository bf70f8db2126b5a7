#!/usr/bin/env bash
# Runs the tests that need a GPU: those of Rust, and those of the Python package in transfer-python/tests_gpu. The programs and the module are
# those that cargo has built. PYTHON is an interpreter with pytest, numpy, ml_dtypes, cupy, and a torch for CUDA. Its arguments are pytest's.
# Without a GPU it fails.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
target=$(realpath -m "${CARGO_TARGET_DIR:-target}")

"${CARGO:-cargo}" test --workspace --test gpu -- --include-ignored
package=$(scripts/python-package.sh package-gpu)
export TRANSFERD=$target/debug/transferd PYTHONDONTWRITEBYTECODE=1
# The fixtures are those of the other tests.
export PYTHONPATH=$package:$PWD/transfer-python/tests
"${PYTHON:-python3}" -m pytest --quiet -p no:cacheprovider -p conftest transfer-python/tests_gpu "$@"
