#!/usr/bin/env bash
# What presizing does for training, measured on a bare machine with a CUDA GPU, in one command. See usage().
set -euo pipefail

usage() {
    cat <<'TEXT'
usage: bash benchmarks/gpu/gpu.sh [options]

Measures what presizing does for training on a GPU. The machine needs CUDA, a Python of 3.11 or newer with pip and torch
2.7 or newer, and no network: presize and what it needs are installed from a folder of wheels, into the work folder.
Nothing outside of it is changed. It first checks that batches on the GPU are right. The script ends in time and
reports the steps that did not fit. It prints a table last, also after Ctrl-C, and writes gpu-correct.csv, gpu-read.csv,
gpu-bench.csv, gpu-build.csv, gpu-pinning.csv, gpu-decode.csv, gpu-augment.csv and the table, gpu.md, each as soon as it
is known. They replace those of an earlier session.

  --wheels DIR    the folder that tools/wheels.sh filled; without it, the script fills one, which takes a network and a
                  C compiler
  --photos DIR    JPEGs to measure with, searched for recursively; without it, sample images are painted
  --out DIR       for the results  [default: benchmarks/gpu/results; for a dry run, in the work folder]
  --work DIR      for everything else, about 4 GB; kept  [default: a temporary folder, which is removed]
  --seconds N     end within this time  [default: 600]
  --device cpu    a dry run: small versions of all steps on the CPU; its figures mean nothing
  --device simulated  the same, with the checks on the accelerator of presize's tests
  -h, --help

PYTHON chooses the interpreter (python3). Exit codes: 0 done, 1 a failure or a batch that is wrong, 2 wrong use or no
CUDA, 130 interrupted.
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

found=$("$PYTHON" -W ignore - <<'CODE'
import platform, sys
try:
    import torch
except (ImportError, OSError) as error:
    print(f"Python {platform.python_version()} without torch ({error})")
else:
    built = f"for CUDA {torch.version.cuda}" if torch.version.cuda else "without CUDA"
    gpu = torch.cuda.get_device_name() if torch.cuda.is_available() else "no usable GPU"
    version = tuple(map(int, torch.__version__.split(".")[:2]))
    old = "" if sys.version_info >= (3, 11) and version >= (2, 7) else ", too old"
    print(f"Python {platform.python_version()}, torch {torch.__version__} built {built}, {gpu}{old}")
CODE
) || fail "PYTHON: $PYTHON does not run" 2
printf 'found %s\n' "$found" >&2
case $found in
    *without\ torch*) fail "no torch here: found $found; PYTHON=/path/to/python chooses another" 2 ;;
    *too\ old) fail "expected Python 3.11 and torch 2.7, or newer: found $found; PYTHON chooses another" 2 ;;
    *no\ usable\ GPU*) [ "$device" != cuda ] || fail "no CUDA here: found $found; --device cpu is a dry run" 2 ;;
esac
"$PYTHON" -m pip --version >/dev/null 2>&1 || fail "PYTHON: $PYTHON has no pip; install it: $PYTHON -m ensurepip" 2

writable() {
    { mkdir -p "$2" && touch "$2/.gpu" && rm "$2/.gpu"; } 2>/dev/null || fail "$1: $2 cannot be written to" 2
}

if [ -z "$work" ]; then
    work=$(mktemp -d)
    trap 'cd /; rm -rf "$work"' EXIT
fi
writable --work "$work"
work=$(cd "$work" && pwd)
if [ -z "$out" ]; then
    out=$here/results
    [ "$device" = cuda ] || out=$work/results
fi
writable --out "$out"
out=$(cd "$out" && pwd)
[ -z "$photos" ] || photos=$(cd "$photos" && pwd)
case $PYTHON in */*) PYTHON=$(cd "$(dirname "$PYTHON")" && pwd)/$(basename "$PYTHON") ;; esac
for=$("$PYTHON" -c 'import sys; print("%d.%d" % sys.version_info[:2])')
fill="FOR=$for tools/wheels.sh DIR all"
if [ -z "$wheels" ]; then
    wheels=$work/wheels
    # strict: without the compiled decoder, what is measured is not what presize can do.
    FOR=$for PYTHON=$PYTHON PRESIZE_BUILD=strict bash "$here/../../tools/wheels.sh" "$wheels" all >&2 ||
        fail "--wheels: tools/wheels.sh could not fill one here; fill it on another machine: $fill"
fi
wheels=$(cd "$wheels" && pwd)
own=("$wheels"/presize-*.whl)
[ -f "${own[0]}" ] || fail "--wheels: no wheel of presize in $wheels; fill it: $fill" 2
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
    fail "--wheels: pip could not install from $wheels; fill it for this Python: $fill"
"$environment/bin/python" -c 'import presize.builder, presize.datasets' || fail "presize cannot be imported"

left=$((SECONDS < seconds ? seconds - SECONDS : 0))
set -- --device "$device" --work "$work" --out "$out" --seconds "$left"
[ -z "$photos" ] || set -- "$@" --photos "$photos"
# gpu.py ends by itself; this is for when it does not. In the foreground, or Ctrl-C would not reach it.
export TORCHINDUCTOR_CACHE_DIR=$work/inductor
timeout --foreground --kill-after=5 "$((left + 15))" "$environment/bin/python" "$here/gpu.py" "$@"
