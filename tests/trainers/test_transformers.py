"""Hugging Face's Trainer with a Loader, by the wrapper of docs/training.md."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from presize.datasets import CenterCrop, LMDBDataset, Loader, RandomResizedCrop

with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    transformers: Any = pytest.importorskip("transformers", reason="transformers is not installed (extra: trainers)")

pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("ignore::Warning")]


class NamedBatches(Loader):
    def __iter__(self) -> Iterator[Any]:
        for images, labels in super().__iter__():
            yield {"pixel_values": images, "labels": labels}


class Model(torch.nn.Module):
    """A model that records the labels of each batch."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = torch.nn.Linear(3, 3)
        self.trained: list[Any] = []
        self.evaluated: list[Any] = []

    def forward(self, pixel_values: torch.Tensor, labels: torch.Tensor) -> dict[str, torch.Tensor]:
        (self.trained if self.training else self.evaluated).append((pixel_values.sum().item(), labels.tolist()))
        logits = self.linear(pixel_values.float().mean((2, 3)) / 255)
        return {"loss": torch.nn.functional.cross_entropy(logits, labels), "logits": logits}


def trained(dataset: Path, out: Path, resume: bool | None = None, **options: Any) -> Model:
    data = LMDBDataset(dataset)
    train = NamedBatches(data, 8, crop=RandomResizedCrop(24), flip=0.5, shuffle=True, seed=1, num_workers=1)
    val = NamedBatches(data, 8, crop=CenterCrop(24), num_workers=0)

    class Trainer(transformers.Trainer):  # type: ignore[misc]
        def get_train_dataloader(self) -> Any:
            return train

        def get_eval_dataloader(self, eval_dataset: Any = None) -> Any:  # noqa: ARG002
            return val

    quiet = {"report_to": [], "disable_tqdm": True, "use_cpu": True, "ignore_data_skip": True}
    model = Model()
    arguments = transformers.TrainingArguments(output_dir=str(out), num_train_epochs=2, **quiet, **options)
    trainer = Trainer(model, arguments, train_dataset=data, eval_dataset=data)
    trainer.train(resume_from_checkpoint=resume)
    train.close()
    return model


def expected(dataset: Path, epochs: int, **options: Any) -> list[Any]:
    loader = Loader(LMDBDataset(dataset), 8, num_workers=0, **options)
    return [(images.sum().item(), labels.tolist()) for _ in range(epochs) for images, labels in loader]


TRAINING: dict[str, Any] = {"crop": RandomResizedCrop(24), "flip": 0.5, "shuffle": True, "seed": 1}


def test_it_trains_and_evaluates_from_loaders(dataset: Path, tmp_path: Path) -> None:
    model = trained(dataset, tmp_path, eval_strategy="epoch", save_strategy="no", gradient_accumulation_steps=2)
    assert model.trained == expected(dataset, 2, **TRAINING)
    assert model.evaluated == expected(dataset, 1, crop=CenterCrop(24)) * 2


def test_a_resumed_run_restarts_its_epoch(dataset: Path, tmp_path: Path) -> None:
    first = trained(dataset, tmp_path, save_strategy="steps", save_steps=9, max_steps=9)
    assert first.trained == expected(dataset, 2, **TRAINING)[:9]
    resumed = trained(dataset, tmp_path, resume=True, save_strategy="no")
    assert resumed.trained == expected(dataset, 2, **TRAINING)[7:][: len(resumed.trained)]
    assert len(resumed.trained) == 2 * 7 - 9
