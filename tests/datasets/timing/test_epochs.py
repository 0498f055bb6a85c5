"""Timing an epoch, with real models and loaders."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from presize.datasets.timing import epochs
from presize.datasets.timing.epochs import NoModel, time_epoch
from presize.datasets.timing.models import ResNet50, TrainingStep, make_model, precision_of, small_cnn
from presize.errors import DiagnosisError, OptionError
from presize.measure.watch import images_in

CPU = torch.device("cpu")


class Counting(NoModel):
    steps = 0

    def __call__(self, placed: Any) -> None:  # noqa: ARG002
        self.steps += 1


class FailingWhenWaitedFor(epochs.Clock):
    """Clock of a CUDA device whose last step failed an assertion, which the host learns when it waits."""

    def between(self, marks: Any) -> list[float]:  # noqa: ARG002
        raise RuntimeError("CUDA error: device-side assert triggered")


def test_a_step_that_fails_on_its_device_is_a_one_line_error_when_the_host_waits() -> None:
    with pytest.raises(DiagnosisError, match=r"step: failed after .* steps on one batch: RuntimeError: CUDA error"):
        epochs.repeat(FailingWhenWaitedFor(CPU), lambda _: None, None, epochs.Budget(1, 0.0))


@pytest.mark.parametrize(
    ("batch", "images"),
    [
        (torch.zeros(7, 3, 4, 4), 7),
        ([torch.zeros(7, 3, 4, 4), torch.zeros(7)], 7),
        (((torch.zeros(7, 3, 4, 4), torch.zeros(7, 3, 2, 2)), torch.zeros(7)), 7),
        ([[torch.zeros(3, 4, 4)] * 5, torch.zeros(5)], 5),
        ({"image": torch.zeros(7, 3, 4, 4), "label": torch.zeros(7)}, 7),
        ((tuple([torch.zeros(3, 4, 5)] * 7), tuple([{"boxes": torch.zeros(2, 4)}] * 7)), 7),
        ([(torch.zeros(3, 4, 5), 1)] * 7, 7),
        ([(torch.zeros(3, 4, 5), torch.zeros(4, 5))] * 7, 7),
        ([{"file_name": "a.jpg", "image": torch.zeros(3, 4, 5), "height": 4}] * 7, 7),
        ({"inputs": [torch.zeros(1, 4, 5)] * 7, "data_samples": [object()] * 7}, 7),
        (([np.zeros((4, 5, 3), np.uint8)] * 7, torch.zeros(7)), 7),
        ({"im_file": ["a.jpg"] * 7, "img": torch.zeros(7, 3, 4, 4)}, 7),
        (["a.jpg"] * 7, 7),
        ([torch.zeros(7, 10, 16), torch.zeros(7)], 7),
    ],
    ids=[
        "images", "with labels", "views", "images of any size", "a mapping", "zipped for detection", "pairs",
        "images and masks", "dicts", "a mapping of lists", "arrays", "names first", "names", "sequences",
    ],
)  # fmt: skip
def test_the_images_of_a_batch_are_counted_once(batch: Any, images: int) -> None:
    assert epochs.count_images(batch) == images_in(batch) == images


def test_an_epoch_counts_batches_and_images_without_the_first_steps() -> None:
    step = Counting(CPU)
    epoch = time_epoch([range(8)] * 3 + [range(2)], step, warmup_steps=2)
    assert (epoch.batches, epoch.images, epoch.window_images, step.steps) == (4, 26, 10, 4)
    assert 0 <= epoch.first_batch_s <= epoch.seconds
    assert 0 < epoch.window_s < epoch.seconds
    assert epoch.images_per_s == pytest.approx(10 / epoch.window_s)
    short = time_epoch([range(8)] * 2, NoModel(CPU), warmup_steps=2)
    assert (short.window_images, short.window_s) == (16, short.seconds), "counted completely"
    with pytest.raises(OptionError, match="loader: expected at least one batch, got none"):
        time_epoch([], NoModel(CPU))


def test_an_epoch_counts_the_work_of_its_workers() -> None:
    loader = torch.utils.data.DataLoader(range(64), batch_size=8, num_workers=1, persistent_workers=True)  # type: ignore[arg-type]
    assert time_epoch(loader, NoModel(CPU)).cpu_s > 0


@pytest.mark.slow
@pytest.mark.parametrize("channels", [3, 1])
@pytest.mark.parametrize("labelled", [True, False])
def test_a_step_trains_on_batches_of_any_kind(channels: int, labelled: bool) -> None:
    torch.manual_seed(0)
    model = small_cnn(4)
    before = model[0].weight.detach().clone()
    step = TrainingStep(model, CPU)
    images = torch.randint(0, 256, (2, channels, 32, 32), dtype=torch.uint8)
    step(step.place([images, torch.tensor([1, 3])] if labelled else images))
    assert not torch.equal(before, model[0].weight)


def test_our_resnet50_is_the_standard_one_and_the_model_names_its_source() -> None:
    with torch.device("meta"):
        ours = ResNet50(1000)
        model, whose = make_model("resnet50", 10)
    assert sum(parameter.numel() for parameter in ours.parameters()) == 25_557_032  # torchvision's documentation
    assert ours(torch.empty(2, 3, 224, 224, device="meta")).shape == (2, 1000)
    assert whose == ("presize" if isinstance(model, ResNet50) else "torchvision")


@pytest.mark.parametrize(("is_emulated", "precision"), [(True, torch.float16), (False, torch.bfloat16)])
def test_a_gpu_that_emulates_bfloat16_trains_in_float16(
    is_emulated: bool, precision: torch.dtype, monkeypatch: pytest.MonkeyPatch
) -> None:
    def is_supported(including_emulation: bool = True) -> bool:
        return including_emulation or not is_emulated

    monkeypatch.setattr(torch.cuda, "is_bf16_supported", is_supported)
    assert precision_of(torch.device("cuda")) == precision
    assert precision_of(CPU) == torch.bfloat16
