"""Makes the damaged shards of a dataset again, from its source; one is accepted only if it is the one that was lost."""

from __future__ import annotations

import os
from collections.abc import Callable, Generator, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, nullcontext
from dataclasses import dataclass
from functools import cached_property, partial
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from zlib_ng import zlib_ng

from presize.builder.state import lock
from presize.codecs import transcode
from presize.codecs.transcode import transcode_companion
from presize.errors import DatasetError, ImageError, OptionError, SourceError
from presize.options import Companion, ImageOptions, Size, SourceOptions
from presize.sources.companions import companion_paths
from presize.sources.recognize import recognize
from presize.sources.scan import Source, scan
from presize.sources.source_files import SourceFile
from presize.sources.source_reader import SourceReader
from presize.sources.store_source import Url
from presize.store.absence import STATE
from presize.store.data_files import MANIFEST, DataFile
from presize.store.filenames import is_safe
from presize.store.index import companion_index, read_index
from presize.store.manifest import Manifest, read_manifest
from presize.store.shard import MapFull, ShardWriter, commit_records, map_bytes
from presize.store.shard_pages import recorded_map_bytes
from presize.store.shard_reader import ShardReader
from presize.store.verify import Problem, check_data_file
from presize.system.files import remove_temporary, sync_folder, temporary_name, working_in
from presize.system.resources import usable_cores

_ROWS_AT_ONCE = 256
_MAPS_TO_TRY = 100
_DOUBLED = 8

_Row = dict[str, Any]
"""Of the index."""


@dataclass(frozen=True)
class Repair:
    """What a repair did.

    Attributes:
        shards: that were checked, of all sizes together.
        repaired: the shards that were damaged and are whole again, as paths from OUT.
        problems: what is still damaged, and why.
    """

    shards: int
    repaired: tuple[str, ...]
    problems: tuple[Problem, ...]


def repair_dataset(
    source: str | os.PathLike[str],
    out: str | os.PathLike[str],
    *,
    jobs: int | None = None,
    samples: SourceOptions = SourceOptions(),
    on_begin: Callable[[int], None] = lambda _: None,
    on_shard: Callable[[], None] = lambda: None,
) -> Repair:
    """Read all shards of the dataset in `out` (of each size), and make those again that are damaged or missing.

    A shard is made of the source files that the index lists for it, and replaces the damaged one only when its SHA-256
    is the one in the manifest; until then the old file stays. Readers that have a shard open go on with what they have.

    Args:
        source: the folder that the dataset was built from, or the file.
        out: the dataset.
        jobs: threads; all cores by default.
        samples: how the source was read; only ``keys`` matters.
        on_begin: called with the number of shards.
        on_shard: called after each shard.

    Raises:
        SourceError: `source` is not there, or its containers cannot be listed.
        DatasetError: `out` holds no dataset of shards.
        BuildError: a build is writing to `out`, it cannot be written to, or a container changes meanwhile.
    """
    url = Url.of(source)
    containers = None if url else recognize(source, samples.keys is not None)
    if containers is None and not url and not os.path.isdir(source):
        raise SourceError(f"the source {os.fspath(source)} is not a folder; give the one that {out} was built from")
    raw = _Raw(url or Path(source)) if containers is None else _Raw(Path(containers.root), scan(source, samples, True))
    out = Path(out)
    _manifests_in(out)  # raises before anything is written, the lock included
    repaired: list[str] = []
    problems: list[Problem] = []
    with (
        working_in(out),
        lock(out.parent) if (out.parent / STATE).exists() else nullcontext(),  # a build of several sizes
        lock(out),
        ThreadPoolExecutor(jobs or usable_cores()) as threads,
    ):
        manifests = _manifests_in(out)
        shards = sum(len(manifest.shards) * (1 + len(manifest.companions)) for manifest in manifests.values())
        on_begin(shards)
        for root, manifest in manifests.items():
            if manifest.layout != "lmdb":
                raise DatasetError(f"{root} holds files, no shards; presize build --overwrite makes them anew")
            maker_of = _makers(raw, root, manifest, threads)
            for file in manifest.files():
                name = (root / file.file).relative_to(out).as_posix()
                damage = next(check_data_file(root, file), None)
                why = _remade(file, maker_of.get(file), manifest) if damage else None
                if why is not None:
                    problems.append(Problem(name, f"{damage}; {why}"))
                elif damage:
                    repaired.append(name)
                if file in maker_of:
                    on_shard()
            remove_temporary(root / "shards")
    return Repair(shards, tuple(repaired), tuple(problems))


