"""OUT, the output folder of a build. In the driver, only this module locks it, and renames or removes files in it.

While a build is unfinished, OUT holds hidden files: the lock, the journal, and the sidecar of each finished shard. It
never holds hidden folders, which ImageFolder would take for classes. Tasks rename their own shard and sidecar. The
manifest is published last, so OUT holds the old dataset, or none, until the new one is complete.
"""

from __future__ import annotations

import json
import math
import os
import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import asdict, dataclass, field, replace
from itertools import chain, islice
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from presize.builder.tasks import staging
from presize.errors import BuildError, DatasetError, OptionError, SourceError, warn
from presize.options import BuildOptions, BuildPart
from presize.sources.source_files import Url
from presize.store.data_files import FETCHING, MANIFEST, REPORT, STATE, generation_name, is_data_file
from presize.store.filenames import is_safe
from presize.store.manifest import Manifest, publish_manifest, read_manifest
from presize.store.rejects import claims_to_be_an_image
from presize.system.files import (
    check_file,
    expanded,
    is_url,
    made_folder,
    names_in,
    reason_and_fix,
    remove_temporary,
    rename,
    sync_folder,
    working_in,
    write_atomically,
    writing,
)
from presize.system.locks import NoLocksError, file_lock, is_alone


class TooManyRejectsError(BuildError):
    """More images were rejected or unreadable than the error budget allows."""


_LOCK = ".presize.lock"
_LOCK_PATIENCE_S = 2.0
"""Time that a part waits for the lock, which other parts hold for a moment as they end."""
_PLANNING_LOCK = ".presize.planning.lock"
LISTING = ".presize-listing.arrow"
"""List of the samples of a build in parts (presize.builder.parts)."""
_LEFTOVER = re.compile(r"\.presize-\d+\.npz|\.presize-part-\d+\.lock|" + re.escape(LISTING))
"""Sidecars, and the lock and listing files of parts."""
_NEW_MANIFEST = ".presize-manifest.json"
"""Manifest, in each root, that an update is about to publish."""
_FOLDERS_TRIED = 100


@dataclass(frozen=True)
class BuildJournal:
    """Content of OUT/.presize.json, which exists while a build is unfinished.

    Attributes:
        identity: identity of the plan that is being built (presize.builder.plan).
        generation: number in the names of the build's files.
        replaces: index files, in any root, of folder datasets whose images will be removed.
        replaced_classes: classes whose folders will be removed once they are empty.
        publishing: True once the renaming of a folder's staged files, or of an update's manifests, has begun.
        update: True if the build reuses images of the published dataset.
        versions: versions of the libraries that make the bytes, for information.
        failed: True if rejected images ended the build. The user may then remove them from the source.
    """

    identity: dict[str, Any]
    generation: int
    replaces: tuple[str, ...] = ()
    replaced_classes: tuple[str, ...] = ()
    publishing: bool = False
    update: bool = False
    versions: dict[str, str] = field(default_factory=dict)
    failed: bool = False

    @classmethod
    def read(cls, out: Path) -> BuildJournal | None:
        """Return the journal in `out`; None if it is missing or damaged."""
        try:
            values = json.loads((out / STATE).read_bytes())
            lists = {name: tuple(map(str, values[name])) for name in ("replaces", "replaced_classes")}
            values |= {"identity": dict(values["identity"]), "generation": int(values["generation"])}
            return cls(**{**values, **lists})
        except (FileNotFoundError, ValueError, KeyError, TypeError):
            return None

    def write(self, out: Path) -> None:
        write_atomically(out / STATE, json.dumps(asdict(self), indent=1).encode())

    def output_dir(self, out: Path) -> OutputDir:
        return OutputDir.of(out, self.identity["options"]["image"]["sizes"])


class StagedFiles(NamedTuple):
    """Staged images of a folder dataset: final names, numbers in their staged names, and classes that need folders."""

    names: pa.ChunkedArray
    samples: npt.NDArray[np.int64]
    classes: tuple[str, ...]


