"""FFCV's Loader over a file that its DatasetWriter writes from the presized JPEGs.

FFCV's image field takes pixels and compresses them itself. `--stored same` stores the bytes of the JPEG instead, so
that FFCV decodes the same JPEGs as the others, with its own decoder. `--stored own` lets it compress the pixels a
second time, at quality 90; `--stored raw` stores the pixels.
"""

from __future__ import annotations

import io
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from ffcv.fields import IntField, RGBImageField
from ffcv.fields.basics import IntDecoder
from ffcv.fields.rgb_image import IMAGE_MODES, RandomResizedCropRGBImageDecoder
from ffcv.loader import Loader, OrderOption
from ffcv.transforms import RandomHorizontalFlip, Squeeze, ToTensor, ToTorchImage
from ffcv.writer import DatasetWriter
from loading import CROP_SIZE, chosen, contents, make_once, parser, run, with_store
from PIL import Image


class StoredJPEGField(RGBImageField):
    """An image field that stores the bytes of a JPEG unchanged; FFCV reads them like any other image."""

    def encode(self, destination: Any, image: bytes, malloc: Any) -> None:
        width, height = Image.open(io.BytesIO(image)).size
        destination["mode"] = IMAGE_MODES["jpg"]
        destination["height"], destination["width"] = height, width
        destination["data_ptr"], storage = malloc(len(image))
        storage[:] = np.frombuffer(image, np.uint8)


class Samples:
    """Bytes or pixels of each file, with a label."""

    def __init__(self, names: list[str], pixels: bool) -> None:
        self.names, self.pixels = names, pixels

    def __len__(self) -> int:
        return len(self.names)

    def __getitem__(self, i: int) -> tuple[Any, int]:
        value: Any = contents(self.names[i])
        return (np.asarray(Image.open(io.BytesIO(value)).convert("RGB")) if self.pixels else value), i % 1000


def write(options: Any, path: Path) -> None:
    image = {
        "same": lambda: StoredJPEGField(),
        "own": lambda: RGBImageField(write_mode="jpg", jpeg_quality=90),
        "raw": lambda: RGBImageField(write_mode="raw"),
    }[options.stored]()
    writer = DatasetWriter(str(path), {"image": image, "label": IntField()}, num_workers=options.workers)
    writer.from_indexed_dataset(Samples(chosen(options), pixels=options.stored != "same"))


def loader(options: Any) -> Iterable[Any]:
    crop = RandomResizedCropRGBImageDecoder((CROP_SIZE, CROP_SIZE), scale=(0.08, 1.0), ratio=(3 / 4, 4 / 3))
    return Loader(
        str(options.store),
        batch_size=options.batch,
        num_workers=options.workers,
        order=OrderOption.RANDOM,
        os_cache=True,
        drop_last=True,
        pipelines={
            "image": [crop, RandomHorizontalFlip(0.5), ToTensor(), ToTorchImage()],
            "label": [IntDecoder(), ToTensor(), Squeeze()],
        },
        custom_fields={"image": StoredJPEGField} if options.stored == "same" else {},
    )


def main() -> None:
    arguments = with_store(parser(__doc__ or ""))
    arguments.add_argument("--stored", choices=["same", "own", "raw"], default="same")
    options = arguments.parse_args()
    torch.set_num_threads(1)
    make_once(options.store, lambda path: write(options, path))
    run(lambda: loader(options), options, "ffcv", "torch", "numba", "numpy")


if __name__ == "__main__":
    main()
