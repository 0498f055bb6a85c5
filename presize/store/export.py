"""Exports a dataset: image files, tar shards for WebDataset, Parquet for Hugging Face, or LMDBs for other programs."""

from __future__ import annotations

import io
import json
import os
import tarfile
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any, get_args

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet

from presize.codecs.encode import encode
from presize.errors import BuildError, DatasetError, OptionError
from presize.options import ExportLayout, ImageOptions, KeyPreset, check_choice
from presize.store.dataset import Dataset
from presize.store.dealing import mix
from presize.store.filenames import SUFFIXES, can_be_made, file_names, is_folder_name, path_problem, repeated
from presize.store.index import index_columns
from presize.store.key_pattern import TEXT_RECOGNITION, KeyPattern, label_pattern
from presize.store.shard import ShardWriter, map_bytes_in_any_order
from presize.system.files import expanded, new_files, reason_and_fix, writing

_RAW_AS = ImageOptions(format="png")
_BATCH = 256


@dataclass(frozen=True)
class ImageFiles:
    """Files to export: an image or .npy file per sample, of images or a companion. `names`: safe, distinct paths."""

    dataset: Dataset
    names: pa.ChunkedArray

    @property
    def suffix(self) -> str:
        return SUFFIXES[self.dataset.manifest.format][0]

    def contents(self, samples: Sequence[int]) -> Iterator[tuple[int, bytes]]:
        """Yield (position in `samples`, content of the file), in the order on disk."""
        if self.dataset.manifest.format == "raw":
            yield from ((position, encode(pixels, _RAW_AS)) for position, pixels in self.dataset.pixels(samples))
        else:
            yield from ((position, bytes(value)) for position, value in self.dataset.values(samples))

    def all_contents(self) -> Iterator[tuple[int, bytes]]:
        """Yield (sample, content of its file) for all samples, batch by batch in the order on disk."""
        for start in range(0, len(self.names), _BATCH):
            batch = range(start, min(start + _BATCH, len(self.names)))
            yield from ((start + position, content) for position, content in self.contents(batch))

    def content(self, sample: int) -> bytes:
        return next(content for _, content in self.contents((sample,)))


@dataclass(frozen=True)
class Exported:
    """A dataset with checked paths and columns, and the names of its label table's columns, including ``label``."""

    dataset: Dataset
    images: ImageFiles
    companions: dict[str, ImageFiles]
    columns: tuple[str, ...]

    @classmethod
    def of(cls, root: str | os.PathLike[str]) -> Exported:
        """Open the dataset in `root`. Raises DatasetError if it is damaged, or a path cannot be a file of a folder."""
        dataset = Dataset(root, readahead=True)  # shards are read from beginning to end
        own = index_columns(dataset.manifest.layout, True, dataset.companions)
        columns = tuple(name for name in dataset.index.schema.names if name not in own)
        for name in ("path", *columns):
            dataset.check_column(name)
        if problem := path_problem(dataset.column("path")):
            raise DatasetError(f"the index of {dataset.root} has {problem}; nothing was written")
        names = file_names(dataset.column("path"), dataset.manifest.format)
        parts = {name: dataset.companion(name) for name in dataset.companions}
        companions = {name: ImageFiles(part, file_names(names, part.manifest.format)) for name, part in parts.items()}
        return cls(dataset, ImageFiles(dataset, names), companions, columns)

    def all_files(self, taken: Collection[str] = ()) -> dict[str, ImageFiles]:
        """Return the images, as ``image``, and the companions by name; ``_`` is appended to a name that is taken."""
        companions: dict[str, ImageFiles] = {}
        for name, files in self.companions.items():
            companions[_free(name, {*taken, *companions})] = files
        return {_free("image", {*taken, *companions}): self.images, **companions}


def _free(name: str, taken: Collection[str]) -> str:
    while name in taken:
        name += "_"
    return name


def write_folder(exported: Exported, out: Path, on_image: Callable[[], None]) -> None:
    """Write a file for each image, and a folder for each class; with companions below ``out/image`` and ``out/mask``,
    as ``--pair mask=mask/{subdir}/{stem}.png`` reads them; a folder that holds all classes is then left out."""
    folders = exported.all_files() if exported.companions else {"": exported.images}
    classes = exported.dataset.manifest.classes or ()
    first, second = (_parts_at(exported.images.names, depth) for depth in (0, 1))
    leave_out = bool(exported.companions) and len(first) == 1 and first.isdisjoint(classes) and second.issubset(classes)
    for folder, files in folders.items():
        root = out / folder
        root.mkdir(parents=True, exist_ok=True)
        for sample, content in files.all_contents():
            name = files.names[sample].as_py()
            file = root / (name.partition("/")[2] if leave_out else name)
            file.parent.mkdir(parents=True, exist_ok=True)
            with file.open("xb") as new:  # two records may not share a file
                new.write(content)
            if files is exported.images:
                on_image()
        for name in classes:
            if can_be_made(name) and all(map(is_folder_name, name.split("/"))):
                (root / name).mkdir(parents=True, exist_ok=True)