@dataclass(frozen=True)
class OutputDir:
    """Output folder of a build: OUT, absolute, and a root for each size: OUT for one size, OUT/SIZE for several."""

    path: Path
    roots: tuple[Path, ...]

    @classmethod
    def of(cls, out: str | os.PathLike[str], sizes: Sequence[object] = ("",)) -> OutputDir:
        path = Path(os.path.abspath(expanded(out)))
        return cls(path, (path,) if len(sizes) == 1 else tuple(path / str(size) for size in sizes))

    @classmethod
    def for_build(
        cls,
        source: str | os.PathLike[str],
        out: str | os.PathLike[str],
        options: BuildOptions,
        *,
        update: bool = False,
        copied: bool = False,
        derived: bool = False,
    ) -> OutputDir:
        """Return the output folders of a build; writes nothing. With `copied`, OUT may hold an unfinished copy of a
        dataset; with `derived`, the source is a dataset. Raises OptionError, SourceError, BuildError or DatasetError if
        OUT cannot be used."""
        if update and options.layout == "folder":
            raise OptionError(
                "update: the files of a folder cannot be replaced all at once; with --to folder use --overwrite "
                "instead, which rebuilds the folder"
            )
        if is_url(out):
            raise BuildError(f"OUT {out} is a URL; give a folder, or use presize.build_to_url")
        source, output = expanded(source), cls.of(out, options.image.sizes)
        inner, outer = Path(os.path.realpath(output.path)), Path(os.path.realpath(source))
        is_folder = Url.of(source) is None
        if is_folder and inner == outer:
            raise SourceError(f"the source and OUT are the same, {out}; choose a new folder for OUT")
        if is_folder and inner.is_relative_to(outer):
            raise SourceError(f"OUT {out} lies inside the source {source}; choose a folder outside it")
        if is_folder and outer.is_relative_to(inner):
            raise SourceError(f"the source {source} lies inside OUT {out}; choose another OUT")
        try:
            os.fspath(output.path).encode()
        except UnicodeEncodeError:
            raise BuildError(f"the name of OUT {os.fspath(output.path)!r} is not UTF-8; choose another") from None
        with working_in(Path(out)):
            output._check_ours(copied, Path(source) if is_folder and not derived else None)
        return output

    def _check_ours(self, copied: bool, source: Path | None) -> None:
        """Raise BuildError or DatasetError unless OUT and the roots are absent, empty, or made by presize. `source`:
        the folder that may have been swapped with OUT, if any."""
        out, roots = self.path, self.roots
        if out not in roots and (out / MANIFEST).exists():
            read_manifest(out)
            raise BuildError(f"OUT {out} is a dataset of one size; choose another OUT for several")
        for folder in dict.fromkeys([out, *roots]):
            if not os.path.lexists(folder):
                continue
            if not folder.is_dir():
                what = "a link that does not lead to a folder" if folder.is_symlink() else "a file"
                raise BuildError(f"OUT {folder} is {what}; choose a folder")
            if (folder / MANIFEST).exists():
                try:
                    read_manifest(folder)
                except DatasetError as error:
                    raise DatasetError(
                        f"{error}; a build replaces only datasets that it can read: choose another OUT, or remove "
                        "this one"
                    ) from None
            elif not (out / STATE).exists() and not (copied and (folder / FETCHING).exists()):
                _check_empty(folder, {root.name for root in roots} if folder not in roots else set(), source)

    # --- contents ---

    def manifests(self) -> list[Manifest | None]:
        """Return the manifest in each root, None if it is missing. Raises DatasetError if one cannot be read."""
        return [read_manifest(root) if (root / MANIFEST).exists() else None for root in self.roots]

    def journal(self) -> BuildJournal | None:
        return BuildJournal.read(self.path)

    def sidecar(self, shard: int) -> Path:
        return self.path / f".presize-{shard:05d}.npz"

    def has_leftovers(self) -> bool:
        """Return True if a build is running or unfinished, or was killed."""
        return any(name.startswith(".presize") for name in names_in(self.path))

    def has_finished_shards(self) -> bool:
        return any(_LEFTOVER.fullmatch(name) and name.endswith(".npz") for name in names_in(self.path))

    def check_files(self, shards_by: str = "--update") -> None:
        """Raise BuildError unless all published files but reports have their sizes; `shards_by` rebuilds shards."""
        for root, manifest in zip(self.roots, self.manifests(), strict=True):
            if manifest is None:
                continue
            for file in manifest.files():
                try:
                    if file != manifest.report:
                        check_file(root / file.file, file.bytes)
                except DatasetError as error:
                    is_shard = file in manifest.every_shard
                    fix = f"{shards_by} rebuilds it" if is_shard else "--overwrite rebuilds the dataset"
                    raise BuildError(f"OUT {self.path} is damaged: {str(error).partition(';')[0]}; {fix}") from None

    # --- locks ---

    @contextmanager
    def lock(self, shared: bool = False) -> Iterator[None]:
        """Create OUT and lock it for this process, or for all parts of a build if `shared`. Raises BuildError."""
        out, path = self.path, self.path / _LOCK
        with ExitStack() as stack:
            try:
                stack.enter_context(made_folder(out))
                lock = file_lock(path, shared, _LOCK_PATIENCE_S if shared else 0.0, optional=not shared)
                held = stack.enter_context(lock)
            except BlockingIOError:
                by_parts = not shared and (out / LISTING).exists()
                what = "parts of a build are writing" if by_parts else "another build is writing"
                raise BuildError(f"{what} to OUT {out}; wait, or choose another OUT") from None
            except NoLocksError as error:
                raise BuildError(f"OUT {error}; a build without --part needs no locks") from None
            except OSError as error:
                raise BuildError(f"cannot write to OUT {out}: {reason_and_fix(error)}") from None
            try:
                yield
            finally:
                with suppress(OSError):  # the build's error says more, and a leftover lock file locks nobody out
                    if not shared or (not (out / STATE).exists() and is_alone(held)):
                        (out / _PLANNING_LOCK).unlink(missing_ok=True)
                        path.unlink(missing_ok=True)

    @contextmanager
    def planning(self) -> Iterator[None]:
        """Let one part plan the build while others wait. Removes temporary files of a part killed while planning."""
        with file_lock(self.path / _PLANNING_LOCK, patience_s=math.inf):
            remove_temporary(self.path, of=(STATE, LISTING))
            yield

    @contextmanager
    def part_lock(self, part: BuildPart) -> Iterator[None]:
        """Lock a part for this process. Raises BuildError if another process runs it."""
        with ExitStack() as stack:
            try:
                stack.enter_context(file_lock(self.path / f".presize-part-{part.number:05d}.lock"))
            except BlockingIOError:
                raise BuildError(f"part {part} of OUT {self.path} is running already; wait for it") from None
            yield

    # --- starting a build ---

    def recover(self) -> BuildJournal | None:
        """Return the journal of an unfinished build, if any. If an update had begun to publish, finish it."""
        journal = self.journal()
        if journal is None or not (journal.update and journal.publishing):
            return journal
        # A repair publishes only the sizes that exist: below OUT, or in OUT if it is one of several, moved elsewhere.
        roots = dict.fromkeys([*journal.output_dir(self.path).roots, self.path])
        begun = OutputDir(self.path, tuple(root for root in roots if _holds_manifest(root)))
        begun._publish_update()
        begun.clear()
        return None

    def start(
        self, identity: dict[str, Any], versions: dict[str, str], abandoned: BuildJournal | None, update: bool
    ) -> BuildJournal:
        """Remove the files of the `abandoned` build, and write the journal of a new build with what it replaces."""
        published = self.manifests()
        manifests = [manifest for manifest in published if manifest is not None]
        folders = [manifest for manifest in manifests if manifest.layout == "folder"]
        replaces = {manifest.index.file for manifest in folders}
        classes = {name for manifest in folders for name in manifest.classes or ()}
        generations = [manifest.generation for manifest in manifests]
        if abandoned is not None:
            replaces |= set(abandoned.replaces)
            classes |= set(abandoned.replaced_classes)
            if abandoned.publishing:  # its index lists the files that are already renamed
                generations.append(abandoned.generation)
                replaces.add(generation_name("index.arrow", abandoned.generation))
            old = abandoned.output_dir(self.path)
            for root, manifest in zip(old.roots, old.manifests(), strict=True):
                if root not in self.roots and manifest is None and root.is_dir():
                    _remove_replaced(root, replace(abandoned, replaces=tuple(replaces)), None)
                    _remove_unpublished(root, None)
                    if root != self.path:
                        staging.remove_if_empty(root)
        journal = BuildJournal(
            identity=identity,
            generation=max(generations, default=-1) + 1,
            replaces=tuple(sorted(replaces)),
            replaced_classes=tuple(sorted(classes)),
            update=update,
            versions=versions,
        )
        self._remove_leftovers()
        for root, manifest in zip(self.roots, published, strict=True):
            _remove_unpublished(root, manifest, keep=journal.replaces)
        journal.write(self.path)  # last, over the old one: after a kill, only a journal shows that OUT is ours
        return journal

    def go_on_with(self, journal: BuildJournal, identity: dict[str, Any]) -> BuildJournal:
        """Return the journal of an unfinished build, changed to a new source. Finished shards stay."""
        (self.path / LISTING).unlink(missing_ok=True)
        journal = replace(journal, identity=identity, failed=False)
        journal.write(self.path)
        return journal

    # --- publishing and cleaning up ---

    def publish(self, journal: BuildJournal, manifests: Sequence[Manifest], staged: StagedFiles | None = None) -> None:
        """Publish datasets whose files are written, and remove the ones that they replace. After an interruption it can
        be called again; recover() finishes the publishing of an update."""
        if journal.update:
            for root, manifest in zip(self.roots, manifests, strict=True):
                sync_folder(root / "shards")
                publish_manifest(root, manifest, _NEW_MANIFEST)
            replace(journal, publishing=True).write(self.path)
            self._publish_update()
        else:
            if staged is not None and not journal.publishing:  # the indexes, which list our files, are written
                replace(journal, publishing=True).write(self.path)
            for root, manifest in zip(self.roots, manifests, strict=True):
                self._publish_build(journal, root, manifest, staged)
        self.clear()

    def _publish_update(self) -> None:
        """Rename the manifests of an update. All of them are already written, so recover() can finish a call that was
        interrupted after some sizes. It must: sizes in different states cannot be updated together."""
        for root in self.roots:
            if (root / _NEW_MANIFEST).exists():
                with writing(root / MANIFEST):
                    rename(root / _NEW_MANIFEST, root / MANIFEST)
            _leave_published(root, read_manifest(root))

    def _publish_build(self, journal: BuildJournal, root: Path, manifest: Manifest, staged: StagedFiles | None) -> None:
        if staged is None:
            sync_folder(root / "shards")
        else:  # many files cannot be replaced atomically, so first the folder stops being a dataset
            (root / MANIFEST).unlink(missing_ok=True)
            for name, sample in zip(staged.names.to_pylist(), staged.samples.tolist(), strict=True):
                staging.unstage(root, name, sample)
            os.sync()  # one for all folders: the names must be on disk before the manifest
        publish_manifest(root, manifest)
        _remove_replaced(root, journal, staged)
        _leave_published(root, manifest)
        for name in () if staged is None else staged.classes:
            with writing(root / name):
                (root / name).mkdir(exist_ok=True)

    def put_back(self, files: Mapping[Path, Path]) -> None:
        """Rename shards that were rebuilt with the same bytes over the damaged ones."""
        for new, old in files.items():
            with writing(old):
                os.replace(new, old)
        for folder in {old.parent for old in files.values()}:
            sync_folder(folder)

    def discard(self) -> None:
        """Remove all files of an unfinished build. Published datasets stay."""
        for root, manifest in zip(self.roots, self.manifests(), strict=True):
            _remove_unpublished(root, manifest)
        self.clear()
        for root in set(self.roots) - {self.path}:
            staging.remove_if_empty(root)

    def clear(self) -> None:
        """Remove the journal, then all leftovers. Without a journal, the rest is known to be leftovers."""
        (self.path / STATE).unlink(missing_ok=True)
        self._remove_leftovers()

    def _remove_leftovers(self) -> None:
        for name in names_in(self.path):
            if _LEFTOVER.fullmatch(name):
                (self.path / name).unlink()
        for root in self.roots:
            (root / _NEW_MANIFEST).unlink(missing_ok=True)
        for folder in {self.path, *self.roots, *(root / "shards" for root in self.roots)}:
            remove_temporary(folder)


