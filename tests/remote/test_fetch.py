"""Datasets fetched from real servers: complete or not at all, and resumed after an interruption."""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from builds import BROKEN_PNG, SERIAL, SMALL, files, image_folder, put, write_photos
from commands import Ran, read_json
from presize import build_dataset
from presize.errors import BuildError, DatasetError, PresizeError, PresizeWarning, RemoteError
from presize.options import BuildOptions, ImageOptions, Size
from presize.remote import fetch as module
from presize.remote.bucket import BrokenOffError, exactly
from presize.remote.fetch import fetch_dataset
from presize.store.data_files import FETCHING, MANIFEST
from presize.store.dataset import Dataset
from presize.store.manifest import read_manifest
from presize.store.verify import VerifyResult, verify_dataset
from presize.system.files import temporary_name
from processes import run_command
from servers import URL, Proxy, StopError, flipping, http, point_to, silent_http, stop, upload
from users import NEEDS_ROOT, shared_folder, user, without_locks


def test_a_dataset_is_fetched_unchanged(dataset: Path, tmp_path: Path) -> None:
    came: list[int] = []
    planned: list[int] = []
    result = fetch_dataset(f"{URL}/", tmp_path / "copy", on_plan=planned.append, on_bytes=came.append)
    assert files(tmp_path / "copy") == files(dataset)
    assert (result.samples, result.bytes) == (56, sum(path.stat().st_size for path in dataset.rglob("*.*")))
    assert planned == [sum(came)] == [result.fetched]
    assert verify_dataset(tmp_path / "copy") == VerifyResult(56)
    assert fetch_dataset(URL, tmp_path / "copy").fetched == 0, "a complete copy leaves nothing to do"


def test_a_copy_works_without_locks(dataset: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    without_locks(monkeypatch)
    with pytest.warns(PresizeWarning, match=rf"^{tmp_path}/copy: its file system has no locks .* run one at a time$"):
        fetch_dataset(URL, tmp_path / "copy")
    assert files(tmp_path / "copy") == files(dataset)
    assert not (tmp_path / "copy" / ".presize.lock").exists()


@NEEDS_ROOT
def test_a_second_user_of_the_group_resumes_a_copy(dataset: Path) -> None:
    def stop_later(_: int) -> None:
        if (folder / "copy" / "shards").is_dir() and list((folder / "copy" / "shards").iterdir()):
            stop()

    with shared_folder() as folder:
        with user(1001), pytest.raises(StopError):
            fetch_dataset(URL, folder / "copy", on_bytes=stop_later)
        with user(1002):
            fetch_dataset(URL, folder / "copy")
        assert files(folder / "copy") == files(dataset)


def test_files_missing_from_a_finished_copy_are_fetched(dataset: Path, tmp_path: Path) -> None:
    copy = tmp_path / "copy"
    fetch_dataset(URL, copy)
    (copy / "report.html").unlink()  # removed on purpose
    expected = files(dataset)
    del expected["report.html"]
    damages: list[Callable[[Path], object]] = [Path.unlink, lambda lost: os.truncate(lost, 100)]
    for name in ("shards/00000.lmdb", "index.arrow"):
        for damage in damages:
            damage(copy / name)
            assert fetch_dataset(URL, copy).fetched >= (copy / name).stat().st_size
            assert files(copy) == expected
    shutil.rmtree(copy / "shards")
    fetch_dataset(URL, copy)
    assert files(copy) == expected


def test_a_web_server_without_ranges_sends_the_beginning_again(dataset: Path, tmp_path: Path) -> None:
    part = tmp_path / "copy" / ".index.arrow.part"
    part.parent.mkdir()
    shutil.copy(dataset / MANIFEST, tmp_path / "copy" / FETCHING)
    (tmp_path / "copy" / "shards").mkdir()
    part.write_bytes((dataset / "index.arrow").read_bytes()[:1000])
    with http(dataset.parent) as port:
        fetch_dataset(f"http://127.0.0.1:{port}/{dataset.name}", tmp_path / "copy")
    assert files(tmp_path / "copy") == files(dataset)


@pytest.mark.slow
def test_a_folder_dataset_is_fetched_with_its_images(
    raw: Path, url: str, prefix: str, proxy: Proxy, tmp_path: Path
) -> None:
    build_dataset(raw, tmp_path / "folder", BuildOptions(ImageOptions(sizes=(Size(64, 64),)), "folder"), SERIAL)
    upload(tmp_path / "folder", prefix)
    proxy.damage = flipping(3)
    result = fetch_dataset(url, tmp_path / "copy")
    (tmp_path / "copy" / MANIFEST).rename(tmp_path / "copy" / FETCHING)
    some = next((tmp_path / "copy").rglob("*.jpg"))
    some.write_bytes(b"half")
    fetch_dataset(url, tmp_path / "copy")
    assert files(tmp_path / "copy") == files(tmp_path / "folder")
    assert result.bytes == sum(path.stat().st_size for path in (tmp_path / "folder").rglob("*.*"))
    some.unlink()
    proxy.damage = flipping(float("inf"))
    with pytest.raises(RemoteError, match=rf"^{url}/\S+\.jpg: its MD5 differs from its ETag in 6 reads"):
        fetch_dataset(url, tmp_path / "copy")


def folder_dataset(photos: Path, out: Path) -> Path:
    build_dataset(photos, out, BuildOptions(SMALL.image, "folder"), SERIAL)
    return out


def test_a_copy_of_a_folder_has_the_folders_of_classes_without_images(tmp_path: Path) -> None:
    photos = write_photos(tmp_path / "photos")
    (photos / "birds").mkdir()
    (photos / "birds" / "broken.png").write_bytes(BROKEN_PNG)
    built = folder_dataset(photos, tmp_path / "folder")
    with http(tmp_path) as port:
        fetch_dataset(f"http://127.0.0.1:{port}/folder", tmp_path / "copy")
    assert image_folder(tmp_path / "copy")[0] == image_folder(built)[0] == ["birds", "cats", "dogs"]


def test_an_image_with_the_longest_possible_name_is_fetched(tmp_path: Path) -> None:
    photos = write_photos(tmp_path / "photos")
    for length in (245, 246, 251):  # without the suffix
        put(photos / "dogs" / f"{'x' * length}.png", seed=length)
    built = folder_dataset(photos, tmp_path / "folder")
    with http(tmp_path) as port:
        fetch_dataset(f"http://127.0.0.1:{port}/folder", tmp_path / "copy")
    assert files(tmp_path / "copy") == files(built)


def test_a_copy_resumes_at_the_byte_where_it_ended(dataset: Path, tmp_path: Path) -> None:
    came: list[int] = []

    def stop_at_the_second(nbytes: int) -> None:
        came.append(nbytes)
        if len(came) > 1:
            stop()

    with pytest.raises(StopError):
        fetch_dataset(URL, tmp_path / "copy", on_bytes=stop_at_the_second)
    unfinished = "copy holds an unfinished copy; run the same presize fetch again to resume$"
    with pytest.raises(DatasetError, match=unfinished):
        read_manifest(tmp_path / "copy")
    had = sum(
        path.stat().st_size for path in (tmp_path / "copy").rglob("*") if path.is_file() and path.name != FETCHING
    )
    assert had == came[0]
    result = fetch_dataset(URL, tmp_path / "copy")
    assert result.fetched == sum(file.bytes for file in read_manifest(dataset).files()) - had
    assert files(tmp_path / "copy") == files(dataset)


@pytest.mark.slow
@pytest.mark.parametrize("silent", ["manifest", "shards"])
def test_ctrl_c_ends_a_copy_from_a_server_that_does_not_answer(silent: str, dataset: Path, tmp_path: Path) -> None:
    """Without Ctrl-C, it would wait for an hour, and then six times."""
    program = "import presize.remote.bucket as it; it.SILENCE_S = 3600; from presize.cli import main; main()"
    out = tmp_path / "copy"
    with silent_http(dataset, silent) as (port, asked):
        command = [sys.executable, "-c", program, "fetch", f"http://127.0.0.1:{port}", str(out)]
        process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True, cwd="/")
        try:
            assert asked.wait(60)
            process.send_signal(signal.SIGINT)
            _, said = process.communicate(timeout=60)
        finally:
            process.kill()
    assert (process.returncode, said) == (130, "presize: error: interrupted; run again to resume\n")
    with http(dataset) as port:
        fetch_dataset(f"http://127.0.0.1:{port}", out)
    assert files(out) == files(dataset)


