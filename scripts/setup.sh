#!/usr/bin/env bash
# Prepares this checkout for cargo: looks for what a build needs, gets what is missing, and writes .cargo/config.toml, so that a plain
# `cargo build` finds it as well. It says each thing that it fetches or installs.
#
# Needed: Linux, Rust, a C compiler, Python with venv, the headers of verbs, and a libclang of version 15 or older. As root it installs
# packages by apt-get or dnf, but never Rust: how that is installed is yours to choose. For another user it fetches the headers' packages and
# unpacks them below .cargo/verbs. docs/adr/0002-where-the-declarations-of-verbs-come-from.md says why it is done this way.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
readonly config=.cargo/config.toml fetched=.cargo/verbs mark='# Written by scripts/setup.sh.'
readonly wheel=libclang==14.0.6

say() { printf 'setup: %s\n' "$*"; }
fail() {
    printf 'setup: %s\n' "$@" >&2
    exit 1
}
has() { command -v "$1" >/dev/null; }
is_root() { [ "$(id -u)" = 0 ]; }

[ "$(uname -s)" = Linux ] || fail "this needs Linux (memfd seals, pidfd, epoll); this is $(uname -s)."
if [ -e "$config" ] && ! head -n 1 "$config" | grep -qxF "$mark"; then
    fail "$config is there and is not of this script, so it stays as it is. Move its settings to the one in CARGO_HOME and remove it."
fi

check_rust() {
    # The version that every crate asks for.
    local need have older hint tool
    need=$(sed -n 's/^rust-version = "\(.*\)"$/\1/p' Cargo.toml)
    hint="Install Rust $need or later with its cargo, for instance by rustup, and put it into PATH."
    for tool in cargo rustc; do
        has "$tool" || fail "$tool is missing. $hint"
    done
    have=$(rustc --version | awk '{ print $2 }')
    older=$(printf '%s\n%s\n' "$need" "${have%%-*}" | sort -V | head -n 1)
    [ "$older" = "$need" ] || fail "rustc is $have, $need or later is needed. $hint"
}

has_venv() { python3 -c 'import venv, ensurepip' 2>/dev/null; }
has_headers() { has pkg-config && pkg-config --exists 'libibverbs >= 1.8.28' 'librdmacm >= 1.2.28'; }

# Prints the packages that are missing, by the names that the package manager $1 has for them.
missing_packages() {
    case $1 in
    apt-get)
        has cc || echo gcc libc6-dev
        has_venv || echo python3-venv
        # A user does without: unpack_headers.
        ! is_root || has_headers || echo pkg-config libibverbs-dev librdmacm-dev
        ;;
    dnf)
        has cc || echo gcc glibc-devel
        has_venv || echo python3
        ! is_root || has_headers || echo pkgconf-pkg-config rdma-core-devel
        ;;
    *)
        has cc || echo 'a C compiler (cc)'
        has_venv || echo 'Python 3 with venv'
        has_headers || echo 'pkg-config with the headers of libibverbs and librdmacm'
        ;;
    esac
}

# All that is missing is said, or installed, at once and before anything is built.
install_packages() {
    local manager='' missing
    for manager in apt-get dnf ''; do
        [ -z "$manager" ] || ! has "$manager" || break
    done
    missing=$(missing_packages "$manager" | paste -sd ' ')
    [ -n "$missing" ] || return 0
    [ -n "$manager" ] || fail "missing: $missing."
    is_root || fail "missing: $missing. As root: $manager install $missing"
    say "missing: $missing. Installing with $manager"
    if [ "$manager" = apt-get ]; then
        export DEBIAN_FRONTEND=noninteractive
        apt-get update -qq </dev/null
        # shellcheck disable=SC2086
        apt-get install -y -qq --no-install-recommends $missing </dev/null
    else
        # shellcheck disable=SC2086
        dnf install -y -q $missing </dev/null
    fi
}

# Fetches the packages of the headers into the folder $1. No root needed: apt-get's lists and cache lie in that folder, too.
fetch_packages() {
    if has apt-get; then
        local options=(-qq -o "Dir::State=$1/state" -o "Dir::State::status=/var/lib/dpkg/status" -o "Dir::Cache=$1/cache")
        mkdir -p "$1/state/lists/partial" "$1/cache/archives/partial"
        apt-get "${options[@]}" update && (cd "$1" && apt-get "${options[@]}" download libibverbs-dev librdmacm-dev)
    else
        dnf -q download --destdir "$1" rdma-core-devel
    fi </dev/null
}

# Unpacks the headers of verbs below .cargo/verbs, with a file for pkg-config beside them.
#
# It names folders of headers and no library: transfer-verbs has each function of the libraries itself and opens them when a program starts.
unpack_headers() {
    local folder package name version
    folder=$(mktemp -d)
    # shellcheck disable=SC2064
    trap "rm -rf '$folder'" EXIT
    say "the headers of verbs are missing: unpacking those of the system's packages into $fetched"
    fetch_packages "$folder" || fail 'the packages with the headers of verbs cannot be fetched. Debian, Ubuntu: libibverbs-dev, librdmacm-dev. Fedora: rdma-core-devel.'
    for package in "$folder"/*.deb "$folder"/*.rpm; do
        case $package in
        */\**) ;;
        *.deb) dpkg-deb --extract "$package" "$folder/unpacked" ;;
        *.rpm) mkdir -p "$folder/unpacked" && rpm2archive - <"$package" | tar -xz -C "$folder/unpacked" ;;
        esac
    done
    rm -rf "$fetched/include" "$fetched/pkgconfig"
    mkdir -p "$fetched/pkgconfig"
    mv "$folder/unpacked/usr/include" "$fetched/include"
    for name in libibverbs librdmacm; do
        version=$(sed -n 's/^Version: *//p' "$(find "$folder/unpacked" -name "$name.pc" | head -n 1)")
        printf 'Name: %s\nDescription: Its headers alone\nVersion: %s\nCflags: -I%s\n' \
            "$name" "$version" "$PWD/$fetched/include" >"$fetched/pkgconfig/$name.pc"
    done
    # What rdma-sys asks pkg-config for, where that is missing.
    cat >"$fetched/pkg-config" <<'END'
