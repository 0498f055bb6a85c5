"""LMDBs of other programs as sources: which keys are images and labels, and where their values lie in the file. Pages
are read without liblmdb, because it trusts them."""

from __future__ import annotations

import mmap
import os
import re
from collections.abc import Callable, Sequence
from functools import partial
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from presize.codecs.sniff import sniff
from presize.errors import SourceError, warn
from presize.formatting import plural, printable
from presize.options import Companion, SourceOptions
from presize.sources.columns import as_text, looks_like, whole_numbers
from presize.sources.contents import Contents, as_utf8, field_name, rejected
from presize.sources.source_files import Container
from presize.store import shard_pages
from presize.store.key_pattern import TEXT_RECOGNITION, KeyPattern, label_pattern
from presize.store.rejects import Reject
from presize.system.file_version import FileVersion
from presize.system.files import open_at_once

_PAGES_AT_ONCE = 4096
_PAGE_NUMBER_BYTES = 8
_SUB_DATABASE, _DUPLICATES = 0x02, 0x04
_KEYS_SHOWN = 5
_TRIED = 16
_LABEL_BYTES = 1 << 16
_ROWS_AT_ONCE = 65536
_COUNTS = pa.array(["num-samples", "num_samples"], pa.large_binary())
"""Keys of the number of samples, in CRNN's layout and similar ones."""
_COUNT_BYTES = 20
_WHOLE = re.compile(rb"\s*[0-9]{1,18}\s*")
_META_INFO = "meta_info.txt"
_BEGIN_BYTES = 4096
_PICKLE = re.compile(rb"\x80[\x02-\x05]|\([dl]p[0-9]+\n|\(?c[\w.]+\n[\w.]+\np[0-9]+\n|[\]}]q\0")
"""First bytes of pickles, and of no image."""
_DATUM = re.compile(rb"\x08[\x01-\x04]\x10[\x80-\xff]*[\x01-\x7f]\x18|\x22[\x80-\xff]*[\x00-\x7f]\xff\xd8\xff")
"""First bytes of a Caffe Datum: channels and height in Protocol Buffers, or a JPEG."""
_NUMBERED = re.compile(r"([^{}%]*?)([0-9]{1,17})([^0-9{}%]*)")

Numbers = npt.NDArray[np.int64]


class LmdbValues(NamedTuple):
    """The records of an LMDB, in key order, with the location of each value in `content`, the mapped file."""

    content: npt.NDArray[np.uint8]
    keys: pa.LargeBinaryArray
    offset: Numbers
    nbytes: Numbers
    version: FileVersion

    def read(self, rows: Numbers, max_bytes: int) -> pa.LargeBinaryArray:
        return _gather(self.content, self.offset[rows], np.minimum(self.nbytes[rows], max_bytes))


def read_lmdb(path: str) -> LmdbValues:
    """Return the keys, and the locations of all values, of the main database in an LMDB 0.9 file. Raises SourceError if
    it is damaged: values must lie in the file, and not overlap. The file must not shrink while it is mapped."""
    try:
        with open(path, "rb", buffering=0, opener=open_at_once) as file:
            version = FileVersion.of(os.fstat(file.fileno()))
            nbytes = version.nbytes & ~1
            shard_pages.require(nbytes, "it is empty")
            mapped = mmap.mmap(file.fileno(), nbytes, prot=mmap.PROT_READ)
        return _read(np.frombuffer(mapped, np.uint8), version)
    except shard_pages.Damaged as error:
        raise SourceError(f"it is damaged: {error}") from None
    except OSError as error:
        raise SourceError(f"it cannot be read: {error.strerror}") from error


