"""Reads a published dataset without torch: its manifest, its index, and its records by sample number."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
from zlib_ng import zlib_ng

from presize.codecs.stored_value import DAMAGE, Pixels, decode_value
from presize.errors import DatasetError, OptionError, PresizeError
from presize.formatting import size_text
from presize.options import MAX_PIXELS, check_range, check_type
from presize.store.data_files import CannotOpenError, DataFile, ShardFetcher
from presize.store.index import companion_index, open_settled, read_index, validate_column
from presize.store.manifest import Manifest, replaced
from presize.store.shard import ENGINE
from presize.store.shard_reader import ShardReader
from presize.system.files import expanded
from presize.system.pagecache import MappedFile, Preload, preload, readahead_pays
from presize.system.resources import read_memory
from presize.system.storage import window_bytes

OnDamage = Callable[[int, DatasetError], None]


class Dataset:
    """An LMDB dataset opened for reading.

    Thread-safe, and usable in forked children; a pickle holds the path and these arguments, not the index. The index is
    memory-mapped, so processes share its memory. Samples are numbered from 0; negative numbers are not accepted.

    Args:
        root: the folder of the dataset.
        readahead: let the kernel read ahead in shards. None chooses for random reads, by the size of records, memory
            and file system. The first dataset that opens a file in a process decides.
        max_pixels: limit on pixels (height x width), at least 1; a larger image counts as damaged.
        check: verify the SHA-256 of the index (up to 256 MB) when it is opened, and the CRC-32 of each record when a
            process first reads it. With False, a flipped bit may change pixels, labels or paths.
        origin: source of the shards that are not in `root`; None if all are.

    Raises:
        DatasetError: the dataset is missing, damaged, newer than this version of presize, or from another program.
    """

    def __init__(
        self,
        root: str | os.PathLike[str],
        readahead: bool | None = None,
        max_pixels: int = MAX_PIXELS,
        check: bool = True,
        origin: ShardFetcher | None = None,
    ) -> None:
        check_type("check", check, bool)
        self.max_pixels = check_range("max_pixels", max_pixels, 1, 2**40)
        self.check = check
        self.root = Path(os.path.realpath(expanded(root)))
        self.manifest, self.index = open_settled(self.root, self._opened)
        if readahead is not None:
            check_type("readahead", readahead, bool)
        self._readahead = readahead  # as requested, for pickling
        self.origin = origin
        self.read_with = self.companions
        """Companions that are read and prefetched with the images; all of them by default."""
        self.companion_name: str | None = None
        """The companion that this dataset reads; None for the images."""
        self._set_up()

    def _opened(self, manifest: Manifest) -> tuple[Manifest, pa.RecordBatch]:
        if manifest.layout == "folder":
            raise DatasetError(f"{self.root} is a folder of image files; read it with FolderDataset")
        if manifest.engine != ENGINE:
            made = f"{self.root} was built with LMDB {manifest.engine}"
            raise DatasetError(f"{made}; this version of presize reads {ENGINE}: upgrade presize")
        return manifest, read_index(self.root, manifest, self.check)

    def _set_up(self) -> None:
        self.readahead = bool(self._readahead)
        if self._readahead is None:
            nbytes = sum(shard.bytes for shard in self.manifest.shards)
            window = window_bytes(self.root / "shards")
            self.readahead = readahead_pays(nbytes / len(self), nbytes, read_memory().available, window)
        self.shards = list(map(self._reader, self.manifest.shards))
        self._renewed: set[int] = set()
        # Indexing a memoryview returns a Python int in a third of the time that an array takes.
        self._shard_of = self.numbers("shard").data
        self._row_of = self.numbers("row").data
        self._nbytes = self.numbers("nbytes").data
        self._crc32 = self.numbers("crc32").data
        self._checked: bytearray | None = None  # one bit per sample: its record passed the check
        self._heights, self._widths = self.numbers("height").data, self.numbers("width").data
        self._path_ends, self._path_bytes = _offsets_and_text(self.column("path"))

    @property
    def companions(self) -> tuple[str, ...]:
        """Names of the additional images of every sample, such as its mask."""
        return tuple(companion.name for companion in self.manifest.companions)

    def companion(self, name: str) -> Dataset:
        """Return a companion, such as the masks, as a dataset with the same samples and index. ``manifest.color`` is
        "exact" if pixels keep the values of the source, and ``manifest.depth`` is their number of bits. Raises
        DatasetError for an unknown name."""
        data = Dataset.__new__(Dataset)
        vars(data).update(vars(self))
        data.manifest, data.index = self.manifest.companion(name), companion_index(self.index, name)
        data.companion_name = name
        data._set_up()
        return data

    def __len__(self) -> int:
        return self.manifest.samples

    def _reader(self, file: DataFile) -> ShardReader:
        fetch = None if self.origin is None else partial(self.origin.provide, [file])
        return ShardReader(self.root / file.file, file.bytes, self.readahead, fetch)

    def __reduce__(self) -> tuple[Any, tuple[tuple[Any, ...], str, str | None, tuple[str, ...]]]:
        arguments = self.root, self._readahead, self.max_pixels, self.check, self.origin
        return _reopen, (arguments, self.manifest.index.sha256, self.companion_name, self.read_with)

    def __getattr__(self, name: str) -> Any:
        """Raise the error of unpickling, if that failed: then all attributes are missing."""
        if "_failure" in vars(self):
            raise vars(self)["_failure"]
        raise AttributeError(name)

    def preload(self, how: Preload) -> list[MappedFile]:
        """Read all shards into the page cache; see presize.system.pagecache.preload."""
        self._provide(range(len(self.shards)))
        return preload([(self.root / shard.file, shard.bytes) for shard in self.manifest.shards], how)

    def fetch_ahead(self, groups: Iterable[Sequence[int]]) -> None:
        """Start to fetch shards, given by number, and those of companions. Does nothing without an origin. Groups are
        read in order, each as a whole: while one is read, earlier ones may be removed. Raises OptionError if two
        consecutive groups exceed the cache."""
        if self.origin is not None:
            shards = self._read_together()
            self.origin.fetch_ahead([[files[number] for number in group for files in shards] for group in groups])

    def _read_together(self) -> list[tuple[DataFile, ...]]:
        companions = [companion for companion in self.manifest.companions if companion.name in self.read_with]
        return [self.manifest.shards, *(companion.shards for companion in companions)]

    def check_order(self, by_shards: bool) -> None:
        """Raise OptionError if the dataset exceeds its cache, unless it is read `by_shards` (ShardShuffled)."""
        most = None if self.origin is None else self.origin.max_bytes
        nbytes = sum(file.bytes for files in self._read_together() for file in files)
        if most is not None and nbytes > most and not by_shards:
            raise OptionError(
                f"cache_bytes: {size_text(most)} cannot hold this dataset of {size_text(nbytes)}, so it can only be "
                "read shard by shard: give shuffle=ShardShuffled(dataset.data, seed=...), or a larger cache_bytes"
            )

    def _provide(self, shards: Iterable[int]) -> None:
        if self.origin is not None:
            closed = [self.manifest.shards[number] for number in shards if not self.shards[number].is_open]
            if closed:
                self.origin.provide(closed)

    def column(self, name: str) -> pa.Array:
        """Return an index column. Raises DatasetError for an unknown name."""
        names = self.index.schema.names
        if name not in names:
            raise DatasetError(f"{self.root} has no column {name!r}; it has {', '.join(names)}")
        return self.index.column(names.index(name))

    def numbers(self, name: str) -> npt.NDArray[Any]:
        """Return a numeric index column without nulls as a read-only array over the mapped file."""
        try:
            return np.asarray(self.column(name).to_numpy(zero_copy_only=True))
        except pa.ArrowInvalid:
            raise DatasetError(f"column {name!r} of {self.root} is not numeric, or has nulls") from None

    def check_column(self, name: str) -> None:
        """Raise DatasetError unless a column has valid offsets and UTF-8 text. Reads the whole column."""
        validate_column(self.column(name), name, self.root)

    def shape(self, sample: int) -> tuple[int, int]:
        """Return (height, width) of a sample in pixels."""
        return self._heights[sample], self._widths[sample]

    def path(self, sample: int) -> str:
        """Return the path of a sample in its source."""
        start, end = self._path_ends[sample], self._path_ends[sample + 1]
        if not 0 <= start <= end <= len(self._path_bytes):
            raise DatasetError(f"the index of {self.root} is damaged: the path of sample {sample} is out of bounds")
        return bytes(self._path_bytes[start:end]).decode("utf-8", "replace")

    def values(self, samples: Sequence[int], on_damage: OnDamage | None = None) -> Iterator[tuple[int, memoryview]]:
        """Yield (position in `samples`, stored value), in the order on disk. A view is valid until the next one is
        requested. Raises DatasetError if a shard or record is missing or differs from the index. If only the CRC-32 is
        wrong and `on_damage` is given, it is called with the position and the error instead."""
        shard_of, row_of = self._shard_of, self._row_of
        places = sorted((shard_of[i], row_of[i], at) for at, i in enumerate(samples))
        if places and not 0 <= places[0][0] <= places[-1][0] < len(self.shards):
            wrong = places[0][0] if places[0][0] < 0 else places[-1][0]
            raise DatasetError(f"the index of {self.root} is damaged: there is no shard {wrong}")
        self._provide({shard for shard, _, _ in places})
        changed: DatasetError | None = None  # the error of the record whose CRC-32 is wrong
        for shard, row, position in places:
            sample, reader = samples[position], self.shards[shard]
            try:
                with reader as get:
                    value = get(row)
                    if len(value) != self._nbytes[sample]:
                        raise self.damage(sample, "its length differs from the index")
                    if not self._is_sound(sample, value):
                        changed = self.damage(sample, "its CRC-32 differs from the index")
                        raise changed
                    yield position, value
            except CannotOpenError:
                raise
            except DatasetError as error:
                if self._renew(shard, reader):
                    yield from ((position, value) for _, value in self.values([sample], _at(position, on_damage)))
                elif gone := replaced(self.root, self.manifest):
                    raise gone from None
                elif on_damage is None or error is not changed:
                    raise
                else:
                    on_damage(position, error)

    def _renew(self, shard: int, damaged: ShardReader) -> bool:
        """Return whether to retry: a damaged shard of a cache is removed and fetched again, but only once."""
        if self.shards[shard] is not damaged:  # another thread has replaced it
            return True
        if self.origin is None or shard in self._renewed:
            return False
        self._renewed.add(shard)
        damaged.remove()
        self.shards[shard] = self._reader(self.manifest.shards[shard])  # another thread may be using the old reader
        return True

    def _is_sound(self, sample: int, value: memoryview) -> bool:
        """Return whether the CRC-32 of a record is right; checked when it is first read, or twice if threads race."""
        if not self.check:
            return True
        if self._checked is None:
            self._checked = bytearray(len(self) + 7 >> 3)
        byte, bit = sample >> 3, 1 << (sample & 7)
        if self._checked[byte] & bit:
            return True
        if zlib_ng.crc32(value) != self._crc32[sample]:
            return False
        self._checked[byte] |= bit
        return True

    def value(self, sample: int) -> bytes:
        """Return a copy of the stored bytes of one sample."""
        return next(bytes(view) for _, view in self.values((sample,)))

    def pixels(self, samples: Sequence[int]) -> Iterator[tuple[int, Pixels]]:
        """Yield (position in `samples`, pixels), in the order on disk. Pixels are a new array, by the options of the
        build: uint8 or uint16, (height, width, 3) RGB, (height, width, 4) RGBA or (height, width) grey; for companions
        of format "npy" any dtype and shape. Raises DatasetError as values() does, or if a value cannot be decoded."""
        format, color, depth = self.manifest.format, self.manifest.color, self.manifest.depth
        for position, value in self.values(samples):
            try:
                pixels = decode_value(value, format, color, self.shape(samples[position]), self.max_pixels, depth)
            except DAMAGE as error:
                raise self.damage(samples[position], error) from None
            yield position, pixels

    def damage(self, sample: int, what: object) -> DatasetError:
        whose = "" if self.companion_name is None else f"the {self.companion_name} of "
        return DatasetError(
            f"{whose}sample {sample} ({self.path(sample)}) of {self.root} is damaged: "
            f"{str(what) or 'out of memory'}; presize verify lists all damage"
        )


def _at(position: int, on_damage: OnDamage | None) -> OnDamage | None:
    return None if on_damage is None else lambda _, error: on_damage(position, error)


def _reopen(arguments: tuple[Any, ...], index_sha256: str, companion: str | None, read_with: Sequence[str]) -> Dataset:
    """Open a pickled dataset. Errors are raised on first use: while unpickling, they would end a worker silently."""
    origin = arguments[-1]
    try:
        if origin is not None:
            origin.provide(())  # creates the folder again if it was removed
        data = Dataset(*arguments)
        if data.manifest.index.sha256 != index_sha256:
            raise DatasetError(f"{data.root} has been updated or replaced since it was opened; open it again")
        data.read_with = tuple(read_with)
        if companion is not None:
            data = data.companion(companion)
    except PresizeError as error:
        data = Dataset.__new__(Dataset)
        vars(data)["_failure"] = error
    return data


def _offsets_and_text(strings: pa.Array) -> tuple[memoryview, memoryview]:
    """Return offsets and UTF-8 text of a column: string k is ``text[offsets[k] : offsets[k + 1]]``."""
    _, ends, text = strings.buffers()
    first, last = strings.offset, strings.offset + len(strings)
    return memoryview(ends)[8 * first : 8 * (last + 1)].cast("q"), memoryview(text or b"")
