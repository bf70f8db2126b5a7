#!/usr/bin/env bash
# Puts the Python package together out of its sources and the module that cargo has built, in the folder of this name below the target folder.
# Prints where. scripts/python-package.sh package
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
target=$(realpath -m "${CARGO_TARGET_DIR:-target}")
package=$target/python/$1

rm -rf "$package"
mkdir -p "$package"
cp -r transfer-python/python/transferd "$package/transferd"
rm -f "$package"/transferd/*.so
cp "$target/debug/libtransferd_native.so" "$package/transferd/_native.abi3.so"
printf '%s\n' "$package"
