"""Benchmark of a raw folder, a presized folder and LMDB: build missing datasets, check that all variants read the same
samples, and time each run in a separate process."""

from __future__ import annotations

import datetime
import json
import os
import platform
import random
import signal
import subprocess
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import nullcontext, suppress
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import numpy as np

from presize.builder.like import recorded_options
from presize.codecs.plugins import installed
from presize.errors import BenchError, OptionError
from presize.formatting import size_text
from presize.measure.bench_options import READS, VARIANTS, BenchOptions, Run, Variant
from presize.measure.listings import LISTERS, Listing, Numbers, common_samples, link_samples
from presize.measure.results import Results, bench_page, row_of, to_csv, to_json
from presize.options import BuildOptions, ImageOptions, RunOptions, Size, check_type
from presize.store.data_files import MANIFEST
from presize.store.manifest import read_manifest
from presize.system.files import AGAIN, expanded, temporary_folder, write_atomically, writing
from presize.system.pagecache import drop, preload, resident_share
from presize.system.resources import read_cpu, read_memory
from presize.system.storage import find_storage

COLD_AT_MOST = 0.05  # share of a cold run's files that may be in the page cache without a note


def bench(
    roots: Mapping[str, str],
    options: BenchOptions = BenchOptions(),
    *,
    work: str | os.PathLike[str] | None = None,
    out: str | os.PathLike[str] | None = None,
    command: str = "",
    on_step: Callable[[str], None] = lambda _: None,
    on_results: Callable[[Results], None] = lambda _: None,
) -> Results:
    """Run a benchmark. KeyboardInterrupt passes through.

    Args:
        roots: "raw", "presized" and "lmdb" -> folders. Missing ones that a variant reads are built from "raw".
        options: Options of the benchmark.
        work: Folder for built datasets, which the next benchmark reuses; None for a temporary folder.
        out: Folder for results.json, results.csv and report.html, which are written after every run.
        command: Command line, for the report.
        on_step, on_results: Callbacks: before each step with its description, after every run with the results.

    Raises:
        OptionError: The device is missing, a variant has nothing to read, `out` or `work` lies in one of `roots`, or
            there is a size or `work` but nothing to build.
        BenchError: Memory runs out, a run fails, or the variants read different samples.
        BuildError, SourceError, DatasetError: Building a dataset, or listing one of `roots`, fails.
    """
    check_type("roots", roots, Mapping)
    check_type("options", options, BenchOptions)
    roots = {name: expanded(root) for name, root in roots.items()}
    work, out = (None if folder is None else expanded(folder) for folder in (work, out))
    variants = _variants(roots, options)
    for name, value in (("size", options.size), ("work", work)):
        if value is not None and all(READS[variant] in roots for variant in variants):
            raise OptionError(f"{name}: is for datasets that bench builds, but all are given; leave it out")
    for name, folder in (("work", work), ("out", out)):
        for root in roots.values():
            if folder is not None and Path(os.path.realpath(folder)).is_relative_to(os.path.realpath(root)):
                raise OptionError(f"{name}: {folder} lies inside {root}; choose a folder outside")
    gpu = None
    if options.device != "cpu":  # raises before anything is built
        on_step(f"looking for {options.device}")
        gpu = run_apart(replace(options.runs(variants)[0], task="probe"))["gpu_name"]
    if out is not None:
        _made(out)
    with temporary_folder("presize-bench-") if work is None else nullcontext(_made(work)) as place:
        given = {name: LISTERS[name](root) for name, root in roots.items()}
        common_samples(given, options.images, options.seed)  # raises before a long build
        reads, build_s = _complete(given, variants, options, place, on_step)
        numbers = common_samples(reads, options.images, options.seed)
        each = [_located(run, reads, numbers, place) for run in options.runs(variants)]
        notes = _prove(each, options, on_step)
        order = random.Random(options.seed)
        runs = [(repeat, run) for repeat in range(options.repeats) for run in order.sample(each, len(each))]
        facts = conditions([reads[name].files[0] for name in reads])
        if gpu is not None:
            facts["GPU"] = gpu
        if command:
            facts["command"] = command
        said = asdict(options) | {"size": None if options.size is None else str(options.size)}
        results = Results(facts, said, tuple(notes), len(next(iter(numbers.values()))), build_s, len(runs))
        for count, (repeat, run) in enumerate(runs, 1):
            on_step(f"run {count} of {len(runs)}: {run}")
            name = READS[run.variant]
            share, note = _prepared(run, reads[name].files_of(numbers[name]))
            row = row_of(run, repeat, share, run_apart(run))
            noted = results.notes if note is None or note in results.notes else (*results.notes, note)
            results = replace(results, rows=(*results.rows, row), notes=noted)
            if out is not None:
                for file, text in (("results.csv", to_csv), ("results.json", to_json), ("report.html", bench_page)):
                    write_atomically(Path(out, file), text(results).encode(), AGAIN)
            on_results(results)
        return results


