"""Models for measurements, and their training step: forward, loss, backward, update."""

from __future__ import annotations

import importlib.util
from itertools import pairwise
from typing import Any

import torch
from torch import nn
from torch.nn import functional

from presize.datasets.timing.epochs import NoModel
from presize.measure.bench_options import Model

_MEAN, _STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)


def make_model(name: Model, classes: int) -> tuple[nn.Module, str]:
    """Return a model for images (B, 3, height, width), and its package: for ResNet-50 torchvision, if installed."""
    if name == "small":
        return small_cnn(classes), "presize"
    if importlib.util.find_spec("torchvision") is not None:
        models: Any = importlib.import_module("torchvision.models")
        return models.resnet50(num_classes=classes), "torchvision"
    return ResNet50(classes), "presize"


def small_cnn(classes: int) -> nn.Sequential:
    """Return a CNN of four convolutions, the first of 4×4 patches. One or two cores train it as fast as they read."""
    widths = (16, 32, 64, 128)
    stages: list[nn.Module] = [nn.Conv2d(3, widths[0], 4, 4, bias=False), nn.BatchNorm2d(widths[0]), nn.ReLU()]
    for before, after in pairwise(widths):
        stages += [nn.Conv2d(before, after, 3, 2, 1, bias=False), nn.BatchNorm2d(after), nn.ReLU()]
    return nn.Sequential(*stages, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(widths[-1], classes))


class ResNet50(nn.Sequential):
    """ResNet-50 (He et al., Deep Residual Learning, 2015), with the stride in the 3×3 convolution as in torchvision."""

    def __init__(self, classes: int = 1000) -> None:
        layers: list[nn.Module] = [*_convolution(3, 64, 7, 2), nn.ReLU(inplace=True), nn.MaxPool2d(3, 2, 1)]
        channels = 64
        for width, blocks, stride in ((64, 3, 1), (128, 4, 2), (256, 6, 2), (512, 3, 2)):
            for number in range(blocks):
                layers.append(_Bottleneck(channels, width, stride if number == 0 else 1))
                channels = 4 * width
        super().__init__(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(channels, classes))


class _Bottleneck(nn.Module):
    def __init__(self, channels: int, width: int, stride: int) -> None:
        super().__init__()
        self.body = nn.Sequential(
            *_convolution(channels, width, 1, 1),
            nn.ReLU(inplace=True),
            *_convolution(width, width, 3, stride),
            nn.ReLU(inplace=True),
            *_convolution(width, 4 * width, 1, 1),
        )
        same = channels == 4 * width and stride == 1
        self.shortcut = nn.Identity() if same else nn.Sequential(*_convolution(channels, 4 * width, 1, stride))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return functional.relu(self.body(x) + self.shortcut(x), inplace=True)


def _convolution(before: int, after: int, kernel: int, stride: int) -> tuple[nn.Module, nn.Module]:
    return nn.Conv2d(before, after, kernel, stride, kernel // 2, bias=False), nn.BatchNorm2d(after)


def precision_of(device: torch.device) -> torch.dtype:
    """Return the type of mixed precision: bfloat16, or float16 on a CUDA GPU that would only emulate it, slowly."""
    is_emulated = device.type == "cuda" and not torch.cuda.is_bf16_supported(including_emulation=False)
    return torch.float16 if is_emulated else torch.bfloat16


class TrainingStep(NoModel):
    """Step that trains `model` on batches (images, labels) of uint8 images, on `device`, in channels-last memory.

    On an accelerator it uses mixed precision: bfloat16, or float16 on a CUDA GPU without bfloat16. It does not scale
    the loss: that would synchronize each step, and the result of training does not matter. The CPU uses float32.
    Batches without labels train towards class 0.
    """

    def __init__(self, model: nn.Module, device: torch.device) -> None:
        super().__init__(device)
        self.model = model.to(device, memory_format=torch.channels_last).train()  # type: ignore[call-overload]
        self.optimizer = torch.optim.SGD(model.parameters(), lr=1e-3, momentum=0.9)
        self.mean, self.std = (
            torch.tensor([255 * value for value in values], device=device).reshape(1, 3, 1, 1)
            for values in (_MEAN, _STD)
        )
        self.mixed = device.type != "cpu"
        self.precision = precision_of(device)
        if device.type == "cuda":
            torch.backends.cudnn.benchmark = True

    def __call__(self, placed: Any) -> None:
        images, labels = placed if isinstance(placed, (list, tuple)) else (placed, None)
        pixels = images.to(torch.float32, memory_format=torch.channels_last).sub(self.mean).div_(self.std)
        if not isinstance(labels, torch.Tensor):
            labels = torch.zeros(len(images), dtype=torch.int64, device=self.device)
        with torch.autocast(self.device.type, self.precision, enabled=self.mixed):
            loss = functional.cross_entropy(self.model(pixels), labels)
        loss.backward()  # type: ignore[no-untyped-call]
        self.optimizer.step()
        self.optimizer.zero_grad(set_to_none=True)
