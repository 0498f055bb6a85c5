"""Cut by the workers and decoded on the device: the batches are those of the ordinary way. The device is the
CPU here, with the decoder that workers use; where there is CUDA, it is that one too."""

from __future__ import annotations

import shutil
import sys
from collections.abc import Sequence
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest
import simplejpeg
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from effort import examples
from pictures import smooth_image
from presize.builder.run import build_dataset
from presize.codecs.encode import encode
from presize.datasets import CenterCrop, LMDBDataset, Loader, RandomCrop, RandomResizedCrop, Resize
from presize.datasets.crops import Crop
from presize.datasets.reading.device_decode import cut_reader, decode_rows, fill_row, find_decoder
from presize.datasets.reading.regions import cut_region
from presize.errors import DatasetError, LoaderError, OptionError
from presize.options import BuildOptions, ImageOptions, RunOptions, Size, Subsampling
from tampering import change_records, overwrite_value, read_table

CROP = RandomResizedCrop(40)  # of images of 64 px, so that no box is large enough for a decode at 1/2
CPU = torch.device("cpu")
HEIGHT, WIDTH = 150, 201


def on_the_cpu(jpegs: list[torch.Tensor], color: str = "RGB") -> list[torch.Tensor]:
    decoded = [torch.from_numpy(simplejpeg.decode_jpeg(jpeg.numpy(), color)) for jpeg in jpegs]
    return [pixels.permute(2, 0, 1) for pixels in decoded]


def in_gray(jpegs: list[torch.Tensor]) -> list[torch.Tensor]:
    return on_the_cpu(jpegs, "GRAY")


@pytest.fixture(scope="module")
def data(dataset: Path) -> LMDBDataset:
    return LMDBDataset(dataset)


def epoch(data: LMDBDataset, crop: Crop, **options: Any) -> list[tuple[torch.Tensor, list[int]]]:
    options = {"workers": 0, "flip": 0.5, "shuffle": True, "seed": 5} | options
    with Loader(data, 8, crop=crop, **options) as loader:
        return [(images, targets.tolist()) for images, targets in loader]


def assert_equal_within(levels: int, batches: list[Any], others: list[Any]) -> None:
    assert [targets for _, targets in batches] == [targets for _, targets in others]
    for (images, _), (other, _) in zip(batches, others, strict=True):
        assert images.shape == other.shape
        assert (images.int() - other.int()).abs().max() <= levels


@pytest.mark.parametrize("crop", [CROP, Resize(8), Resize((70, 30)), Resize(90)], ids=str)
def test_resized_batches_are_within_one_level_of_those_that_workers_decode(crop: Crop, data: LMDBDataset) -> None:
    assert_equal_within(1, epoch(data, crop, decode_on=on_the_cpu), epoch(data, crop))


@pytest.mark.parametrize("crop", [CenterCrop(24), RandomCrop((20, 27)), CenterCrop(1)], ids=str)
def test_crops_that_are_not_resized_are_the_same_to_the_bit(crop: Crop, data: LMDBDataset) -> None:
    assert_equal_within(0, epoch(data, crop, decode_on=on_the_cpu), epoch(data, crop))


def test_boxes_that_workers_decode_at_reduced_size_look_the_same(data: LMDBDataset) -> None:
    batches, others = (epoch(data, RandomResizedCrop(12), **how) for how in ({"decode_on": on_the_cpu}, {}))
    differences = torch.cat(
        [images.int() - other.int() for (images, _), (other, _) in zip(batches, others, strict=True)]
    )
    assert 0 < differences.abs().float().mean() < 2


@pytest.mark.parametrize(
    ("workers", "mode", "context"),
    [(2, "processes", "fork"), pytest.param(1, "processes", "spawn", marks=pytest.mark.slow), (3, "threads", None)],
)
def test_the_batches_are_the_same_whoever_cuts(workers: int, mode: Any, context: Any, data: LMDBDataset) -> None:
    alone = epoch(data, CROP, decode_on=on_the_cpu)
    assert_equal_within(0, epoch(data, CROP, decode_on=on_the_cpu, workers=workers, mode=mode, context=context), alone)


