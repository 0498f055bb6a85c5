"""Containers that change during a build: the build stops, or each label gets its own image."""

from __future__ import annotations

import io
import os
import shutil
from collections.abc import Callable
from dataclasses import replace
from functools import cache, partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import pytest
from PIL import Image

from builds import OVERWRITE, REPORTED, SERIAL, UPDATE, Builder, Stopped, stop
from foreign import image_column, write_lmdb, write_parquet, write_tar
from presize import BuildOptions, BuildPart, ImageOptions, RunOptions, Size, build_part, repair_dataset
from presize.builder.estimate import estimate
from presize.builder.output_dir import BuildJournal, OutputDir
from presize.builder.parts import read_listing, write_listing
from presize.builder.plan import Plan
from presize.builder.run import plan_build
from presize.builder.shard_table import ShardTable
from presize.builder.tasks.records import CrashPolicy
from presize.builder.tasks.task import write_shard
from presize.builder.work import find_work
from presize.errors import BuildError, PresizeError, SourceError
from presize.options import SourceOptions
from presize.sources import containers
from presize.sources.source_files import Container, SourceFile, SourceReader
from presize.system.files import anonymous_file

COUNT = 32
OPTIONS = BuildOptions(ImageOptions(sizes=(Size(8, 8),), format="png"), shard_samples=8)
SHADE = 100
LONG_AGO = 1_500_000_000_000_000_000


def grey(number: int) -> bytes:
    """Return a picture of one grey level; all of them have the same size in bytes."""
    buffer = io.BytesIO()
    Image.new("L", (8, 8), number).save(buffer, "BMP")
    return buffer.getvalue()


def as_tar(path: Path, numbers: list[int], shade: int) -> None:
    write_tar(
        path, [file for n in numbers for file in ((f"{n:03d}.bmp", grey(n + shade)), (f"{n:03d}.cls", b"%d" % n))]
    )


def as_lmdb(path: Path, numbers: list[int], shade: int) -> None:
    records = {f"image-{k:03d}": grey(n + shade) for k, n in enumerate(numbers)}
    write_lmdb(path, records | {f"label-{k:03d}": b"%d" % n for k, n in enumerate(numbers)}, subdir=False)
    path.with_name(f"{path.name}-lock").unlink()


def as_parquet(path: Path, numbers: list[int], shade: int) -> None:
    images = image_column([grey(n + shade) for n in numbers], [f"{n:03d}.bmp" for n in numbers])
    write_parquet(path, {"image": images, "label": numbers}, group_rows=4)


KINDS: dict[str, Callable[[Path, list[int], int], None]] = {"tar": as_tar, "mdb": as_lmdb, "parquet": as_parquet}


@cache
def container(kind: str, numbers: tuple[int, ...], shade: int) -> bytes:
    with TemporaryDirectory() as folder:
        path = Path(folder, f"a.{kind}")
        KINDS[kind](path, list(numbers), shade)
        return path.read_bytes()


def write_container(path: Path, numbers: list[int], shade: int = 0) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(container(path.suffix[1:], tuple(numbers), shade))
    os.utime(path, ns=(LONG_AGO, LONG_AGO))


