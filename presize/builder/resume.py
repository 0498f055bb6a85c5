"""Decides how a build starts: it resumes an unfinished build in OUT, starts afresh, or refuses to replace OUT."""

from __future__ import annotations

import os
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Literal, NoReturn

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from presize.builder.fingerprint import CodecFingerprint, same_codecs
from presize.builder.output_dir import BuildJournal, OutputDir
from presize.builder.plan import Plan, differences, source_identity
from presize.errors import BuildError, DatasetError, warn
from presize.formatting import plural, printable
from presize.options import RunOptions
from presize.sources.dataset import DatasetSource
from presize.sources.folder import UNSEEN
from presize.sources.source_files import SourceReader, Url
from presize.store.index import read_index, source_columns, validate_column
from presize.store.manifest import Manifest
from presize.store.rejects_file import Rejects, read_rejects

Unfinished = Literal["none", "this build", "this update", "another build", "another update"]
"""Unfinished work of an interrupted run in OUT; "this" one has the identity of the plan."""

Published = Literal["none", "some sizes", "all sizes", "this plan"]
"""Datasets in OUT; "this plan": of all sizes, and with the identity of the plan."""

Flag = Literal["", "--update", "--overwrite"]

Decision = Literal["resume", "nothing to do", "update", "start afresh", "refuse"]

_MOST_REMOVED = 0.9
"""Largest share of its images that an update may remove. More are usually missing by mistake (an unmounted disk or
another SRC), and rebuilding the few that remain is quick."""

_REPLACE = "use --overwrite to replace it"


def decide(unfinished: Unfinished, has_work: bool, published: Published, flag: Flag) -> Decision:
    """Decide how a build starts. Pure. `has_work`: the unfinished build has a finished shard or began to publish."""
    has_base = published in ("all sizes", "this plan")
    if unfinished == "this build" or (unfinished == "this update" and has_base and flag != "--overwrite"):
        return "resume"
    if published == "this plan" and flag == "" and not has_work:
        return "nothing to do"
    if flag == "--overwrite":
        return "start afresh"
    if flag == "--update":
        if has_work and unfinished == "another build":  # an unfinished update has not changed its base
            return "refuse"
        return "start afresh" if published == "none" else "update"
    return "refuse" if has_work or published != "none" else "start afresh"


def open_build(plan: Plan, output: OutputDir, run: RunOptions) -> BuildJournal | None:
    """Return the journal to resume, or a new one; None if all is published. Raises BuildError to refuse the build."""
    journal = output.recover()
    has_work = journal is not None and (journal.publishing or output.has_finished_shards())
    published = output.manifests()
    # If rejects ended the build and only its source has changed since, the change is intended.
    is_mended = journal is not None and journal.failed and not (journal.update or journal.publishing)
    is_other = journal is not None and journal.identity != plan.identity and not _unlike(journal, plan)
    if journal is not None and has_work and is_mended and is_other and not run.overwrite and not any(published):
        then = "; ".join(differences_from(journal, plan))
        warn(f"OUT {output.path} holds an unfinished build of other files ({then}); unchanged shards are kept")
        return output.go_on_with(journal, plan.identity)
    flag: Flag = "--update" if run.update else "--overwrite" if run.overwrite else ""
    decision = decide(_kind(journal, plan), has_work, _extent(published, plan), flag)
    if decision == "resume":
        return journal
    if decision == "nothing to do":
        output.discard()
        return None
    if decision == "refuse":
        raise _refusal(plan, output, journal if has_work else None, published)
    if decision == "update":
        check_may_update(published, plan, output.path, output.roots[0])
    return output.start(plan.identity, plan.versions, journal, update=decision == "update")


def _kind(journal: BuildJournal | None, plan: Plan) -> Unfinished:
    if journal is None:
        return "none"
    if journal.identity == plan.identity:
        return "this update" if journal.update else "this build"
    return "another update" if journal.update else "another build"


def _extent(published: Sequence[Manifest | None], plan: Plan) -> Published:
    if is_all_of(plan, published):
        return "this plan"
    return "all sizes" if all(published) else "some sizes" if any(published) else "none"


