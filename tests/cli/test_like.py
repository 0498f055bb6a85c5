"""presize build --like: options taken from a dataset, and messages about the others."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from builds import SERIAL
from commands import Ran
from paired import make_pairs
from presize import ImageOptions, Size, build_dataset, options_of
from presize.builder.derive import DeriveOptions, derive_dataset
from presize.errors import OptionError
from presize.options import BuildOptions, Companion, Coordinates
from presize.store.manifest import digest_of, read_manifest
from tampering import change_manifest

pytestmark = pytest.mark.filterwarnings("always::presize.errors.PresizeWarning")
OPTIONS = "--size 48x32 --fit crop --quality 71 --color gray --no-tiles --checksum --shard-samples 9"
"""All of them differ from the defaults."""
MASKS = "--pair mask=masks/{stem}.png --pair-format raw"
Build = Callable[..., Ran]


def recorded_in(root: str | Path) -> dict[str, Any]:
    found: dict[str, Any] = read_manifest(root).identity["options"]
    return found


@pytest.fixture
def build(presize: Callable[..., Ran], raw: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Build:
    """Return presize build, in a folder whose ``part`` has the photographs of the last class of `raw`, in their class
    folder."""
    monkeypatch.chdir(tmp_path)
    last = max(raw.iterdir())
    shutil.copytree(last, Path("part", last.name))
    return lambda source, out, options: presize("build", source, out, *options.split(), "--jobs", 1)


def test_a_build_takes_all_options_and_the_class_list_on_the_command_line_and_in_python(
    build: Build, raw: Path
) -> None:
    assert build(raw, "train", OPTIONS).code == 0
    assert build("part", "val", "--like train").code == 0
    like = options_of("train")
    build_dataset("part", "by-python", like.options, SERIAL)
    assert recorded_in("val") == recorded_in("by-python") == recorded_in("train")
    assert read_manifest("val").classes == like.classes == read_manifest("train").classes
    assert build("part", "other", "--like train --size 32x32 --quality 88 --tiles").code == 0
    given = {"sizes": ["32"], "quality": 88, "tiles": "resized"}
    assert recorded_in("other")["image"] == recorded_in("train")["image"] | given, "options that are given win"


def test_the_size_of_the_given_dataset_is_taken_from_several(build: Build, raw: Path) -> None:
    assert build(raw, "sizes", "--size 48 --size 32").code == 0
    assert build("part", "val", "--like sizes/32").code == 0
    assert recorded_in("val")["image"]["sizes"] == ["32"]


def test_without_labels_there_is_no_class_list_to_take(build: Build, dataset: Path) -> None:
    ran = build("part", "val", f"--like {dataset} --labels none")
    assert "this build lacks the columns label of that dataset" in ran.err
    assert read_manifest("val").classes is None


def test_pairs_are_taken_with_their_formats_unless_others_are_given(build: Build) -> None:
    pairs = make_pairs(Path("pairs"), 4)
    assert build(pairs, "out", MASKS).code == 0
    assert build(pairs, "like", "--like out").code == 0
    assert recorded_in("like") == recorded_in("out")
    assert build(pairs, "another", "--like out --pair other=masks/{stem}.png").code == 0
    other = {"pattern": "masks/{stem}.png", "format": "png", "filter": "nearest"}
    assert recorded_in("another")["companions"] == {"other": other}
    (pairs / "images").rename(pairs / "photos")
    refusal = "presize: error: --like: SRC and that dataset have different classes; choose a list with --classes\n"
    assert build(pairs, "refused", "--like out") == Ran(1, "", refusal)


def test_options_of_a_derived_dataset_that_are_not_repeated_are_named(build: Build, dataset: Path) -> None:
    derive_dataset([dataset], "small", DeriveOptions(Size(32, 32)), SERIAL)
    ran = build("part", "val", "--like small")
    assert ran.err.startswith("presize: warning: --like: that dataset was derived from others (sizes 64); this")
    assert ran.err.count("\n") == 1
    assert recorded_in("val")["image"] == recorded_in("small")["image"]


def test_columns_missing_from_the_new_dataset_are_named(build: Build, raw: Path) -> None:
    paths = sorted(path.relative_to(raw).as_posix() for path in raw.rglob("*.jpg"))[:9]
    Path("t.csv").write_text("path,caption\n" + "".join(f"{path},x\n" for path in paths))
    assert build(raw, "out", "--labels t.csv --size 32").code == 0
    ran = build("part", "val", "--like out --dry-run")
    assert ran.err.startswith("presize: warning: --like: this build lacks the columns caption of that dataset;")
    assert ran.err.count("\n") == 1


def test_options_of_a_later_presize_are_named(dataset: Path, tmp_path: Path) -> None:
    out = Path(shutil.copytree(dataset, tmp_path / "out"))

    def sharpen(values: dict[str, Any]) -> None:
        values["identity"]["options"]["sharpen"] = 2
        values["digest"] = digest_of(values["identity"])

    change_manifest(out, sharpen)
    with pytest.raises(OptionError, match="sharpen: this version of presize has no such option; upgrade presize"):
        options_of(out)


@pytest.mark.parametrize(
    "options",
    [
        BuildOptions(),
        BuildOptions(ImageOptions((Size(9, 8),), tiles="all", format="jpeg", icc="ignore"), checksum=True),
        BuildOptions(
            companions=(Companion("mask", "m/{stem}.png"), Companion("depth", column="d", filter="bicubic")),
            boxes=(Coordinates("bbox", "xywh"),), keypoints=(Coordinates("points", "xyv"),), bad_boxes="reject",
        ),
    ],
    ids=["defaults", "an image's", "a table's"],
)  # fmt: skip
def test_recorded_options_read_back(options: BuildOptions) -> None:
    assert BuildOptions.from_json(json.loads(json.dumps(options.to_json()))) == options
