"""presize bench: its builds, runs, results and output."""

from __future__ import annotations

import csv
import json
import math
import re
import shutil
from collections.abc import Callable, Mapping
from dataclasses import asdict, replace
from importlib.metadata import version
from pathlib import Path
from typing import Any

import pytest
from PIL import Image

from accelerators import Accelerator
from builds import SERIAL
from commands import Ran, read_json
from pages import HOSTILE, parsed
from paired import WITH_MASKS, make_pairs
from presize.builder.run import build_dataset
from presize.datasets.timing import bench_run
from presize.datasets.timing.diagnose_path import diagnose_path
from presize.datasets.timing.epochs import Budget
from presize.errors import BenchError, OptionError
from presize.measure import bench as bench_module
from presize.measure.bench import answer, bench, run_apart
from presize.measure.bench_options import VARIANTS, BenchOptions, DiagnoseOptions, Run
from presize.measure.listings import build_trial
from presize.measure.results import Results, bench_page, bench_text, row_of, summarise, table_of, to_csv, to_json
from presize.options import BuildOptions, ImageOptions, RunOptions, Size, SourceOptions
from presize.pages import charts
from presize.sources.sample import SampleOptions, make_samples
from presize.store.manifest import read_manifest

QUICK = BenchOptions(crop=32, models=("none",), workers=(0,), batch=16, epochs=2, repeats=1)
RUN = Run(
    variant="raw", model="small", device="cpu", workers=2, pin_memory=False, cold=False, prefetch=2, batch=10, crop=224,
    epochs=2, steps=None, seed=0,
)  # fmt: skip


@pytest.fixture
def here(monkeypatch: pytest.MonkeyPatch) -> list[Run]:
    """Execute runs in this process, and list them."""
    runs: list[Run] = []

    def run_here(run: Run) -> dict[str, Any]:
        runs.append(Run(**json.loads(json.dumps(asdict(run)))))
        task: dict[str, Callable[[Run], dict[str, Any]]] = {
            "prove": bench_run.prove, "measure": bench_run.measure, "probe": bench_run.probe,
        }  # fmt: skip
        return json.loads(json.dumps(task[run.task](run)))

    monkeypatch.setattr(bench_module, "run_apart", run_here)
    monkeypatch.setattr("presize.datasets.timing.epochs.STEP_BUDGET", Budget(1, 0.0))
    return runs


