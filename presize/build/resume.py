"""Where a build begins: goes on with what is unfinished in OUT, begins afresh, or refuses what may not be replaced."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from presize.build.cleanup import finish_publishing, remove_replaced, remove_unpublished
from presize.build.plan import Plan, differences
from presize.build.state import Place, State
from presize.errors import BuildError
from presize.options import RunOptions
from presize.store.manifest import Manifest, generation_name


def begin(todo: Plan, place: Place, run: RunOptions) -> State | None:
    """The state to go on from, or a new one; None when all is published already. To be called with OUT locked.

    Raises BuildError when something else is there and may not be replaced.
    """
    state = _unfinished(place)
    published = place.manifests()
    if state is not None and state.identity == todo.identity:
        if not state.update or (all(published) and not run.overwrite):
            return state
    if state is None and not (run.overwrite or run.update) and is_all_of(todo, published):
        place.clear()
        return None
    begun = state if state is not None and (state.publishing or place.has_finished_shards()) else None
    if begun is not None and begun.update and run.update:  # what it began from is still there
        begun = None
    update = run.update and begun is None and any(published)
    if update:
        check_may_update(published, todo, place)
    elif (begun or any(published)) and not run.overwrite:
        raise _refusal(todo, place, begun, published)
    return _begin_afresh(todo, place, published, state, update)


def is_all_of(todo: Plan, published: Sequence[Manifest | None]) -> bool:
    """Whether these datasets, one of each size, are what `todo` would make."""
    return all(manifest is not None and manifest.digest == todo.digest for manifest in published)


def _unfinished(place: Place) -> State | None:
    """What an earlier build has left. An update that had begun to publish is published first."""
    state = State.read(place.out)
    if state is None or not (state.update and state.publishing):
        return state
    finish_publishing(state.place(place.out))
    state.place(place.out).clear()
    return None


def _refusal(todo: Plan, place: Place, begun: State | None, published: Sequence[Manifest | None]) -> BuildError:
    """What is there, how it differs, and what the user can do."""
    if begun is not None:
        what, existing = "an unfinished build", begun.identity
    else:
        what, existing = "a dataset", next(manifest.identity for manifest in published if manifest)
    cure = "--overwrite replaces it"
    whole = all(published) and (begun is None or begun.update)
    if whole and todo.options.layout == "lmdb" and not _unlike(existing, todo):
        cure = f"--update brings it up to date, {cure}"
    differing = "; ".join(differences(existing, todo.identity)) or "not all sizes are there"
    return BuildError(f"OUT {place.out} holds {what} that differs ({differing}); {cure}")


def check_may_update(existing: Sequence[Manifest | None], todo: Plan, place: Place) -> None:
    """Raise unless the datasets were built as `todo` would, but for their samples."""
    found = [unlike for manifest in existing if manifest for unlike in _unlike(manifest.identity, todo)]
    if not all(existing):
        found.append("not all sizes are there")
    if found:
        differing = "; ".join(dict.fromkeys(found))
        raise BuildError(
            f"OUT {place.out} holds a dataset that differs ({differing}), which --update cannot change; "
            "give the options that it was built with, or --overwrite, which replaces it"
        )


def _unlike(identity: dict[str, Any], todo: Plan) -> list[str]:
    """What differs besides the samples."""
    samples = {"source": None, "classes": None}
    return differences(identity | samples, todo.identity | samples)


def _begin_afresh(
    todo: Plan, place: Place, published: list[Manifest | None], abandoned: State | None, update: bool
) -> State:
    """Remove what `abandoned` has written, and put down what is replaced now."""
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
    )
    place.clear()
    for root, manifest in zip(place.roots, published, strict=True):
        remove_unpublished(root, manifest, keep=fresh.replaces)
    fresh.write(place.out)
    return fresh
