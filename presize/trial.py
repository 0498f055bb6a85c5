"""A small dataset of some images of a folder, to see what presizing all of them would give."""

from __future__ import annotations

from pathlib import Path

from presize.bench.arms import common_samples, link_samples, list_raw
from presize.build.run import build_dataset
from presize.options import BuildOptions, ImageOptions, RunOptions, Size


def build_trial(root: str, folder: Path, size: Size, *, images: int = 512, seed: int = 0) -> Path:
    """An LMDB dataset, in `folder`, of `images` drawn at random by `seed` from the folder of images `root`, or of
    all if there are fewer.

    Raises SourceError when there are none, BenchError when none of those drawn can be stored, and BuildError.
    """
    raw = list_raw(root)
    chosen = common_samples({"raw": raw}, images, seed)["raw"]
    source = link_samples(raw, chosen, folder / "raw")
    build_dataset(
        source, folder / "lmdb", BuildOptions(ImageOptions(sizes=(size,)), follow_links=True), RunOptions(report=False)
    )
    return folder / "lmdb"
