"""Tar shards as sources: reads the headers of a tar, and lists consecutive files with the same stem as samples."""

from __future__ import annotations

import codecs
import functools
import json
import os
import re
import zlib
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, BinaryIO, NamedTuple

import numpy as np
import pyarrow as pa

from presize.errors import ImageError, SourceError
from presize.formatting import size_text
from presize.options import Companion, SourceOptions
from presize.sources.columns import joined, plain_table, rows_table
from presize.sources.companions import check_columns, companion_paths
from presize.sources.contents import OFFSET_OF, Contents, as_utf8, field_name, is_utf8
from presize.sources.source_files import Container
from presize.store.rejects import IMAGE_SUFFIXES, NOT_AN_IMAGE, Reject, of_companion
from presize.system.file_version import FileVersion
from presize.system.files import open_at_once

BLOCK = 512
ZEROS = bytes(BLOCK)
_WINDOW_BYTES = 4096
_NAME_BYTES = 1 << 20
_TAIL_BYTES = 1 << 20
"""Most zeros that padding adds at the end. More come from an interrupted download into a preallocated file."""
_PADDING_BYTES = 1 << 20
_SIZE = re.compile(r"[0-9]{1,18}")
_PAX_RECORD = re.compile(rb"(\d{1,9}) ([^=]+)=")


class Member(NamedTuple):
    """A file in a tar, with the byte offset of its content. `kind` is its type flag, ``b"0"`` for a regular file."""

    name: str
    kind: bytes
    offset: int
    nbytes: int


END_MARK = Member("", b"", 0, 0)
"""Stands for an end mark before the end of the file: tars can be joined by cat. More members or CutShort follow."""


class CutShort(Exception):
    """A tar ends, or is damaged, before its end mark. ``str(error)`` says where; `name` is the incomplete file."""

    def __init__(self, reason: str, name: str | None = None) -> None:
        super().__init__(reason)
        self.name = name


def _read(file: BinaryIO, begin: int, nbytes: int) -> bytes:
    """Return the bytes from `begin` on; fewer at the end of the file. Consecutive small reads share a buffer."""
    file.seek(begin)
    return file.read(nbytes)


def _after_zeros(file: BinaryIO, begin: int) -> int:
    """Return the offset of the next block that is not all zeros, or of the end of the file."""
    while content := _read(file, begin, _PADDING_BYTES):
        if content != bytes(len(content)):
            return begin + (len(content) - len(content.lstrip(b"\0"))) // BLOCK * BLOCK
        begin += len(content)
    return begin


def is_header(block: bytes) -> bool:
    """Return whether a block has a header's checksum: the sum of its bytes, with blanks in place of the checksum."""
    if len(block) < BLOCK:
        return False
    stored = _number(block[148:156])
    # The lower half of Adler-32 is the sum modulo 65521, fifty times as fast as a sum in Python.
    computed = zlib.adler32(block[:148] + b"        " + block[156:], 0) & 0xFFFF
    return stored is not None and stored % 65521 == computed


def _number(field: bytes) -> int | None:
    """Parse a number of a header: octal digits, or binary if the first bit is set. Return None if it is invalid."""
    if field[0] & 0x80:
        return int.from_bytes(field[1:], "big") if field[0] == 0x80 else None
    try:
        number = int(field.partition(b"\0")[0] or b"0", 8)
    except ValueError:
        return None
    return number if number >= 0 else None


