#!/usr/bin/env bash
# Makes the guest that run.sh starts: an emulator, a kernel with a software RDMA device, and the RDMA tools, unpacked below build/ beside
# this file, or in the folder that is the first argument (then RDMA_VM_BUILD has to name it for run.sh). Takes about a minute and 700 MB,
# once; done again it does nothing.
#
# Nothing is installed: the packages come from the system's own sources and are only unpacked. To install them might replace packages of
# this machine, and a kernel for a guest must never become the kernel of the host.
set -euo pipefail

here=$(dirname "$(readlink -f "${BASH_SOURCE[0]}")")
build=$(readlink -m "${1:-$here/build}")
packages=$build/deb qemu=$build/qemu tools=$build/tools kernel=$build/kernel

say() { printf 'rdma-vm: %s\n' "$*"; }
fail() {
    printf 'rdma-vm: %s\n' "$@" >&2
    exit 1
}

emulator='qemu-system-x86 qemu-system-common qemu-system-data seabios ipxe-qemu libcapstone4 libfdt1 libslirp0 libpmem1
 libndctl6 libdaxctl1 libspice-server1 libusb-1.0-0 libusbredirparser1 libvdeplug2 libsndio7.0 libopus0 liborc-0.4-0
 libgstreamer-plugins-base1.0-0 libexecs0 libepoxy0 libcacard0 libbrlapi0.8 busybox-static cpio
 libibverbs1 librdmacm1 libnl-3-200 libnl-route-3-200'
utilities='libibverbs1 librdmacm1 libnl-3-200 libnl-route-3-200 libibumad3 libiperf0 libpci3 libsctp1 kmod libkmod2 rdma-core
 ibverbs-utils ibverbs-providers rdmacm-utils perftest iperf3 iproute2 libbpf1 libmnl0 libelf1 libcap2-bin strace'
# The one for clouds has neither rdma_rxe nor 9p.
image=linux-image-amd64
elsewhere='The packages are those of Debian 12 on x86-64. Elsewhere, work in a container of it (debian:12): the guest takes its files from there.'

[ "$(uname -sm)" = 'Linux x86_64' ] || fail "the guest needs Linux on x86-64; this is $(uname -sm)." "$elsewhere"
for tool in apt-get apt-cache dpkg-deb python3; do
    command -v "$tool" >/dev/null || fail "$tool is missing: the guest is made of Debian's packages." "$elsewhere"
done

# The names of a list that no source offers.
unknown() {
    local name
    for name in "$@"; do
        apt-cache show "$name" >/dev/null 2>&1 || printf '%s ' "$name"
    done
}