def test_a_batch_is_channels_last_uint8_or_normalized(data: LMDBDataset) -> None:
    images, targets = next(iter(Loader(data, 6, crop=CROP, seed=0, workers=0, decode_on=on_the_cpu)))
    assert images.shape == (6, 3, 40, 40) and images.dtype == torch.uint8
    assert images.is_contiguous(memory_format=torch.channels_last)
    assert targets.tolist() == data.targets[:6].tolist()
    half = (0.5,) * 3
    normalized, _ = next(
        iter(
            Loader(
                data, 6, crop=CROP, seed=0, workers=0, decode_on=on_the_cpu, normalize=(half, half), dtype=torch.float32
            )
        )
    )
    assert torch.allclose(normalized, images / 127.5 - 1, atol=1e-5)


@st.composite
def boxes(draw: st.DrawFn) -> tuple[int, int, int, int]:
    height, width = draw(st.integers(1, HEIGHT)), draw(st.integers(1, WIDTH))
    return draw(st.integers(0, HEIGHT - height)), draw(st.integers(0, WIDTH - width)), height, width


def stored(subsampling: Subsampling, tiles: bool) -> bytes:
    return encode(smooth_image(HEIGHT, WIDTH, seed=3), ImageOptions(subsampling=subsampling, tiles=tiles))


def row_of(value: bytes, box: tuple[int, int, int, int], flip: bool) -> np.ndarray:
    row = np.zeros((1, len(value) + 48 + -len(value) % 8), np.uint8)
    fill_row(row[0], cut_region(memoryview(value), box), (HEIGHT, WIDTH), flip=flip, exact=True)
    return row


@settings(max_examples=examples(25))
@given(boxes(), st.booleans(), st.booleans(), st.sampled_from(["420", "444"]))
def test_a_box_of_a_row_is_that_of_the_whole_image(
    box: tuple[int, int, int, int], tiles: bool, flip: bool, subsampling: Subsampling
) -> None:
    value = stored(subsampling, tiles)
    top, left, height, width = box
    images, damaged = decode_rows(row_of(value, box, flip), on_the_cpu, (height, width, 3), CPU)
    expected = simplejpeg.decode_jpeg(value)[top : top + height, left : left + width]
    assert not damaged
    assert np.array_equal(images[0].permute(1, 2, 0), expected[:, ::-1] if flip else expected)


@settings(max_examples=examples(25))
@given(boxes(), st.integers(1, 120), st.integers(1, 120), st.booleans())
def test_a_resized_box_is_torchs_antialiased_interpolation_rounded(
    box: tuple[int, int, int, int], height: int, width: int, flip: bool
) -> None:
    value = stored("420", tiles=True)
    images, _ = decode_rows(row_of(value, box, flip), on_the_cpu, (height, width, 3), CPU)
    top, left, h, w = box
    whole = torch.from_numpy(simplejpeg.decode_jpeg(value)).permute(2, 0, 1)[None].double()
    expected = torch.nn.functional.interpolate(
        whole[:, :, top : top + h, left : left + w], (height, width), mode="bilinear", antialias=True
    )
    assert (images - (expected.flip(3) if flip else expected)).abs().max() < 0.51


def test_a_row_has_room_for_the_largest_value_and_takes_less_for_a_small_crop(data: LMDBDataset) -> None:
    reader = cut_reader(data.data, CenterCrop(8))
    rows = np.zeros((len(data), *reader.rows.shapes[0]), np.uint8)
    numbers = np.arange(len(data))
    assert not reader.read([rows], numbers, 0, 0, numbers)
    lengths = rows[:, :48].view(np.int64)[:, 0]
    assert data.data.numbers("nbytes").max() <= rows.shape[1] - 48
    assert (lengths > 8 * 8 * 3).all() and lengths.sum() < data.data.numbers("nbytes").sum() / 2


@pytest.mark.parametrize("workers", [0, 2])
def test_jpegs_that_a_decoder_keeps_stay_what_they_are(workers: int, data: LMDBDataset) -> None:
    kept: list[tuple[torch.Tensor, bytes]] = []

    def keeping(jpegs: list[torch.Tensor]) -> list[torch.Tensor]:
        kept.extend((jpeg, jpeg.numpy().tobytes()) for jpeg in jpegs)
        return on_the_cpu(jpegs)

    with Loader(data, 8, crop=CROP, workers=workers, decode_on=keeping) as loader:
        assert sum(len(images) for images, _ in loader) == len(kept)
    assert all(jpeg.numpy().tobytes() == before for jpeg, before in kept)


