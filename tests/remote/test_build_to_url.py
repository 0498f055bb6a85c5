"""Builds whose OUT is a URL, on a real server: whole or not at all, and on from where a build ended."""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from builds import SERIAL, SMALL, files
from clusters import wait_until
from commands import Ran
from presize import build_dataset, build_to_url
from presize.builder.derive import DeriveOptions, derive_dataset
from presize.errors import BuildError, OptionError, PresizeWarning, RemoteError
from presize.options import BuildOptions, ImageOptions, RunOptions, Size
from presize.remote import fetch as module
from presize.remote.bucket import Bucket
from presize.remote.fetch import fetch_dataset
from presize.remote.upload import CLAIM, upload_dataset
from presize.store.data_files import MANIFEST, DataFile
from presize.store.dataset import Dataset
from servers import SHARDS, UPDATE, Proxy, StopError, fetched, names, stop


@pytest.fixture
def scratch(tmp_path: Path) -> Path:
    return tmp_path / "scratch"


@pytest.fixture
def photos(raw: Path, tmp_path: Path) -> Path:
    """Some of the photographs, a folder that may be changed."""
    folder = tmp_path / "photos"
    for path in sorted(raw.rglob("*.jpg"))[::3]:
        (folder / path.parent.name).mkdir(parents=True, exist_ok=True)
        shutil.copy2(path, folder / path.parent.name)
    return folder


def shards_put(proxy: Proxy) -> set[str]:
    return set(re.findall(r"shards/[\w.-]+", " ".join(proxy.put)))


def test_a_build_makes_at_a_url_what_it_makes_in_a_folder(
    photos: Path, url: str, scratch: Path, tmp_path: Path
) -> None:
    local = build_dataset(photos, tmp_path / "out", SHARDS, SERIAL)
    result = build_to_url(photos, url, SHARDS, SERIAL, scratch=scratch)
    assert fetched(url, tmp_path / "copy") == files(tmp_path / "out")
    assert (result.out, result.stored, result.unchanged) == (url, local.stored, local.unchanged)
    assert CLAIM not in names(url)
    assert not [path for path in scratch.rglob("*") if path.is_file()]


@pytest.mark.slow
def test_each_size_has_a_place_of_its_own(photos: Path, url: str, scratch: Path, tmp_path: Path) -> None:
    options = BuildOptions(ImageOptions(sizes=(Size(16, 16), Size(32, 32))), shard_samples=8)
    result = build_to_url(photos, url, options, scratch=scratch)
    build_dataset(photos, tmp_path / "out", options)
    assert result.reports == (f"{url}/16/report.html", f"{url}/32/report.html")
    for size in ("16", "32"):
        assert fetched(f"{url}/{size}", tmp_path / f"copy{size}") == files(tmp_path / "out" / size)


def test_shards_go_while_others_are_built(photos: Path, url: str, scratch: Path, proxy: Proxy) -> None:
    def wait_for_it(_: object) -> None:
        wait_until(lambda: shards_put(proxy), "the first shard")

    build_to_url(photos, url, SHARDS, SERIAL, scratch=scratch, on_shard=wait_for_it)


@pytest.mark.parametrize("where", ["on_shard", "on_rest"])
def test_a_build_that_was_interrupted_is_no_dataset_and_goes_on(
    where: str, photos: Path, url: str, scratch: Path, tmp_path: Path
) -> None:
    with pytest.raises(StopError):
        build_to_url(photos, url, SHARDS, SERIAL, scratch=scratch, **{where: stop})  # type: ignore[arg-type]
    assert MANIFEST not in names(url)
    result = build_to_url(photos, url, SHARDS, SERIAL, scratch=scratch)
    assert 0 < result.resumed <= result.files
    assert result.resumed == result.files or where == "on_shard"
    build_dataset(photos, tmp_path / "out", SHARDS, SERIAL)
    assert fetched(url, tmp_path / "copy") == files(tmp_path / "out")


def test_a_place_belongs_to_one_build(photos: Path, url: str, scratch: Path, tmp_path: Path) -> None:
    with pytest.raises(StopError):
        build_to_url(photos, url, SHARDS, SERIAL, scratch=scratch, on_shard=stop)
    before = names(url)
    with pytest.raises(RemoteError, match=r"another dataset is being copied to .*, or its copy ended early"):
        build_to_url(photos, url, SHARDS, SERIAL, scratch=tmp_path / "elsewhere")
    assert names(url) == before


def test_what_is_there_already_is_nothing_to_do(photos: Path, url: str, scratch: Path) -> None:
    first = build_to_url(photos, url, SHARDS, SERIAL, scratch=scratch)
    again = build_to_url(photos, url, SHARDS, SERIAL, scratch=scratch)
    assert again.resumed == again.files
    assert (again.stored, again.bytes, again.losses) == (first.stored, first.bytes, first.losses)
    assert CLAIM not in names(url)


