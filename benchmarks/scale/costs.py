"""Estimate the cost of a dataset: cores, bytes, requests and money, from rates and prices.

    python benchmarks/scale/costs.py [--images-s-core 290] [--core-hour 0.04] [--help]

Rates, sizes and prices are options. The default rates and sizes were measured (see --help); the default prices are
examples, to be replaced by those of your provider.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from presize.formatting import size_text
from presize.store.dealing import shard_count
from shared import rates

SIZES = (1_281_167, 13_000_000, 400_000_000, 5_000_000_000)
"""ImageNet-1k, ImageNet-21k, LAION-400M, LAION-5B."""


@dataclass(frozen=True)
class Costs:
    """Estimated costs of a dataset."""

    samples: int
    options: argparse.Namespace

    @property
    def source_bytes(self) -> float:
        return self.samples * self.options.source_kb * 1e3

    @property
    def stored_bytes(self) -> float:
        return self.samples * self.options.stored_kb * 1e3

    @property
    def core_hours(self) -> float:
        return self.samples / self.options.images_s_core / 3600

    @property
    def upload_requests(self) -> float:
        return self.stored_bytes / (self.options.part_mb * 1e6)

    def lines(self) -> Iterator[tuple[str, str]]:
        o, shards = self.options, shard_count(self.samples)
        yield "photographs", f"{self.samples:,}"
        yield f"source, at {o.source_kb:g} kB", size_text(self.source_bytes)
        yield f"stored, at {o.stored_kb:g} kB", size_text(self.stored_bytes)
        yield "shards, and size of each", f"{shards:,} of {size_text(self.stored_bytes / shards)}"
        yield f"index, at {o.index_bytes:g} bytes", size_text(self.samples * o.index_bytes)
        yield "core-hours of a build", f"{self.core_hours:,.1f}"
        yield "listing the source, in one thread", f"{self.samples / o.listed_s / 60:,.0f} min"
        yield "memory of the driver", size_text(80e6 + self.samples * o.driver_bytes)
        yield f"build, at {o.core_hour:g} a core-hour", f"{self.core_hours * o.core_hour:,.2f}"
        yield f"reading the source from a bucket, at {o.get:g} a million", f"{self.samples / 1e6 * o.get:,.2f}"
        yield (
            f"uploading the dataset, in parts of {o.part_mb:g} MB at {o.put:g} a million",
            (f"{self.upload_requests / 1e6 * o.put:,.2f}"),
        )
        yield f"storing it for a month, at {o.gb_month:g} a GB", f"{self.stored_bytes / 1e9 * o.gb_month:,.2f}"
        yield f"an epoch from another region, at {o.gb_out:g} a GB", f"{self.stored_bytes / 1e9 * o.gb_out:,.2f}"
        yield "read rate for an epoch a day", f"{size_text(self.stored_bytes / 86400)}/s"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for name, default, what in (
        ("images-s-core", 290, "images built per second and core; benchmarks/building/results/build.csv, 256 px"),
        ("source-kb", 110, "size of a photograph; ImageNet"),
        ("stored-kb", 30, "size of a stored image; 4,000 of ImageNet at 256 px"),
        ("index-bytes", 95, "index bytes per sample, with a path of 27 bytes and a label"),
        ("listed-s", 92_000, "files listed per second; results/samples.csv, ext4"),
        ("driver-bytes", 128, "memory per sample for listing and publishing; results/samples.csv"),
        ("part-mb", 100, "size of a part of an upload"),
        ("core-hour", 0.04, "price"),
        ("get", 0.4, "price of a million GET requests"),
        ("put", 5, "price of a million PUT requests"),
        ("gb-month", 0.023, "price of storing a gigabyte for a month"),
        ("gb-out", 0.02, "price of a gigabyte to another region"),
    ):
        parser.add_argument(
            f"--{name}", type=float, default=default, metavar="X", help=f"{what} (default: {default:,})"
        )
    options = parser.parse_args()
    columns = [dict(Costs(samples, options).lines()) for samples in SIZES]
    lines = ([name, *(column[name] for column in columns)] for name in columns[0])
    heads = next(lines)
    print(rates.table(heads, lines))


if __name__ == "__main__":
    main()