class Swap(Builder):
    """Builds of a source of one container, `path`, which another one of the same size and modification time can
    replace.

    Args:
        shade: difference of the greys of the other container's images, listed in the same order; 0 for the same images
            and labels in reverse order.
    """

    def __init__(self, folder: Path, kind: str, shade: int = 0) -> None:
        keys = SourceOptions(keys="image-{:03d}", label_keys="label-{:03d}") if kind == "mdb" else SourceOptions()
        super().__init__(folder / "source", OPTIONS, keys)
        self.path, self.other = self.source / f"a.{kind}", folder / f"other.{kind}"
        numbers = list(range(COUNT))
        write_container(self.path, numbers)
        write_container(self.other, numbers if shade else numbers[::-1], shade)

    def replace(self, *_: object) -> None:
        if self.other.exists():
            self.other.replace(self.path)

    def rewrite(self) -> None:
        """Rewrite the container in place."""
        before = self.path.stat().st_ctime_ns
        self.path.write_bytes(self.other.read_bytes())
        while self.path.stat().st_ctime_ns == before:  # ctime has the resolution of a tick
            os.utime(self.path, ns=(LONG_AGO, LONG_AGO))

    def become(self, make: Callable[[Path], object]) -> None:
        self.path.unlink()
        make(self.path)

    def part(self, number: int) -> Any:
        return build_part(self.source, self.out, BuildPart(number, 2), OPTIONS, SERIAL, self.samples)

    def plan(self) -> Plan:
        return plan_build(self.source, self.options, self.samples)

    def sample_files(self) -> list[SourceFile]:
        return list(self.plan().source.files(np.arange(COUNT)))

    def stops(self, match: str = "changed during the build", **how: Any) -> None:
        with pytest.raises(BuildError, match=match):
            self(**how)

    def shades(self) -> set[int]:
        """Return the differences between the greys of the images and their labels."""
        dataset = self.data()
        greys = [int(np.asarray(Image.open(io.BytesIO(dataset.value(row)))).max()) for row in range(len(dataset))]
        labels = dataset.index.column("label").to_pylist()
        assert len(labels) == COUNT
        return {level - label for label, level in zip(labels, greys, strict=True)}


