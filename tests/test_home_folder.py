"""`~` at the start of a path is the home folder, for all paths: on the command line, quoted, and in Python."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import presize
from builds import SERIAL, SMALL
from commands import Ran
from presize import BuildPart, Companion, SampleOptions, SourceOptions
from presize.datasets import FolderDataset, LMDBDataset


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Create a home folder with two images in RAW, a table of them, and their dataset in OUT."""
    home = tmp_path_factory.mktemp("home")
    presize.make_samples(home / "RAW", SampleOptions(images=2, classes=1, long_side=20))
    names = [path.relative_to(home / "RAW").as_posix() for path in sorted((home / "RAW").rglob("*.jpg"))]
    (home / "table.csv").write_text("\n".join(["path,label", *(f"{name},{name.partition('/')[0]}" for name in names)]))
    (home / "paths.txt").write_text(names[0])
    (home / "classes.txt").write_text("\n".join(path.name for path in (home / "RAW").iterdir()))
    presize.build_dataset(home / "RAW", home / "OUT", SMALL, SERIAL)
    return home


@pytest.fixture(autouse=True)
def at_home(home: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("HOME", str(home))
    monkeypatch.chdir(tmp_path)


CALLS: dict[str, Callable[[], Any]] = {
    "build_dataset": lambda: presize.build_dataset("~/RAW", "~/built", SMALL, SERIAL).out,
    "plan_build": lambda: presize.plan_build("~/RAW", samples=SourceOptions(labels="~/table.csv")).source.root,
    "build_part": lambda: presize.build_part("~/RAW", "~/part", BuildPart(1, 1), SMALL, SERIAL).out,
    "derive_dataset": lambda: presize.derive_dataset(["~/OUT"], "~/derived", run=SERIAL).out,
    "plan_derive": lambda: presize.plan_derive(["~/OUT"]).plan,
    "repair_dataset": lambda: presize.repair_dataset("~/RAW", "~/OUT"),
    "options_of": lambda: presize.options_of("~/OUT"),
    "options_to_update": lambda: presize.options_to_update("~/OUT").image,  # type: ignore[union-attr]
    "export_dataset": lambda: presize.export_dataset("~/OUT", "~/exported"),
    "verify_dataset": lambda: presize.verify_dataset("~/OUT"),
    "info_dataset": lambda: presize.info_dataset("~/OUT"),
    "view_dataset": lambda: presize.view_dataset("~/OUT", "~/RAW"),
    "make_samples": lambda: presize.make_samples(Path("~/made"), SampleOptions(images=1, classes=1, long_side=20)),
    "doctor": lambda: presize.doctor("~/OUT"),
    "Dataset": lambda: presize.Dataset("~/OUT").path(0),
    "LMDBDataset": lambda: LMDBDataset(Path("~/OUT"))[0],
    "FolderDataset": lambda: FolderDataset("~/RAW")[0],
}


@pytest.mark.parametrize("call", CALLS.values(), ids=CALLS)
def test_a_function_takes_a_path_from_the_home_folder(call: Callable[[], Any]) -> None:
    assert call()
    assert not os.listdir()


COMMANDS = [
    "build ~/RAW ~/built2 --labels ~/table.csv --classes ~/classes.txt -q",
    "build ~/RAW ~/built3 --like ~/OUT -q",
    "derive ~/OUT ~/derived2 --only ~/paths.txt --classes ~/OUT -q",
    "view ~/OUT --raw ~/RAW -o ~/view.html",
    "sample ~/made2 --images 1",
    "doctor ~/OUT",
    "simulate --workers 1 --load-ms 9 --step-ms 9 -o ~/page.html",
]


@pytest.mark.slow
@pytest.mark.parametrize("line", COMMANDS)
def test_a_command_takes_a_quoted_path_from_the_home_folder(line: str, presize: Callable[..., Ran]) -> None:
    ran = presize(*line.split())
    assert ran.code == 0, ran.err
    assert not os.listdir()


def test_a_folder_named_tilde_can_be_given_as_another_path(home: Path) -> None:
    presize.build_dataset(home / "RAW", "./~", SMALL, SERIAL)
    assert os.listdir() == ["~"] and len(presize.Dataset("./~")) == 2
    assert Companion("mask", "~/{stem}.png").pattern == "~/{stem}.png"