#!/bin/sh
# Stands in for pkg-config, of which rdma-sys asks the version and the flags of two libraries.
for word; do
    case $word in
    --modversion) field=Version ;;
    --cflags) field=Cflags ;;
    lib*) name=${word%% *} ;;
    esac
done
sed -n "s/^$field: //p" "$(dirname "$0")/pkgconfig/$name.pc"
END
    chmod +x "$fetched/pkg-config"
    rm -rf "$folder"
    trap - EXIT
}

# Whether rdma-sys understands the libclang at $1: the library itself says its version. libclang-cpp is another library.
understands() {
    python3 - "$1" 2>/dev/null <<'END'
import ctypes, re, sys

class String(ctypes.Structure):
    _fields_ = [('data', ctypes.c_void_p), ('flags', ctypes.c_uint)]

library = ctypes.CDLL(sys.argv[1])
library.clang_getClangVersion.restype = String
library.clang_getCString.argtypes, library.clang_getCString.restype = [String], ctypes.c_char_p
version = library.clang_getCString(library.clang_getClangVersion()).decode()
sys.exit(not 6 <= int(re.search(r'version (\d+)', version)[1]) <= 15)
END
}

# Prints the first libclang of this system that rdma-sys understands.
system_libclang() {
    local library
    for library in /usr/lib/llvm-{15,14,13,12,11}/lib/libclang{.so,.so.1,-*.so*} /usr/lib/*-linux-gnu/libclang{.so,-*.so}* /usr/lib64/{,*/,*/*/}libclang.so*; do
        case $library in *\** | *-cpp*) continue ;; esac
        # clang-sys opens what has one of these names.
        if [ -f "$library" ] && understands "$library"; then
            realpath -s "$library"
            return
        fi
    done
}

# Sets libclang, the one that rdma-sys is built with: LIBCLANG_PATH, or this system's, or that of the Python index.
choose_libclang() {
    local file
    if [ -n "${LIBCLANG_PATH:-}" ]; then
        for file in "$LIBCLANG_PATH" "$LIBCLANG_PATH"/libclang{.so,-*.so,.so.*,-*.so.*}; do
            [ -f "$file" ] && understands "$file" && libclang=$file && return
        done
        fail "LIBCLANG_PATH is $LIBCLANG_PATH, and no libclang of version 15 or older is there. Without LIBCLANG_PATH one is fetched."
    fi
    libclang=$(system_libclang)
    [ -z "$libclang" ] || return 0
    libclang=$PWD/$fetched/libclang/clang/native/libclang.so
    [ ! -f "$libclang" ] || ! understands "$libclang" || return 0
    say "libclang of version 15 or older is missing: taking $wheel of the Python index into $fetched"
    local venv
    venv=$(mktemp -d)
    # shellcheck disable=SC2064
    trap "rm -rf '$venv'" EXIT
    rm -rf "$fetched/libclang"
    python3 -m venv "$venv"
    "$venv/bin/pip" install --quiet --disable-pip-version-check --no-deps --target "$fetched/libclang" "$wheel" </dev/null
    rm -rf "$venv"
    trap - EXIT
    understands "$libclang" || fail "$libclang, of the wheel $wheel, cannot be opened on this $(uname -m)."
}

# Writes what cargo tells the builds of rdma-sys and pyo3. What the environment says goes first, except for PKG_CONFIG_PATH, which is added to.
write_config() {
    local text
    text=$(
        echo "$mark"
        echo '# How rdma-sys finds libclang, the headers that belong to a compiler, and those of verbs.'
        echo '[env]'
        echo "LIBCLANG_PATH = '$libclang'"
        echo "BINDGEN_EXTRA_CLANG_ARGS = '-I$(cc -print-file-name=include)'"
        if ! has_headers; then
            echo "PKG_CONFIG_PATH = { value = '$PWD/$fetched/pkgconfig${PKG_CONFIG_PATH:+:$PKG_CONFIG_PATH}', force = true }"
            has pkg-config || echo "PKG_CONFIG = '$PWD/$fetched/pkg-config'"
        fi
        echo '# pyo3 would look for python in PATH, and be built again wherever PATH is another one: below pyenv, below cargo.'
        echo "PYO3_PYTHON = 'python3'"
    )
    [ "$text" = "$(cat "$config" 2>/dev/null)" ] || { mkdir -p .cargo && printf '%s\n' "$text" >"$config"; }
}

check_rust
install_packages
has_headers || [ -f "$fetched/pkgconfig/librdmacm.pc" ] || unpack_headers
choose_libclang
write_config
say "ready: rustc $(rustc --version | awk '{ print $2 }'), $(cc -dumpversion 2>/dev/null | sed 's/^/cc /'), headers of verbs, $libclang; cargo fetches the crates that Cargo.lock names"
