"""Declare torchvision's operators, so that it can be imported with any torch. Import this module first.

If torchvision's compiled operators do not load (because it was built for another torch, such as the CPU-only one), its
import fails, because it registers fake versions of undeclared operators. Transforms of PIL images never call them.
"""

from __future__ import annotations

import importlib

import torch

_DESCRIBED = (
    "nms(Tensor dets, Tensor scores, float iou_threshold) -> Tensor",
    "qnms(Tensor dets, Tensor scores, float iou_threshold) -> Tensor",
)

try:
    importlib.import_module("torchvision")
except RuntimeError:
    library = torch.library.Library("torchvision", "DEF")
    for operator in _DESCRIBED:
        library.define(operator)
    importlib.import_module("torchvision")
