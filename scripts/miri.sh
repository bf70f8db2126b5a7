#!/usr/bin/env bash
# Runs tests under miri: those of transfer-core, and those parts of transfer-memory that need no system call which miri does not know. It
# knows no memfd and no shared mapping, so the rings are for transfer-loom, and segments for their own tests.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
if ! cargo +nightly miri --version >/dev/null 2>&1; then
    printf 'miri is not run: it is not installed. With rustup: rustup toolchain install nightly --component miri,rust-src\n' >&2
    exit 0
fi
# Property tests read and write their failures; a few cases of each are enough here, where each takes a thousand times as long.
export MIRIFLAGS='-Zmiri-disable-isolation' PROPTEST_CASES=2 TRANSFER_SCHEDULES=1 TRANSFER_FUZZ_ROUNDS=20
# Those of the allocator that count, rather than look, take hours here.
long=(--skip a_million_small --skip nine_tenths --skip random_operations)
cargo +nightly miri test --package transfer-core --lib -- "${long[@]}" wire:: protocol:: memory:: plan:: tensor:: alloc:: "$@"
cargo +nightly miri test --package transfer-memory --lib -- arena::block session::message "$@"