def is_all_of(plan: Plan, published: Sequence[Manifest | None]) -> bool:
    """Return True if these datasets, one for each size, are what `plan` would make."""
    return all(manifest is not None and manifest.identity == plan.identity for manifest in published)


def trying_again(plan: Plan, run: RunOptions, published: Sequence[Manifest | None], root: Path) -> RunOptions:
    """Return `run`, as an update (or rebuild of a folder) if files listed in `root` as unreadable can be read now."""
    manifest = published[0]
    if run.update or run.overwrite or manifest is None or not manifest.left_out.get("unreadable"):
        return run
    rejects = read_rejects(root / manifest.rejects.file).unreadable
    # Paths that could not be listed then may be listed now.
    paths = plan.source.table.column("path")
    listed = plan.source.table.filter(pa.array(_at_or_below(paths, _unseen(rejects)) < 0))
    as_then = replace(plan, identity=plan.identity | {"source": source_identity(listed)})
    if not is_all_of(plan, published) and not is_all_of(as_then, published):
        return run
    rows = np.flatnonzero(_at_or_below(paths, rejects) >= 0)
    reader = SourceReader(plan.source.root)
    if not any(all(map(reader.can_read, files)) for files in plan.files(rows)):
        return run
    is_folder = plan.options.layout == "folder"
    return replace(run, update=not is_folder, overwrite=is_folder)


def _refusal(
    plan: Plan, output: OutputDir, begun: BuildJournal | None, published: Sequence[Manifest | None]
) -> BuildError:
    existing: BuildJournal | Manifest
    if begun is not None:
        what, existing = "an unfinished build", begun
    else:
        what, existing = "a dataset", next(manifest for manifest in published if manifest)
    fix = "choose another OUT, or use --overwrite to replace it"
    whole = all(published) and (begun is None or begun.update)
    can_update = whole and plan.options.layout == "lmdb" and not isinstance(plan.source, DatasetSource)
    if can_update and not _unlike(existing, plan):
        fix = "use --update to bring it up to date, or --overwrite to replace it"
    differing = "; ".join(differences_from(existing, plan)) or "some sizes are missing"
    return BuildError(f"OUT {output.path} holds {what} that differs ({differing}); {fix}")


def check_may_update(
    existing: Sequence[Manifest | None], plan: Plan, out: object, root: Path | None = None, otherwise: str = _REPLACE
) -> None:
    """Raise BuildError unless the datasets were built with the options of `plan`; samples may differ. If `root` has the
    index of the first, raise it also if an update would remove images that could not be listed, or nearly all, or would
    lose labels. `otherwise` says how to build anyway."""
    if derived := next((manifest.derived for manifest in existing if manifest and manifest.derived), None):
        raise BuildError(
            f"OUT {out} was derived from other datasets ({', '.join(derived)}), which an update from SRC would undo; "
            f"update those and derive it again, or {otherwise}"
        )
    index = None if existing[0] is None or root is None else _readable_index(existing[0], root)
    if index is not None:
        # The new row of each old sample; null for removed ones.
        row = pc.index_in(index.column("path"), value_set=plan.source.table.column("path"))
        _check_removed(index.column("path"), row, plan, out, otherwise)
    found = [unlike for manifest in existing if manifest for unlike in _unlike(manifest, plan)]
    if not all(existing):
        found.append("some sizes are missing")
    if found:
        differing = "; ".join(dict.fromkeys(found))
        raise BuildError(
            f"OUT {out} holds a dataset that differs ({differing}), which --update cannot change; leave out options "
            f"that differ, or {otherwise}"
        )
    if existing[0] is not None and root is not None and index is not None:
        _check_labels(existing[0], index, row, plan, out, root, otherwise)


def _readable_index(manifest: Manifest, root: Path) -> pa.RecordBatch | None:
    """Return the index of a dataset; None if it is damaged, which find_reuse reports."""
    with suppress(DatasetError):
        index = read_index(root, manifest)
        validate_column(index.column("path"), "path", root)
        return index
    return None


