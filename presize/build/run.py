"""A build: scan -> plan -> the tasks that are not finished yet -> publish.

Serial and parallel builds run the same tasks; parallel ones only map them over processes. The
manifest is published last, so OUT holds the old dataset, or none, until it holds the new one. An update
has fewer tasks: it publishes shards of the old dataset along with those it makes.
"""

from __future__ import annotations

import importlib.metadata
import os
import shutil
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import PIL
import pyarrow as pa
import pyarrow.compute as pc

from presize.build import estimate
from presize.build.parallel import run_tasks
from presize.build.plan import Plan, make_plan
from presize.build.publish import publish, shard_name
from presize.build.resume import begin, check_may_update, is_all_of
from presize.build.reuse import find_reuse
from presize.build.sidecar import ShardDone
from presize.build.state import Place, check_ours, lock
from presize.build.task import Task, finished
from presize.build.update import Changes
from presize.codecs import transcode
from presize.errors import BuildError, ImageError, OptionError, SourceError
from presize.options import BuildOptions, RunOptions
from presize.sources.scan import scan
from presize.store.filenames import NAME_MAX_BYTES, file_names, is_safe
from presize.store.manifest import OUR_NAMES, Manifest
from presize.system.files import writing
from presize.system.resources import usable_cores

_WRITERS = (
    "cykooz.resizer", "lmdb", "numpy", "opencv-python-headless", "pillow", "presize", "pyarrow", "simplejpeg",
)  # fmt: skip


@dataclass(frozen=True)
class BuildResult:
    """What a build did.

    stored, rejected: images, and files that claim to be one. skipped: other files, which are none.
    hidden: files and folders that begin with a dot. outside: files beside the class folders.
    bytes: of the stored images, all sizes together. shards: of each size.
    seconds: from scan to manifest. files: of the source, and resumed those that were dealt with before
        this run, or by the build that this one updates.
    changes: what has become of the images that were there; a build from scratch builds all of its files.
    reports: the page of each size, if there are any.
    """

    out: Path
    files: int
    stored: int
    rejected: int
    skipped: int
    hidden: int
    outside: int
    bytes: int
    shards: int
    seconds: float
    resumed: int
    changes: Changes
    reports: tuple[Path, ...] = ()

    @property
    def samples(self) -> int:
        return self.stored + self.rejected

    @property
    def images_per_s(self) -> float:
        """Files that this run dealt with, a second."""
        return (self.files - self.resumed) / self.seconds


def plan_build(
    source: str | os.PathLike[str],
    options: BuildOptions = BuildOptions(),
    *,
    labels: str | os.PathLike[str] | None = None,
    classes: Sequence[str] | None = None,
) -> Plan:
    """What a build of `source` will write. Reads names and sizes, opens no image."""
    found = scan(source, labels=labels, classes=classes, follow_links=options.follow_links)
    return make_plan(found, options, codec_versions(), os.sysconf("SC_PAGE_SIZE"))


def build_dataset(
    source: str | os.PathLike[str],
    out: str | os.PathLike[str],
    options: BuildOptions = BuildOptions(),
    run: RunOptions = RunOptions(),
    *,
    labels: str | os.PathLike[str] | None = None,
    classes: Sequence[str] | None = None,
    on_plan: Callable[[Plan], None] = lambda _: None,
    on_shard: Callable[[ShardDone], None] = lambda _: None,
) -> BuildResult:
    """Resize the images of `source` and publish them as a dataset in `out` (``out/SIZE`` for several).

    `labels` and `classes` are those of presize.sources.scan.scan. `on_plan` is told the plan, then `on_shard`
    each finished shard, those of an interrupted build, or kept by an update, first.

    With ``run.update`` the dataset in `out` is brought up to date: images whose file has the path, size and
    modification time that it had (with ``options.checksum`` the content) are not decoded again, and files
    that were rejected not tried again. Shards in which nothing changes stay as they are. The options and the
    versions of the codecs have to be those it was built with.

    Calling it again finishes an interrupted build, and does nothing when all is done. Raises SourceError,
    DatasetError when `out` is something else or too damaged to be updated, OptionError for an update of
    a folder, ImageError for the first bad image when that is asked for,
    and BuildError for all else that stops it; KeyboardInterrupt passes through. Whichever it is, finished
    shards are kept and nothing is published. A second build of the same `out` at once is refused.
    """
    start = time.perf_counter()
    place = check_places(source, out, options, run)
    todo = plan_build(source, options, labels=labels, classes=classes)
    on_plan(todo)
    if todo.source.rejects and run.on_error == "fail":
        first_reject = todo.source.rejects[0]
        raise ImageError(f"{first_reject.path}: {first_reject.reason}")
    manifests = place.manifests()
    if run.overwrite or run.update or place.has_leftovers() or not is_all_of(todo, manifests):
        with lock(place.out):
            published, resumed, changes = _build(todo, run, place, on_shard)
    else:
        published, resumed, changes = _nothing_to_do(todo, run, place)
    first = published[0]
    return BuildResult(
        out=Path(out),
        files=len(todo.source.table),
        stored=first.samples,
        bytes=sum(manifest.bytes for manifest in published),
        shards=len(first.shards),
        seconds=time.perf_counter() - start,
        resumed=resumed,
        changes=changes,
        reports=_reports(out, options, published),
        **first.left_out,
    )


