#!/usr/bin/env bash
# Checks what has changed since the last commit: its format, the lints and tests of the packages that it is in, and the end-to-end tests of
# the modules that it touches or that are named: `make check`, `make check E2E="retention takeover"`.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

changed=$(git diff --name-only HEAD && git ls-files --others --exclude-standard)
packages=() modules=("$@")
for manifest in */Cargo.toml benches/*/Cargo.toml examples/*/Cargo.toml; do
    folder=$(dirname "$manifest")
    # The end-to-end tests are asked for by module.
    if [ "$folder" != tests ] && grep -q "^$folder/" <<<"$changed"; then
        packages+=(--package "$(sed -n 's/^name = "\(.*\)"$/\1/p' "$manifest" | head -n 1)")
    fi
done
mapfile -t touched < <(sed -n 's#^tests/tests/\([a-z_]*\)\(\.rs\|/.*\)$#\1#p' <<<"$changed" | grep -vx main)
modules+=("${touched[@]}")

cargo fmt --all --check
if [ ${#packages[@]} -gt 0 ]; then
    # With the features of the workspace: what other builds have made is not built again.
    packages+=(--package transfer-features)
    cargo clippy --quiet "${packages[@]}" --all-targets -- -D warnings
    # A tenth of the simulated schedules. `make test-host` plays all.
    TRANSFER_SCHEDULES=${TRANSFER_SCHEDULES:-28} cargo test --quiet "${packages[@]}"
fi
if [ ${#modules[@]} -gt 0 ]; then
    cargo test --workspace --test e2e -- "${modules[@]/%/::}"
fi
[ $((${#packages[@]} + ${#modules[@]})) -gt 0 ] || echo 'check: no package and no end-to-end test has changed'
