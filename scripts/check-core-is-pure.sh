#!/usr/bin/env bash
# Proves that transfer-core is pure: no runtime, no system calls and no threads in what it depends on, no unsafe code, no threads and no
# clock in its source.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
bad=0
complain() {
    printf 'transfer-core is not pure: %s\n' "$*" >&2
    bad=1
}

# On every platform, without what only runs in the compiler.
tree=$(cargo tree --package transfer-core --edges normal,no-proc-macro --target all --prefix none --format '{p}')
crates=$(awk '{ print $1 "@" substr($2, 2) }' <<<"$tree" | sort -u)
for crate in $crates; do
    case ${crate%@*} in
    tokio | tokio-* | futures | futures-* | async-* | mio | libc | rustix | nix | windows-* | getrandom | socket2 | memmap2 | \
        crossbeam-* | parking_lot | parking_lot_core | rayon | num_cpus | tonic | hyper)
        complain "it depends on $crate:"
        cargo tree --package transfer-core --edges normal,no-proc-macro --target all --invert "$crate" >&2 || true
        ;;
    esac
done

grep -q '^#!\[forbid(unsafe_code)\]$' transfer-core/src/lib.rs || complain 'src/lib.rs lacks #![forbid(unsafe_code)]'

# Comments may name what code may not.
words='std::thread|thread::spawn|Instant::now|SystemTime|std::time::Instant|std::net|std::fs|std::process'
# Of the tests one may write a document.
if found=$(grep -rnE --include='*.rs' --exclude-dir=tests "$words" transfer-core/src | grep -vE '^[^:]+:[0-9]+: *//'); then
    complain "its source has"$'\n'"$found"
fi

[ "$bad" = 0 ] && printf 'transfer-core is pure: %s crates below it, none of them a runtime or a way to the system\n' \
    "$(grep -cv '^transfer-core@' <<<"$crates")"
exit "$bad"