def _check_removed(paths: pa.Array, row: pa.Array, plan: Plan, out: object, otherwise: str) -> None:
    """Raise BuildError if an update would remove unlistable images, or nearly all. Warn about emptied folders."""
    gone = paths.filter(row.is_null())
    unseen = _unseen(plan.source.rejects)
    why = _at_or_below(gone, unseen)
    if plan.source.containers and len(unseen):  # lost samples may be in any unlisted container
        why = np.maximum(why, 0)
    lost = np.flatnonzero(why >= 0)
    if len(lost):
        first, reason = gone[int(lost[0])].as_py(), unseen[int(why[lost[0]])].reason
        raise BuildError(
            f"OUT {out} holds {plural(len(lost), 'image')} that --update would remove, because files of the "
            f"source cannot be read now; the first: {printable(first)}: {reason}; run again when they can "
            "be read, or move them out of the source"
        )
    if len(gone) > _MOST_REMOVED * len(paths):
        raise BuildError(
            f"OUT {out} holds {plural(len(paths), 'image')}, and --update would remove {len(gone):,} of them, whose "
            f"files are no longer in {plan.source.name}, such as {printable(gone[0].as_py())}; mount the missing "
            f"disk, or give the SRC that has them; to remove them on purpose, {otherwise}"
        )
    if emptied := _emptied_folders(plan.source.root, gone):
        others = f" and {len(emptied) - 1:,} more" if emptied[1:] else ""
        warn(
            f"--update removes the images of folders that are empty now, {printable(emptied[0])}{others} in "
            f"{plan.source.root}; if a disk is not mounted there, mount it and run again"
        )


def _check_labels(
    existing: Manifest, index: pa.RecordBatch, row: pa.Array, plan: Plan, out: object, root: Path, otherwise: str
) -> None:
    """Refuse an update that would drop columns, replace labels by the names of folders, or renumber classes, because an
    option of the source is not given again. Warn about other dropped columns and renumbered classes, and about samples
    that change their split."""
    source, table = plan.source, plan.source.table
    names = index.schema.names
    columns = source_columns(names, [companion.name for companion in plan.options.companions])
    old = [name for name in columns if names.count(name) == 1]
    is_by_folder = source.classes is not None and not (source.has_table or source.containers)

    def refuse(what: str, options: str) -> NoReturn:
        raise BuildError(f"OUT {out} has {what}; give {options} as for its first build, or {otherwise}")

    def changed(name: str, values: pa.ChunkedArray) -> pa.Array:
        """Return the paths of samples whose value in an index column differs from that in `values`."""
        return index.column("path").filter(pc.not_equal(index.column(name), values.combine_chunks().take(row)))

    if existing.listed and not source.has_table:
        refuse("the samples of a label table, and --update would replace them with all images", "--labels")
    if lost := [name for name in old if name not in source.fields]:
        said = printable(", ".join(lost))
        if is_by_folder or not source.fields or not {"label", "split"}.isdisjoint(lost):
            options = "--labels or --split" if lost == ["split"] else "--labels, --split, --keys and --label-keys"
            refuse(f"columns that --update would remove ({said})", options)
        warn(f"--update removes columns that the source no longer has: {said}")
    texts = [name for name in old if name not in lost and _is_list(index, name) and not _is_list(table, name)]
    if source.has_table and texts:
        refuse(f"lists in columns that --update would replace ({printable(', '.join(texts))})", "--repeated list")
    if is_by_folder and "label" not in old:
        refuse("no labels, and --update would add the names of folders", "--labels none")
    if source.classes is None and existing.classes is not None and not source.has_table:
        refuse("a class list that --update would remove", "--classes")
    if source.classes is not None and existing.classes is not None:
        number_of = {name: number for number, name in enumerate(existing.classes)}
        numbers = [number_of.get(name, -1) for name in source.classes]
        others = changed("label", pc.take(pa.array(numbers, pa.int32()), table.column("label")))
        if is_by_folder and len(others):
            what = f"labels other than the names of folders, such as the label of {printable(others[0].as_py())}"
            refuse(f"{what}, and --update would replace them", "--labels or --split")
        kept = [number for number in numbers if number >= 0]
        unused = set(number_of.values()).difference(kept, pc.unique(index.column("label")).to_pylist())
        if not source.has_list and (kept != sorted(kept) or (unused and unused - _rejected(existing, root))):
            refuse("a class list that --update would change", "--classes")
        renumbered = [name for number, name in enumerate(source.classes) if number_of.get(name, number) != number]
        if renumbered:
            first, count = renumbered[0], plural(len(renumbered), "class", "classes")
            warn(
                f"--update renumbers {count}, such as {printable(first)} from {number_of[first]} to "
                f"{source.classes.index(first)}; to keep their numbers, give --classes a list that begins with the "
                "dataset's"
            )
    if "split" in old and index.column("split").type == table.column("split").type == pa.large_string():
        validate_column(index.column("split"), "split", root)
        if len(moved := changed("split", table.column("split"))):
            warn(
                f"--update moves {plural(len(moved), 'image')}, such as {printable(moved[0].as_py())}, to another "
                "split; to undo that, run it again with the --split and --split-seed of the first build"
            )


