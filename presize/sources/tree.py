"""Files in folders, on a disk or in a bucket: their order, and the folders as classes and splits."""

from __future__ import annotations

from array import array
from collections import defaultdict
from pathlib import Path

import numpy as np
import numpy.typing as npt
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


class FileTree:
    """Files in folders, without a Python object per file. add() collects them, sort() puts them in order."""

    def __init__(self, root: str) -> None:
        self.root = root  # or a URL
        self.hidden = 0
        """Number of hidden files and folders."""
        self.rejects: list[Reject] = []
        self.refused_folders: list[Reject] = []
        """The rejects that are folders, left out with everything inside."""
        self._number_of = {"": 0}
        self._folders, self._sizes, self._mtimes = array("q"), array("q"), array("q")
        self._paths: list[str] = []
        self._path_chunks: list[pa.Array] = []

    def folder(self, path: str) -> int:
        """Return the number of a folder for add(). Adds the folder and all folders above it."""
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

    @property
    def paths(self) -> pa.ChunkedArray:
        self._flush()
        return pa.chunked_array(self._path_chunks)

    def inner_folders(self) -> defaultdict[str, list[str]]:
        inner: defaultdict[str, list[str]] = defaultdict(list)
        for folder in sorted(filter(None, self._number_of)):
            inner[folder.rpartition("/")[0]].append(folder)
        return inner

    def sort(self, levels: int) -> tuple[pa.Table, list[str], npt.NDArray[np.int64]]:
        """Return ``path``, ``source_nbytes`` and ``source_mtime_ns`` of all files, sorted by their first `levels`
        folders, then by folder and name; the folders in this order; and the number of files in each. Call it once,
        after the last add()."""
        self._flush()
        self.rejects.sort()
        self.refused_folders.sort()
        names = sorted(self._number_of, key=lambda folder: (folder.split("/")[:levels], folder))
        rank = np.argsort([self._number_of[name] for name in names])
        folders = rank[np.frombuffer(self._folders, np.int64)]
        counts = np.bincount(folders, minlength=len(names))
        columns = {
            "path": pa.concat_arrays(self._path_chunks),  # take() would copy the chunks once more, and keep them
            "source_nbytes": pa.array(np.frombuffer(self._sizes, np.int64)),
            "source_mtime_ns": pa.array(np.frombuffer(self._mtimes, np.int64)),
        }
        keys = pa.table({"folder": pa.array(folders), "path": columns["path"]})
        # Arrow sorts by UTF-8 bytes, which is Python's order by code points.
        order = pc.sort_indices(keys, [("folder", "ascending"), ("path", "ascending")])
        del keys, folders, self._folders, self._sizes, self._mtimes, self._path_chunks
        # Column by column: two copies of all columns of ten million files take two gigabytes.
        return pa.table({name: columns.pop(name).take(order) for name in list(columns)}), names, counts


def list_tree(tree: FileTree, options: SourceOptions, images: str = "") -> Source:
    """List the samples of a tree, or of its folder `images`, with labels by class folder unless ``--labels none``."""
    in_splits = options.split == "folders"
    classes = _class_folders(tree, options, images)
    if options.classes is not None and classes is None and len(tree.paths):
        raise SourceError(f"--classes needs class folders, or --labels; source {tree.root!r} has no folders of classes")
    levels = bool(images) + in_splits + (classes is not None)  # minimum depth of a sample's folder
    files, folders, counts = tree.sort(levels)
    parts = [folder.split("/") if folder else [] for folder in folders]
    inside = np.array([not images or each[:1] == [images] for each in parts])
    deep = np.array([len(each) >= levels for each in parts])
    beside = files.filter(pa.array(np.repeat(inside & ~deep, counts)))
    is_sample = np.repeat(inside & deep, counts)
    table = files if is_sample.all() else files.filter(pa.array(is_sample))
    if classes is not None:
        known = tuple(options.classes or classes)
        number_of = class_numbers(classes, known)
        unknown = [name for name in classes if name not in number_of]
        if unknown:
            raise SourceError(
                f"{plural(len(unknown), 'class folder is', 'class folders are')} not in the class list of "
                f"{plural(len(known), 'name')}, such as {known[0]!r}; the first is {unknown[0]!r}; add such folders to "
                "the list or move them away"
            )
        numbers = [number_of[each[levels - 1]] for each, is_one in zip(parts, inside & deep, strict=True) if is_one]
        labels = np.repeat(np.array(numbers, np.int32), counts[inside & deep])
        table, classes = table.append_column("label", pa.array(labels)), known
    if len(table) == 0:
        found = {"hidden": tree.hidden, "outside the class folders": len(beside), "refused": len(tree.rejects)}
        some = [f"{count} {what}" for what, count in found.items() if count]
        if tree.rejects:
            some[-1] += f", the first: '{printable(tree.rejects[0].path)}': {tree.rejects[0].reason}"
        raise SourceError(
            f"source {tree.root!r} holds no files ({', '.join(some) or 'nothing at all'}); "
            "expected image files, or a folder of them for each class"
        )
    warn_left_out(tree.root, "folder", tree.refused_folders)
    strays = sum(map(claims_to_be_an_image, python_values(beside.column("path"))))
    if strays:
        become = "its splits, and folders in them its classes" if in_splits else "its classes"
        warn(
            f"source {tree.root!r} has folders, which become {become}; "
            f"{plural(strays, 'image outside them is', 'images outside them are')} left out: move images into these "
            "folders, or use all of them without labels: --labels none"
        )
    by_folder = classes is not None and not in_splits
    root = tree.root if isinstance(tree.root, Url) else Path(tree.root)
    rejects, has_list = Rejects.of(tree.rejects), options.classes is not None
    return Source(root, table, classes, rejects, tree.hidden, len(beside), by_folder, has_list=has_list)


def _class_folders(tree: FileTree, options: SourceOptions, images: str) -> tuple[str, ...] | None:
    """Return the sorted names of the class folders; None if there are none, or with ``--labels none``."""
    in_splits, inner = options.split == "folders", tree.inner_folders()
    parents = inner[images] if in_splits else [images]
    if not parents and not tree.refused_folders:
        raise SourceError(
            f"--split folders: source {tree.root!r} has no folders; expected one for each split, such as train and val"
        )
    if options.labels == "none":
        return None
    by_split = {parent: {folder.rpartition("/")[2] for folder in inner[parent]} for parent in parents}
    names = tuple(sorted(set().union(*by_split.values())))
    refused = [folder for folder in tree.refused_folders if folder.error != UNREADABLE]  # unlike lost+found
    if not names and not refused:
        if in_splits:
            some = ", ".join(parents[:4]) + (", ..." if len(parents) > 4 else "")
            warn(
                f"source {tree.root!r}: its {plural(len(parents), 'split')} ({some}) hold no class folders, so no "
                "sample has a label; if these folders are the classes, leave out --split; if you want no labels, add "
                "--labels none"
            )
        return None
    if in_splits:
        lacking = {split: sorted(set(names) - own) for split, own in by_split.items() if own}
        differences = [
            f"{split} lacks {plural(len(absent), 'class', 'classes')}, such as {absent[0]!r}"
            for split, absent in lacking.items()
            if absent
        ]
        if differences:
            warn(
                f"source {tree.root!r}: its splits have different classes; the class list has all of them: "
                f"{'; '.join(differences)}"
            )
    elif options.classes is None and names and set(map(str.lower, names)) <= SPLITS:
        warn(
            f"source {tree.root!r} holds only {', '.join(names)}: they become its classes; if they are splits, use "
            "--split folders"
        )
    return names