def build(raw: Path, out: Path, **image: Any) -> LMDBDataset:
    build_dataset(raw, out, BuildOptions(ImageOptions(sizes=(Size(64, 64),), **image)), RunOptions(engine="sequential"))
    return LMDBDataset(out)


def test_grey_is_decoded_as_one_channel_or_as_three(raw: Path, tmp_path: Path) -> None:
    gray = build(raw, tmp_path / "gray", color="gray")
    batches = epoch(gray, CROP, decode_on=in_gray)
    assert batches[0][0].shape == (8, 1, 40, 40)
    assert_equal_within(1, batches, epoch(gray, CROP))
    (tmp_path / "files").mkdir()
    for i in range(8):
        (tmp_path / "files" / f"{i}.jpg").write_bytes(gray.data.value(i))
    keep = build(tmp_path / "files", tmp_path / "keep", color="keep")
    (images,) = Loader(keep, 8, crop=CROP, seed=0, workers=0, decode_on=in_gray)
    (expected,) = Loader(keep, 8, crop=CROP, seed=0, workers=0)
    assert images.shape == (8, 3, 40, 40) and (images.int() - expected.int()).abs().max() <= 1


@pytest.fixture
def damaged(dataset: Path, tmp_path: Path) -> LMDBDataset:
    """A copy in which sample 20 is no JPEG, and the pixels of 30 are damaged behind a sound header."""
    copied = Path(shutil.copytree(dataset, tmp_path / "damaged"))
    table = read_table(copied)
    place = table.column("shard")[30].as_py(), table.column("row")[30].as_py()

    def spoil(shard: int, row: int, value: bytes) -> bytes:
        half = len(value) // 2
        return value[:half] + bytes(len(value) - half) if (shard, row) == place else value

    change_records(copied, spoil)
    overwrite_value(copied, 20)
    return LMDBDataset(copied)


@pytest.mark.parametrize("workers", [0, 2])
def test_damaged_samples_are_skipped_and_counted_as_when_workers_decode(workers: int, damaged: LMDBDataset) -> None:
    options: dict[str, Any] = {"crop": CenterCrop(24), "workers": workers, "on_error": "skip"}
    loaders = [Loader(damaged, 8, decode_on=on, **options) for on in ("workers", on_the_cpu)]
    batches, others = ([(images.clone(), targets.tolist()) for images, targets in loader] for loader in loaders)
    assert_equal_within(0, batches, others)
    assert [loader.skipped for loader in loaders] == [2, 2]
    for loader in loaders:
        loader.close()


@pytest.mark.parametrize(("first", "sample"), [(16, 20), (24, 30)], ids=["header", "pixels"])
def test_a_damaged_sample_is_named(first: int, sample: int, damaged: LMDBDataset) -> None:
    loader = Loader(damaged, 8, crop=CenterCrop(40), workers=0, decode_on=on_the_cpu)
    loader.load_state_dict({**loader.state_dict(), "consumed": first})
    with pytest.raises(DatasetError, match=rf"sample {sample} \({damaged.data.path(sample)}\) of .* is damaged"):
        list(loader)


def test_a_batch_of_which_all_is_damaged_is_empty(damaged: LMDBDataset) -> None:
    batches = list(Loader(damaged, 1, crop=CROP, workers=0, on_error="skip", decode_on=on_the_cpu))
    for sample in (20, 30):
        images, targets = batches[sample]
        assert images.shape == (0, 3, 40, 40) and targets.shape == (0,)


def test_a_decoder_that_fails_on_sound_images_is_not_taken_for_damage(data: LMDBDataset) -> None:
    def fails(jpegs: list[torch.Tensor]) -> Sequence[torch.Tensor]:
        raise RuntimeError(f"out of memory for {len(jpegs)}\nand more")

    loader = Loader(data, 8, crop=CROP, workers=0, on_error="skip", decode_on=fails)
    with pytest.raises(LoaderError, match="the decoder of cpu failed on intact JPEGs: out of memory for 8; "):
        list(loader)
    assert loader.skipped == 0


def test_a_decoder_that_gives_other_pixels_is_an_error(data: LMDBDataset) -> None:
    def turned(jpegs: list[torch.Tensor]) -> Sequence[torch.Tensor]:
        return [image[:, :9] for image in on_the_cpu(jpegs)]

    with pytest.raises(LoaderError, match=r"the decoder of cpu gave 9 x \d+ pixels, too few for 40 x 40 at"):
        list(Loader(data, 8, crop=CenterCrop(40), workers=0, decode_on=turned))


