"""How a build begins: it resumes what is unfinished in OUT, starts afresh, or refuses to replace what is there."""

from __future__ import annotations

import os
import warnings
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Literal

import numpy as np
import pyarrow.compute as pc

from presize.builder.cleanup import finish_publishing, remove_replaced, remove_unpublished
from presize.builder.plan import Plan, as_recorded, differences, source_identity
from presize.builder.state import Place, State
from presize.errors import BuildError, DatasetError, PresizeWarning
from presize.formatting import plural, printable
from presize.options import RunOptions
from presize.sources.folder import UNSEEN
from presize.sources.source_reader import SourceReader
from presize.store.data_files import generation_name
from presize.store.index import read_index
from presize.store.manifest import Manifest
from presize.store.rejects_file import Rejects, first_rejects, read_rejects
from presize.system.files import check_file

Unfinished = Literal["none", "this build", "this update", "another build", "another update"]
"""What an interrupted run has left in OUT; "this" one has the identity of the plan."""

Published = Literal["none", "some sizes", "all sizes", "this plan"]
"""The datasets that are in OUT; "this plan": of all sizes, and with its digest."""

Flag = Literal["", "--update", "--overwrite"]

Decision = Literal["resume", "nothing to do", "update", "start afresh", "refuse"]


def decide(unfinished: Unfinished, has_work: bool, published: Published, flag: Flag) -> Decision:
    """How a build begins. Pure.

    Args:
        unfinished: what an interrupted run has left.
        has_work: whether that has finished shards, or begun to publish. Nothing is lost with one that has not.
        published: the datasets that are there.
        flag: what the user allows to be done to them.
    """
    has_base = published in ("all sizes", "this plan")
    if unfinished == "this build" or (unfinished == "this update" and has_base and flag != "--overwrite"):
        return "resume"
    if published == "this plan" and flag == "" and not has_work:
        return "nothing to do"
    if flag == "--overwrite":
        return "start afresh"
    if flag == "--update":
        if has_work and unfinished == "another build":  # an unfinished update has left its base as it was
            return "refuse"
        return "start afresh" if published == "none" else "update"
    return "refuse" if has_work or published != "none" else "start afresh"


def begin(todo: Plan, place: Place, run: RunOptions) -> State | None:
    """The state to resume, or a new one; None when everything is published already. OUT must be locked.

    Raises:
        BuildError: something else is in OUT and may not be replaced.
    """
    state = _unfinished(place)
    has_work = state is not None and (state.publishing or place.has_finished_shards())
    published = place.manifests()
    flag: Flag = "--update" if run.update else "--overwrite" if run.overwrite else ""
    decision = decide(_kind(state, todo), has_work, _extent(published, todo), flag)
    if decision == "resume":
        return state
    if decision == "nothing to do":
        place.clear()
        for root, manifest in zip(place.roots, published, strict=True):
            remove_unpublished(root, manifest)
        return None
    if decision == "refuse":
        raise _refusal(todo, place, state if has_work else None, published)
    if decision == "update":
        check_may_update(published, todo, place)
    return _start_afresh(todo, place, published, state, update=decision == "update")


def _kind(state: State | None, todo: Plan) -> Unfinished:
    if state is None:
        return "none"
    if state.identity == as_recorded(state.identity, todo):
        return "this update" if state.update else "this build"
    return "another update" if state.update else "another build"


def _extent(published: Sequence[Manifest | None], todo: Plan) -> Published:
    if is_all_of(todo, published):
        return "this plan"
    return "all sizes" if all(published) else "some sizes" if any(published) else "none"


def is_all_of(todo: Plan, published: Sequence[Manifest | None]) -> bool:
    """True when these datasets, one of each size, are what `todo` would make."""
    return all(
        manifest is not None and manifest.identity == as_recorded(manifest.identity, todo) for manifest in published
    )


