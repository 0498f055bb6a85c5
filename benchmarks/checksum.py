"""What `presize build --checksum` adds to an image: hashes of photographs beside all else that a build does to them.

    python benchmarks/checksum.py PHOTOS [--images 500] [--rounds 5]

One process, from memory, CPU time; the hashes take turns with the build within each round. Writes
results/checksum.csv and prints the medians.
"""

from __future__ import annotations

import argparse
import csv
import hashlib
import time
import zlib
from collections.abc import Callable
from contextlib import suppress
from datetime import date
from pathlib import Path
from statistics import median

from conditions import conditions, find_photos

from presize.codecs import transcode
from presize.errors import ImageError
from presize.options import ImageOptions

OUT = Path(__file__).parent / "results" / "checksum.csv"
HASHES: dict[str, Callable[[bytes], object]] = {
    "crc32": zlib.crc32,
    "adler32": zlib.adler32,
    "sha1": hashlib.sha1,
    "sha256": hashlib.sha256,
    "blake2b": hashlib.blake2b,
}


def build(data: bytes) -> None:
    with suppress(ImageError):
        transcode.transcode(data, ImageOptions())


def milliseconds(work: Callable[[bytes], object], photos: list[bytes]) -> float:
    """CPU time a photograph."""
    start = time.process_time()
    for data in photos:
        work(data)
    return (time.process_time() - start) / len(photos) * 1e3


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("photos", type=Path)
    parser.add_argument("--images", type=int, default=500)
    parser.add_argument("--rounds", type=int, default=5)
    args = parser.parse_args()
    paths = find_photos(args.photos)[: args.images]
    facts = conditions(paths)
    photos = [path.read_bytes() for path in paths]
    rows = []
    for number in range(args.rounds):
        build_ms = milliseconds(build, photos)
        for name, work in HASHES.items():
            hash_ms = milliseconds(work, photos)
            share = round(hash_ms / build_ms, 5)
            rows.append(
                {"date": date.today(), "round": number, "hash": name, "images": len(photos), "size": 256}
                | {"hash_ms": round(hash_ms, 5), "build_ms": round(build_ms, 4), "share_of_build": share}
                | facts
            )
    with OUT.open("w", newline="") as file:
        writer = csv.DictWriter(file, list(rows[0]))
        writer.writeheader()
        writer.writerows(rows)
    for name in HASHES:
        shares = sorted(float(row["share_of_build"]) for row in rows if row["hash"] == name)  # type: ignore[arg-type]
        print(f"{name:8} {median(shares):.2%} of the build ({shares[0]:.2%}–{shares[-1]:.2%})")


if __name__ == "__main__":
    main()
