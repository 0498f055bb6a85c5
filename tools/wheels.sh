#!/usr/bin/env bash
# Fill a folder with wheels: presize's own, which `make wheels` audits, and those that a machine without a network
# needs, which benchmarks/gpu/gpu.sh --wheels DIR installs.
#
#     tools/wheels.sh DIR [few | all | none | PACKAGE ...]
#
# presize's own wheel is always built, from this tree. The other arguments add
#   few   the packages that a machine with the usual scientific packages lacks, 4 MB; the default
#   all   everything that presize needs except torch, about 150 MB
#   none  nothing; needs no network if setuptools is installed and pip's build isolation is off
# Versions are those of tools/constraints.txt where it has them. The wheels are for Linux on x86-64.
#
# FOR chooses the Python of that machine (3.12); PYTHON chooses the interpreter whose pip builds and downloads.
# PRESIZE_BUILD=strict fails if the JPEG decoder cannot be compiled; otherwise the decoder is left out.
set -euo pipefail

fail() {
    printf 'wheels: error: %s\n' "$1" >&2
    exit "${2:-1}"
}

: "${PYTHON:=python3}" "${FOR:=3.12}"
[ $# -ge 1 ] && [ -n "$1" ] || fail "usage: wheels.sh DIR [few | all | none | PACKAGE ...]" 2
case $1 in -*) fail "DIR: expected a folder, got $1; write ./$1" 2 ;; esac
root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
mkdir -p "$1"
folder=$(cd "$1" && pwd)
shift
pip() { "$PYTHON" -m pip --quiet --disable-pip-version-check "$@"; }

# From a copy: setuptools leaves build/ in the tree, and would pack what an earlier build left there.
copy=$(mktemp -d)
trap 'rm -rf "$copy"' EXIT
cp -r "$root/pyproject.toml" "$root/setup.py" "$root/README.md" "$root/LICENSE" "$root/presize" "$root/datasets" "$copy"
rm -f "$folder"/presize-*.whl
pip wheel --no-deps --wheel-dir "$folder" "$copy" || fail "presize: pip could not build its wheel"

case ${*:-few} in
    none) set -- ;;
    few) set -- --no-deps lmdb psutil simplejpeg zlib-ng ;;
    all) set -- psutil "$folder"/presize-*.whl ;;
    *) set -- --no-deps "$@" ;;
esac
if [ $# -gt 0 ]; then
    # pip takes exactly the platforms that are named, so name all that a current machine can run.
    platforms=(--platform linux_x86_64 --platform manylinux1_x86_64 --platform manylinux2014_x86_64)
    for minor in $(seq 17 39); do
        platforms+=(--platform "manylinux_2_${minor}_x86_64")
    done
    pip download --only-binary=:all: --python-version "$FOR" --implementation cp "${platforms[@]}" \
        --constraint "$root/tools/constraints.txt" --dest "$folder" "$@"
fi
du -ch "$folder"/*.whl