def _reports(out: str | os.PathLike[str], options: BuildOptions, published: Sequence[Manifest]) -> tuple[Path, ...]:
    """Where the pages are, `out` as it was given."""
    several = len(options.image.sizes) > 1
    return tuple(
        Path(out, manifest.size if several else "", manifest.report.file) for manifest in published if manifest.report
    )


def plan_update(todo: Plan, place: Place, run: RunOptions) -> tuple[Plan, Changes]:
    """What an update of the dataset in `place` would do: a plan with the files that it would build, to be
    estimated, and with its new shards; and the counts. Raises as build_dataset would."""
    existing = place.manifests()
    if not any(existing):
        return todo, Changes(0, 0, len(todo.source.table), 0)
    check_may_update(existing, todo, place)
    update = find_reuse(todo, place, run.jobs or usable_cores()).update
    rows = pa.array(np.flatnonzero(update.origin < 0))
    source = replace(todo.source, table=todo.source.table.take(rows))
    return replace(todo, source=source, shards=update.shards), update.changes


def check_places(
    source: str | os.PathLike[str],
    out: str | os.PathLike[str],
    options: BuildOptions,
    run: RunOptions = RunOptions(),
) -> Place:
    """Where a build would write. Raises SourceError, BuildError or DatasetError when it may not write there,
    and OptionError when it may not be an update."""
    if run.update and options.layout == "folder":
        raise OptionError(
            "update: the files of a folder cannot be exchanged all at once; leave it out of --to folder, and let "
            "--overwrite build the folder anew"
        )
    place = Place.of(out, options.image.sizes)
    inner, outer = place.out.resolve(), Path(source).resolve()
    if inner.is_relative_to(outer):
        raise SourceError(f"OUT {out} lies inside the source {source}; choose a place outside of it")
    if outer.is_relative_to(inner):
        raise SourceError(f"the source {source} lies inside OUT {out}; choose a place apart from it")
    try:
        os.fspath(place.out).encode()
    except UnicodeEncodeError:
        raise BuildError(f"the name of OUT {os.fspath(place.out)!r} is not UTF-8; choose another") from None
    check_ours(place)
    return place


def codec_versions() -> dict[str, str]:
    """The versions of all that has a say in the bytes of a dataset."""
    # pillow-simd, where it has taken Pillow's place, has another name for pip, and a version of its own.
    return {name: PIL.__version__ if name == "pillow" else importlib.metadata.version(name) for name in _WRITERS}


def _nothing_to_do(todo: Plan, run: RunOptions, place: Place) -> tuple[list[Manifest], int, Changes]:
    """What _build returns when all is published already."""
    published = [manifest for manifest in place.manifests() if manifest]
    _check_rejects(published[0].left_out["rejected"], todo, run)
    return published, len(todo.source.table), Changes(published[0].samples, 0, 0, 0)