def _read(content: npt.NDArray[np.uint8], version: FileVersion) -> LmdbValues:
    shorts = content.view("<u2")
    meta = shard_pages.newest_meta(content.data)
    if meta.flags:
        raise SourceError("its keys have several values, or are native integers; expected plain keys and values")
    pages = shard_pages.leaf_pages(shorts, meta, len(content), shard_pages.child_pages)
    blocks = []
    for start in range(0, len(pages), _PAGES_AT_ONCE):
        some = pages[start : start + _PAGES_AT_ONCE]
        nodes = shard_pages.read_nodes(shorts, some, meta.page_bytes, shard_pages.LEAF)
        blocks.append(_leaves(content, nodes, meta))
    offset, nbytes = (np.concatenate([np.empty(0, np.int64), *(block[k] for block in blocks)]) for k in (1, 2))
    shard_pages.require(
        len(offset) == meta.entries, f"it has {len(offset)} records where its meta page says {meta.entries}"
    )
    stored = np.flatnonzero(nbytes)
    stored = stored[np.argsort(offset[stored], kind="stable")]
    ends = offset[stored] + nbytes[stored]
    shard_pages.require((ends[:-1] <= offset[stored][1:]).all(), "two values overlap")
    keys = pa.concat_arrays([pa.array([], pa.large_binary()), *(block[0] for block in blocks)])
    return LmdbValues(content, keys, offset, nbytes, version)


def _leaves(
    content: npt.NDArray[np.uint8], nodes: shard_pages.Nodes, meta: shard_pages.Meta
) -> tuple[pa.LargeBinaryArray, Numbers, Numbers]:
    lengths = (nodes.header & np.uint64(2**32 - 1)).astype(np.int64)
    flags = nodes.header >> np.uint64(32) & np.uint64(0xFFFF)
    key_bytes = (nodes.header >> np.uint64(48)).astype(np.int64)
    value = nodes.begin + shard_pages.NODE_BYTES + key_bytes  # from the start of its page
    shard_pages.require((value <= meta.page_bytes).all(), "a key leaves its page")
    keys = _gather(content, nodes.page + nodes.begin + shard_pages.NODE_BYTES, key_bytes)
    other = np.flatnonzero((flags != 0) & (flags != shard_pages.OVERFLOW_VALUE))
    if len(other):
        what = {_SUB_DATABASE: "a database", _DUPLICATES: "several values"}.get(int(flags[other[0]]), "no value")
        raise SourceError(f"its key {keys[int(other[0])].as_py()!r} holds {what}; expected plain keys and values")
    elsewhere = flags == shard_pages.OVERFLOW_VALUE
    in_page = np.where(elsewhere, _PAGE_NUMBER_BYTES, lengths)
    shard_pages.require((value + in_page <= meta.page_bytes).all(), "a value leaves its page")
    offset = nodes.page + value
    numbers = offset[elsewhere][:, np.newaxis] + np.arange(_PAGE_NUMBER_BYTES)
    first_page = content[numbers].view("<u8")[:, 0]
    shard_pages.require(((first_page >= 2) & (first_page <= meta.last_page)).all(), "a value lies outside of the file")
    offset[elsewhere] = first_page.astype(np.int64) * meta.page_bytes + shard_pages.HEADER_BYTES
    shard_pages.require((offset + lengths <= len(content)).all(), "a value leaves the file")
    return keys, offset, lengths


def _gather(content: npt.NDArray[np.uint8], begin: Numbers, lengths: Numbers) -> pa.LargeBinaryArray:
    ends = np.concatenate([[0], np.cumsum(lengths)])
    places = np.arange(ends[-1]) + np.repeat(begin - ends[:-1], lengths)
    buffers = [None, pa.py_buffer(ends.astype(np.int64)), pa.py_buffer(content[places])]
    return pa.LargeBinaryArray.from_buffers(pa.large_binary(), len(lengths), buffers)


_Chosen = tuple[Numbers, dict[str, pa.Array], list[Reject]]
"""The images of an LMDB: their rows, in sample order; ``path`` and fields; and rejects."""


