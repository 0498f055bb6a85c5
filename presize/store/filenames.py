"""Derives the names of image files in a folder dataset from the paths of their sources. Pure."""

from __future__ import annotations

import functools
import reprlib
from collections.abc import Sequence

import pyarrow as pa
import pyarrow.compute as pc

from presize.errors import SourceError
from presize.options import CompanionFormat, Format
from presize.store.data_files import OUR_NAMES

SUFFIXES: dict[CompanionFormat, tuple[str, str]] = {
    "jpeg": (".jpg", r"(?i)\.(jpe?g|jpe|jfif)$"),
    "png": (".png", r"(?i)\.png$"),
    "webp": (".webp", r"(?i)\.webp$"),
    "raw": (".png", r"(?i)\.png$"),  # raw pixels are exported as PNG
    "npy": (".npy", r"(?i)\.npy$"),
}
"""Default suffix of each format, and an Arrow regular expression of all its suffixes."""

NAME_MAX_BYTES = 255
PATH_MAX_BYTES = 4095
"""PATH_MAX of Linux, without the NUL that ends a path."""

MAX_FOLDERS = 250
"""Functions that create or remove nested folders may recurse for each, and Python allows a thousand calls."""

_UNSAFE = r"(?s)\x00|^$|(^|/)\.{0,2}(/|$)"
"""Arrow regular expression of the paths that is_safe rejects."""


def file_names(paths: pa.ChunkedArray | pa.Array, format: Format) -> pa.ChunkedArray:
    """Return distinct file names for `paths` (large_string, distinct, relative, POSIX).

    A suffix of `format` is kept, any other is replaced. If the name would collide with another file or a folder, the
    new suffix is appended instead: ``a.png`` and ``a.gif`` become ``a.png.jpg`` and ``a.gif.jpg``. The name ``.png``
    has no suffix. Raises SourceError if a name would exceed 255 bytes, or `paths` are not distinct."""
    suffix, fits = SUFFIXES[format]
    paths = pa.chunked_array([paths]) if isinstance(paths, pa.Array) else paths
    if pc.count_distinct(paths).as_py() < len(paths):
        raise SourceError("a path occurs twice, so two images would share a file")
    folders = _folders(paths)
    kept = pc.match_substring_regex(paths, fits)
    names = pc.if_else(kept, paths, _append(pc.replace_substring_regex(paths, r"([^/])\.[^./]+$", r"\1"), suffix))
    longer = paths
    while True:
        taken = pc.is_in(names, value_set=pa.concat_arrays([repeated(names), folders]))
        clashes = pc.and_not(taken, kept)
        if not pc.any(clashes).as_py():
            break
        longer = pc.if_else(clashes, _append(longer, suffix), longer)
        names = pc.if_else(clashes, longer, names)
    last_parts = pc.replace_substring_regex(names, "(?s)^.*/", "")
    too_long = last_parts.filter(pc.greater(pc.binary_length(last_parts), NAME_MAX_BYTES))
    if len(too_long):
        name = too_long[0].as_py()
        raise SourceError(f"the file name {name!r} would be longer than {NAME_MAX_BYTES} bytes; rename the source")
    return names


def folder_files(paths: pa.ChunkedArray, format: Format, class_folders: Sequence[str]) -> pa.ChunkedArray:
    """Return the file names of a folder dataset, as file_names does. `class_folders` are created even without images.
    Raises SourceError if a name is reserved for presize, too long, or cannot be a folder."""
    files = file_names(paths, format)
    taken = files.filter(pc.match_substring_regex(files, OUR_NAMES))
    if len(taken):
        raise SourceError(
            f"--to folder reserves that name for presize's own files: rename {taken[0].as_py()!r} in the source"
        )
    for name in class_folders:
        if not is_folder_name(name):
            raise SourceError(f"--to folder creates a folder for each class, but {name!r} cannot be a folder name")
    return files


def _append(names: pa.ChunkedArray, suffix: str) -> pa.ChunkedArray:
    return pc.binary_join_element_wise(names, *(pa.scalar(text, names.type) for text in (suffix, "")))


def _folders(paths: pa.ChunkedArray) -> pa.Array:
    found = [pa.array([], paths.type)]
    while len(paths := paths.filter(pc.match_substring(paths, "/"))):
        found.append(pc.replace_substring_regex(paths, "/[^/]*$", "").unique())
        paths = found[-1]
    return pa.concat_arrays(found)


def path_problem(paths: pa.Array) -> str | None:
    """Return the first reason why `paths` (large_string, valid UTF-8) cannot be distinct files of a folder, or None."""
    for what, problem in _problems(paths).items():
        found = paths.filter(problem)
        if len(found):
            return f"the path {reprlib.repr(found[0].as_py())}, {what}"
    if pc.count_distinct(paths).as_py() < len(paths):
        return f"the path {reprlib.repr(repeated(paths)[0].as_py())} twice"
    return None


def repeated(texts: pa.Array | pa.ChunkedArray) -> pa.Array:
    """Return the texts that occur more than once, each once, in the order of their first occurrence."""
    counts = texts.value_counts()
    return counts.filter(pc.greater(counts.field("counts"), 1)).field("values")


def unsafe_paths(paths: pa.Array | pa.ChunkedArray) -> pa.Array | pa.ChunkedArray:
    """Return a mask of `paths` (large_string) that leave their folder, or are too long or too deep; null for null."""
    return functools.reduce(pc.or_, _problems(paths).values())


def _problems(paths: pa.Array | pa.ChunkedArray) -> dict[str, pa.Array | pa.ChunkedArray]:
    return {
        "which leads out of the folder": pc.match_substring_regex(paths, _UNSAFE),
        f"which is longer than {PATH_MAX_BYTES} bytes": pc.greater(pc.binary_length(paths), PATH_MAX_BYTES),
        f"which has more than {MAX_FOLDERS} folders": pc.greater(pc.count_substring(paths, "/"), MAX_FOLDERS),
    }


def is_safe(path: str) -> bool:
    """Return whether a relative POSIX path stays inside the folder that it is joined to."""
    return bool(path) and "\0" not in path and not any(part in ("", ".", "..") for part in path.split("/"))


def can_be_made(path: str) -> bool:
    """Return whether a path is safe, and neither too long nor too deep for a file."""
    return is_safe(path) and len(path.encode()) <= PATH_MAX_BYTES and path.count("/") <= MAX_FOLDERS


def is_folder_name(name: str) -> bool:
    """Return whether a folder inside another one can have this name."""
    return is_safe(name) and "/" not in name and len(name.encode()) <= NAME_MAX_BYTES
