"""The manifest and the index are validated: every fault is one clear error."""

from __future__ import annotations

import hashlib
import json
import os
import random
import re
import shutil
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from effort import EFFORT
from presize.errors import DatasetError
from presize.store.data_files import is_data_file
from presize.store.dataset import Dataset
from presize.store.manifest import classes_digest, digest_of, publish_manifest, read_manifest, sealed, version_of
from tampering import (
    change_manifest,
    manifest_values,
)


@pytest.fixture
def damaged(dataset: Path, tmp_path: Path) -> Path:
    """Copy a dataset's manifest and index, to be modified."""
    for name in ("manifest.json", "index.arrow"):
        shutil.copy(dataset / name, tmp_path)
    return tmp_path


# --- manifest.json ---


def test_a_manifest_reads_back_as_published(dataset: Path, tmp_path: Path) -> None:
    manifest = read_manifest(dataset)
    publish_manifest(tmp_path, manifest)
    assert read_manifest(tmp_path) == manifest
    assert (tmp_path / "manifest.json").read_bytes() == (dataset / "manifest.json").read_bytes()
    classes = ("Käse", "犬", *(manifest.classes or ())[2:])
    identity = manifest.identity | {"classes": classes_digest(classes)}
    publish_manifest(tmp_path, replace(manifest, classes=classes, identity=identity, digest=digest_of(identity)))
    assert '"Käse"' in (tmp_path / "manifest.json").read_text("utf-8")
    assert read_manifest(tmp_path).classes == classes


def test_a_manifest_may_have_unknown_fields_and_counts_of_63_bits(damaged: Path) -> None:
    more = {"note": "added by hand", "counts": {str(i): i for i in range(500)}, "bytes": 2**63 - 1}
    change_manifest(damaged, lambda values: values.update(more))
    assert (read_manifest(damaged).samples, read_manifest(damaged).bytes) == (56, 2**63 - 1)


def test_the_bytes_of_a_manifest_and_its_hash_never_change() -> None:
    sealed_bytes = (Path(__file__).parents[1] / "fixtures" / "format-1" / "manifest.json").read_bytes()
    values = json.loads(sealed_bytes)
    unsealed = sealed_bytes[: sealed_bytes.rindex(b',\n "sha256"')] + b"\n}\n"
    assert values.pop("sha256") == hashlib.sha256(unsealed).hexdigest()
    assert sealed(values) == sealed_bytes


def test_the_version_is_2_if_readers_of_1_would_err(dataset: Path) -> None:
    rgb: dict[str, Any] = {"color": "rgb"}
    assert version_of({"image": rgb}) == version_of({"image": {"color": "keep", "depth": 8}}) == 1
    assert version_of({"image": rgb}, ("mask",)) == version_of({"image": rgb | {"depth": 16}}) == 2
    assert version_of({"image": {"color": "rgba"}}) == 2
    values = manifest_values(dataset)
    assert values["version"] == 1
    assert "companions" not in values


@pytest.mark.parametrize(
    ("color", "depth", "channels", "plain"),
    [
        ("rgb", 8, 3, True),
        ("gray", 8, 1, True),
        ("rgba", 8, 4, False),
        ("gray", 16, 1, False),
    ],
)
def test_color_and_depth_determine_channels_and_the_plain_form(
    color: str, depth: int, channels: int, plain: bool, damaged: Path
) -> None:
    change_manifest(damaged, lambda values: values["identity"]["options"]["image"].update(color=color, depth=depth))
    manifest = read_manifest(damaged)
    assert manifest.channels == channels
    with nullcontext() if plain else pytest.raises(DatasetError, match=r"^bench trains on 8-bit RGB, but this dataset"):
        manifest.check_plain("bench")


def test_every_flipped_bit_of_a_manifest_is_detected(damaged: Path) -> None:
    content = (damaged / "manifest.json").read_bytes()
    name_of_hash = range(8 * (content.rindex(b'"sha256"') - 3), 8 * len(content))
    bits = random.Random(0).sample(range(name_of_hash.start), min(name_of_hash.start, 500 * EFFORT))
    read_manifest(damaged)
    for bit in [*bits, *name_of_hash[:: max(1, 8 // EFFORT)]]:
        changed = bytearray(content)
        changed[bit >> 3] ^= 1 << (bit & 7)
        (damaged / "manifest.json").write_bytes(changed)
        with pytest.raises(DatasetError):
            read_manifest(damaged)
            pytest.fail(f"byte {bit >> 3}, bit {bit & 7}")


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda values: values["identity"]["options"]["image"].update(quality=7), "its digest is not the SHA-256 of"),
        (lambda values: values.update(digest="0" * 64), "its digest is not the SHA-256 of its identity"),
        (lambda values: values.update(classes=["cat", "dog", "elk"]), "its classes do not match its identity"),
        (lambda values: values.update(classes=None), "its classes do not match its identity"),
    ],
)  # fmt: skip
def test_a_manifest_with_a_correct_hash_must_be_consistent(
    damaged: Path, change: Callable[[dict[str, Any]], object], words: str
) -> None:
    values = manifest_values(damaged)
    del values["sha256"]
    change(values)
    (damaged / "manifest.json").write_bytes(sealed(values))
    with pytest.raises(DatasetError, match=words):
        read_manifest(damaged)


