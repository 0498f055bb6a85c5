"""Every kind of source: the same samples in the same order, and the same errors when it changes or disappears."""

from __future__ import annotations

import os
import shutil
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from functools import partial
from pathlib import Path

import numpy as np
import pytest

from foreign import image_column, picture, write_lmdb, write_parquet, write_tar
from listings import labels, paths, values
from presize.errors import BuildError, UnreadableError
from presize.options import SourceOptions
from presize.sources.contents import Source
from presize.sources.scan import scan
from presize.sources.source_files import SourceReader
from servers import BUCKET, http, s3, upload

IMAGES = {f"{'abc'[n // 4]}/{n:02}.png": picture(n) for n in range(12)}
LABELS = [n // 4 for n in range(12)]
NUMBERED = SourceOptions(keys="image-{:03d}", label_keys="label-{:03d}")


def folder(root: Path) -> SourceOptions:
    for name, content in IMAGES.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_bytes(content)
    return SourceOptions()


def table(root: Path) -> SourceOptions:
    folder(root)
    lines = [f"{path},{label}\n" for path, label in zip(IMAGES, LABELS, strict=True)]
    (root.parent / "t.csv").write_text("path,label\n" + "".join(lines))
    return SourceOptions(root.parent / "t.csv")


def tar(root: Path) -> SourceOptions:
    each = zip(IMAGES.items(), LABELS, strict=True)
    write_tar(root / "1.tar", [file for image, n in each for file in (image, (f"{image[0][:-4]}.cls", b"%d" % n))])
    return SourceOptions()


def lmdb(root: Path) -> SourceOptions:
    records = {f"image-{n:03}": image for n, image in enumerate(IMAGES.values())}
    write_lmdb(root, records | {f"label-{n:03}": b"%d" % label for n, label in enumerate(LABELS)})
    return NUMBERED


def parquet(root: Path) -> SourceOptions:
    columns = {"image": image_column(list(IMAGES.values()), list(IMAGES)), "label": LABELS}
    write_parquet(root / "1.parquet", columns, group_rows=5)
    return SourceOptions()


LOCAL = {make.__name__: make for make in (folder, table, tar, lmdb, parquet)}


@contextmanager
def listed(kind: str, tmp_path: Path) -> Iterator[Source]:
    """Yield the samples of a source of a kind while it can be read."""
    root = tmp_path / "source"
    if kind in LOCAL:
        options = LOCAL[kind](root)
        yield scan(root, options)
    elif kind == "bucket":
        folder(root)
        with pytest.MonkeyPatch.context() as patch, s3(patch):
            upload(root, tmp_path.name)
            yield scan(f"s3://{BUCKET}/{tmp_path.name}")
    else:
        options = table(root)
        with http(root) as port:
            yield scan(f"http://127.0.0.1:{port}", options)


@pytest.mark.parametrize("kind", [*LOCAL, "bucket", "web server"])
def test_samples_equal_those_of_the_folder_in_any_order_and_from_several_threads(kind: str, tmp_path: Path) -> None:
    with listed(kind, tmp_path) as source:
        assert (labels(source), values(source)) == (LABELS, list(IMAGES.values()))
        assert source.table.column("source_nbytes").to_pylist() == list(map(len, IMAGES.values())) or kind == "parquet"
        assert paths(source) == (list(IMAGES) if kind != "lmdb" else [f"image-{n:03}" for n in range(12)])
        reader, wrong = SourceReader(source.root), []

        def read(seed: int) -> None:
            order = np.random.default_rng(seed).permutation(12)
            found = [reader.read(file) for file in source.files(order)]
            wrong.extend(n for n, image in zip(order, found, strict=True) if image != picture(n))

        threads = [threading.Thread(target=read, args=(seed,)) for seed in range(3)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert wrong == []


def become(make: Callable[[Path], object]) -> Callable[[Path], None]:
    def change(path: Path) -> None:
        path.unlink()
        make(path)

    return change


def rewrite(path: Path) -> None:
    """Rewrite the file in place with the same size and time."""
    status, before = path.stat(), path.stat().st_ctime_ns
    path.write_bytes(path.read_bytes()[::-1])
    while path.stat().st_ctime_ns == before:  # ctime has the resolution of a tick
        os.utime(path, ns=(status.st_mtime_ns, status.st_mtime_ns))


def replace(path: Path) -> None:
    shutil.copy2(path, path.with_name("new"))
    path.with_name("new").replace(path)


WAS = "it changed during the build: "
CHANGES: dict[str, tuple[Callable[[Path], object], str | None]] = {
    "truncated": (lambda path: os.truncate(path, 20), WAS + r"\d+ bytes when listed, 20 when read"),
    "grown": (lambda path: os.truncate(path, 1 << 34), WAS + r"\d+ bytes when listed, more when read"),
    "gone": (Path.unlink, "cannot be read: No such file or directory"),
    "a folder": (become(Path.mkdir), WAS + "it is no longer a regular file"),
    "a pipe": (become(os.mkfifo), WAS + "it is no longer a regular file"),
    "endless": (become(lambda path: path.symlink_to("/dev/zero")), WAS + "it is no longer a regular file"),
    "touched": (os.utime, None),
    "rewritten in place": (rewrite, None),
    "replaced": (replace, None),
}
"""Changes of a file, and the messages about its sample. A container must stay as listed."""


STOPS = (
    r"' in .*/source( changed during the build: |( again for report\.html)?: No such file or directory).*; run again"
)


@pytest.mark.parametrize("change", CHANGES)
@pytest.mark.parametrize("kind", ["folder", "tar", "lmdb", "parquet"])
def test_changed_files_are_not_read(kind: str, change: str, tmp_path: Path) -> None:
    with listed(kind, tmp_path) as source:
        (file,) = source.files(np.arange(1))
    alter, said = CHANGES[change]
    alter(tmp_path / "source" / (file.container.path if file.container else file.path))
    stops = pytest.raises(BuildError, match=STOPS)
    for read in (SourceReader.read, partial(SourceReader.read, for_report=True)):
        with stops if file.container else pytest.raises(UnreadableError, match=said) if said else nullcontext():
            read(SourceReader(source.root), file)