def _parts_at(names: pa.ChunkedArray, depth: int) -> set[str]:
    """Return the distinct parts of paths at a depth: at 0, their first folders."""
    parts = pc.replace_substring_regex(names, rf"(?s)^(?:[^/]*/){{{depth}}}([^/]*).*$", r"\1")
    return {*parts.unique().to_pylist()}


def write_tars(exported: Exported, out: Path, on_image: Callable[[], None]) -> None:
    """Write a tar for each shard, and ``classes.txt`` (docs/derive.md). WebDataset shuffles only a few thousand samples
    at a time, so each tar holds the samples of one shard, a random part of the dataset, in random order."""
    dataset = exported.dataset
    classes = _class_list(exported)
    number_labels = "label" in exported.columns and pa.types.is_integer(dataset.column("label").type)
    in_json = [name for name in exported.columns if not (number_labels and name == "label")]
    for name in in_json:
        if not _fits_json(kind := dataset.column(name).type):
            raise DatasetError(f"export: JSON cannot hold the column {name!r} ({kind}); choose --to parquet")
    keys = sample_keys(exported.images.names)
    shard_of = dataset.numbers("shard")
    order = np.lexsort((mix(np.arange(len(shard_of), dtype=np.uint64)), shard_of))

    def fields(samples: pa.Array) -> Iterator[list[tuple[str, bytes]]]:
        """Yield, for each sample, the (name, content) of its files."""
        columns = [dataset.column(name).take(samples).to_pylist() for name in exported.columns]
        for row, (sample, key) in enumerate(zip(samples.to_pylist(), keys.take(samples).to_pylist(), strict=True)):
            values = {name: column[row] for name, column in zip(exported.columns, columns, strict=True)}
            found = [(key + exported.images.suffix, exported.images.content(sample))]
            found += ((f"{key}.{name}{c.suffix}", c.content(sample)) for name, c in exported.companions.items())
            if number_labels:
                found.append((f"{key}.cls", str(values.pop("label")).encode()))
            if in_json:
                found.append((f"{key}.json", _json(values)))
            yield found

    out.mkdir(parents=True, exist_ok=True)
    with new_files(out) as new_file:
        for number, (first, end) in enumerate(_runs(shard_of[order])):
            with tarfile.open(new_file(f"{out.name}-{number:06d}.tar"), "w", format=tarfile.PAX_FORMAT) as tar:
                for start in range(first, end, _BATCH):
                    for files in fields(pa.array(order[start : min(start + _BATCH, end)])):
                        for name, content in files:
                            member = tarfile.TarInfo(name)  # with time 0, owner 0, mode 0644
                            member.size = len(content)
                            tar.addfile(member, io.BytesIO(content))
                        on_image()
                    tar.members.clear()  # type: ignore[attr-defined]  # only reading needs them, and they take memory
        if classes:
            new_file("classes.txt").write_bytes(classes)


def sample_keys(names: pa.ChunkedArray) -> pa.ChunkedArray:
    """Return WebDataset's keys for `names`: without suffix, and with ``_`` for other dots, since a key ends at a dot.
    The sample's number is appended to keys that would occur twice."""
    keys = pc.replace_substring_regex(names, r"\.[^./]*$", "")
    dot = r"\.([^./]*)$"
    while pc.any(pc.match_substring_regex(keys, dot)).as_py():
        keys = pc.replace_substring_regex(keys, dot, r"_\1")
    numbers = pa.array(np.arange(len(keys))).cast(keys.type)
    while pc.count_distinct(keys).as_py() < len(keys):
        numbered = pc.binary_join_element_wise(keys, numbers, pa.scalar("-", keys.type))
        keys = pc.if_else(pc.is_in(keys, value_set=repeated(keys)), numbered, keys)
    return keys


