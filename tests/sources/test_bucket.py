"""Photographs in a bucket or on a web server, listed and built like those of a folder."""

from __future__ import annotations

import re
import shutil
import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import nullcontext
from http.server import BaseHTTPRequestHandler, HTTPServer
from io import BytesIO
from pathlib import Path

import boto3
import pytest
from boto3.s3.transfer import TransferConfig

from builds import SERIAL, SMALL, files
from commands import Ran
from listings import make
from presize import build_dataset
from presize.builder.repair import repair_dataset
from presize.builder.run import build_part
from presize.errors import BuildError, PresizeError, PresizeWarning, RemoteError, SourceError
from presize.options import BuildOptions, BuildPart, RunOptions, SourceOptions
from presize.remote.bucket import Bucket
from presize.sources.contents import Source
from presize.sources.scan import scan
from presize.store.rejects_file import read_rejects
from processes import run_python
from servers import BUCKET, Proxy, cutting, flipping, http, point_to, s3, upload

SHARDS = BuildOptions(SMALL.image, shard_samples=16)
UPDATE = RunOptions(engine="sequential", report=False, update=True)


@pytest.fixture(scope="module")
def photos(raw: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Create a source with every special case of a listing; read only."""
    folder = shutil.copytree(raw, tmp_path_factory.mktemp("bucket") / "photos")
    first, second = sorted(path for path in folder.iterdir())[:2]
    some = sorted(first.glob("*.jpg"))
    names = "sub dir/a b.jpg|sub dir/ü%20+#?&=~.jpg|sub-dir/z.jpg|sub/deeper/y.jpg|sub0.jpg|sub/x.jpg"
    for name in names.split("|"):
        (first / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(some[0], first / name)
    make(folder, "beside.txt", f"{second.name}/notes.txt", ".git/a.jpg", ".git/b.jpg")
    make(first, ".DS_Store", ".thumbs/deep/c.jpg", "__MACOSX/d.jpg")
    return folder


@pytest.fixture(scope="module")
def server() -> Iterator[int]:
    """Run an S3 server with `photos`, and yield its port."""
    with pytest.MonkeyPatch.context() as patch, s3(patch) as port:
        yield port


@pytest.fixture(scope="module")
def url(server: int, photos: Path) -> str:  # noqa: ARG001
    """Return the URL of `photos`; read only."""
    upload(photos, "photos")
    return f"s3://{BUCKET}/photos"


@pytest.fixture
def prefix(server: int, photos: Path, tmp_path: Path) -> str:  # noqa: ARG001
    """Upload `photos` to a unique prefix of the bucket."""
    upload(photos, tmp_path.name)
    return tmp_path.name


@pytest.fixture
def proxy(server: int, monkeypatch: pytest.MonkeyPatch) -> Iterator[Proxy]:
    with cutting(server, most=None) as proxy:
        point_to(monkeypatch, proxy.port)
        yield proxy


@pytest.fixture(scope="module")
def local(photos: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Build the dataset of the folder; read only."""
    out = tmp_path_factory.mktemp("bucket") / "local"
    build_dataset(photos, out, SHARDS, SERIAL)
    return out


def put(name: str, content: bytes) -> None:
    boto3.client("s3").put_object(Bucket=BUCKET, Key=name, Body=content)


def remove(name: str) -> None:
    boto3.client("s3").delete_object(Bucket=BUCKET, Key=name)


def listed(source: Source) -> list[object]:
    """Return the parts of a listing that do not depend on the place of the files."""
    table = source.table.drop_columns("source_mtime_ns")
    return [table.to_pydict(), source.classes, source.hidden, source.outside, source.by_folder]


@pytest.mark.parametrize("options", [SourceOptions(), SourceOptions(labels="none")])
def test_a_bucket_is_listed_like_the_folder(url: str, photos: Path, options: SourceOptions) -> None:
    assert listed(scan(url, options)) == listed(scan(photos, options))


def test_credentials_are_those_of_the_current_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    keys: list[str] = []

    class Refusing(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            keys.append(self.headers["Authorization"].partition("Credential=")[2].partition("/")[0])
            self.send_error(403)

        def log_message(self, *_: object) -> None:
            pass

    with HTTPServer(("127.0.0.1", 0), Refusing) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        point_to(monkeypatch, server.server_port)
        for key in ("EXPIRED", "RENEWED"):
            monkeypatch.setenv("AWS_ACCESS_KEY_ID", key)
            hint = r"403 Forbidden; set AWS_ACCESS_KEY_ID and .* profiles are not read; .* AWS_SKIP_SIGNATURE=true$"
            with pytest.raises(PresizeError, match=hint):
                scan(f"s3://{BUCKET}/any")
        server.shutdown()
    assert list(dict.fromkeys(keys)) == ["EXPIRED", "RENEWED"]


FORKED = """
    import os, sys
    from presize.errors import RemoteError
    from presize.remote.bucket import Bucket
    Bucket("http://127.0.0.1:9/here")
    if os.fork() == 0:
        try:
            Bucket("http://127.0.0.1:9/there")
        except RemoteError as error:
            print(error, flush=True)
        os._exit(0)
    os.wait()
"""


def test_a_process_forked_from_one_that_used_a_store_gets_an_error() -> None:
    expected = "http://127.0.0.1:9/there: this process was forked after its parent used a store; start it with spawn"
    assert run_python(FORKED).strip() == expected


def test_objects_that_stand_for_folders_are_skipped(prefix: str, photos: Path, tmp_path: Path) -> None:
    first = min(path.name for path in photos.iterdir() if path.is_dir() and not path.name.startswith("."))
    for marker in ("", f"{first}/", f"{first}/sub/", f"{first}/sub/deeper/"):
        put(f"{prefix}/{marker}", b"")
    put(f"{prefix}/{first}/empty.jpg", b"")
    folder = shutil.copytree(photos, tmp_path / "photos")
    (folder / first / "empty.jpg").touch()
    source = f"s3://{BUCKET}/{prefix}"
    assert listed(scan(source)) == listed(scan(folder))


def assert_same_shards(one: Path, other: Path) -> None:
    assert files(one / "shards") == files(other / "shards")
    rejects = [[(r.path, r.reason) for r in read_rejects(out / "rejects.jsonl")] for out in (one, other)]
    assert rejects[0] == rejects[1]


def test_a_build_yields_the_same_shards_as_from_the_folder(url: str, local: Path, tmp_path: Path) -> None:
    build_dataset(url, tmp_path / "other", SHARDS, RunOptions(jobs=2))
    assert_same_shards(local, tmp_path / "other")
    assert len(files(local / "shards")) == 5


def labelled(folder: Path, paths: Iterable[str]) -> SourceOptions:
    lines = [f"{path},{k % 2}\n" for k, path in enumerate(paths)]
    (folder / "labels.csv").write_text("path,label\n" + "".join(lines))
    return SourceOptions(labels=folder / "labels.csv")


def test_a_web_server_is_read_with_a_label_table(photos: Path, tmp_path: Path) -> None:
    paths = sorted(path.relative_to(photos).as_posix() for path in photos.glob("[0-9]*/*.jpg"))[:9]
    options = labelled(tmp_path, paths)
    with http(photos) as port:
        build_dataset(f"http://127.0.0.1:{port}", tmp_path / "web", SHARDS, SERIAL, options)
    build_dataset(photos, tmp_path / "local", SHARDS, SERIAL, options)
    assert_same_shards(tmp_path / "web", tmp_path / "local")


def test_a_label_table_may_spell_objects_differently(url: str, photos: Path, tmp_path: Path) -> None:
    paths = sorted(path.relative_to(photos).as_posix() for path in photos.glob("[0-9]*/*.jpg"))[:5]
    spelled = [f"./{paths[0]}", f"/{paths[1]}", paths[2].replace("/", "\\"), f"{paths[3]} ", paths[4]]
    expected = listed(scan(photos, labelled(tmp_path, paths)))
    with http(photos) as port:
        assert listed(scan(f"http://127.0.0.1:{port}", labelled(tmp_path, spelled))) == expected
    stems = [path.removesuffix(".jpg") for path in spelled[:3]]
    assert listed(scan(url, labelled(tmp_path, [*stems, *spelled[3:]]))) == expected


def test_paths_of_a_table_that_are_not_objects_are_reported(prefix: str, photos: Path, tmp_path: Path) -> None:
    put(f"{prefix}/a\tb.jpg", b"x")
    with http(photos) as port:
        for source in (f"s3://{BUCKET}/{prefix}", f"http://127.0.0.1:{port}"):
            for path, said in (
                ("nowhere.jpg", rf"1 of its 2 paths cannot be used, the first: 'nowhere.jpg' does not .*'{source}'"),
                ("../secret", r"'\.\./secret' leads out of the source"),
                ("a\tb.jpg", r"the first: 'a\\tb.jpg' its name is not a path"),
            ):
                with pytest.raises(SourceError, match=said):
                    scan(source, labelled(tmp_path, [path, "beside.txt"]))


def test_objects_that_change_or_disappear_during_a_build_are_not_stored(
    prefix: str, photos: Path, tmp_path: Path
) -> None:
    first, second = sorted(path.relative_to(photos).as_posix() for path in photos.glob("[0-9]*/00*.jpg"))[:2]

    def meanwhile(_: object) -> None:
        put(f"{prefix}/{first}", b"another content")
        remove(f"{prefix}/{second}")

    with pytest.warns(PresizeWarning, match="2 files could not be read"):
        build_dataset(f"s3://{BUCKET}/{prefix}", tmp_path / "out", SHARDS, SERIAL, on_plan=meanwhile)
    reasons = {reject.path: reject.reason for reject in read_rejects(tmp_path / "out" / "rejects.jsonl")}
    assert {reasons[path].partition(":")[0] for path in (first, second)} == {"it changed during the build"}


def test_repeatedly_cut_connections_change_nothing(url: str, local: Path, proxy: Proxy, tmp_path: Path) -> None:
    assert len(scan(url).table) == 67
    proxy.most = 70_000
    build_dataset(url, tmp_path / "out", SHARDS, SERIAL)
    assert proxy.cut > 0
    assert_same_shards(tmp_path / "out", local)


@pytest.mark.slow
def test_a_store_that_disappears_is_a_one_line_error_and_the_build_resumes(
    url: str, local: Path, proxy: Proxy, tmp_path: Path
) -> None:
    def meanwhile(_: object) -> None:
        proxy.most = 0

    with pytest.raises(BuildError, match=rf"^{url}/\S.*; run again to resume$"):
        build_dataset(url, tmp_path / "out", SHARDS, SERIAL, on_shard=meanwhile)
    proxy.most = None
    assert build_dataset(url, tmp_path / "out", SHARDS, SERIAL).resumed > 0
    assert_same_shards(tmp_path / "out", local)


def test_an_update_reads_only_new_objects(prefix: str, photos: Path, proxy: Proxy, tmp_path: Path) -> None:
    url = f"s3://{BUCKET}/{prefix}"
    build_dataset(url, tmp_path / "out", SHARDS, SERIAL)
    some = next(photos.glob("[0-9]*/00*.jpg"))
    put(f"{prefix}/{some.parent.name}/new.jpg", some.read_bytes())
    proxy.asked.clear()
    result = build_dataset(url, tmp_path / "out", SHARDS, UPDATE)
    assert (result.changes.built, result.changes.removed) == (1, 0)
    assert [path.rpartition("/")[2] for path in proxy.asked if "list-type" not in path] == ["new.jpg"]


def test_a_damaged_shard_is_rebuilt_from_the_bucket(url: str, local: Path, tmp_path: Path) -> None:
    shutil.copytree(local, tmp_path / "out")
    shard = tmp_path / "out" / "shards" / "00001.lmdb"
    whole = shard.read_bytes()
    shard.write_bytes(bytes(len(whole)))
    repair_dataset(url, tmp_path / "out")
    assert shard.read_bytes() == whole


NO_PATHS = ["0-red-disc/../../c.jpg", "0-red-disc//b.jpg", "./c.jpg", "a/./c.jpg", "..", "a\tb.jpg", "c\x7f.jpg", "z//"]


def test_objects_whose_names_are_not_paths_are_rejected_by_name(
    prefix: str, photos: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in NO_PATHS:
        put(f"{prefix}/{name}", b"x")
    for unsigned in ("false", "true"):
        monkeypatch.setenv("AWS_SKIP_SIGNATURE", unsigned)
        source = scan(f"s3://{BUCKET}/{prefix}")
        assert listed(source) == listed(scan(photos))
        assert sorted(reject.path for reject in source.rejects) == sorted(name.removesuffix("/") for name in NO_PATHS)
        assert {reject.reason.partition(":")[0] for reject in source.rejects} == {"its name is not a path"}


@pytest.mark.usefixtures("server")
def test_a_name_that_is_not_a_path_on_a_later_page_loses_no_object(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MOTO_S3_DEFAULT_MAX_KEYS", "3")  # keys per page
    names = ["0.jpg", "1.jpg", "2.jpg", "3.jpg", "4 ü+%20.jpg", "4//b.jpg", "5.jpg", "6.jpg", "7.jpg"]
    for name in names:
        put(f"{tmp_path.name}/{name}", b"x")
    url = f"s3://{BUCKET}/{tmp_path.name}"
    assert [each.path for each in Bucket(url).list()] == names
    assert scan(url).table.column("path").to_pylist() == [name for name in names if "//" not in name]


def test_a_photograph_damaged_in_transit_is_read_again(url: str, local: Path, proxy: Proxy, tmp_path: Path) -> None:
    proxy.damage = flipping(5)
    build_dataset(url, tmp_path / "out", SHARDS, SERIAL)
    assert_same_shards(tmp_path / "out", local)


@pytest.mark.slow
def test_photographs_always_damaged_in_transit_are_not_stored_and_tried_again(
    url: str, local: Path, proxy: Proxy, tmp_path: Path
) -> None:
    proxy.damage = flipping(float("inf"))
    with pytest.raises(BuildError, match=r"the last: .*: its MD5 differs from its ETag in 6 reads: it is damaged in"):
        build_dataset(url, tmp_path / "out", SHARDS, SERIAL)
    proxy.damage = bytes
    build_dataset(url, tmp_path / "out", SHARDS, SERIAL)
    assert_same_shards(tmp_path / "out", local)


def of_kms(answer: bytes) -> bytes:
    """Return an answer of S3 with an ETag like those of objects encrypted by KMS."""
    return re.sub(rb'(etag: "[0-9a-f]{30})[0-9a-f]{2}"', rb'\g<1>0f"', answer, flags=re.IGNORECASE)


def test_photographs_encrypted_by_kms_are_read_twice_because_their_etags_are_not_md5s(
    photos: Path, proxy: Proxy, tmp_path: Path
) -> None:
    content, damage = next(photos.glob("[0-9]*/00*.jpg")).read_bytes(), flipping(1)
    url = f"s3://{BUCKET}/{tmp_path.name}"
    for name, encryption in (("kms", "aws:kms"), ("plain", "AES256")):
        boto3.client("s3").put_object(
            Bucket=BUCKET, Key=f"{tmp_path.name}/{name}", Body=content, ServerSideEncryption=encryption
        )
    proxy.damage = lambda answer: damage(of_kms(answer))
    assert Bucket(url).get("kms", len(content)) == content
    with pytest.raises(RemoteError, match=f"{url}/plain: its MD5 differs from its ETag"):
        Bucket(url).get("plain", len(content))


@pytest.mark.parametrize(("part_mib", "times", "is_read"), [(5, 0, True), (5, 1, True), (5, 99, False), (6, 1, True)])
def test_objects_written_in_parts_are_compared_with_their_etag_or_read_twice(
    part_mib: int, times: int, is_read: bool, server: int, proxy: Proxy, tmp_path: Path
) -> None:
    content, part = bytes(13 << 19) + b"\xff\xd9", part_mib << 20
    config = TransferConfig(multipart_threshold=part, multipart_chunksize=part, use_threads=False)
    client = boto3.client("s3", endpoint_url=f"http://127.0.0.1:{server}")
    client.upload_fileobj(BytesIO(content), BUCKET, f"{tmp_path.name}/parts", Config=config)
    bucket = Bucket(f"s3://{BUCKET}/{tmp_path.name}")
    assert bucket.get("parts", len(content)) == content
    proxy.damage = flipping(times)
    with nullcontext() if is_read else pytest.raises(RemoteError, match="it is damaged in the store or in transit"):
        assert bucket.get("parts", len(content)) == content


def test_an_empty_or_missing_prefix_is_a_one_line_error(url: str) -> None:
    with pytest.raises(
        SourceError, match=rf"^source '{url}/nothing' holds no files \(nothing at all\); expected image"
    ):
        scan(f"{url}/nothing")
    with pytest.raises(SourceError, match=r"^source s3://nowhere/raw: .*(404|NoSuchBucket)"):
        scan("s3://nowhere/raw")


def test_the_commands_of_the_page_build_from_a_bucket(
    url: str, presize: Callable[..., Ran], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    page = (Path(__file__).parents[2] / "docs" / "remote.md").read_text()
    commands = re.findall(r"^presize (build s3://.*)$", page, re.MULTILINE)
    assert commands
    for command in commands:
        ran = presize(*command.replace("BUCKET/PHOTOS", url.removeprefix("s3://")).split())
        assert ran.code == 0, ran.err


def test_parts_build_from_a_bucket(url: str, local: Path, tmp_path: Path) -> None:
    for part in (1, 2):
        build_part(url, tmp_path / "out", BuildPart(part, 2), SHARDS, SERIAL)
    build_dataset(url, tmp_path / "out", SHARDS, SERIAL)
    assert_same_shards(tmp_path / "out", local)
