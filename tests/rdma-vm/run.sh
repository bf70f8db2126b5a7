#!/usr/bin/env bash
# Runs a command of this machine in a guest that has a real RDMA device. README.md says what that is.
usage='usage: run.sh [option...] [--] command...
  --smp N         processors of the guest (1); 2 where somebody polls
  --mem MIB       its memory, temporary files included (1024)
  --devices N     rxe0 to rxeN-1, each with a network and a GID of its own (1)
  --timeout S     end the guest after so many seconds, with exit code 124 (600)
  --rw DIR        a folder that the guest really writes; all else that it writes is lost. Repeatable
  --nic A:B:IP    a network card joined to the guest whose sockets are the other way round, as pair.sh does it. Repeatable
  --cpu MODEL     another processor
  -v              the console of the guest on stderr
exit code: of the command; 124 time-out, 125 the guest failed or its kernel panicked, 2 wrong use or no setup.sh yet'
set -uo pipefail

here=$(dirname "$(readlink -f "${BASH_SOURCE[0]}")")
build=${RDMA_VM_BUILD:-$here/build}
die() {
    printf 'run.sh: %s\n' "$@" >&2
    exit 2
}
number() {
    [[ ${2:-} =~ ^[1-9][0-9]*$ ]] || die "$1 wants a number above 0, not \"${2:-}\""
}

smp=1 mem=1024 devices=1 limit=600 verbose=0
# Without AVX, which the emulator does slowly.
cpu=qemu64,+ssse3,+sse4.1,+sse4.2,+popcnt,+rdrand,+rdtscp
shared=() nics=()
while [ $# -gt 0 ]; do
    case $1 in
    --smp | --mem | --devices | --timeout) number "$1" "${2:-}" ;;
    --rw | --cpu | --nic) [ $# -ge 2 ] || die "$1 wants a value" ;;
    esac
    case $1 in
    --smp) smp=$2 ;;
    --mem) mem=$2 ;;
    --devices) devices=$2 ;;
    --timeout) limit=$2 ;;
    --cpu) cpu=$2 ;;
    --nic) nics+=("$2") ;;
    --rw)
        [ -d "$2" ] || die "--rw wants a folder, and $2 is none"
        shared+=("$(readlink -f "$2")")
        ;;
    -v)
        verbose=1
        shift
        continue
        ;;
    --)
        shift
        break
        ;;
    -*) die "unknown option $1" "$usage" ;;
    *) break ;;
    esac
    shift 2
