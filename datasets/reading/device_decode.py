"""JPEGs that workers cut and the device decodes.

A worker leaves a crop undecoded: a row of its batch is six numbers, followed by the JPEG of the tiles under the crop.
The driver passes the JPEGs of a batch to a decoder of the device, all at once, and crops, resizes and mirrors there.
"""

from __future__ import annotations

import contextlib
import importlib
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, Literal

import numpy as np
import numpy.typing as npt
import simplejpeg
import torch

from presize.codecs.jpeg.segments import coded_size
from presize.codecs.stored_value import check_shape
from presize.datasets.crops import Crops
from presize.datasets.reading.batches import BatchReader, RowFormat
from presize.datasets.reading.regions import Region
from presize.errors import LoaderError, OptionError
from presize.store.dataset import Dataset

DecodeOn = Literal["workers", "device"]

Decoder = Callable[[list[torch.Tensor]], Sequence[torch.Tensor]]
"""JPEGs, each uint8 (n,) on the CPU -> their pixels, each uint8 (channels, height, width) on the device, in the same
order; one channel suffices where all are equal. On CUDA, the pixels are ready for work queued on the current stream
afterwards. Raises RuntimeError or ValueError when it cannot decode."""

_HEADER_BYTES = 6 * 8
"""int64: length of the JPEG in bytes; top, left, height and width of the box in its pixels; 1 to mirror it."""