def _variants(roots: Mapping[str, str], options: BenchOptions) -> tuple[Variant, ...]:
    """Return the variants of `options`, by default all that `roots` allow."""
    unknown = set(roots) - set(LISTERS)
    if unknown:
        raise OptionError(f"roots: expected some of {', '.join(LISTERS)}, got {sorted(unknown)[0]!r}")
    if not roots:
        raise OptionError("raw: expected a folder of images, or datasets built from one (--presized, --lmdb)")
    possible = [variant for variant in VARIANTS if READS[variant] in roots or "raw" in roots]
    for variant in options.variants or ():
        if variant not in possible:
            or_raw = "" if READS[variant] == "raw" else ", or --raw to build it from"
            raise OptionError(f"variants: {variant} needs --{READS[variant]}{or_raw}")
    return tuple(variant for variant in possible if options.variants is None or variant in options.variants)


_PACKAGES = ("presize", "torch", "torchvision", "simplejpeg", "opencv-python-headless", "numpy", "lmdb")


def conditions(places: Iterable[Path]) -> dict[str, str]:
    """Return the conditions of a measurement, name -> text. `places`: files or folders whose storage is described."""
    cpu = read_cpu()
    return {
        "date": datetime.datetime.now(datetime.UTC).date().isoformat(),
        "CPU": cpu.model,
        "cores": f"{cpu.cores} of {cpu.online}",
        "memory": size_text(total) if (total := read_memory().total) else "unknown",
        "system": f"{platform.system()} {platform.release().split('-')[0]}",
        "storage": ", ".join(dict.fromkeys(find_storage(place).described for place in places)),
        "python": platform.python_version(),
        "versions": ", ".join(f"{name} {found}" for name, found in installed(_PACKAGES).items()),
    }


def _made(folder: str | os.PathLike[str]) -> Path:
    """Create a folder unless it exists, and return it. Raises BuildError."""
    with writing(Path(folder), AGAIN):
        Path(folder).mkdir(parents=True, exist_ok=True)
    return Path(folder)


def _complete(
    given: Mapping[str, Listing],
    variants: Sequence[Variant],
    options: BenchOptions,
    folder: Path,
    on_step: Callable[[str], None],
) -> tuple[dict[str, Listing], dict[str, float]]:
    """Build missing datasets. Returns what each variant reads, and the seconds of each build, now or earlier."""
    from presize.builder.run import build_dataset, plan_build  # imports joblib

    wanted = dict.fromkeys(READS[variant] for variant in variants)
    missing = [name for name in wanted if name not in given]
    listings, image, known = dict(given), _image_options(given, options), dict[str, float]()
    times = folder / "built.json"
    with writing(times):
        build_s: dict[str, float | None] = json.loads(times.read_text()) if times.exists() else {}
    source, suffix = given["raw"].root if missing else "", str(image.sizes[0])
    if options.images is not None:
        suffix += f"-{options.images}-of-seed-{options.seed}"
        if missing:
            chosen = common_samples({"raw": given["raw"]}, options.images, options.seed)["raw"]
            source = link_samples(given["raw"], chosen, folder / f"raw-{suffix}")
    for name in missing:
        target = folder / f"{name}-{suffix}"
        on_step(f"building {name} at {image.sizes[0]} px")
        how = BuildOptions(image, "lmdb" if name == "lmdb" else "folder", follow_links=True)
        is_there = (target / MANIFEST).exists()
        stale = is_there and read_manifest(target).digest != plan_build(source, how).digest
        if stale and target.name not in build_s:
            raise OptionError(f"work: {target} is a dataset that bench did not build; choose another folder")
        result = build_dataset(source, target, how, RunOptions(overwrite=stale, report=False))
        if stale or not is_there:  # an interrupted build has no time
            build_s[target.name] = None if result.resumed else result.seconds
            write_atomically(times, json.dumps(build_s).encode())
        if (seconds := build_s.get(target.name)) is not None:
            known[name] = seconds
        listings[name] = LISTERS[name](target)
    return {name: listings[name] for name in wanted}, known


