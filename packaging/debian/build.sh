#!/usr/bin/env bash
# Builds the Debian packages `transfer`, and `transfer-dbgsym` with the debug symbols of its programs, into target/debian: build.sh [PROFILE], where
# PROFILE is release (the default) or another one of packaging/programs.sh.
# debhelper makes it of the files in packaging/debian/debian; it is installed by apt-get where it is missing.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/../.."

profile=${1:-release}
target=$(realpath -m "${CARGO_TARGET_DIR:-target}")

if ! command -v dh_builddeb >/dev/null || ! command -v dpkg-shlibdeps >/dev/null; then
    echo 'packaging: installing debhelper with apt-get'
    apt-get update -qq </dev/null
    DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends debhelper </dev/null >/dev/null
fi

# debhelper works in a folder with a folder `debian` in it, so all that goes into the package is laid there first.
stage=$target/debian/stage
rm -rf "$stage"
packaging/programs.sh "$profile" "$stage/bin"
mkdir -p "$stage/share/bash" "$stage/share/zsh" "$stage/share/fish" "$stage/doc"
cp -r packaging/debian/debian "$stage/debian"
cp packaging/systemd/transferd.service "$stage/debian/transfer.transferd.service"
cp packaging/systemd/transfer.sysusers "$stage/debian/transfer.sysusers"
cp packaging/transferd.toml "$stage/transferd.toml"
cp README.md CHANGELOG.md docs/*.md "$stage/doc/"
# What shells and their users want is made of the command line itself.
for program in transferctl transfer-bench; do
    "$stage/bin/$program" completions bash >"$stage/share/bash/$program"
    "$stage/bin/$program" completions zsh >"$stage/share/zsh/_$program"
    "$stage/bin/$program" completions fish >"$stage/share/fish/$program.fish"
    "$stage/bin/$program" man "$stage/share/man" >/dev/null
done
(cd "$stage" && find share/man -name '*.1' >debian/transfer.manpages)

version=$(sed -n '/^\[workspace.package\]/,/^\[/s/^version = "\(.*\)"/\1/p' Cargo.toml)
printf 'transfer (%s-1) unstable; urgency=medium\n\n  * /usr/share/doc/transfer/CHANGELOG.md says what has changed.\n\n -- %s  %s\n' \
    "$version" 'The transfer developers <transfer@localhost>' "$(date -R)" >"$stage/debian/changelog"
cd "$stage"
for step in dh_install dh_installdocs dh_installman dh_installsysusers 'dh_installsystemd --name=transferd' \
    'dh_compress --exclude=.md' dh_fixperms dh_strip dh_shlibdeps dh_installdeb dh_gencontrol dh_md5sums; do
    # shellcheck disable=SC2086
    $step
done
# Small, except in each run of the tests: fast to pack and to unpack.
compression=(-Zxz)
[ "$profile" != dev ] || compression=(-Zgzip -z1)
dh_builddeb --destdir="$target/debian" -- "${compression[@]}"
for package in transfer transfer-dbgsym; do
    mv "$target/debian/${package}_$version"-1_*.deb "$target/debian/$package.deb"
    printf 'packaging: %s (%s bytes)\n' "$target/debian/$package.deb" "$(stat -c %s "$target/debian/$package.deb")"
done
