"""Files that cannot be read are not rejected for good: the same command tries them again; a failing disk stops it."""

from __future__ import annotations

import errno
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from builds import REPORTED, SERIAL, files
from commands import Ran
from paired import WITH_MASKS, make_pairs
from presize.builder.output_dir import OutputDir
from presize.builder.parts import build_part
from presize.builder.run import build_dataset
from presize.errors import BuildError, ImageError, PresizeWarning
from presize.options import BuildOptions, BuildPart, ErrorBudget, ImageOptions, Size
from presize.store.dataset import Dataset
from presize.store.manifest import read_manifest
from presize.store.rejects_file import read_rejects
from presize.store.verify import VerifyResult, verify_dataset
from processes import run_command

COUNT = 40
TENS = BuildOptions(ImageOptions(sizes=(Size(16, 16),), format="png"), shard_samples=10)
LAYOUTS = {
    "shards": TENS,
    "two sizes": replace(TENS, image=replace(TENS.image, sizes=(Size(16, 16), Size(8, 8)))),
    "folder": replace(TENS, layout="folder"),
}


@pytest.fixture
def photos(tmp_path: Path) -> Path:
    return write_photos(tmp_path / "photos")


def write_photos(folder: Path) -> Path:
    """Grey images, each of its own grey, in four classes."""
    for number in range(COUNT):
        path = folder / f"class-{number % 4}" / f"{number:02}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(np.full((20, 20), number, np.uint8)).save(path)
    return folder


def greys(out: Path) -> list[int]:
    """The grey of each stored image."""
    dataset = Dataset(out)
    return [int(image[0, 0, 0]) for _, image in dataset.pixels(range(len(dataset)))]


def removed(path: Path) -> None:
    path.unlink()


def a_bad_sector(path: Path) -> None:
    path.unlink()
    path.symlink_to("/proc/self/mem")  # reading its beginning is an EIO


def shortened(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:50])


BECOMES = [removed, a_bad_sector, shortened]