def members(file: BinaryIO) -> Iterator[Member]:
    """Yield the files of a tar, without folders, and END_MARK between joined tars. Raises CutShort if it breaks off."""
    at, nbytes = 0, os.fstat(file.fileno()).st_size
    extended: dict[str, str] = {}
    while True:
        block = _read(file, at, BLOCK)
        if len(block) < BLOCK:
            raise CutShort(f"it ends at byte {nbytes:,}, without an end mark")
        if block == ZEROS:
            end, at, extended = at, _after_zeros(file, at), {}
            if at >= nbytes:
                if at - end > _TAIL_BYTES:
                    raise CutShort(f"its end mark at byte {end:,} is followed by {size_text(at - end)} of zeros")
                return
            follows = is_header(_read(file, at, BLOCK))
            if follows or at - end <= _TAIL_BYTES:
                yield END_MARK
            if not follows:
                raise CutShort(f"byte {at:,}, after its end mark at byte {end:,}, does not start a header")
            continue
        if not is_header(block):
            raise CutShort(f"byte {at:,} does not start a header")
        size, kind, begin = _number(block[124:136]), block[156:157], at + BLOCK
        if size is None:
            raise CutShort(f"the size in the header at byte {at:,} is not a number")
        if kind in b"xLKg":
            value = _read(file, begin, size) if size <= _NAME_BYTES else b""
            if len(value) < size:
                raise CutShort(
                    f"the header at byte {at:,} announces {size:,} bytes, more than the file has or presize reads"
                )
            if kind == b"L":
                extended["path"] = value.split(b"\0")[0].decode("utf-8", "surrogateescape")
            elif kind == b"x":
                extended |= _pax(value)
        else:
            name = extended.get("GNU.sparse.name") or extended.pop("path", None) or _name(block)
            kind = b"0" if kind in b"\x007" else kind
            if extended:
                size = int(extended["size"]) if _SIZE.fullmatch(extended.get("size", "")) else size
                kind = b"S" if any(key.startswith("GNU.sparse") for key in extended) else kind
                extended = {}
            if kind in b"123456":
                size = 0  # links, folders and devices have no content, whatever the header says
            if begin + size > nbytes:
                there = max(0, nbytes - begin)
                raise CutShort(f"it ends after {there:,} of the {size:,} bytes of {name!r}", name)
            if kind != b"5":
                yield Member(name, kind, begin, size)
        at = begin + -(-size // BLOCK) * BLOCK


def _name(block: bytes) -> str:
    name = block[:100].partition(b"\0")[0]
    if block[345] and block[257:263] == b"ustar\0":  # GNU tar stores times there
        name = block[345:500].partition(b"\0")[0] + b"/" + name
    return name.decode("utf-8", "surrogateescape")


def _pax(value: bytes) -> dict[str, str]:
    """Return the records of a PAX header, ``length key=value\\n``, up to the first invalid one."""
    records, at = {}, 0
    while match := _PAX_RECORD.match(value, at):
        end = at + int(match[1])
        if end <= match.end() or value[end - 1 : end] != b"\n":
            break
        records[match[2].decode("utf-8", "replace")] = value[match.end() : end - 1].decode("utf-8", "surrogateescape")
        at = end
    return records


CONSECUTIVE = "the files of a sample must be consecutive"

_FIELD_OF = {"cls": "label", "txt": "txt"}
_FIELDS = ("json", *_FIELD_OF)
_FIELD_BYTES = 1 << 20  # limit for a file with fields
_SAMPLES_AT_ONCE = 16384
_STEM = re.compile(r"((?:.*/)?[^/.][^/.]*)\.([^/]+)", re.DOTALL)
"""WebDataset's rule: the extension begins at the first dot of the name."""
_CLASS_NUMBER = re.compile(r"\s*-?[0-9]{1,9}\s*")
COMPRESSED_TARS = (".tar.gz", ".tgz", ".tar.bz2", ".tar.xz", ".tar.zst", ".tbz2", ".txz")
_COMPRESSED = {b"\x1f\x8b": "gzip", b"BZh": "bzip2", b"\xfd7zXZ": "xz", b"\x28\xb5\x2f\xfd": "zstd"}


def list_tar(path: str, name: str, options: SourceOptions, companions: Sequence[Companion] = ()) -> Contents:
    """List the samples of a tar, in its order. ``keys`` is the extension of images, if samples have several.

    ``.cls`` becomes a number called ``label``, ``.txt`` a text called ``txt``, ``.json`` a field for each of its keys,
    followed by an underscore if one of the files has that name. Other files of a sample are left out, unless they are
    companions.
    """
    try:
        with open(path, "rb", buffering=_WINDOW_BYTES, opener=open_at_once) as file:
            version = FileVersion.of(os.fstat(file.fileno()))
            begin = _read(file, 0, BLOCK)
            if program := next((each for magic, each in _COMPRESSED.items() if begin.startswith(magic)), None):
                raise SourceError(
                    f"it is compressed, so its images cannot be read one by one; decompress it first: {program} -d "
                    f"{os.path.basename(name)}"
                )
            if begin != ZEROS and not is_header(begin):
                raise SourceError("it is not a tar: its first block is not a header")
            extension = options.keys.lower().removeprefix(".") if options.keys else None
            samples = _Samples(file, name, extension, companions)
            try:
                for member in members(file):
                    samples.add(member)
                samples.finish()
            except CutShort as error:
                samples.finish_early(error)
    except OSError as error:
        raise SourceError(f"it cannot be read: {error.strerror}") from error
    samples.flush()
    table = joined(samples.tables, samples.left_out)
    return Contents(Container(name, version), table, None, samples.rejects, samples.hidden, samples.left_out)


@dataclass
class _Samples:
    """Samples of a tar, collected from its files in their order."""

    file: BinaryIO
    tar: str
    extension: str | None
    companions: Sequence[Companion]
    hidden: int = 0
    rejects: list[Reject] = field(default_factory=list)
    left_out: Counter[str] = field(default_factory=Counter)
    tables: list[pa.Table] = field(default_factory=list)
    rows: list[tuple[str, int, int]] = field(default_factory=list)
    fields: list[dict[str, Any]] = field(default_factory=list)
    beside: list[dict[str, tuple[str, Member]]] = field(default_factory=list)
    """For each row, the other files of its sample, except fields, by name, with their extensions."""
    stem: str | None = None
    files: dict[str, Member] = field(default_factory=dict)
    before: tuple[str, ...] = ()

    def add(self, member: Member) -> None:
        if member is END_MARK:
            self.finish()
            return
        if member.name.startswith("./"):
            member = member._replace(name=_trimmed(member.name))
        if member.name.rpartition("/")[2].startswith("."):
            self.hidden += 1
            return
        match = _STEM.fullmatch(member.name) if is_utf8(member.name) else None
        if member.kind != b"0" or match is None:
            what = "it is a link, or not a regular file" if member.kind != b"0" else "its name has no extension"
            what = what if is_utf8(member.name) else "its name is not UTF-8"
            self._reject(member.name, what, NOT_AN_IMAGE if member.kind == b"0" else SourceError.__name__)
            return
        stem, extension = match[1], match[2].lower()
        if stem != self.stem or extension in self.files:
            self.finish()
            self.stem = stem
        self.files[extension] = member

    def finish(self) -> None:
        """Add the files since the last call as a sample, or reject them."""
        files, self.files = self.files, {}
        if not files:
            return
        self.before = tuple(files)
        first = next(iter(files.values()))
        images = _images(self.before, self.extension)
        if len(images) == 1:
            image = files.pop(images[0])
            try:
                self.fields.append(self._read_fields(files))
            except SourceError as error:
                self._reject(image.name, str(error))
                return
            self.rows.append((image.name, image.offset, image.nbytes))
            if self.companions:
                beside = (each for each in files.items() if each[0] not in _FIELDS)
                self.beside.append({each[1].name: each for each in beside})
            if len(self.rows) == _SAMPLES_AT_ONCE:
                self.flush()
        elif images:
            names = " and ".join(f".{extension}" for extension in images)
            names += " (a name ends at its first dot)" if "." in images[0] else ""
            self._reject(first.name, f"its sample has several images, {names}; choose one, such as --keys {images[0]}")
        else:
            names = ", ".join(f".{extension}" for extension in sorted(files))
            wanted = f".{self.extension}" if self.extension else "image"
            self._reject(first.name, f"no {wanted} among {names}; {CONSECUTIVE}", NOT_AN_IMAGE)

    def finish_early(self, error: CutShort) -> None:
        """Keep the last sample if it is complete: the next one has begun, or it has the previous one's extensions."""
        match = None if error.name is None else _STEM.fullmatch(_trimmed(error.name))
        another_began = match is not None and match[1] != self.stem
        if another_began or set(self.before) == set(self.files):
            self.finish()
        elif self.files:
            self._reject(next(iter(self.files.values())).name, "the tar ends before this sample does")
        self._reject("", f"{error}; earlier samples are kept")

    def _read_fields(self, files: Mapping[str, Member]) -> dict[str, Any]:
        fields: dict[str, Any] = {}
        of_files = {name for extension, name in _FIELD_OF.items() if extension in files}
        for extension, member in sorted(files.items()):
            if extension not in _FIELDS:
                self.left_out[f".{extension}"] += not self.companions
                continue
            if member.nbytes > _FIELD_BYTES:
                raise SourceError(f"its .{extension} has {size_text(member.nbytes)}, too large for a label")
            try:
                text = _read(self.file, member.offset, member.nbytes).removeprefix(codecs.BOM_UTF8).decode()
                values = _fields_of(extension, text)
            except (ValueError, RecursionError) as error:
                raise SourceError(f"its .{extension} cannot be read: {getattr(error, 'msg', error)}") from None
            for name, value in values.items():
                name = field_name(name)
                # A key never replaces the field of a file: samples with and without it would mix two kinds of labels.
                while name in fields or (extension == "json" and name in of_files):
                    name += "_"
                fields[name] = value
        return fields

    def _reject(self, name: str, reason: str, error: str = SourceError.__name__) -> None:
        path = as_utf8(f"{self.tar}/{name}" if name else self.tar)
        self.rejects.append(Reject(path, error, reason))

    def flush(self) -> None:
        kinds = {"path": pa.large_string(), "offset": pa.int64(), "source_nbytes": pa.int64()}
        rows = zip(*self.rows, strict=True) if self.rows else ((), (), ())
        places = {name: pa.array(values, kind) for (name, kind), values in zip(kinds.items(), rows, strict=True)}
        fields = plain_table(rows_table(self.fields, self.left_out), self.left_out)
        table = pa.table(places | dict(zip(fields.column_names, fields.columns, strict=True)))
        self.tables.append(self._with_companions(table) if self.companions and len(table) else table)
        self.rows, self.fields, self.beside = [], [], []

    def _with_companions(self, table: pa.Table) -> pa.Table:
        """Return the rows whose companions exist, with the companions' sizes and offsets. Reject the others."""
        check_columns(table, self.companions)
        names = [companion_paths(companion, table).to_pylist() for companion in self.companions]
        kept = np.zeros(len(table), np.bool_)
        places = np.full((len(self.companions), 2, len(table)), -1)
        for row, (files, own) in enumerate(zip(self.beside, zip(*names, strict=True), strict=True)):
            lacking = next((one for one, name in zip(self.companions, own, strict=True) if name not in files), None)
            if lacking is not None:
                reason = f"{of_companion(lacking.name)} does not exist"
                self._reject(self.rows[row][0], reason, ImageError.__name__)
                continue
            kept[row] = True
            places[:, :, row] = [(files[name][1].nbytes, files[name][1].offset) for name in own]
            self.left_out.update(f".{files[name][0]}" for name in files.keys() - set(own))
        for companion, (nbytes, offsets) in zip(self.companions, places, strict=True):
            table = table.append_column(f"{companion.name}_source_nbytes", pa.array(nbytes))
            table = table.append_column(f"{OFFSET_OF}{companion.name}", pa.array(offsets))
        return table.filter(pa.array(kept))


@functools.lru_cache(64)  # most samples of a tar have the same extensions
def _images(extensions: tuple[str, ...], wanted: str | None) -> tuple[str, ...]:
    """Return the extensions of images: simple ones such as ``jpg``, or else those such as ``left.jpg``."""
    if wanted is not None:
        return (wanted,) if wanted in extensions else ()
    images = tuple(extension for extension in extensions if f".{extension.rpartition('.')[2]}" in IMAGE_SUFFIXES)
    return tuple(extension for extension in images if "." not in extension) or images


def _fields_of(extension: str, text: str) -> dict[str, Any]:
    if extension == "txt":
        return {_FIELD_OF[extension]: text}
    if extension == "cls":
        if not _CLASS_NUMBER.fullmatch(text):
            raise ValueError(f"expected a whole number, got {text[:40]!r}; write names as 'label' in a .json")
        return {_FIELD_OF[extension]: int(text)}
    value = json.loads(text)
    if not isinstance(value, dict):
        raise ValueError("expected a JSON object")
    return value


def _trimmed(name: str) -> str:
    return re.sub(r"^(\./)+", "", name)