def _build(
    todo: Plan, run: RunOptions, place: Place, on_shard: Callable[[ShardDone], None]
) -> tuple[list[Manifest], int, Changes]:
    """Called with OUT locked. Returns the manifests, how many files were dealt with already, and what changed."""
    files = _file_names(todo) if todo.options.layout == "folder" else None
    state = begin(todo, place, run)
    if state is None:  # another process has built it meanwhile
        return _nothing_to_do(todo, run, place)
    reuse = find_reuse(todo, place, run.jobs or usable_cores()) if state.update else None
    if reuse is not None:
        todo = replace(todo, shards=reuse.update.shards)
        if not todo.shards and is_all_of(todo, place.manifests()):
            place.clear()
            return _nothing_to_do(todo, run, place)
    tasks = [reuse.of(task) if reuse else task for task in _tasks(todo, run, place, state.generation, files)]
    found = {task.number: finished(task, state.publishing) for task in tasks}
    waiting = [task for task in tasks if found[task.number] is None]
    _check_space(todo, place, sum(len(task.samples) for task in waiting))

    kept, refused = (reuse.kept(), [reuse.rejected()]) if reuse else ([], [])
    rejected = len(todo.source.rejects)
    resumed = len(todo.source.table) - sum(_built(task) for task in waiting)
    ready = [*kept, *refused, *found.values()]
    with closing(run_tasks(ready, waiting, run, place)) as dones:  # or workers would outlive an error
        for done in dones:
            rejected += done.rejected
            on_shard(done)
            _check_rejects(rejected, todo, run)
    sidecars = [sidecar for task in tasks if (sidecar := found[task.number] or finished(task, state.publishing))]
    if len(sidecars) < len(tasks):
        raise BuildError(
            f"{len(tasks) - len(sidecars)} finished shards have gone from {place.out}; run again to make them"
        )
    names = [*(reuse.names() if reuse else ()), *(shard_name(task.number, state.generation) for task in tasks)]
    manifests = publish(todo, state, [*kept, *sidecars, *refused], names, place, files, run.report)
    place.clear()
    return manifests, resumed, reuse.update.changes if reuse else Changes(0, 0, len(todo.source.table), 0)


def _built(task: Task) -> int:
    """How many of its samples a task makes, and does not copy."""
    return len(task.samples) if task.copies is None else int((task.copies.columns["shard"] < 0).sum())


def _check_rejects(rejected: int, todo: Plan, run: RunOptions) -> None:
    """Raise when so many rejected images are not what was asked for."""
    if rejected and run.on_error == "fail":
        raise ImageError(f"{rejected} images were rejected before this run; --overwrite tries them again")
    if not run.max_errors.allows(rejected, of=len(todo.source.table) + len(todo.source.rejects)):
        raise BuildError(
            f"{rejected} images were rejected, which --max-errors {run.max_errors} does not allow; "
            "the same command with a larger budget goes on from here"
        )


def _file_names(todo: Plan) -> pa.ChunkedArray:
    """The files of a folder dataset, one a row of the source table. None may be where our own files are."""
    files = file_names(todo.source.table.column("path"), todo.options.image.format)
    taken = files.filter(pc.match_substring_regex(files, OUR_NAMES))
    if len(taken):
        raise SourceError(f"--to folder keeps files of its own by that name: rename {taken[0].as_py()!r} in the source")
    for name in todo.source.classes or () if todo.source.by_folder else ():
        if not is_safe(name) or "/" in name or len(name.encode()) > NAME_MAX_BYTES:
            raise SourceError(f"--to folder makes a folder for each class, and {name!r} cannot be one")
    return files


def _tasks(todo: Plan, run: RunOptions, place: Place, generation: int, files: pa.ChunkedArray | None) -> Iterator[Task]:
    for root in place.roots:
        with writing(root):
            (root / "shards" if files is None else root).mkdir(parents=True, exist_ok=True)
    for number, samples in enumerate(todo.shards):
        rows = todo.source.table.select(["path", "source_nbytes"]).take(pa.array(samples))
        yield Task(
            number=number,
            digest=todo.digest,
            source=todo.source.root,
            sidecar=place.sidecar(number),
            targets=tuple(root / shard_name(number, generation) if files is None else root for root in place.roots),
            options=todo.options,
            on_error=run.on_error,
            samples=samples,
            nbytes=rows.column("source_nbytes").to_numpy(),
            paths="\0".join(rows.column("path").to_pylist()),
            files="" if files is None else "\0".join(files.take(pa.array(samples)).to_pylist()),
            driver=os.getpid(),
        )


def _check_space(todo: Plan, place: Place, samples: int) -> None:
    """Raise before anything is written when the disk cannot hold the result."""
    free = shutil.disk_usage(place.out).free
    image = todo.options.image
    if samples == 0 or free > samples * sum(transcode.record_bytes(image, size) for size in image.sizes):
        return
    needed = estimate.estimate(todo, report=False).bytes * samples // len(todo.source.table)
    if needed > free:
        raise BuildError(
            f"OUT {place.out} has {free / 1e9:.2f} GB free and about {needed / 1e9:.2f} GB are needed; "
            "make room, or choose a smaller --size or another disk"
        )
