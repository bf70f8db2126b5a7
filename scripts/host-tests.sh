#!/usr/bin/env bash
# Runs the tests of this machine, those in Rust and those in Python beside each other: both wait for much of their time. Its last line says how many
# could not be run here, and for want of what.
# With KNOWN_NOT_RUN=FILE it fails where these are others than the file says: a machine that runs less is found out.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

scratch=$(mktemp -d)
python=
trap '[ -z "$python" ] || kill -- "-$python" 2>/dev/null || true; rm -rf "$scratch"' EXIT
# Tests that find that they cannot be run write a line there.
export TRANSFER_NOT_RUN=$scratch/not-run
: >"$TRANSFER_NOT_RUN"

tests() { "${CARGO:-cargo}" test --workspace "$@" 2>&1 | tee -a "$scratch/log"; }

# What these print comes at the end. With job control, because the shell's other jobs in the background ignore SIGINT, and so would all programs there.
set -m
scripts/test-python.sh </dev/null >"$scratch/python" 2>&1 &
python=$!
set +m
# Both parts say what fails: the second one runs also where the first has failed.
failed=''
tests --no-fail-fast || failed=1
TRANSFER_TEST_FABRIC=shm tests --test e2e -- "$@" || failed=1

wait "$python" || failed=1
python=
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
