#!/usr/bin/env bash
# Builds transferd, transferctl and transfer-bench into target/pgo/release, with a profile of what they do while they carry tensors: small
# messages take less time then (docs/performance.md). They are built twice, first with counters, which write the profile during some
# benchmarks. What the environment says in RUSTFLAGS does not count.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
sysroot=$(rustc --print sysroot) host=$(rustc -vV | sed -n 's/^host: //p')
profdata=$sysroot/lib/rustlib/$host/bin/llvm-profdata
if [ ! -x "$profdata" ]; then
    if ! command -v rustup >/dev/null; then
        printf 'pgo: %s is missing, and there is no rustup that would install it: install the llvm-tools of this Rust\n' "$profdata" >&2
        exit 1
    fi
    echo "pgo: installing llvm-tools with rustup"
    rustup --quiet component add llvm-tools
    if [ ! -x "$profdata" ]; then
        printf 'pgo: rustup has installed llvm-tools, but not %s: put the rustc of rustup first into PATH\n' "$profdata" >&2
        exit 1
    fi
fi

out=$(realpath -m "${CARGO_TARGET_DIR:-target}")/pgo
programs=(--package transfer-server --package transfer-cli --package transfer-bench --bins)
# What carries tensors: one host and two nodes, embedded and through sidecars, one at a time and many.
suites=(handover lookup shm tcp latency batch columns)

echo "pgo: building with counters"
CARGO_ENCODED_RUSTFLAGS=-Cprofile-generate=$out/counts CARGO_TARGET_DIR=$out/counted \
    cargo build --quiet --locked --release "${programs[@]}"
echo "pgo: running ${suites[*]}"
rm -rf "$out/counts"
# Each process has a file of its own. One that was killed while it wrote its file does not count.
LLVM_PROFILE_FILE=$out/counts/%p.profraw "$out/counted/release/transfer-bench" --runs 1 "${suites[@]}" >"$out/figures"
if ! "$profdata" merge --failure-mode=all --output "$out/merged" "$out/counts" 2>"$out/merge.log"; then
    cat "$out/merge.log" >&2
    exit 1
fi
# Cargo builds again what was built with another name, and does not look into the file.
profile=$out/$(sha256sum "$out/merged" | cut -c1-16).profile
if [ ! -e "$profile" ]; then
    rm -rf "$out"/*.profile "$out/release"
    mv "$out/merged" "$profile"
fi
rm -rf "$out/counts"
echo "pgo: building with the profile"
CARGO_ENCODED_RUSTFLAGS=-Cprofile-use=$profile CARGO_TARGET_DIR=$out cargo build --quiet --locked --release "${programs[@]}" 2>"$out/build.log" ||
    { cat "$out/build.log" >&2; exit 1; }
echo "pgo: $out/release has transferd, transferctl and transfer-bench"
