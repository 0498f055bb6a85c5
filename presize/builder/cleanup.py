"""Removes what publishing leaves behind: replaced datasets, and files that were never published."""

from __future__ import annotations

import os
import warnings
from collections.abc import Sequence
from pathlib import Path

import pyarrow as pa

from presize.builder.state import NEW_MANIFEST, Place, State
from presize.builder.tasks import staging
from presize.errors import PresizeWarning
from presize.store.data_files import MANIFEST, REPORT, is_data_file
from presize.store.filenames import is_safe
from presize.store.manifest import Manifest, read_manifest
from presize.system.files import names_in, rename, write_atomically, writing


def finish_publishing(place: Place) -> None:
    """Give an update's manifests their name. All sizes must change together, or the next update would find no
    base: so all manifests are written before the first is renamed."""
    for root in place.roots:
        if (root / NEW_MANIFEST).exists():
            with writing(root / MANIFEST):
                rename(root / NEW_MANIFEST, root / MANIFEST)
        leave_published(root, read_manifest(root))


def leave_published(root: Path, manifest: Manifest) -> None:
    """Leave nothing but what `manifest`, which is published, names; its page by the name of the one before it, too."""
    remove_unpublished(root, manifest)
    if manifest.report is not None and manifest.report.file != REPORT:
        write_atomically(root / REPORT, (root / manifest.report.file).read_bytes())


def remove_replaced(root: Path, state: State, index: pa.Table | None = None) -> None:
    """Remove the images of the folder datasets that `state` replaces, and their class folders where these are
    empty now. Images that `index` names as well stay."""
    keep = set(index.column("file").to_pylist()) if index is not None and "file" in index.column_names else set()
    for name in filter(is_data_file, state.replaces):
        if not (root / name).is_file():
            continue
        try:
            with (root / name).open("rb") as file, pa.ipc.open_file(file) as old:
                gone = set(old.read_all().column("file").to_pylist()) - keep
        except (OSError, KeyError, pa.ArrowInvalid) as error:
            if getattr(error, "errno", None) is not None:  # it may be read the next time
                raise
            message = f"{root / name} is damaged: the images of the replaced dataset are unknown, and are left in place"
            warnings.warn(message, PresizeWarning, stacklevel=2)
            continue
        staging.remove_files(root, filter(is_safe, gone))
    for name in filter(is_safe, state.replaced_classes):
        if (root / name).is_dir() and not os.listdir(root / name):
            (root / name).rmdir()


def remove_unpublished(root: Path, manifest: Manifest | None, keep: Sequence[str] = ()) -> None:
    """Remove the data files in `root` that neither `manifest` nor `keep` names, and all staged files."""
    named = {file.file for file in manifest.files()} if manifest else set()
    if manifest and manifest.report:
        named.add(REPORT)
    names = [*names_in(root), *(f"shards/{name}" for name in names_in(root / "shards"))]
    gone = [name for name in names if is_data_file(name) and name not in named and name not in keep]
    for name in gone:
        (root / name).unlink()
    shards = root / "shards"
    is_class = manifest is not None and manifest.layout == "folder" and "shards" in (manifest.classes or ())
    # Whether or not this call emptied it: an interrupted one may have, and ImageFolder would take it for a class.
    if not is_class and shards.is_dir() and not os.listdir(shards):
        shards.rmdir()
    staging.remove_staged(root)
