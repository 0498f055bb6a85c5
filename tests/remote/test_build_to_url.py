"""Builds whose OUT is a URL, on a real server: complete or not at all, and resumed after an interruption."""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from builds import SERIAL, SMALL, files, put
from clusters import wait_until
from commands import Ran
from presize import build_dataset, build_to_url
from presize.builder.derive import DeriveOptions, derive_dataset
from presize.builder.run import BuildResult
from presize.errors import BuildError, OptionError, PresizeWarning, RemoteError
from presize.options import BuildOptions, ImageOptions, RunOptions, Size, SourceOptions
from presize.remote import fetch as module
from presize.remote.bucket import Bucket
from presize.remote.fetch import fetch_dataset
from presize.remote.upload import CLAIM, upload_dataset
from presize.store.data_files import MANIFEST, DataFile
from presize.store.dataset import Dataset
from presize.store.manifest import read_manifest
from servers import SHARDS, UPDATE, Proxy, StopError, fetched, names, stop
from users import NEEDS_ROOT, shared_folder, user


@dataclass
class Site:
    """A folder of photographs that may be modified, a URL for their dataset, and a scratch folder."""

    photos: Path
    url: str
    scratch: Path
    out: Path
    """Result of a build in a folder, for comparison."""

    def build(self, run: RunOptions = SERIAL, options: BuildOptions = SHARDS, **more: Any) -> BuildResult:
        return build_to_url(self.photos, self.url, options, run, **{"scratch": self.scratch, **more})

    def build_locally(self, run: RunOptions = SERIAL, options: BuildOptions = SHARDS) -> dict[str, str]:
        build_dataset(self.photos, self.out, options, run)
        return files(self.out)

    def fetched(self) -> dict[str, str]:
        return fetched(self.url, self.out.with_name("copy"))

    def names(self) -> list[str]:
        return names(self.url)

    def add(self) -> None:
        """Add a photograph."""
        some = min(self.photos.rglob("*.jpg"))
        shutil.copy(some, some.with_name(f"new-{some.name}"))

    def check_done(self) -> None:
        """Assert that nothing is left that a finished build no longer needs."""
        assert CLAIM not in self.names()
        assert not [path for path in self.scratch.rglob("*") if path.is_file()]


@pytest.fixture
def site(raw: Path, url: str, tmp_path: Path) -> Site:
    folder = tmp_path / "photos"
    for path in sorted(raw.rglob("*.jpg"))[::3]:
        (folder / path.parent.name).mkdir(parents=True, exist_ok=True)
        shutil.copy2(path, folder / path.parent.name)
    return Site(folder, url, tmp_path / "scratch", tmp_path / "out")


def shards_put(proxy: Proxy) -> set[str]:
    return set(re.findall(r"shards/[\w.-]+", " ".join(proxy.put)))


def test_a_build_to_a_url_equals_one_in_a_folder(site: Site) -> None:
    result = site.build()
    local = build_dataset(site.photos, site.out, SHARDS, SERIAL)
    assert site.fetched() == files(site.out)
    assert (result.out, result.stored, result.unchanged) == (site.url, local.stored, local.unchanged)
    site.check_done()


@pytest.mark.slow
def test_each_size_has_its_own_url(site: Site, tmp_path: Path) -> None:
    options = BuildOptions(ImageOptions(sizes=(Size(16, 16), Size(32, 32))), shard_samples=8)
    result = build_to_url(site.photos, site.url, options, scratch=site.scratch)
    build_dataset(site.photos, site.out, options)
    assert result.reports == (f"{site.url}/16/report.html", f"{site.url}/32/report.html")
    for size in ("16", "32"):
        assert fetched(f"{site.url}/{size}", tmp_path / f"copy{size}") == files(site.out / size)


def test_shards_are_uploaded_while_others_are_built(site: Site, proxy: Proxy) -> None:
    site.build(on_shard=lambda _: wait_until(lambda: shards_put(proxy), "the first shard"))


@pytest.mark.parametrize("where", ["on_shard", "on_rest"])
def test_an_interrupted_build_is_not_a_dataset_and_resumes(where: str, site: Site, tmp_path: Path) -> None:
    with pytest.raises(StopError):
        site.build(**{where: stop})
    before = site.names()
    assert MANIFEST not in before
    with pytest.raises(
        RemoteError,
        match=r"another dataset is being copied to .*, or its copy was interrupted; choose another URL, or remove",
    ):
        site.build(scratch=tmp_path / "elsewhere")
    assert site.names() == before
    result = site.build()
    assert 0 < result.resumed <= result.files
    assert result.resumed == result.files or where == "on_shard"
    assert site.fetched() == site.build_locally()


