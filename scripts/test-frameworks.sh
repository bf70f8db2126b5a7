#!/usr/bin/env bash
# Tests the plugs for frameworks with the real frameworks: each folder of transfer-python/tests_frameworks in an environment of its own, which has what
# the requirements.txt there lists. Without a name, all of them. They need torch, which takes 6 GB below the target folder, and the frameworks as well, so
# this is no part of `make test`, nor of CI. The module and the programs are those that cargo has built. What follows `--` are arguments
# of pytest: scripts/test-frameworks.sh torchft -- -k recovery
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
target=$(realpath -m "${CARGO_TARGET_DIR:-target}")
folders=transfer-python/tests_frameworks
shopt -s nullglob
names=()
while [ $# -gt 0 ] && [ "$1" != -- ]; do
    names+=("$1")
    shift
done
[ $# -eq 0 ] || shift
if [ ${#names[@]} -eq 0 ]; then
    for list in "$folders"/*/requirements.txt; do names+=("$(basename "$(dirname "$list")")"); done
fi
export TRANSFERD=$target/debug/transferd PYTHONDONTWRITEBYTECODE=1 RAY_USAGE_STATS_ENABLED=0

for name in "${names[@]}"; do
    printf '==> %s\n' "$name"
    venv=$(scripts/python-venv.sh "$name")
    package=$(scripts/python-package.sh "package-$name")
    # The fixtures are those of the other tests. Processes that the frameworks start import the modules of these tests.
    PYTHONPATH=$package:$PWD/transfer-python/tests:$PWD/$folders/$name \
        "$venv/bin/python" -m pytest --quiet -p no:cacheprovider -p conftest "$folders/$name" "$@"
done
