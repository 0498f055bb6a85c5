from __future__ import annotations

import io
from collections import Counter
from pathlib import Path
from typing import Any, NamedTuple

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


class Decoded(NamedTuple):
    path: str
    nbytes: int
    image: Image.Image


@pytest.fixture(scope="module")
def usual() -> list[Decoded]:
    """The first of what `presize sample` makes when nothing is asked for."""
    return [Decoded(path, len(content), opened(content)) for path, content in files(SampleOptions(images=100)).items()]


def test_the_folder_holds_the_files_that_the_options_alone_decide(tmp_path: Path) -> None:
    options = SampleOptions(images=7, classes=3, long_side=64, broken=1)
    assert make_samples(tmp_path / "new" / "raw", options) == 7
    found = {
        path.relative_to(tmp_path / "new" / "raw").as_posix(): path.read_bytes()
        for path in (tmp_path / "new" / "raw").rglob("*")
        if path.is_file()
    }
    assert found == files(options)


def test_progress_is_told_after_each_image_in_an_empty_folder(tmp_path: Path) -> None:
    calls: list[int] = []
    options = SampleOptions(images=3, classes=1, long_side=16)
    make_samples(tmp_path, options, lambda: calls.append(sum(path.is_file() for path in tmp_path.rglob("*"))))
    assert calls == [1, 2, 3]


def test_a_folder_with_files_or_a_file_is_refused_and_left_alone(tmp_path: Path) -> None:
    (tmp_path / "holiday.jpg").write_bytes(b"mine")
    for folder, said in ((tmp_path, "is not empty; choose a new folder"), (tmp_path / "holiday.jpg", "cannot write")):
        with pytest.raises(SourceError, match=said):
            make_samples(folder)
    assert [path.name for path in tmp_path.iterdir()] == ["holiday.jpg"]


def test_another_seed_gives_other_pictures() -> None:
    one, two = (picture(SampleOptions(long_side=64, seed=seed), 0) for seed in (1, 2))
    assert one.shape != two.shape or (one != two).any()


def test_images_are_spread_evenly_over_the_classes() -> None:
    options = SampleOptions(images=103, classes=10)
    counts = Counter(options.label(index) for index in range(103))
    assert sorted(counts) == list(range(10))
    assert set(counts.values()) == {10, 11}


def test_class_folders_have_distinct_names_that_sort_by_number() -> None:
    names = [class_name(label, 1000) for label in range(1000)]
    assert names == sorted(set(names))
    assert names[:2] == ["000-red-disc", "001-jade-star"]


def test_the_hue_tells_the_class() -> None:
    """Red against green, seen in the most colourful pixels of each picture."""
    options = SampleOptions(images=40, classes=2, long_side=160)
    right = 0
    for index in range(options.images):
        red, green, _ = np.moveaxis(picture(options, index).astype(int), -1, 0)
        loudest = np.abs(red - green) >= np.percentile(np.abs(red - green), 95)
        right += int((green - red)[loudest].mean() > 0) == options.label(index)
    assert right >= 34


def test_sizes_formats_and_bytes_are_mixed_as_in_imagenet(usual: list[Decoded]) -> None:
    suffixes = {"JPEG": ".jpg", "PNG": ".png", "WEBP": ".webp"}
    assert all(Path(path).suffix == suffixes[str(image.format)] for path, _, image in usual)
    images = [image for _, _, image in usual]
    jpegs = [image for image in images if isinstance(image, JpegImagePlugin.JpegImageFile)]
    sampling = Counter(map(JpegImagePlugin.get_sampling, jpegs))
    assert 0.6 < sampling[2] / len(images) < 0.9  # 4:2:0
    assert sampling[0]  # 4:4:4
    assert any(image.info.get("progressive") for image in jpegs)
    assert {image.mode for image in jpegs} == {"RGB", "L"}
    assert {(image.format, image.mode) for image in images} >= {("PNG", "RGB"), ("PNG", "RGBA"), ("WEBP", "RGB")}
    sizes = [ImageOps.exif_transpose(image).size for image in images]
    assert {(500, 375), (375, 500), (500, 333)} <= set(sizes)
    assert len(set(sizes)) > 30
    assert any(min(size) < 128 for size in sizes) and any(max(size) > 700 for size in sizes)
    assert 380 < np.mean(sizes) < 480
    # 1,000 ImageNet photographs: mean 0.58, a tenth below 0.19, a tenth above 0.97.
    rates = [nbytes / (image.width * image.height) for _, nbytes, image in usual if image.format == "JPEG"]
    low, high = np.percentile(rates, [10, 90])
    assert 0.5 < np.mean(rates) < 0.66 and high > 2 * low
    turned = [image.getexif()[ORIENTATION] for image in images if ORIENTATION in image.getexif()]
    assert 4 <= len(turned) <= 20
    assert set(turned) <= set(range(2, 9))