def _image_options(given: Mapping[str, Listing], options: BenchOptions) -> ImageOptions:
    """Return the options for missing datasets: those of a given dataset, so that variants differ in layout only."""
    image = ImageOptions()
    for listing in given.values():
        if listing.manifest is not None:
            listing.manifest.check_plain("bench")
            recorded = recorded_options(listing.manifest, listing.root).image
            image = replace(recorded, sizes=(Size.parse(listing.manifest.size),))
    if image.format == "raw":  # not possible in a folder
        image = ImageOptions(sizes=image.sizes)
    return image if options.size is None else replace(image, sizes=(options.size,))


def _located(run: Run, reads: Mapping[str, Listing], numbers: Mapping[str, Numbers], folder: Path) -> Run:
    """Return `run` with its root and sample numbers, which are saved in `folder`."""
    name = READS[run.variant]
    file = (folder / f"samples-{name}.npy").absolute()
    with writing(file, AGAIN):
        np.save(file, numbers[name], allow_pickle=False)
    return replace(run, root=os.path.abspath(reads[name].root), numbers=str(file))


def _prepared(run: Run, files: Sequence[Path]) -> tuple[float, str | None]:
    """Load files into the page cache, or drop them. Returns the cached share, and a note if that failed."""
    note = None
    if run.cold:
        drop(files)
    elif resident_share(files) < 1:
        try:
            preload([(file, file.stat().st_size) for file in files], "page-cache")
        except OptionError:
            note = f"The files of {run.variant} do not fit into memory: its warm runs also read from disk."
    share = resident_share(files)
    if run.cold and share > COLD_AT_MOST:
        note = (
            f"Cold runs of {run.variant} were not cold: the kernel reports {share:.0%} of its files as cached. "
            "Possible causes: a file system in memory, files that other processes map, files that you may not write."
        )
    return share, note


def _prove(runs: Sequence[Run], options: BenchOptions, on_step: Callable[[str], None]) -> list[str]:
    """Read every sample of every variant once, which also caches the files, and compare labels. Returns notes."""
    proofs: dict[Variant, dict[str, Any]] = {}
    for run in runs:
        if run.variant not in proofs:
            on_step(f"checking that {run.variant} delivers every sample once")
            proofs[run.variant] = run_apart(replace(run, task="prove", device="cpu", pin_memory=False))
    labels = {variant: proof["labels"] for variant, proof in proofs.items() if proof["labels"] is not None}
    if len(set(labels.values())) > 1:
        raise BenchError(f"the variants {' and '.join(labels)} deliver different labels for the same samples")
    notes = []
    if options.device == "cpu" and options.models != ("none",):
        notes = ["Training runs on the CPU: nothing is copied, and it uses the cores left by workers, at least one."]
    if "pil" in proofs:
        notes.append(
            f"raw folder, PIL: decoded and cropped by Pillow {installed(['pillow'])['pillow']}, with torchvision's "
            "calls. As in ImageFolder, EXIF orientation and colour profiles are ignored."
        )
    said = f"All variants delivered the same {next(iter(proofs.values()))['samples']:,} samples"
    return [*notes, f"{said}{' with the same labels' if labels else ''}, each once per epoch."]


def run_apart(run: Run) -> dict[str, Any]:
    """Make a run in a separate process that ends with this one, and return its answer. Raises as answer() does."""
    # A new session: killpg ends the run with its workers, and Ctrl-C reaches only this process. In "/", no folder of
    # the user shadows a package.
    with subprocess.Popen(
        [sys.executable, "-m", "presize.datasets.timing.bench_run", str(os.getpid())],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, start_new_session=True, cwd="/",
    ) as process:  # fmt: skip
        try:
            said, errors = process.communicate(json.dumps(asdict(run)).encode())
        finally:
            with suppress(ProcessLookupError, PermissionError):
                os.killpg(process.pid, signal.SIGKILL)
    return answer(run, said, process.returncode, errors)


def answer(run: Run, said: bytes, code: int, errors: bytes) -> dict[str, Any]:
    """Return the answer of a run from its output. Raises OptionError or BenchError if the run failed."""
    if code < 0:
        why = ": probably out of memory; choose a smaller --batch" if code == -signal.SIGKILL else ""
        raise BenchError(f"the run of {run} was killed by signal {-code}{why}")
    lines = said.decode("utf-8", "replace").splitlines()
    if code or not lines:
        last = errors.decode("utf-8", "replace").strip().splitlines()[-1:] or ["no output"]
        raise BenchError(f"the run of {run} failed: {last[0]}")
    answer: dict[str, Any] = json.loads(lines[-1])
    if "error" in answer:
        raise (OptionError if answer.get("is_option") else BenchError)(answer["error"])
    return answer
