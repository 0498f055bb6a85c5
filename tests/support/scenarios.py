"""Commands to disturb, the initial state of OUT, and the expected state after them."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Sequence
from pathlib import Path

from PIL import Image

from builds import files
from faults import Crash, changes_of, run
from pictures import smooth_image
from tampering import change_records

Prepare = Callable[[Path, Path], None]
"""A function that creates a source and the initial OUT."""

Command = Callable[..., list[object]]
"""A function that returns the arguments of the disturbed command from the source, OUT, and options."""


def photographs(folder: Path, names: Sequence[str]) -> None:
    for seed, name in enumerate(names):
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(smooth_image(40, 60, seed=seed)).save(path, "JPEG", quality=95)
        os.utime(path, ns=(10**18, 10**18))


def fresh(raw: Path, _out: Path) -> None:
    photographs(raw, ["cats/a.jpg", "cats/b.jpg", "dogs/c.jpg"])
    (raw / "dogs" / "broken.jpg").write_bytes(b"\xff\xd8\xff\xe0")
    os.utime(raw / "dogs" / "broken.jpg", ns=(10**18, 10**18))


def build(raw: Path, out: Path, *options: str) -> list[object]:
    return ["build", raw, out, "--size", "32", "--backend", "sequential", "--no-report", *options]


def repair(raw: Path, out: Path) -> list[object]:
    return ["repair", raw, out, "--jobs", "1"]


def derive(raw: Path, out: Path, *options: str) -> list[object]:
    return ["derive", raw, out, "--size", "24", "--jobs", "1", *options]


def built(*options: str) -> Prepare:
    def prepare(raw: Path, out: Path) -> None:
        fresh(raw, out)
        assert run(build(raw, out, *options))[0] == 0

    return prepare


def changed(*options: str) -> Prepare:
    def prepare(raw: Path, out: Path) -> None:
        built(*options)(raw, out)
        (raw / "cats" / "a.jpg").unlink()
        photographs(raw, ["dogs/new.jpg"])

    return prepare


def damaged(moves: bool, *options: str) -> Prepare:
    """Prepare datasets that lack a shard. It gets another name if it `moves`, because its bytes differ."""

    def prepare(raw: Path, out: Path) -> None:
        built(*TWOS, *options)(raw, out)
        for manifest in list(out.rglob("manifest.json")):
            if moves:
                change_records(manifest.parent, lambda _shard, _row, value: value)
            (manifest.parent / "shards" / "00001.lmdb").unlink()

    return prepare


def derivable(raw: Path, out: Path) -> None:
    """Build a dataset as the source."""
    built(*TWOS)(raw.with_name("photographs"), raw)
    assert not out.exists()


def parts(*done: str) -> Prepare:
    def prepare(raw: Path, out: Path) -> None:
        fresh(raw, out)
        for part in done:
            assert run(build(raw, out, *TWOS, "--part", part))[0] == 0

    return prepare


def crashed(before_the_end: int, *options: str) -> Prepare:
    """Prepare a build that is killed this many changes of OUT before its end."""

    def prepare(raw: Path, out: Path) -> None:
        fresh(raw, out)
        changes = changes_of(out, build(raw, out, *options))
        shutil.rmtree(out)
        assert run(build(raw, out, *options), Crash(out, changes - before_the_end))[0] < 0

    return prepare


TWOS = ("--shard-samples", "2")
UPDATE = (*TWOS, "--update")

SCENARIOS: dict[str, tuple[Prepare, tuple[str, ...]] | tuple[Prepare, tuple[str, ...], Command]] = {
    "a first build": (fresh, ()),
    "two sizes": (fresh, ("--size", "16")),
    "a folder": (fresh, ("--to", "folder")),
    "over another dataset": (built("--quality", "50"), ("--overwrite",)),
    "two sizes over others": (built("--size", "16", "--quality", "50"), ("--size", "16", "--overwrite")),
    "a folder over a folder": (built("--to", "folder", "--quality", "50"), ("--to", "folder", "--overwrite")),
    "a folder over shards": (built(), ("--to", "folder", "--overwrite")),
    "shards over a folder": (built("--to", "folder"), ("--overwrite",)),
    "over an unfinished build": (parts("1/2"), ("--quality", "50", "--overwrite")),
    "over a folder that was being published": (crashed(4, "--to", "folder"), ("--overwrite",)),
    "an update": (changed(*TWOS), UPDATE),
    "an update of two sizes": (changed("--size", "16", *TWOS), ("--size", "16", *UPDATE)),
    "the first part": (fresh, (*TWOS, "--part", "1/2")),
    "the last part": (parts("1/2"), (*TWOS, "--part", "2/2")),
    "the command after all parts": (parts("1/2", "2/2"), TWOS),
    "a repair": (damaged(False), (), repair),
    "a repair that moves shards of two sizes": (damaged(True, "--size", "16"), (), repair),
    "a dataset that is derived": (derivable, (), derive),
}

NEVER_EMPTY = {
    "over another dataset": [""],
    "two sizes over others": ["32", "16"],
    "an update": [""],
    "an update of two sizes": ["32", "16"],
}
"""Scenarios with a complete dataset, the old or the new one, at every moment: its path relative to OUT."""


class Scenario:
    """A command in `folder`, of builds with the options `more`, that can be started again and again."""

    def __init__(self, name: str, folder: Path, *more: object) -> None:
        prepare, options, *other = SCENARIOS[name]
        (command,) = other or [build]
        self._start, self._place = folder / "start", folder / "place"
        self._place.mkdir(parents=True)
        self.out = self._place / "out"
        self.command = [*command(self._place / "raw", self.out, *options), *(() if other else more)]
        prepare(self._place / "raw", self.out)
        shutil.copytree(self._place, self._start)

    def restart(self) -> None:
        """Restore the state before the command."""
        shutil.rmtree(self._place)
        shutil.copytree(self._start, self._place)

    def finished(self) -> dict[str, str]:
        """Return the files of OUT after the undisturbed command. It first runs without its flag, which would rebuild a
        published dataset."""
        plain = [option for option in self.command if option not in ("--overwrite", "--update")]
        code, said = run(plain)
        if code and plain != self.command:
            code, said = run(self.command)
        assert code == 0, said
        return self.contents()

    def contents(self) -> dict[str, str]:
        """Return the files of OUT and its folders: ImageFolder would take a leftover folder for a class."""
        folders = (path.relative_to(self.out).as_posix() for path in self.out.rglob("*") if path.is_dir())
        return {**files(self.out), **dict.fromkeys(folders, "a folder")}
