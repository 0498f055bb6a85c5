"""Builds that keep images as they are, and builds that need a plug-in."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from builds import SERIAL, SMALL, files
from pictures import smooth_image
from presize.builder.run import build_dataset, plan_build
from presize.codecs import plugins, transcode
from presize.options import KEEP, BuildOptions, ImageOptions, Size
from presize.store.verify import VerifyResult, verify_dataset


def test_the_version_of_a_plug_in_is_part_of_the_identity_where_a_file_calls_for_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    raw = tmp_path / "raw"
    raw.mkdir()
    Image.fromarray(smooth_image(30, 40)).save(raw / "a.jpg")

    def identity(version: str) -> dict[str, Any]:
        monkeypatch.setattr(plugins, "_version", lambda _: version)
        return plan_build(raw, SMALL).identity

    assert identity("1.0") == identity("2.0")
    (raw / "b.HEIC").write_bytes(b"no image at all")
    assert identity("1.0")["codecs"] != identity("2.0")["codecs"]
    assert plan_build(raw, SMALL).versions["pillow-heif"] == "2.0"


def test_a_build_that_keeps_images_is_the_same_for_any_number_of_jobs(tmp_path: Path) -> None:
    raw = tmp_path / "raw"
    raw.mkdir()
    for i in range(12):
        suffix = "png" if i % 4 == 0 else "jpg"
        Image.fromarray(smooth_image(30 + i, 40, i)).save(raw / f"{i}.{suffix}")
    options = BuildOptions(ImageOptions(sizes=(KEEP, Size(16, 16))), shard_samples=3)
    for jobs in (1, 3):
        run = replace(SERIAL, engine="processes", jobs=jobs)
        assert build_dataset(raw, tmp_path / f"{jobs}", options, run).unchanged == 9
    assert files(tmp_path / "1") == files(tmp_path / "3")
    assert verify_dataset(tmp_path / "1" / "keep") == VerifyResult(12)


def test_kept_images_larger_than_was_expected_are_stored(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    raw = tmp_path / "raw"
    raw.mkdir()
    noise = np.random.default_rng(0).integers(0, 256, (400, 400, 3), np.uint8)
    for i in range(3):
        Image.fromarray(noise).save(raw / f"{i}.png")
    monkeypatch.setattr(transcode, "_KEPT_BYTES", 1)
    options = BuildOptions(ImageOptions(sizes=(KEEP,), format="png"))
    build_dataset(raw, tmp_path / "out", options, SERIAL)
    assert verify_dataset(tmp_path / "out") == VerifyResult(3)
