"""The output of --json matches docs/cli.md, in names and types, for every command that has it."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from commands import Ran, documented_json, read_json
from paired import make_pairs
from presize.cli import cli

SERIAL = "--jobs 1"
ROWS = [
    ("build", f"build RAW NEW {SERIAL} --size 48"),
    ("build", f"build RAW DATASET {SERIAL} --size 64"),
    ("build, build --update", f"build RAW DATASET {SERIAL} --update"),
    ("build, build --update, build --update --verify", f"build RAW DATASET {SERIAL} --update --verify"),
    ("build, build --pair", f"build PAIRS NEW {SERIAL} --size 24 --pair mask=masks/{{stem}}.png"),
    ("build --part", f"build RAW NEW {SERIAL} --size 48 --shard-samples 30 --part 1/2"),
    ("build --part", f"build RAW DATASET {SERIAL} --size 64 --part 1/2"),
    ("build --dry-run", f"build RAW NEW {SERIAL} --dry-run --split a=0.5,b=0.5"),
    ("build --dry-run, build --update", f"build RAW DATASET {SERIAL} --update --dry-run"),
    ("derive", f"derive DATASET NEW {SERIAL} --size 32"),
    ("derive --dry-run", "derive DATASET NEW --dry-run"),
    ("repair", "repair RAW DATASET"),
    ("verify", "verify DATASET"),
    ("info", "info DATASET"),
    ("doctor", "doctor DATASET"),
    ("diagnose", "diagnose DATASET --crop 16 --batch 2 --workers 0 --seconds 0.05 -q"),
    ("simulate", "simulate --workers 7 --load-ms 2000 --step-ms 100"),
    ("simulate", "simulate --workers 7 --load-ms 2000 --step-ms 100 -o PAGE.html"),
]
ELSEWHERE = {"fetch", "upload", "bench"}
"""Commands with separate tests, which need a server or a long benchmark."""


@pytest.fixture
def own_dataset(dataset: Path, tmp_path: Path) -> Path:
    shutil.copytree(dataset, tmp_path / "out")
    return tmp_path / "out"


@pytest.mark.parametrize(("rows", "words"), ROWS, ids=[words.replace("/", "-") for _, words in ROWS])
def test_json_is_as_documented(
    rows: str, words: str, presize: Callable[..., Ran], raw: Path, own_dataset: Path, tmp_path: Path
) -> None:
    places = {"RAW": raw, "DATASET": own_dataset, "NEW": tmp_path / "new", "PAGE.html": tmp_path / "page.html"}
    if "PAIRS" in words:
        places["PAIRS"] = make_pairs(tmp_path / "pairs", 4)
    ran = presize(*(places.get(word, word) for word in words.split()), "--json")
    assert ran.code == 0, ran.err
    read_json(ran.out, *rows.split(", "))


def test_every_command_with_json_is_tried_and_documented() -> None:
    documented = set(documented_json())
    assert {row for rows, _ in ROWS for row in rows.split(", ")} | ELSEWHERE == documented
    with_json = {
        name for name, command in cli.commands.items() if any("--json" in each.opts for each in command.params)
    }
    assert {row.split()[0] for row in documented} == with_json