def _manifests_in(out: Path) -> dict[Path, Manifest]:
    """The dataset in a folder, or those of several sizes below it. Raises DatasetError where there is none."""
    roots = [out] if (out / MANIFEST).exists() else sorted(path.parent for path in out.glob(f"*/{MANIFEST}"))
    return {root: read_manifest(root) for root in roots or [out]}  # which says what is there instead of a dataset


class _DifferentError(Exception):
    """A shard cannot be made as it was. ``str(error)`` says why."""


@dataclass(frozen=True)
class _Raw:
    """The images that a dataset was built from: a folder, and where it consists of containers, what they hold."""

    root: Path | Url
    source: Source | None = None

    @cached_property
    def _reader(self) -> SourceReader:
        return SourceReader(self.root)

    @cached_property
    def _rows(self) -> dict[str, int]:
        """The row of each path in the source table."""
        paths = [] if self.source is None else self.source.table.column("path").to_pylist()
        return {path: row for row, path in enumerate(paths)}

    def read(self, path: str, nbytes: int) -> bytes:
        """The bytes of an image of the index. Raises ImageError when they have changed or gone."""
        if self.source is None:
            return self.read_file(path, nbytes)
        if path not in self._rows:
            raise ImageError("its container has no such sample any more")
        (file,) = self.source.files(np.array([self._rows[path]]))
        return self._reader.read(file)

    def read_file(self, path: str, nbytes: int) -> bytes:
        """The bytes of a file in the folder. Raises ImageError when they have changed or gone."""
        return self._reader.read(SourceFile(path, nbytes))


def _makers(source: _Raw, root: Path, manifest: Manifest, threads: ThreadPoolExecutor) -> dict[DataFile, _Shards]:
    """What makes each shard of a dataset again."""
    companions = _companions(manifest)
    stores = [
        _Shards(source, root, manifest, threads),
        *(_Shards(source, root, manifest, threads, c) for c in companions),
    ]
    files = [manifest.shards, *(companion.shards for companion in manifest.companions)]
    return {file: store for store, shards in zip(stores, files, strict=True) for file in shards}


def _remade(file: DataFile, shards: _Shards | None, manifest: Manifest) -> str | None:
    """Make a file of a dataset again. None when that succeeded, else why it did not."""
    again = "derive the dataset again, with --overwrite" if manifest.derived else None
    if shards is None:
        return f"only shards can be made again; {again or 'presize build --overwrite makes the dataset anew'}"
    try:
        shards.remake(file)
    except (_DifferentError, ImageError) as error:
        again = again or "presize build --update takes the source as it is now"
        return f"it cannot be made as it was: {error}; {again}"
    except (DatasetError, OptionError, SourceError) as error:
        return str(error)
    return None


