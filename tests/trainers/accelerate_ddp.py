"""Run by test_accelerate.py under torchrun: two ranks read prepared loaders, and each notes which samples it got."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import torch
from accelerate import Accelerator

from presize.datasets import CenterCrop, LMDBDataset, Loader, make_loader
from presize.errors import OptionError

if __name__ == "__main__":
    root, out = sys.argv[1:]
    data = LMDBDataset(root, target="path", crop=CenterCrop(24), decode="tensor")
    numbers = {path: i for i, (path, _) in enumerate(data.samples)}
    options: dict[str, Any] = {"shuffle": True, "seed": 1, "num_workers": 1, "drop_last": True}
    before = Loader(data, 4, **options)
    accelerator = Accelerator(cpu=True)
    found: dict[str, Any] = {}
    for name, loader in (
        ("before", before),
        ("Loader", Loader(data, 4, **options)),
        ("make_loader", make_loader(data, 4, **options, rank=0, ranks=1)),
    ):
        model = torch.nn.Linear(3, 1)
        model, optimizer, prepared = accelerator.prepare(model, torch.optim.SGD(model.parameters()), loader)
        found[name] = []
        for _ in range(2):
            found[name].append([])
            for images, paths in prepared:
                found[name][-1] += [numbers[path] for path in paths]
                accelerator.backward(model(images.float().mean((2, 3))).mean())
                optimizer.step()
                optimizer.zero_grad()
    try:
        accelerator.prepare(make_loader(data, 4, **options))
    except OptionError as error:
        found["refused"] = str(error)
    Path(out, f"{accelerator.process_index}.json").write_text(json.dumps(found))
    accelerator.end_training()