def _is_list(table: pa.Table | pa.RecordBatch, name: str) -> bool:
    return bool(pa.types.is_large_list(table.schema.field(name).type))


def _rejected(existing: Manifest, root: Path) -> set[int]:
    """Return the classes whose folder is in the path of a reject."""
    paths = read_rejects(root / existing.rejects.file).columns.column("path").to_pylist()
    folders = {folder for path in paths for folder in path.split("/")[:-1]}
    return {number for number, name in enumerate(existing.classes or ()) if name in folders}


def _emptied_folders(root: Path | Url, gone: pa.Array) -> list[str]:
    """Return the folders of a source, sorted, that held removed files and are now empty, apart from hidden files."""
    if isinstance(root, Url):
        return []
    held = {root / folder for folder in pc.unique(pc.replace_substring_regex(gone, "/?[^/]*$", "")).to_pylist()}
    above = {next(each for each in (folder, *folder.parents) if each.is_dir() or each == root) for folder in held}
    emptied = []
    for folder in above - {root}:
        with suppress(OSError):
            if all(name.startswith(".") for name in os.listdir(folder)):
                emptied.append(str(folder.relative_to(root)))
    return sorted(emptied)


def _at_or_below(paths: pa.Array | pa.ChunkedArray, rejects: Rejects) -> npt.NDArray[np.int64]:
    """Return for each path the position of the reject that is this file or a folder above it; -1 for none."""
    positions = np.full(len(paths), -1)
    while len(paths):
        found = pc.fill_null(pc.index_in(paths, value_set=rejects.columns.column("path")), -1).to_numpy()
        positions = np.where(positions < 0, found, positions)
        if not pc.any(pc.match_substring(paths, "/")).as_py():
            break
        paths = pc.replace_substring_regex(paths, "/?[^/]*$", "")
    return positions


def _unseen(rejects: Rejects) -> Rejects:
    """Return the paths that could not be listed: files, folders, and broken links, such as to a missing mount."""
    reasons = rejects.columns.column("reason").dictionary_decode()
    return rejects.take(np.flatnonzero(pc.match_substring(reasons, UNSEEN)))


def differences_from(existing: BuildJournal | Manifest, plan: Plan, apart_from: Sequence[str] = ()) -> list[str]:
    """Describe how `plan` differs from an existing build or dataset. Ignores the names in `apart_from`."""
    same = dict.fromkeys(apart_from)
    then = CodecFingerprint(existing.identity["codecs"], existing.versions)
    now = CodecFingerprint(plan.identity["codecs"], plan.versions)
    if then.digest != now.digest and same_codecs(plan.options, then, now):
        same["codecs"] = None
    return differences(existing.identity | same, plan.identity | same, (existing.versions, plan.versions))


def _unlike(existing: BuildJournal | Manifest, plan: Plan) -> list[str]:
    return differences_from(existing, plan, apart_from=("source", "classes"))