def list_lmdb(path: str, name: str, options: SourceOptions, _: Sequence[Companion] = ()) -> Contents:
    keys, choose = options.keys, _PRESETS.get(options.keys or "")
    if keys is not None and choose is None:
        images = KeyPattern.parse("keys", keys)
        column, labels = ("label", None) if options.label_keys is None else label_pattern(options.label_keys)
        choose = partial(_numbered, images=images, labels=labels, column=column)
    values = read_lmdb(path)
    if choose is None:
        _check_values(values, np.arange(len(values.keys)), is_chosen=False)
        raise SourceError(f"an LMDB needs --keys; {_expected(values)}")
    rows, columns, rejects = choose(values, path, name)
    if not len(rows) and not rejects:
        raise SourceError(f"no key matches --keys {keys}; {_expected(values)}")
    _check_values(values, rows)
    columns |= {"source_nbytes": pa.array(values.nbytes[rows]), "offset": pa.array(values.offset[rows])}
    return Contents(Container(name, values.version), pa.table(columns), rejects=rejects)


def _paths(values: LmdbValues, rows: Numbers) -> pa.Array:
    """Return keys as paths. A key that is not UTF-8 gets an empty path, which is rejected later."""
    keys = values.keys.take(pa.array(rows))
    try:
        return keys.cast(pa.large_string())
    except pa.ArrowInvalid:
        return pa.array([as_text(key) or "" for key in keys.to_pylist()], pa.large_string())


def _numbered(
    values: LmdbValues, _: str, name: str, images: KeyPattern, labels: KeyPattern | None = None, column: str = "label"
) -> _Chosen:
    rows, numbers = images.numbers(values.keys)
    _warn_of_count(values, len(rows), name)
    if labels is None:
        return rows, {"path": _paths(values, rows)}, []
    label_rows, label_numbers = labels.numbers(values.keys)
    if len(rows) and not len(label_rows):
        raise SourceError(f"no key matches --label-keys {labels}; {_expected(values)}")
    nearest = np.searchsorted(label_numbers, numbers)
    has_label = np.append(label_numbers, -1)[nearest] == numbers
    texts = np.full(len(rows), None, object)
    texts[has_label] = _label_texts(values, label_rows[nearest[has_label]], column)
    if column == "label":  # an empty one is no name, which would make all numbers names
        texts[[isinstance(text, str) and not text.strip() for text in texts]] = None
    is_good = np.array([isinstance(text, str) for text in texts], np.bool_)
    keys = [as_utf8(os.fsdecode(key)) for key in values.keys.take(pa.array(rows[~is_good])).to_pylist()]
    rejects = []
    for key, label in zip(keys, texts[~is_good], strict=True):
        like = label and looks_like(label)
        reason = f"its label is not UTF-8 text{f'; it looks like {like}' if like else ''}"
        rejects.append(rejected(f"{name}/{key}", "it has no label" if label is None else reason))
    good = pa.array(texts[is_good], pa.large_string())
    # Labels are numbers if all are whole numbers; otherwise they are names of classes.
    numbered = whole_numbers(pc.utf8_trim_whitespace(good)) if column == "label" else good
    fields = {field_name(column): numbered if pa.types.is_integer(numbered.type) else good}
    return rows[is_good], {"path": _paths(values, rows[is_good]), **fields}, rejects


def _label_texts(values: LmdbValues, rows: Numbers, column: str) -> list[str | bytes]:
    """Return labels as text, or as bytes if they are not text."""
    texts: list[str | bytes] = []
    for start in range(0, len(rows), _ROWS_AT_ONCE):
        for value in values.read(rows[start : start + _ROWS_AT_ONCE], _LABEL_BYTES).to_pylist():
            is_text = len(value) < _LABEL_BYTES and (column == "label" or b"\0" not in value)
            text = as_text(value) if is_text else None
            texts.append(value if text is None else text)
    return texts


def _warn_of_count(values: LmdbValues, images: int, name: str) -> None:
    rows = pc.index_in(_COUNTS, values.keys).drop_null().to_numpy()
    for row, value in zip(rows, values.read(rows.astype(np.int64), _COUNT_BYTES).to_pylist(), strict=True):
        if images and _WHOLE.fullmatch(value) and int(value) != images:
            warn(
                f"{name!r}: {_shown(values.keys[int(row)].as_py())} says {int(value):,} samples, but the LMDB has "
                f"{plural(images, 'image')}; all are used"
            )


