"""Run by test_accelerate.py under torchrun: two ranks gather the samples of an epoch, and count optimizer steps."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import torch
from accelerate import Accelerator

from presize.datasets import CenterCrop, LMDBDataset, Loader, make_loader
from presize.errors import OptionError


def epoch(accelerator: Accelerator, loader: Any) -> dict[str, Any]:
    """The samples that gather_for_metrics() gives in an epoch, and how often accumulate() synchronizes."""
    model = accelerator.prepare(torch.nn.Linear(3, 1))
    gathered, steps = [], 0
    for images, numbers in accelerator.prepare(loader):
        with accelerator.accumulate(model):
            accelerator.backward(model(images.float().mean((2, 3))).mean())
            steps += accelerator.sync_gradients
        gathered += accelerator.gather_for_metrics(numbers).tolist()
    return {"gathered": gathered, "steps": steps}


if __name__ == "__main__":
    root, out = sys.argv[1:]
    data = LMDBDataset(root, crop=CenterCrop(24), decode="tensor").subset(range(51))
    order = torch.utils.data.TensorDataset(torch.zeros(51, 3, 8, 8), torch.arange(51))
    numbers = {path: i for i, (path, _) in enumerate(data.samples)}
    data = LMDBDataset(root, target="path", target_transform=numbers.get, crop=CenterCrop(24), decode="tensor")
    data = data.subset(range(51))
    accelerator = Accelerator(cpu=True, gradient_accumulation_steps=3)
    found: dict[str, Any] = {"DataLoader": epoch(accelerator, torch.utils.data.DataLoader(order, 4, shuffle=True))}
    endings: dict[Any, dict[str, Any]] = {None: {}, "pad": {"last": "pad"}, "drop": {"drop_last": True}}
    for last, ending in endings.items():
        found[f"Loader {last}"] = epoch(accelerator, Loader(data, 4, shuffle=True, num_workers=0, **ending))
        loader = make_loader(data, 4, shuffle=True, num_workers=0, **ending, rank=0, ranks=1)
        found[f"make_loader {last}"] = epoch(accelerator, loader)
    try:
        epoch(accelerator, Loader(data, 4, num_workers=0, last="keep"))
    except OptionError as error:
        found["refused"] = str(error)
    found["even"] = epoch(accelerator, Loader(data.subset(range(50)), 4, num_workers=0, last="keep"))
    Path(out, f"{accelerator.process_index}.json").write_text(json.dumps(found))
    accelerator.end_training()
