"""WebDataset in a DataLoader, over tar shards of the presized JPEGs, shuffled by shard and in a buffer."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

import torch
import webdataset
from loading import chosen, contents, make_once, parser, run, with_store
from pil_crop import PACKAGES, cropped
from torch.utils.data import DataLoader

_SHARD_IMAGES = 250


def write(options: Any, folder: Path) -> None:
    folder.mkdir()
    with webdataset.ShardWriter(str(folder / "%05d.tar"), maxcount=_SHARD_IMAGES, verbose=0) as shards:
        for i, name in enumerate(chosen(options)):
            shards.write({"__key__": f"{i:07d}", "jpg": contents(name), "cls": str(i % 1000)})


def loader(options: Any) -> Iterable[Any]:
    shards = sorted(str(path) for path in options.store.glob("*.tar"))
    samples = webdataset.WebDataset(shards, shardshuffle=len(shards)).shuffle(1000).to_tuple("jpg", "cls")
    batches = samples.map_tuple(cropped, int).batched(options.batch, partial=False)
    return DataLoader(batches, batch_size=None, num_workers=options.workers, persistent_workers=True)


def main() -> None:
    options = with_store(parser(__doc__ or "")).parse_args()
    torch.set_num_threads(1)
    make_once(options.store, lambda folder: write(options, folder))
    run(lambda: loader(options), options, "webdataset", *PACKAGES)


if __name__ == "__main__":
    main()
