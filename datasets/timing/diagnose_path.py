"""diagnose_path: diagnose training of a known model on a folder of images, or on a dataset."""

from __future__ import annotations

import operator
import os
import time
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any, SupportsIndex

import numpy as np
import torch

from presize.datasets.crops import RandomResizedCrop
from presize.datasets.reading.order import Order, Shuffled, Weighted
from presize.datasets.reading.transfer import accelerator, as_device
from presize.datasets.timing.bench_run import memory_errors
from presize.datasets.timing.devices import read_torch
from presize.datasets.timing.diagnose import diagnose
from presize.datasets.timing.models import TrainingStep, make_model
from presize.datasets.timing.variants import FLIP, CroppedFolder, load_variant, open_variant
from presize.errors import ImageError
from presize.formatting import plural, printable
from presize.measure.bench_options import DiagnoseOptions, Variant
from presize.measure.diagnosis import Diagnosis
from presize.measure.doctor import check_up, judge
from presize.measure.read_speed import Reading
from presize.store.data_files import MANIFEST
from presize.store.index import read_index
from presize.store.manifest import read_manifest
from presize.system.resources import is_asynchronous, usable_cores

_MOST_BROKEN = 100
_SMALL_ALREADY = 0.95  # presizing is not tried if it keeps at least this share of the bytes
_LONG_EPOCH = 1_000_000  # batches, so that no epoch ends during a measurement


class _Sound(CroppedFolder):
    """Folder that replaces an image that cannot be decoded by the next one."""

    def __getitem__(self, index: SupportsIndex) -> Any:
        for _ in range(_MOST_BROKEN):
            with suppress(ImageError):
                return super().__getitem__(index)
            index = (operator.index(index) + 1) % len(self)
        return super().__getitem__(index)


def diagnose_path(
    path: str | os.PathLike[str],
    options: DiagnoseOptions = DiagnoseOptions(),
    *,
    trial: str | os.PathLike[str] | None = None,
    trial_name: str = "",
    on_step: Callable[[str], None] = lambda _: None,
) -> Diagnosis:
    """Train a model on random crops of the images in `path`, a folder or a dataset, and find the bottleneck. On the
    CPU, training gets half of the cores, so that its speed does not depend on the number of workers.

    `trial`: a small presized dataset of the same images, whose loaders become alternatives. `trial_name`: name of
    presizing in the advice, such as "Presize to 256 px". Raises BenchError if memory runs out, OptionError if the
    device is missing, and DiagnosisError if reading or training fails.
    """
    begin = time.perf_counter()
    device = as_device(options.device or accelerator())
    notes = []
    threads = torch.get_num_threads()
    if device.type == "cpu":
        threads = max(1, usable_cores() // 2)
        notes.append(f"Training on the CPU uses {plural(threads, 'thread')}.")
    manifest = read_manifest(path) if os.path.exists(os.path.join(path, MANIFEST)) else None
    if manifest is not None:
        manifest.check_plain("diagnose")
    is_dataset = manifest is not None and manifest.layout == "lmdb"
    on_step("measuring how fast the files can be read")
    facts = check_up(read_torch(), Path(path), max(options.workers, 1))
    for topic, level, found, fix in judge(facts):
        if level in ("warn", "bad"):
            notes.append(printable(f"{topic}: {found}. Fix: {fix}."))
    loader = _loader("lmdb" if is_dataset else "raw", path, options, device)
    alternatives: dict[str, Iterable[Any]] = {}
    if is_dataset:
        alternatives["Read it with Loader"] = _loader("loader", path, options, device)
    elif trial is not None and (share := _stored_share(trial)) >= _SMALL_ALREADY:
        notes.append(
            f'"{trial_name}" was not tried: it would store {share:.0%} of the bytes, as the images are already small.'
        )
    elif trial is not None:
        alternatives[f"{trial_name} and read it with LMDBDataset"] = _loader("lmdb", trial, options, device)
        alternatives[f"{trial_name} and read it with Loader"] = _loader("loader", trial, options, device)
    classes = max(len(getattr(loader.dataset, "classes", None) or ()), 1)
    torch.manual_seed(options.seed)
    reading = facts.reading if isinstance(facts.reading, Reading) and facts.reading.cold is not False else None
    threads_before = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        with memory_errors(options.model, options.batch, options.crop, device.type):
            step = TrainingStep(make_model(options.model, classes)[0], device)
            diagnosis = diagnose(
                loader,
                lambda batch: step(step.place(batch)),
                seconds=max(options.seconds - (time.perf_counter() - begin), options.seconds / 2),
                device=device,
                alternatives=alternatives,
                storage_images_per_s=None if reading is None else reading.random_reads_per_s,
                notes=notes,
                on_step=on_step,
            )
    finally:
        torch.set_num_threads(threads_before)
    return replace(diagnosis, epoch_batches=None)  # the loader's long epochs are artificial


def _stored_share(trial: str | os.PathLike[str]) -> float:
    """Return the size of a presized dataset as a fraction of the size of its source files."""
    manifest = read_manifest(trial)
    files = int(read_index(trial, manifest).column("source_nbytes").to_numpy().sum())
    return manifest.bytes / max(files, 1)


def _loader(variant: Variant, path: str | os.PathLike[str], options: DiagnoseOptions, device: torch.device) -> Any:
    crop = RandomResizedCrop(options.crop)
    dataset = _Sound(path, crop, FLIP) if variant == "raw" else open_variant(variant, os.fspath(path), crop, FLIP)
    order: Order = Shuffled(len(dataset), options.seed)
    most = _LONG_EPOCH * options.batch
    if len(dataset) < most:  # make the epoch long, because its end must not be measured
        order = Weighted(np.ones(len(dataset)), options.seed, most)
    pins = is_asynchronous(device.type)
    return load_variant(variant, dataset, order, options, device, pin_memory=pins, drop_last=True)
