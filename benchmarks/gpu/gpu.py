"""Run the steps of benchmarks/gpu/gpu.sh, which creates their environment: see its --help.

Each step is a command with a share of the remaining time; the time that it does not use goes to the next steps. A step
that takes longer is interrupted; its measurements so far are kept.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from importlib.util import find_spec
from itertools import chain
from multiprocessing import get_context
from pathlib import Path
from statistics import median
from typing import Any

import cv2

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from presize.errors import PresizeError
from presize.sources.sample import SampleOptions, sample_file
from presize.system.resources import usable_cores
from shared import builds, rates
from shared.conditions import conditions, find_photos

IMAGENET = 1_281_167
"""Images in ImageNet's training set."""

_HERE = Path(__file__).parent
_GRACE_S = 8
"""Seconds in which an interrupted command can write its results."""

_LEAST_S = 10.0
"""Seconds below which a step is not started."""

_PREFETCH = 2
_MODELS = {"none": "no model", "small": "small CNN", "resnet50": "ResNet-50"}
_VARIANTS = {
    "pil": "raw folder, PIL",
    "raw": "raw folder",
    "presized": "presized folder",
    "lmdb": "LMDBDataset",
    "loader": "Loader",
}
_RESULTS = ("correct", "read", "bench", "build", "pinning", "augment", "decode")


@dataclass(frozen=True)
class Scale:
    """Amounts for a measurement, or for a dry run on the CPU.

    Attributes:
        images: images in an epoch.
        built: images in the build that is timed.
        painted: maximal number of sample photographs, if none are given.
        batch: images in a batch.
        crop: side of a crop, in pixels.
        size: shorter side of presized images, in pixels.
        repeats: --repeats of `presize bench`.
        few: numbers of workers to read with, in addition to all cores; numbers above that are skipped.
        limits: other arguments of `presize bench`.
    """

    images: int
    built: int
    painted: int
    batch: int
    crop: int
    size: int
    repeats: int
    few: tuple[int, ...]
    limits: tuple[str, ...] = ()


SCALES = {
    "cuda": Scale(10_000, 40_000, 10_000, 128, 224, 256, 2, (1, 2, 4, 8, 16)),
    "cpu": Scale(64, 200, 40, 8, 64, 96, 1, (1,), ("--steps", "2")),
}
SCALES["simulated"] = SCALES["cpu"]


@dataclass
class Session:
    """State that the steps share, and their results.

    Attributes:
        options: options of the command line.
        photos: photographs to link to.
        tree: folder of the links.
        built: rows of gpu-build.csv.
        tables: tables that the other scripts printed.
        unfinished: a line for each step that did not finish.
        folder: a presized folder of the links.
        lmdb: an LMDB dataset of the links.
    """

    options: argparse.Namespace
    photos: list[Path] = field(default_factory=list)
    tree: Path = Path()
    built: list[dict[str, object]] = field(default_factory=list)
    tables: list[str] = field(default_factory=list)
    unfinished: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.scale = SCALES[self.options.device]
        self.work, self.out = self.options.work, self.options.out
        self.device = "cpu" if self.options.device == "simulated" else self.options.device
        self.folder, self.lmdb = self.work / "folder", self.work / "lmdb"
        self.read = self.work / "gpu-read.csv"
        self.checks = self.work / "gpu-correct.csv"

    @property
    def cores(self) -> int:
        """Cores that this process may use: a container may have fewer than it sees."""
        return usable_cores()

    def run(self, command: list[str | Path], seconds: float) -> str:
        """Run a command and return its standard output. Raises StepError if it fails or takes too long."""
        # In its own session, so that its children can be killed with it.
        process = subprocess.Popen([*map(str, command)], stdout=subprocess.PIPE, text=True, start_new_session=True)
        try:
            printed, _ = process.communicate(timeout=max(1.0, seconds - _GRACE_S))
        except (subprocess.TimeoutExpired, KeyboardInterrupt) as stop:
            process.terminate()
            with suppress(subprocess.TimeoutExpired):
                process.communicate(timeout=_GRACE_S)
            if isinstance(stop, KeyboardInterrupt):
                raise
            raise StepError(f"interrupted after its {seconds:.0f} s") from None
        finally:
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()
        if process.returncode:
            raise StepError(f"exited with {process.returncode}; see its messages above")
        return printed

    def presize(self, *arguments: str | Path, seconds: float) -> str:
        return self.run([sys.executable, "-m", "presize", *arguments], seconds)


