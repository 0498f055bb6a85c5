"""Commands: what one has printed, and what docs/cli.md says of its JSON."""

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
"""pip takes 0 in an option that begins with "no" to mean: no isolation. So wheels are built by our setuptools."""


@dataclass(frozen=True)
class Ran:
    """A command, run in this process."""

    code: object
    out: str
    err: str


def documented_json() -> dict[str, dict[str, tuple[type, ...]]]:
    """For each row of the table of docs/cli.md the types that each name may have."""
    found: dict[str, dict[str, tuple[type, ...]]] = {}
    for command, row in re.findall(r"^\| `([\w -]+)` \| (`.*`: .*) \|$", PAGE.read_text("utf-8"), re.MULTILINE):
        found[command] = {}
        for names, words in re.findall(r"((?:`\w+`(?:, )?)+): (\w+(?: or null)?)", row):
            kinds = tuple(kind for word in words.split(" or ") for kind in TYPES[word])
            found[command] |= dict.fromkeys(re.findall(r"`(\w+)`", names), kinds)
    return found


def read_json(printed: str, *commands: str) -> dict[str, Any]:
    """What a command has printed: one object, as the rows `commands` of docs/cli.md have it together."""
    values: dict[str, Any] = json.loads(printed)
    types = {name: kinds for command in commands for name, kinds in documented_json()[command].items()}
    assert set(values) == set(types)
    wrong = {name: value for name, value in values.items() if type(value) not in types[name]}
    assert not wrong
    return values
