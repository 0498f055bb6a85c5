"""The codec fingerprint: changes of the output of LMDB and Arrow are detected."""

from __future__ import annotations

import importlib.metadata
import os
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from builds import SMALL, put
from presize.builder import fingerprint
from presize.builder.run import plan_build
from presize.errors import BuildError
from presize.options import Layout
from presize.store import index, shard


@pytest.fixture(autouse=True)
def forget() -> Iterator[None]:
    fingerprint.container_digest.cache_clear()
    yield
    fingerprint.container_digest.cache_clear()


NEEDS_4_KIB_PAGES = pytest.mark.skipif(os.sysconf("SC_PAGE_SIZE") != 4096, reason="LMDB uses the kernel's page size")


@pytest.mark.parametrize(
    ("layout", "digest"),
    [
        pytest.param(
            "lmdb", "7e8b53ccfc89d6f9c35219ba4ff41f2a03ba23bd2bc0ae064b581f41c337ae12", marks=NEEDS_4_KIB_PAGES
        ),
        ("folder", "60ba2d1361cef6828aa044613fba049f683d4a800c9e3442c8b53db0e7fcb7f7"),
    ],
)
def test_it_is_the_same_in_every_release_so_that_each_can_update_datasets_of_others(
    layout: Layout, digest: str
) -> None:
    assert fingerprint.container_digest(layout) == digest


def test_a_changed_shard_format_is_detected_for_layouts_with_shards(monkeypatch: pytest.MonkeyPatch) -> None:
    before = [fingerprint.container_digest("lmdb"), fingerprint.container_digest("folder")]
    fingerprint.container_digest.cache_clear()
    monkeypatch.setattr(shard, "key", lambda row: (row + 1).to_bytes(8, "big"))
    after = [fingerprint.container_digest("lmdb"), fingerprint.container_digest("folder")]
    assert after[0] != before[0] and after[1] == before[1]


def test_a_changed_index_format_is_detected(monkeypatch: pytest.MonkeyPatch) -> None:
    before = fingerprint.container_digest("folder")
    fingerprint.container_digest.cache_clear()
    monkeypatch.setattr(index, "ARROW_OPTIONS", pa.ipc.IpcWriteOptions(metadata_version=pa.ipc.MetadataVersion.V4))
    assert fingerprint.container_digest("folder") != before


def test_without_a_temporary_folder_the_error_says_what_to_do(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "missing"))
    with pytest.raises(BuildError, match="cannot write to a temporary folder: No such file or directory; set TMPDIR"):
        fingerprint.container_digest("lmdb")


def test_pillow_simd_is_distinguished_from_pillow(monkeypatch: pytest.MonkeyPatch) -> None:
    assert fingerprint.codec_versions()["pillow"] == importlib.metadata.version("pillow")
    monkeypatch.setattr("PIL.__version__", "12.1.1.post0")
    assert fingerprint.codec_versions()["pillow"] == "12.1.1.post0"


def test_the_version_of_a_plug_in_counts_if_a_file_needs_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    put(tmp_path / "raw" / "a.jpg", seed=1)

    version_of = importlib.metadata.version

    def identity(version: str) -> dict[str, Any]:
        monkeypatch.setattr(
            importlib.metadata, "version", lambda name: version if name == "pillow-heif" else version_of(name)
        )
        return plan_build(tmp_path / "raw", SMALL).identity

    assert identity("1.0") == identity("2.0")
    (tmp_path / "raw" / "b.HEIC").write_bytes(b"no image at all")
    assert identity("1.0")["codecs"] != identity("2.0")["codecs"]
    assert plan_build(tmp_path / "raw", SMALL).versions["pillow-heif"] == "2.0"
