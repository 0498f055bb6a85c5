"""Datasets copied to real servers: complete or not at all, one per URL, and resumed after an interruption."""

from __future__ import annotations

import getpass
import os
import platform
import re
import shutil
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from builds import SERIAL, SMALL, files, write_photos
from commands import Ran, read_json
from presize import build_dataset, build_to_url, repair_dataset
from presize.errors import DatasetError, PresizeError, RemoteError
from presize.options import KEEP, BuildOptions, ImageOptions, Size
from presize.remote.bucket import Bucket
from presize.remote.fetch import fetch_dataset
from presize.remote.upload import CLAIM, upload_dataset
from presize.sources.sample import SampleOptions, make_samples
from presize.store.data_files import MANIFEST
from presize.store.dataset import Dataset
from presize.store.manifest import read_manifest
from servers import SHARDS, UPDATE, Proxy, StopError, fetched, names
from tampering import change_records


@dataclass
class Source:
    """A folder of photographs, and its dataset."""

    photos: Path
    out: Path

    def build(self, options: BuildOptions = SHARDS) -> Path:
        build_dataset(self.photos, self.out, options, SERIAL)
        return self.out

    def update(self, options: BuildOptions = SHARDS) -> Path:
        """Add a photograph, and update the dataset."""
        some = min(self.photos.rglob("*.jpg"))
        shutil.copy(some, some.with_name(f"new-{some.name}"))
        build_dataset(self.photos, self.out, options, UPDATE)
        return self.out


@pytest.fixture
def source(raw: Path, tmp_path: Path) -> Source:
    return Source(shutil.copytree(raw, tmp_path / "photos"), tmp_path / "set")


OTHER = BuildOptions(ImageOptions((Size(32, 32),)))
ONE_SHARD = BuildOptions(SMALL.image, shard_samples=1000)


def stopping_after(nbytes: int) -> Callable[[int], None]:
    left = [nbytes]

    def stop(passed: int) -> None:
        left[0] -= passed
        if left[0] < 0:
            raise StopError

    return stop


def test_a_dataset_replaced_while_it_is_copied_is_not_called_damaged(raw: Path, url: str, tmp_path: Path) -> None:
    build_dataset(raw, tmp_path / "out", SHARDS, SERIAL)

    def replace_it(_: int) -> None:
        build_dataset(raw, tmp_path / "out", SHARDS, replace(SERIAL, overwrite=True))

    with pytest.raises(DatasetError, match="out was updated, replaced or removed since it was opened"):
        upload_dataset(tmp_path / "out", url, on_plan=replace_it)
    assert MANIFEST not in names(url)


def test_a_dataset_arrives_unchanged(dataset: Path, url: str, tmp_path: Path) -> None:
    gone: list[int] = []
    planned: list[int] = []
    result = upload_dataset(dataset, f"{url}/", on_plan=planned.append, on_bytes=gone.append)
    assert fetched(url, tmp_path / "copy") == files(dataset)
    assert planned == [sum(gone)] == [result.uploaded]
    assert (result.url, result.samples) == (url, 56)
    assert CLAIM not in names(url)
    assert upload_dataset(dataset, url).uploaded == 0


@pytest.mark.parametrize("name", ["run#2/set", "run?2/set"])
def test_a_url_does_not_end_at_a_character_that_names_in_a_bucket_may_contain(
    name: str, dataset: Path, url: str, tmp_path: Path
) -> None:
    upload_dataset(dataset, f"{url}/{name}")
    assert {found.rpartition("shards/")[0].rpartition("/")[0] for found in names(url) if "shards/" in found} == {name}
    assert fetched(f"{url}/{name}", tmp_path / "copy") == files(dataset)


def put(url: str, name: str, content: bytes, metadata: dict[str, str]) -> None:
    client("put_object", url, name, Body=content, Metadata=metadata)