def _class_list(exported: Exported) -> bytes:
    """Return the class names, one per line, as ``presize build --classes`` reads them."""
    names = exported.dataset.manifest.classes or ()
    for name in names:
        if "\n" in name or "\r" in name:
            raise DatasetError(f"export: classes.txt cannot hold the class name {name!r}; choose --to parquet")
    return "".join(f"{name}\n" for name in names).encode()


def _fits_json(kind: pa.DataType) -> bool:
    """Return whether JSON can hold values of a type. Dates and times become ISO 8601 text."""
    if pa.types.is_nested(kind):
        return all(_fits_json(kind.field(i).type) for i in range(kind.num_fields))
    return any(is_one(kind) for is_one in _JSON_TYPES)


_JSON_TYPES = (
    pa.types.is_null, pa.types.is_boolean, pa.types.is_integer, pa.types.is_floating, pa.types.is_string,
    pa.types.is_large_string, pa.types.is_date, pa.types.is_time, pa.types.is_timestamp,
)  # fmt: skip


def _json(values: dict[str, Any]) -> bytes:
    encode = partial(json.dumps, ensure_ascii=False, default=lambda moment: moment.isoformat())
    try:
        return encode(values, allow_nan=False).encode()
    except ValueError:  # NaN and infinities become null
        return encode(json.loads(encode(values), parse_constant=lambda _: None)).encode()


GROUP_BYTES = 16 << 20
FILE_BYTES = 32 * GROUP_BYTES
"""Bytes of images and arrays per row group, which is held in memory, and per file: just over Hugging Face's 500 MB."""

_IMAGE = pa.struct({"bytes": pa.binary(), "path": pa.string()})


def write_parquet(exported: Exported, out: Path, on_image: Callable[[], None]) -> None:
    """Write a row for each sample, in dataset order (docs/derive.md). ``image`` and the companions come before the
    columns of the label table; ``_`` is appended to a name that the label table uses."""
    for name in exported.columns:
        if not _fits_parquet(kind := exported.dataset.column(name).type):
            raise DatasetError(
                f"export: Parquet cannot hold the empty objects in column {name!r} ({kind}); choose --to tar"
            )
    schema, others = _schema(exported), list(exported.columns)
    # Images are stored without compression or statistics.
    encoding: Any = {"compression": "none", "use_dictionary": others, "write_statistics": others}
    numbers_of_group = _numbers(exported, GROUP_BYTES)
    files = list(_runs(_numbers(exported, FILE_BYTES)))
    out.mkdir(parents=True, exist_ok=True)
    with new_files(out) as new_file:
        for number, (first, end) in enumerate(files):
            name = f"{out.name}-{number:05d}-of-{len(files):05d}.parquet"
            with (
                new_file(name).open("wb") as file,  # opened by Python: Arrow accepts only UTF-8 names
                pyarrow.parquet.ParquetWriter(file, schema, **encoding) as writer,
            ):
                for low, high in _runs(numbers_of_group[first:end]):
                    writer.write_batch(_batch(exported, schema, range(first + low, first + high), on_image))


def _fits_parquet(kind: pa.DataType) -> bool:
    """Return whether Parquet can hold values of a type: any but objects without keys."""
    if pa.types.is_nested(kind):
        return kind.num_fields > 0 and all(_fits_parquet(kind.field(i).type) for i in range(kind.num_fields))
    return True


def _schema(exported: Exported) -> pa.Schema:
    images = exported.all_files(exported.columns)
    fields = dict.fromkeys(images, _IMAGE) | {n: exported.dataset.column(n).type for n in exported.columns}
    pictures = (name for name, files in images.items() if not files.dataset.manifest.is_array)
    features: dict[str, Any] = {name: {"_type": "Image"} for name in pictures}
    if exported.dataset.manifest.classes is not None:
        fields["label"] = pa.int64()
        features["label"] = {"names": list(exported.dataset.manifest.classes), "_type": "ClassLabel"}
    return pa.schema(fields, {"huggingface": json.dumps({"info": {"features": features}})})


