#!/usr/bin/env bash
# Builds the wheel of the Python package into target/wheels, installs it in an empty environment, and tries it there.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
wheels=$(realpath -m "${CARGO_TARGET_DIR:-target}")/wheels
venv=$(scripts/python-venv.sh)

rm -rf "$wheels"
"$venv/bin/maturin" build --quiet --release --locked --manifest-path transfer-python/Cargo.toml --out "$wheels"
wheel=$(echo "$wheels"/*.whl)

trial=$(mktemp -d)
trap 'rm -rf "$trial"' EXIT
python3 -m venv "$trial/venv"
"$trial/venv/bin/pip" install --quiet --disable-pip-version-check --no-index "$wheel" </dev/null
cd "$trial"
PATH=$trial/venv/bin:$PATH
transferd --version
transferctl --version
python - <<'END'
import transferd as td

# Without numpy, or anything else.
with td.embedded(arena="1MiB") as c:
    c.push("k", b"hello")
    assert bytes(c.fetch("k")) == b"hello" and c.fetch("k").report.copied == 0
END
printf 'wheel: %s (%s bytes)\n' "$wheel" "$(stat -c %s "$wheel")"
