"""Predictions of a dry run, compared with the build."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image

from builds import SERIAL, SMALL
from pictures import smooth_image
from presize.builder.estimate import MAX_TRIES, START_UP_S, estimate, rows_to_try, wall_seconds
from presize.builder.run import build_dataset, plan_build
from presize.options import BuildOptions, ImageOptions, Size
from presize.pages import comparison


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        (ImageOptions(sizes=(Size(128, 128),), format="raw"), "separate pages"),
        (ImageOptions(sizes=(Size(16, 16),)), "several records share a page"),
        (ImageOptions(sizes=(Size(128, 128), Size(24, 24))), "two sizes"),
    ],
)
def test_the_predicted_size_is_near_the_written_size(
    options: ImageOptions, reason: str, raw: Path, tmp_path: Path
) -> None:
    wanted = BuildOptions(options, shard_samples=60)
    predicted = estimate(plan_build(raw, wanted)).bytes
    build_dataset(raw, tmp_path / "out", wanted, SERIAL)
    # The first pages of a shard hold no records: two of LMDB, and those of its tree.
    shards = sum(path.stat().st_size - 4 * 4096 for path in tmp_path.rglob("*.lmdb"))
    index = sum(path.stat().st_size for path in tmp_path.rglob("index.arrow"))
    assert predicted == pytest.approx(shards + index, rel=0.1), reason


def test_expected_rejects_are_reported(tmp_path: Path) -> None:
    Image.fromarray(smooth_image(40, 50)).save(tmp_path / "a.png")
    (tmp_path / "b.jpg").write_bytes(b"\xff\xd8\xff\xe0 and no more")
    (tmp_path / "notes.txt").write_text("no image")
    found = estimate(plan_build(tmp_path, SMALL))
    assert (found.tried, found.skipped) == (3, 1)
    assert [reject.path for reject in found.rejects] == ["b.jpg"]


def test_the_predicted_time_includes_the_report_if_there_is_one(raw: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(comparison, "seconds", lambda *_: 1000.0)
    plan = plan_build(raw, SMALL)
    assert estimate(plan).seconds > 1000 > estimate(plan, report=False).seconds


@given(files=st.integers(MAX_TRIES, 200_000), tried=st.integers(24, MAX_TRIES), seed=st.integers(0, 9))
def test_files_of_every_size_are_tried_whatever_their_number(files: int, tried: int, seed: int) -> None:
    nbytes = np.random.default_rng(seed).permutation(files)
    rows = rows_to_try(nbytes)
    assert len(np.unique(rows)) == len(rows), "none twice"
    ranks = np.sort(nbytes[rows[:tried]]) / files
    gaps = np.diff(ranks, prepend=0, append=1)
    assert gaps.max() < 3 / len(ranks) + 1 / files


@pytest.mark.parametrize(
    ("shards", "jobs", "cores", "share", "reason"),
    [
        (32, 1, 4, 1, "one after the other"),
        (32, 4, 4, 1 / 4, "evenly shared"),
        (32, 12, 16, 3 / 32, "the last turn is not full"),
        (2, 8, 8, 1 / 2, "no more jobs than shards"),
        (32, 8, 2, 1 / 2, "no faster than the cores"),
    ],
)
def test_the_time_is_shared_by_whole_shards(shards: int, jobs: int, cores: int, share: float, reason: str) -> None:
    start_up = START_UP_S if jobs > 1 else 0
    assert wall_seconds(3600, shards, jobs, cores) == pytest.approx(3600 * share + start_up), reason