def client(call: str, url: str, name: str, **values: object) -> Any:
    """Change an object of a dataset, as another program could."""
    import boto3

    bucket, _, prefix = url.removeprefix("s3://").partition("/")
    s3 = boto3.client("s3", endpoint_url=os.environ["AWS_ENDPOINT_URL"])
    return getattr(s3, call)(Bucket=bucket, Key=f"{prefix}/{name}", **values)


@pytest.mark.parametrize(
    ("name", "damages"),
    [
        ("shards/00000.lmdb", ["deleted", "shortened", "other bytes", "other bytes, with metadata", "no metadata"]),
        ("rejects.jsonl", ["other bytes, with metadata"]),
    ],
)
def test_missing_or_different_files_of_a_copy_are_sent_again(
    name: str, damages: list[str], dataset: Path, url: str, tmp_path: Path
) -> None:
    upload_dataset(dataset, url)
    there = client("get_object", url, name)
    content, metadata = there["Body"].read(), there["Metadata"]
    for damage in damages:
        if damage == "deleted":
            client("delete_object", url, name)
        elif damage == "no metadata":
            put(url, name, content, {})
        else:
            other = content[:-1] if damage == "shortened" else bytes([content[0] ^ 1]) + content[1:]
            put(url, name, other, metadata if damage.endswith("with metadata") else {})
        result = upload_dataset(dataset, url)
        assert (result.sent_again, result.uploaded) == ((name,), len(content)), damage
        assert client("head_object", url, name)["Metadata"] == metadata
    assert fetched(url, tmp_path / "copy") == files(dataset)
    assert upload_dataset(dataset, url).sent_again == ()


def test_files_of_several_parts_are_compared(url: str, tmp_path: Path) -> None:
    noise = np.random.default_rng(0).integers(0, 256, (1400, 1400, 3), np.uint8)
    (tmp_path / "photos").mkdir()
    Image.fromarray(noise).save(tmp_path / "photos" / "a.png", compress_level=0)
    build_dataset(
        tmp_path / "photos", tmp_path / "set", BuildOptions(ImageOptions(sizes=(KEEP,), format="png")), SERIAL
    )
    upload_dataset(tmp_path / "set", url)
    assert client("head_object", url, "shards/00000.lmdb")["ETag"].endswith('-2"')
    assert upload_dataset(tmp_path / "set", url).sent_again == ()


def test_a_copy_without_its_manifest_is_completed(dataset: Path, url: str, tmp_path: Path) -> None:
    upload_dataset(dataset, url)
    there = client("get_object", url, "shards/00001.lmdb")
    put(url, "shards/00001.lmdb", bytes(there["ContentLength"]), there["Metadata"])
    for name in (MANIFEST, "shards/00000.lmdb"):
        client("delete_object", url, name)
    sent = sum((dataset / "shards" / name).stat().st_size for name in ("00000.lmdb", "00001.lmdb"))
    result = upload_dataset(dataset, url)
    assert (result.sent_again, result.uploaded) == ((), sent)
    assert fetched(url, tmp_path / "copy") == files(dataset)


@pytest.mark.parametrize("name", ["report.html", "index-1.arrow"])
def test_files_of_other_programs_are_neither_replaced_nor_removed(
    name: str, dataset: Path, raw: Path, url: str, tmp_path: Path
) -> None:
    put(url, name, b"mine", {})
    said = f"^{re.escape(url)} holds '{name}', which presize did not write; choose another URL, or remove it$"
    with pytest.raises(RemoteError, match=said):
        upload_dataset(dataset, url)
    with pytest.raises(RemoteError, match=said):
        build_to_url(raw, url, SHARDS, SERIAL, scratch=tmp_path)
    assert names(url) == [name], "a refused copy claims nothing"
    assert client("get_object", url, name)["Body"].read() == b"mine"


