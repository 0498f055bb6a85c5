"""Reads the options of a dataset for another build like it, such as a validation set like its training set."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from itertools import chain
from pathlib import Path
from typing import NamedTuple

from presize.errors import DatasetError
from presize.options import BuildOptions, Size
from presize.remote.bucket import Bucket
from presize.remote.fetch import MANIFEST_BYTES
from presize.sources.dataset import OF_SAMPLES
from presize.store.data_files import MANIFEST
from presize.store.index import read_index, source_columns
from presize.store.manifest import Manifest, parse_manifest, read_manifest
from presize.system.files import expanded, is_url, names_in, working_in


class DatasetOptions(NamedTuple):
    """Options and classes that a build copies from a dataset.

    Attributes:
        options: the options of the dataset's build; if it had several sizes, only the dataset's own.
        classes: the class list, for SourceOptions; None without classes.
        columns: the index columns from its label table or source, which a build does not copy.
        derived: for a derived dataset, build options of its inputs that differ from `options`. A build makes all images
            from their sources.
    """

    options: BuildOptions
    classes: tuple[str, ...] | None
    columns: tuple[str, ...]
    derived: tuple[str, ...]


def options_of(root: str | os.PathLike[str]) -> DatasetOptions:
    """Return the options and classes for a build like the dataset in `root`.

    >>> like = options_of("OUT")                                                        # doctest: +SKIP
    >>> samples = SourceOptions(classes=like.classes)                                   # doctest: +SKIP
    >>> build_dataset("VAL", "OUT_VAL", like.options, samples=samples)                  # doctest: +SKIP

    Raises:
        DatasetError: the dataset is missing or damaged.
        OptionError: a later version of presize built it, with options that this version does not have.
    """
    root = expanded(root)
    manifest = read_manifest(root)
    options = recorded_options(manifest, root)
    with naming_options(root):
        image = replace(options.image, sizes=(Size.parse(manifest.size),))
        derived = tuple(text for text in manifest.derived if text not in OF_SAMPLES)
    index = read_index(Path(root), manifest, check=False)
    columns = source_columns(index.schema.names, [companion.name for companion in options.companions])
    return DatasetOptions(replace(options, image=image), manifest.classes, columns, derived)


def options_to_update(out: str | os.PathLike[str]) -> BuildOptions | None:
    """Return the options of the dataset in the folder or at the URL `out`; None if there is no dataset.

    >>> options = options_to_update("OUT") or BuildOptions()                            # doctest: +SKIP
    >>> build_dataset("RAW", "OUT", options, RunOptions(update=True))                   # doctest: +SKIP

    Raises:
        BuildError: the folder cannot be read.
        DatasetError: its manifest is damaged.
        OptionError: a later version of presize built it, with options that this version does not have.
        RemoteError: the URL cannot be read.
    """
    place = expanded(out)
    manifests = _manifests_at(place) if is_url(place) else _manifests_in(Path(place))
    sizes = (manifest for folder, manifest in manifests if folder in ("", manifest.size))
    return next((recorded_options(manifest, place) for manifest in sizes), None)


def _manifests_in(out: Path) -> Iterator[tuple[str, Manifest]]:
    """Yield the manifests in `out` and in its folders, with the folder's name ("" for `out`)."""
    with working_in(out):
        for folder in ("", *sorted(names_in(out))):
            if (out / folder / MANIFEST).exists():
                yield folder, read_manifest(out / folder)


def _manifests_at(url: str) -> Iterator[tuple[str, Manifest]]:
    """Yield the manifests at `url`, as _manifests_in does."""
    bucket = Bucket(url)
    below = (each.path.partition("/") for each in bucket.list())
    for folder in chain([""], (folder for folder, _, name in below if name == MANIFEST)):
        if found := bucket.get_with_etag(f"{folder}/{MANIFEST}".lstrip("/"), MANIFEST_BYTES):
            yield folder, parse_manifest(found[0], f"{url}/{folder}".rstrip("/"))


def recorded_options(manifest: Manifest, place: object) -> BuildOptions:
    """Return the options in a manifest. Raises DatasetError if damaged, OptionError if a later presize wrote them."""
    with naming_options(place):
        return BuildOptions.from_json(manifest.identity["options"])


@contextmanager
def naming_options(place: object) -> Iterator[None]:
    """Turn the errors that damaged options raise into a DatasetError that names `place`, the dataset."""
    try:
        yield
    except (TypeError, KeyError, AttributeError) as error:
        raise DatasetError(f"{place}: the options in the manifest are damaged: {error}") from None