CHANGES: dict[str, Callable[[Swap], object]] = {
    "replaced": Swap.replace,
    "rewritten in place": Swap.rewrite,
    "truncated": lambda swap: os.truncate(swap.path, swap.path.stat().st_size // 2),
    "grown": lambda swap: os.truncate(swap.path, swap.path.stat().st_size + 4096),
    "touched": lambda swap: os.utime(swap.path),
    "gone": lambda swap: swap.path.unlink(),
    "a link to another": lambda swap: swap.become(lambda path: path.symlink_to(swap.other)),
    "a folder": lambda swap: swap.become(Path.mkdir),
    "a pipe": lambda swap: swap.become(os.mkfifo),
}


KINDS_AND_CHANGES = [
    *(("tar", change) for change in CHANGES),
    *((kind, change) for kind in ("mdb", "parquet") for change in ("replaced", "rewritten in place", "truncated")),
]


@pytest.fixture(params=KINDS)
def swap(request: pytest.FixtureRequest, tmp_path: Path) -> Swap:
    return Swap(tmp_path, request.param)


def once(change: Callable[[], object], moment: int = 1) -> Callable[[object], None]:
    """Return a function that calls `change` at its `moment`-th call."""
    calls: list[object] = []

    def called(call: object) -> None:
        calls.append(call)
        if len(calls) == moment:
            change()

    return called


STOPS = (
    r"'a\.\w+' in .*(changed during the build: its size, times or inode number differ from the listing|"
    r"No such file)[^;]*; run again"
)


@pytest.mark.parametrize(("kind", "change"), KINDS_AND_CHANGES)
def test_a_changed_container_stops_the_build_and_is_not_a_reject(kind: str, change: str, tmp_path: Path) -> None:
    swap = Swap(tmp_path, kind)
    (file, *_) = swap.sample_files()
    swap.stops(STOPS, on_shard=once(partial(CHANGES[change], swap)))
    assert not (swap.out / "manifest.json").exists()
    for read in (SourceReader.read, partial(SourceReader.read, for_report=True), SourceReader.crc32):
        with pytest.raises(BuildError, match=r"changed during the build|No such file"):
            read(SourceReader(swap.source), file)


MOMENTS: dict[str, Callable[[Callable[[], object]], dict[str, Callable[[Any], None]]]] = {
    "once listed": lambda change: {"on_plan": once(change)},
    "after the first shard": lambda change: {"on_shard": once(change)},
    "after the last shard": lambda change: {"on_shard": once(change, COUNT // 8)},
}
RUNS = {
    "in process": SERIAL,
    "in workers": RunOptions(jobs=1, report=False),
}


@pytest.mark.parametrize(
    ("kind", "way", "moment"),
    [
        *((kind, "in process", moment) for kind in KINDS for moment in MOMENTS),
        ("mdb", "in workers", "once listed"),
    ],
)
def test_the_stopped_command_keeps_no_shard_of_the_old_container(
    kind: str, way: str, moment: str, tmp_path: Path
) -> None:
    swap = Swap(tmp_path, kind, SHADE)
    swap.stops(run=RUNS[way], **MOMENTS[moment](swap.replace))
    assert swap().resumed == 0
    assert swap.shades() == {SHADE}


def wrap_listings(monkeypatch: pytest.MonkeyPatch, wrap: Callable[[Callable[..., Any]], Callable[..., Any]]) -> None:
    """Replace the function that lists containers by `wrap` of it."""
    monkeypatch.setattr(containers, "KINDS", tuple(replace(kind, list=wrap(kind.list)) for kind in containers.KINDS))


def followed_by(change: Callable[[], object], function: Callable[..., Any]) -> Callable[..., Any]:
    def called(*arguments: object) -> Any:
        result = function(*arguments)
        change()
        return result

    return called


def test_a_container_replaced_during_its_listing_is_listed_again(swap: Swap, monkeypatch: pytest.MonkeyPatch) -> None:
    wrap_listings(monkeypatch, partial(followed_by, swap.replace))
    swap()
    assert swap.shades() == {0}


def test_a_container_that_looks_damaged_while_it_is_written_is_listed_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    swap = Swap(tmp_path, "tar", SHADE)

    def half_written_at_first(list_container: Callable[..., Any]) -> Callable[..., Any]:
        def called(*arguments: object) -> Any:
            if swap.other.exists():
                swap.replace()
                raise SourceError("it is damaged")
            return list_container(*arguments)

        return called

    wrap_listings(monkeypatch, half_written_at_first)
    swap()
    assert swap.shades() == {SHADE}


def test_a_container_that_changes_during_every_listing_is_refused(swap: Swap, monkeypatch: pytest.MonkeyPatch) -> None:
    wrap_listings(monkeypatch, partial(followed_by, swap.rewrite))
    with pytest.raises(SourceError, match=r"'a\.\w+' in .*source changed while it was listed; run again when it is"):
        swap()


@pytest.mark.parametrize("change", ["rewritten in place", "truncated", "replaced"])
def test_a_change_in_the_middle_of_a_shard_is_noticed(swap: Swap, change: str, monkeypatch: pytest.MonkeyPatch) -> None:
    read, reading = SourceReader.read, once(partial(CHANGES[change], swap), COUNT // 2)
    monkeypatch.setattr(SourceReader, "read", lambda reader, file: (reading(file), read(reader, file))[1])
    swap.stops(STOPS, options=replace(OPTIONS, shard_samples=COUNT))


def test_a_shard_whose_images_are_decoded_one_by_one_stops_as_well(tmp_path: Path) -> None:
    swap = Swap(tmp_path, "parquet")
    plan = swap.plan()
    (task, *_) = find_work(plan, SERIAL, OutputDir.of(swap.out), BuildJournal(plan.identity, 0)).tasks
    swap.replace()
    with pytest.raises(BuildError, match=STOPS):
        write_shard(task, CrashPolicy(60, anonymous_file("turnstile"), by_image=True))
    assert os.listdir(swap.out) == ["shards"] and os.listdir(swap.out / "shards") == []


def test_a_changed_container_is_named_before_an_image_that_cannot_be_stored(tmp_path: Path) -> None:
    swap = Swap(tmp_path, "tar")
    nothing, one_shard = bytes(swap.path.stat().st_size), replace(OPTIONS, shard_samples=COUNT)
    with swap.path.open("r+b") as file:
        strict = replace(SERIAL, on_error="fail")
        swap.stops(STOPS, run=strict, options=one_shard, on_plan=once(lambda: file.write(nothing)))


# Resuming


def test_samples_in_another_order_are_a_different_build(swap: Swap) -> None:
    swap.stops(on_shard=once(swap.replace))
    swap.stops(r"the source has changed \(.*--overwrite to replace it")
    swap(run=OVERWRITE)
    assert swap.shades() == {0}


def test_finished_files_of_a_replaced_container_are_built_again(tmp_path: Path) -> None:
    swap = Swap(tmp_path, "tar", SHADE)
    swap.options = replace(OPTIONS, layout="folder")
    swap.stops(on_shard=once(swap.replace))
    assert swap().resumed == 0
    swap("expected")
    assert swap.files() == swap.files("expected")


def on_another_host(container: Container) -> Container:
    return container._replace(version=container.version._replace(host="another", inode=5, ctime_ns=5))


@pytest.mark.parametrize(
    ("host", "resumed"), [(None, 8), ("another", 8), ("another, and replaced", 8), ("replaced", 0)]
)
def test_finished_shards_count_as_long_as_their_containers_are_the_same(
    host: str | None, resumed: int, tmp_path: Path
) -> None:
    """From another host, or from before a reboot, only size and modification time are compared."""
    swap = Swap(tmp_path, "tar", SHADE)
    digest, sidecar = swap.plan().shard_digest(0), swap.out / ".presize-00000.npz"
    with pytest.raises(Stopped):
        swap(on_shard=stop)
    table = ShardTable.read(sidecar, 0, digest)
    assert table is not None
    assert [container.path for container in table.containers] == ["a.tar"]
    if host and "another" in host:
        replace(table, containers=tuple(map(on_another_host, table.containers))).write(sidecar, digest)
    if host and "replaced" in host:
        swap.replace()
    assert swap().resumed == resumed


def test_a_dataset_does_not_record_the_versions_of_its_containers(tmp_path: Path) -> None:
    swap = Swap(tmp_path, "tar")
    swap("one", run=REPORTED)
    shutil.copy2(swap.path, tmp_path / "copy")
    (tmp_path / "copy").replace(swap.path)
    swap("two", run=REPORTED)
    assert swap.files("one") == swap.files("two")


# Parts


@pytest.mark.parametrize(
    ("kind", "change"), [*((kind, "replaced") for kind in KINDS), ("tar", "touched"), ("tar", "gone")]
)
def test_a_part_refuses_a_container_that_changed_since_the_parts_listed_it(
    kind: str, change: str, tmp_path: Path
) -> None:
    swap = Swap(tmp_path, kind)
    swap.part(1)
    CHANGES[change](swap)
    fix = "No such file or directory; run again" if change == "gone" else "--overwrite without --part to start over"
    for again in (partial(swap.part, 2), swap):
        with pytest.raises(BuildError, match=rf"'a\.\w+' in .*{fix}"):
            again()


def test_shards_of_parts_are_built_again_from_a_changed_container(tmp_path: Path) -> None:
    swap = Swap(tmp_path, "tar", SHADE)
    for number in (1, 2):
        swap.part(number)
    swap.replace()
    swap.stops()
    assert swap(run=OVERWRITE).resumed == 0
    assert swap.shades() == {SHADE}


@pytest.mark.parametrize("change", ["replaced", "touched"])
def test_parts_on_other_hosts_compare_sizes_and_times(change: str, tmp_path: Path) -> None:
    swap = Swap(tmp_path, "tar")
    swap.part(1)
    listing = read_listing(swap.out)
    assert listing is not None
    elsewhere = tuple(map(on_another_host, listing.source.containers))
    write_listing(swap.out, replace(listing, source=replace(listing.source, containers=elsewhere)))
    swap.part(2)
    if change == "touched":
        os.utime(swap.path)
        swap.stops()
    else:
        swap()
        assert swap.shades() == {0}


# Other readers


def test_a_changed_container_stops_an_estimate_an_update_and_a_repair(tmp_path: Path) -> None:
    swap = Swap(tmp_path, "tar")
    swap.options = replace(OPTIONS, checksum=True)
    swap()
    (swap.out / "shards" / "00001.lmdb").unlink()
    plan = swap.plan()
    swap.stops(run=UPDATE, on_plan=once(lambda: swap.become(lambda path: shutil.copy(swap.other, path))))
    with pytest.raises(BuildError, match="changed during the build"):
        estimate(plan)
    with pytest.raises(PresizeError, match="changed during the build"):
        repair_dataset(swap.source, swap.out, on_begin=once(lambda: os.utime(swap.path)))


def test_one_changed_container_of_several_in_folders_stops_the_build(tmp_path: Path) -> None:
    swap = Swap(tmp_path, "tar")
    for name in ("b.tar", "folder/c.tar"):
        write_container(swap.source / name, [1, 2])
    change = once(lambda: os.utime(swap.source / "folder/c.tar"))
    swap.stops(r"'folder/c\.tar' in .* changed during the build", on_shard=change)
