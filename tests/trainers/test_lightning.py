"""Lightning's Trainer and Fabric with Loader and make_loader: whole epochs, resumed checkpoints, two ranks."""

from __future__ import annotations

import hashlib
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils.data import random_split

from presize import export_dataset
from presize.datasets import FolderDataset, LMDBDataset, Loader, RandomResizedCrop, Shuffled, make_loader

with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    lightning: Any = pytest.importorskip("lightning.pytorch", reason="lightning is not installed (extra: trainers)")

pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("ignore::Warning")]


class Seen(lightning.LightningModule):  # type: ignore[misc]
    """A model that records the batches of each kind of step."""

    def __init__(self, save_after: tuple[int, int] | None = None, path: Path | None = None) -> None:
        super().__init__()
        self.linear = torch.nn.Linear(3, 3)
        self.train_batches: list[str] = []
        self.val_batches: list[str] = []
        self.test_batches: list[str] = []
        self.save_after, self.path = save_after, path

    def training_step(self, batch: Any, _: int) -> torch.Tensor:
        self.train_batches.append(digest(batch))
        images, labels = batch
        return torch.nn.functional.cross_entropy(self.linear(images.float().mean((2, 3))), labels)

    def on_train_batch_end(self, _outputs: Any, _batch: Any, batch_idx: int) -> None:
        if self.save_after == (self.current_epoch, batch_idx + 1):
            self.trainer.save_checkpoint(self.path)

    def validation_step(self, batch: Any, _: int) -> None:
        self.val_batches.append(digest(batch))

    def test_step(self, batch: Any, _: int) -> None:
        self.test_batches.append(digest(batch))

    def configure_optimizers(self) -> Any:
        return torch.optim.SGD(self.parameters(), lr=1e-4)


def digest(batch: Any) -> str:
    images, labels = batch
    return hashlib.sha256(images.numpy().tobytes() + labels.numpy().tobytes()).hexdigest()


def trainer(folder: Path, **options: Any) -> Any:
    quiet = {"logger": False, "enable_progress_bar": False, "enable_model_summary": False}
    return lightning.Trainer(
        **{"accelerator": "cpu", "max_epochs": 2, "default_root_dir": folder, "enable_checkpointing": False}
        | quiet
        | options
    )


@pytest.fixture(scope="module")
def data(dataset: Path) -> LMDBDataset:
    return LMDBDataset(dataset, crop=RandomResizedCrop(24), flip=0.5, decode="tensor")


def loaders(make: Any, data: LMDBDataset) -> tuple[Any, Any]:
    train, val = random_split(data, [50, 6], torch.Generator().manual_seed(0))
    return make(train, 8, shuffle=True, seed=1, num_workers=2), make(val, 2, seed=0, num_workers=1, prefetch_factor=3)


@pytest.mark.parametrize("make", [Loader, make_loader])
def test_fit_validate_and_test_read_every_epoch_once(make: Any, data: LMDBDataset, tmp_path: Path) -> None:
    train, val = loaders(make, data)
    model = Seen()
    trainer(tmp_path).fit(model, train, val)
    again, val_again = loaders(Loader, data)
    assert model.train_batches == [*map(digest, again), *map(digest, again)]
    checks = model.val_batches[:2]  # before training; this epoch is left early
    assert len(set(checks)) == 2 and len(model.val_batches) == 2 + 2 * 3
    trainer(tmp_path).validate(model, val)
    trainer(tmp_path).test(model, val)
    assert len(model.val_batches) == 2 + 3 * 3 and len(model.test_batches) == 3
    val_again.set_epoch(0)
    assert model.test_batches == [*map(digest, val_again)]


def small(image: Any) -> torch.Tensor:
    return torch.from_numpy(np.array(image.resize((24, 24)))).permute(2, 0, 1)


def test_a_plain_dataloader_yields_the_batches_of_the_exported_files(dataset: Path, tmp_path: Path) -> None:
    export_dataset(dataset, tmp_path / "files")
    seen = []
    for data in (FolderDataset(tmp_path / "files", small), LMDBDataset(dataset, small)):
        torch.manual_seed(0)
        model = Seen()
        trainer(tmp_path).fit(model, torch.utils.data.DataLoader(data, 8, shuffle=True, num_workers=2))
        seen.append(model.train_batches)
    assert seen[0] == seen[1] and len(set(seen[0])) == 2 * 7


def test_epochs_may_be_left_early(data: LMDBDataset, tmp_path: Path) -> None:
    train, val = loaders(Loader, data)
    model = Seen()
    options = {"limit_train_batches": 3, "limit_val_batches": 1, "num_sanity_val_steps": 0}
    trainer(tmp_path, **options).fit(model, train, val)
    again, _ = loaders(Loader, data)
    whole = [[*map(digest, again)] for _ in range(2)]
    assert model.train_batches == whole[0][:3] + whole[1][:3]
    assert len(model.val_batches) == 2


@pytest.mark.parametrize("make", [Loader, make_loader])
@pytest.mark.parametrize("at", [(0, 3), (1, 2), (1, 7)])
def test_a_checkpoint_resumes_in_the_middle_of_an_epoch(
    make: Any, at: tuple[int, int], data: LMDBDataset, tmp_path: Path
) -> None:
    model = Seen(at, tmp_path / "saved.ckpt")
    trainer(tmp_path, max_epochs=3).fit(model, loaders(make, data)[0])
    resumed = Seen()
    trainer(tmp_path, max_epochs=3).fit(resumed, loaders(make, data)[0], ckpt_path=tmp_path / "saved.ckpt")
    assert len(model.train_batches) == 3 * 7
    assert resumed.train_batches == model.train_batches[at[0] * 7 + at[1] :]


@pytest.mark.parametrize("trainer", ["lightning", "fabric"])
def test_two_processes_share_every_epoch(trainer: str, ranks: Callable[[str], list[Any]]) -> None:
    found = ranks(trainer)
    for kind in ("Loader", "make_loader"):
        for epoch in range(2):
            samples = Shuffled(56, seed=1).samples(epoch, np.arange(56)).tolist()
            together = [found[turn % 2][kind][epoch][turn // 2] for turn in range(56)]
            assert together == samples, kind
