#!/usr/bin/env bash
# Prints the folder of an environment of Python that has what the Python package is built and tested with. Makes it in the target folder where it is
# not there, with pip. With the word `all` it is another one, which has torch, jax, polars and duckdb as well; with the word `ray` one that has Ray, and
# finds torch in that one; with the word `wheel` one that has what a wheel is built with, and nothing else. With the name of a folder in
# transfer-python/tests_frameworks it is one that has what the requirements.txt there lists, and finds torch as that of Ray does.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
folder=$(realpath -m "${CARGO_TARGET_DIR:-target}")/python
tests=transfer-python/tests
frameworks=transfer-python/tests_frameworks
case ${1:-} in
    '') name=transferd needs=("$tests/requirements.txt") ;;
    all) name=transferd-all needs=("$tests/requirements.txt" "$tests/requirements-all.txt") ;;
    ray) name=transferd-ray needs=("$tests/requirements.txt" "$tests/requirements-ray.txt") ;;
    wheel) name=transferd-wheel needs=("$tests/requirements-wheel.txt") ;;
    *)
        name=transferd-$1 needs=("$tests/requirements.txt" "$frameworks/$1/requirements.txt")
        if [[ $1 == */* || ! -e ${needs[1]} ]]; then
            printf '%s: "%s" is no environment: say `all`, `ray`, `wheel`, the name of a folder in %s, or nothing\n' "$0" "$1" "$frameworks" >&2
            exit 2
        fi
        ;;
esac
venv=$folder/$name-$(cat "${needs[@]}" | sha256sum | cut -c 1-12)
pip=("$venv/bin/pip" install --quiet --disable-pip-version-check --only-binary :all:)

# torch's wheel is made for CUDA, and `import torch` fails without CUDA's libraries, also where there is no such device. Some indexes have a build
# for the CPU, which needs none of them: so the small packages come first, and CUDA's, of 2 GB, only where torch cannot be imported.
install_with_torch() { # LIST: all that is needed, but for CUDA's libraries
    local torch constraints=(--constraint "$1")
    "${pip[@]}" --no-deps --requirement "$1" </dev/null >&2
    if ! "$venv/bin/python" -c 'import torch' 2>/dev/null; then
        torch=$(grep '^torch==' "$1")
        printf 'python-venv: this torch needs the libraries of CUDA: installing them, 2 GB, into %s\n' "$venv" >&2
        # A framework may need another numpy than the tests do.
        [ "$1" != "$tests/requirements-all.txt" ] || constraints+=(--constraint "$tests/requirements.txt")
        "${pip[@]}" "${constraints[@]}" "$torch" </dev/null >&2
        "$venv/bin/python" -c 'import torch'
    fi
}

# torch is there once: this environment looks into the other one for what it does not have.
look_into_all() {
    local all packages=lib/python*/site-packages
    all=$(scripts/python-venv.sh all)
    printf '%s\n' "$all"/$packages >"$(echo "$venv"/$packages)/transferd-all.pth"
    "$venv/bin/python" -c 'import torch'
}

install_ray() {
    "${pip[@]}" --requirement "$tests/requirements-ray.txt" --constraint "$tests/requirements.txt" </dev/null >&2
    look_into_all
    "$venv/bin/python" -c 'import ray'
}

# Frameworks name torch among what they need, and pip does not see the one of the other environment: so their lists are complete, but for what
# requirements-all.txt has. One that works with another torch alone lists that one, and gets an environment without the other.
install_framework() { # LIST
    if grep -q '^torch==' "$1"; then
        install_with_torch "$1"
    else
        "${pip[@]}" --no-deps --requirement "$1" </dev/null >&2
        look_into_all
    fi
}

mkdir -p "$folder"
# Two may want it at once.
exec 9>"$venv.lock"
flock 9
if [ ! -e "$venv/ready" ]; then
    python3 -m venv --clear "$venv" >&2
    "${pip[@]}" --requirement "${needs[0]}" </dev/null >&2
    case $name in
        transferd | transferd-wheel) ;;
        transferd-all) install_with_torch "$tests/requirements-all.txt" ;;
        transferd-ray) install_ray ;;
        *) install_framework "${needs[1]}" ;;
    esac
    touch "$venv/ready"
fi
printf '%s\n' "$venv"
