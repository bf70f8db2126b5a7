#!/usr/bin/env bash
# Runs the README's first command on empty machines: `make fresh-machine`. With --build it sets up and builds transfer-verbs alone, which is
# the package that needs anything of the system, on those two machines that between them take every way through scripts/setup.sh.
set -euo pipefail
here=$(dirname "${BASH_SOURCE[0]}")

command=(make demo) machines=(debian-12 debian-12-with-llvm debian-13 plain-user)
case ${1:-} in
'') ;;
--build) command=(bash -c 'scripts/setup.sh && cargo build --locked --package transfer-verbs') machines=(debian-12-with-llvm plain-user) ;;
*) echo "usage: $0 [--build]" >&2; exit 2 ;;
esac

passed=0 failed=0 skipped=0
for machine in "${machines[@]}"; do
    case $machine in
    debian-12) options=() ;;
    # libclang-cpp.so.14 and no libclang.so: another library with a similar name.
    debian-12-with-llvm) options=(--with libclang-cpp14) ;;
    # Its own libclang is too new.
    debian-13) options=(--suite trixie) ;;
    # May install nothing.
    plain-user) options=(--suite trixie --user --with gcc,libc6-dev,python3-venv) ;;
    esac
    printf '\n==> %s: %s\n' "$machine" "${command[*]}"
    ended=0
    started=$SECONDS
    "$here/run.sh" "${options[@]}" -- "${command[@]}" || ended=$?
    case $ended in
    0) passed=$((passed + 1)) ;;
    77) skipped=$((skipped + 1)) ;;
    *) failed=$((failed + 1)) && echo "fresh-machine: $machine: ended with $ended" >&2 ;;
    esac
    echo "    $((SECONDS - started)) s"
done
printf '\nfresh machines: %s passed, %s failed, %s not run\n' "$passed" "$failed" "$skipped"
[ "$failed" = 0 ]
