"""MosaicML Streaming in a DataLoader, over MDS shards of the presized JPEGs on the local disk."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

import torch
from loading import chosen, contents, make_once, parser, run, with_store
from pil_crop import PACKAGES, cropped  # before streaming, which imports torchvision
from streaming import MDSWriter, StreamingDataset
from streaming.base.util import clean_stale_shared_memory
from torch.utils.data import DataLoader


class Samples(StreamingDataset):  # type: ignore[misc]
    def __getitem__(self, i: int) -> tuple[torch.Tensor, int]:
        sample = super().__getitem__(i)
        return cropped(sample["image"]), sample["label"]


def write(options: Any, folder: Path) -> None:
    with MDSWriter(out=str(folder), columns={"image": "bytes", "label": "int"}, size_limit=1 << 26) as shards:
        for i, name in enumerate(chosen(options)):
            shards.write({"image": contents(name), "label": i % 1000})


def loader(options: Any) -> Iterable[Any]:
    samples = Samples(local=str(options.store), shuffle=True, batch_size=options.batch)
    return DataLoader(samples, options.batch, drop_last=True, num_workers=options.workers, persistent_workers=True)


def main() -> None:
    options = with_store(parser(__doc__ or "")).parse_args()
    torch.set_num_threads(1)
    clean_stale_shared_memory()
    make_once(options.store, lambda folder: write(options, folder))
    run(lambda: loader(options), options, "mosaicml-streaming", *PACKAGES)


if __name__ == "__main__":
    main()
