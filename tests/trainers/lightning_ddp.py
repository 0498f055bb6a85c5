"""Run by test_lightning.py under torchrun: two ranks train, and each notes which samples it was given."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import lightning.pytorch as lightning
import torch

from presize.datasets import CenterCrop, LMDBDataset, Loader, make_loader


class Noting(lightning.LightningModule):  # type: ignore[misc]
    def __init__(self) -> None:
        super().__init__()
        self.linear = torch.nn.Linear(3, 1)
        self.epochs: list[list[int]] = []

    def on_train_epoch_start(self) -> None:
        self.epochs.append([])

    def training_step(self, batch: Any, _: int) -> torch.Tensor:
        images, paths = batch
        self.epochs[-1] += [numbers[path] for path in paths]
        return self.linear(images.float().mean((2, 3))).mean()

    def validation_step(self, batch: Any, _: int) -> None:
        pass

    def configure_optimizers(self) -> Any:
        return torch.optim.SGD(self.parameters(), lr=1e-4)


if __name__ == "__main__":
    root, out = sys.argv[1:]
    data = LMDBDataset(root, target="path", crop=CenterCrop(24), decode="tensor")
    numbers = {path: i for i, (path, _) in enumerate(data.samples)}
    for make in (Loader, make_loader):
        model = Noting()
        trainer = lightning.Trainer(
            accelerator="cpu",
            devices=2,
            strategy="ddp",
            max_epochs=2,
            logger=False,
            enable_progress_bar=False,
            enable_model_summary=False,
            enable_checkpointing=False,
        )
        # Made before Lightning initializes torch.distributed, as in most scripts.
        train = make(data, 4, shuffle=True, seed=1, num_workers=1, drop_last=True)
        trainer.fit(model, train, make(data, 4, num_workers=0, drop_last=True))
        Path(out, f"{make.__name__}-{trainer.global_rank}.json").write_text(json.dumps(model.epochs))
