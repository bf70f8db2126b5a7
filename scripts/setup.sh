#!/usr/bin/env bash
# Looks for what the build needs: Linux, Rust, a linker, and the headers of verbs. Where it runs as root on a system with apt-get it
# installs all but Rust, which it never does, since how that is done is yours to choose.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

say() { printf 'setup: %s\n' "$*"; }
fail() {
    printf 'setup: %s\n' "$@" >&2
    exit 1
}

[ "$(uname -s)" = Linux ] || fail "this needs Linux (memfd seals, pidfd, epoll); this is $(uname -s)."

# The version that every crate asks for.
need=$(sed -n 's/^rust-version = "\(.*\)"$/\1/p' Cargo.toml)
hint="Install Rust $need or later with its cargo, for instance by rustup, and see that it is in PATH."
for tool in cargo rustc; do
    command -v "$tool" >/dev/null || fail "$tool is missing." "$hint"
done
have=$(rustc --version | awk '{ print $2 }')
older=$(printf '%s\n%s\n' "$need" "${have%%-*}" | sort -V | head -n 1)
[ "$older" = "$need" ] || fail "rustc is $have, $need or later is needed." "$hint"

# install WHY PACKAGE...
install() {
    local why=$1
    shift
    if [ "$(id -u)" != 0 ] || ! command -v apt-get >/dev/null; then
        fail "$why Debian, Ubuntu: apt-get install $*"
    fi
    say "$why Installing $* with apt-get"
    export DEBIAN_FRONTEND=noninteractive
    apt-get update -qq </dev/null
    apt-get install -y -qq --no-install-recommends "$@" </dev/null
}

# Rust links with the system's C compiler; no C code of ours is compiled.
command -v cc >/dev/null || install 'cc is missing: Rust links with it.' gcc libc6-dev

# rdma-sys makes its declarations from the headers of libibverbs and librdmacm when it is built. The programs then start without both
# libraries.
if ! { command -v pkg-config && pkg-config --exists libibverbs librdmacm; } >/dev/null; then
    install 'The headers of verbs are missing: rdma-sys is built from them.' pkg-config libibverbs-dev librdmacm-dev
fi

# It reads them with a libclang of version 15 or older; later ones name things in a way that it does not understand.
found_libclang() {
    local folder
    for folder in ${LIBCLANG_PATH:-} /usr/lib/llvm-{15,14,13,12,11}/lib /usr/lib/*-linux-gnu /usr/lib64; do
        compgen -G "$folder/libclang*.so*" >/dev/null && return 0
    done
    return 1
}
if ! found_libclang; then
    install 'libclang is missing: rdma-sys reads the headers with one of version 15 or older (LIBCLANG_PATH names its folder).' \
        libclang-14-dev
fi
# A client in Python is one of the tests: tests/python/requirements.txt goes into an environment of its own, by pip.
python3 -c 'import venv, ensurepip' 2>/dev/null ||
    install 'Python cannot make an environment of its own: a test needs one.' python3-venv
say "rustc $have, cc, the headers of verbs and libclang are here; cargo fetches the crates that Cargo.lock names"
