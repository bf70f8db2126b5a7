#!/usr/bin/env bash
# Runs the tests of this machine: those in Rust, those over shared memory and those in Python beside each other, as all wait for much of their time. Its
# last line says how many could not be run here, and for want of what.
# With KNOWN_NOT_RUN=FILE it fails where these are others than the file says: a machine that runs less is found out.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

scratch=$(mktemp -d)
beside=()
at_the_end() {
    for group in "${beside[@]}"; do kill -- "-$group" 2>/dev/null || true; done
    rm -rf "$scratch"
}
trap at_the_end EXIT
# Tests that find that they cannot be run write a line there.
export TRANSFER_NOT_RUN=$scratch/not-run
: >"$TRANSFER_NOT_RUN"

tests() { "${CARGO:-cargo}" test --workspace "$@" 2>&1; }

# What these print comes at the end. With job control, because the shell's other jobs in the background ignore SIGINT, and so would all programs there.
set -m
scripts/test-python.sh </dev/null >"$scratch/python" 2>&1 &
python=$!
# They are few, and have as long as the others take.
TRANSFER_TEST_FABRIC=shm RUST_TEST_THREADS=2 tests --test e2e -- "$@" </dev/null >"$scratch/shm" &
shm=$!
beside=("$python" "$shm")
set +m
# All parts say what fails: each runs also where another has failed.
failed=''
tests --no-fail-fast | tee "$scratch/log" || failed=1
wait "$shm" || failed=1
tee -a "$scratch/log" <"$scratch/shm"
wait "$python" || failed=1
beside=()
cat "$scratch/python"

sum() { awk -v what="$1" '/^test result: / { for (i = 2; i <= NF; i++) if ($i == what || $i == what ";") n += $(i - 1) } END { print n + 0 }' "$scratch/log"; }
sort -u "$TRANSFER_NOT_RUN" | sed 's/^/not run: /'
here="here $(wc -l <"$TRANSFER_NOT_RUN"), for want of a device $(sum ignored)"
printf 'Tests: %s passed; not run: %s\n' "$(sum passed)" "$here"
[ -z "$failed" ] || exit 1
if [ -n "${KNOWN_NOT_RUN:-}" ]; then
    known=$(cat "$KNOWN_NOT_RUN")
    if [ "$here" != "$known" ]; then
        printf 'host-tests: not run are "%s", and %s says "%s": run them, or say there why there are more or fewer\n' \
            "$here" "$KNOWN_NOT_RUN" "$known" >&2
        exit 1
    fi
fi
