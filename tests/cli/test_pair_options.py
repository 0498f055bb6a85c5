"""--pair on the command line: builds and output. test_mistakes has the refusals."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from commands import Ran
from paired import make_pairs
from presize.store.dataset import Dataset
from tiffs import page, tiff

Build = Callable[..., Ran]


@pytest.fixture
def build(presize: Callable[..., Ran], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Build:
    """Return a function that runs presize build of 12 pairs in ``raw`` into ``out``, at 24 px."""
    monkeypatch.chdir(tmp_path)
    make_pairs(Path("raw"))
    pair = ("--size", 24, "--jobs", 1, "--pair", "mask=masks/{stem}.png")
    return lambda *options: presize("build", "raw", "out", *pair, *options)


def test_pairs_are_built_shown_and_verified(build: Build, presize: Callable[..., Ran]) -> None:
    built = build("--pair-format", "raw", "--no-report")
    assert built.code == 0, built.err
    assert Dataset("out").companion("mask").manifest.format == "raw"
    facts = json.loads(presize("info", "out", "--json").out)
    assert facts["companions"] == {"mask": int(Dataset("out").numbers("mask_nbytes").sum())}
    assert "pair      mask: " in presize("info", "out").out
    assert presize("verify", "out").out == "out: 12 samples, 0 problems\n"


def test_a_dry_run_names_pairs_and_a_report_counts_masks_and_samples_without_one(build: Build) -> None:
    for number in ("03", "05"):
        Path("raw", "masks", f"{number}.png").unlink()
    ran = build("--dry-run")
    assert ran.code == 0, ran.err
    assert "/raw: 10 files, 1 class\n" in ran.out and "pair      mask: png, nearest\n" in ran.out
    assert not Path("out").exists()
    assert "2 images rejected; the reasons are in out/rejects.jsonl" in build().out
    report = Path("out", "report.html").read_text()
    assert "<dt>mask</dt>" in report and '<td class="n">2</td><td>companion mask does not exist</td>' in report


def test_skipped_frames_and_bands_of_masks_are_reported(build: Build) -> None:
    masks = [np.asarray(Image.open(f"raw/masks/{number:02}.png")) for number in range(2)]
    first = Image.fromarray(masks[0])
    first.save("raw/masks/00.png", "TIFF", save_all=True, append_images=[first.copy()])
    Path("raw", "masks", "01.png").write_bytes(tiff(page(np.stack((masks[1], masks[1]), axis=-1), 1)))
    lines = build().out.splitlines()
    frames, bands = (
        next(line.strip() for line in lines if what in line) for what in ("of several", "with extra bands")
    )
    assert frames.startswith("1 mask image of several frames or pages, only the first stored")
    assert bands.startswith("1 mask image with extra bands, stored without them")
    assert frames in Path("out", "report.html").read_text()
    assert json.loads(build("--json").out)["pair_losses"] == {"mask": {"several": 1, "surplus": 1}}