def test_turned_images_are_right_once_upright() -> None:
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


def test_no_image_is_turned_when_none_is_asked_for() -> None:
    contents = files(SampleOptions(images=20, classes=1, long_side=32, rotated=0)).values()
    assert not any(ORIENTATION in opened(content).getexif() for content in contents)


def test_broken_files_are_as_many_as_asked_for_and_spread_over_the_classes() -> None:
    broken: Counter[str] = Counter()
    for path, content in files(SampleOptions(images=60, classes=3, long_side=64, broken=12)).items():
        try:
            opened(content)
        except (UnidentifiedImageError, OSError):
            broken[path.partition("/")[0]] += 1
            assert path.endswith(".jpg")
    assert list(broken.values()) == [4, 4, 4]


def test_files_are_broken_in_four_ways() -> None:
    cut, empty, page, noise = files(SampleOptions(images=4, classes=1, long_side=64, broken=4)).values()
    assert cut.startswith(b"\xff\xd8\xff") and b"\xff\xd9" not in cut[-2:]
    assert empty == b""
    assert page.startswith(b"<!DOCTYPE html>")
    assert len(set(noise)) == 256


def spectrum_slope(pixels: np.ndarray[Any, Any]) -> float:
    """Slope of log amplitude against log frequency, of the upper left square, averaged over directions."""
    side = min(256, *pixels.shape[:2])
    luminance = pixels[:side, :side] @ (0.299, 0.587, 0.114)
    window = np.hanning(side)
    power = np.abs(np.fft.fft2((luminance - luminance.mean()) * np.outer(window, window))) ** 2
    cycles = np.fft.fftfreq(side, 1 / side)
    rings = np.hypot(cycles[:, None], cycles).astype(int).ravel()
    mean_power = np.bincount(rings, power.ravel()) / np.bincount(rings)
    band = np.arange(3, side // 3)
    return float(np.polyfit(np.log(band), np.log(mean_power[band]) / 2, 1)[0])


def test_spectra_are_those_of_photographs(usual: list[Decoded]) -> None:
    """1,000 ImageNet photographs, measured so: mean -1.22, a tenth below -1.57, a tenth above -0.81."""
    slopes = [spectrum_slope(np.asarray(image.convert("RGB"))) for _, _, image in usual[::2]]
    assert -1.35 < np.mean(slopes) < -1.05
    assert 0.1 < np.std(slopes) < 0.5


def test_pictures_may_be_far_larger_than_a_noise_field() -> None:
    options = SampleOptions(images=1, classes=1, long_side=2000)
    assert max(picture(options, 0).shape) > 1024


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"images": 0}, "images: expected a whole number from 1 to 10000000, got 0"),
        ({"images": 10_000_001}, "images: .* got 10000001"),
        ({"classes": 0}, "classes: .* got 0"),
        ({"images": 3, "classes": 4}, "classes: expected a whole number from 1 to 3, got 4"),
        ({"images": 20_000, "classes": 10_001}, "classes: expected a whole number from 1 to 10000, got 10001"),
        ({"broken": -1}, "broken: .* got -1"),
        ({"images": 5, "broken": 6}, "broken: expected a whole number from 0 to 5, got 6"),
        ({"long_side": 15}, "long_side: .* got 15"),
        ({"seed": -1}, "seed: .* got -1"),
        ({"rotated": 1.5}, "rotated: expected a share from 0 to 1, got 1.5"),
        ({"rotated": float("nan")}, "rotated: .* got nan"),
    ],
)
def test_options_out_of_range_are_refused_by_name_and_value(values: dict[str, Any], message: str) -> None:
    with pytest.raises(OptionError, match=message):
        SampleOptions(**{"classes": 1, **values})