@pytest.mark.parametrize("content", [b"", b'{"format": "presize", "vers'])
def test_a_damaged_manifest_among_the_files_of_a_dataset_is_sent_again(content: bytes, dataset: Path, url: str) -> None:
    upload_dataset(dataset, url)
    put(url, MANIFEST, content, {})
    assert upload_dataset(dataset, url).sent_again == (MANIFEST,)
    assert client("get_object", url, MANIFEST)["Body"].read() == (dataset / MANIFEST).read_bytes()


@pytest.mark.parametrize("other", ["no files", "index-1.arrow"])
def test_a_damaged_manifest_that_may_belong_to_another_dataset_is_left_alone(
    other: str, dataset: Path, url: str
) -> None:
    if other != "no files":
        upload_dataset(dataset, url)
        put(url, other, b"of a newer state", {})
    put(url, MANIFEST, b"{}", {})
    with pytest.raises(RemoteError, match=re.escape("remove the objects with the store's own tools")):
        upload_dataset(dataset, url)
    assert client("get_object", url, MANIFEST)["Body"].read() == b"{}"


def test_an_interrupted_copy_is_not_a_dataset_and_resumes(source: Source, url: str, tmp_path: Path) -> None:
    whole = sum(file.bytes for file in read_manifest(source.build()).files())
    with pytest.raises(StopError):
        upload_dataset(source.out, url, on_bytes=stopping_after(whole * 3 // 4))
    with pytest.raises(RemoteError, match=r"manifest\.json does not exist"):
        fetch_dataset(url, tmp_path / "copy")
    assert upload_dataset(source.out, url).uploaded < whole
    assert fetched(url, tmp_path / "copy") == files(source.out)


def test_a_dropped_connection_is_a_one_line_error_and_the_copy_resumes(
    dataset: Path, url: str, proxy: Proxy, tmp_path: Path
) -> None:
    proxy.most_asked = 100_000
    with pytest.raises(RemoteError, match=rf"^{url}/\S+: HTTP error"):
        upload_dataset(dataset, url)
    assert proxy.cut > 0
    proxy.most_asked = None
    upload_dataset(dataset, url)
    assert fetched(url, tmp_path / "copy") == files(dataset)


@pytest.mark.parametrize(
    ("content", "message", "unwritten"),
    [
        (
            b"?",
            r"00000\.lmdb: its SHA-256 differs from the manifest; presize repair .*; in a copy from a URL,",
            "shards/00000.lmdb",
        ),
        (None, r"00000\.lmdb: No such file", "index.arrow"),  # before any file is copied
    ],
)
def test_a_damaged_or_missing_file_is_not_copied(
    content: bytes | None, message: str, unwritten: str, dataset: Path, url: str, tmp_path: Path
) -> None:
    root = shutil.copytree(dataset, tmp_path / "set")
    shard = root / "shards" / "00000.lmdb"
    if content:
        shard.write_bytes(shard.read_bytes()[:-1] + content)
    else:
        shard.unlink()
    with pytest.raises(DatasetError, match=message):
        upload_dataset(root, url)
    assert Bucket(url).head(unwritten) is None


def test_an_updated_dataset_replaces_the_old_one(source: Source, url: str, tmp_path: Path) -> None:
    old = upload_dataset(source.build(), url)
    before = {file.file for file in read_manifest(source.out).files()}
    shared = read_manifest(source.update()).shards[0].file
    there = client("get_object", url, shared)
    put(url, shared, bytes(there["ContentLength"]), there["Metadata"])  # files of both datasets are compared, too
    assert upload_dataset(source.out, url).uploaded < old.uploaded / 2
    assert fetched(url, tmp_path / "copy") == files(source.out)
    gone = before - {file.file for file in read_manifest(source.out).files()}
    assert gone
    assert not gone & {*names(url)}


def test_an_update_that_keeps_no_shard_is_uploaded(source: Source, url: str, tmp_path: Path) -> None:
    upload_dataset(source.build(ONE_SHARD), url)
    before = read_manifest(source.out).shards
    (source.photos / Dataset(source.out).path(0)).unlink()
    build_dataset(source.photos, source.out, ONE_SHARD, UPDATE)
    assert not {*before} & {*read_manifest(source.out).shards}
    upload_dataset(source.out, url)
    assert fetched(url, tmp_path / "copy") == files(source.out)


def test_a_repaired_only_shard_is_uploaded(source: Source, url: str, tmp_path: Path) -> None:
    change_records(source.build(ONE_SHARD), lambda _shard, _row, value: value)  # the rebuilt shard gets another SHA-256
    upload_dataset(source.out, url)
    (shard,) = read_manifest(source.out).shards
    (source.out / shard.file).unlink()
    assert repair_dataset(source.photos, source.out, jobs=1).problems == ()
    assert read_manifest(source.out).shards != (shard,)
    upload_dataset(source.out, url)
    assert fetched(url, tmp_path / "copy") == files(source.out)


def test_other_images_with_the_same_options_do_not_replace_a_dataset(source: Source, url: str, tmp_path: Path) -> None:
    upload_dataset(source.build(ONE_SHARD), url)
    before = files(source.out)
    other = Source(write_photos(tmp_path / "others"), tmp_path / "other")
    other.build(ONE_SHARD)
    (other.photos / "dogs" / "00.png").unlink()
    build_dataset(other.photos, other.out, ONE_SHARD, UPDATE)  # none of its files has the name of one at the URL
    with pytest.raises(RemoteError, match=f"^{re.escape(url)} holds another dataset; choose another URL$"):
        upload_dataset(other.out, url)
    assert fetched(url, tmp_path / "copy") == before


@pytest.mark.parametrize("which", ["another", "an older state", "another of a later generation"])
def test_a_dataset_in_the_store_is_only_replaced_by_its_next_state(
    which: str, dataset: Path, source: Source, url: str, tmp_path: Path
) -> None:
    there, message = dataset, "another dataset; choose another URL$"
    if which == "an older state":
        new = Path(shutil.copytree(source.build(), tmp_path / "old"))
        there, message = source.update(), "a newer state of this dataset; presize fetch downloads it"
    else:
        new = source.build(OTHER)
        if which == "another of a later generation":
            source.update(OTHER)
    upload_dataset(there, url)
    with pytest.raises(RemoteError, match=f"^{re.escape(url)} holds {message}"):
        upload_dataset(new, url)
    assert CLAIM not in names(url), "a refused copy claims nothing"
    assert fetched(url, tmp_path / "copy") == files(there)


def test_leftovers_of_a_replaced_dataset_are_removed_by_the_next_copy(source: Source, url: str) -> None:
    upload_dataset(source.build(), url)
    before = names(url)
    for name in ("shards/00000-7.lmdb", "index-7.arrow", "notes.txt"):
        assert Bucket(url).put(name, b"left")
    upload_dataset(source.out, url)
    assert names(url) == sorted([*before, "notes.txt"])


def test_two_copies_of_different_datasets_to_a_url_do_not_mix(
    dataset: Path, source: Source, url: str, tmp_path: Path
) -> None:
    with pytest.raises(StopError):
        upload_dataset(source.build(OTHER), url, on_bytes=stopping_after(0))
    begun = client("head_object", url, CLAIM)["LastModified"]
    message = (
        f"another dataset is being copied to {url}, or its copy was interrupted; choose another URL, or remove "
        f"{url}/{CLAIM} (written by {getpass.getuser()}@{platform.node()}, process {os.getpid()}, "
        f"{begun:%Y-%m-%d %H:%M} UTC) if no copy is running: aws s3 rm {url}/{CLAIM}"
    )
    with pytest.raises(RemoteError, match=f"^{re.escape(message)}$"):
        upload_dataset(dataset, url)
    Bucket(url).remove(CLAIM)
    upload_dataset(dataset, url)
    assert fetched(url, tmp_path / "copy") == files(dataset)


@pytest.mark.parametrize(
    "claim", [b"[]", b"[" * 60_000, b"\xff", b'{"by": "\\u001b[31m' + b"x" * 9000 + b'"}'], ids=list("abcd")
)
def test_a_claim_of_another_program_is_no_traceback(claim: bytes, dataset: Path, url: str) -> None:
    put(url, CLAIM, claim, {})
    with pytest.raises(RemoteError, match=r"or remove .* \(written .* UTC\) if no copy is running") as caught:
        upload_dataset(dataset, url)
    assert str(caught.value).isprintable() and len(str(caught.value)) < 900


def test_concurrent_copies_to_a_url_succeed_if_equal_and_are_left_alone_if_not(
    dataset: Path, url: str, tmp_path: Path
) -> None:
    second = []

    def meanwhile(_: int) -> None:
        if not second:
            second.append(upload_dataset(dataset, url))

    upload_dataset(dataset, url, on_plan=meanwhile)
    assert second
    assert fetched(url, tmp_path / "copy") == files(dataset)
    with pytest.raises(RemoteError, match="another dataset was published there in the meantime; choose another URL"):
        upload_dataset(dataset, f"{url}-2", on_plan=lambda _: Bucket(f"{url}-2").put(MANIFEST, b"another"))
    assert Bucket(f"{url}-2").get(MANIFEST, 7) == b"another"


def test_a_store_that_overwrites_is_refused(dataset: Path, url: str, proxy: Proxy) -> None:
    proxy.left_out = "if-none-match"
    with pytest.raises(RemoteError, match=r"this store overwrites existing objects despite If-None-Match"):
        upload_dataset(dataset, url)
    assert names(url) == []


def test_impossible_copies_are_one_line_errors(dataset: Path, raw: Path, url: str, tmp_path: Path) -> None:
    build_dataset(raw, tmp_path / "folder", BuildOptions(SMALL.image, "folder"), SERIAL)
    web, nowhere = "http://127.0.0.1:1/x", "s3://nowhere/set"
    table: list[tuple[Path, str, type[PresizeError], str]] = [
        (dataset, nowhere, RemoteError, rf"^the bucket of {nowhere} does not exist \(404 Not Found, NoSuchBucket\)$"),
        (dataset, web, RemoteError, f"^{web}: cannot write to a web server; give s3://, gs:// or "),
        (tmp_path / "folder", url, DatasetError, "is a folder of image files; copy it with the store's own tools"),
        (tmp_path / "none", url, DatasetError, "does not exist"),
    ]
    for root, place, kind, message in table:
        with pytest.raises(kind, match=message):
            upload_dataset(root, place)


def test_the_command_uploads_and_reports_the_amount(presize: Callable[..., Ran], url: str, tmp_path: Path) -> None:
    make_samples(tmp_path / "photos", SampleOptions(images=4, classes=2, long_side=64))
    build_dataset(tmp_path / "photos", tmp_path / "set", SMALL, SERIAL)
    ran = presize("upload", tmp_path / "set", url)
    assert re.fullmatch(rf"{url}: 4 images, [\d.]+ kB, [\d.]+ kB of it uploaded in .*\n", ran.out), ran
    found = read_json(presize("upload", tmp_path / "set", url, "--json").out, "upload")
    assert (found["samples"], found["uploaded"], found["sent_again"], found["url"]) == (4, 0, [], url)
    client("delete_object", url, "index.arrow")
    ran = presize("upload", tmp_path / "set", url)
    assert ran.out.endswith("\n  uploaded again because they were missing or different: index.arrow\n"), ran


def test_the_commands_of_the_quick_start_upload_and_fetch(
    dataset: Path, presize: Callable[..., Ran], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shutil.copytree(dataset, tmp_path / "OUT")
    monkeypatch.chdir(tmp_path)
    page = (Path(__file__).parents[2] / "docs" / "quickstart.md").read_text()
    for command in re.findall(r"^\$ presize ((?:upload|fetch) .*)$", page, re.MULTILINE):
        assert presize(*command.split()).code == 0
    assert files(tmp_path / "COPY") == files(dataset)
