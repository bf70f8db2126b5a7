#!/usr/bin/env bash
# Tests the Python package: pytest with real sidecars, its types with mypy, and its stub against the module. The module and the programs are those
# that `cargo build --workspace` has made; the Python packages come from pip, once, into an environment in the target folder.
# Its arguments are pytest's: scripts/test-python.sh -k fork
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
target=$(realpath -m "${CARGO_TARGET_DIR:-target}")
needs=transfer-python/tests/requirements.txt
venv=$target/python/transferd-$(sha256sum "$needs" | cut -c 1-12)
package=$target/python/package

mkdir -p "$target/python"
exec 9>"$venv.lock"
flock 9
if [ ! -e "$venv/ready" ]; then
    python3 -m venv --clear "$venv"
    "$venv/bin/pip" install --quiet --disable-pip-version-check --only-binary :all: --requirement "$needs" </dev/null
    touch "$venv/ready"
fi
flock -u 9

rm -rf "$package"
mkdir -p "$package"
cp -r transfer-python/python/transferd "$package/transferd"
cp "$target/debug/libtransferd_native.so" "$package/transferd/_native.abi3.so"
export PYTHONPATH=$package TRANSFERD=$target/debug/transferd PYTHONDONTWRITEBYTECODE=1

"$venv/bin/python" -m pytest --quiet -p no:cacheprovider transfer-python/tests "$@"
cd transfer-python
export MYPY_CACHE_DIR=$target/python/mypy
"$venv/bin/python" -m mypy --config-file pyproject.toml python
MYPYPATH=$package "$venv/bin/python" -m mypy.stubtest --mypy-config-file pyproject.toml --allowlist tests/stub-allowlist.txt \
    --ignore-unused-allowlist transferd
