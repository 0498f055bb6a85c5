#!/usr/bin/env bash
# What presizing does for training, measured on a bare machine with a CUDA GPU, in one command. See usage().
set -euo pipefail

usage() {
    cat <<'TEXT'
usage: bash benchmarks/gpu/gpu.sh [options]

Measures what presizing does for training on a GPU. The machine needs CUDA and a Python of 3.11 or newer with torch, and
no network: presize and what it needs are installed from a folder of wheels, into the work folder. Nothing outside of it
is changed. It begins with checks that batches on the GPU are right. The script ends in time; what did not fit is
reported. It prints a table last, and writes gpu-correct.csv, gpu-read.csv, gpu-bench.csv, gpu-build.csv,
gpu-pinning.csv, gpu-augment.csv and the table, gpu.md: each as soon as it is known.

  --wheels DIR    the folder that tools/wheels.sh filled; without it, the script fills one, which takes a network
  --photos DIR    JPEGs to measure with, searched for recursively; without it, sample images are painted
  --out DIR       for the results  [default: benchmarks/gpu/results; of a dry run the work folder]
  --work DIR      for all else; kept  [default: a temporary folder; removed]
  --seconds N     end within this time  [default: 600]
  --device cpu    a dry run: everything in small on the CPU, to see that it runs; its figures mean nothing
  --device simulated  the same, with the checks on the accelerator of presize's tests
  -h, --help

PYTHON chooses the interpreter (python3). Exit codes: 0 done, 1 a failure, 2 wrong use or no CUDA.
TEXT
}

fail() {
    printf 'gpu.sh: error: %s\n' "$1" >&2
    exit "${2:-1}"
}

: "${PYTHON:=python3}"
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
wheels='' photos='' out='' work='' seconds=600 device=cuda
while [ $# -gt 0 ]; do
    case $1 in
        -h | --help) usage && exit 0 ;;
        --wheels | --photos | --out | --work | --seconds | --device) [ $# -ge 2 ] || fail "$1: expected a value" 2 ;;
        *) fail "$1: no such option; see --help" 2 ;;
    esac
    declare "${1#--}=$2"
    shift 2
done
case $device in cuda | cpu | simulated) ;; *) fail "--device: expected cuda, cpu or simulated, got $device" 2 ;; esac
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
    *no\ usable\ GPU*) [ "$device" != cuda ] || fail "no CUDA here: found $found; --device cpu is a dry run" 2 ;;
esac

if [ -z "$work" ]; then
    work=$(mktemp -d)
    trap 'cd /; rm -rf "$work"' EXIT
fi
mkdir -p "$work"
work=$(cd "$work" && pwd)
if [ -z "$out" ]; then
    out=$here/results
    [ "$device" = cuda ] || out=$work/results
fi
mkdir -p "$out"
out=$(cd "$out" && pwd)
[ -z "$photos" ] || photos=$(cd "$photos" && pwd)
case $PYTHON in */*) PYTHON=$(cd "$(dirname "$PYTHON")" && pwd)/$(basename "$PYTHON") ;; esac
if [ -z "$wheels" ]; then
    wheels=$work/wheels
    FOR=$("$PYTHON" -c 'import platform; print(platform.python_version())') PYTHON=$PYTHON \
        bash "$here/../../tools/wheels.sh" "$wheels" all >&2 || fail "--wheels: tools/wheels.sh could not fill one"
fi
wheels=$(cd "$wheels" && pwd)
own=("$wheels"/presize-*.whl)
[ -f "${own[0]}" ] || fail "--wheels: no wheel of presize in $wheels; fill it with tools/wheels.sh" 2
cd "$work" # in the root of the tree, Python would import that presize instead of the wheel's

# An environment of its own that sees whatever PYTHON sees, through a .pth file: --system-site-packages would not show
# the packages of a virtual environment that PYTHON itself belongs to.
environment=$work/environment
rm -rf "$environment"
"$PYTHON" -m venv --without-pip "$environment" || fail "PYTHON: $PYTHON has no venv module; install it"
site=$("$environment/bin/python" -c 'import sysconfig; print(sysconfig.get_path("purelib"))')
"$PYTHON" -c 'import site
for path in [*site.getsitepackages(), site.getusersitepackages()]:
    print(f"import site; site.addsitedir({path!r})")' >"$site/seen-through.pth"

# pip leaves packages alone that are there and new enough; torch may depend on their versions. presize itself always
# comes from its wheel, whatever is installed.
install() {
    "$PYTHON" -m pip --python "$environment/bin/python" --quiet --disable-pip-version-check install --no-index \
        --find-links "$wheels" "$@"
}
install --no-deps --ignore-installed "${own[-1]}" && install presize psutil ||
    fail "--wheels: pip could not install from $wheels; if a package is missing, fill it with: tools/wheels.sh DIR all"
"$environment/bin/python" -c 'import presize.builder, presize.datasets' || fail "presize cannot be imported"

set -- --device "$device" --work "$work" --out "$out" --seconds "$((seconds - SECONDS))"
[ -z "$photos" ] || set -- "$@" --photos "$photos"
# gpu.py ends by itself; this is for when it does not.
timeout --kill-after=5 "$((seconds + 15 - SECONDS))" "$environment/bin/python" "$here/gpu.py" "$@"