@pytest.fixture
def no_library(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("torchcodec", "torchcodec.decoders", "torchvision", "torchvision.io"):
        monkeypatch.setitem(sys.modules, name, None)  # which makes its import fail


@pytest.mark.usefixtures("no_library")
def test_without_a_decoder_the_option_and_what_to_install_are_named(data: LMDBDataset) -> None:
    with pytest.raises(OptionError, match=r"decode_on: .* on cpu \(torchcodec: .*; torchvision: .*\); install torchco"):
        Loader(data, 8, crop=CROP, workers=0, decode_on="device")


class StandIn(ModuleType):
    """A library that has what torchcodec.decoders and torchvision.io are documented to have."""

    class ImageReadMode:
        def __class_getitem__(cls, name: str) -> str:
            return name

    @staticmethod
    def decode_jpeg(source: Any, mode: str, device: torch.device) -> list[torch.Tensor]:
        return [image.to(device) for image in on_the_cpu(source, mode)]


@pytest.mark.usefixtures("no_library")
@pytest.mark.parametrize("library", ["torchcodec.decoders", "torchvision.io"])
def test_the_library_that_is_there_is_called(library: str, data: LMDBDataset, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, library.partition(".")[0], ModuleType("stand-in"))
    monkeypatch.setitem(sys.modules, library, StandIn("stand-in"))
    assert_equal_within(0, epoch(data, CROP, decode_on="device"), epoch(data, CROP, decode_on=on_the_cpu))


@pytest.mark.usefixtures("no_library")
def test_a_library_that_is_there_and_cannot_decode_is_no_decoder(monkeypatch: pytest.MonkeyPatch) -> None:
    library = StandIn("stand-in")

    def fails(*_: Any, **__: Any) -> None:
        raise RuntimeError("not compiled with nvJPEG support")

    library.decode_jpeg = fails  # type: ignore[method-assign, assignment]
    monkeypatch.setitem(sys.modules, "torchvision", ModuleType("stand-in"))
    monkeypatch.setitem(sys.modules, "torchvision.io", library)
    with pytest.raises(OptionError, match="torchvision: not compiled with nvJPEG support"):
        find_decoder(CPU, 3)


def test_another_place_to_decode_is_refused(data: LMDBDataset) -> None:
    with pytest.raises(OptionError, match="decode_on: expected one of workers, device, got 'gpu'"):
        Loader(data, 8, crop=CROP, decode_on="gpu")  # type: ignore[arg-type]


@pytest.mark.parametrize("format", ["png", "raw"])
def test_a_device_decodes_jpegs_alone(format: Any, raw: Path, tmp_path: Path) -> None:
    with pytest.raises(OptionError, match=f"decode_on: a device decodes only JPEGs, and .* holds {format}; choose"):
        Loader(build(raw, tmp_path / "out", format=format), 8, crop=CROP, decode_on=on_the_cpu)


def test_an_index_that_lies_about_the_size_is_damage() -> None:
    value = encode(smooth_image(HEIGHT, WIDTH), ImageOptions(tiles=False))
    row = np.zeros(len(value) + 48, np.uint8)
    with pytest.raises(ValueError, match=f"it is {HEIGHT} pixels high and {WIDTH} wide, and the index says 99 and 99"):
        fill_row(row, cut_region(memoryview(value), (0, 0, 8, 8)), (99, 99), flip=False, exact=True)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs CUDA")
@pytest.mark.parametrize("found", [False, True], ids=["decoded on the CPU", "decoded on CUDA"])
def test_on_cuda_the_batches_are_those_that_workers_decode(found: bool, data: LMDBDataset) -> None:
    def and_moved(jpegs: list[torch.Tensor]) -> list[torch.Tensor]:
        return [image.to("cuda", non_blocking=True) for image in on_the_cpu(jpegs)]

    options: dict[str, Any] = {"device": "cuda", "workers": 2, "context": "spawn"}
    batches = epoch(data, CROP, decode_on="device" if found else and_moved, **options)
    others = epoch(data, CROP, **options)
    if not found:
        assert_equal_within(1, batches, others)
    for (images, targets), (other, expected) in zip(batches, others, strict=True):  # nvJPEG repeats chroma
        assert targets == expected and images.is_cuda
        assert (images.int() - other.int()).abs().float().mean() < 4