@pytest.mark.parametrize("run", [SERIAL, UPDATE])
@pytest.mark.parametrize("damage", ["missing", "shortened"])
def test_a_dataset_that_is_damaged_there_is_not_called_done(
    damage: str, run: RunOptions, photos: Path, url: str, scratch: Path, tmp_path: Path
) -> None:
    build_to_url(photos, url, SHARDS, SERIAL, scratch=scratch)
    fetch_dataset(url, tmp_path / "copy")
    Bucket(url).remove("shards/00001.lmdb")
    if damage == "shortened":
        Bucket(url).put("shards/00001.lmdb", b"short")
    with pytest.raises(
        BuildError, match=r"is damaged: \S+/shards/00001\.lmdb (is missing|has 5 bytes, not \d+); presize"
    ):
        build_to_url(photos, url, SHARDS, run, scratch=scratch)
    assert CLAIM not in names(url)
    upload_dataset(tmp_path / "copy", url)
    assert build_to_url(photos, url, SHARDS, SERIAL, scratch=scratch).stored == 19


def test_files_that_could_not_be_read_are_tried_again(photos: Path, url: str, scratch: Path, tmp_path: Path) -> None:
    lost = min(photos.rglob("*.jpg"))

    def lose(_: object) -> None:
        lost.rename(tmp_path / "lost")

    with pytest.warns(PresizeWarning, match="1 file could not be read"):
        build_to_url(photos, url, SHARDS, SERIAL, scratch=scratch, on_plan=lose)
    before = names(url)
    (tmp_path / "lost").rename(lost)
    result = build_to_url(photos, url, SHARDS, SERIAL, scratch=scratch)
    assert (result.stored, result.unreadable, result.files - result.resumed) == (19, 0, 1)
    assert names(url) != before
    fetch_dataset(url, tmp_path / "copy")
    assert len(Dataset(tmp_path / "copy")) == 19
    assert not [path for path in scratch.rglob("*") if path.is_file()]


@pytest.mark.parametrize("at", ["the claim", "the folder"])
def test_a_build_that_ended_while_it_cleaned_up_is_cleaned_up(
    at: str, photos: Path, url: str, scratch: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patch, pytest.raises(StopError):
        if at == "the claim":
            patch.setattr(Bucket, "remove", lambda *words: stop(words) if CLAIM in words else None)
        else:
            patch.setattr("presize.builder.to_url.shutil.rmtree", lambda *_, **words: None if words else stop(words))
        build_to_url(photos, url, SHARDS, SERIAL, scratch=scratch)
    assert [path for path in scratch.rglob("*") if path.is_file()]
    result = build_to_url(photos, url, SHARDS, SERIAL, scratch=scratch)
    assert result.resumed == result.files
    assert CLAIM not in names(url)
    assert not [path for path in scratch.rglob("*") if path.is_file()]


def test_another_dataset_is_refused_before_anything_is_built(photos: Path, url: str, scratch: Path) -> None:
    build_to_url(photos, url, SHARDS, SERIAL, scratch=scratch)
    other = BuildOptions(ImageOptions(sizes=(Size(24, 24),)), shard_samples=8)
    with pytest.raises(BuildError, match=r"holds a dataset that differs \(.*\); choose another OUT"):
        build_to_url(photos, url, other, RunOptions(overwrite=True), scratch=scratch, on_shard=stop)


def test_an_update_copies_what_is_new(photos: Path, url: str, scratch: Path, proxy: Proxy, tmp_path: Path) -> None:
    build_to_url(photos, url, SHARDS, SERIAL, scratch=scratch)
    build_dataset(photos, tmp_path / "out", SHARDS, SERIAL)
    some = min(photos.rglob("*.jpg"))
    shutil.copy(some, some.with_name(f"new-{some.name}"))
    proxy.put.clear()
    result = build_to_url(photos, url, SHARDS, UPDATE, scratch=scratch)
    build_dataset(photos, tmp_path / "out", SHARDS, UPDATE)
    assert result.changes.built == 1
    assert len(shards_put(proxy)) == 1
    assert fetched(url, tmp_path / "copy") == files(tmp_path / "out")


def test_a_store_that_fails_ends_the_build_with_a_line(
    photos: Path, url: str, scratch: Path, proxy: Proxy, tmp_path: Path
) -> None:
    def cut(_: object) -> None:
        proxy.close()

    with pytest.raises(RemoteError, match=r"Connection refused|error sending request|Generic S3 error"):
        build_to_url(photos, url, SHARDS, SERIAL, scratch=scratch, on_plan=cut)
    assert not (tmp_path / "out").exists()


def test_a_scratch_that_cannot_be_written_is_one_line(photos: Path, url: str, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(OptionError, match=rf"^scratch: cannot write to {tmp_path}/file: Not a directory; choose"):
        build_to_url(photos, url, SHARDS, SERIAL, scratch=tmp_path / "file")


def test_a_folder_dataset_is_refused(photos: Path, url: str, scratch: Path) -> None:
    with pytest.raises(OptionError, match="to: a folder of images is made on this machine alone"):
        build_to_url(photos, url, BuildOptions(layout="folder"), scratch=scratch)


def test_the_command_says_where_the_dataset_is(
    photos: Path, url: str, scratch: Path, presize: Callable[..., Ran]
) -> None:
    words = ("build", photos, url, "--size", "32", "--scratch", scratch)
    ran = presize(*words)
    assert ran.code == 0, ran.err
    assert ran.out.startswith(f"{url}: 19 images, "), ran.out
    assert json.loads(presize(*words, "--json").out)["reports"] == [f"{url}/report.html"]


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["s3://data/x", "--part", "1/2"], "--part: all parts write to one folder"),
        (["s3://data/x", "--dry-run", "--update"], "--dry-run: an update is planned in a folder"),
        (["out", "--scratch", "here"], "--scratch: is for an OUT that is a URL"),
    ],
)
def test_what_goes_with_folders_alone_is_one_line(
    words: list[str], message: str, photos: Path, presize: Callable[..., Ran]
) -> None:
    ran = presize("build", photos, *words)
    assert ran.code == 2
    assert message in ran.err


