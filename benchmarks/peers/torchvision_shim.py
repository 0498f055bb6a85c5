"""Import this before anything that imports torchvision, and its transforms of PIL images work with any torch.

A torchvision whose compiled operators do not load (it was built for another torch: the CPU-only one, say)
stops at import, because it describes operators that nobody has declared. Declared, they are never called.
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
