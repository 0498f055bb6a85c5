"""Lists the files of a source without a table: their classes, and the splits above these, are its folders."""

from __future__ import annotations

import warnings
from dataclasses import dataclass, field
from itertools import groupby

import numpy as np
import pyarrow as pa

from presize.errors import PresizeWarning, SourceError
from presize.formatting import plural
from presize.options import SourceOptions
from presize.sources.store_listing import StoreWalk
from presize.sources.walk import Folder, Walk
from presize.store.rejects import claims_to_be_an_image

SPLITS = {"train", "training", "val", "valid", "validation", "test", "testing", "dev", "eval"}


@dataclass
class Tree:
    """The files of a walk in runs, in its order.

    Attributes:
        walk: the walk.
        runs: the class of files that follow one another, and how many they are. "" is the class of samples without a
            class, None that of files that are no samples.
    """

    walk: Walk | StoreWalk
    runs: list[tuple[str | None, int]] = field(default_factory=list)

    def enter(self, folder: Folder) -> list[Folder]:
        """Collect the files of a folder, which are beside the samples. Returns the folders in it, sorted."""
        before = self.walk.files
        inner = sorted(self.walk.enter(folder))
        self.runs.append((None, self.walk.files - before))
        return inner

    def descend(self, folder: Folder, name: str) -> None:
        """Collect all files below a folder as samples of the class `name`."""
        before = self.walk.files
        self.walk.descend(folder)
        self.runs.append((name, self.walk.files - before))

    def tables(self) -> tuple[pa.Table, pa.Table]:
        """The rows of the samples, and of the files beside them."""
        rows = self.walk.table()
        samples, beside, start = [rows.slice(0, 0)], [rows.slice(0, 0)], 0
        for is_beside, runs in groupby(self.runs, key=lambda run: run[0] is None):
            count = sum(count for _, count in runs)
            (beside if is_beside else samples).append(rows.slice(start, count))
            start += count
        return pa.concat_tables(samples), pa.concat_tables(beside)


def list_tree(walk: Walk | StoreWalk, top: Folder, samples: SourceOptions) -> tuple[Tree, tuple[str, ...] | None]:
    """The files below `top`, and the sorted names of the class folders.

    With ``--labels none`` and in a source without class folders all files of the source, or of its splits, are samples,
    and there are no names.

    Raises:
        SourceError: there are no splits.

    Warns:
        PresizeWarning: something was probably not meant.
    """
    tree = Tree(walk)
    in_splits = samples.split == "folders"
    parents = _splits(tree, top) if in_splits else [top]
    if samples.labels == "none":
        for parent in parents:
            tree.descend(parent, "")
        return tree, None
    by_split = {}
    for parent in parents:
        folders = tree.enter(parent)
        by_split[parent.path] = [_name(folder) for folder in folders]
        for folder in folders:
            tree.descend(folder, _name(folder))
    names = tuple(sorted({name for names in by_split.values() for name in names}))
    if not names and not walk.refused_folders:
        beside = int(in_splits)  # the first run, of files beside the splits
        tree.runs[beside:] = [("", count) for _, count in tree.runs[beside:]]
        if in_splits:
            _warn_of_no_classes(walk.root, [_name(parent) for parent in parents])
        return tree, None
    if in_splits:
        _warn_of_differences(walk.root, by_split, names)
    elif samples.classes is None and names and set(map(str.lower, names)) <= SPLITS:
        warnings.warn(
            f"source {walk.root!r} holds just {', '.join(names)}: they become its classes; if they are splits, use "
            "--split folders",
            PresizeWarning,
            stacklevel=4,
        )
    return tree, names


def _splits(tree: Tree, top: Folder) -> list[Folder]:
    folders = tree.enter(top)
    if not folders and not tree.walk.refused_folders:
        raise SourceError(
            f"--split folders: source {tree.walk.root!r} has no folders; expected one for each split, such as train "
            "and val"
        )
    return folders


def _warn_of_no_classes(root: str, splits: list[str]) -> None:
    some = ", ".join(splits[:4]) + (", ..." if len(splits) > 4 else "")
    warnings.warn(
        f"source {root!r}: its {plural(len(splits), 'split')} ({some}) hold no class folders, so that no sample has a "
        "label; if these are the classes, leave out --split, and if none are wanted, add --labels none",
        PresizeWarning,
        stacklevel=5,
    )


def _warn_of_differences(root: str, by_split: dict[str, list[str]], names: tuple[str, ...]) -> None:
    lacking = {split: sorted(set(names) - set(its)) for split, its in by_split.items() if its}
    found = [
        f"{split} lacks {plural(len(some), 'class', 'classes')}, such as {some[0]!r}"
        for split, some in lacking.items()
        if some
    ]
    if found:
        warnings.warn(
            f"source {root!r}: its splits have different classes; the class list has all of them: {'; '.join(found)}",
            PresizeWarning,
            stacklevel=5,
        )


def _name(folder: Folder) -> str:
    return folder.path.rpartition("/")[2]


def warn_of_images(beside: pa.Table, root: str, in_splits: bool) -> None:
    """Warn if files beside the samples are images by their names."""
    images = sum(map(claims_to_be_an_image, beside.column("path").to_pylist()))
    if images:
        folders = "its splits, and folders in them its classes" if in_splits else "its classes"
        warnings.warn(
            f"source {root!r} has folders, which become {folders}; {plural(images, 'image')} beside them belong to "
            "none and are left out: move them into such a folder, or take all images without labels: --labels none",
            PresizeWarning,
            stacklevel=4,
        )


def class_column(tree: Tree, classes: tuple[str, ...]) -> pa.Array:
    """The position of each sample's class in `classes`: int32.

    Raises:
        SourceError: a folder is no class.
    """
    number = {name: i for i, name in enumerate(classes)}
    unknown = sorted({name for name, _ in tree.runs if name is not None} - number.keys())
    if unknown:
        raise SourceError(
            f"class folder {unknown[0]!r} ({len(unknown)} such) is not in the class list of {len(number)} names; "
            "add it to the list or move the folder away"
        )
    runs = [(number[name], count) for name, count in tree.runs if name is not None]
    numbers, counts = np.array(runs, np.int64).reshape(-1, 2).T
    return pa.array(numbers.astype(np.int32).repeat(counts))
