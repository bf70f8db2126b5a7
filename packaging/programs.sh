#!/usr/bin/env bash
# Builds the programs that the package and the image have, and copies them into FOLDER: programs.sh PROFILE FOLDER. PROFILE is one of Cargo.toml's, or
# pgo (scripts/pgo.sh).
set -euo pipefail
if [ $# != 2 ]; then
    printf 'usage: %s PROFILE FOLDER\n' "$0" >&2
    exit 2
fi
profile=$1 folder=$(realpath -m "$2")
cd "$(dirname "${BASH_SOURCE[0]}")/.."
target=$(realpath -m "${CARGO_TARGET_DIR:-target}")

case $profile in
pgo)
    scripts/pgo.sh
    built=$target/pgo/release
    ;;
dev)
    # As the tests do it: other packages would be built with other features, and all of it again.
    cargo build --locked --workspace --all-targets
    built=$target/debug
    ;;
*)
    cargo build --locked --profile "$profile" --package transfer-server --package transfer-cli --package transfer-bench --bins
    built=$target/$profile
    ;;
esac
mkdir -p "$folder"
cp "$built/transferd" "$built/transferctl" "$built/transfer-bench" "$folder/"
