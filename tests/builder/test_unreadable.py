"""Unreadable files are not rejected for good: the same command tries them again. A failing disk stops the build."""

from __future__ import annotations

import errno
import json
import os
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from builds import OVERWRITE, REPORTED, SERIAL, UPDATE, Builder, Stopped, stop
from commands import Ran
from foreign import picture, write_tar
from paired import WITH_MASKS, make_pairs
from presize.builder.output_dir import OutputDir
from presize.builder.run import BuildResult, build_part
from presize.errors import BuildError, ImageError, PresizeWarning
from presize.options import BuildOptions, BuildPart, ErrorBudget, ImageOptions, Size
from presize.store.rejects_file import read_rejects
from presize.store.verify import VerifyResult, verify_dataset

COUNT = 40
TENS = BuildOptions(ImageOptions(sizes=(Size(16, 16),), format="png"), shard_samples=10)
LAYOUTS = {
    "shards": TENS,
    "two sizes": replace(TENS, image=replace(TENS.image, sizes=(Size(16, 16), Size(8, 8)))),
    "folder": replace(TENS, layout="folder"),
}


@pytest.fixture
def build(tmp_path: Path) -> Builder:
    """Return builds of images with different greys, in four classes."""
    for number in range(COUNT):
        path = tmp_path / "photos" / f"class-{number % 4}" / f"{number:02}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(np.full((20, 20), number, np.uint8)).save(path)
    return Builder(tmp_path / "photos", TENS)


def warned(build: Builder, said: str = "2 files could not be read", **how: Any) -> BuildResult:
    """Build, expecting a warning of unreadable files."""
    with pytest.warns(PresizeWarning, match=said):
        return build(**how)


def a_bad_sector(path: Path) -> None:
    path.unlink()
    path.symlink_to("/proc/self/mem")  # reading its start fails with EIO


def shortened(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:50])


BECOMES: list[Callable[[Path], None]] = [Path.unlink, a_bad_sector, shortened]


