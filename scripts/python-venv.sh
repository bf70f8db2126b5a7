#!/usr/bin/env bash
# Prints the folder of an environment of Python that has what the Python package is built and tested with. Makes it in the target folder where it is
# not there, with pip.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
folder=$(realpath -m "${CARGO_TARGET_DIR:-target}")/python
needs=transfer-python/tests/requirements.txt
venv=$folder/transferd-$(sha256sum "$needs" | cut -c 1-12)

mkdir -p "$folder"
# Two may want it at once.
exec 9>"$venv.lock"
flock 9
if [ ! -e "$venv/ready" ]; then
    python3 -m venv --clear "$venv" >&2
    "$venv/bin/pip" install --quiet --disable-pip-version-check --only-binary :all: --requirement "$needs" </dev/null >&2
    touch "$venv/ready"
fi
printf '%s\n' "$venv"
