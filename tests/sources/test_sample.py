from __future__ import annotations

import io
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image, ImageOps, JpegImagePlugin, UnidentifiedImageError

from presize.errors import OptionError, SourceError
from presize.sources.sample import ORIENTATION, SampleOptions, class_name, make_samples, picture, sample_file

Files = dict[str, bytes]


def files(options: SampleOptions) -> Files:
    return dict(sample_file(options, index) for index in range(options.images))


def opened(content: bytes) -> Image.Image:
    image = Image.open(io.BytesIO(content))
    image.load()
    return image


def test_only_the_options_determine_the_files_of_the_folder(tmp_path: Path) -> None:
    options, told = SampleOptions(images=7, classes=3, long_side=64, broken=1), []

    def tell() -> None:
        told.append(sum(path.is_file() for path in tmp_path.rglob("*")))

    assert make_samples(tmp_path / "new" / "raw", options, tell) == 7
    assert told == [1, 2, 3, 4, 5, 6, 7]
    found = {
        path.relative_to(tmp_path / "new" / "raw").as_posix(): path.read_bytes()
        for path in (tmp_path / "new" / "raw").rglob("*")
        if path.is_file()
    }
    assert found == files(options)


def test_a_folder_with_files_or_a_file_is_refused_and_left_alone(tmp_path: Path) -> None:
    (tmp_path / "holiday.jpg").write_bytes(b"mine")
    for folder, said in ((tmp_path, "is not empty; choose a new or"), (tmp_path / "holiday.jpg", "cannot write")):
        with pytest.raises(SourceError, match=said):
            make_samples(folder)
    assert [path.name for path in tmp_path.iterdir()] == ["holiday.jpg"]


def test_a_stopped_run_leaves_the_folder_as_it_was(tmp_path: Path) -> None:
    def stop() -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        make_samples(tmp_path / "new", SampleOptions(images=5), stop)
    assert not list(tmp_path.iterdir())


def test_classes_have_distinct_names_that_sort_by_number_and_equally_many_files() -> None:
    names = [class_name(label, 1000) for label in range(1000)]
    assert names == sorted(set(names))
    assert names[:2] == ["000-red-disc", "001-jade-star"]
    options = SampleOptions(images=103, classes=10)
    counts = Counter(options.label(index) for index in range(103))
    assert sorted(counts) == list(range(10))
    assert set(counts.values()) == {10, 11}


def test_the_hue_depends_on_the_class() -> None:
    """Compares red with green in the most colourful pixels of each picture."""
    options = SampleOptions(images=40, classes=2, long_side=160)
    right = 0
    for index in range(options.images):
        red, green, _ = np.moveaxis(picture(options, index).astype(int), -1, 0)
        loudest = np.abs(red - green) >= np.percentile(np.abs(red - green), 95)
        right += int((green - red)[loudest].mean() > 0) == options.label(index)
    assert right >= 34


@pytest.mark.slow
def test_sizes_formats_and_bytes_are_mixed_as_in_imagenet() -> None:
    made = files(SampleOptions(images=100))
    images = [opened(content) for content in made.values()]
    suffixes = {"JPEG": ".jpg", "PNG": ".png", "WEBP": ".webp"}
    assert [Path(path).suffix for path in made] == [suffixes[str(image.format)] for image in images]
    modes = {("JPEG", "RGB"), ("JPEG", "L"), ("PNG", "RGB"), ("PNG", "RGBA"), ("WEBP", "RGB")}
    assert {(image.format, image.mode) for image in images} >= modes
    assert any(image.info.get("progressive") for image in images)
    jpegs = [image for image in images if isinstance(image, JpegImagePlugin.JpegImageFile)]
    sampling = Counter(map(JpegImagePlugin.get_sampling, jpegs))
    assert 0.6 < sampling[2] / len(images) < 0.9, "4:2:0"
    assert sampling[0], "4:4:4"
    sizes = [ImageOps.exif_transpose(image).size for image in images]
    assert {(500, 375), (375, 500), (500, 333)} <= set(sizes)
    assert min(map(min, sizes)) < 128 and max(map(max, sizes)) > 700
    pixels = [image.width * image.height if image.format == "JPEG" else np.inf for image in images]
    rates = np.array(list(map(len, made.values()))) / pixels
    assert 0.5 < np.mean(rates[rates > 0]) < 0.66, "of 1,000 ImageNet photographs: 0.58"
    turned = [image.getexif()[ORIENTATION] for image in images if ORIENTATION in image.getexif()]
    assert 4 <= len(turned) <= 20


def test_rotated_images_are_correct_once_upright() -> None:
    options = SampleOptions(images=30, classes=1, long_side=100, rotated=1)
    orientations = set()
    for index, content in enumerate(files(options).values()):
        stored, pixels = opened(content), picture(options, index)
        orientations.add(stored.getexif()[ORIENTATION])
        upright = np.asarray(ImageOps.exif_transpose(stored).convert("L"), float)
        expected = np.asarray(Image.fromarray(pixels).convert("L"), float)
        assert upright.shape == expected.shape
        assert np.corrcoef(upright.ravel(), expected.ravel())[0, 1] > 0.9
    assert orientations == set(range(2, 9))


def test_files_are_broken_in_four_ways_equally_in_each_class() -> None:
    broken = {}
    for path, content in files(SampleOptions(images=16, classes=2, long_side=64, broken=4)).items():
        try:
            opened(content)
        except (UnidentifiedImageError, OSError):
            broken[path] = content
    cut, empty, page, noise = broken.values()
    assert cut.startswith(b"\xff\xd8\xff") and b"\xff\xd9" not in cut[-2:]
    assert empty == b""
    assert page.startswith(b"<!DOCTYPE html>")
    assert len(set(noise)) == 256
    assert Counter(path.partition("/")[0] for path in broken) == {"0-red-disc": 2, "1-jade-star": 2}


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"images": 3, "classes": 4}, "classes: expected a whole number from 1 to 3, got 4"),
        ({"images": 5, "broken": 6}, "broken: expected a whole number from 0 to 5, got 6"),
        ({"rotated": 1.5}, "rotated: expected a fraction from 0 to 1, got 1.5"),
        ({"rotated": float("nan")}, "rotated: .* got nan"),
    ],
)
def test_options_out_of_range_are_refused_by_name_and_value(values: dict[str, Any], message: str) -> None:
    with pytest.raises(OptionError, match=message):
        SampleOptions(**{"classes": 1, **values})
