#!/bin/sh
# Build pillow-simd from its source into an environment of its own.
#
#     tools/install_pillow_simd.sh VENV [sse4|avx2]
#
# pillow-simd replaces Pillow: both are imported as PIL, so they cannot share an environment. It is published as source
# only, and lacks the latest fixes of Pillow's decoders: use it only on files that you trust. VENV must not exist,
# unless this script made it. benchmarks/transcoding/resizers.py measures it; presize never uses it.
#
# sse4 (the default) runs on every x86-64 machine of the last fifteen years, avx2 on those since 2013.
# PYTHON chooses the interpreter, CC the compiler, VERSION the release; only the default release was tested.
set -eu

: "${PYTHON:=python3}" "${CC:=cc}" "${VERSION:=12.1.1.post0}"
MARK=made-by-install_pillow_simd

fail() {
    printf 'install_pillow_simd: error: %s\n' "$1" >&2
    exit "${2:-1}"
}

[ $# -ge 1 ] && [ $# -le 2 ] && [ -n "$1" ] || fail "usage: install_pillow_simd.sh VENV [sse4|avx2]" 2
venv=$1
instructions=${2:-sse4}
case $venv in -*) fail "VENV: expected a folder, got $venv; write ./$venv" 2 ;; esac

# Its setup.py adds -msse4 by itself.
case $instructions in
    sse4) compiler=$CC ;;
    avx2) compiler="$CC -mavx2" ;;
    *) fail "expected sse4 or avx2, got $instructions" 2 ;;
esac
if [ -e "$venv" ] && [ ! -e "$venv/$MARK" ]; then
    fail "$venv: exists and was not made by this script; choose a folder that does not exist"
fi
case $(uname -m) in
    x86_64 | amd64) ;;
    *) fail "pillow-simd needs x86-64, and this machine is $(uname -m)" ;;
esac
"$PYTHON" -c 'import sys, venv, ensurepip; sys.exit(sys.version_info < (3, 10))' 2>/dev/null ||
    fail "$PYTHON: expected Python 3.10 or newer with venv; install python3-venv, or choose another with PYTHON=..."

# The compiler is asked, because the location of headers varies.
# shellcheck disable=SC2086  # CC may contain options
compiles() { printf '%s\n' "$1" 'int main(void) { return 0; }' | $CC -x c -fsyntax-only - 2>/dev/null; }
compiles '' ||
    fail "$CC: no working C compiler; install one (apt-get install build-essential) or choose another with CC=..."
compiles '#include <zlib.h>' || fail "zlib.h: not found; install zlib's headers (apt-get install zlib1g-dev)"
compiles '#include <stdio.h>
#include <jpeglib.h>' || fail "jpeglib.h: not found; install libjpeg's headers (apt-get install libjpeg-dev)"
compiles "#include \"$("$PYTHON" -c 'import sysconfig; print(sysconfig.get_path("include"))')/Python.h\"" ||
    fail "Python.h: not found; install the headers of $PYTHON (apt-get install python3-dev)"

rm -rf "$venv"
mkdir -p "$venv"
: >"$venv/$MARK"
"$PYTHON" -m venv "$venv"
# Without the wheel cache: a cached wheel may have been built for the other instructions.
CC=$compiler "$venv/bin/python" -m pip install --quiet --disable-pip-version-check \
    --no-cache-dir --no-binary pillow-simd "pillow-simd==$VERSION" ||
    fail "pillow-simd $VERSION did not build; its compiler's messages are above"
"$venv/bin/python" -m pip install --quiet --disable-pip-version-check --only-binary :all: numpy
"$venv/bin/python" -c "import PIL; from PIL import Image, _imaging
print(f'pillow-simd {PIL.__version__}, $instructions: $venv')"
