#!/usr/bin/env bash
# Builds a wheel of the Python package into target/wheels, installs it in an empty environment, and tries it there. Without an argument it is the
# wheel for every Python from 3.11 on. Free-threaded Python has an ABI of its own, so it needs another wheel: scripts/wheel.sh python3.14t. Where
# that interpreter is missing the wheel is built all the same, and the last line says that it was not tried.
# It is built with zig's linker against glibc 2.28, so it fits every x86-64 or arm64 Linux of 2019 and later: Debian 10, RHEL 8, Ubuntu 20.04.
# What a debugger wants beside the library is no part of the wheel: it goes into a file beside it.
# With --pgo as its first argument, it is built with the profile of scripts/pgo.sh: the wheel and the programs are made of the same crates. It does
# not look whether that profile is of these sources; `make pgo-wheel` makes a new one. That wheel is linked as the programs are, because zig is told a
# target, and cargo names functions otherwise then: it fits systems with this machine's glibc, or a later one.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
target=$(realpath -m "${CARGO_TARGET_DIR:-target}")
wheels=$target/wheels
build=(env) how= link=(--zig --compatibility manylinux_2_28)
if [ "${1:-}" = --pgo ]; then
    shift
    profiles=("$target"/pgo/*.profile)
    if [ ! -e "${profiles[0]}" ]; then
        printf 'wheel: there is no profile in %s: run scripts/pgo.sh first\n' "$target/pgo" >&2
        exit 1
    fi
    build=(env "CARGO_TARGET_DIR=$target/pgo" "CARGO_ENCODED_RUSTFLAGS=-Cprofile-use=${profiles[0]}")
    how=', with a profile' link=()
fi
if [ $# -gt 1 ]; then
    printf 'wheel: "%s" is one word too many: say [--pgo] [PYTHON]\n' "$2" >&2
    exit 2
fi
python=${1:-}
scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT

if [ -z "$python" ]; then
    kind='*-abi3-*' trial=python3 interpreter=()
elif [[ $(basename "$python") =~ ^python3\.([0-9]+)t$ ]] && [ "${BASH_REMATCH[1]}" -ge 14 ]; then
    minor=${BASH_REMATCH[1]}
    kind="*-cp3${minor}t-*" trial=$python interpreter=(--interpreter "$python")
    if ! command -v "$python" >/dev/null; then
        trial=
        # What PyO3 would ask the interpreter (https://pyo3.rs, "Building and distribution", config file).
        cat >"$scratch/pyo3" <<PYO3
implementation=CPython
version=3.$minor
shared=true
target_abi=CPython-free_threaded-3.$minor
pointer_width=$(getconf LONG_BIT)
build_flags=Py_GIL_DISABLED
suppress_build_script_link_lines=false
PYO3
        export PYO3_CONFIG_FILE=$scratch/pyo3
    fi
else
    printf 'wheel: "%s" is no free-threaded Python of 3.14 or later: say python3.14t, or nothing for the wheel that all others take\n' "$python" >&2
    exit 2
fi

venv=$(scripts/python-venv.sh wheel)
# maturin looks there for zig.
PATH=$venv/bin:$PATH
# maturin shows bindgen zig's headers alone, by a path that its build does not find. Those that scripts/setup.sh has found come before them.
headers=$(sed -n "s/^BINDGEN_EXTRA_CLANG_ARGS = '\(.*\)'$/\1/p" .cargo/config.toml)
multiarch=$(cc -print-multiarch 2>/dev/null || true)
export BINDGEN_EXTRA_CLANG_ARGS="$headers${multiarch:+ -I/usr/include/$multiarch} -I/usr/include"
mkdir -p "$wheels"
find "$wheels" -name "transferd-$kind.whl" -delete -o -name "transferd-$kind.debug" -delete
"${build[@]}" maturin build --quiet --release --locked --manifest-path transfer-python/Cargo.toml --out "$scratch/built" "${link[@]}" "${interpreter[@]}"
wheel=$(find "$scratch/built" -name "transferd-$kind.whl")
symbols=$wheels/$(basename "$wheel" .whl).debug
wheel unpack --dest "$scratch/unpacked" "$wheel" >/dev/null
library=$(find "$scratch/unpacked" -name '_native*.so')
objcopy --only-keep-debug "$library" "$symbols"
objcopy --strip-unneeded --add-gnu-debuglink="$symbols" "$library"
wheel pack --dest-dir "$wheels" "$scratch/unpacked"/* >/dev/null
wheel=$(find "$wheels" -name "transferd-$kind.whl")

tried=', not tried: this machine has no '$python
if [ -n "$trial" ]; then
    tried=
    # The system's interpreter, not that of the environment that builds.
    PATH=${PATH#"$venv/bin:"}
    "$trial" -m venv "$scratch/venv"
    "$scratch/venv/bin/pip" install --quiet --disable-pip-version-check --no-index "$wheel" </dev/null
    cd "$scratch"
    PATH=$scratch/venv/bin:$PATH
    transferd --version
    transferctl --version
    python - <<'END_OF_TRIAL'
import sys, sysconfig
import transferd as td

# Without numpy, or anything else.
with td.embedded(arena="1MiB") as c:
    c.push("k", b"hello")
    assert bytes(c.fetch("k")) == b"hello" and c.fetch("k").report.copied == 0
if sysconfig.get_config_var("Py_GIL_DISABLED"):
    assert not sys._is_gil_enabled(), "the module turned the lock on"
END_OF_TRIAL
fi
# The tag says it: manylinux_2_28_x86_64 takes glibc 2.28 or later.
glibc=$(basename "$wheel" | sed -n 's/.*manylinux_\([0-9]*\)_\([0-9]*\)_.*/\1.\2/p')
printf 'wheel: %s (%s bytes, installed %s)%s%s\n' "$wheel" "$(stat -c %s "$wheel")" "$(stat -c %s "$library")" "$how" "$tried"
printf 'wheel: it fits Linux on %s with glibc %s or later, and Python %s\n' "$(uname -m)" "${glibc:-of this machine}" "${python:-3.11 and later}"
printf 'wheel: the debug symbols of its library are in %s\n' "$symbols"