done
[ $# -gt 0 ] || die "what shall run in the guest?" "$usage"
[ -e "$build/kernel/initramfs.cpio" ] || die "there is no guest in $build yet: run $here/setup.sh first"

# What passes between the guest and this machine.
work=$(mktemp -d "${TMPDIR:-/tmp}/rdma-vm.XXXXXX")
control=$work/control
mkdir "$control"
machine='' readers=()
clean_up() {
    [ -z "$machine" ] || { kill -TERM "$machine" && wait "$machine"; } 2>/dev/null
    [ ${#readers[@]} = 0 ] || kill "${readers[@]}" 2>/dev/null
    rm -rf "$work"
}
trap clean_up EXIT
trap 'exit 130' INT
trap 'exit 143' TERM

cp "$here/stage2" "$control/stage2"
{ printf '%q ' "$@" && echo; } >"$control/cmd"
# The caller's environment, but for what belongs to its shell and to its machine.
export -p | grep -vE '^declare -[a-zA-Z]*x[a-zA-Z]* (PWD|OLDPWD|SHLVL|HOSTNAME|_|TMPDIR)(=|$)' |
    sed 's/^declare -[a-zA-Z]* /export /' >"$control/env"
{
    printf 'VM_CWD=%q\nVM_DEVICES=%q\n' "$PWD" "$devices"
    printf 'VM_RW=()\n'
    [ ${#shared[@]} = 0 ] || printf 'VM_RW+=(%q)\n' "${shared[@]}"
} >"$control/conf"

qemu=$build/qemu/usr
virtfs() { # TAG FOLDER OPTIONS
    arguments+=(-virtfs "local,mount_tag=$1,path=$2,security_model=none${3:-}")
}
arguments=(
    -L "$qemu/share/qemu" -L "$qemu/share/seabios" -L "$qemu/lib/ipxe/qemu"
    -M 'q35,vmport=off,smm=off,usb=off,hpet=off' -accel tcg,thread=multi -cpu "$cpu" -smp "$smp" -m "$mem"
    -nodefaults -no-user-config -no-reboot -display none
    -kernel "$build/kernel/vmlinux" -initrd "$build/kernel/initramfs.cpio"
    -device virtio-rng-pci -device virtio-serial-pci
    -chardev "file,id=o,path=$work/out,append=on" -device virtserialport,chardev=o,nr=1,name=out
    -chardev "file,id=e,path=$work/err,append=on" -device virtserialport,chardev=e,nr=2,name=err
)
virtfs ctl "$control"
virtfs tools "$build/tools" ,readonly=on
virtfs mods "$(cat "$build/kernel/moddir")" ,readonly=on
virtfs hostroot / ,readonly=on,multidevs=remap
for i in "${!shared[@]}"; do
    virtfs "rw$i" "${shared[i]}"
done
for i in "${!nics[@]}"; do
    IFS=: read -r own peer ip <<<"${nics[i]}"
    mac=$(printf '52:54:00:77:%02x:%02x' "$i" "${ip##*.}")
    arguments+=(-netdev "dgram,id=n$i,local.type=unix,local.path=$own,remote.type=unix,remote.path=$peer")
    arguments+=(-device "virtio-net-pci,netdev=n$i,mac=$mac,host_mtu=9000,romfile=")
    printf 'VM_NICS[%s]=%q\nVM_IPS[%s]=%q\nVM_HOST=vm%s\n' "$i" "$mac" "$i" "$ip" "${ip##*.}" >>"$control/conf"
done

append='console=ttyS0 panic=-1 nokaslr mitigations=off tsc=reliable no_timer_check audit=0 random.trust_cpu=on'
if [ $verbose = 1 ]; then
    serial=file:/dev/stderr append="$append ignore_loglevel"
else
    serial=file:$work/console append="$append quiet loglevel=5"
fi

mkfifo "$work/out" "$work/err"
# Starts the machine; it is $machine.
start() {
    cat "$work/out" &
    readers=($!)
    cat "$work/err" >&2 &
    readers+=($!)
    LD_LIBRARY_PATH=$qemu/lib/x86_64-linux-gnu timeout -k 5 "$limit" "$qemu/bin/qemu-system-x86_64" "${arguments[@]}" \
        -serial "$serial" -append "$append" </dev/null 2>"$work/qemu.err" &
    machine=$!
}
# Waits until the guest has booted. Fails if it runs and has not after $boot_limit seconds.
boots() {
    local waited=0
    while [ ! -e "$control/booted" ] && kill -0 "$machine" 2>/dev/null; do
        [ "$waited" -lt "$boot_limit" ] || return 1
        sleep 1
        waited=$((waited + 1))
    done
}
# It takes 5 s, 30 on a busy machine. Seldom the guest's kernel hangs there, while its processor is busy. Another start succeeds.
boot_limit=120
start
for again in 2 3; do
    boots && break
    printf 'run.sh: the guest has not booted after %s s: start %s of 3\n' "$boot_limit" "$again" >&2
    kill -TERM "$machine"
    wait "$machine" "${readers[@]}" 2>/dev/null
    start
done
wait "$machine"
ended=$?
machine=''
if [ -s "$control/rc" ]; then
    # All that the command has written comes before its exit code.
    wait "${readers[@]}" 2>/dev/null
    readers=()
    exit "$(cat "$control/rc")"
fi

case $ended in
124 | 137) printf 'run.sh: the guest did not end within %s s (--timeout)\n' "$limit" >&2 ;;
*) printf 'run.sh: no exit code from the guest; qemu ended with %s\n' "$ended" >&2 ;;
esac
lines=25
if grep -q 'Kernel panic' "$work/console" 2>/dev/null; then
    printf 'run.sh: the kernel of the guest PANICKED; with rxe, suspect a window that was invalidated twice\n' >&2
    lines=60
fi
printf 'run.sh: the last lines of its console:\n' >&2
tail -n $lines "$work/console" >&2 2>/dev/null
cat "$work/qemu.err" >&2
[ $ended = 124 ] || [ $ended = 137 ] && exit 124
exit 125