def remove_attempts(paths: Collection[Path]) -> None:
    """Remove temporary files of interrupted attempts to write these files. Other temporary files may be in use."""
    for folder in {path.parent for path in paths}:
        remove_temporary(folder, {path.name for path in paths})


def _check_empty(folder: Path, expected: set[str], source: Path | None) -> None:
    others = sorted(name for name in os.listdir(folder) if name not in expected and not name.startswith(".presize"))
    if others:
        are_sizes = all((folder / name / MANIFEST).exists() for name in others)
        what = f"datasets of the sizes {', '.join(others)}; choose another OUT"
        swapped = " (did you swap SRC and OUT?)" if _are_swapped(source, folder) else ""
        other = f"{others[0]!r} and is not a presize dataset; choose a new or empty folder{swapped}"
        raise BuildError(f"OUT {folder} holds {what if are_sizes else other}")


def _holds_manifest(root: Path) -> bool:
    return any((root / name).exists() for name in (MANIFEST, _NEW_MANIFEST))


def _are_swapped(source: Path | None, folder: Path) -> bool:
    """Return True if `source` is a dataset, or missing or empty, and `folder` has images in its first folders."""
    with suppress(OSError):  # a source that cannot be listed may have images
        if source is None or source.is_file():
            return False
        if names_in(source) and not any(chain(source.glob(MANIFEST), source.glob(f"*/{MANIFEST}"))):
            return False
        listed = islice(os.walk(folder), _FOLDERS_TRIED)
        return any(claims_to_be_an_image(name) for _, _, names in listed for name in names)
    return False


