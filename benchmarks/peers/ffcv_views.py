"""The Loader of FFCV-SSL, a fork of FFCV for several views of one field (`custom_field_mapper`), over the file that
ffcv_read.py writes from the presized JPEGs."""

from __future__ import annotations

import json
import time
from typing import Any

import torch
from ffcv.fields.basics import IntDecoder
from ffcv.fields.rgb_image import RandomResizedCropRGBImageDecoder
from ffcv.loader import Loader, OrderOption
from ffcv.transforms import RandomHorizontalFlip, Squeeze, ToTensor, ToTorchImage
from ffcv_read import StoredJPEGField, write
from loading import make_once, parser, with_store


def loader(options: Any) -> Any:
    views = [(side, scale) for side, scale, count in json.loads(options.views) for _ in range(count)]
    names = ["image", *(f"image_{number}" for number in range(1, len(views)))]
    pipelines: dict[str, list[Any]] = {"label": [IntDecoder(), ToTensor(), Squeeze()]}
    for name, (side, scale) in zip(names, views, strict=True):
        crop = RandomResizedCropRGBImageDecoder((side, side), scale=tuple(scale), ratio=(3 / 4, 4 / 3))
        pipelines[name] = [crop, RandomHorizontalFlip(0.5), ToTensor(), ToTorchImage()]
    return Loader(
        str(options.store),
        batch_size=options.batch,
        num_workers=options.workers,
        order=OrderOption.RANDOM,
        os_cache=True,
        drop_last=False,
        pipelines=pipelines,
        custom_fields={"image": StoredJPEGField},
        custom_field_mapper=dict.fromkeys(names[1:], "image"),
    )


def main() -> None:
    arguments = with_store(parser(__doc__ or ""))
    arguments.add_argument("--views", required=True, help="JSON: [[side, [low, high], count], ...]")
    arguments.set_defaults(stored="same")
    options = arguments.parse_args()
    torch.set_num_threads(1)
    make_once(options.store, lambda path: write(options, path))
    batches = loader(options)
    for _ in batches:  # FFCV compiles
        pass
    begin_s, cpu_s = time.perf_counter(), time.process_time()
    images = sum(len(batch[0]) for batch in batches)
    seconds, cpu_seconds = time.perf_counter() - begin_s, time.process_time() - cpu_s
    print(json.dumps({"images": images, "seconds": seconds, "cpu_seconds": cpu_seconds}))


if __name__ == "__main__":
    main()
