#!/usr/bin/env bash
# Two guests on one virtual cable. README.md says what they are.
usage='usage: pair.sh [option of run.sh...] -- "shell command for A" "shell command for B"
Host A is 10.78.0.1 and host B 10.78.0.2, each with its own rxe0; with --devices 2 also 10.78.1.1 and 10.78.1.2, with rxe1, on a second
cable. Both commands start when both hosts answer. Lines are prefixed with [A] or [B].
exit code: 0 where both commands end with 0; else that of B, or of A where that of B is 0'
set -uo pipefail

here=$(dirname "$(readlink -f "${BASH_SOURCE[0]}")")
options=() devices=1
while [ $# -gt 0 ] && [ "$1" != -- ]; do
    [ "$1" = --devices ] && devices=${2:-}
    options+=("$1")
    shift
done
shift || true
[ $# = 2 ] || {
    printf '%s\n' "$usage" >&2
    exit 2
}
[[ $devices =~ ^[1-9]$ ]] || {
    printf 'pair.sh: --devices wants a number from 1 to 9, not "%s"\n' "$devices" >&2
    exit 2
}

work=$(mktemp -d "${TMPDIR:-/tmp}/rdma-vm-pair.XXXXXX")
guests=() readers=()
clean_up() {
    [ ${#guests[@]} = 0 ] || { kill -TERM "${guests[@]}" && wait "${guests[@]}"; } 2>/dev/null
    rm -rf "$work"
}
trap clean_up EXIT
trap 'exit 130' INT
trap 'exit 143' TERM

# Waits until the other host refuses a connection: then it is up.
meet() {
    local until=$((SECONDS + 120))
    until (exec 3<>"/dev/tcp/$1/9") 2>&1 | grep -q refused; do
        [ $SECONDS -lt $until ] || { echo "the other host, $1, does not answer" >&2; exit 125; }
        sleep 0.3
    done
}

host() { # NAME OWN-NUMBER OTHER-NUMBER COMMAND
    local i nics=()
    mkfifo "$work/$1"
    sed -u "s/^/[$1] /" <"$work/$1" &
    readers+=($!)
    for ((i = 0; i < devices; i++)); do
        nics+=(--nic "$work/$2-$i:$work/$3-$i:10.78.$i.$2")
    done
    "$here/run.sh" ${options[@]+"${options[@]}"} "${nics[@]}" -- \
        bash -c "$(declare -f meet); meet 10.78.0.$3; $4" >"$work/$1" 2>&1 &
    guests+=($!)
}

host A 1 2 "$1"
host B 2 1 "$2"
wait "${guests[0]}"
a=$?
wait "${guests[1]}"
b=$?
guests=()
wait "${readers[@]}"
printf '[exit] A=%s B=%s\n' "$a" "$b"
[ "$b" = 0 ] && exit "$a"
exit "$b"
