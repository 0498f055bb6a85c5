"""LitData's StreamingDataLoader over chunks of the presized JPEGs on the local disk."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

import litdata
import torch
from loading import chosen, contents, make_once, parser, run, with_store
from pil_crop import PACKAGES, cropped


class Samples(litdata.StreamingDataset):  # type: ignore[misc]
    def __getitem__(self, i: int) -> tuple[torch.Tensor, int]:
        sample = super().__getitem__(i)
        return cropped(sample["image"]), sample["label"]


def stored(numbered: tuple[int, str]) -> dict[str, Any]:
    i, name = numbered
    return {"image": contents(name), "label": i % 1000}


def write(options: Any, folder: Path) -> None:
    inputs = list(enumerate(chosen(options)))
    litdata.optimize(stored, inputs, str(folder), chunk_bytes="64MB", num_workers=options.workers, verbose=False)


def loader(options: Any) -> Iterable[Any]:
    samples = Samples(str(options.store), shuffle=True, drop_last=True)
    return litdata.StreamingDataLoader(
        samples, batch_size=options.batch, num_workers=options.workers, persistent_workers=True
    )


def main() -> None:
    options = with_store(parser(__doc__ or "")).parse_args()
    torch.set_num_threads(1)
    make_once(options.store, lambda folder: write(options, folder))
    run(lambda: loader(options), options, "litdata", *PACKAGES)


if __name__ == "__main__":
    main()
