"""One run of a benchmark in this process: one variant with one model.

``python -m presize.datasets.timing.bench_run PID`` reads a Run as a line of JSON from standard input, and writes its
result as a line of JSON to standard output. It exits when its parent, the process PID, ends."""

from __future__ import annotations

import hashlib
import json
import os
import sys
import threading
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict
from typing import Any

import numpy as np
import torch

from presize.datasets.crops import RandomResizedCrop
from presize.datasets.dataset import LMDBDataset
from presize.datasets.reading.transfer import as_device, map_tensors
from presize.datasets.timing.devices import read_torch
from presize.datasets.timing.epochs import NoModel, copied_s, on_host, resident_s, time_epoch
from presize.datasets.timing.models import TrainingStep, make_model
from presize.datasets.timing.variants import FLIP, Chosen, CroppedFolder, load_variant, open_variant
from presize.errors import BenchError, DiagnosisError, OptionError, PresizeError
from presize.measure.bench_options import BenchModel, Run
from presize.system.resources import usable_cores

_WATCH_S = 0.5

_FULL = ("can't allocate memory", "not enough memory", "out of memory")
"""Texts of RuntimeErrors of torch's allocators for the CPU and MPS, which do not raise OutOfMemoryError."""


def main() -> None:
    """Make the run on standard input. An error is written as {"error": one line, "is_option": for an OptionError}."""
    threading.Thread(target=_end_with_the_driver, daemon=True).start()
    run = Run(**json.loads(sys.stdin.readline()))
    try:
        result = {"measure": measure, "prove": prove, "probe": probe}[run.task](run)
    except PresizeError as error:
        lines = str(error).strip().splitlines()
        # A DataLoader puts the worker's traceback and the name of the class before the message.
        said = lines[-1].partition(": ")[2] if len(lines) > 1 else str(error)
        result = {"error": said, "is_option": isinstance(error, OptionError)}
    sys.stdout.write(json.dumps(result) + "\n")


def _end_with_the_driver() -> None:
    while os.getppid() == int(sys.argv[1]):
        time.sleep(_WATCH_S)
    os._exit(1)


def probe(run: Run) -> dict[str, Any]:
    """Return {"gpu_name": name or type of the accelerator, None for the CPU}. Raises OptionError if it is missing."""
    device, gpus = as_device(run.device), read_torch().gpus
    if device.type == "cpu":
        return {"gpu_name": None}
    return {"gpu_name": gpus[device.index].name if gpus and device.index is not None else device.type}


def measure(run: Run) -> dict[str, Any]:
    """Time epochs of a variant, and the step without a loader. Returns "epochs", the fields of each Epoch; "resident_s"
    and "copied_s", seconds per step, None without a model, and equal on the CPU, where nothing is copied; "model_of",
    the package of the model. Raises BenchError if memory runs out."""
    device = as_device(run.device)
    if device.type == "cpu":
        # Threads of a step wait for each other: with more threads than free cores, it takes several times as long.
        torch.set_num_threads(max(1, usable_cores() - run.workers))
    dataset = open_variant(run.variant, run.root, RandomResizedCrop(run.crop), FLIP)
    order, whose = _order(run, dataset), None
    with memory_errors(run.model, run.batch, run.crop, device.type):
        step = NoModel(device)
        if run.model != "none":
            torch.manual_seed(run.seed)
            model, whose = make_model(run.model, max(len(dataset.classes or ()), 1))
            step = TrainingStep(model, device)
        how = {"pin_memory": run.pin_memory, "drop_last": len(order) >= run.batch}
        loader = load_variant(run.variant, dataset, order, run, device, **how)
        warmup_steps = max(1, min(run.workers, len(loader) // 2))
        epochs = [asdict(time_epoch(loader, step, warmup_steps=warmup_steps)) for _ in range(run.epochs)]
        resident = copied = None
        if run.model != "none":
            # A batch of this variant, because another memory layout can make the step faster.
            batch = map_tensors(lambda tensor: tensor.detach().clone(), next(iter(loader)))
            del loader  # ends its workers, which would slow down the steps
            resident = copied = resident_s(step, batch)
            if device.type != "cpu":
                copied = copied_s(step, on_host(batch, device))
    return {"epochs": epochs, "resident_s": resident, "copied_s": copied, "model_of": whose}


def _order(run: Run, dataset: CroppedFolder | LMDBDataset) -> Chosen:
    numbers = np.arange(len(dataset)) if run.numbers is None else np.load(run.numbers, allow_pickle=False)
    most = None if run.steps is None or run.task == "prove" else run.steps * run.batch
    return Chosen(numbers, len(dataset), run.seed, most)


@contextmanager
def memory_errors(model: BenchModel, batch: int, crop: int, device: str) -> Iterator[None]:
    """Turn running out of memory, on the GPU or the CPU, into a BenchError that names what needs the memory."""
    try:
        yield
    except (MemoryError, RuntimeError, DiagnosisError) as error:
        why = error.__cause__ if isinstance(error, DiagnosisError) else error
        full = isinstance(why, (MemoryError, torch.OutOfMemoryError))
        if not full and not any(words in str(why) for words in _FULL):
            raise
        what = "the loader" if model == "none" else f"training model {model!r}"
        raise BenchError(
            f"{what} with batches of {batch} images of {crop} px does not fit into the memory of "
            f"{'this machine' if device == 'cpu' else 'the GPU'}; choose a smaller --batch or --crop"
        ) from None


def prove(run: Run) -> dict[str, Any]:
    """Read every sample as when measuring. Returns "samples", their number, and "labels", the SHA-256 of their class
    names in the order of `run.numbers`, None without classes. Raises BenchError unless each comes exactly once."""
    dataset = open_variant(run.variant, run.root, RandomResizedCrop(run.crop), FLIP, tell_path=True)
    order, classes = _order(run, dataset), dataset.classes
    came, label_of = Counter[str](), dict[str, int]()
    for _, targets in load_variant(run.variant, dataset, order, run, torch.device("cpu")):
        paths, labels = (targets, [0] * len(targets)) if classes is None else targets
        came.update(paths)
        label_of.update(zip(paths, map(int, labels), strict=True))
    path = dataset.data.path if isinstance(dataset, LMDBDataset) else dataset.path
    asked = list(map(path, order.numbers.tolist()))
    for at, count in enumerate(came[path] for path in asked):
        if count != 1:
            what = f"gave sample {at} not once but {count} times in an epoch"
            raise BenchError(f"{run.variant} {what}: this is a bug in presize")
    if len(came) > len(asked):
        raise BenchError(f"{run.variant} gave samples that were not requested: this is a bug in presize")
    digest = None
    if classes is not None:
        digest = hashlib.sha256("\0".join(classes[label_of[path]] for path in asked).encode()).hexdigest()
    return {"samples": len(asked), "labels": digest}


if __name__ == "__main__":
    main()