@pytest.mark.slow
@pytest.mark.usefixtures("here")
@pytest.mark.parametrize("labels", [[3, 1, 4], [0.5, 1.5, 2.5], [["a"], ["a", "b"], []]], ids=str)
def test_masks_and_labels_without_classes_are_skipped_and_a_diagnosis_includes_the_doctors_findings(
    labels: list[Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    make_pairs(tmp_path / "raw")
    rows = [{"path": f"images/{number:02}.jpg", "label": labels[number % 3]} for number in range(12)]
    (tmp_path / "labels.jsonl").write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    build_dataset(tmp_path / "raw", tmp_path / "out", WITH_MASKS, SERIAL, SourceOptions(tmp_path / "labels.jsonl"))
    quick = replace(QUICK, crop=16, models=("small",), variants=("lmdb", "loader"), batch=2)
    assert len(bench({"lmdb": str(tmp_path / "out")}, quick).rows) == 2
    monkeypatch.setenv("JSIMD_FORCENONE", "1")
    short = DiagnoseOptions(device="cpu", workers=0, batch=2, crop=16, seconds=0.1)
    found = diagnose_path(tmp_path / "out", short)
    assert found.images_per_s.value > 0
    assert any("SIMD limited by JSIMD_FORCENONE=1. Fix: unset JSIMD_FORCENONE." in note for note in found.notes)


def test_small_images_are_not_presized_and_the_reason_is_given(tmp_path: Path) -> None:
    make_samples(tmp_path / "raw", SampleOptions(images=8, classes=2, long_side=64))
    for path in filter(Path.is_file, [*(tmp_path / "raw").rglob("*")]):
        Image.open(path).convert("RGB").save(path.with_suffix(".jpg"), quality=10)
        path.with_suffix(".png").unlink(missing_ok=True)
    trial = build_trial(str(tmp_path / "raw"), tmp_path / "trial", Size(256, 256))
    short = DiagnoseOptions(device="cpu", workers=0, batch=2, crop=16, seconds=0.1)
    found = diagnose_path(tmp_path / "raw", short, trial=trial, trial_name="Presize to 256 px")
    assert found.alternatives == ()
    assert any(
        re.match(r'"Presize to 256 px" was not tried: it would store (9[5-9]|\d{3})% of', note) for note in found.notes
    )


@pytest.mark.parametrize("option", ["work", "out"])
def test_nothing_is_written_into_the_raw_folder(option: str, raw: Path, tmp_path: Path) -> None:
    folder = Path(shutil.copytree(raw, tmp_path / "raw"))
    for place in (folder, folder / "new"):
        with pytest.raises(OptionError, match=rf"^{option}: .* lies inside "):
            bench({"raw": str(folder)}, replace(QUICK, images=4), **{option: place})
    assert not (folder / "new").exists()


def test_wrong_types_are_refused_by_name(raw: Path) -> None:
    with pytest.raises(OptionError, match=r"^roots: expected Mapping, got "):
        bench(str(raw))  # type: ignore[arg-type]
    with pytest.raises(OptionError, match=r"^options: expected BenchOptions, got RunOptions$"):
        bench({"raw": str(raw)}, RunOptions())  # type: ignore[arg-type]


def epoch(images: int, window_s: float) -> dict[str, Any]:
    return {
        "seconds": window_s + 1, "first_batch_s": 0.5, "batches": 10, "images": images, "window_s": window_s,
        "window_images": images, "cpu_s": 2.0,
    }  # fmt: skip


def measured(window_s: float, **changes: Any) -> dict[str, Any]:
    return {
        "epochs": [epoch(100, window_s * 2), epoch(100, window_s)], "resident_s": 0.1, "copied_s": 0.1,
        "model_of": "presize",
    } | changes  # fmt: skip


def results_of(*rows: Mapping[str, Any], build_s: Mapping[str, float] | None = None, planned: int = 2) -> Results:
    options = {"models": ["none", "small"], "crop": 224, "steps": None, "repeats": 1, "epochs": 2}
    return Results({"CPU": "a CPU"}, options, ("a note",), 100, build_s or {}, planned, tuple(map(dict, rows)))


def results_of_runs(seconds: Mapping[str, float], *, model: str = "small", **options: Any) -> Results:
    """Return results of a run of each variant, whose later epoch of 100 images took these seconds."""
    return results_of(
        *(row_of(replace(RUN, variant=name, model=model), 0, 1.0, measured(s)) for name, s in seconds.items()),  # type: ignore[arg-type]
        **options,
    )


# Options


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"models": ()}, "models: expected at least one"),
        ({"models": ("none", "none")}, "models: expected each value once, got none, none"),
        ({"variants": ("ffcv",)}, "variants: expected one of pil, raw, presized, lmdb, loader, got 'ffcv'"),
        ({"workers": (-1,)}, "workers: expected a whole number from 0 to 4096, got -1"),
        ({"batch": 0}, "batch: expected a whole number from 1 to"),
        ({"size": Size(0, 5)}, "size: expected a whole number from 1 to"),
        ({"pin_memory": (True,)}, "pin_memory: pinned memory needs CUDA or XPU; leave it out, or choose --device"),
        ({"pin_memory": (True,), "device": "mps"}, "pin_memory: pinned memory needs CUDA or XPU"),
    ],
)
def test_invalid_options_are_refused_by_name(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(OptionError, match=re.escape(message)):
        BenchOptions(**changes)


def test_a_repeat_has_every_combination_once() -> None:
    options = BenchOptions(device="xpu:0", workers=(0, 4), pin_memory=(True, False), cold=True)
    runs = options.runs(VARIANTS)
    assert len(set(runs)) == len(runs) == 2 * 2 * 2 * (4 * 2 + 1)  # Loader always pins
    assert all(run.epochs == 1 for run in runs if run.cold)


# Results


def test_rates_are_those_of_the_later_epochs() -> None:
    row = row_of(RUN, 0, 1.0, measured(4.0))
    found = [row[name] for name in ("images_per_s", "step_s", "first_epoch_images_per_s", "cpu_s_per_image")]
    assert found == pytest.approx([25, 0.4, 100 / 9, 0.02])
    assert row_of(RUN, 0, 1.0, measured(4.0, epochs=[epoch(100, 8.0)]))["images_per_s"] == 12.5


def test_a_summary_has_stalls_ratios_and_the_break_even() -> None:
    runs = [replace(RUN, variant=variant, cold=cold) for cold in (False, True) for variant in ("raw", "loader")]
    seconds = [4.0, 2.0, 8.0, 2.5]
    rows = [row_of(run, 0, 1.0, measured(window_s)) for run, window_s in zip(runs, seconds, strict=True)]
    warm, cold = summarise(results_of(*rows, build_s={"lmdb": 10.0})).values()
    raw, loader = warm
    assert (raw.speedup, loader.speedup) == (1, 2)
    assert (raw.break_even, loader.break_even) == (None, 5)
    assert raw.stages is not None and loader.stages is not None and cold[0].stages is not None
    assert raw.stages.stalls.utilisation == pytest.approx(0.25)
    assert loader.stages.stalls.preparation == pytest.approx(0.5)
    assert cold[0].stages.stalls.fetch == pytest.approx(0.5)


def test_a_build_without_gain_never_breaks_even_and_without_a_possible_speed_up_none_does() -> None:
    results = results_of_runs({"raw": 4.0, "lmdb": 4.0}, build_s={"lmdb": 10.0})
    ((_, lmdb),) = summarise(results).values()
    assert lmdb.break_even == math.inf
    assert " never" in bench_text(results)
    assert json.loads(to_json(results))["summary"][0]["variants"][1]["break_even"] is None
    ((_, lmdb),) = summarise(results_of_runs({"raw": 1.02, "lmdb": 1.0}, build_s={"lmdb": 10.0})).values()
    assert lmdb.break_even is None


def test_the_step_without_a_loader_uses_the_variants_own_batches_and_differences_are_reported() -> None:
    rows = []
    for variant, step_s in {"raw": 0.08, "lmdb": 0.1, "loader": 0.03}.items():
        found = measured(4.0, resident_s=step_s, copied_s=step_s)
        rows.append(row_of(replace(RUN, variant=variant), 0, 1.0, found))  # type: ignore[arg-type]
    rows[2]["images_per_s"] *= 2
    (variants,) = summarise(results_of(*rows)).values()
    assert [one.stages.resident_s for one in variants if one.stages is not None] == [0.08, 0.1, 0.03]
    assert "A step on the batches of Loader takes 30 ms instead of 80 ms" in bench_text(results_of(*rows))


def test_several_runs_have_a_median_and_a_spread() -> None:
    rows = [row_of(RUN, repeat, 1.0, measured(window_s)) for repeat, window_s in enumerate((4.0, 5.0, 2.0))]
    ((one,),) = summarise(results_of(*rows)).values()
    assert (one.images_per_s.median, one.images_per_s.min, one.images_per_s.max) == (25, 20, 50)
    assert "25.0 (20.0–50.0)" in bench_text(results_of(*rows))


def test_text_and_json_name_the_bottleneck() -> None:
    results = results_of_runs({"raw": 4.0, "loader": 1.0})
    text = bench_text(results)
    assert "small CNN, on cpu, batches of 10, 2 workers, files in the page cache:" in text
    assert "raw folder: Loading is the bottleneck: the training step is busy 25% of the time." in text
    assert "Loader: Compute is the bottleneck: the training step is busy 100% of the time." in text
    assert "Partial results" not in text
    assert "Partial results: 2 of 6 runs." in bench_text(replace(results, planned=6))
    (kind,) = json.loads(to_json(results))["summary"]
    assert [one["stages"]["bottleneck"] for one in kind["variants"]] == ["loading", "compute"]


@pytest.mark.parametrize(
    ("model", "seconds", "title"),
    [
        ("small", {"raw": 4.0, "loader": 1.0}, "Small CNN trains 4.0 times as fast from Loader"),
        (
            "small",
            {"raw": 1.0, "loader": 1.0},
            "Small CNN trains no faster from any other variant than from the raw folder",
        ),
        ("small", {"loader": 1.0}, "Small CNN trains at 100 images/s from Loader"),
        ("none", {"raw": 4.0, "loader": 0.7}, "Loader reads 5.7 times as fast as the raw folder"),
        ("small", {}, "No runs yet"),
    ],
)
def test_its_result_is_the_title(model: str, seconds: Mapping[str, float], title: str) -> None:
    results = results_of_runs(seconds, model=model)
    page = bench_page(results)
    assert f"<h1>{title}</h1>" in page and f"<title>presize: {title}</title>" in page
    assert bench_text(results).startswith(f"{title}.\n")


def test_csv_has_a_line_per_run_with_its_conditions() -> None:
    rows = list(csv.DictReader(to_csv(results_of(row_of(RUN, 0, 1.0, measured(4.0)))).splitlines()))
    assert [(row["variant"], row["images_per_s"], row["CPU"]) for row in rows] == [("raw", "25.0", "a CPU")]


def test_the_page_is_complete_and_escapes_hostile_text() -> None:
    results = results_of_runs(dict.fromkeys(VARIANTS, 4.0))
    page = bench_page(replace(results, conditions={"command": " ".join(HOSTILE)}, notes=tuple(HOSTILE)))
    found = parsed(page)
    assert found.tags["script"] == 0 == found.tags["img"]
    assert found.tags["svg"] == 2 * len(VARIANTS)
    assert not [name for name, _ in found.attributes if name.startswith("on")]
    assert "//" not in page
    assert '<td class="n" data-of="images/s">25.0</td>' in page, "narrow tables label their cells"


def test_the_table_shows_only_columns_that_differ() -> None:
    columns, rows = table_of(next(iter(summarise(results_of_runs({"raw": 4.0, "loader": 1.0})).values())))
    assert columns == ["images/s", "speed-up", "step", "loading", "CPU ms", "start s"]
    assert rows[1] == ["Loader", "100", "4.0 ×", "100%", "0%", "20.00", "0.50"]
    copied = results_of(row_of(RUN, 0, 1.0, measured(4.0, copied_s=0.2)))
    assert "copy" in table_of(next(iter(summarise(copied).values())))[0]


def test_bars_are_as_long_as_their_medians_and_shares_fill_their_line_without_empty_parts() -> None:
    bars = charts.bars("t", {"a": (50, 40, 100), "b": (25, 25, 25)})
    assert [line.parts for line in bars.lines] == [[(0, 500, 0)], [(0, 250, 0)]]
    assert bars.lines[0].whiskers == (400, 1000)
    found = charts.shares("t", {"x": {"a": 60, "b": 0, "c": 60}, "y": {"a": 1, "b": 0, "c": 3}}, {"x": "1", "y": "2"})
    assert found.series == ("a", "c")
    assert [line.parts for line in found.lines] == [[(0, 500, 0), (500, 500, 1)], [(0, 250, 0), (250, 750, 1)]]


# The whole command


@pytest.mark.usefixtures("here")
@pytest.mark.slow
def test_missing_datasets_are_built_once_and_everything_is_kept(
    presize: Callable[..., Ran], raw: Path, tmp_path: Path
) -> None:
    command = (
        "bench", "--raw", raw, "--size", 64, "--crop", 32, "--model", "none", "--workers", 0,
        "--batch", 16, "--epochs", 2, "--repeats", 1, "--images", 30, "--work", tmp_path / "work",
        "--out", tmp_path / "out", "--cold",
    )  # fmt: skip
    ran = presize(*command)
    assert ran.code == 0, ran.err
    names = ("raw folder, PIL", "raw folder", "presized folder", "LMDBDataset", "Loader")
    assert [ran.out.count(f"\n  {name} ") for name in names] == [2] * 5
    assert f"raw folder, PIL: decoded and cropped by Pillow {version('pillow')}" in ran.out
    assert "All variants delivered the same " in ran.out
    assert "building lmdb at 64 px" in ran.err
    results = json.loads((tmp_path / "out" / "results.json").read_text())
    assert len(results["rows"]) == 10 == len((tmp_path / "out" / "results.csv").read_text().splitlines()) - 1
    assert 26 <= results["images"] <= 30
    assert results["build_s"]["lmdb"] > 0
    assert parsed((tmp_path / "out" / "report.html").read_text()).tags["section"] == 4
    built = {path: path.stat().st_mtime_ns for path in (tmp_path / "work").rglob("*.lmdb")}
    again = presize(*command, "--variant", "loader", "--json")
    assert {path: path.stat().st_mtime_ns for path in (tmp_path / "work").rglob("*.lmdb")} == built
    assert [row["variant"] for row in read_json(again.out, "bench")["rows"]] == ["loader"] * 2


@pytest.mark.parametrize(
    ("error", "code", "said"),
    [
        (KeyboardInterrupt(), 130, "interrupted; results so far are in {out}"),
        (BenchError("does not fit into the memory"), 1, "does not fit into the memory"),
    ],
    ids=["interrupted", "failed"],
)
def test_a_benchmark_that_ends_early_keeps_and_shows_its_results(
    error: BaseException, code: int, said: str, presize: Callable[..., Ran], here: list[Run], dataset: Path,
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    run_here = bench_module.run_apart

    def run_three(run: Run) -> dict[str, Any]:
        if len(here) == 3:
            raise error
        return run_here(run)

    monkeypatch.setattr(bench_module, "run_apart", run_three)
    out = tmp_path / "out"
    ran = presize("bench", "--lmdb", dataset, "--crop", 32, "--model", "none", "--workers", 0, "--out", out)
    assert ran.code == code
    assert "Partial results: 1 of 6 runs" in ran.out
    assert ran.err.endswith(f"presize: error: {said.format(out=out)}\n")
    assert len(json.loads((out / "results.json").read_text())["rows"]) == 1


@pytest.mark.usefixtures("here")
def test_cold_runs_that_are_not_cold_are_reported(dataset: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("presize.measure.bench.drop", lambda _: None)
    results = bench({"lmdb": str(dataset)}, replace(QUICK, variants=("loader",), cold=True))
    assert "Cold runs of loader were not cold: the kernel reports 100% of its files as cached" in bench_text(results)
    assert [row["resident_share"] for row in results.rows] == [1, 1]


@pytest.mark.slow
def test_a_run_in_its_own_process_returns_its_measurements(dataset: Path) -> None:
    found = run_apart(replace(RUN, variant="loader", model="none", root=str(dataset), crop=32, epochs=1))
    assert found["epochs"][0]["images"] == 50


@pytest.mark.parametrize(
    ("code", "said", "errors", "message"),
    [
        (-9, b"", b"", "was killed by signal 9: probably out of memory"),
        (-11, b"", b"", "was killed by signal 11$"),
        (1, b"", b"Traceback\nValueError: what is wrong\n", "failed: ValueError: what is wrong"),
        (0, b"", b"", "failed: no output"),
        (0, b'{"error": "no memory here"}', b"", "^no memory here"),
    ],
)
def test_a_run_that_fails_says_why(code: int, said: bytes, errors: bytes, message: str) -> None:
    with pytest.raises(BenchError, match=message):
        answer(RUN, said, code, errors)


@pytest.mark.usefixtures("here")
@pytest.mark.slow
def test_missing_datasets_are_built_with_the_options_of_given_ones(raw: Path, tmp_path: Path) -> None:
    how = BuildOptions(ImageOptions(sizes=(Size(48, 48),), format="png", fit="stretch"))
    build_dataset(raw, tmp_path / "lmdb", how, SERIAL)
    roots = {"raw": str(raw), "lmdb": str(tmp_path / "lmdb")}
    bench(roots, replace(QUICK, variants=("presized", "lmdb"), epochs=1), work=tmp_path / "work")
    built = read_manifest(tmp_path / "work" / "presized-48")
    assert built.identity["options"]["image"] == how.to_json()["image"]


@pytest.mark.usefixtures("here")
@pytest.mark.slow
def test_only_datasets_that_a_benchmark_built_are_replaced(raw: Path, tmp_path: Path) -> None:
    mine = tmp_path / "mine"
    build_dataset(raw, mine / "lmdb-32", BuildOptions(ImageOptions(sizes=(Size(32, 32),), quality=95)), SERIAL)
    manifest = (mine / "lmdb-32" / "manifest.json").read_bytes()
    options = replace(QUICK, variants=("lmdb",), epochs=1, size=Size(32, 32))
    with pytest.raises(OptionError, match=r"work: .*lmdb-32 is a dataset that bench did not build; choose another"):
        bench({"raw": str(raw)}, options, work=mine)
    assert (mine / "lmdb-32" / "manifest.json").read_bytes() == manifest
    work, other = tmp_path / "work", shutil.copytree(raw, tmp_path / "other")
    assert bench({"raw": str(raw)}, options, work=work).build_s["lmdb"] > 0
    next(other.rglob("*.jpg")).unlink()
    assert bench({"raw": str(other)}, options, work=work).build_s["lmdb"] > 0, "of another source"


@pytest.mark.slow
def test_the_device_is_checked_before_anything_is_built(presize: Callable[..., Ran], raw: Path, tmp_path: Path) -> None:
    ran = presize("bench", "--raw", raw, "--device", "hpu", "--work", tmp_path / "work")
    assert ran.code == 2
    assert "presize: error: --device: expected one that this machine has, got 'hpu', and torch " in ran.err
    assert not (tmp_path / "work").exists()


@pytest.mark.parametrize(("kind", "name"), [("cuda", "simulated cuda"), ("xpu", "simulated xpu"), ("mps", "mps")])
@pytest.mark.usefixtures("here")
def test_a_benchmark_runs_on_any_accelerator(
    kind: str, name: str, dataset: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    device = Accelerator(monkeypatch, kind)
    results = bench({"lmdb": str(dataset)}, replace(QUICK, variants=("loader",), device=kind, epochs=1))
    assert results.conditions["GPU"] == name
    assert [row["pin_memory"] for row in results.rows] == [kind != "mps"] == [device.copies > 0]
    assert device.problems == []