# Downloads what is not there yet.
download() {
    local name missing=()
    for name in "$@"; do
        compgen -G "$packages/${name}_*.deb" >/dev/null || missing+=("$name")
    done
    [ ${#missing[@]} = 0 ] && return
    (cd "$packages" && apt-get -qq -o APT::Sandbox::User=root download "${missing[@]}") ||
        fail "these packages cannot all be downloaded: ${missing[*]}" "Run apt-get update, and see that the sources can be reached." "$elsewhere"
}

# Unpacks a package with /bin, /sbin and /lib below /usr, as the system that it will lie under has them.
unpack() { # PACKAGE FOLDER
    local into folder
    into=$(mktemp -d -p "$build")
    dpkg-deb -x "$packages/$1"_*.deb "$into"
    for folder in bin sbin lib lib64; do
        [ -d "$into/$folder" ] || continue
        mkdir -p "$into/usr/$folder"
        cp -a "$into/$folder/." "$into/usr/$folder/"
        rm -rf "${into:?}/$folder"
    done
    cp -a "$into/." "$2/"
    rm -rf "$into"
}

mkdir -p "$packages" "$qemu" "$tools" "$kernel"
# One at a time: two checkouts may share a folder.
exec 9>"$build/.lock"
flock 9

if [ ! -e "$build/.userland" ] || [ ! -e "$kernel/vmlinux" ]; then
    # shellcheck disable=SC2086 # lists of names
    missing=$(unknown $emulator $utilities $image)
    if [ -n "$missing" ] && [ "$(id -u)" = 0 ]; then
        say 'looking for packages: apt-get update'
        apt-get update -qq </dev/null || fail 'apt-get update fails: can the sources be reached?'
        # shellcheck disable=SC2086
        missing=$(unknown $emulator $utilities $image)
    fi
    [ -z "$missing" ] || fail "no source of apt-get has $missing" 'Run apt-get update as root.' "$elsewhere"
fi

if [ ! -e "$build/.userland" ]; then
    say 'downloading and unpacking the emulator and the tools'
    # shellcheck disable=SC2086
    download $emulator $utilities
    for name in $emulator; do unpack "$name" "$qemu"; done
    for name in $utilities; do unpack "$name" "$tools"; done
    rm -rf "$tools"/usr/share/{doc,man} "$tools/var" "$qemu"/usr/share/{doc,man}
    chmod 0755 "$tools" "$qemu"
    touch "$build/.userland"
fi

if [ ! -e "$kernel/vmlinux" ]; then
    say 'downloading and unpacking the kernel'
    version=$(apt-cache depends "$image" | awk '/Depends: linux-image-/ { print $2; exit }')
    [ -n "$version" ] || fail "$image names no kernel." "$elsewhere"
    download "$version"
    unpack "$version" "$kernel"
    # The bare ELF file starts without unpacking itself first, which an emulated processor does slowly.
    python3 - "$(find "$kernel" -name 'vmlinuz*' | head -n 1)" "$kernel/vmlinux.new" <<'PYTHON'
import lzma, struct, sys

# The header of a bzImage: Documentation/arch/x86/boot.rst of the kernel.
image = open(sys.argv[1], 'rb').read()
start = (image[0x1f1] + 1) * 512 + struct.unpack('<I', image[0x248:0x24c])[0]
packed = image[start:start + struct.unpack('<I', image[0x24c:0x250])[0]]
assert packed[:6] == b'\xfd7zXZ\0', f'the kernel is not packed by xz but begins with {packed[:8]!r}'
elf = lzma.LZMADecompressor(format=lzma.FORMAT_XZ).decompress(packed)
assert elf[:4] == b'\x7fELF', f'what is in it is no ELF file but begins with {elf[:4]!r}'
open(sys.argv[2], 'wb').write(elf)
PYTHON
    mv "$kernel/vmlinux.new" "$kernel/vmlinux"
fi

# What follows depends on the scripts, too, and takes no time. Each file is put in its place whole: a guest may be starting from it.
modules=$(dirname "$(find "$kernel/usr" -name modules.builtin | head -n 1)")
version=${modules##*/}
if [ ! -e "$modules/modules.dep" ]; then
    ln -sfn kmod "$tools/usr/bin/depmod"
    LD_LIBRARY_PATH=$tools/usr/lib/x86_64-linux-gnu "$tools/usr/bin/depmod" -b "${modules%/lib/modules/*}" "$version"
fi
mkdir -p "$tools/usr/lib/modules"
ln -sfn /run/vmmods "$tools/usr/lib/modules/$version"
printf '%s\n' "$modules" >"$kernel/moddir"

root=$(mktemp -d -p "$build")
trap 'rm -rf "$root" "$kernel/initramfs.new"' EXIT
python3 - "$modules" "$root" <<'PYTHON'
import os, shutil, sys

modules, out = sys.argv[1:3]
needs = {path: paths.split() for path, paths in (line.split(':') for line in open(f'{modules}/modules.dep'))}
paths = {os.path.basename(path).split('.ko')[0].replace('-', '_'): path for path in needs}
wanted = '''virtio_pci virtio_console 9pnet_virtio 9p overlay crc32c_generic crc32_generic virtio_net virtio_rng dummy veth
            rdma_ucm ib_uverbs ib_umad rdma_rxe'''
order = []

def add(path):
    for needed in reversed(needs[path]):
        add(needed)
    if path not in order:
        order.append(path)

for name in wanted.split():
    if name in paths:  # else it is built in
        add(paths[name])
for folder in 'lib bin proc sys dev host tools ov new ctl'.split():
    os.makedirs(f'{out}/{folder}')
for path in order:
    shutil.copy(f'{modules}/{path}', f'{out}/lib/')
with open(f'{out}/mods', 'w') as list_of_modules:
    list_of_modules.writelines(f'{os.path.basename(path)}\n' for path in order)
PYTHON
cp "$qemu/usr/bin/busybox" "$root/bin/busybox"
ln -s busybox "$root/bin/sh"
cp "$here/guest-init" "$root/init"
chmod 755 "$root" "$root/init"
(cd "$root" && find . | "$qemu/usr/bin/cpio" --quiet -o -H newc -R 0:0) >"$kernel/initramfs.new"
mv "$kernel/initramfs.new" "$kernel/initramfs.cpio"
say "a guest with Linux $version is ready in $build"
