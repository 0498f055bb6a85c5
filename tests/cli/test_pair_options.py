"""--pair on the command line: what it builds, prints and refuses."""

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

BUILD = ("--size", "24", "--jobs", "1", "--no-report")


@pytest.fixture
def pairs(tmp_path: Path) -> Path:
    return make_pairs(tmp_path / "raw")


def test_pairs_are_built_shown_and_verified(presize: Callable[..., Ran], pairs: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    built = presize("build", pairs, out, *BUILD, "--pair", "mask=masks/{stem}.png", "--pair-format", "raw")
    assert built.code == 0, built.err
    assert Dataset(out).companion("mask").manifest.format == "raw"
    facts = json.loads(presize("info", out, "--json").out)
    assert facts["companions"] == {"mask": int(Dataset(out).numbers("mask_nbytes").sum())}
    assert "pair      mask: " in presize("info", out).out
    assert presize("verify", out).out == f"{out}: 12 samples, 0 problems\n"


def test_a_dry_run_names_pairs_and_writes_nothing(presize: Callable[..., Ran], pairs: Path, tmp_path: Path) -> None:
    (pairs / "masks" / "03.png").unlink()
    ran = presize("build", pairs, tmp_path / "out", *BUILD, "--pair", "mask=masks/{stem}.png", "--dry-run")
    assert ran.code == 0, ran.err
    assert f"source    {pairs}: 11 files, 1 class\n" in ran.out
    assert "pair      mask: png, nearest\n" in ran.out
    assert not (tmp_path / "out").exists()


def test_the_report_counts_masks_and_samples_without_one(
    presize: Callable[..., Ran], pairs: Path, tmp_path: Path
) -> None:
    for number in ("03", "05"):
        (pairs / "masks" / f"{number}.png").unlink()
    ran = presize("build", pairs, tmp_path / "out", *BUILD[:-1], "--pair", "mask=masks/{stem}.png")
    assert f"2 images rejected; the reasons are in {tmp_path / 'out' / 'rejects.jsonl'}" in ran.out
    page = (tmp_path / "out" / "report.html").read_text()
    assert "<dt>mask</dt>" in page
    assert '<td class="n">2</td><td>companion mask does not exist</td>' in page


def test_frames_and_bands_of_masks_that_are_left_out_are_told(
    presize: Callable[..., Ran], pairs: Path, tmp_path: Path
) -> None:
    masks = [np.asarray(Image.open(pairs / "masks" / f"{number:02}.png")) for number in range(2)]
    first = Image.fromarray(masks[0])
    first.save(pairs / "masks" / "00.tif", save_all=True, append_images=[first.copy()])
    (pairs / "masks" / "00.tif").rename(pairs / "masks" / "00.png")
    (pairs / "masks" / "01.png").write_bytes(tiff(page(np.stack((masks[1], masks[1]), axis=-1), 1)))
    build = ("build", pairs, tmp_path / "out", *BUILD[:-1], "--pair", "mask=masks/{stem}.png")
    lines = presize(*build).out.splitlines()
    frames, bands = (next(line.strip() for line in lines if what in line) for what in ("of several", "with bands"))
    assert frames.startswith("1 mask image of several frames or pages, only the first stored")
    assert bands.startswith("1 mask image with bands beside the colours, stored without them")
    assert frames in (tmp_path / "out" / "report.html").read_text()
    result = json.loads(presize(*build, "--json").out)
    assert result["pair_losses"] == {"mask": {"several": 1, "surplus": 1}}


@pytest.mark.parametrize(
    ("options", "what"),
    [
        (("--pair", "mask"), "--pair: expected NAME=PATTERN, such as mask=masks/{stem}.png, got 'mask'"),
        (
            ("--pair", "mask=m/{stem}.png", "--pair-format", "tiff"),
            "--pair-format: expected one of jpeg, png, webp, raw",
        ),
        (("--pair", "mask=m/{stem}.png", "--pair-filter", "linear"), "--pair-filter: expected one of nearest, box"),
        (("--pair", "a=m/{stem}.png", "--pair", "a=n/{stem}.png"), "--pair: expected each name once"),
        (("--pair", "mask=m/{stem}.png", "--to", "folder"), "--to: pairs are stored in shards alone"),
    ],
)
def test_what_cannot_be_a_pair_is_refused(
    options: tuple[str, ...], what: str, presize: Callable[..., Ran], pairs: Path, tmp_path: Path
) -> None:
    ran = presize("build", pairs, tmp_path / "out", *BUILD, *options)
    assert ran.code == 2
    assert what in ran.err
