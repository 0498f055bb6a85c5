#!/usr/bin/env bash
# Fill a folder with wheels for a machine without network: benchmarks/gpu.sh --wheels DIR installs from it.
#
#     tools/wheels.sh DIR [PACKAGE ...]
#
# Without PACKAGE, those that a machine with the usual scientific packages lacks: cykooz.resizer, lmdb and simplejpeg,
# 3 MB in all. "all" is whatever presize needs beside torch and numpy, 120 to 130 MB in all, of which
# opencv-python-headless takes 55 to 61 and pyarrow 55. Versions are those of tools/constraints.txt where it has them.
# The wheels are for Linux on x86-64.
#
# FOR chooses the Python of that machine (3.12), PYTHON the interpreter whose pip downloads.
set -euo pipefail

fail() {
    printf 'wheels: error: %s\n' "$1" >&2
    exit "${2:-1}"
}

: "${PYTHON:=python3}" "${FOR:=3.12}"
[ $# -ge 1 ] && [ -n "$1" ] || fail "usage: wheels.sh DIR [PACKAGE ...]" 2
case $1 in -*) fail "DIR: expected a folder, got $1; write ./$1" 2 ;; esac
folder=$1
shift
[ $# -gt 0 ] || set -- cykooz.resizer lmdb simplejpeg
if [ "$*" = all ]; then
    set -- click cloudpickle cykooz.resizer jinja2 joblib lmdb markupsafe opencv-python-headless pillow pyarrow \
        simplejpeg tqdm
fi

# pip takes exactly the platforms that are named, so all that a machine of today can run are.
platforms=(--platform manylinux1_x86_64 --platform manylinux2014_x86_64)
for minor in $(seq 17 39); do
    platforms+=(--platform "manylinux_2_${minor}_x86_64")
done
"$PYTHON" -m pip download --quiet --disable-pip-version-check --no-deps --only-binary=:all: \
    --python-version "$FOR" --implementation cp "${platforms[@]}" \
    --constraint "$(dirname "${BASH_SOURCE[0]}")/constraints.txt" --dest "$folder" "$@"
du -ch "$folder"/*.whl