@pytest.mark.parametrize("then", ["the same", "no update"])
def test_an_update_whose_fetch_broke_off_goes_on(
    then: str, photos: Path, url: str, scratch: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    build_to_url(photos, url, SHARDS, SERIAL, scratch=scratch)
    if then == "the same":
        first = min(photos.rglob("*.jpg"))
        shutil.copy2(first, first.with_name("new.jpg"))
    with monkeypatch.context() as patch, pytest.raises(RemoteError, match="broke off"):
        download = module.download_file

        def broken(bucket: Bucket, file: DataFile, *others: Any) -> None:
            if file.file.startswith("shards/"):
                raise RemoteError("it broke off")
            download(bucket, file, *others)

        patch.setattr(module, "download_file", broken)
        build_to_url(photos, url, SHARDS, UPDATE, scratch=scratch)
    result = build_to_url(photos, url, SHARDS, UPDATE if then == "the same" else SERIAL, scratch=scratch)
    assert CLAIM not in names(url)
    assert fetch_dataset(url, tmp_path / "copy").samples == result.stored == (20 if then == "the same" else 19)


def test_an_update_of_a_dataset_that_was_derived_claims_nothing(photos: Path, url: str, tmp_path: Path) -> None:
    build_dataset(photos, tmp_path / "out", SMALL, SERIAL)
    some = [Dataset(tmp_path / "out").path(0)]
    derive_dataset([tmp_path / "out"], tmp_path / "some", DeriveOptions(only=some), SERIAL)
    upload_dataset(tmp_path / "some", url)
    there = names(url)
    with pytest.raises(BuildError, match=r"was derived from other datasets \(some of the samples\).*derive it again"):
        build_to_url(photos, url, SMALL, UPDATE, scratch=tmp_path / "scratch")
    assert names(url) == there


def test_options_that_an_update_cannot_change_claim_nothing(
    photos: Path, url: str, scratch: Path, tmp_path: Path
) -> None:
    build_to_url(photos, url, SHARDS, SERIAL, scratch=scratch)
    other = BuildOptions(ImageOptions(sizes=(Size(32, 32),)))
    with pytest.raises(BuildError, match=r"sizes was 64, is 32.*which --update cannot change"):
        build_to_url(photos, url, other, UPDATE, scratch=scratch)
    assert CLAIM not in names(url)
    build_to_url(photos, url, SHARDS, UPDATE, scratch=tmp_path / "elsewhere")


@pytest.mark.parametrize("sizes", [("32",), ("32", "16")], ids=len)
def test_an_update_takes_its_options_from_the_url(
    sizes: tuple[str, ...], photos: Path, url: str, scratch: Path, presize: Callable[..., Ran], tmp_path: Path
) -> None:
    words = ("--scratch", scratch, "--jobs", "1", "--no-report")
    assert presize("build", photos, url, *(f"--size={size}" for size in sizes), "--quality", "71", *words).code == 0
    shutil.copy(min(photos.rglob("*.jpg")), min(photos.rglob("*.jpg")).with_name("new.jpg"))
    ran = presize("build", photos, url, "--update", "--verify", *words)
    assert ran.code == 0, ran.err
    assert "built 1, removed 0, damaged 0" in ran.out
    place = url if len(sizes) == 1 else f"{url}/16"
    manifest = fetch_dataset(place, tmp_path / "copy") and Dataset(tmp_path / "copy").manifest
    assert manifest.identity["options"]["image"]["quality"] == 71
    assert manifest.samples == 20
