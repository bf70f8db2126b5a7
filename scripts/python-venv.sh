#!/usr/bin/env bash
# Prints the folder of an environment of Python that has what the Python package is built and tested with. Makes it in the target folder where it is
# not there, with pip. With the word `all` it is another one, which has torch, jax, polars and duckdb as well; with the word `ray` one that has Ray, and
# finds torch in that one; with the word `wheel` one that has what a wheel is built with, and nothing else.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
folder=$(realpath -m "${CARGO_TARGET_DIR:-target}")/python
tests=transfer-python/tests
case ${1:-} in
    '') name=transferd needs=("$tests/requirements.txt") ;;
    all) name=transferd-all needs=("$tests/requirements.txt" "$tests/requirements-all.txt") ;;
    ray) name=transferd-ray needs=("$tests/requirements.txt" "$tests/requirements-ray.txt") ;;
    wheel) name=transferd-wheel needs=("$tests/requirements-wheel.txt") ;;
    *) printf '%s: "%s" is no environment: say `all`, `ray`, `wheel`, or nothing\n' "$0" "$1" >&2 && exit 2 ;;
esac
venv=$folder/$name-$(cat "${needs[@]}" | sha256sum | cut -c 1-12)
pip=("$venv/bin/pip" install --quiet --disable-pip-version-check --only-binary :all:)

# torch's wheel is made for CUDA, and `import torch` fails without CUDA's libraries, also where there is no such device. Some indexes have a build
# for the CPU, which needs none of them: so the small packages come first, and CUDA's, of 2 GB, only where torch cannot be imported.
install_all() {
    local torch
    "${pip[@]}" --no-deps --requirement "$tests/requirements-all.txt" </dev/null >&2
    if ! "$venv/bin/python" -c 'import torch' 2>/dev/null; then
        torch=$(grep '^torch==' "$tests/requirements-all.txt")
        printf 'python-venv: this torch needs the libraries of CUDA: installing them, 2 GB, into %s\n' "$venv" >&2
        "${pip[@]}" --constraint "$tests/requirements.txt" --constraint "$tests/requirements-all.txt" "$torch" </dev/null >&2
        "$venv/bin/python" -c 'import torch'
    fi
}

# torch is there once: this environment looks into the other one for what it does not have.
install_ray() {
    local all packages=lib/python*/site-packages
    all=$(scripts/python-venv.sh all)
    "${pip[@]}" --requirement "$tests/requirements-ray.txt" --constraint "$tests/requirements.txt" </dev/null >&2
    printf '%s\n' "$all"/$packages >"$(echo "$venv"/$packages)/transferd-all.pth"
    "$venv/bin/python" -c 'import ray, torch'
}

mkdir -p "$folder"
# Two may want it at once.
exec 9>"$venv.lock"
flock 9
if [ ! -e "$venv/ready" ]; then
    python3 -m venv --clear "$venv" >&2
    "${pip[@]}" --requirement "${needs[0]}" </dev/null >&2
    case $name in
        transferd-all) install_all ;;
        transferd-ray) install_ray ;;
    esac
    touch "$venv/ready"
fi
printf '%s\n' "$venv"
