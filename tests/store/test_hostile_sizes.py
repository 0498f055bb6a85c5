"""Images that declare too many pixels or scans: refused before any memory is allocated for them."""

from __future__ import annotations

import io
import shutil
import struct
from pathlib import Path
from typing import Any, get_args

import numpy as np
import pyarrow as pa
import pytest
from PIL import Image

from pictures import smooth_image
from presize.codecs.encode import encode
from presize.codecs.jpeg import segments as jpeg_segments
from presize.codecs.stored_value import DAMAGE, decode_value
from presize.codecs.transcode import transcode
from presize.datasets import CenterCrop, LMDBDataset, Loader, RandomResizedCrop
from presize.datasets.reading.regions import View, cut_region, read_region, uncut_region
from presize.errors import DatasetError, ImageError
from presize.options import Format, ImageOptions, Size
from presize.store.verify import verify_dataset
from processes import run_python
from tampering import change_manifest, change_records, read_table, with_column, write_table

HUGE = 65_500


def resized(jpeg: bytes, height: int, width: int) -> bytes:
    """Return a JPEG whose frame header declares another size."""
    begin = next(at for marker, at, _ in jpeg_segments.segments(jpeg) if marker in (0xC0, 0xC1, 0xC2))
    return jpeg[: begin + 5] + struct.pack(">HH", height, width) + jpeg[begin + 9 :]


def of_many_scans(count: int) -> bytes:
    """Return a progressive JPEG of 48×64 pixels with `count` more copies of its first scan."""
    buffer = io.BytesIO()
    Image.fromarray(smooth_image(48, 64)).save(buffer, "JPEG", progressive=True)
    data = buffer.getvalue()
    begin = data.index(b"\xff\xda")
    end = data.index(b"\xff\xc4", begin)
    return data[:begin] + data[begin:end] * count + data[begin:]


@pytest.mark.parametrize("format", get_args(Format))
def test_an_image_of_another_size_than_indexed_or_of_too_many_pixels_is_damage(format: Format) -> None:
    value = memoryview(encode(smooth_image(48, 64), ImageOptions(format=format)))
    assert decode_value(value, format, "rgb", (48, 64), 48 * 64).shape == (48, 64, 3)
    with pytest.raises(DAMAGE, match="more than max_pixels allows"):
        decode_value(value, format, "rgb", (48, 64), 48 * 64 - 1)
    with pytest.raises(DAMAGE):
        decode_value(value, format, "rgb", (64, 64))


MEMORY = """
    import resource, sys
    from pathlib import Path
    from presize.codecs.stored_value import DAMAGE, decode_value
    from presize.datasets.reading.regions import View, cut_region, read_region, uncut_region
    import numpy as np
    data = Path(sys.argv[1]).read_bytes()
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    refused = 0
    for index_shape in ((128, 128), (65_500, 65_500)):
        try:
            decode_value(memoryview(data), "jpeg", "rgb", index_shape)
        except DAMAGE:
            refused += 1
    for region in (cut_region(data, (0, 0, 64, 64)), uncut_region(memoryview(data), "jpeg", (0, 0, 64, 64))):
        try:
            read_region([View(np.empty((32, 32, 3), np.uint8), (0, 0, 64, 64))], region, (128, 128), 2)
        except DAMAGE:
            refused += 1
    grown = (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) // 1024
    print(refused, "refused, grown by less than 100 MB" if grown < 100 else f"grown by {grown} MB")
"""


@pytest.mark.slow
@pytest.mark.parametrize("tiles", [True, False])
def test_a_header_that_declares_gigabytes_takes_no_memory(tiles: bool, tmp_path: Path) -> None:
    value = encode(smooth_image(128, 128), ImageOptions(tiles=tiles))
    (tmp_path / "a.jpg").write_bytes(resized(value, HUGE, HUGE))
    assert run_python(MEMORY, tmp_path / "a.jpg") == "4 refused, grown by less than 100 MB\n"


@pytest.mark.parametrize("scale", [256, 8], ids=["whole", "reduced"])
def test_a_build_rejects_a_jpeg_of_too_many_scans(scale: int) -> None:
    options = ImageOptions(sizes=(Size(scale, scale),))
    assert transcode(of_many_scans(20), options).records
    with pytest.raises(ImageError, match="scans of 3072 pixels each"):
        transcode(of_many_scans(400), options)


@pytest.mark.parametrize("cut", [True, False])
def test_reading_refuses_a_jpeg_of_too_many_scans(cut: bool) -> None:
    value = of_many_scans(400)
    with pytest.raises(ImageError, match="scans of 3072 pixels each"):
        decode_value(memoryview(value), "jpeg", "rgb", (48, 64))
    region = cut_region(value, (0, 0, 48, 64)) if cut else uncut_region(memoryview(value), "jpeg", (0, 0, 48, 64))
    with pytest.raises(ImageError, match="scans of 3072 pixels each"):
        read_region([View(np.empty((24, 24, 3), np.uint8), region.box)], region, (48, 64))


@pytest.fixture
def huge(dataset: Path, tmp_path: Path) -> Path:
    """Build a dataset whose index and records agree on 65,500 pixels a side."""
    out = tmp_path / "huge"
    shutil.copytree(dataset, out)
    change_records(out, lambda _shard, _row, value: resized(value, HUGE, HUGE))
    table = read_table(out)
    for side in ("width", "height"):
        table = with_column(table, side, pa.array([HUGE] * len(table), pa.int32()))
    write_table(out, table)
    return out


def test_a_consistent_dataset_of_huge_images_is_not_decoded(huge: Path) -> None:
    with pytest.raises(DatasetError, match="more than max_pixels"):
        LMDBDataset(huge)[0]
    with pytest.raises(DatasetError, match="more than max_pixels"):
        next(iter(Loader(LMDBDataset(huge), 2, crop=RandomResizedCrop(32), num_workers=1)))
    with pytest.raises(DatasetError, match="more than max_pixels"):
        LMDBDataset(huge, flip=0.5)
    skipping = Loader(LMDBDataset(huge), 2, crop=CenterCrop(32), num_workers=1, on_error="skip")
    assert sum(len(images) for images, _ in skipping) == 0
    assert verify_dataset(huge).problems, "and verify says so"


def test_an_image_that_a_higher_limit_allowed_is_intact_and_not_decoded(huge: Path) -> None:
    def allow(values: dict[str, Any]) -> None:
        values["identity"]["options"]["image"]["max_pixels"] = HUGE**2

    change_manifest(huge, allow)
    assert not verify_dataset(huge).problems
