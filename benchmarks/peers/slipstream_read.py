"""slipstream's loader over a cache of the presized JPEGs, or of their 4:2:0 planes."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import torchvision_shim  # noqa: F401  # isort: skip  # before slipstream, which imports torchvision
import slipstream
import torch
from loading import CROP_SIZE, chosen, contents, make_once, parser, run, with_store
from slipstream.transforms import RandomHorizontalFlip


class Samples:
    """Bytes of each file with a label, for the cache in `folder`."""

    def __init__(self, names: list[str], folder: Path) -> None:
        self.names, self.cache_path = names, folder
        self.field_types = {"image": "ImageBytes", "label": "int"}

    def __len__(self) -> int:
        return len(self.names)

    def __getitem__(self, i: int) -> dict[str, Any]:
        return {"image": contents(self.names[i]), "label": i % 1000}


class Pairs:
    """A loader whose batches are pairs, like the batches of the other libraries."""

    def __init__(self, loader: Any) -> None:
        self.loader = loader

    def __iter__(self) -> Iterator[Any]:
        return ((batch["image"], batch["label"]) for batch in self.loader)


def opened(options: Any, folder: Path) -> Any:
    crop = slipstream.DecodeRandomResizedCrop(CROP_SIZE, num_threads=options.workers, to_tensor=True, permute=True)
    return slipstream.SlipstreamLoader(
        Samples(chosen(options), folder),
        batch_size=options.batch,
        pipelines={"image": [crop, RandomHorizontalFlip(0.5)]},
        image_format=options.stored,
        verbose=False,
    )


def loader(options: Any) -> Iterable[Any]:
    return Pairs(opened(options, options.store))


def main() -> None:
    arguments = with_store(parser(__doc__ or ""))
    arguments.add_argument("--stored", choices=["jpeg", "yuv420"], default="jpeg")
    options = arguments.parse_args()
    torch.set_num_threads(1)
    make_once(options.store, lambda folder: opened(options, folder))
    run(lambda: loader(options), options, "visionlab-slipstream", "torch", "numba", "numpy")


if __name__ == "__main__":
    main()
