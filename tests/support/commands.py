"""Output of commands, and the JSON that docs/cli.md documents."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

PAGE = Path(__file__).parents[2] / "docs" / "cli.md"
TYPES = {
    "int": (int,), "float": (int, float), "text": (str,), "list": (list,), "object": (dict,), "bool": (bool,),
    "null": (type(None),),
}  # fmt: skip

OFFLINE = {"PIP_NO_INDEX": "1", "PIP_NO_BUILD_ISOLATION": "0"}
"""In options that begin with "no", pip takes 0 to mean: no isolation. So our setuptools builds wheels."""


@dataclass(frozen=True)
class Ran:
    """Result of a command that ran in this process."""

    code: object
    out: str
    err: str


def documented_json() -> dict[str, dict[str, tuple[type, ...]]]:
    """Return the types of each name, for each row of the table of docs/cli.md."""
    found: dict[str, dict[str, tuple[type, ...]]] = {}
    for command, row in re.findall(r"^\| `([\w -]+)` \| (`.*`: .*) \|$", PAGE.read_text("utf-8"), re.MULTILINE):
        found[command] = {}
        for names, words in re.findall(r"((?:`\w+`(?:, )?)+): (\w+(?: or null)?)", row):
            kinds = tuple(kind for word in words.split(" or ") for kind in TYPES[word])
            found[command] |= dict.fromkeys(re.findall(r"`(\w+)`", names), kinds)
    return found


def read_json(printed: str, *commands: str) -> dict[str, Any]:
    """Parse the output of a command: one object with the names of the rows `commands` of docs/cli.md together."""
    values: dict[str, Any] = json.loads(printed)
    types = {name: kinds for command in commands for name, kinds in documented_json()[command].items()}
    assert set(values) == set(types)
    wrong = {name: value for name, value in values.items() if type(value) not in types[name]}
    assert not wrong
    return values