def _leave_published(root: Path, manifest: Manifest) -> None:
    """Remove the data files that the published `manifest` does not name, and copy its report to report.html."""
    _remove_unpublished(root, manifest)
    if manifest.report is not None and manifest.report.file != REPORT:
        write_atomically(root / REPORT, (root / manifest.report.file).read_bytes())


def _remove_replaced(root: Path, journal: BuildJournal, staged: StagedFiles | None) -> None:
    """Remove images of replaced folder datasets that the new one does not have, and class folders now empty."""
    for name in filter(is_data_file, journal.replaces):
        if not (root / name).is_file():
            continue
        try:
            with (root / name).open("rb") as file, pa.ipc.open_file(file) as old:
                gone = set(old.read_all().column("file").to_pylist())
        except (OSError, KeyError, pa.ArrowInvalid) as error:
            if getattr(error, "errno", None) is not None:  # it may be readable next time
                raise
            warn(f"{root / name} is damaged: the images of the replaced dataset are unknown and stay in place")
            continue
        gone -= set() if staged is None else set(staged.names.to_pylist())
        staging.remove_files(root, filter(is_safe, gone))
    for name in filter(is_safe, journal.replaced_classes):
        staging.remove_if_empty(root / name)


def _remove_unpublished(root: Path, manifest: Manifest | None, keep: Sequence[str] = ()) -> None:
    """Remove the data files in `root` that neither `manifest` nor `keep` names, and all staged files."""
    named = {file.file for file in manifest.files()} if manifest else set()
    if manifest and manifest.report:
        named.add(REPORT)
    names = [*names_in(root), *(f"shards/{name}" for name in names_in(root / "shards"))]
    for name in names:
        if is_data_file(name) and name not in named and name not in keep:
            (root / name).unlink()
    shards = root / "shards"
    is_class = manifest is not None and manifest.layout == "folder" and "shards" in (manifest.classes or ())
    # ImageFolder would take an empty folder for a class. An interrupted call may have emptied it before this one.
    if not is_class:
        staging.remove_if_empty(shards)
    staging.remove_staged(root)
