"""Script that the tests run under torchrun: two ranks train in one of `WAYS`, and each records its samples."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Any

import torch
from torch.nn.parallel import DistributedDataParallel

from presize.datasets import CenterCrop, LMDBDataset, Loader, make_loader
from presize.errors import OptionError


def plain(data: LMDBDataset) -> dict[str, Any]:
    """Return the samples of two epochs with DistributedDataParallel, and the resulting weights."""
    torch.distributed.init_process_group("gloo")
    found: dict[str, Any] = {}
    torch.manual_seed(0)
    model = DistributedDataParallel(torch.nn.Linear(3, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-4)
    for make in (Loader, make_loader):
        loader = make(data.subset(range(50)), 4, shuffle=True, seed=1, num_workers=1, last="pad")
        found[make.__name__] = []
        for epoch in range(2):
            loader.sampler.set_epoch(epoch)  # as in scripts written for DistributedSampler
            found[make.__name__].append([])
            for images, numbers in loader:
                found[make.__name__][-1] += numbers.tolist()
                optimizer.zero_grad()
                model(images.float().mean((2, 3))).mean().backward()
                optimizer.step()
    found["weights"] = [parameter.tolist() for parameter in model.parameters()]
    torch.distributed.destroy_process_group()
    return found


def lightning(data: LMDBDataset) -> dict[str, Any]:
    """Return the samples of two epochs of Lightning's Trainer."""
    import lightning.pytorch

    class Noting(lightning.pytorch.LightningModule):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            self.linear = torch.nn.Linear(3, 1)
            self.epochs: list[list[int]] = []

        def on_train_epoch_start(self) -> None:
            self.epochs.append([])

        def training_step(self, batch: Any, _: int) -> torch.Tensor:
            images, numbers = batch
            self.epochs[-1] += numbers.tolist()
            return self.linear(images.float().mean((2, 3))).mean()

        def validation_step(self, batch: Any, _: int) -> None:
            pass

        def configure_optimizers(self) -> Any:
            return torch.optim.SGD(self.parameters(), lr=1e-4)

    found = {}
    quiet = dict.fromkeys(("logger", "enable_progress_bar", "enable_model_summary", "enable_checkpointing"), False)
    for make in (Loader, make_loader):
        model = Noting()
        trainer = lightning.pytorch.Trainer(accelerator="cpu", devices=2, strategy="ddp", max_epochs=2, **quiet)
        # Created before Lightning initializes torch.distributed, as in most scripts.
        train = make(data, 4, shuffle=True, seed=1, num_workers=1, drop_last=True)
        trainer.fit(model, train, make(data, 4, num_workers=0, drop_last=True))
        found[make.__name__] = model.epochs
    return found


def fabric(data: LMDBDataset) -> dict[str, Any]:
    """Return the samples of two epochs under Fabric, of a Loader and of a loader set up by Fabric."""
    import lightning.fabric

    fabric = lightning.fabric.Fabric(accelerator="cpu", devices=2, strategy="ddp")
    fabric.launch()
    options: dict[str, Any] = {"shuffle": True, "seed": 1, "num_workers": 1, "drop_last": True}
    plain = torch.nn.Linear(3, 1)
    model, optimizer = fabric.setup(plain, torch.optim.SGD(plain.parameters(), lr=1e-4))
    loaders = {
        "Loader": Loader(data, 4, **options, device=fabric.device),
        "make_loader": fabric.setup_dataloaders(make_loader(data, 4, **options)),
    }
    found: dict[str, Any] = {name: [[], []] for name in loaders}
    for name, loader in loaders.items():
        for epoch in range(2):
            for images, numbers in loader:
                found[name][epoch] += numbers.tolist()
                optimizer.zero_grad()
                fabric.backward(model(images.float().mean((2, 3))).mean())
                optimizer.step()
    torch.distributed.destroy_process_group()
    return found


def accelerate(data: LMDBDataset) -> dict[str, Any]:
    """Return the samples of two epochs of prepared loaders, one of them created before the Accelerator."""
    from accelerate import Accelerator

    options: dict[str, Any] = {"shuffle": True, "seed": 1, "num_workers": 1, "drop_last": True}
    loaders = {"before": Loader(data, 4, **options)}
    accelerator = Accelerator(cpu=True)
    loaders |= {"Loader": Loader(data, 4, **options), "make_loader": make_loader(data, 4, **options, rank=0, ranks=1)}
    found: dict[str, Any] = {}
    for name, loader in loaders.items():
        model = torch.nn.Linear(3, 1)
        model, optimizer, prepared = accelerator.prepare(model, torch.optim.SGD(model.parameters()), loader)
        found[name] = []
        for _ in range(2):
            found[name].append([])
            for images, numbers in prepared:
                found[name][-1] += numbers.tolist()
                accelerator.backward(model(images.float().mean((2, 3))).mean())
                optimizer.step()
                optimizer.zero_grad()
    try:
        accelerator.prepare(make_loader(data, 4, **options))
    except OptionError as error:
        found["refused"] = str(error)
    accelerator.end_training()
    return found


def metrics(data: LMDBDataset) -> dict[str, Any]:
    """Return the samples of gather_for_metrics() and the steps of accumulate() for each way of ending an epoch."""
    from accelerate import Accelerator

    accelerator = Accelerator(cpu=True, gradient_accumulation_steps=3)

    def epoch(loader: Any) -> dict[str, Any]:
        model = accelerator.prepare(torch.nn.Linear(3, 1))
        gathered, steps = [], 0
        for images, numbers in accelerator.prepare(loader):
            with accelerator.accumulate(model):
                accelerator.backward(model(images.float().mean((2, 3))).mean())
                steps += accelerator.sync_gradients
            gathered += accelerator.gather_for_metrics(numbers).tolist()
        return {"gathered": gathered, "steps": steps}

    some = data.subset(range(51))
    order = torch.utils.data.TensorDataset(torch.zeros(51, 3, 8, 8), torch.arange(51))
    found: dict[str, Any] = {"DataLoader": epoch(torch.utils.data.DataLoader(order, 4, shuffle=True))}
    endings: dict[Any, dict[str, Any]] = {None: {}, "pad": {"last": "pad"}, "drop": {"drop_last": True}}
    for last, ending in endings.items():
        found[f"Loader {last}"] = epoch(Loader(some, 4, shuffle=True, num_workers=0, **ending))
        loader = make_loader(some, 4, shuffle=True, num_workers=0, **ending, rank=0, ranks=1)
        found[f"make_loader {last}"] = epoch(loader)
    try:
        epoch(Loader(some, 4, num_workers=0, last="keep"))
    except OptionError as error:
        found["refused"] = str(error)
    found["even"] = epoch(Loader(some.subset(range(50)), 4, num_workers=0, last="keep"))
    sampler = torch.utils.data.DistributedSampler(range(50), shuffle=False)  # type: ignore[arg-type]
    found["sampler"] = epoch(Loader(some.subset(range(50)), 4, num_workers=0, sampler=sampler))
    accelerator.end_training()
    return found


WAYS = {way.__name__: way for way in (plain, lightning, fabric, accelerate, metrics)}

if __name__ == "__main__":
    way, root, out = sys.argv[1:]
    paths = {path: i for i, (path, _) in enumerate(LMDBDataset(root).samples)}
    data = LMDBDataset(root, target="path", target_transform=paths.get, crop=CenterCrop(24), decode="tensor")
    Path(out, f"{os.environ['RANK']}.json").write_text(json.dumps(WAYS[way](data)))
