"""Transfer of batches of any structure to a device."""

from __future__ import annotations

from typing import Any, NamedTuple

import pytest
import torch

from accelerators import Accelerator
from presize.datasets.reading.transfer import Normalization, as_device, map_tensors, tensors_of, to_device
from presize.errors import OptionError


class Pair(NamedTuple):
    images: Any
    labels: Any


ONE, TWO = torch.tensor([1]), torch.tensor([2])


@pytest.mark.parametrize(
    ("batch", "doubled"),
    [
        (ONE, TWO),
        ([ONE, "name"], [TWO, "name"]),
        ((ONE, None), (TWO, None)),
        (Pair(ONE, [ONE]), Pair(TWO, [TWO])),
        ({"images": ONE, "more": (ONE,)}, {"images": TWO, "more": (TWO,)}),
        ("path", "path"),
    ],
    ids=["a tensor", "a list", "a tuple", "a named tuple", "a mapping", "no tensor"],
)
def test_a_batch_keeps_its_structure_and_its_tensors_are_changed(batch: Any, doubled: Any) -> None:
    assert map_tensors(lambda tensor: 2 * tensor, batch) == doubled
    assert type(map_tensors(lambda tensor: 2 * tensor, batch)) is type(doubled)


def test_all_tensors_of_a_batch_are_found_and_moved() -> None:
    batch = {"images": ONE, "targets": (TWO, ["a", ONE])}
    assert [tensor.item() for tensor in tensors_of(batch)] == [1, 2, 1]
    assert {tensor.device.type for tensor in tensors_of(to_device(batch, torch.device("meta")))} == {"meta"}


def test_a_device_that_torch_does_not_know_is_refused_by_name() -> None:
    assert as_device(None) == torch.device("cpu")
    with pytest.raises(OptionError, match=r"device: .*got 'toaster'"):
        as_device("toaster")


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.float16, torch.bfloat16])
def test_a_device_rounds_a_normalized_number_once(dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch) -> None:
    Accelerator(monkeypatch)
    mean, std = torch.tensor([0.485, 0.456, 0.406]).double(), torch.tensor([0.229, 0.224, 0.225]).double()
    images = torch.arange(256, dtype=torch.uint8).reshape(2, 1, 8, 16).repeat(1, 3, 1, 1)
    images = images.contiguous(memory_format=torch.channels_last)
    found = Normalization((mean.tolist(), std.tolist()), dtype, 3, torch.device("cuda", 0))(images)
    exact = (images.double() / 255 - mean.view(-1, 1, 1)) / std.view(-1, 1, 1)
    assert found.dtype == dtype and found.is_contiguous(memory_format=torch.channels_last)
    # Half of the distance between two numbers of the type, plus the rounding of float32.
    assert ((found.double() - exact).abs() <= exact.abs().clamp(min=0.1) * torch.finfo(dtype).eps / 2 + 1e-6).all()