class StepError(Exception):
    """Error for a step that did not finish."""


def have_photos(session: Session, seconds: float) -> None:
    """Find the given photographs, or paint as many samples as the time allows; then link to them."""
    if session.options.photos is not None:
        given = find_photos(session.options.photos)
        session.photos = find_photos(
            builds.link_tree(given, session.work, len(given))
        )  # copied once, if on another disk
    else:
        painted = session.work / "painted"
        options = SampleOptions(images=session.scale.painted, classes=10)
        todo = random.Random(0).sample(range(options.images), options.images)
        painted.mkdir(exist_ok=True)
        ends = time.monotonic() + seconds
        with get_context("fork").Pool(session.cores, _prepare_painter) as pool:
            for _ in pool.imap_unordered(partial(_paint, painted, options), todo):
                if time.monotonic() > ends:
                    break
        session.photos = find_photos(painted)
    session.tree = builds.link_tree(session.photos, session.work, session.scale.images)
    say(f"{len(session.photos):,} photographs, {session.scale.images:,} links to them")


def _prepare_painter() -> None:
    cv2.setNumThreads(0)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent handles Ctrl-C, and ends this process
    signal.signal(signal.SIGTERM, signal.SIG_DFL)


def _paint(folder: Path, options: SampleOptions, index: int) -> None:
    path, content = sample_file(options, index)
    unfinished = folder / f"{index}.part"
    unfinished.write_bytes(content)
    unfinished.rename(folder / f"{index}{Path(path).suffix}")


def build(session: Session, seconds: float) -> None:
    """Build the datasets that the benchmarks read."""
    ends = time.monotonic() + seconds
    for out, to in ((session.lmdb, "lmdb"), (session.folder, "folder")):
        _build(session, session.tree, out, to, ends - time.monotonic())


def _build(session: Session, source: Path, out: Path, to: str, seconds: float) -> dict[str, Any]:
    how = ("--size", str(session.scale.size), "--to", to, "--no-report", "--overwrite", "--json")
    printed = session.presize("build", source, out, *how, seconds=seconds)
    found: dict[str, Any] = json.loads(printed)
    return found


def correct(session: Session, seconds: float) -> None:
    """Run correct.py. Errors are reported, and the measurements continue."""
    command = [sys.executable, _HERE / "correct.py", session.lmdb, "--device", session.options.device]
    try:
        session.run([*command, "--csv", session.checks], seconds)
    finally:
        if session.checks.exists():
            shutil.copy(session.checks, session.out)


def build_speed(session: Session, seconds: float) -> None:
    """Time a larger build and the codec limit, in turn."""
    source, out = builds.link_tree(session.photos, session.work, session.scale.built), session.work / "timed"
    facts = conditions(session.photos)
    limit = ["--procs", str(session.cores), "--size", str(session.scale.size)]
    ends = time.monotonic() + seconds
    for number in range(2):
        printed = session.run(
            [sys.executable, builds.PEERS / "codec_limit.py", source, *limit], ends - time.monotonic()
        )
        measured = {"codec limit": json.loads(printed)}
        built = _build(session, source, out, "lmdb", ends - time.monotonic())
        shutil.rmtree(out)
        measured["presize build"] = {"images": built["samples"], "seconds": built["seconds"]}
        for variant, one in measured.items():
            rate = {"images_per_s": round(one["images"] / one["seconds"], 1)}
            session.built.append({"variant": variant, "round": number, "procs": session.cores} | one | rate | facts)
        rates.write(session.out / "gpu-build.csv", session.built)


def bench(session: Session, seconds: float, models: tuple[str, ...], variants: tuple[str, ...]) -> None:
    """Run `presize bench`, and write its rows to gpu-bench.csv."""
    scale, out = session.scale, session.work / f"bench-{models[0]}"
    asked = [word for model in models for word in ("--model", model)]
    asked += [word for variant in variants for word in ("--variant", variant)]
    asked += ["--device", session.device, "--workers", str(session.cores), "--batch", str(batch_of(session))]
    asked += ["--crop", str(scale.crop), "--epochs", "2", "--repeats", str(scale.repeats), *scale.limits]
    roots = ("--raw", session.tree, "--presized", session.folder, "--lmdb", session.lmdb)
    try:
        session.presize("bench", *roots, *asked, "--prefetch", str(_PREFETCH), "--out", out, seconds=seconds)
    finally:
        _collect(session)


