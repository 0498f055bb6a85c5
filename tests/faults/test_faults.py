"""A build killed at a system call, or refused one: nothing is lost, and the same command makes the same bytes.

By default some of all faults, drawn anew each time; PRESIZE_FAULTS=all tries every one (make torture).
"""

from __future__ import annotations

import os
import random
import shutil
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest
from PIL import Image

from builds import files
from faults import ERRORS, KILL, Fault, calls_on, run, why_not
from pictures import smooth_image

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(why_not() is not None, reason=str(why_not())),
]

SOME = 6
EVERY = os.environ.get("PRESIZE_FAULTS") == "all"


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


def built(*options: str) -> Callable[[Path, Path], None]:
    def prepare(raw: Path, out: Path) -> None:
        fresh(raw, out)
        assert run(["build", raw, out, "--size", "32", "--jobs", "1", "--no-report", *options])[0] == 0

    return prepare


def changed(*options: str) -> Callable[[Path, Path], None]:
    def prepare(raw: Path, out: Path) -> None:
        built(*options)(raw, out)
        (raw / "cats" / "a.jpg").unlink()
        photographs(raw, ["dogs/new.jpg"])

    return prepare


SCENARIOS: dict[str, tuple[Callable[[Path, Path], None], tuple[str, ...]]] = {
    "a first build": (fresh, ("--size", "32")),
    "two sizes": (fresh, ("--size", "32", "--size", "16")),
    "a folder": (fresh, ("--size", "32", "--to", "folder")),
    "over another dataset": (built("--quality", "50"), ("--size", "32", "--overwrite")),
    "a folder over shards": (built(), ("--size", "32", "--to", "folder", "--overwrite")),
    "shards over a folder": (built("--to", "folder"), ("--size", "32", "--overwrite")),
    "an update": (changed("--shard-samples", "2"), ("--size", "32", "--shard-samples", "2", "--update")),
    "an update of two sizes": (
        changed("--size", "16", "--shard-samples", "2"),
        ("--size", "32", "--size", "16", "--shard-samples", "2", "--update"),
    ),
}


@pytest.mark.parametrize("scenario", SCENARIOS)
def test_a_fault_at_any_system_call_loses_nothing(scenario: str, tmp_path: Path) -> None:
    prepare, options = SCENARIOS[scenario]
    start, place = tmp_path / "start", tmp_path / "place"
    start.mkdir()
    prepare(start / "raw", start / "out")
    shutil.copytree(start, place)
    command = ["build", place / "raw", place / "out", *options, "--jobs", "1", "--no-report"]
    calls = calls_on(place / "out", command, tmp_path / "calls.log")
    whole = files(place / "out")
    faults = [Fault(call, number, what) for call, number in calls for what in (KILL, *ERRORS)]
    seed = random.randrange(10**6)
    for fault in faults if EVERY else random.Random(seed).sample(faults, min(SOME, len(faults))):
        shutil.rmtree(place)
        shutil.copytree(start, place)
        code, said = run(command, fault)
        assert "Traceback" not in said, f"{fault}: {said}"
        assert len(said.splitlines()) <= 2, f"{fault}: {said}"
        assert code in (0, 1) or fault.what == KILL, f"{fault}: exit code {code}, {said}"
        # Where the fault came after publishing, --overwrite would build the same anew, under the next generation.
        code, said = run([option for option in command if option != "--overwrite"])
        if code and "--overwrite" in command:
            code, said = run(command)
        assert code == 0, f"after {fault}: {said}"
        assert files(place / "out") == whole, f"after {fault}"