@pytest.mark.parametrize("digits", ["", "0" * 64, None, 5, ["0"]], ids=repr)
def test_a_wrong_hash_of_any_type_is_detected(damaged: Path, digits: object) -> None:
    values = manifest_values(damaged) | {"sha256": digits}
    (damaged / "manifest.json").write_text(json.dumps(values, indent=1, ensure_ascii=False) + "\n", "utf-8")
    with pytest.raises(DatasetError, match="is damaged: its SHA-256 differs from its content; copy or build"):
        read_manifest(damaged)


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b"", "is damaged: Expecting value"),
        (b"\xff\xfe\xfd", "is damaged: "),
        (b"[" * 100_000, "is damaged: "),
        (b"9" * 10_000, "is damaged: "),
        (b"[]", "is not a presize manifest"),
        (b'{"format": "webdataset"}', "is not a presize manifest: another program wrote it"),
        (b'{"format": "presize"}', "is damaged: it has no 'version'"),
        (b'{"format": "presize", "version": 1, "version": 1, "sha256": ""}', "is damaged: its SHA-256 differs"),
        (
            b'{"format": "presize", "version": 4}',
            "has format version 4; this version of presize reads up to 3: upgrade presize",
        ),
        (b'{"format": "presize", "version": true}', "is damaged: version: expected a count, got True"),
        (b'{"format": "presize", "version": 1.0}', "is damaged: version: expected a count, got 1.0"),
        (b'{"format": "presize", "version": "2"}', "is damaged: version: expected a count, got '2'"),
    ],
    ids=lambda value: repr(value)[:40] if isinstance(value, bytes) else None,
)
def test_content_that_is_not_a_manifest_is_refused(tmp_path: Path, content: bytes, words: str) -> None:
    (tmp_path / "manifest.json").write_bytes(content)
    with pytest.raises(DatasetError) as caught:
        read_manifest(tmp_path)
    assert words in str(caught.value)
    assert str(tmp_path) in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_url_is_not_a_folder() -> None:
    with pytest.raises(
        DatasetError, match=r"^s3://data/64 is not a folder; copy a dataset from a URL with presize fetch"
    ):
        read_manifest("s3://data/64")


BUILD_AGAIN = "holds an unfinished build; run the same presize build again to resume"


@pytest.mark.parametrize(
    ("files", "words"),
    [
        ([], "does not exist; expected a folder made by presize build"),
        (["OUT"], "is a file; expected a folder made by presize build"),
        (["OUT/"], "is not a presize dataset: it has no manifest.json; presize build makes a dataset from a folder of"),
        (["OUT/.presize.json"], BUILD_AGAIN),
        (["OUT/", ".presize.json"], BUILD_AGAIN),  # one size of several
        (["OUT/256/manifest.json", "OUT/160/manifest.json"], "holds the datasets 160, 256; open one of them, such as "),
        (["OUT/manifest.json/"], "Is a directory"),
    ],
    ids=str,
)
def test_without_a_dataset_the_error_says_what_was_found(files: list[str], words: str, tmp_path: Path) -> None:
    for name in files:
        path = tmp_path / name
        (path if name.endswith("/") else path.parent).mkdir(parents=True, exist_ok=True)
        if not name.endswith("/"):
            path.touch()
    with pytest.raises(DatasetError, match=rf"^{tmp_path}/OUT.*{re.escape(words)}"):
        read_manifest(tmp_path / "OUT")


def test_cyclic_links_are_not_a_dataset(tmp_path: Path) -> None:
    (tmp_path / "OUT").symlink_to(tmp_path / "OUT")
    with pytest.raises(DatasetError, match=r"OUT/manifest\.json: Too many levels of symbolic links"):
        read_manifest(tmp_path / "OUT")


def test_names_of_folders_need_not_be_utf8(dataset: Path, tmp_path: Path) -> None:
    folder = Path(os.fsdecode(os.fsencode(tmp_path) + b"/caf\xe9"))
    shutil.copytree(dataset, folder)
    data = Dataset(folder)
    assert data.value(0) == Dataset(dataset).value(0)


OURS = [
    "index.arrow", "index-12.arrow", "rejects.jsonl", "report.html", "report-2.html", "shards/00000.lmdb",
    "shards/123456-3.lmdb", "shards/mask-00000.lmdb",
]  # fmt: skip
NOT_OURS = [
    "my-report.html", "manifest.json", "shards/0.lmdb", "shards/00000.lmdb.bak", "my-index.arrow", "photos/index.arrow",
    "index-.arrow",
]  # fmt: skip


def test_only_names_given_by_presize_are_its_files() -> None:
    assert [name for name in (*OURS, *NOT_OURS) if is_data_file(name)] == OURS