def _basicsr(values: LmdbValues, path: str, name: str) -> _Chosen:
    """Return the images in the order of BasicSR's meta_info.txt. ``0001.png (480,480,3) 1`` has the key ``0001``."""
    try:
        with open(os.path.join(os.path.dirname(path), _META_INFO), encoding="utf-8", opener=open_at_once) as file:
            names = [line.strip().rsplit(" (", 1)[0] for line in file if not line.isspace()]
    except (OSError, UnicodeError) as error:
        reason = getattr(error, "strerror", None) or "it is not UTF-8 text"
        raise SourceError(
            f"--keys basicsr needs {_META_INFO} next to the LMDB: {reason}; {_expected(values)}"
        ) from None
    keys = pa.array([os.path.splitext(one)[0].encode() for one in names], pa.large_binary())
    row = pc.fill_null(pc.index_in(keys, values.keys), -1).to_numpy()
    rejects = [rejected(f"{name}/{names[k]}", "the LMDB has no such key") for k in np.flatnonzero(row < 0).tolist()]
    listed = np.flatnonzero(row >= 0)
    paths = pa.array(names, pa.large_string()).take(pa.array(listed))
    return row[listed].astype(np.int64), {"path": paths}, rejects


def _lsun(values: LmdbValues, _path: str, _name: str) -> _Chosen:
    """Return all values in file order, since LSUN's keys are hashes."""
    rows = np.argsort(values.offset, kind="stable")
    return rows, {"path": _paths(values, rows)}, []


_PRESETS: dict[str, Callable[[LmdbValues, str, str], _Chosen]] = {
    "text-recognition": partial(
        _numbered, images=TEXT_RECOGNITION[0], labels=TEXT_RECOGNITION[1], column=TEXT_RECOGNITION[2]
    ),
    "basicsr": _basicsr,
    "lsun": _lsun,
}


def _expected(values: LmdbValues) -> str:
    shown = [_shown(key) for key in values.keys.slice(0, _KEYS_SHOWN).to_pylist()]
    if not shown:
        return "it is empty"
    more, example = ", …" if len(values.keys) > len(shown) else "", "image-{:09d} for image-000000001"
    if match := _NUMBERED.fullmatch(values.keys[0].as_py().decode("utf-8", "replace")):
        pattern = KeyPattern(match[1], len(match[2]), match[3])
        if 3 * len(pattern.numbers(values.keys)[0]) >= len(values.keys) > 1:
            example = f"{pattern} for {shown[0][1:-1]}"
    return (
        f"its first keys are {', '.join(shown)}{more}; expected a pattern, such as --keys {example}, or one of "
        f"{', '.join(_PRESETS)}"
    )


def _check_values(values: LmdbValues, rows: Numbers, is_chosen: bool = True) -> None:
    """Try up to 16 values. Raises SourceError for a pickle or Caffe Datum, or if chosen values include no image."""
    tried = rows[np.unique(np.linspace(0, len(rows) - 1, min(_TRIED, len(rows))).astype(np.int64))]
    begins = [bytes(value) for value in values.read(tried, _BEGIN_BYTES).to_pylist()]
    keys = values.keys.take(pa.array(tried)).to_pylist()
    for key, begin in zip(keys, begins, strict=True):
        if _PICKLE.match(begin):
            raise SourceError(
                f"the value of {_shown(key)} is a Python pickle, and unpickling can run arbitrary code; use the "
                "program that wrote this LMDB to write an LMDB of encoded images"
            )
        if _DATUM.match(begin) and not sniff(begin):
            raise SourceError(
                f"the value of {_shown(key)} is a Caffe Datum, which holds pixels and a label; use Caffe's tools to "
                "write an LMDB or a folder of encoded images"
            )
    if is_chosen and begins and not any(map(sniff, begins)):
        raise SourceError(
            f"none of the values tried ({len(begins)}) is an encoded image: the value of {_shown(keys[0])} begins with "
            f"{begins[0][:12]!r}; expected a JPEG, PNG, WebP or other image file in each"
        )


def _shown(key: bytes) -> str:
    return repr(printable(as_utf8(os.fsdecode(key))[:40]))
