#!/usr/bin/env bash
# Unsafe code may live in transfer-memory, transfer-fabric, transfer-verbs and transfer-cuda, and in those files of transfer-python that say so, for
# C structs of Python's, DLPack's and Arrow's, and for memory of GPUs. Every other library and program forbids it in its first file.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
bad=0
count=0
shopt -s nullglob
for root in {*,*/*}/src/{lib,main,bin/*}.rs; do
    case $root in
    transfer-memory/src/lib.rs | transfer-fabric/src/lib.rs | transfer-verbs/src/lib.rs | transfer-cuda/src/lib.rs | target/*) continue ;;
    transfer-python/src/lib.rs)
        grep -q '^#!\[deny(unsafe_code)\]$' "$root" || { printf '%s lacks #![deny(unsafe_code)]\n' "$root" >&2; bad=1; }
        continue
        ;;
    esac
    count=$((count + 1))
    if ! grep -q '^#!\[forbid(unsafe_code)\]$' "$root"; then
        printf '%s lacks #![forbid(unsafe_code)]\n' "$root" >&2
        bad=1
    fi
done
[ "$bad" = 0 ] && printf 'unsafe code is forbidden in %s libraries and programs\n' "$count"
exit "$bad"
