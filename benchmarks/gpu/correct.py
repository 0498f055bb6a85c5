"""Check that the batches that a Loader delivers on a device are correct. Run it first on a new kind of device.

    python benchmarks/gpu/correct.py OUT --csv FILE

OUT is a dataset that `presize build` made from class folders. Each check is written as a row of FILE as soon as it is
done. If a check fails, the others still run, and the exit code is 1. `--device simulated` runs them on the simulated
accelerator of presize's tests, `--device cpu` without an accelerator.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import time
import traceback
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch
from torch.utils.data import Subset

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from presize.datasets import LMDBDataset, Loader, RandomResizedCrop
from shared import rates

_BATCH, _IMAGES, _SIDE = 32, 512, 96
"""Images in a batch (fewer if a dataset would have fewer than eight batches), images read, side of a crop."""
_NORMALIZE = ((0.485, 0.456, 0.406), (0.229, 0.224, 0.225))
_CROP = RandomResizedCrop(_SIDE)
_KINDS: dict[str, dict[str, Any]] = {
    "uint8": {"crop": _CROP},
    "two views": {"crop": [_CROP, RandomResizedCrop(48)]},
    "float32": {"crop": _CROP, "normalize": _NORMALIZE},
    "bfloat16": {"crop": _CROP, "normalize": _NORMALIZE, "dtype": torch.bfloat16},
}
_ENVIRONMENTS = {
    "every kernel is waited for": {"CUDA_LAUNCH_BLOCKING": "1"},
    "no allocator keeps memory": {"PYTORCH_NO_CUDA_MEMORY_CACHING": "1"},
}
_WORK = 2048
"""Side of the matrices that keep a GPU busy, so that steps are slower than copies."""


class Wrong(Exception):
    """Failure of a check; the message says what was expected and what was found."""


class Bench:
    """Device, and a small dataset whose batches are read to it."""

    def __init__(self, device: str, root: Path) -> None:
        self.is_cuda = device.startswith("cuda")
        if device == "simulated":
            sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "tests" / "support"))
            from accelerators import Accelerator

            self.simulated = Accelerator(SimpleNamespace(setattr=setattr))
        self.device = "cuda" if device == "simulated" else device
        self.default = "meta" if device == "simulated" else self.device
        whole = LMDBDataset(root)
        self.data = Subset(whole, range(min(_IMAGES, len(whole))))
        self.batch = min(_BATCH, max(len(self.data) // 8, 1))
        side, where = (_WORK, self.device) if self.is_cuda else (1, "cpu")
        self.work, self.spare = (torch.ones(side, side, device=where) for _ in range(2))

    def loader(self, on_device: bool, workers: int, **options: Any) -> Loader:
        device = self.device if on_device else None
        return Loader(self.data, self.batch, shuffle=True, seed=3, num_workers=workers, device=device, **options)

    def step(self) -> None:
        """Keep a GPU busy for a few milliseconds, without waiting for it and without allocating memory."""
        for _ in range(20 if self.is_cuda else 0):
            torch.matmul(self.work, self.work, out=self.spare).clamp_(0, 1)

    def read(self, loader: Loader) -> list[list[torch.Tensor]]:
        """Return the tensors of each batch. The device reads them only after a step, when the batch has been freed."""
        with loader:
            found = []
            for images, labels in loader:
                self.step()
                views = images if isinstance(images, tuple) else (images,)
                found.append([view.clone() for view in (*views, labels)])
                del images, labels, views
            return [[tensor.cpu() for tensor in tensors] for tensors in found]


def same(got: list[list[torch.Tensor]], want: list[list[torch.Tensor]]) -> None:
    """Raise Wrong unless batches are equal; floats up to their rounding, which differs between devices."""
    if len(got) != len(want):
        raise Wrong(f"expected {len(want)} batches, got {len(got)}")
    for number, (ours, theirs) in enumerate(zip(got, want, strict=True)):
        for mine, other in zip(ours, theirs, strict=True):
            rtol = torch.finfo(mine.dtype).eps if mine.is_floating_point() else 0
            if not torch.allclose(mine.double(), other.double(), rtol=rtol, atol=1e-6 if rtol else 0):
                worst = (mine.double() - other.double()).abs().max().item()
                raise Wrong(f"batch {number}: {tuple(mine.shape)} {mine.dtype} differs by up to {worst:g}")


def equal(bench: Bench) -> str:
    """Check that batches of every kind, without workers and with four, equal those on the CPU."""
    for name, options in _KINDS.items():
        want = bench.read(bench.loader(False, 0, **options))
        for workers in (0, 4):
            try:
                same(bench.read(bench.loader(True, workers, **options)), want)
            except Wrong as error:
                raise Wrong(f"{name}, {workers} workers: {error}") from None
    return f"{', '.join(_KINDS)}; {len(want)} batches each"


def inference_mode(bench: Bench) -> str:
    """Check that batches handed out outside of inference mode are not inference tensors."""
    batches = iter(bench.loader(True, 4, crop=_CROP))
    with torch.inference_mode():
        next(batches)
        time.sleep(0.5)  # the workers load more batches
        next(batches)
    if next(batches)[0].is_inference():
        raise Wrong("a batch handed out after inference_mode is an inference tensor")
    return "plain tensors after it"


def default_device(bench: Bench) -> str:
    """Check that torch.set_default_device() changes no batch."""
    options = _KINDS["float32"]
    want = bench.read(bench.loader(False, 0, **options))
    torch.set_default_device(bench.default)
    try:
        got = bench.read(bench.loader(True, 4, **options))
    finally:
        torch.set_default_device(None)
    same(got, want)
    return f"the same batches with {bench.default}"


def left_early(bench: Bench) -> str:
    """Check that epochs can be left early, and that the next one is correct."""
    loader = bench.loader(True, 4, crop=_CROP)
    begin = time.perf_counter()
    for _ in range(3):
        next(iter(loader))
    took_s = (time.perf_counter() - begin) / 3
    loader.set_epoch(0)
    same(bench.read(loader), bench.read(bench.loader(False, 0, crop=_CROP)))
    return f"{took_s:.2f} s for an epoch of one batch"


def memory(bench: Bench) -> str:
    """Check that memory on the device does not grow with the number of queued steps: at most 8 batches."""
    if not bench.is_cuda:
        return "needs CUDA"
    bench.step()  # allocates its workspace
    torch.cuda.synchronize()
    before, one = torch.cuda.memory_stats()["active_bytes.all.current"], bench.batch * 3 * _SIDE**2
    torch.cuda.reset_peak_memory_stats()
    bench.read(bench.loader(True, 4, crop=_CROP))
    # Memory is active until the device has finished with it, which is later than the end of the last tensor.
    peak = torch.cuda.memory_stats()["active_bytes.all.peak"] - before
    batches = peak / one - len(bench.data) // bench.batch  # read() keeps all batches
    if batches > 8:
        raise Wrong(f"expected at most 8 batches of {one / 1e6:.1f} MB, got {batches:.1f}")
    return f"{batches:.1f} batches of {one / 1e6:.1f} MB at most"


def profile(bench: Bench) -> str:
    """Check that each batch of an epoch needs two copies, of images and of labels, both from pinned memory."""
    if not bench.is_cuda:
        return "needs CUDA"
    activities = [torch.profiler.ProfilerActivity.CPU, torch.profiler.ProfilerActivity.CUDA]
    with torch.profiler.profile(activities=activities) as profiled, bench.loader(True, 4, crop=_CROP) as loader:
        count = sum(1 for _ in loader)
    copies = {event.key: event.count for event in profiled.key_averages() if "Memcpy HtoD" in event.key}
    waits = {event.key: event.count for event in profiled.key_averages() if "Synchronize" in event.key}
    if not copies or any("Pageable" in key for key in copies) or sum(copies.values()) > 2 * count:
        raise Wrong(f"expected {2 * count} copies from pinned memory for {count} batches, got {copies}")
    return f"{count} batches: {copies}; {waits}"


Check = Callable[[Bench], str]
CHECKS: dict[str, Check] = {
    "equal": equal,
    "inference mode": inference_mode,
    "default device": default_device,
    "left early": left_early,
    "memory": memory,
    "profile": profile,
}


def run(options: argparse.Namespace) -> bool:
    """Run all checks, and write each into the CSV. Return whether all passed."""
    rows: list[dict[str, object]] = []

    def note(check: str, right: bool, found: str, begin: float) -> None:
        seconds = round(time.perf_counter() - begin, 1)
        rows.append({"check": check, "right": right, "found": found, "seconds": seconds, "device": options.device})
        print(f"{'right' if right else 'WRONG'}  {check}: {found}", flush=True)
        if options.csv is not None:
            rates.write(options.csv, rows)

    bench = Bench(options.device, options.source)
    for name in options.only or CHECKS:
        begin = time.perf_counter()
        try:
            note(name, True, CHECKS[name](bench), begin)
        except Exception as error:  # any error of a driver, torch or presize is a finding
            if not isinstance(error, Wrong):
                traceback.print_exc()
            note(name, False, str(error).partition("\n")[0] or type(error).__name__, begin)
    for name, environment in {} if options.only else _ENVIRONMENTS.items():
        begin = time.perf_counter()
        command = [sys.executable, __file__, options.source, "--device", options.device, "--only", "equal"]
        ran = subprocess.run(command, env={**os.environ, **environment}, capture_output=True, text=True, check=False)
        found = ran.stdout.partition("\n")[0].partition(": ")[2]
        note(name, ran.returncode == 0, found or ran.stderr.strip().rpartition("\n")[2], begin)
    if options.device == "simulated":
        note("simulated", not bench.simulated.problems, ", ".join(bench.simulated.problems) or "no problem", 0.0)
    return all(row["right"] for row in rows)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("source", type=Path, metavar="OUT")
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--csv", type=Path)
    parser.add_argument("--only", choices=list(CHECKS), action="append")
    sys.exit(0 if run(parser.parse_args()) else 1)


if __name__ == "__main__":
    main()