@dataclass(frozen=True)
class _Shards:
    """The shards of a dataset of one size, and the source that they were built from."""

    source: _Raw
    root: Path
    manifest: Manifest
    threads: ThreadPoolExecutor
    companion: Companion | None = None
    """Whose they are; None for the images'."""

    def remake(self, file: DataFile) -> None:
        image = _image_options(self.manifest)
        if self.companion is not None:
            image = self.companion.image_options(image)
        size = Size.parse(self.manifest.size)
        rows = self._rows(file)
        if size not in image.sizes:
            raise DatasetError(f"the manifest of {self.root} is damaged: its size is none of those that were built")
        record_bytes = transcode.record_bytes(image, size)
        make = partial(self._make, image, image.sizes.index(size))
        (self.root / file.file).parent.mkdir(exist_ok=True)
        made: Path | None = None  # the last attempt: its records are right
        for map_size in self._map_sizes(file, record_bytes):
            place = temporary_name(self.root / file.file)
            values = self._made(make, rows) if made is None else _copied(made, len(rows))
            with closing(values), ShardWriter(place, map_size, commit_records(record_bytes)) as writer:
                try:
                    for value in values:
                        writer.append(value)
                    found = writer.publish()
                except MapFull:
                    continue
            if found == (file.bytes, file.sha256):
                os.replace(place, self.root / file.file)
                sync_folder((self.root / file.file).parent)
                return
            made = place
        raise _DifferentError("its images are right, but not the file; another version of LMDB or page size makes it")

    def _rows(self, file: DataFile) -> list[_Row]:
        """The samples of a shard, in its order."""
        index = read_index(self.root, self.manifest)
        shards = self.manifest.shards
        if self.companion is not None:
            index = companion_index(index, self.companion.name)
            shards = self.manifest.companion(self.companion.name).shards
        own = pa.table(index.take(pa.array(np.flatnonzero(index["shard"].to_numpy() == shards.index(file)))))
        if self.companion is not None:
            own = own.set_column(own.column_names.index("path"), "path", companion_paths(self.companion, own))
        names = ["path", "row", "nbytes", "crc32", "source_nbytes", "source_height", "source_width"]
        rows = sorted(own.select(names).to_pylist(), key=lambda row: int(row["row"]))
        if [row["row"] for row in rows] != list(range(file.rows)) or not all(is_safe(row["path"]) for row in rows):
            raise DatasetError(f"the index of {self.root} is damaged; presize build --overwrite makes it anew")
        return rows

    def _make(self, image: ImageOptions, size: int, row: _Row) -> bytes:
        """The record of a sample. Raises _DifferentError unless it is the one in the index."""
        try:
            if self.companion is None:
                made = transcode.transcode(self.source.read(row["path"], row["source_nbytes"]), image)
            else:
                data = self.source.read_file(row["path"], row["source_nbytes"])
                made = transcode_companion(data, Size(row["source_height"], row["source_width"]), image)
        except ImageError as error:
            raise _DifferentError(f"{row['path']}: {error}") from None
        value = made.records[size].value
        if len(value) != row["nbytes"] or zlib_ng.crc32(value) != row["crc32"]:
            raise _DifferentError(f"{row['path']} has changed, or another version of a codec decoded it")
        return value

    def _made(
        self, make: Callable[[dict[str, Any]], bytes], rows: list[dict[str, Any]]
    ) -> Generator[bytes, None, None]:
        for start in range(0, len(rows), _ROWS_AT_ONCE):
            yield from self.threads.map(make, rows[start : start + _ROWS_AT_ONCE])

    def _map_sizes(self, file: DataFile, record_bytes: int) -> Iterator[int]:
        """Sizes of the map that the shard may have been written with, the likely ones first. Its bytes depend on that,
        and that depends on how many files the task had, with those that were rejected."""
        rejected = sum(self.manifest.left_out.get(name, 0) for name in ("rejected", "skipped", "unreadable"))
        usual = (self.manifest.samples + rejected) // len(self.manifest.shards)
        counts = [usual, usual + 1, *range(file.rows, file.rows + rejected + 1)]
        likely = dict.fromkeys(map_bytes(count, record_bytes) for count in counts if count >= file.rows)
        largest = max(likely) << _DOUBLED
        recorded = recorded_map_bytes(self.root / file.file, self._page_size())
        yield from dict.fromkeys([*(size for size in recorded if 0 < size <= largest), *list(likely)[:_MAPS_TO_TRY]])
        for doubled in range(1, _DOUBLED + 1):  # records larger than expected
            yield next(iter(likely)) << doubled

    def _page_size(self) -> int:
        found = self.manifest.identity.get("page_size")
        if not isinstance(found, int) or not 512 <= found <= 1 << 24:
            raise DatasetError(f"the manifest of {self.root} is damaged: it has no page_size of bytes")
        return found


def _image_options(manifest: Manifest) -> ImageOptions:
    try:
        return ImageOptions.from_json(manifest.identity["options"]["image"])
    except (TypeError, KeyError) as error:
        raise DatasetError(f"the options in the manifest are damaged: {error}") from None


def _companions(manifest: Manifest) -> list[Companion]:
    recorded = manifest.identity["options"].get("companions", {})
    try:
        return [Companion(companion.name, **recorded[companion.name]) for companion in manifest.companions]
    except (TypeError, KeyError) as error:
        raise DatasetError(f"the options in the manifest are damaged: {error}") from None


def _copied(shard: Path, rows: int) -> Generator[bytes, None, None]:
    with closing(ShardReader(shard, shard.stat().st_size)) as reader, reader as get:
        for row in range(rows):
            yield bytes(get(row))
