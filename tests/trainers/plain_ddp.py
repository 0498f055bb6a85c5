"""Run by test_torchrun.py: two ranks train with DistributedDataParallel, and each notes which samples it was given."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import torch
from torch.nn.parallel import DistributedDataParallel

from presize.datasets import CenterCrop, LMDBDataset, Loader, make_loader

if __name__ == "__main__":
    root, out = sys.argv[1:]
    torch.distributed.init_process_group("gloo")
    data = LMDBDataset(root, target="path", crop=CenterCrop(24), decode="tensor").subset(range(50))
    numbers = {path: i for i, (path, _) in enumerate(data.samples)}
    found: dict[str, Any] = {}
    torch.manual_seed(0)
    model = DistributedDataParallel(torch.nn.Linear(3, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-4)
    for make in (Loader, make_loader):
        loader = make(data, 4, shuffle=True, seed=1, num_workers=1, last="pad")
        found[make.__name__] = []
        for epoch in range(2):
            loader.sampler.set_epoch(epoch)  # as scripts written for DistributedSampler do
            found[make.__name__].append([])
            for images, paths in loader:
                found[make.__name__][-1] += [numbers[path] for path in paths]
                optimizer.zero_grad()
                model(images.float().mean((2, 3))).mean().backward()
                optimizer.step()
    found["weights"] = [parameter.tolist() for parameter in model.parameters()]
    Path(out, f"{torch.distributed.get_rank()}.json").write_text(json.dumps(found))
    torch.distributed.destroy_process_group()