class Lost:
    """Files of a source that become unreadable after planning, until they are restored."""

    def __init__(self, build: Builder, become: Callable[[Path], None] = Path.unlink, count: int = 2) -> None:
        self._folder, self._become, self._count = build.source, become, count

    def __call__(self, _: object = None) -> None:
        """Make the files unreadable."""
        self._kept = shutil.copytree(self._folder, self._folder.with_name("kept"))
        for path in sorted(self._folder.rglob("[0-9]*.png"))[:: COUNT // self._count]:
            self._become(path)

    def put_back(self) -> None:
        shutil.rmtree(self._folder)
        self._kept.rename(self._folder)


@pytest.mark.parametrize("become", BECOMES)
def test_unreadable_files_are_counted_separately_and_stored_by_the_next_run(
    become: Callable[[Path], None], build: Builder
) -> None:
    (build.source / "class-0" / "bad.png").write_bytes(b"<html>")
    lost = Lost(build, become)
    said = r"^2 files could not be read, the first: class-0/00\.png: .*; run again to retry$"
    first = warned(build, said, on_plan=lost)
    assert (first.stored, first.rejected, first.unreadable, first.samples) == (COUNT - 2, 1, 2, COUNT + 1)
    errors = [reject.error for reject in read_rejects(build.out / "rejects.jsonl")]
    assert sorted(errors) == ["ImageError", "UnreadableError", "UnreadableError"]
    lost.put_back()
    second = build()
    assert (second.stored, second.rejected, second.unreadable) == (COUNT, 1, 0)
    assert second.files - second.resumed == 2
    greys = [int(image[0, 0, 0]) for _, image in build.data().pixels(range(COUNT))]
    assert len(set(greys)) == COUNT
    assert verify_dataset(build.out) == VerifyResult(COUNT)


@pytest.mark.parametrize("layout", LAYOUTS)
def test_a_dataset_of_any_layout_stays_unchanged_until_they_can_be_read(layout: str, build: Builder) -> None:
    build.options, lost = LAYOUTS[layout], Lost(build)
    warned(build, on_plan=lost)
    before = build.files()
    lost.put_back()
    again = Lost(build)
    result = warned(build, on_plan=again)
    assert (result.unreadable, result.resumed) == (2, COUNT)
    assert build.files() == before
    again.put_back()
    assert build().stored == COUNT
    before = build.files()
    assert build().resumed == COUNT
    assert build.files() == before


@pytest.mark.parametrize("layout", ["shards", "folder"])
def test_an_unfinished_build_rebuilds_shards_that_lack_files(layout: str, build: Builder) -> None:
    build.options, lost = LAYOUTS[layout], Lost(build, count=COUNT // 2)
    build("undisturbed")
    with pytest.raises(Stopped):
        build(on_plan=lost, on_shard=stop)
    lost.put_back()
    result = build()
    assert (result.stored, result.unreadable) == (COUNT, 0)
    assert build.files() == build.files("undisturbed")


def test_published_shards_are_not_rebuilt(build: Builder, monkeypatch: pytest.MonkeyPatch) -> None:
    lost = Lost(build)
    with monkeypatch.context() as patch, pytest.raises(Stopped):
        patch.setattr(OutputDir, "clear", lambda output: (output.path / "manifest.json").exists() and stop())
        build(on_plan=lost)
    before = build.manifest().shards
    lost.put_back()
    warned(build)
    assert build.manifest().shards == before
    assert build().stored == COUNT


def test_the_command_that_publishes_parts_tries_their_files_again(build: Builder) -> None:
    def part(number: int, out: Path = build.out, **calls: Any) -> Any:
        return build_part(build.source, out, BuildPart(number, 2), TENS, SERIAL, **calls)

    build("undisturbed")
    lost = Lost(build, count=COUNT // 2)
    first = part(1, on_plan=lost)
    assert first.unreadable > 0
    assert (first.rejected, first.unfinished) == (0, (2,))
    other = shutil.copytree(build.out, build.out.with_name("other"))
    lost.put_back()
    assert part(1, other).unreadable == 0
    assert part(2).unfinished == ()
    assert build().stored == COUNT
    assert build.files() == build.files("undisturbed")


def test_an_update_tries_them_again(build: Builder) -> None:
    lost = Lost(build)
    warned(build, on_plan=lost)
    lost.put_back()
    result = build(run=UPDATE)
    assert (result.stored, result.changes.built) == (COUNT, 2)


def test_they_count_towards_the_error_budget_and_stop_a_strict_build(build: Builder) -> None:
    with pytest.raises(BuildError, match="more than --max-errors 1 allows"):
        build("other", run=replace(SERIAL, max_errors=ErrorBudget(count=1)), on_plan=(lost := Lost(build)))
    lost.put_back()
    strict = replace(SERIAL, on_error="fail")
    with pytest.raises(ImageError, match="cannot be read: No such file"):
        build(run=strict, on_plan=(lost := Lost(build)))
    lost.put_back()
    assert build(run=strict).stored == COUNT


def test_an_unreadable_companion_is_tried_again(tmp_path: Path) -> None:
    build = Builder(make_pairs(tmp_path / "source"), WITH_MASKS)
    masks = sorted((build.source / "masks").iterdir())[:2]
    said = r"2 files could not be read, the first: images/00\.jpg: companion mask: cannot be read"
    warned(build, said, on_plan=lambda _: [path.rename(tmp_path / path.name) for path in masks])
    for path in masks:
        (tmp_path / path.name).rename(path)
    assert build().stored == 12


def test_a_class_folder_renamed_meanwhile_is_not_skipped_for_good(build: Builder) -> None:
    folder, other = build.source / "class-2", build.source / "other"
    warned(build, "10 files could not be read", on_plan=lambda _: folder.rename(other))
    with pytest.raises(BuildError, match="the class list has changed"):
        build()
    other.rename(folder)
    assert build().stored == COUNT


class Unlisted:
    """An entry of os.scandir whose stat fails for matching paths."""

    def __init__(self, entry: os.DirEntry[str], is_lost: Callable[[str], bool]) -> None:
        self._entry, self._is_lost, self.name, self.path = entry, is_lost, entry.name, entry.path
        self.is_symlink, self.is_file, self.is_dir = entry.is_symlink, entry.is_file, entry.is_dir

    def stat(self) -> os.stat_result:
        if self._is_lost(self.path):
            raise OSError(errno.EIO, "Input/output error", self.path)
        return self._entry.stat()


@contextmanager
def unlisted(*ends: str) -> Iterator[None]:
    """Let stat fail for files whose paths end with one of `ends`."""
    listed = os.scandir

    @contextmanager
    def failing(path: str) -> Iterator[Iterator[Unlisted]]:
        with listed(path) as entries:
            yield (Unlisted(entry, lambda path: path.endswith(ends)) for entry in entries)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, "scandir", lambda path=".": failing(path) if "/photos/" in str(path) else listed(path))
        yield


def test_other_changes_of_the_source_still_need_an_update(build: Builder) -> None:
    with unlisted("class-2/06.png"):
        warned(build, "1 file could not be read")
    shutil.copy(build.source / "class-0" / "00.png", build.source / "class-0" / "new.png")
    with pytest.raises(BuildError, match="--update to bring it up to date"):
        build()


def test_an_update_removes_no_image_whose_file_cannot_be_listed(build: Builder) -> None:
    build()
    before = build.files()
    said = r"holds 2 images that --update would remove, .* the first: class-.*: cannot be accessed: Input/output error;"
    with unlisted("class-2/06.png", "class-3/07.png"), pytest.raises(BuildError, match=said):
        build(run=UPDATE)
    assert build.files() == before


# Files that cannot be listed


@contextmanager
def forbidden(folder: str) -> Iterator[None]:
    """Make listing fail for a folder whose path ends with `folder`."""
    listed = os.scandir

    def scandir(path: str = ".") -> Any:
        if str(path).endswith(folder):
            raise PermissionError(errno.EACCES, "Permission denied", path)
        return listed(path)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, "scandir", scandir)
        yield


def test_an_update_removes_no_image_of_a_folder_that_may_not_be_read(build: Builder) -> None:
    build()
    before = build.files()
    said = "holds 10 images that --update would remove, .* the first: class-2/02.png: cannot be accessed: "
    with forbidden("class-2"), pytest.warns(PresizeWarning, match="1 folder left out"):
        with pytest.raises(BuildError, match=said + "Permission denied; run again when they can be"):
            build(run=UPDATE)
    (build.source / "class-2").rename(build.source.with_name("unmounted"))
    (build.source / "class-2").symlink_to("/mnt/nothing-here")
    with pytest.raises(BuildError, match=said + "No such file or directory; "):
        build(run=UPDATE)
    assert build.files() == before


def test_an_update_removes_no_image_of_tars_while_a_folder_may_not_be_read(tmp_path: Path) -> None:
    for name in ("a/1.tar", "b/2.tar"):
        (tmp_path / "tars" / name).parent.mkdir(parents=True)
        write_tar(tmp_path / "tars" / name, [(f"{name[0]}.png", picture(1))])
    build = Builder(tmp_path / "tars", TENS)
    build()
    before = build.files()
    with forbidden("tars/b"), pytest.warns(PresizeWarning, match="1 folder left out"):
        with pytest.raises(BuildError, match=r"1 image that --update would remove, .* first: b\.png: cannot be acce"):
            build(run=UPDATE)
    assert build.files() == before


def test_an_update_that_would_remove_most_images_is_refused(build: Builder) -> None:
    build()
    before = build.files()
    for folder in ("class-0", "class-1", "class-2"):
        shutil.rmtree(build.source / folder)
    for path in sorted((build.source / "class-3").iterdir())[3:]:
        path.unlink()
    said = (
        r"holds 40 images, and --update would remove 37 of them, whose files are no longer in .*/photos, such as "
        r"class-0/00\.png; mount the missing disk, or give the SRC that has them; .* use --overwrite to replace it$"
    )
    with pytest.raises(BuildError, match=said):
        build(run=UPDATE)
    assert build.files() == before
    assert build(run=OVERWRITE).stored == 3


@pytest.mark.parametrize("emptied", ["class-1", "class-1/deeper"])
def test_an_update_names_emptied_folders(emptied: str, build: Builder) -> None:
    moved = build.source / emptied / "more"
    moved.mkdir(parents=True)
    for path in (build.source / "class-1").glob("*.png"):
        path.rename(moved / path.name)
    build()
    shutil.rmtree(moved)
    (build.source / emptied / ".hidden").touch()
    with pytest.warns(PresizeWarning, match=f"images of folders that are empty now, {emptied} in .*; if a disk is not"):
        assert build(run=UPDATE).changes.removed == COUNT // 4


@pytest.mark.parametrize("layout", LAYOUTS)
def test_a_forbidden_folder_is_stored_by_the_same_command_later(layout: str, build: Builder) -> None:
    build.options = LAYOUTS[layout]
    (build.source / "class-1" / "more").mkdir()
    shutil.copy(build.source / "class-0" / "00.png", build.source / "class-1" / "more" / "new.png")
    with forbidden("more"):
        result = warned(build, "could not be read, the first: class-1/more: cannot be accessed|1 folder left out")
        assert (result.stored, result.unreadable) == (COUNT, 1)
        before = build.files()
        assert warned(build, "could not be read|1 folder left out").unreadable == 1
    assert build.files() == before
    if layout == "shards":  # the folder is lost again during a retry
        with pytest.raises(Stopped):
            build(on_shard=stop)
        with forbidden("more"):
            warned(build, "could not be read|1 folder left out")
        assert build.files() == before
    assert build().stored == COUNT + 1


# Files that were readable when they were stored


def test_an_update_with_checksums_removes_no_image_whose_file_cannot_be_read(build: Builder) -> None:
    build.options = replace(TENS, checksum=True)
    build()
    before = build.files()
    said = "2 files could not be read to compare checksums, the first: class-0/00"
    warned(build, said, run=UPDATE, on_plan=Lost(build))
    assert build.files() == before


@pytest.mark.parametrize("become", BECOMES)
def test_an_update_removes_no_image_whose_changed_file_cannot_be_read(
    become: Callable[[Path], None], build: Builder
) -> None:
    build()
    before = build.files()
    for name in ("class-0/00.png", "class-2/02.png"):  # the files that are lost
        os.utime(build.source / name, (1, 1))
    lost = Lost(build, become)
    said = (
        r"holds 2 images that --update would remove, because their files cannot be read now; the first: "
        r"class-0/00\.png: .*; run again when they can be read, or move them out of the source$"
    )
    with pytest.raises(BuildError, match=said):
        build(run=UPDATE, on_plan=lost)
    assert {path: content for path, content in build.files().items() if path in before} == before
    lost.put_back()
    result = build(run=UPDATE)
    assert (result.stored, result.unreadable, result.resumed) == (COUNT, 0, COUNT - 2)
    assert verify_dataset(build.out) == VerifyResult(COUNT)


def test_a_rebuilt_folder_loses_no_images_unless_requested(build: Builder) -> None:
    build.options, lost = LAYOUTS["folder"], Lost(build, count=3)
    warned(build, "4 files could not be read", on_plan=lost)
    before = build.files()
    lost.put_back()
    others = Lost(build, count=10)
    said = r"10 files could not be read, and OUT .* would have fewer images than now"
    for _ in range(2):
        with pytest.raises(BuildError, match=said):
            build(on_plan=others)
        others.put_back()
        assert {path: content for path, content in build.files().items() if path in before} == before
    warned(build, "10 files could not be read", run=OVERWRITE, on_plan=others)
    others.put_back()
    assert build().stored == COUNT


# Failing disks


def test_a_mostly_lost_source_stops_the_build_which_is_finished_later(build: Builder) -> None:
    build("undisturbed")
    lost = Lost(build, a_bad_sector, count=COUNT)
    said = r"^10 samples in a row cannot be read from .*, nor can 16 of 16 others; the last: .* run again to resume$"
    with pytest.raises(BuildError, match=said):
        build(on_shard=lost)
    assert not (build.out / "manifest.json").exists()
    lost.put_back()
    assert build().resumed == 10
    assert build.files() == build.files("undisturbed")


def test_many_unreadable_neighbours_stop_no_build_while_others_are_readable(build: Builder) -> None:
    lost = sorted(build.source.rglob("*.png"))[10:28]
    build.options = replace(TENS, shard_samples=COUNT)
    said = "18 files could not be read"
    assert warned(build, said, on_plan=lambda _: [path.unlink() for path in lost]).stored == COUNT - 18


# Messages


@pytest.mark.filterwarnings("default::presize.errors.PresizeWarning")
def test_the_command_reports_the_number_and_the_fix(build: Builder, presize: Callable[..., Ran]) -> None:
    words = ("build", build.source, build.out, "--size", 16, "--no-report", "--backend", "sequential", "--follow-links")
    Lost(build, a_bad_sector)()
    ran = presize(*words)
    assert ran.code == 0, ran.err
    assert f"  2 files unreadable, listed in {build.out}/rejects.jsonl\n" in ran.out
    assert (
        "warning: 2 files could not be read, the first: class-0/00.png: cannot be read: Input/output error" in ran.err
    )
    assert json.loads(presize(*words, "--json").out)["unreadable"] == 2
    assert "nothing to do" not in presize(*words).out
    assert "2 unreadable" in presize("info", build.out).out


def test_the_report_warns_of_them(build: Builder) -> None:
    warned(build, run=REPORTED, on_plan=Lost(build))
    assert "2 files could not be read" in (build.out / "report.html").read_text("utf-8")