def test_a_connection_that_is_cut_repeatedly_resumes_at_its_position(
    dataset: Path, proxy: Proxy, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("presize.remote.bucket.CHUNK_BYTES", 1 << 12)
    proxy.most = 60_000
    result = fetch_dataset(URL, tmp_path / "copy")
    assert proxy.cut > 0
    assert files(tmp_path / "copy") == files(dataset)
    assert result.fetched == sum(file.bytes for file in read_manifest(dataset).files()), "no byte was sent twice"


@pytest.mark.slow
def test_a_server_that_always_breaks_off_is_a_one_line_error(
    proxy: Proxy, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("time.sleep", lambda _: None)

    def cut_from_now_on(_: int) -> None:
        proxy.most = 0

    with pytest.raises(RemoteError) as caught:
        fetch_dataset(URL, tmp_path / "copy", on_plan=cut_from_now_on)
    assert str(caught.value).startswith(f"{URL}/")
    assert "\n" not in str(caught.value)
    assert not (tmp_path / "copy" / MANIFEST).exists()


def test_a_file_has_at_most_the_expected_bytes() -> None:
    assert b"".join(exactly(5, [b"123", b"45678"], 3, "x")) == b"45678"
    with pytest.raises(BrokenOffError, match=r"^x ended 10 bytes too early$"):
        list(exactly(10, [], 0, "x"))
    with pytest.raises(RemoteError, match=r"^x has more bytes than the manifest says$"):
        list(exactly(10, [b"12345", b"678901"], 0, "x"))


@pytest.mark.parametrize("where", ["shards/00000.lmdb", "index.arrow"])
def test_a_file_that_differs_from_the_manifest_is_not_kept(
    where: str, dataset: Path, url: str, prefix: str, tmp_path: Path
) -> None:
    shutil.copytree(dataset, tmp_path / "damaged")
    content = bytearray((tmp_path / "damaged" / where).read_bytes())
    content[-1] ^= 1
    (tmp_path / "damaged" / where).write_bytes(content)
    upload(tmp_path / "damaged", prefix)
    with pytest.raises(RemoteError, match=f"{re.escape(url)}/{where}: its SHA-256 differs from the manifest"):
        fetch_dataset(url, tmp_path / "copy")
    assert not (tmp_path / "copy" / where).exists()
    upload(dataset, prefix)
    fetch_dataset(url, tmp_path / "copy")
    assert files(tmp_path / "copy") == files(dataset)


@pytest.mark.parametrize(
    ("url", "message"),
    [
        (f"{URL}2", f"{URL}2/{MANIFEST} does not exist; give the URL of the folder that has it"),
        ("s3://nobody/64", "the bucket of s3://nobody/64 does not exist (404 Not Found, NoSuchBucket)"),
        *((url, f"URL '{url}': expected one of s3://, http://, https://, gs://, az://, then a bucket or host")
          for url in ("s3://", "ftp://host/64", "/some/folder")),
    ],
)  # fmt: skip
def test_a_missing_dataset_is_a_one_line_error(url: str, message: str, tmp_path: Path) -> None:
    with pytest.raises(RemoteError) as caught:
        fetch_dataset(url, tmp_path / "copy")
    assert str(caught.value) == message
    assert not (tmp_path / "copy").exists()


def test_no_answer_missing_credentials_or_a_missing_library_are_one_line_errors(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    point_to(monkeypatch, 9)
    with pytest.raises(RemoteError, match=rf"^{URL}/{MANIFEST}: [^\n]+; check the host's name and the network$"):
        fetch_dataset(URL, tmp_path / "copy")
    monkeypatch.delenv("AWS_ACCESS_KEY_ID")
    with pytest.raises(RemoteError, match=r"^s3://data/sets/64: Missing AccessKeyId$"):
        fetch_dataset(URL, tmp_path / "copy")
    monkeypatch.setitem(sys.modules, "obstore", None)
    with pytest.raises(RemoteError, match=r'needs obstore, which is not installed: pip install "presize\[remote\]"'):
        fetch_dataset(URL, tmp_path / "copy")


@pytest.mark.parametrize(
    ("name", "kind", "message"),
    [
        (MANIFEST, DatasetError, "holds a dataset that differs from s3://data/sets/64; fetch to a new folder"),
        ("thesis.tex", BuildError, "holds 'thesis.tex' and is not a copy of a dataset; choose a new or empty folder"),
        (FETCHING, DatasetError, "the dataset at s3://data/sets/64 has changed since this copy was started; remove "),
        ("", BuildError, "File exists"),
    ],
)
def test_existing_files_in_the_folder_stay(name: str, kind: type[PresizeError], message: str, tmp_path: Path) -> None:
    path = tmp_path / "copy" / name
    path.parent.mkdir(exist_ok=True)
    path.write_text("{}")
    before = files(tmp_path)
    with pytest.raises(kind, match=message):
        fetch_dataset(URL, tmp_path / "copy")
    assert files(tmp_path) == before


def test_a_too_small_disk_is_reported_before_fetching(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    usage = shutil.disk_usage(tmp_path)
    monkeypatch.setattr(module.shutil, "disk_usage", lambda _: usage._replace(free=1000))
    with pytest.raises(BuildError, match=r"has 1 kB free and needs .* make room"):
        fetch_dataset(URL, tmp_path / "copy")


def test_the_command_fetches_and_reports_the_amount(presize: Callable[..., Ran], tmp_path: Path) -> None:
    ran = presize("fetch", URL, tmp_path / "copy", "--json")
    said = read_json(ran.out, "fetch")
    assert (ran.code, said["samples"], said["out"]) == (0, 56, str(tmp_path / "copy"))
    assert len(Dataset(tmp_path / "copy")) == 56
    again = presize("fetch", URL, tmp_path / "copy")
    assert "56 images" in again.out
    assert "0 bytes of it fetched" in again.out
    assert presize("fetch", "nowhere", tmp_path / "b").err.startswith(
        "presize: error: URL 'nowhere': expected one of s3://"
    )


def test_a_copy_that_was_killed_while_it_began_is_begun_again(dataset: Path, tmp_path: Path) -> None:
    (tmp_path / "copy").mkdir()
    temporary_name(tmp_path / "copy" / FETCHING).write_bytes(b"{")
    fetch_dataset(URL, tmp_path / "copy")
    assert files(tmp_path / "copy") == files(dataset)


def test_a_killed_copy_resumes(dataset: Path, tmp_path: Path) -> None:
    command = [str(Path(sys.executable).with_name("presize")), "fetch", URL, str(tmp_path / "copy")]
    process = subprocess.Popen(command)
    while process.poll() is None and not (tmp_path / "copy" / FETCHING).exists():
        pass
    process.kill()
    process.wait()
    assert run_command(command).returncode == 0
    assert files(tmp_path / "copy") == files(dataset)