def _numbers(exported: Exported, nbytes: int) -> npt.NDArray[np.int64]:
    """Return the number of each sample's part; parts are consecutive, of about `nbytes` each."""
    companions = (files.dataset for files in exported.companions.values())
    arrays = (data.numbers("nbytes") for data in companions if data.manifest.is_array)
    lengths = sum(arrays, exported.dataset.numbers("nbytes"))
    return np.asarray((np.cumsum(lengths) - lengths) // nbytes)


def _runs(numbers: npt.NDArray[np.integer]) -> Iterator[tuple[int, int]]:
    """Yield (start, end) of each run of equal numbers."""
    return pairwise([0, *(np.flatnonzero(np.diff(numbers)) + 1).tolist(), len(numbers)])


def _batch(exported: Exported, schema: pa.Schema, samples: range, on_image: Callable[[], None]) -> pa.RecordBatch:
    columns = [_image_column(files, samples) for files in (exported.images, *exported.companions.values())]
    columns += (exported.dataset.column(name).slice(samples.start, len(samples)) for name in exported.columns)
    for _ in samples:
        on_image()
    typed = [column.cast(field.type) for column, field in zip(columns, schema, strict=True)]
    return pa.RecordBatch.from_arrays(typed, schema=schema)


def _image_column(files: ImageFiles, samples: range) -> pa.StructArray:
    values = [b""] * len(samples)
    for position, content in files.contents(samples):
        values[position] = content
    names = files.names.slice(samples.start, len(samples)).to_pylist()
    return pa.StructArray.from_arrays([pa.array(values, pa.binary()), pa.array(names, pa.string())], fields=[*_IMAGE])


_KEY_BYTES = 511
_COMMIT_RECORDS = 10_000
_BASICSR_KEY = r"^[!-\-/-~][ -\-/-~]*$"
"""Printable ASCII without dots, where BasicSR's reader ends a name, or a leading space."""


def write_lmdb(
    exported: Exported, out: Path, on_image: Callable[[], None], keys: str, label_keys: str | None = None
) -> None:
    """Write ``data.mdb``, and ``meta_info.txt`` for ``basicsr``, with keys as ``presize build --keys`` reads them."""
    dataset = exported.dataset
    if exported.companions:
        names = ", ".join(exported.companions)
        raise DatasetError(f"export: --to lmdb cannot hold companions ({names}); choose --to folder")
    if dataset.manifest.format == "raw":
        raise DatasetError(
            "export: other programs cannot read raw pixels; build with --format png, for example from the files that "
            "presize export --to folder writes"
        )
    image_keys, others = _lmdb_keys(exported, keys, label_keys)
    _check_keys([*image_keys, *others])
    values_bytes = int(dataset.numbers("nbytes").sum()) + sum(map(len, others.values()))
    space = map_bytes_in_any_order(len(image_keys) + len(others), values_bytes)
    out.mkdir(parents=True, exist_ok=True)
    with (
        new_files(out) as new_file,
        ShardWriter(new_file("data.mdb"), space, _COMMIT_RECORDS, "choose a folder on another disk") as lmdb,
    ):
        for sample, content in exported.images.all_contents():
            lmdb.put(image_keys[sample], content)
            on_image()
        for key, value in others.items():
            lmdb.put(key, value)
        if keys == "basicsr":
            new_file("meta_info.txt").write_text(_meta_info(exported), "ascii")
        lmdb.publish()


def _lmdb_keys(exported: Exported, keys: str, label_keys: str | None) -> tuple[list[bytes], dict[bytes, bytes]]:
    """Return the keys of the images, and all other records."""
    names = exported.images.names
    if keys in get_args(KeyPreset) and label_keys is not None:
        raise OptionError(f"label_keys: --keys {keys} takes no --label-keys; leave them out, or give patterns for both")
    if keys == "lsun":
        return [name.encode() for name in names.to_pylist()], {}
    if keys == "basicsr":
        stems = pc.replace_substring_regex(names, r"\.[^./]*$", "")
        bad = names.filter(pc.invert(pc.match_substring_regex(stems, _BASICSR_KEY)))
        if len(bad):
            raise DatasetError(
                f"export: BasicSR needs ASCII names without dots before the suffix, got {bad[0].as_py()!r}; "
                "rename it in the source and build with --update, or choose --keys lsun"
            )
        return [stem.encode() for stem in stems.to_pylist()], {}
    labels: KeyPattern | None = None
    if keys == "text-recognition":
        images, labels, column = TEXT_RECOGNITION
    else:
        images, column = KeyPattern.parse("keys", keys), ""
        if label_keys is not None:
            column, labels = label_pattern(label_keys)
    numbers = range(1, len(names) + 1)
    others = {b"num-samples": str(len(names)).encode()}
    if labels is not None:
        texts = zip(numbers, _texts(exported, column), strict=True)
        others = {labels.key(number).encode(): text.encode() for number, text in texts} | others
    return [images.key(number).encode() for number in numbers], others


def _texts(exported: Exported, column: str) -> list[str]:
    """Return the values of a column as text: class names for labels of classes."""
    if column not in exported.columns:
        has = ", ".join(exported.columns) or "none"
        raise DatasetError(
            f"export: there is no column {column!r} for the labels (columns: {has}); name one, such as "
            "--keys image-{:09d} --label-keys caption=label-{:09d}"
        )
    values = exported.dataset.column(column)
    classes = exported.dataset.manifest.classes
    if column == "label" and classes is not None:
        values = pa.chunked_array([pa.array(classes, pa.large_string())]).take(values)
    kind = values.type
    if not (pa.types.is_integer(kind) or pa.types.is_string(kind) or pa.types.is_large_string(kind)):
        raise DatasetError(f"export: labels of an LMDB must be text or whole numbers, but {column!r} is {kind}")
    if values.null_count:
        row = values.is_null().index(True).as_py()
        name = exported.images.names[row].as_py()
        raise DatasetError(
            f"export: {name!r} has no {column!r}, which readers need; leave the sample out with presize derive"
        )
    texts: list[str] = values.cast(pa.large_string()).to_pylist()
    return texts


def _check_keys(keys: list[bytes]) -> None:
    taken = set()
    for key in keys:
        if len(key) > _KEY_BYTES or key in taken:
            problem = "occurs twice" if key in taken else f"has more than {_KEY_BYTES} bytes"
            raise DatasetError(f"export: the key {key.decode()!r} {problem}; choose --keys image-{{:09d}}")
        taken.add(key)


def _meta_info(exported: Exported) -> str:
    """Return BasicSR's lines: name, size, and a compression level that nobody reads."""
    lines = []
    for sample, name in enumerate(exported.images.names.to_pylist()):
        height, width = exported.dataset.shape(sample)
        lines.append(f"{name} ({height},{width},{exported.dataset.manifest.channels}) 1\n")
    return "".join(lines)


_WRITERS: dict[ExportLayout, Callable[[Exported, Path, Callable[[], None]], None]] = {
    "folder": write_folder,
    "tar": write_tars,
    "parquet": write_parquet,
}


def export_dataset(
    root: str | os.PathLike[str],
    out: str | os.PathLike[str],
    layout: ExportLayout = "folder",
    *,
    keys: str | None = None,
    label_keys: str | None = None,
    on_image: Callable[[], None] = lambda: None,
) -> int:
    """Write every image of a dataset for other programs, and return their number.

    The stored bytes are written under the path of each image in its source, with the suffix of the stored format; raw
    pixels become PNG. The same dataset gives the same bytes in every file.

    Args:
        root: the dataset's folder.
        out: the folder to write; it must be empty or not exist.
        layout: "folder" writes image files. "tar" and "parquet" also write labels and the other columns of the label
            table (docs/derive.md). Files of "tar", "parquet" and "lmdb" get their names when all are complete.
        keys: keys of "lmdb": text-recognition, basicsr, lsun, or a pattern such as ``image-{:09d}``, numbered from 1
            (docs/imports.md).
        label_keys: keys of the labels if `keys` is a pattern: ``label-{:09d}``, or ``COLUMN=label-{:09d}``.
        on_image: called after each image.

    Raises:
        DatasetError: the dataset is damaged, or `layout` cannot hold one of its columns.
        BuildError: `out` is not empty, or cannot be written.
        OptionError: `layout` is unknown, or `keys` is missing, is not a pattern, or does not apply to `layout`.
    """
    check_choice("layout", layout, ExportLayout)
    if layout == "lmdb" and keys is None:
        raise OptionError(
            f"keys: --to lmdb needs one of {', '.join(get_args(KeyPreset))}, or a pattern: image-{{:09d}}"
        )
    if layout != "lmdb" and (keys, label_keys) != (None, None):
        raise OptionError("keys: --keys and --label-keys need --to lmdb")
    if keys is not None and keys not in get_args(KeyPreset):
        KeyPattern.parse("keys", keys)  # before the dataset is read
    out = Path(os.path.abspath(expanded(out)))
    with writing(out):
        if os.path.lexists(out) and (not out.is_dir() or os.listdir(out)):  # lexists accepts names of any length
            raise BuildError(f"export: {out} is not an empty folder; choose a new one")
    exported = Exported.of(root)
    try:
        if keys is not None:
            write_lmdb(exported, out, on_image, keys, label_keys)
        else:
            _WRITERS[layout](exported, out, on_image)
    except OSError as error:
        fix = reason_and_fix(error, "run again with a new or empty folder")
        raise BuildError(f"export: cannot write {error.filename or out}: {fix}") from None
    return len(exported.dataset)
