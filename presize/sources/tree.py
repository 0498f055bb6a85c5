"""Files in folders, on a disk or in a bucket: their order, and the classes and splits that the folders are."""

from __future__ import annotations

from array import array
from bisect import bisect_left
from collections.abc import Iterable
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from presize.errors import SourceError, warn
from presize.formatting import plural, printable
from presize.options import SourceOptions
from presize.sources.columns import python_values
from presize.sources.contents import Source, warn_left_out
from presize.sources.labels import SPLITS, class_numbers
from presize.sources.source_files import Url
from presize.store.rejects import UNREADABLE, Reject, claims_to_be_an_image
from presize.store.rejects_file import Rejects

PATHS_AT_ONCE = 65536
"""How many paths are gathered before they become an Arrow array."""

Run = tuple[str | None, range]
"""Rows of files that follow one another, and their class: "" is no class, None that of files that are no samples."""


class FileTree:
    """Files in folders, without a Python object for each: collected by add(), and put in order by sort().

    They are ordered by folder, then by name, both by code points.
    """

    def __init__(self, root: str) -> None:
        self.root = root
        """A folder, or a URL."""
        self.hidden = 0
        """Files and folders whose names begin with a dot."""
        self.rejects: list[Reject] = []
        self.refused_folders: list[Reject] = []
        """Those of the rejects that are folders, left out with all that is in them."""
        self._number_of = {"": 0}
        self._folders, self._sizes, self._mtimes = array("q"), array("q"), array("q")
        self._paths: list[str] = []
        self._path_chunks: list[pa.Array] = []

    def folder(self, path: str) -> int:
        """Return the number of a folder for add(). It exists from now on, and so do all folders above it."""
        if path not in self._number_of:
            self.folder(path.rpartition("/")[0])
        return self._number_of.setdefault(path, len(self._number_of))

    def add(self, folder: int, path: str, nbytes: int, mtime_ns: int) -> None:
        self._folders.append(folder)
        self._sizes.append(nbytes)
        self._mtimes.append(mtime_ns)
        self._paths.append(path)
        if len(self._paths) == PATHS_AT_ONCE:
            self._flush()

    def reject(self, path: str, reason: str, error: str = SourceError.__name__, is_folder: bool = False) -> None:
        self.rejects.append(Reject(path, error, reason))
        if is_folder:
            self.refused_folders.append(self.rejects[-1])

    def _flush(self) -> None:
        self._path_chunks.append(pa.array(self._paths, pa.large_string()))
        self._paths.clear()

    def sort(self) -> None:
        """Put all files in order. To be called once, after the last add()."""
        self._flush()
        self.rejects.sort()
        self.refused_folders.sort()
        self._names = sorted(self._number_of)
        rank = np.empty(len(self._names), np.int64)
        rank[[self._number_of[name] for name in self._names]] = np.arange(len(self._names))
        folders = rank[np.frombuffer(self._folders, np.int64)]
        self._begins = np.concatenate([[0], np.cumsum(np.bincount(folders, minlength=len(rank)))]).tolist()
        columns = {
            "path": pa.concat_arrays(self._path_chunks),  # take() would make of the chunks one more copy, and keep them
            "source_nbytes": pa.array(np.frombuffer(self._sizes, np.int64)),
            "source_mtime_ns": pa.array(np.frombuffer(self._mtimes, np.int64)),
        }
        keys = pa.table({"folder": pa.array(folders), "path": columns["path"]})
        # Arrow sorts by UTF-8 bytes, which is Python's order by code points.
        order = pc.sort_indices(keys, [("folder", "ascending"), ("path", "ascending")])
        del keys, folders, self._folders, self._sizes, self._mtimes, self._path_chunks, self._number_of
        # Column by column: all of ten million files twice are two gigabytes.
        self._files = pa.table({name: columns.pop(name).take(order) for name in list(columns)})

    def _span_below(self, folder: str) -> tuple[int, int]:
        """Where the folders below one begin and end among all of them."""
        if not folder:
            return 1, len(self._names)
        return bisect_left(self._names, f"{folder}/"), bisect_left(self._names, f"{folder}0")  # 0 follows /

    def folders_in(self, folder: str) -> list[str]:
        """Return the paths of the folders in one, sorted."""
        begin, end = self._span_below(folder)
        depth = f"{folder}/x".count("/") if folder else 0
        return [name for name in self._names[begin:end] if name.count("/") == depth]

    def files_in(self, folder: str) -> range:
        """Return the rows of the files that lie directly in a folder."""
        number = bisect_left(self._names, folder)
        return range(self._begins[number], self._begins[number + 1])

    def files_below(self, folder: str) -> list[range]:
        """Return the rows of all files in a folder, and below it."""
        begin, end = self._span_below(folder)
        return [self.files_in(folder), range(self._begins[begin], self._begins[end])]

    @property
    def paths(self) -> pa.ChunkedArray:
        """Those of all files."""
        return self._files.column("path")

    def rows(self, parts: Iterable[range]) -> pa.Table:
        """Return ``path``, ``source_nbytes`` and ``source_mtime_ns`` of these rows."""
        slices = [self._files.slice(rows.start, len(rows)) for rows in parts]
        return pa.concat_tables([self._files.slice(0, 0), *slices])


