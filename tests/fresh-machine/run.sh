#!/usr/bin/env bash
# Runs a command on an empty machine: a Debian root of its own with make, git, Python, certificates and the Rust toolchain, and a clone of
# this checkout's HEAD in /src. It sees nothing else of this machine. README.md beside this file says more.
set -euo pipefail

usage="usage: $0 [--suite NAME] [--with PACKAGE,...] [--user] [--keep] -- COMMAND..."
suite=bookworm packages=ca-certificates,make,git,python3 base=${FRESH_MACHINE_DIR:-/var/tmp/fresh-machine} keep='' uid=0
while [ $# -gt 0 ]; do
    case $1 in
    --suite) suite=$2; shift 2 ;;       # the Debian release: bookworm, trixie
    --with) packages+=,$2; shift 2 ;;   # more packages in the empty root, separated by commas
    --user) uid=1000; shift ;;          # as a plain user
    --keep) keep=1; shift ;;            # leaves the root, and says where
    --) shift; break ;;
    *) echo "$usage" >&2; exit 2 ;;
    esac
done
[ $# -gt 0 ] || { echo "$usage" >&2; exit 2; }
# 77 says that nothing was tried, as in packaging/test.sh.
not_run() { echo "fresh-machine: not run: $*" >&2; exit 77; }
[ "$(id -u)" = 0 ] || not_run 'it mounts and changes its root, so it has to be root'
unshare --mount --pid --fork --kill-child true 2>/dev/null || not_run 'this machine allows no mount namespace'
source=$(git -C "$(dirname "${BASH_SOURCE[0]}")" rev-parse --show-toplevel)
mkdir -p "$base"
# Several of these may start at the same time, and apt-get runs once at a time.
exec {installing}>"$base/installing"
flock "$installing"
command -v mmdebstrap >/dev/null || {
    command -v apt-get >/dev/null || not_run 'mmdebstrap is missing, and no apt-get is here to install it'
    echo 'fresh-machine: installing mmdebstrap with apt-get' >&2
    apt-get update -qq && DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends mmdebstrap
} </dev/null >/dev/null
exec {installing}>&-

# Debian's sources as this machine has them: it may have a mirror of its own.
sources=()
if [ "$suite" = "$(. /etc/os-release && echo "$VERSION_CODENAME")" ] && [ -s /etc/apt/sources.list.d/debian.sources ]; then
    sources=(/etc/apt/sources.list.d/debian.sources)
fi

# The empty root is made once for each suite and set of packages, and unpacked for each run.
image=$base/$suite-$(md5sum <<<"$packages" | cut -c1-8).tar
if [ ! -s "$image" ]; then
    echo "fresh-machine: making a root of $suite with $packages" >&2
    mmdebstrap --quiet --format=tar --variant=minbase --include="$packages" "$suite" "$image.new" "${sources[@]}" >&2
    mv "$image.new" "$image"
fi
root=$(mktemp -d "$base/run.XXXXXX")
trap '[ -n "$keep" ] && echo "kept: $root" >&2 || rm -rf --one-file-system "$root"' EXIT
tar -C "$root" -xf "$image"
cp /etc/resolv.conf /etc/hosts "$root/etc/"
cp /etc/ssl/certs/ca-certificates.crt "$root/etc/ssl/certs/"
if [ ${#sources[@]} -gt 0 ]; then
    cp "${sources[0]}" "$root/etc/apt/sources.list.d/"
    rm -f "$root/etc/apt/sources.list"
fi
git clone -q "$source" "$root/src"
toolchain=$(rustc --print sysroot) registry=${CARGO_HOME:-$HOME/.cargo}/registry
mkdir -p "$root/rust" "$root/cargo/registry"
chown -R "$uid" "$root/src" "$root/cargo"

export toolchain registry root uid
# Mounted in a namespace of its own, so it is gone with the command. Root shares the crates that this machine has downloaded.
unshare --mount --pid --fork --kill-child --mount-proc bash -s -- "$@" <<'INSIDE'
set -e
mount --bind -o ro "$toolchain" "$root/rust"
[ -d "$registry" ] && [ "$uid" = 0 ] && mount --bind "$registry" "$root/cargo/registry"
mount -t proc proc "$root/proc"
mount --rbind /sys "$root/sys"
mount --rbind /dev "$root/dev"
home=/root
[ "$uid" = 0 ] || home=/tmp
exec setsid chroot --userspec="$uid:$uid" "$root" /usr/bin/env -i HOME="$home" LANG=C.UTF-8 CI="${CI:-}" CARGO_HOME=/cargo \
    PATH=/rust/bin:/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin \
    SSL_CERT_FILE=/etc/ssl/certs/ca-certificates.crt PIP_CERT=/etc/ssl/certs/ca-certificates.crt \
    bash -c 'cd /src && exec "$@"' fresh-machine "$@" </dev/null
INSIDE
