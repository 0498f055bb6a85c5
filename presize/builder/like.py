"""The options that a dataset was built with, for another build like it: a validation set like its training set."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

from presize.builder.inputs import OF_SAMPLES
from presize.errors import DatasetError
from presize.options import BuildOptions, Size
from presize.store.index import COMPANION_COLUMNS, INDEX_COLUMNS, read_index
from presize.store.manifest import read_manifest


class DatasetOptions(NamedTuple):
    """What a build takes over from a dataset.

    Attributes:
        options: those that it was built with; of several sizes its own alone.
        classes: its class list, for SourceOptions; None without classes.
        columns: those that its index has from a label table or from its source. They are not taken over: a build has
            those of its own table and source.
        derived: how the datasets were built that it was derived from, where that differs. Nor is this: a build makes
            images from their sources.
    """

    options: BuildOptions
    classes: tuple[str, ...] | None
    columns: tuple[str, ...]
    derived: tuple[str, ...]


def options_of(root: str | os.PathLike[str]) -> DatasetOptions:
    """Return what a build takes over from the dataset in `root`, to be like it.

    >>> like = options_of("OUT")                                                        # doctest: +SKIP
    >>> samples = SourceOptions(classes=like.classes)                                   # doctest: +SKIP
    >>> build_dataset("VAL", "OUT_VAL", like.options, samples=samples)                  # doctest: +SKIP

    Raises:
        DatasetError: it is missing or damaged.
        OptionError: a later presize built it, with options that this one does not have.
    """
    manifest = read_manifest(root)
    try:
        options = BuildOptions.from_json(manifest.identity["options"])
        image = replace(options.image, sizes=(Size.parse(manifest.size),))
        derived = tuple(text for text in manifest.derived if text not in OF_SAMPLES)
    except (TypeError, KeyError, AttributeError) as error:
        raise DatasetError(f"{root}: the options in the manifest are damaged: {error}") from None
    made = {*INDEX_COLUMNS, *(f"{each.name}_{column}" for each in options.companions for column in COMPANION_COLUMNS)}
    names = read_index(Path(root), manifest, check=False).schema.names
    columns = tuple(name for name in names if name not in made)
    return DatasetOptions(replace(options, image=image), manifest.classes, columns, derived)
