#!/usr/bin/env bash
# Gets the tools that only tests need: promtool, which checks metrics, alert rules and their tests; valgrind, under which a sidecar is started; etcd with
# etcdctl, which says who leads a directory; and a browser without a screen, in which the status page is opened. Where they are missing and this runs as root on Debian or Ubuntu, it
# - unpacks promtool alone out of the package "prometheus" into target/tools (20 MB are fetched, nothing is installed: one second), and
# - installs the package "valgrind",
# - installs the packages "etcd-server" and "etcd-client", if they are missing (50 MB; nothing is started), and
# - installs the package "chromium-headless-shell", or "chromium" where there is none (about 100 MB with what it needs: 15 seconds).
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
tools=${CARGO_TARGET_DIR:-target}/tools

say() { printf 'test-tools: %s\n' "$*"; }
can_install() { [ "$(id -u)" = 0 ] && command -v apt-get >/dev/null; }
# The lists of packages, once.
listed=
lists() {
    [ -n "$listed" ] || apt-get update -qq </dev/null
    listed=1
}

if ! command -v promtool >/dev/null && [ ! -x "$tools/promtool" ]; then
    can_install || { say 'promtool is missing. It comes with Prometheus.' >&2; exit 1; }
    say "promtool is missing: taking it out of the package prometheus, into $tools"
    lists
    folder=$(mktemp -d)
    trap 'rm -rf "$folder"' EXIT
    (cd "$folder" && apt-get -o APT::Sandbox::User=root download -qq prometheus </dev/null && dpkg-deb --fsys-tarfile prometheus_*.deb | tar -x ./usr/bin/promtool)
    mkdir -p "$tools"
    mv "$folder/usr/bin/promtool" "$tools/promtool"
fi

if ! command -v valgrind >/dev/null; then
    can_install || { say 'valgrind is missing.' >&2; exit 1; }
    lists
    say 'valgrind is missing: installing it with apt-get'
    DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends valgrind </dev/null >/dev/null
fi

if ! command -v etcd >/dev/null || ! command -v etcdctl >/dev/null; then
    can_install || { say 'etcd or etcdctl is missing.' >&2; exit 1; }
    lists
    say 'etcd is missing: installing etcd-server and etcd-client with apt-get'
    # The package would start its service, where there is systemd.
    mask=
    [ ! -d /run/systemd/system ] || [ -e /etc/systemd/system/etcd.service ] || { systemctl mask --quiet etcd && mask=1; }
    DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends etcd-server etcd-client </dev/null >/dev/null
    [ -z "$mask" ] || systemctl unmask --quiet etcd
fi

browser=
for name in chromium-headless-shell chromium chromium-browser google-chrome; do
    command -v "$name" >/dev/null && browser=$name && break
done
if [ -z "$browser" ]; then
    can_install || { say 'a browser is missing: chromium-headless-shell, chromium or google-chrome.' >&2; exit 1; }
    lists
    package=chromium
    apt-cache show chromium-headless-shell >/dev/null 2>&1 && package=chromium-headless-shell
    say "a browser is missing: installing $package with apt-get"
    DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends "$package" </dev/null >/dev/null
    browser=$package
fi
say "promtool, valgrind, etcd and $browser are here"