def batch_of(session: Session) -> int:
    """Return the batch size of the scale, or less if the batches of all workers would not fit into /dev/shm."""
    batch, pixels = session.scale.batch, 3 * session.scale.crop**2
    with suppress(OSError):
        while batch > 8 and session.cores * _PREFETCH * batch * pixels > 0.9 * shutil.disk_usage("/dev/shm").free:
            batch //= 2
    return batch


def _collect(session: Session) -> None:
    """Write the rows of all runs to one CSV, without the paths of this machine."""
    rows: list[dict[str, object]] = []
    for results in sorted(session.work.glob("bench-*/results.csv")):
        for row in rates.read(results):
            for place, name in ((session.tree, "RAW"), (session.work, "WORK")):
                row["command"] = row["command"].replace(str(place), name)
            rows.append({**row})
    if rows:
        rates.write(session.out / "gpu-bench.csv", rows)


def read(session: Session, seconds: float) -> None:
    """Run gpu_read.py briefly: batches of Loader on the GPU, and decoding alone."""
    workers = ",".join(map(str, sorted({*filter(session.cores.__ge__, session.scale.few), session.cores})))
    command = [sys.executable, _HERE / "gpu_read.py", session.lmdb, "--device", session.device]
    command += ["--workers", workers, "--modes", "processes", "--repeats", "1", "--epochs", "6"]
    command += ["--batch", str(session.scale.batch), "--jpegs", session.folder, "--csv", session.read]
    try:
        session.run(command, seconds)
    finally:
        if session.read.exists():
            shutil.copy(session.read, session.out)


def script(session: Session, seconds: float, name: str) -> None:
    """Run one round of another script of this folder, and add its table to the results."""
    command = [sys.executable, _HERE / f"{name}.py", session.tree, "--device", session.device, "--repeats", "1"]
    command += ["--workers", str(session.cores), "--batch", str(batch_of(session))]
    command += ["--images", str(session.scale.images), "--work", session.work / "scripts"]
    session.tables.append(session.run([*command, "--csv", session.out / f"gpu-{name}.csv"], seconds).strip())


def decode(session: Session, seconds: float) -> None:
    """Run decode.py: torchvision's decoder on the device, compared with Loader."""
    if find_spec("torchvision") is None:
        raise StepError("needs torchvision")
    command = [sys.executable, _HERE / "decode.py", session.lmdb, "--device", session.device, "--repeats", "1"]
    command += ["--workers", str(session.cores), "--batch", str(session.scale.batch)]
    session.tables.append(session.run([*command, "--csv", session.out / "gpu-decode.csv"], seconds).strip())


NEEDED = ("photographs", "builds")
"""Steps without which nothing can be measured."""

Step = Callable[[Session, float], None]

STEPS: dict[str, tuple[float, Step]] = {
    "photographs": (60, have_photos),
    "builds": (150, build),  # more than builds need, because nothing works without them
    "correctness": (40, correct),
    "reading to the GPU": (95, read),
    "training": (260, partial(bench, models=("resnet50", "none"), variants=tuple(_VARIANTS))),
    "the small CNN": (60, partial(bench, models=("small",), variants=("raw", "loader"))),
    "build speed": (45, build_speed),
    "pinned memory": (60, partial(script, name="pinning")),
    "decoding on the GPU": (25, decode),
    "augmentation": (40, partial(script, name="augment")),
}
"""The most important steps come first. A step's share of the remaining time is its number, divided by the sum of its
own and all later numbers."""


def say(words: str) -> None:
    print(words, file=sys.stderr, flush=True)


