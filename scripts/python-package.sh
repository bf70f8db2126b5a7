#!/usr/bin/env bash
# Puts the Python package together out of its sources and the module that cargo has built, in the folder of this name below the target folder.
# Prints where. Beside it lies what an installed package has: frameworks find plugs by its entry points. scripts/python-package.sh package
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
target=$(realpath -m "${CARGO_TARGET_DIR:-target}")
package=$target/python/$1

rm -rf "$package"
mkdir -p "$package"
cp -r transfer-python/python/transferd "$package/transferd"
rm -f "$package"/transferd/*.so
cp "$target/debug/libtransferd_native.so" "$package/transferd/_native.abi3.so"
python3 - "$package/transferd.dist-info" <<'PYTHON'
import pathlib, sys, tomllib

folder = pathlib.Path(sys.argv[1])
folder.mkdir()
version = tomllib.loads(pathlib.Path("Cargo.toml").read_text())["workspace"]["package"]["version"]
(folder / "METADATA").write_text(f"Metadata-Version: 2.1\nName: transferd\nVersion: {version}\n")
project = tomllib.loads(pathlib.Path("transfer-python/pyproject.toml").read_text())["project"]
with open(folder / "entry_points.txt", "w") as file:
    for group, points in project.get("entry-points", {}).items():
        print(f"[{group}]", *(f"{name} = {where}" for name, where in points.items()), sep="\n", file=file)
PYTHON
printf '%s\n' "$package"
