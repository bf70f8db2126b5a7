#!/usr/bin/env bash
# Runs the README's first command on empty machines: `make fresh-machine`. With --build it sets up and builds transfer-verbs alone, which is
# the package that needs anything of the system, on those two machines that between them take every way through scripts/setup.sh, both at the
# same time: each waits for downloads.
set -euo pipefail
here=$(dirname "${BASH_SOURCE[0]}")

command=(make demo) machines=(debian-12 debian-12-with-llvm debian-13 plain-user) at_a_time=1
case ${1:-} in
'') ;;
--build) command=(bash -c 'scripts/setup.sh && cargo build --locked --package transfer-verbs') machines=(debian-12-with-llvm plain-user) at_a_time=2 ;;
*) echo "usage: $0 [--build]" >&2; exit 2 ;;
esac

# Where the ends of the machines are collected, and the output of those that run beside others.
scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT

run() { # MACHINE
    local options=() ended=0 started=$SECONDS
    case $1 in
    debian-12) ;;
    # libclang-cpp.so.14 and no libclang.so: another library with a similar name.
    debian-12-with-llvm) options=(--with libclang-cpp14) ;;
    # Its own libclang is too new.
    debian-13) options=(--suite trixie) ;;
    # May install nothing.
    plain-user) options=(--suite trixie --user --with gcc,libc6-dev,python3-venv) ;;
    esac
    printf '\n==> %s: %s\n' "$1" "${command[*]}"
    "$here/run.sh" "${options[@]}" -- "${command[@]}" || ended=$?
    echo "    $((SECONDS - started)) s"
    echo "$ended" >"$scratch/$1.ended"
}

for machine in "${machines[@]}"; do
    if [ "$at_a_time" = 1 ]; then run "$machine"; else run "$machine" >"$scratch/$machine.output" 2>&1 & fi
done
wait

passed=0 failed=0 skipped=0
for machine in "${machines[@]}"; do
    [ "$at_a_time" = 1 ] || cat "$scratch/$machine.output"
    ended=$(cat "$scratch/$machine.ended")
    case $ended in
    0) passed=$((passed + 1)) ;;
    77) skipped=$((skipped + 1)) ;;
    *) failed=$((failed + 1)) && echo "fresh-machine: $machine: ended with $ended" >&2 ;;
    esac
done
printf '\nfresh machines: %s passed, %s failed, %s not run\n' "$passed" "$failed" "$skipped"
[ "$failed" = 0 ]