def table(session: Session) -> str:
    """Format all results in Markdown, as medians."""
    benches = [json.loads(path.read_text()) for path in sorted(session.work.glob("bench-*/results.json"))]
    groups = chain.from_iterable(results["summary"] for results in benches)
    cells = [_cells(variant, group) for group in groups for variant in group["variants"]]
    lines = []
    if session.checks.exists():
        checks = [
            [row["check"], "yes" if row["right"] == "True" else "**no**", row["found"]]
            for row in rates.read(session.checks)
        ]
        lines += [rates.table(["check", "right", "found"], checks), ""]
    lines += [rates.table(["training", "read by", "images/s", "times the first", "U"], cells)] if cells else []
    for facts in [results["conditions"] for results in benches][:1]:
        told = (facts.get(name, "") for name in ("date", "GPU", "CPU", "system", "storage", "versions"))
        lines += [
            "",
            f"{', '.join(filter(None, told))}; {session.cores} cores; U is the share of time spent in training steps.",
        ]
    if session.built:
        limit, built = (
            median(float(str(row["images_per_s"])) for row in session.built if row["variant"] == variant)
            for variant in ("codec limit", "presize build")
        )
        lines += [
            "",
            f"presize build: {built:,.0f} images/s with {session.cores} processes, {built / limit:.2f} of the codec "
            f"limit; at that rate ImageNet's {IMAGENET:,} images take {IMAGENET / built / 60:.1f} minutes.",
        ]
    if session.read.exists():
        cells = [
            [f"{row['workers']} {row['mode']}", f"{float(row['images_per_s']):,.0f}"]
            for row in sorted(rates.read(session.read), key=lambda row: (row["mode"], int(row["workers"])))
        ]
        lines += ["", rates.table(["workers, no model", "images/s"], cells)]
    for printed in session.tables:
        lines += ["", printed]
    if session.unfinished:
        lines += ["", f"Not finished: {'; '.join(session.unfinished)}."]
    return "\n".join(lines)


def _cells(variant: dict[str, Any], group: dict[str, Any]) -> list[str]:
    kind, stages = group["kind"], variant["stages"]
    return [
        f"{_MODELS[kind['model']]} on {kind['device']}, batches of {kind['batch']}",
        f"{_VARIANTS[variant['variant']]}, {kind['workers']} workers",
        f"{variant['images_per_s']['median']:,.0f}",
        f"{variant['speedup']:.2f}" if len(group["variants"]) > 1 else "",
        "" if stages is None else f"{stages['utilisation']:.3f}",
    ]


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", choices=list(SCALES), default="cuda")
    parser.add_argument("--photos", type=Path)
    parser.add_argument("--work", type=Path, required=True)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--seconds", type=float, default=600)
    return parser.parse_args()


def main() -> None:
    options = parse()
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # like Ctrl-C: also ends its children
    ends = time.monotonic() + options.seconds
    session = Session(options)
    session.out.mkdir(parents=True, exist_ok=True)
    say(f"{session.cores} cores")
    results = (session.out / f"gpu-{name}.csv" for name in _RESULTS)
    for old in (session.read, session.checks, *results, *session.work.glob("bench-*/results.*")):
        old.unlink(missing_ok=True)  # of an earlier session
    shares, interrupted = {name: share for name, (share, _) in STEPS.items()}, False
    for name, (share, step) in STEPS.items():
        left = ends - time.monotonic()
        seconds = left * share / sum(shares.values())
        del shares[name]
        try:
            if seconds < _LEAST_S:
                raise StepError("no time left; give more --seconds")
            say(f"{name}: up to {seconds:.0f} s of {left:.0f}")
            step(session, seconds)
        except (StepError, PresizeError, OSError, SystemExit, KeyboardInterrupt) as error:
            interrupted = isinstance(error, KeyboardInterrupt)
            session.unfinished.append(f"{name} ({'interrupted' if interrupted else error})")
            say(f"{name}: {'interrupted' if interrupted else error}")
            if name in NEEDED or interrupted:
                break
        finally:
            found = table(session)
            (session.out / "gpu.md").write_text(f"{found}\n")  # after each step, in case the machine is taken away
    print(found)
    if interrupted:
        sys.exit(130)
    is_right = session.checks.exists() and all(row["right"] == "True" for row in rates.read(session.checks))
    sys.exit(0 if is_right and (session.out / "gpu-bench.csv").exists() else 1)


if __name__ == "__main__":
    main()
