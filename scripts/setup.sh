#!/usr/bin/env bash
# Looks for what the build needs: Linux, Rust, a linker. Where it runs as root on a system with apt-get it installs the linker; Rust it
# never installs, since how that is done is yours to choose.
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

# Rust links with the system's C compiler; no C code of ours is compiled.
if ! command -v cc >/dev/null; then
    if [ "$(id -u)" = 0 ] && command -v apt-get >/dev/null; then
        say "cc is missing; installing gcc and libc6-dev with apt-get"
        export DEBIAN_FRONTEND=noninteractive
        apt-get update -qq </dev/null
        apt-get install -y -qq --no-install-recommends gcc libc6-dev </dev/null
    else
        fail "cc is missing: Rust links with it. Install a C compiler (Debian, Ubuntu: apt-get install gcc libc6-dev)."
    fi
fi
say "rustc $have and cc are here; cargo fetches the crates that Cargo.lock names"
