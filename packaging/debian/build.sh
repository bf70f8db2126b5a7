#!/usr/bin/env bash
# Builds the Debian package `transfer` into target/debian: build.sh [PROFILE], where PROFILE is release (the default) or dev.
# Fetches and builds cargo-deb into target/tools first, where it is not there.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/../.."

profile=${1:-release}
version=3.8.0
target=${CARGO_TARGET_DIR:-target}
tools=$target/tools

if [ "$("$tools/bin/cargo-deb" --version 2>/dev/null)" != "cargo-deb $version" ]; then
    echo "packaging: fetching and building cargo-deb $version into $tools"
    cargo install --quiet --locked --force --debug --root "$tools" --target-dir "$target/tools/build" cargo-deb --version "=$version"
    rm -rf "$target/tools/build"
fi
what=(--package transfer-server --package transfer-cli --bins)
# As the tests do it: other packages would be built with other features, and all of it again.
[ "$profile" != dev ] || what=(--workspace --all-targets)
cargo build --locked --profile "$profile" "${what[@]}"
# What shells and their users want is made of the command line itself. cargo-deb looks for it below the profile's folder, as for the programs.
built=$target/$([ "$profile" = dev ] && echo debug || echo "$profile")
share=$built/transferctl-share
rm -rf "$share"
mkdir -p "$share"
for shell in bash zsh fish; do "$built/transferctl" completions "$shell" >"$share/transferctl.$shell"; done
"$built/transferctl" man "$share/man" >/dev/null
gzip --best --no-name "$share"/man/*.1
"$tools/bin/cargo-deb" deb --no-build --profile "$profile" --package transfer-server --output "$target/debian/transfer.deb"
