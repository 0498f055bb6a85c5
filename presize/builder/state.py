"""Where a build writes, whether it may, and the files that it keeps in OUT while it is unfinished.

These are hidden files, never folders, which ImageFolder would take for classes: the lock, the state (what is
being built), and the side-car of each finished shard (presize.builder.tasks.sidecar).
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from presize.errors import BuildError, DatasetError, OptionError, SourceError
from presize.options import BuildOptions, RunOptions
from presize.sources.store_source import Url
from presize.store.data_files import FETCHING, MANIFEST, STATE
from presize.store.manifest import Manifest, read_manifest
from presize.system.files import is_url, names_in, remove_temporary, sync_folder, write_atomically
from presize.system.locks import file_lock, is_alone

_LOCK = ".presize.lock"
_MOMENT_S = 2.0
"""How long a part waits for a lock that others hold for a moment, while they end."""
PLANNING_LOCK = ".presize.planning.lock"
"""Held by the part of a build that plans it, while the others wait."""
LISTING = ".presize-listing.arrow"
"""The samples of a build by parts (presize.builder.parts)."""
_LEFTOVER = re.compile(r"\.presize-\d+\.npz|\.presize-part-\d+\.lock|" + re.escape(LISTING))
"""Side-cars, and what parts leave."""
NEW_MANIFEST = ".presize-manifest.json"
"""In each root, the manifest that an update is about to publish."""


@dataclass(frozen=True)
class Place:
    """Where a build writes.

    Attributes:
        out: OUT, absolute, since worker processes may have another working directory.
        roots: the dataset folder of each size: OUT itself for one size, OUT/SIZE for several.
    """

    out: Path
    roots: tuple[Path, ...]

    @classmethod
    def of(cls, out: str | os.PathLike[str], sizes: Sequence[object]) -> Place:
        place = Path(os.path.abspath(out))
        return cls(place, (place,) if len(sizes) == 1 else tuple(place / str(size) for size in sizes))

    def manifests(self) -> list[Manifest | None]:
        """The manifest in each root, None where there is none. Raises DatasetError for one that cannot be read."""
        return [read_manifest(root) if (root / MANIFEST).exists() else None for root in self.roots]

    def sidecar(self, shard: int) -> Path:
        return self.out / f".presize-{shard:05d}.npz"

    def part_lock(self, part: int) -> Path:
        return self.out / f".presize-part-{part:05d}.lock"

    def has_leftovers(self) -> bool:
        """True while a build is running, unfinished, or was killed."""
        return any(name.startswith(".presize") for name in names_in(self.out))

    def has_finished_shards(self) -> bool:
        return any(_LEFTOVER.fullmatch(name) and name.endswith(".npz") for name in names_in(self.out))

    def clear(self) -> None:
        """Remove the state, side-cars, and what parts have left. The state goes first: without it, the others are known
        to be leftovers."""
        (self.out / STATE).unlink(missing_ok=True)
        for name in names_in(self.out):
            if _LEFTOVER.fullmatch(name):
                (self.out / name).unlink()
        for root in self.roots:
            (root / NEW_MANIFEST).unlink(missing_ok=True)
        for folder in {self.out, *self.roots, *(root / "shards" for root in self.roots)}:
            remove_temporary(folder)


@dataclass(frozen=True)
class State:
    """The content of OUT/.presize.json.

    Attributes:
        identity: what is being built (presize.builder.plan).
        generation: the one that its files are named after.
        replaces: the indexes, in any root, of folder datasets whose images are to be removed.
        replaced_classes: classes whose folders are to be removed once they are empty.
        publishing: True once a folder's staged files, or an update's manifests, are being given their names.
        update: whether it reuses images of the published dataset.
        versions: those of the libraries that make the bytes, for information.
    """

    identity: dict[str, Any]
    generation: int
    replaces: tuple[str, ...] = ()
    replaced_classes: tuple[str, ...] = ()
    publishing: bool = False
    update: bool = False
    versions: dict[str, str] = field(default_factory=dict)

    def write(self, out: Path) -> None:
        write_atomically(out / STATE, json.dumps(asdict(self), indent=1).encode())

    @classmethod
    def read(cls, out: Path) -> State | None:
        """The state of the unfinished build in `out`; None when there is none, or it cannot be read."""
        try:
            values = json.loads((out / STATE).read_bytes())
            return cls(
                dict(values["identity"]),
                int(values["generation"]),
                tuple(map(str, values["replaces"])),
                tuple(map(str, values["replaced_classes"])),
                bool(values["publishing"]),
                bool(values["update"]),
                dict(values["versions"]),
            )
        except (FileNotFoundError, ValueError, KeyError, TypeError):
            return None

    def place(self, out: Path) -> Place:
        """Where this build was writing."""
        return Place.of(out, self.identity["options"]["image"]["sizes"])


@contextmanager
def lock(out: Path, shared: bool = False) -> Iterator[None]:
    """Lock `out` for this process, and make it when it is absent. The lock ends with the process, however that ends.

    Args:
        out: the folder.
        shared: with other parts of the same build.

    Raises:
        BuildError: another build holds the lock, or `out` cannot be written to.
    """
    created = not out.exists()
    path = out / _LOCK
    with ExitStack() as stack:
        try:
            out.mkdir(parents=True, exist_ok=True)
            held = stack.enter_context(file_lock(path, shared, _MOMENT_S if shared else 0.0))
            if created:
                sync_folder(out.parent)
        except BlockingIOError:
            by_parts = not shared and (out / LISTING).exists()
            what = "parts of a build are writing" if by_parts else "another build is writing"
            raise BuildError(f"{what} to OUT {out}; wait, or choose another OUT") from None
        except OSError as error:
            raise BuildError(f"cannot write to OUT {out}: {error.strerror}") from None
        try:
            yield
        finally:
            with suppress(OSError):  # what stopped the build says more, and a lock file that stays locks nobody out
                if not shared or (not (out / STATE).exists() and is_alone(held)):
                    (out / PLANNING_LOCK).unlink(missing_ok=True)
                    path.unlink(missing_ok=True)
                if created and not os.listdir(out):
                    out.rmdir()


def check_places(
    source: str | os.PathLike[str],
    out: str | os.PathLike[str],
    options: BuildOptions,
    run: RunOptions = RunOptions(),
    *,
    copied: bool = False,
) -> Place:
    """Where a build would write.

    Args:
        copied: whether an unfinished copy of a dataset in `out` is this build's own.

    Raises:
        OptionError: `run` asks for an update of a folder dataset.
        SourceError: one of `source` and `out` lies inside the other.
        BuildError: `out` is a URL, holds something that presize did not make, or has a name that is not UTF-8.
        DatasetError: `out` holds the dataset of another program, or of a newer presize.
    """
    if run.update and options.layout == "folder":
        raise OptionError(
            "update: the files of a folder cannot be replaced all at once; with --to folder use --overwrite instead, "
            "which builds the folder anew"
        )
    if is_url(out):
        raise BuildError(f"OUT {out}: a URL is for presize.build_to_url; give a folder")
    place = Place.of(out, options.image.sizes)
    inner, outer = place.out.resolve(), Path(source).resolve()
    is_folder = Url.of(source) is None
    if is_folder and inner.is_relative_to(outer):
        raise SourceError(f"OUT {out} lies inside the source {source}; choose a place outside of it")
    if is_folder and outer.is_relative_to(inner):
        raise SourceError(f"the source {source} lies inside OUT {out}; choose a place apart from it")
    try:
        os.fspath(place.out).encode()
    except UnicodeEncodeError:
        raise BuildError(f"the name of OUT {os.fspath(place.out)!r} is not UTF-8; choose another") from None
    _check_ours(place, copied)
    return place


def _check_ours(place: Place, copied: bool) -> None:
    """Raise BuildError or DatasetError unless OUT and the dataset folders in it are absent, empty, or made by presize.

    Nothing is changed then: presize removes only what it made.
    """
    out, roots = place.out, place.roots
    if out not in roots and (out / MANIFEST).exists():
        read_manifest(out)
        raise BuildError(f"OUT {out} is a dataset of one size; choose another OUT for several")
    for folder in dict.fromkeys([out, *roots]):
        if not os.path.lexists(folder):
            continue
        if not folder.is_dir():
            raise BuildError(f"OUT {folder} is a file; choose a folder")
        if (folder / MANIFEST).exists():
            try:
                read_manifest(folder)  # raises for the manifest of another program, or of a newer presize
            except DatasetError as error:
                raise DatasetError(
                    f"{error}; a build replaces what it knows alone: choose another OUT, or remove that"
                ) from None
        elif not (out / STATE).exists() and not (copied and (folder / FETCHING).exists()):
            _check_empty(folder, {root.name for root in roots} if folder not in roots else set())


def _check_empty(folder: Path, expected: set[str]) -> None:
    others = sorted(name for name in os.listdir(folder) if name not in expected and not name.startswith(".presize"))
    if others and all((folder / name / MANIFEST).exists() for name in others):
        raise BuildError(f"OUT {folder} holds datasets of the sizes {', '.join(others)}; choose another OUT")
    if others:
        raise BuildError(
            f"OUT {folder} holds {others[0]!r} and is not a presize dataset; choose an empty or a new folder"
        )