def cut_reader(
    data: Dataset, crop: Crops | None, flip: float = 0.0, *, companions: Sequence[Dataset] = ()
) -> BatchReader:
    """A BatchReader that only cuts JPEGs, for decode_rows to decode.

    Its batches are uint8 (samples, bytes), with room in each row for the largest stored value, so that all cuts fit.
    Reading finds damaged headers, not damaged pixels.

    Raises:
        OptionError: the dataset does not hold JPEGs, `crop` is several or does not suit the dataset, or there are
            companions.
    """
    if companions:
        raise OptionError("decode_on: companions are decoded by workers; choose 'workers', or companions=()")
    if isinstance(crop, (list, tuple)):
        raise OptionError(f"decode_on: a device decodes one crop an image, got a list of {len(crop)}; choose 'workers'")
    if data.manifest.format != "jpeg":
        raise OptionError(
            f"decode_on: a device decodes only JPEGs, and {data.root} holds {data.manifest.format}; "
            "choose 'workers', or build with --format jpeg"
        )
    largest = int(data.numbers("nbytes").max(initial=0))  # no cut is larger than what it was cut from
    row_bytes = _HEADER_BYTES + -(-largest // 8) * 8
    return BatchReader(data, crop, flip, RowFormat([(row_bytes,)], fill_row, needs_cut=True))


def fill_row(
    out: npt.NDArray[np.uint8],
    region: Region,
    shape: tuple[int, int],
    *,
    flip: bool,
    exact: bool,  # noqa: ARG001
) -> None:
    """Fill the row `out` with what a decoder needs for the box of `region`; arguments as those of read_region.

    Raises:
        ValueError: the JPEG is whole and not of `shape`, or its header is damaged.
    """
    if region.whole:
        coded_height, coded_width, _ = coded_size(region.data)
        check_shape((coded_height, coded_width), shape)
    length = len(region.data)
    out[:_HEADER_BYTES].view(np.int64)[:] = length, region.top, region.left, *region.box[2:], flip
    out[_HEADER_BYTES : _HEADER_BYTES + length] = np.frombuffer(region.data, np.uint8)


def decode_rows(
    rows: npt.NDArray[np.uint8], decoder: Decoder, shape: tuple[int, int, int], device: torch.device
) -> tuple[torch.Tensor, dict[int, str]]:
    """Decode a batch of cut_reader() on `device`, and bring its images to `shape`.

    Resizes with torch's antialiased bilinear interpolation in float32, and rounds. On CUDA all work is queued on the
    current stream, and `rows` must not change until that is done. When `decoder` fails, the CPU tries each JPEG.

    Args:
        rows: uint8 (n, bytes).
        decoder: of JPEGs, for `device`.
        shape: (height, width, channels) of each image.
        device: where the images come to lie.

    Returns:
        The images, uint8 (at most n, channels, height, width) in channels-last memory, and the damaged ones that are
        left out: what is wrong, by position.

    Raises:
        LoaderError: `decoder` failed although all JPEGs are intact, or gave too few pixels.
    """
    height, width, channels = shape
    headers = rows[:, :_HEADER_BYTES].view(np.int64)
    lengths = headers[:, 0].tolist()
    # Parts of one tensor, not tensors of parts: each keeps the memory of `rows` as long as a decoder keeps it.
    jpegs = [row[_HEADER_BYTES:][:length] for row, length in zip(torch.from_numpy(rows), lengths, strict=True)]
    if device.type == "cuda":
        # nvJPEG's hardware writes into memory that kernels still queued here may be reading from, those that
        # resized the batch before: torchvision and torchcodec up to 0.16 do not wait for them (torchcodec #1634).
        torch.cuda.current_stream(device).synchronize()
    damaged: dict[int, str] = {}
    while True:
        whole = [position for position in range(len(jpegs)) if position not in damaged]
        try:
            decoded = decoder([jpegs[position] for position in whole]) if whole else []
            break
        except (RuntimeError, ValueError) as error:
            if damaged or not (damaged := _damaged(jpegs)):
                raise LoaderError(
                    f"the decoder of {device} failed on intact JPEGs: {_first_line(error)}; choose decode_on='workers'"
                ) from error
    images = torch.empty(
        (len(whole), channels, height, width), dtype=torch.uint8, device=device, memory_format=torch.channels_last
    )
    for out, image, header in zip(images, decoded, headers[whole].tolist(), strict=True):
        _, top, left, box_height, box_width, flip = header
        pixels = image[:, top : top + box_height, left : left + box_width]
        if pixels.shape[1:] != (box_height, box_width):
            raise LoaderError(
                f"the decoder of {device} gave {image.shape[1]} x {image.shape[2]} pixels, too few for "
                f"{box_height} x {box_width} at ({top}, {left})"
            )
        if pixels.shape[1:] != (height, width):
            pixels = torch.nn.functional.interpolate(
                pixels[None].float(), (height, width), mode="bilinear", antialias=True
            )[0].round_()
        out.copy_(pixels.flip(2) if flip else pixels)
    return images, damaged


def _damaged(jpegs: list[torch.Tensor]) -> dict[int, str]:
    """What is wrong with those that the CPU cannot decode either, by position."""
    found = {}
    for position, jpeg in enumerate(jpegs):
        try:
            simplejpeg.decode_jpeg(jpeg.numpy())
        except ValueError as error:
            found[position] = str(error)
    return found


def _first_line(error: Exception) -> str:
    return str(error).partition("\n")[0]


def find_decoder(device: torch.device, channels: int) -> Decoder:
    """The installed decoder of JPEGs for `device`: torchcodec's, or else torchvision's. Both call nvJPEG on CUDA.

    It is tried with a small JPEG.

    Args:
        device: where to decode.
        channels: 3 for RGB, 1 for grey.

    Raises:
        OptionError: no decoder is installed, or none works on `device`.
    """
    on_device: Any = torch.cuda.device(device) if device.type == "cuda" else contextlib.nullcontext()
    small = torch.frombuffer(bytearray(simplejpeg.encode_jpeg(np.zeros((16, 16, 3), np.uint8))), dtype=torch.uint8)
    reasons = []
    for name, make in _DECODERS.items():
        try:
            decoder = make("RGB" if channels == 3 else "GRAY", device)
            with on_device:
                decoder([small])
        except (ImportError, AttributeError, OSError, RuntimeError) as error:
            reasons.append(f"{name}: {_first_line(error)}")
        else:
            return decoder
    raise OptionError(
        f"decode_on: no decoder for JPEGs works on {device} ({'; '.join(reasons)}); install torchcodec 0.16 or "
        "newer, built for your CUDA, or choose 'workers'"
    )


def _torchcodec(mode: str, device: torch.device) -> Decoder:
    return partial(importlib.import_module("torchcodec.decoders").decode_jpeg, mode=mode, device=device)


def _torchvision(mode: str, device: torch.device) -> Decoder:
    io: Any = importlib.import_module("torchvision.io")
    return partial(io.decode_jpeg, mode=io.ImageReadMode[mode], device=device)


_DECODERS: dict[str, Callable[[str, torch.device], Decoder]] = {
    "torchcodec": _torchcodec,  # from 0.16; torchvision deprecates its own since 0.29
    "torchvision": _torchvision,
}