def check_files(place: Place, published: Sequence[Manifest | None]) -> None:
    """Raise BuildError unless the files of what is published are there, each of its size. Not the report, which may
    have been removed, nor the images of a folder."""
    for root, manifest in zip(place.roots, published, strict=True):
        if manifest is None:
            continue
        shards = [*manifest.shards, *(file for companion in manifest.companions for file in companion.shards)]
        for file in manifest.files():
            try:
                if file != manifest.report:
                    check_file(root / file.file, file.bytes)
            except DatasetError as error:
                fix = "--update makes it again" if file in shards else "--overwrite builds the dataset anew"
                raise BuildError(f"OUT {place.out} is damaged: {str(error).partition(';')[0]}; {fix}") from None


def trying_again(todo: Plan, run: RunOptions, published: Sequence[Manifest | None], root: Path) -> RunOptions:
    """`run`, made an update if files can be read now that could not be when this dataset of `todo` was built. A folder
    of images cannot be updated, and is built anew.

    Args:
        published: the datasets that are there, one of each size.
        root: where the rejects file of the first is.
    """
    manifest = published[0]
    if run.update or run.overwrite or manifest is None or not manifest.left_out.get("unreadable"):
        return run
    rejects = read_rejects(root / manifest.rejects.file).unreadable
    if not is_all_of(todo, published) and not is_all_of(_without_unseen(todo, rejects), published):
        return run
    rows = pc.index_in(rejects.columns.column("path"), value_set=todo.source.table.column("path")).drop_null()
    reader = SourceReader(todo.source.root)
    if not any(all(map(reader.can_read, files)) for files in todo.files(rows.to_numpy())):
        return run
    is_folder = todo.options.layout == "folder"
    return replace(run, update=not is_folder, overwrite=is_folder)


def _without_unseen(todo: Plan, rejects: Rejects) -> Plan:
    """`todo` as it would be if those of `rejects` that could not be listed then could not be listed now."""
    table, columns = todo.source.table, rejects.columns
    unseen = columns.column("path").filter(pc.match_substring(columns.column("reason").dictionary_decode(), UNSEEN))
    rest = table.filter(pc.invert(pc.is_in(table.column("path"), value_set=unseen)))
    return replace(todo, identity=todo.identity | {"source": source_identity(rest)})


def warn_of_unreadable(count: int, rejects: Path) -> None:
    """Warn of files that could not be read, which a rejects file lists."""
    if count:
        first = "".join(f", the first: {each.path}: {each.reason}" for each in first_rejects(rejects, 1, True))
        warnings.warn(
            f"{plural(count, 'file')} could not be read{printable(first)}; run the same command again to try again",
            PresizeWarning,
            stacklevel=3,
        )


def _unfinished(place: Place) -> State | None:
    """What an interrupted run has left. An update that had begun to publish is published first."""
    state = State.read(place.out)
    if state is None or not (state.update and state.publishing):
        return state
    finish_publishing(state.place(place.out))
    state.place(place.out).clear()
    return None


def _refusal(todo: Plan, place: Place, begun: State | None, published: Sequence[Manifest | None]) -> BuildError:
    """An error that says what is there, how it differs, and how to go on."""
    existing: State | Manifest
    if begun is not None:
        what, existing = "an unfinished build", begun
    else:
        what, existing = "a dataset", next(manifest for manifest in published if manifest)
    fix = "choose another OUT, or --overwrite replaces it"
    whole = all(published) and (begun is None or begun.update)
    if whole and todo.options.layout == "lmdb" and not _unlike(existing, todo):
        fix = "--update brings it up to date, --overwrite replaces it"
    same = "an earlier release made it" if all(published) else "not all sizes are there"
    differing = "; ".join(differences_from(existing, todo)) or same
    return BuildError(f"OUT {place.out} holds {what} that differs ({differing}); {fix}")


