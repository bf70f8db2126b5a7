#!/usr/bin/env bash
# Installs a package on an overlay over the root file system, runs transferd as its unit does, and removes the package: try.sh PACKAGE.
# A part of packaging/test.sh, which gives it namespaces of its own.
set -euo pipefail
package=$(realpath "$1")

say() { printf 'packaging: %s\n' "$*"; }
fail() {
    printf 'packaging: %s\n' "$@" >&2
    exit 1
}

room=$(mktemp -d)
mount -t tmpfs tmpfs "$room"
mkdir "$room/upper" "$room/work" "$room/root"
if ! mount -t overlay overlay -o "lowerdir=/,upperdir=$room/upper,workdir=$room/work" "$room/root"; then
    say 'this system mounts no overlay over its root: a container that has one itself, for instance' >&2
    exit 77
fi
cp "$package" "$room/root/transfer.deb"
for mounted in proc sys dev; do mount --rbind "/$mounted" "$room/root/$mounted"; done
mount -t proc proc "$room/root/proc"
mount -t tmpfs tmpfs "$room/root/run"
mount -t tmpfs tmpfs "$room/root/tmp"
ip link set lo up 2>/dev/null || true
inside() { chroot "$room/root" "$@"; }

say 'installing it'
inside dpkg --install --force-depends /transfer.deb
inside id transfer
unit=/usr/lib/systemd/system/transferd.service
inside systemd-analyze verify --man=no "$unit"
# From 0, hardened, to 10.
inside systemd-analyze security --offline=true --threshold=20 --no-pager "$unit" >"$room/security" ||
    { cat "$room/security"; fail 'systemd-analyze finds the unit too open'; }
inside test "$(inside readlink -f /etc/systemd/system/multi-user.target.wants/transferd.service)" = "$unit" ||
    fail 'the unit is not enabled'

say 'running it as the unit does: as its user, with no capability'
inside install -d -o transfer -g transfer -m 755 /run/transfer
as_transfer=(setpriv --reuid transfer --regid transfer --clear-groups --no-new-privs --bounding-set=-all --inh-caps=-all)
setting() { sed -n "s/^$1=//p" "$room/root$unit"; }
inside "${as_transfer[@]}" $(setting ExecStartPre)
# As much as there may be here; the unit lifts the limit.
ulimit -l "$(ulimit -H -l)"
# shellcheck disable=SC2046
inside strace -f -qq -c -o /tmp/calls "${as_transfer[@]}" $(setting ExecStart) >"$room/said" 2>"$room/log" &
running=$!
until grep -q '^transferd ready' "$room/said"; do
    kill -0 $running 2>/dev/null || { cat "$room/log"; fail 'transferd ended before it was ready'; }
    read -rt 0.1 <> <(:) || true
done
inside transferctl status --json >"$room/status"
printf 'what is moved' >"$room/root/tmp/file"
inside transferctl push key /tmp/file --hold 1s
inside transferctl doctor || fail 'doctor finds something wrong'
inside transfer-bench --version
daemon=$(inside pgrep -x transferd)
kill -HUP "$daemon"
kill -TERM "$daemon"
wait $running || { cat "$room/log"; fail 'transferd did not end well'; }

say 'its system calls against the filter of the unit'
allowed=$(inside systemd-analyze syscall-filter --no-pager | awk '/^@/ { group = $1 } /^    [@a-z]/ { print group, $1 }')
expand() {
    local member
    while read -r member; do
        case $member in @*) expand "$member" ;; *) echo "$member" ;; esac
    done < <(awk -v group="$1" '$1 == group { print $2 }' <<<"$allowed")
}
awk 'NR > 2 && $NF ~ /^[a-z0-9_]+$/ && $NF != "total" { print $NF }' "$room/root/tmp/calls" | sort -u >"$room/made"
expand @system-service | sort -u >"$room/may"
expand @privileged | sort -u >"$room/may-not"
# Those that become another user are setpriv's, before the daemon.
comm -23 "$room/made" <(comm -23 "$room/may" "$room/may-not") |
    grep -vxE 'execve|setresuid|setresgid|setuid|setgid|setgroups|capset|chroot' >"$room/refused" || true
[ ! -s "$room/refused" ] || fail "the unit's SystemCallFilter refuses: $(tr '\n' ' ' <"$room/refused")"
[ "$(wc -l <"$room/made")" -gt 20 ] || fail 'no system calls were seen'

say 'removing it'
inside dpkg --purge transfer
for left in /usr/bin/transferd /usr/bin/transferctl /usr/bin/transfer-bench /etc/transfer "$unit" /usr/share/doc/transfer; do
    ! inside test -e "$left" || fail "$left is left behind"
done