class Lost:
    """Some files of a source, which become unreadable when a build has planned, until they are put back."""

    def __init__(self, folder: Path, become: Callable[[Path], None], count: int = 2) -> None:
        self._folder, self._become, self._count = folder, become, count

    def __call__(self, _: object = None) -> None:
        """Lose them."""
        self._kept = self._folder.with_name("kept")
        shutil.copytree(self._folder, self._kept)
        for path in sorted(self._folder.rglob("[0-9]*.png"))[:: COUNT // self._count]:
            self._become(path)

    def put_back(self) -> None:
        shutil.rmtree(self._folder)
        self._kept.rename(self._folder)


@pytest.mark.parametrize("become", BECOMES)
def test_files_that_cannot_be_read_are_counted_apart_and_stored_by_the_next_run(
    become: Callable[[Path], None], photos: Path, tmp_path: Path
) -> None:
    (photos / "class-0" / "bad.png").write_bytes(b"<html>")
    lost = Lost(photos, become)
    said = r"^2 files could not be read, the first: class-0/00\.png: .*; run the same command again to try again$"
    with pytest.warns(PresizeWarning, match=said):
        first = build_dataset(photos, tmp_path / "out", TENS, SERIAL, on_plan=lost)
    assert (first.stored, first.rejected, first.unreadable, first.samples) == (COUNT - 2, 1, 2, COUNT + 1)
    errors = [reject.error for reject in read_rejects(tmp_path / "out" / "rejects.jsonl")]
    assert sorted(errors) == ["ImageError", "UnreadableError", "UnreadableError"]
    lost.put_back()
    second = build_dataset(photos, tmp_path / "out", TENS, SERIAL)
    assert (second.stored, second.rejected, second.unreadable) == (COUNT, 1, 0)
    assert second.files - second.resumed == 2
    assert len(set(greys(tmp_path / "out"))) == COUNT
    assert verify_dataset(tmp_path / "out") == VerifyResult(COUNT)


@pytest.mark.parametrize("layout", LAYOUTS)
def test_the_next_run_completes_a_dataset_of_every_layout(layout: str, photos: Path, tmp_path: Path) -> None:
    options, lost = LAYOUTS[layout], Lost(photos, removed)
    with pytest.warns(PresizeWarning, match="2 files could not be read"):
        build_dataset(photos, tmp_path / "out", options, SERIAL, on_plan=lost)
    lost.put_back()
    assert build_dataset(photos, tmp_path / "out", options, SERIAL).stored == COUNT
    before = files(tmp_path / "out")
    assert build_dataset(photos, tmp_path / "out", options, SERIAL).resumed == COUNT
    assert files(tmp_path / "out") == before


def test_a_dataset_stays_as_it_is_while_its_files_still_cannot_be_read(photos: Path, tmp_path: Path) -> None:
    lost = Lost(photos, removed)
    with pytest.warns(PresizeWarning, match="2 files could not be read"):
        build_dataset(photos, tmp_path / "out", TENS, SERIAL, on_plan=lost)
    before = files(tmp_path / "out")
    lost.put_back()
    with pytest.warns(PresizeWarning, match="2 files could not be read"):
        again = build_dataset(photos, tmp_path / "out", TENS, SERIAL, on_plan=Lost(photos, removed))
    assert (again.unreadable, again.resumed) == (2, COUNT)
    assert files(tmp_path / "out") == before


class StopError(Exception):
    pass


def stop(_: object) -> None:
    raise StopError


@pytest.mark.parametrize("layout", ["shards", "folder"])
def test_an_unfinished_build_makes_shards_again_that_lack_files(layout: str, photos: Path, tmp_path: Path) -> None:
    options, lost = LAYOUTS[layout], Lost(photos, removed, COUNT // 2)
    build_dataset(photos, tmp_path / "undisturbed", options, SERIAL)
    with pytest.raises(StopError):
        build_dataset(photos, tmp_path / "out", options, SERIAL, on_plan=lost, on_shard=stop)
    lost.put_back()
    result = build_dataset(photos, tmp_path / "out", options, SERIAL)
    assert (result.stored, result.unreadable) == (COUNT, 0)
    assert files(tmp_path / "out") == files(tmp_path / "undisturbed")


def test_shards_that_a_manifest_names_are_not_made_again(
    photos: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lost = Lost(photos, removed)
    with monkeypatch.context() as patch, pytest.raises(StopError):
        patch.setattr(
            OutputDir, "clear", lambda output: stop(output) if (output.path / "manifest.json").exists() else None
        )
        build_dataset(photos, tmp_path / "out", TENS, SERIAL, on_plan=lost)
    before = [file.sha256 for file in read_manifest(tmp_path / "out").shards]
    lost.put_back()
    with pytest.warns(PresizeWarning, match="2 files could not be read"):
        build_dataset(photos, tmp_path / "out", TENS, SERIAL)
    assert [file.sha256 for file in read_manifest(tmp_path / "out").shards] == before
    assert build_dataset(photos, tmp_path / "out", TENS, SERIAL).stored == COUNT


def test_the_command_that_publishes_parts_tries_their_files_again(photos: Path, tmp_path: Path) -> None:
    build_dataset(photos, tmp_path / "undisturbed", TENS, SERIAL)
    lost = Lost(photos, removed, COUNT // 2)
    first = build_part(photos, tmp_path / "out", BuildPart(1, 2), TENS, SERIAL, on_plan=lost)
    assert first.unreadable > 0
    assert (first.rejected, first.unfinished) == (0, (2,))
    lost.put_back()
    assert build_part(photos, tmp_path / "out", BuildPart(2, 2), TENS, SERIAL).unfinished == ()
    assert build_dataset(photos, tmp_path / "out", TENS, SERIAL).stored == COUNT
    assert files(tmp_path / "out") == files(tmp_path / "undisturbed")


def test_a_part_that_runs_again_tries_its_files_again(photos: Path, tmp_path: Path) -> None:
    lost = Lost(photos, removed, COUNT // 2)
    assert build_part(photos, tmp_path / "out", BuildPart(1, 2), TENS, SERIAL, on_plan=lost).unreadable > 0
    lost.put_back()
    assert build_part(photos, tmp_path / "out", BuildPart(1, 2), TENS, SERIAL).unreadable == 0


def test_an_update_tries_them_again(photos: Path, tmp_path: Path) -> None:
    lost = Lost(photos, removed)
    with pytest.warns(PresizeWarning, match="2 files could not be read"):
        build_dataset(photos, tmp_path / "out", TENS, SERIAL, on_plan=lost)
    lost.put_back()
    result = build_dataset(photos, tmp_path / "out", TENS, replace(SERIAL, update=True))
    assert (result.stored, result.changes.built) == (COUNT, 2)


def test_they_count_towards_the_error_budget(photos: Path, tmp_path: Path) -> None:
    run = replace(SERIAL, max_errors=ErrorBudget(count=1))
    with pytest.raises(BuildError, match="more than --max-errors 1 allows"):
        build_dataset(photos, tmp_path / "out", TENS, run, on_plan=Lost(photos, removed))


def test_on_error_fail_stops_at_the_first(photos: Path, tmp_path: Path) -> None:
    lost, run = Lost(photos, removed), replace(SERIAL, on_error="fail")
    with pytest.raises(ImageError, match="cannot be read: No such file"):
        build_dataset(photos, tmp_path / "out", TENS, run, on_plan=lost)
    lost.put_back()
    assert build_dataset(photos, tmp_path / "out", TENS, run).stored == COUNT


def test_a_companion_that_cannot_be_read_is_tried_again(tmp_path: Path) -> None:
    source = make_pairs(tmp_path / "source")

    def lose(_: object) -> None:
        for path in sorted((source / "masks").iterdir())[:2]:
            path.rename(tmp_path / path.name)

    said = r"2 files could not be read, the first: images/00\.jpg: companion mask: cannot be read"
    with pytest.warns(PresizeWarning, match=said):
        build_dataset(source, tmp_path / "out", WITH_MASKS, SERIAL, on_plan=lose)
    for path in tmp_path.glob("*.png"):
        path.rename(source / "masks" / path.name)
    assert build_dataset(source, tmp_path / "out", WITH_MASKS, SERIAL).stored == 12


def test_a_class_folder_that_is_renamed_meanwhile_is_not_left_out_for_good(photos: Path, tmp_path: Path) -> None:
    def rename(_: object) -> None:
        (photos / "class-2").rename(photos / "other")

    with pytest.warns(PresizeWarning, match="10 files could not be read"):
        build_dataset(photos, tmp_path / "out", TENS, SERIAL, on_plan=rename)
    with pytest.raises(BuildError, match="the class list has changed"):
        build_dataset(photos, tmp_path / "out", TENS, SERIAL)
    (photos / "other").rename(photos / "class-2")
    assert build_dataset(photos, tmp_path / "out", TENS, SERIAL).stored == COUNT


# Files that cannot even be listed


class Unlisted:
    """An entry of os.scandir; the disk fails at the status of those that match."""

    def __init__(self, entry: os.DirEntry[str], is_lost: Callable[[str], bool]) -> None:
        self._entry, self._is_lost, self.name, self.path = entry, is_lost, entry.name, entry.path
        self.is_symlink, self.is_file, self.is_dir = entry.is_symlink, entry.is_file, entry.is_dir

    def stat(self) -> os.stat_result:
        if self._is_lost(self.path):
            raise OSError(errno.EIO, "Input/output error", self.path)
        return self._entry.stat()


@contextmanager
def unlisted(*ends: str) -> Iterator[None]:
    """The disk fails at the status of files whose paths end so."""
    listed = os.scandir

    @contextmanager
    def failing(path: str) -> Iterator[Iterator[Unlisted]]:
        with listed(path) as entries:
            yield (Unlisted(entry, lambda path: path.endswith(ends)) for entry in entries)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, "scandir", lambda path=".": failing(path) if "/photos/" in str(path) else listed(path))
        yield


@pytest.mark.parametrize("layout", LAYOUTS)
def test_a_file_that_could_not_be_listed_is_stored_by_the_same_command(
    layout: str, photos: Path, tmp_path: Path
) -> None:
    options, out = LAYOUTS[layout], tmp_path / "out"
    with unlisted("class-2/06.png"), pytest.warns(PresizeWarning, match=r"1 file could not be read"):
        assert build_dataset(photos, out, options, SERIAL).stored == COUNT - 1
        before = files(out)
        assert build_dataset(photos, out, options, SERIAL).unreadable == 1
    assert files(out) == before
    assert build_dataset(photos, out, options, SERIAL).stored == COUNT


def test_a_retry_that_began_with_a_file_that_is_lost_again_leaves_the_dataset_usable(
    photos: Path, tmp_path: Path
) -> None:
    with unlisted("class-2/06.png"), pytest.warns(PresizeWarning, match=r"1 file could not be read"):
        build_dataset(photos, tmp_path / "out", TENS, SERIAL)
    before = files(tmp_path / "out")
    with pytest.raises(StopError):
        build_dataset(photos, tmp_path / "out", TENS, SERIAL, on_shard=stop)
    with unlisted("class-2/06.png"), pytest.warns(PresizeWarning, match=r"1 file could not be read"):
        build_dataset(photos, tmp_path / "out", TENS, SERIAL)
    assert files(tmp_path / "out") == before


def test_other_changes_of_the_source_still_need_an_update(photos: Path, tmp_path: Path) -> None:
    with unlisted("class-2/06.png"), pytest.warns(PresizeWarning, match=r"1 file could not be read"):
        build_dataset(photos, tmp_path / "out", TENS, SERIAL)
    shutil.copy(photos / "class-0" / "00.png", photos / "class-0" / "new.png")
    with pytest.raises(BuildError, match="--update brings it up to date"):
        build_dataset(photos, tmp_path / "out", TENS, SERIAL)


def test_an_update_removes_no_image_whose_file_cannot_be_listed(photos: Path, tmp_path: Path) -> None:
    build_dataset(photos, tmp_path / "out", TENS, SERIAL)
    before = files(tmp_path / "out")
    said = (
        r"holds 2 images that --update would remove, .* the first: class-.*: cannot be looked at: Input/output error;"
    )
    with unlisted("class-2/06.png", "class-3/07.png"), pytest.raises(BuildError, match=said):
        build_dataset(photos, tmp_path / "out", TENS, replace(SERIAL, update=True))
    assert files(tmp_path / "out") == before


# Files that could be read when they were stored


def test_an_update_with_checksums_removes_no_image_whose_file_cannot_be_read(photos: Path, tmp_path: Path) -> None:
    options, lost = replace(TENS, checksum=True), Lost(photos, removed)
    build_dataset(photos, tmp_path / "out", options, SERIAL)
    before = files(tmp_path / "out")
    with pytest.warns(PresizeWarning, match="2 files could not be read to compare checksums, the first: class-0/00"):
        build_dataset(photos, tmp_path / "out", options, replace(SERIAL, update=True), on_plan=lost)
    assert files(tmp_path / "out") == before


def test_a_folder_that_is_built_anew_loses_no_images_unless_that_is_asked_for(photos: Path, tmp_path: Path) -> None:
    options, out, lost = LAYOUTS["folder"], tmp_path / "out", Lost(photos, removed, 3)
    with pytest.warns(PresizeWarning, match="4 files could not be read"):
        build_dataset(photos, out, options, SERIAL, on_plan=lost)
    before = files(out)
    lost.put_back()
    others = Lost(photos, removed, 10)
    said = r"10 files could not be read, and OUT .* would have fewer images than now"
    for _ in range(2):
        with pytest.raises(BuildError, match=said):
            build_dataset(photos, out, options, SERIAL, on_plan=others)
        others.put_back()
        assert {path: content for path, content in files(out).items() if path in before} == before
    with pytest.warns(PresizeWarning, match="10 files could not be read"):
        build_dataset(photos, out, options, replace(SERIAL, overwrite=True), on_plan=others)
    others.put_back()
    assert build_dataset(photos, out, options, SERIAL).stored == COUNT


# A disk that fails


def test_a_source_most_of_which_goes_stops_the_build(photos: Path, tmp_path: Path) -> None:
    def empty(_: object) -> None:
        for path in photos.iterdir():
            shutil.rmtree(path)

    said = r"^10 samples in a row cannot be read from .*, nor can 16 of 16 others; the last: .* run again to resume$"
    with pytest.raises(BuildError, match=said):
        build_dataset(photos, tmp_path / "out", TENS, SERIAL, on_plan=empty)
    assert not (tmp_path / "out" / "manifest.json").exists()


def test_companions_all_of_which_go_stop_the_build(tmp_path: Path) -> None:
    source = make_pairs(tmp_path / "source")
    with pytest.raises(BuildError, match="samples in a row cannot be read"):
        build_dataset(source, tmp_path / "out", WITH_MASKS, SERIAL, on_plan=lambda _: shutil.rmtree(source / "masks"))


def test_many_neighbours_that_cannot_be_read_stop_no_build_while_others_can(photos: Path, tmp_path: Path) -> None:
    def lose(_: object) -> None:
        for path in sorted(photos.rglob("*.png"))[10:28]:
            path.unlink()

    one_shard = replace(TENS, shard_samples=COUNT)
    with pytest.warns(PresizeWarning, match="18 files could not be read"):
        assert build_dataset(photos, tmp_path / "out", one_shard, SERIAL, on_plan=lose).stored == COUNT - 18


FAILING = """
import sys
from pathlib import Path
from presize import build_dataset
from presize.options import BuildOptions, ImageOptions, RunOptions, Size

source, out, flag, jobs = sys.argv[1:]
run = RunOptions(jobs=int(jobs), report=False) if int(jobs) else RunOptions(engine="sequential", report=False)
options = BuildOptions(ImageOptions(sizes=(Size(16, 16),), format="png"), shard_samples=10)
build_dataset(source, out, options, run, on_shard=lambda _: Path(flag).touch())
"""


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    if shutil.which("gcc") is None:
        pytest.skip("needs gcc")
    made = tmp_path_factory.mktemp("library") / "failing_reads.so"
    source = Path(__file__).parents[1] / "faults" / "failing_reads.c"
    subprocess.run(["gcc", "-shared", "-fPIC", "-O1", "-o", made, source, "-ldl"], check=True)
    return made


@pytest.mark.parametrize(("call", "jobs"), [("open", 0), pytest.param("pread", 2, marks=pytest.mark.slow)])
def test_a_disk_that_fails_stops_the_build_which_is_finished_later(
    call: str, jobs: int, library: Path, photos: Path, tmp_path: Path
) -> None:
    flag, out = tmp_path / "flag", tmp_path / "out"
    fails = {"CALL": call, "IN": photos, "IF": flag}
    env = {"LD_PRELOAD": str(library)} | {f"FAILING_READS_{name}": str(value) for name, value in fails.items()}
    ran = run_command([sys.executable, "-P", "-c", FAILING, photos, out, flag, jobs], env=env)
    assert "BuildError" in ran.stderr and "samples in a row cannot be read" in ran.stderr, ran.stderr
    assert not (out / "manifest.json").exists()
    build_dataset(photos, tmp_path / "undisturbed", TENS, SERIAL)
    assert build_dataset(photos, out, TENS, SERIAL).resumed >= 10
    assert files(out) == files(tmp_path / "undisturbed")


# What is said


@pytest.mark.filterwarnings("default::presize.errors.PresizeWarning")
def test_the_command_says_how_many_and_what_to_do(photos: Path, tmp_path: Path, presize: Callable[..., Ran]) -> None:
    words = ("build", photos, tmp_path / "out", "--size", 16, "--no-report", "--backend", "sequential")
    Lost(photos, a_bad_sector)()
    ran = presize(*words, "--follow-links")
    assert ran.code == 0, ran.err
    assert f"  2 files unreadable, listed in {tmp_path}/out/rejects.jsonl\n" in ran.out
    assert (
        "warning: 2 files could not be read, the first: class-0/00.png: cannot be read: Input/output error" in ran.err
    )
    again = presize(*words, "--follow-links", "--json")
    assert json.loads(again.out)["unreadable"] == 2
    assert "nothing was left to do" not in presize(*words, "--follow-links").out
    assert "2 unreadable" in presize("info", tmp_path / "out").out


def test_the_report_warns_of_them(photos: Path, tmp_path: Path) -> None:
    with pytest.warns(PresizeWarning, match="2 files could not be read"):
        build_dataset(photos, tmp_path / "out", TENS, REPORTED, on_plan=Lost(photos, removed))
    assert "2 files could not be read" in (tmp_path / "out" / "report.html").read_text("utf-8")