def list_tree(tree: FileTree, options: SourceOptions, images: str = "") -> Source:
    """List the samples among the files of a tree, those in the folder `images` of it.

    With ``--labels none`` and in a source without class folders all files of the source, or of its splits, are samples
    without a label.
    """
    runs, classes = _classify(tree, options, images)
    if options.classes is not None and classes is None:
        raise SourceError(f"--classes needs class folders, or --labels; source {tree.root!r} has no folders of classes")
    samples = [(name, rows) for name, rows in runs if name is not None]
    table = tree.rows(rows for _, rows in samples)
    if classes is not None:
        classes = tuple(options.classes or classes)
        number_of = class_numbers([name for name, _ in samples], classes)
        unknown = sorted({name for name, _ in samples} - number_of.keys())
        if unknown:
            raise SourceError(
                f"class folder {unknown[0]!r} ({len(unknown)} such) is not in the class list of {len(classes)} names, "
                f"such as {classes[0]!r}; add it to the list or move the folder away"
            )
        numbers = np.array([number_of[name] for name, _ in samples], np.int32)
        table = table.append_column("label", pa.array(np.repeat(numbers, [len(rows) for _, rows in samples])))
    beside = tree.rows(rows for name, rows in runs if name is None)
    if len(table) == 0:
        counts = {"hidden": tree.hidden, "beside the class folders": len(beside), "refused": len(tree.rejects)}
        some = [f"{count} {what}" for what, count in counts.items() if count]
        if tree.rejects:
            some[-1] += f", the first is '{printable(tree.rejects[0].path)}', {tree.rejects[0].reason}"
        raise SourceError(
            f"source {tree.root!r} holds no files ({', '.join(some) or 'nothing at all'}); "
            "expected image files, or a folder of them for each class"
        )
    warn_left_out(tree.root, "folder", tree.refused_folders)
    in_splits = options.split == "folders"
    strays = sum(map(claims_to_be_an_image, python_values(beside.column("path"))))
    if strays:
        folders = "its splits, and folders in them its classes" if in_splits else "its classes"
        warn(
            f"source {tree.root!r} has folders, which become {folders}; {plural(strays, 'image')} beside them belong "
            "to none and are left out: move them into such a folder, or take all images without labels: --labels none"
        )
    by_folder = classes is not None and not in_splits
    root = tree.root if isinstance(tree.root, Url) else Path(tree.root)
    return Source(root, table, classes, Rejects.of(tree.rejects), tree.hidden, len(beside), by_folder)


def _classify(tree: FileTree, options: SourceOptions, images: str) -> tuple[list[Run], tuple[str, ...] | None]:
    """Return the runs of all files, in dataset order, and the sorted names of the class folders, if there are any."""
    in_splits = options.split == "folders"
    parents = tree.folders_in(images) if in_splits else [images]
    if not parents and not tree.refused_folders:
        raise SourceError(
            f"--split folders: source {tree.root!r} has no folders; expected one for each split, such as train and val"
        )
    runs: list[Run] = [(None, tree.files_in(images))] if in_splits else []
    if options.labels == "none":
        return [*runs, *(("", rows) for parent in parents for rows in tree.files_below(parent))], None
    by_split = {parent: tree.folders_in(parent) for parent in parents}
    names = tuple(sorted({_name(folder) for folders in by_split.values() for folder in folders}))
    refused = [folder for folder in tree.refused_folders if folder.error != UNREADABLE]  # not a lost+found
    if not names and not refused:
        if in_splits:
            some = ", ".join(parents[:4]) + (", ..." if len(parents) > 4 else "")
            warn(
                f"source {tree.root!r}: its {plural(len(parents), 'split')} ({some}) hold no class folders, so that no "
                "sample has a label; if these are the classes, leave out --split, and if none are wanted, add --labels "
                "none"
            )
        return [*runs, *(("", tree.files_in(parent)) for parent in parents)], None
    for parent, folders in by_split.items():
        runs.append((None, tree.files_in(parent)))
        runs += [(_name(folder), rows) for folder in folders for rows in tree.files_below(folder)]
    if in_splits:
        _warn_of_differences(tree.root, {split: set(map(_name, folders)) for split, folders in by_split.items()}, names)
    elif options.classes is None and names and set(map(str.lower, names)) <= SPLITS:
        warn(
            f"source {tree.root!r} holds just {', '.join(names)}: they become its classes; if they are splits, use "
            "--split folders"
        )
    return runs, names


def _warn_of_differences(root: str, by_split: dict[str, set[str]], names: tuple[str, ...]) -> None:
    lacking = {split: sorted(set(names) - own) for split, own in by_split.items() if own}
    some = [
        f"{split} lacks {plural(len(absent), 'class', 'classes')}, such as {absent[0]!r}"
        for split, absent in lacking.items()
        if absent
    ]
    if some:
        warn(f"source {root!r}: its splits have different classes; the class list has all of them: {'; '.join(some)}")


def _name(folder: str) -> str:
    return folder.rpartition("/")[2]
