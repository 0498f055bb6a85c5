"""presize's Loader, or LMDBDataset in a DataLoader, over a dataset of `presize build`."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch
from loading import CROP_SIZE, parser, run


def loader(options: Any) -> Iterable[Any]:
    from presize.datasets import LMDBDataset, Loader, RandomResizedCrop

    return Loader(
        LMDBDataset(options.folder),
        batch_size=options.batch,
        crop=RandomResizedCrop(CROP_SIZE),
        flip=0.5,
        num_workers=options.workers,
        shuffle=True,
        seed=0,
        drop_last=True,
        mode=options.mode,
        device=options.device,
    )


def dataset(options: Any) -> Iterable[Any]:
    from presize.datasets import LMDBDataset, RandomResizedCrop, make_loader

    data = LMDBDataset(options.folder, decode="tensor", crop=RandomResizedCrop(CROP_SIZE), flip=0.5)
    return make_loader(
        data, batch_size=options.batch, shuffle=True, num_workers=options.workers, seed=0, drop_last=True
    )


_WAYS = {"loader": loader, "dataset": dataset}


def main() -> None:
    arguments = parser(__doc__ or "")
    arguments.add_argument("--way", choices=list(_WAYS), default="loader")
    arguments.add_argument("--mode", choices=["processes", "threads"], default="processes", help="mode of the Loader")
    arguments.add_argument("--device", default="cpu", help="device of the Loader's batches")
    options = arguments.parse_args()
    if options.images is not None:
        arguments.error("--images: not supported, datasets are read completely")
    torch.set_num_threads(1)
    run(lambda: _WAYS[options.way](options), options, "presize", "torch", "simplejpeg", "opencv-python-headless")


if __name__ == "__main__":
    main()
