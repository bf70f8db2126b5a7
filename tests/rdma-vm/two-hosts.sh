#!/usr/bin/env bash
# Two hosts on one cable, each with a sidecar that has to use its RDMA device. Tensors are fetched and pushed both ways; what arrives is
# what was sent, no CPU has copied it, and nothing is left at the end.
#   two-hosts.sh PROGRAMS [SECONDS] [FABRIC]    the folder of transferd and transferctl, how long the guests may run, what has to carry
set -euo pipefail
here=$(dirname "$(readlink -f "${BASH_SOURCE[0]}")")

# What each host does, in its guest. All contents follow from a name and a size, so each host knows what the other one sends.
host() { # PROGRAMS FABRIC MEETING OWN-NAME OTHER-NAME IP DIRECTORY
    set -euo pipefail
    local programs=$1 fabric=$2 meeting=$3 own=$4 other=$5 ip=$6 directory=$7 size key
    local sizes='0 1 4096 1000003 20000000' pushes=() copies=0
    cd "$(mktemp -d)"
    fail() {
        echo "FAILED: $*"
        tail -n 20 ./*.log
        exit 1
    }
    content() { # NAME SIZE
        { yes "$1 and $2 and some more words, of no length that divides anything" || true; } | head -c "$2"
    }
    until_true() {
        local until=$((SECONDS + 120))
        until "$@" >last.log 2>&1; do
            [ $SECONDS -lt $until ] || fail "never true: $*"
            kill -0 "$sidecar" || fail 'the sidecar has ended'
            sleep 0.2
        done
    }
    # For subshells: what is told to end is the program itself.
    ctl() { # COMMAND WORKER ARGUMENTS...
        local command=$1 worker=$2
        shift 2
        exec "$programs/transferctl" "$command" --socket ./worker.sock --name "$worker" --timeout 120s "$@"
    }

    local carry=(--verbs on) copied='copied=0 B'
    [ "$fabric" = verbs ] || carry=(--verbs off) copied='copied='
    "$programs/transferd" --node "$own" --socket ./worker.sock --admin-socket ./admin.sock --ready-file ready --listen "$ip:7471" \
        --insecure --directory "$directory" --pool-bytes 128MiB --require "$fabric" "${carry[@]}" >transferd.log 2>&1 &
    local sidecar=$!
    until_true test -s ready

    # A worker for each tensor of this host: they stay to the end, and are those that the other host pushes to.
    for size in $sizes; do
        content "from $own" "$size" >"from-$size"
        ctl push "$own-$size" "from-$own/$size" "from-$size" >"push-$size.log" 2>&1 &
        pushes+=($!)
    done
    for size in $sizes; do
        (ctl fetch "$own-reader" "from-$other/$size" "in-$size") >"fetch-$size.log" 2>&1 || fail "fetch of $size bytes"
        content "from $other" "$size" | cmp - "in-$size" || fail "$size bytes are not those of $other"
        grep -q "fabric=$fabric bytes=$size $copied" "fetch-$size.log" || fail "wrong report: $(cat "fetch-$size.log")"
        echo "fetched $(tail -n 1 "fetch-$size.log")"
    done
    for size in $sizes; do
        content "to $other" "$size" >"to-$size"
        ctl push "$own-pusher-$size" "to-$other/$size" "to-$size" --to "$other-$size" >"to-$size.log" 2>&1 &
        pushes+=($!)
    done
    for size in $sizes; do
        until_true grep -q "fabric=$fabric bytes=$size $copied" "to-$size.log"
        echo "pushed  $(grep fabric= "to-$size.log")"
        (ctl fetch "$own-reader" "to-$own/$size" "landed-$size") >"landed-$size.log" 2>&1 || fail "fetch of what $other pushed"
        content "to $own" "$size" | cmp - "landed-$size" || fail "$size bytes that landed are not those of $other"
        grep -q 'fabric=local' "landed-$size.log" || fail "it had not landed: $(cat "landed-$size.log")"
    done

    # Nobody ends before the other one has all.
    touch "$meeting/$own has all"
    until_true test -e "$meeting/$other has all"
    kill -TERM "${pushes[@]}"
    wait "${pushes[@]}" || true
    nothing_left() {
        "$programs/transferctl" status --admin ./admin.sock --json >status.json
        for key in tensors blobs leases operations slots sessions; do
            grep -q "\"$key\": 0" status.json || return 1
        done
    }
    until_true nothing_left
    # The host of the directory ends last: the other one takes its leave of it.
    [ "$own" = B ] || until_true test -e "$meeting/B has ended"
    kill -TERM "$sidecar"
    wait "$sidecar" || fail "transferd ends with $?"
    touch "$meeting/$own has ended"
    echo "$own is done, and nothing is left"
}

programs=$(readlink -f "${1:?"the folder of transferd and transferctl"}") limit=${2:-600} fabric=${3:-verbs}
# A folder of this machine that both guests see.
meeting=$(mktemp -d "${TMPDIR:-/tmp}/two-hosts.XXXXXX")
trap 'rm -rf "$meeting"' EXIT
on() {
    printf '%s; host %q %q %q %s' "$(declare -f host)" "$programs" "$fabric" "$meeting" "$1"
}
"$here/pair.sh" --smp 2 --mem 2048 --timeout "$limit" --rw "$meeting" -- \
    "$(on 'A B 10.78.0.1 embedded')" "$(on 'B A 10.78.0.2 http://10.78.0.1:7471')"