def check_may_update(existing: Sequence[Manifest | None], todo: Plan, place: Place) -> None:
    """Raise BuildError unless the datasets were built as `todo` would be, but for their samples."""
    check_not_derived(existing, place.out)
    if existing[0] is not None:
        _check_unseen(existing[0], todo, place)
    found = [unlike for manifest in existing if manifest for unlike in _unlike(manifest, todo)]
    if not all(existing):
        found.append("not all sizes are there")
    if found:
        differing = "; ".join(dict.fromkeys(found))
        raise BuildError(
            f"OUT {place.out} holds a dataset that differs ({differing}), which --update cannot change; "
            "give the options that it was built with, or --overwrite to replace it"
        )


def _check_unseen(existing: Manifest, todo: Plan, place: Place) -> None:
    """Raise BuildError if images are stored whose files could not be listed: it would remove them."""
    unseen = todo.source.rejects.unreadable
    if not len(unseen):
        return
    paths = read_index(place.roots[0], existing).column("path")
    stored = unseen.take(np.flatnonzero(pc.is_in(unseen.columns.column("path"), value_set=paths)))
    if len(stored):
        raise BuildError(
            f"OUT {place.out} holds {plural(len(stored), 'image')} that --update would remove, since their files "
            f"cannot be read now; the first: {printable(stored[0].path)}: {stored[0].reason}; run again when they can "
            "be, or move them out of the source"
        )


def check_not_derived(existing: Sequence[Manifest | None], out: object) -> None:
    """Raise BuildError for datasets that were derived from others such that no source has all of their samples, and
    just these."""
    derived = next((manifest.derived for manifest in existing if manifest and manifest.derived), None)
    if derived:
        raise BuildError(
            f"OUT {out} was derived from other datasets ({', '.join(derived)}), which an update from SRC would undo; "
            "update those and derive it again, or --overwrite replaces it"
        )


def differences_from(existing: State | Manifest, todo: Plan, apart_from: Sequence[str] = ()) -> list[str]:
    """What `todo` would do otherwise than what exists, in words.

    Args:
        apart_from: the names of an identity that may differ.
    """
    same = dict.fromkeys(apart_from)
    old, new = existing.identity, as_recorded(existing.identity, todo)
    return differences(old | same, new | same, (existing.versions, todo.versions))


def _unlike(existing: State | Manifest, todo: Plan) -> list[str]:
    """What differs, the samples apart."""
    return differences_from(existing, todo, apart_from=("source", "classes"))


def _start_afresh(
    todo: Plan, place: Place, published: list[Manifest | None], abandoned: State | None, update: bool
) -> State:
    """Remove what `abandoned` has written, and record what this build replaces."""
    manifests = [manifest for manifest in published if manifest is not None]
    folders = [manifest for manifest in manifests if manifest.layout == "folder"]
    replaces = {manifest.index.file for manifest in folders}
    classes = {name for manifest in folders for name in manifest.classes or ()}
    generations = [manifest.generation for manifest in manifests]
    if abandoned is not None:
        replaces |= set(abandoned.replaces)
        classes |= set(abandoned.replaced_classes)
        if abandoned.publishing:  # its index lists the files that have their names already
            generations.append(abandoned.generation)
            replaces.add(generation_name("index.arrow", abandoned.generation))
        for root, manifest in zip(
            abandoned.place(place.out).roots, abandoned.place(place.out).manifests(), strict=True
        ):
            if root not in place.roots and manifest is None and root.is_dir():
                remove_replaced(root, replace(abandoned, replaces=tuple(replaces)))
                remove_unpublished(root, None)
                if root != place.out and not os.listdir(root):
                    root.rmdir()
    fresh = State(
        identity=todo.identity,
        generation=max(generations, default=-1) + 1,
        replaces=tuple(sorted(replaces)),
        replaced_classes=tuple(sorted(classes)),
        update=update,
        versions=todo.versions,
    )
    place.clear()
    for root, manifest in zip(place.roots, published, strict=True):
        remove_unpublished(root, manifest, keep=fresh.replaces)
    fresh.write(place.out)
    return fresh
