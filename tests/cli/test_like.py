"""presize build --like: what a build takes over from a dataset, and what it says of the rest."""

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

JOBS = ("--jobs", "1")
pytestmark = pytest.mark.filterwarnings("always::presize.errors.PresizeWarning")


def recorded_in(root: Path) -> dict[str, Any]:
    found: dict[str, Any] = read_manifest(root).identity["options"]
    return found


@pytest.fixture
def train(presize: Callable[..., Ran], raw: Path, tmp_path: Path) -> Path:
    """A dataset of options that are no defaults."""
    out = tmp_path / "train"
    options = ("--size", "48x32", "--fit", "crop", "--quality", "71", "--color", "gray", "--no-tiles", "--checksum")
    assert presize("build", raw, out, *options, "--shard-samples", 9, *JOBS).code == 0
    return out


@pytest.fixture
def part(raw: Path, tmp_path: Path) -> Path:
    """Some photographs of the last class of `raw`, alone in its folder."""
    last = max(raw.iterdir())
    shutil.copytree(last, tmp_path / "part" / last.name)
    return tmp_path / "part"


def test_a_build_takes_over_all_options_and_the_class_list(
    presize: Callable[..., Ran], train: Path, part: Path, tmp_path: Path
) -> None:
    assert presize("build", part, tmp_path / "val", "--like", train, *JOBS).code == 0
    assert recorded_in(tmp_path / "val") == recorded_in(train)
    assert read_manifest(tmp_path / "val").classes == read_manifest(train).classes


def test_an_option_given_beside_it_wins(presize: Callable[..., Ran], train: Path, part: Path, tmp_path: Path) -> None:
    given = ("--size", "32x32", "--quality", "88", "--tiles")
    assert presize("build", part, tmp_path / "val", "--like", train, *given, *JOBS).code == 0
    image = recorded_in(tmp_path / "val")["image"]
    assert image == recorded_in(train)["image"] | {"sizes": ["32"], "quality": 88, "tiles": "resized"}


def test_of_several_sizes_that_of_the_dataset_is_taken(
    presize: Callable[..., Ran], raw: Path, part: Path, tmp_path: Path
) -> None:
    assert presize("build", raw, tmp_path / "sizes", "--size", "48", "--size", "32", *JOBS).code == 0
    assert presize("build", part, tmp_path / "val", "--like", tmp_path / "sizes" / "32", *JOBS).code == 0
    assert recorded_in(tmp_path / "val")["image"]["sizes"] == ["32"]


def test_without_labels_there_is_no_class_list_to_take_over(
    presize: Callable[..., Ran], dataset: Path, part: Path, tmp_path: Path
) -> None:
    ran = presize("build", part, tmp_path / "val", "--like", dataset, "--labels", "none", *JOBS)
    assert "has the columns label and this build has not" in ran.err
    assert read_manifest(tmp_path / "val").classes is None


def test_pairs_are_taken_over_with_their_formats(presize: Callable[..., Ran], tmp_path: Path) -> None:
    pairs = make_pairs(tmp_path / "raw", 4)
    out, like = tmp_path / "out", tmp_path / "like"
    assert presize("build", pairs, out, "--pair", "mask=masks/{stem}.png", "--pair-format", "raw", *JOBS).code == 0
    assert presize("build", pairs, like, "--like", out, *JOBS).code == 0
    assert recorded_in(like) == recorded_in(out)


def test_with_pairs_other_classes_are_refused(presize: Callable[..., Ran], tmp_path: Path) -> None:
    pairs = make_pairs(tmp_path / "raw", 4)
    assert presize("build", pairs, tmp_path / "out", "--pair", "mask=masks/{stem}.png", *JOBS).code == 0
    (pairs / "images").rename(pairs / "photos")
    ran = presize("build", pairs, tmp_path / "like", "--like", tmp_path / "out", *JOBS)
    assert ran.code == 1
    assert ran.err == (
        "presize: error: --like: SRC has other classes than that dataset; --classes names the list to use\n"
    )


def test_another_pair_does_without_the_formats_of_the_first(presize: Callable[..., Ran], tmp_path: Path) -> None:
    pairs = make_pairs(tmp_path / "raw", 4)
    out, like = tmp_path / "out", tmp_path / "like"
    assert presize("build", pairs, out, "--pair", "mask=masks/{stem}.png", "--pair-format", "raw", *JOBS).code == 0
    assert presize("build", pairs, like, "--like", out, "--pair", "other=masks/{stem}.png", *JOBS).code == 0
    assert recorded_in(like)["companions"] == {
        "other": {"pattern": "masks/{stem}.png", "format": "png", "filter": "nearest"}
    }


def test_a_derived_dataset_says_what_is_not_repeated(
    presize: Callable[..., Ran], dataset: Path, part: Path, tmp_path: Path
) -> None:
    derive_dataset([dataset], tmp_path / "small", DeriveOptions(Size(32, 32)), SERIAL)
    ran = presize("build", part, tmp_path / "val", "--like", tmp_path / "small", *JOBS)
    assert ran.err.startswith("presize: warning: --like: that dataset was derived from others with sizes 64, which is")
    assert ran.err.count("\n") == 1
    assert recorded_in(tmp_path / "val")["image"] == recorded_in(tmp_path / "small")["image"]


def test_columns_that_the_new_dataset_lacks_are_named(
    presize: Callable[..., Ran], raw: Path, part: Path, tmp_path: Path
) -> None:
    paths = sorted(path.relative_to(raw).as_posix() for path in raw.rglob("*.jpg"))[:9]
    (tmp_path / "t.csv").write_text("path,caption\n" + "".join(f"{path},x\n" for path in paths))
    assert presize("build", raw, tmp_path / "out", "--labels", tmp_path / "t.csv", "--size", 32, *JOBS).code == 0
    ran = presize("build", part, tmp_path / "val", "--like", tmp_path / "out", "--dry-run")
    assert ran.err.startswith("presize: warning: --like: that dataset has the columns caption and this build has not;")
    assert ran.err.count("\n") == 1


def test_the_library_builds_like_a_dataset_too(train: Path, part: Path, tmp_path: Path) -> None:
    like = options_of(train)
    build_dataset(part, tmp_path / "val", like.options, SERIAL)
    assert recorded_in(tmp_path / "val") == recorded_in(train)
    assert like.classes == read_manifest(train).classes


def test_options_of_a_later_presize_are_named(dataset: Path, tmp_path: Path) -> None:
    shutil.copytree(dataset, tmp_path / "out")

    def sharpen(values: dict[str, Any]) -> None:
        values["identity"]["options"]["sharpen"] = 2
        values["digest"] = digest_of(values["identity"])

    change_manifest(tmp_path / "out", sharpen)
    with pytest.raises(OptionError, match="sharpen: this presize has no such option; upgrade it"):
        options_of(tmp_path / "out")


@pytest.mark.parametrize(
    "options",
    [
        BuildOptions(),
        BuildOptions(ImageOptions((Size(9, 8),), tiles="all", format="jpeg", icc="ignore"), checksum=True),
        BuildOptions(
            companions=(Companion("mask", "m/{stem}.png"), Companion("depth", column="d", filter="bicubic")),
            boxes=(Coordinates("bbox", "xywh"),),
            keypoints=(Coordinates("points", "xyv"),),
            bad_boxes="reject",
        ),
    ],
    ids=["defaults", "an image's", "a table's"],
)
def test_recorded_options_can_be_read_again(options: BuildOptions) -> None:
    assert BuildOptions.from_json(json.loads(json.dumps(options.to_json()))) == options
