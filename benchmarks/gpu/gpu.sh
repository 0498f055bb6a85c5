#!/usr/bin/env bash
# What a bare machine with a CUDA GPU can tell about presize, in one command. See usage().
set -euo pipefail

usage() {
    cat <<'TEXT'
usage: bash benchmarks/gpu.sh [options]

What presizing does for training on a GPU, measured on a machine that has a CUDA GPU, a Python of 3.11 or newer with
torch, and perhaps no network. All that presize needs else comes from a folder of wheels (tools/wheels.sh fills one).
Nothing is installed outside of the work folder. Ends in time whatever happens; what did not fit is said. Prints a table
last, and writes gpu-bench.csv, gpu-build.csv, gpu-read.csv, gpu-pinning.csv and the table, gpu.md.

  --wheels DIR    install from here what the interpreter lacks
  --photos DIR    JPEGs to measure with, searched for in all of DIR; without it some are painted
  --out DIR       for the results  [default: benchmarks/results; with --device cpu the work folder]
  --work DIR      for all else; kept  [default: a temporary folder; removed]
  --seconds N     end within so many  [default: 450]
  --device cpu    a dry run: everything in small on the CPU, to see that it runs; its figures say nothing
  -h, --help

PYTHON chooses the interpreter (python3). Exit codes: 0 done, 1 a failure, 2 wrong use or no CUDA.
TEXT
}

fail() {
    printf 'gpu.sh: error: %s\n' "$1" >&2
    exit "${2:-1}"
}

: "${PYTHON:=python3}"
root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
wheels='' photos='' out='' work='' seconds=450 device=cuda
while [ $# -gt 0 ]; do
    case $1 in
        -h | --help) usage && exit 0 ;;
        --wheels | --photos | --out | --work | --seconds | --device) [ $# -ge 2 ] || fail "$1: expected a value" 2 ;;
        *) fail "$1: no such option; see --help" 2 ;;
    esac
    declare "${1#--}=$2"
    shift 2
done
case $device in cuda | cpu) ;; *) fail "--device: expected cuda or cpu, got $device" 2 ;; esac
case $seconds in '' | *[!0-9]*) fail "--seconds: expected a whole number, got $seconds" 2 ;; esac
for folder in "$wheels" "$photos"; do
    [ -z "$folder" ] || [ -d "$folder" ] || fail "$folder: no such folder" 2
done

found=$("$PYTHON" - <<'CODE'
import platform
try:
    import torch
except ImportError as error:
    print(f"Python {platform.python_version()} without torch ({error})")
else:
    built = f"for CUDA {torch.version.cuda}" if torch.version.cuda else "without CUDA"
    gpu = torch.cuda.get_device_name() if torch.cuda.is_available() else "no usable GPU"
    print(f"Python {platform.python_version()}, torch {torch.__version__} built {built}, {gpu}")
CODE
) || fail "PYTHON: $PYTHON does not run" 2
printf 'found %s, %s cores\n' "$found" "$(nproc)" >&2
case $found in
    *without\ torch*) fail "no torch here: found $found" 2 ;;
    *no\ usable\ GPU*) [ "$device" = cpu ] || fail "no CUDA here: found $found; --device cpu is a dry run" 2 ;;
esac

if [ -z "$work" ]; then
    work=$(mktemp -d)
    trap 'cd /; rm -rf "$work"' EXIT
fi
mkdir -p "$work"
work=$(cd "$work" && pwd)
if [ -z "$out" ]; then
    out=$root/benchmarks/results
    [ "$device" = cuda ] || out=$work/results
fi
# From the root of the tree Python would find a presize there that has no presize.datasets.
case $PYTHON in */*) PYTHON=$(cd "$(dirname "$PYTHON")" && pwd)/$(basename "$PYTHON") ;; esac
[ -z "$wheels" ] || wheels=$(cd "$wheels" && pwd)
[ -z "$photos" ] || photos=$(cd "$photos" && pwd)
mkdir -p "$out"
out=$(cd "$out" && pwd)
cd "$work"

# An environment of its own, with a `presize` beside its python as in any. Whatever the interpreter has is seen through
# a .pth file: --system-site-packages would not show what a virtual environment has that PYTHON itself belongs to.
environment=$work/environment
rm -rf "$environment"
"$PYTHON" -m venv --without-pip "$environment" || fail "$PYTHON: cannot make an environment; give it the venv module"
site=$("$environment/bin/python" -c 'import sysconfig; print(sysconfig.get_path("purelib"))')
"$PYTHON" -c 'import site
for path in [*site.getsitepackages(), site.getusersitepackages()]:
    print(f"import site; site.addsitedir({path!r})")' >"$site/seen-through.pth"

# presize itself is copied, as a wheel would lay it out: that needs neither setuptools nor a network.
version=$(sed -n 's/^__version__ = "\(.*\)"$/\1/p' "$root/presize/__init__.py")
cp -r "$root/presize" "$site/presize"
cp -r "$root/datasets" "$site/presize/datasets"
headers=$("$PYTHON" -c 'import sysconfig; print(sysconfig.get_path("include"))')
"${CC:-cc}" -O3 -shared -fPIC -I"$headers" "$root/presize/_baseline.c" -o "$site/presize/_baseline.abi3.so" 2>/dev/null ||
    printf "presize's own decoder cannot be compiled here (a C compiler, Python.h): libjpeg-turbo does its work\n" >&2
mkdir "$site/presize-$version.dist-info"
printf 'Metadata-Version: 2.1\nName: presize\nVersion: %s\n' "$version" >"$site/presize-$version.dist-info/METADATA"
# shellcheck disable=SC2016  # $0 and $@ are for when it runs
printf '#!/bin/sh\nexec "$(dirname "$0")/python" -m presize "$@"\n' >"$environment/bin/presize"
chmod +x "$environment/bin/presize"

# Nothing that is there is replaced: what torch was built for may depend on it.
lacking() {
    "$environment/bin/python" - "$root/pyproject.toml" "$1" <<'CODE'
import importlib.metadata, pathlib, re, sys, tomllib

def there(name):
    try:
        return bool(importlib.metadata.version(name))
    except importlib.metadata.PackageNotFoundError:
        return False

if sys.argv[2]:
    wheels = sorted(pathlib.Path(sys.argv[2]).glob("*.whl"))
    print("\n".join(str(path) for path in wheels if not there(path.name.partition("-")[0])))
else:
    needed = tomllib.loads(pathlib.Path(sys.argv[1]).read_text())["project"]["dependencies"]
    print(", ".join(name for need in needed if not there(name := re.split("[<>=]", need)[0])))
CODE
}
if [ -n "$wheels" ]; then
    mapfile -t missing < <(lacking "$wheels")
    if [ -n "${missing[*]}" ]; then
        "$PYTHON" -m pip install --quiet --disable-pip-version-check --no-index --no-deps --target "$site" \
            "${missing[@]}" || fail "--wheels: pip could not install from $wheels"
    fi
fi
needed=$(lacking '')
[ -z "$needed" ] || fail "this machine lacks $needed: fill a folder with tools/wheels.sh where there is a network" 2
"$environment/bin/python" -c 'import presize.build, presize.datasets' || fail "presize cannot be imported"

set -- --device "$device" --work "$work" --out "$out" --seconds "$((seconds - SECONDS))"
[ -z "$photos" ] || set -- "$@" --photos "$photos"
# The script ends by itself; this is for when it does not.
timeout --kill-after=5 "$((seconds + 15 - SECONDS))" "$environment/bin/python" "$root/benchmarks/gpu.py" "$@"