@NEEDS_ROOT
@pytest.mark.parametrize("mode", [0o2770, 0o1777], ids=["of the group", "of all"])
def test_a_second_user_of_the_group_resumes_and_one_of_another_builds_elsewhere(mode: int, site: Site) -> None:
    with shared_folder() as scratch:
        photos = Path(shutil.copytree(site.photos, scratch / "photos"))
        scratch.chmod(mode)
        site.photos, site.scratch = photos, scratch
        with user(1001, umask=0o007 if mode == 0o2770 else 0o077), pytest.raises(StopError):
            site.build(on_shard=stop)
        if mode == 0o1777:
            Bucket(site.url).remove(CLAIM)
        with user(1002):
            assert (site.build().resumed > 0) == (mode == 0o2770)


def test_a_finished_dataset_leaves_nothing_to_do(site: Site) -> None:
    first, again = site.build(), site.build()
    assert again.resumed == again.files
    assert (again.stored, again.bytes, again.losses) == (first.stored, first.bytes, first.losses)
    site.check_done()


@pytest.mark.parametrize("run", [SERIAL, UPDATE])
@pytest.mark.parametrize("damage", ["missing", "shortened"])
def test_a_dataset_damaged_in_the_store_is_not_called_done(
    damage: str, run: RunOptions, site: Site, tmp_path: Path
) -> None:
    site.build()
    fetch_dataset(site.url, tmp_path / "copy")
    Bucket(site.url).remove("shards/00001.lmdb")
    if damage == "shortened":
        Bucket(site.url).put("shards/00001.lmdb", b"short")
    words = r"is damaged: \S+/shards/00001\.lmdb (is missing|has 5 bytes where the manifest says \d+); presize"
    with pytest.raises(BuildError, match=words):
        site.build(run)
    assert CLAIM not in site.names()
    upload_dataset(tmp_path / "copy", site.url)
    assert site.build().stored == 19


def test_unreadable_files_are_tried_again(site: Site, tmp_path: Path) -> None:
    lost = min(site.photos.rglob("*.jpg"))
    with pytest.warns(PresizeWarning, match="1 file could not be read"):
        site.build(on_plan=lambda _: lost.rename(tmp_path / "lost"))
    before = site.names()
    (tmp_path / "lost").rename(lost)
    result = site.build()
    assert (result.stored, result.unreadable, result.files - result.resumed) == (19, 0, 1)
    assert site.names() != before
    fetch_dataset(site.url, tmp_path / "copy")
    assert len(Dataset(tmp_path / "copy")) == 19
    site.check_done()


