"""Fuzz presize/codecs/_jpeg_decoder.c with libFuzzer, under the address and undefined-behaviour sanitizers.

    python tools/fuzz_coverage.py --seconds 60
    python tools/fuzz_coverage.py --seconds 600 --renew    also replace tests/fuzz/jpeg by a minimal corpus

It starts with the corpus in tests/fuzz/jpeg and with random JPEGs. libjpeg-turbo also decodes the files that it finds:
if the decoder accepts a file, the pixels must be equal. Stops at the first file that crashes or differs, prints its
path, and exits with 1. Needs clang with its sanitizers.
"""

from __future__ import annotations

import argparse
import hashlib
import random
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

import fuzz_jpeg_decoder as differential

from presize.codecs import _jpeg_decoder
from presize.codecs.golden import decoder_images

TARGET = Path(__file__).parent.parent / "tests" / "fuzz" / "jpeg_decoder.c"
DRAWN = 1000
LONGEST = 4000  # bytes
FLAGS = "-O1 -g -fsanitize=fuzzer,address,undefined -fno-sanitize-recover=undefined -Wall -Wextra -Werror".split()


def compiled(folder: Path) -> Path:
    target = folder / "target"
    decoders = differential.SOURCES[1:]  # the first is part of the target
    subprocess.run(["clang", *FLAGS, str(TARGET), *decoders, "-o", str(target)], check=True)
    return target


def save(data: bytes, folder: Path) -> None:
    (folder / hashlib.sha256(data).hexdigest()[:16]).write_bytes(data)


def seeds(folder: Path, choice: random.Random) -> None:
    """Write the initial JPEGs: the golden images, and small random ones."""
    folder.mkdir()
    for data in decoder_images().values():
        save(data, folder)
    for _ in range(DRAWN):
        data = differential.drawn(choice, ())
        if len(data) <= LONGEST:
            save(data, folder)


def run(target: Path, *args: object) -> str:
    """Return the output of libFuzzer. If it found a defect, print the output, with the path of the file, and exit."""
    ran = subprocess.run([target, f"-max_len={LONGEST}", *map(str, args)], capture_output=True, text=True, check=False)
    if ran.returncode:
        sys.exit(ran.stderr[-6000:])
    return ran.stderr


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=int, default=60)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--renew", action="store_true")
    options = parser.parse_args()
    if shutil.which("clang") is None:
        sys.exit("clang is missing: apt-get install clang libclang-rt-dev")
    choice = random.Random(options.seed)
    with tempfile.TemporaryDirectory(prefix="presize-fuzz-") as temporary:
        folder = Path(temporary)
        target = compiled(folder)
        seeds(folder / "seeds", choice)
        found = folder / "found"
        shutil.copytree(differential.CORPUS, found) if differential.CORPUS.exists() else found.mkdir()
        limits = f"-max_total_time={options.seconds}", f"-seed={options.seed}"
        artifacts = tempfile.mkdtemp(prefix="presize-fuzz-found-")
        said = run(target, *limits, f"-artifact_prefix={artifacts}/", found, folder / "seeds")
        shutil.rmtree(artifacts)
        tried = re.search(r"Done (\d+) runs", said)
        accepted = sum(differential.check(_jpeg_decoder, data, choice) for data in differential.corpus(found) * 5)
        if options.renew:
            fewest = folder / "fewest"
            fewest.mkdir()
            run(target, "-set_cover_merge=1", "-use_counters=0", fewest, folder / "seeds", found)
            shutil.rmtree(differential.CORPUS, ignore_errors=True)
            shutil.copytree(fewest, differential.CORPUS)
        files = len(list(found.iterdir()))
    print(f"{tried[1] if tried else 0} inputs; {files} files of new coverage, {accepted} accepted, no differences")


if __name__ == "__main__":
    main()
