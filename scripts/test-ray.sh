#!/usr/bin/env bash
# Tests transferd.ray with a real cluster of Ray on this host: transfer-python/tests_ray, with the examples that need Ray. It installs Ray (240 MB, with
# torch beside it 6 GB) below the target folder, so it is no part of `make test`, nor of CI. The module and the programs are those that cargo
# has built. Its arguments are pytest's: scripts/test-ray.sh -k shuffle
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
target=$(realpath -m "${CARGO_TARGET_DIR:-target}")
venv=$(scripts/python-venv.sh ray)
package=$(scripts/python-package.sh package-ray)
export TRANSFERD=$target/debug/transferd PYTHONDONTWRITEBYTECODE=1 RAY_USAGE_STATS_ENABLED=0
# Ray's workers import the modules of the tests, which take their fixtures from the other tests.
export PYTHONPATH=$package:$PWD/transfer-python/tests:$PWD/transfer-python/tests_ray

"$venv/bin/python" -m pytest --quiet -p no:cacheprovider -p conftest -p clusters transfer-python/tests_ray "$@"