@pytest.mark.parametrize("at", ["the claim", "the folder"])
def test_a_build_interrupted_during_its_cleanup_is_cleaned_up(
    at: str, site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patch, pytest.raises(StopError):
        if at == "the claim":
            patch.setattr(Bucket, "remove", lambda *words: stop(words) if CLAIM in words else None)
        else:
            patch.setattr("presize.builder.to_url.shutil.rmtree", lambda *_, **words: None if words else stop(words))
        site.build()
    assert [path for path in site.scratch.rglob("*") if path.is_file()]
    result = site.build()
    assert result.resumed == result.files
    site.check_done()


def test_an_update_uploads_only_new_files(site: Site, proxy: Proxy) -> None:
    site.build()
    site.build_locally()
    site.add()
    proxy.put.clear()
    assert site.build(UPDATE).changes.built == 1
    assert len(shards_put(proxy)) == 1
    expected = site.build_locally(UPDATE)
    assert site.fetched() == expected


@pytest.mark.parametrize("interrupted", [False, True])
def test_an_update_that_changes_every_image_is_uploaded(interrupted: bool, site: Site) -> None:
    options = BuildOptions(SMALL.image, shard_samples=1000)
    site.build(options=options)
    site.build_locally(options=options)
    for seed, path in enumerate(sorted(site.photos.rglob("*.jpg"))):
        put(path, seed)
    if interrupted:  # after the local copy is updated
        with pytest.raises(StopError):
            site.build(UPDATE, options, on_rest=stop)
    site.build(UPDATE, options)
    expected = site.build_locally(UPDATE, options)
    assert site.fetched() == expected
    site.check_done()


def test_impossible_builds_are_refused_before_anything_is_built_or_claimed(site: Site, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(OptionError, match=rf"^scratch: cannot write to {tmp_path}/file: Not a directory; choose"):
        site.build(scratch=tmp_path / "file")
    with pytest.raises(OptionError, match="layout: image files can only be written to a local folder"):
        site.build(options=BuildOptions(layout="folder"))
    site.build()
    other = BuildOptions(ImageOptions(sizes=(Size(24, 24),)), shard_samples=8)
    with pytest.raises(BuildError, match=r"holds a dataset that differs \(.*\); choose another OUT"):
        site.build(RunOptions(overwrite=True), other, on_shard=stop)
    with pytest.raises(BuildError, match=r"sizes was 64, is 24.*which --update cannot change"):
        site.build(UPDATE, other)
    assert CLAIM not in site.names()
    site.build(UPDATE, scratch=tmp_path / "elsewhere")


def test_an_update_that_would_replace_labels_is_refused_before_it_claims_anything(site: Site) -> None:
    unlabelled = SourceOptions(labels="none")
    site.build(samples=unlabelled)
    site.add()
    said = rf"^OUT {site.url} has no labels, and .*; give --labels none as .*, or choose another OUT$"
    with pytest.raises(BuildError, match=said):
        site.build(UPDATE)
    assert CLAIM not in site.names()
    assert site.build(UPDATE, samples=unlabelled).changes.built == 1
    site.check_done()


def test_a_store_that_fails_ends_the_build_with_a_one_line_error(site: Site, proxy: Proxy) -> None:
    with pytest.raises(RemoteError, match=r"Connection refused|error sending request|Generic S3 error"):
        site.build(on_plan=lambda _: proxy.close())


def test_the_command_prints_the_url_of_the_dataset(site: Site, presize: Callable[..., Ran]) -> None:
    words = ("build", site.photos, site.url, "--size", "32", "--scratch", site.scratch)
    ran = presize(*words)
    assert ran.code == 0, ran.err
    assert ran.out.startswith(f"{site.url}: 19 images, "), ran.out
    assert json.loads(presize(*words, "--json").out)["reports"] == [f"{site.url}/report.html"]


@pytest.mark.parametrize("then", ["the same", "no update"])
def test_an_update_whose_fetch_was_interrupted_resumes(
    then: str, site: Site, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    site.build()
    if then == "the same":
        site.add()
    with monkeypatch.context() as patch, pytest.raises(RemoteError, match="broke off"):
        download = module.download_file

        def broken(bucket: Bucket, file: DataFile, *others: Any) -> None:
            if file.file.startswith("shards/"):
                raise RemoteError("it broke off")
            download(bucket, file, *others)

        patch.setattr(module, "download_file", broken)
        site.build(UPDATE)
    result = site.build(UPDATE if then == "the same" else SERIAL)
    assert CLAIM not in site.names()
    assert fetch_dataset(site.url, tmp_path / "copy").samples == result.stored == (20 if then == "the same" else 19)


def test_an_update_of_a_derived_dataset_claims_nothing(site: Site, tmp_path: Path) -> None:
    site.build_locally(options=SMALL)
    derive_dataset([site.out], tmp_path / "some", DeriveOptions(only=[Dataset(site.out).path(0)]), SERIAL)
    upload_dataset(tmp_path / "some", site.url)
    there = site.names()
    with pytest.raises(BuildError, match=r"was derived from other datasets \(some of the samples\).*derive it again"):
        site.build(UPDATE, SMALL)
    assert site.names() == there


@pytest.mark.slow
def test_an_update_takes_its_options_from_the_url(site: Site, presize: Callable[..., Ran], tmp_path: Path) -> None:
    words = ("--scratch", site.scratch, "--jobs", "1", "--no-report")
    assert presize("build", site.photos, site.url, "--size=32", "--size=16", "--quality", "71", *words).code == 0
    site.add()
    ran = presize("build", site.photos, site.url, "--update", "--verify", *words)
    assert ran.code == 0, ran.err
    assert "built 1, removed 0, damaged 0" in ran.out
    fetch_dataset(f"{site.url}/16", tmp_path / "copy")
    manifest = read_manifest(tmp_path / "copy")
    assert (manifest.identity["options"]["image"]["quality"], manifest.samples) == (71, 20)
