"""What notebooks show below a cell: facts, and a few thumbnails, as a piece of HTML."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from presize.errors import DatasetError
from presize.pages.cards import Card, cards_of
from presize.pages.html import template
from presize.pages.opened import ViewedDataset
from presize.store.data_files import MANIFEST
from presize.store.dataset import Dataset
from presize.system.files import is_url
from presize.system.resources import usable_cores

IMAGES, SIDE = 8, 128
"""How many thumbnails, and their longer side in pixels."""


def dataset_html(data: Any, records: npt.NDArray[np.int64], title: str) -> str | None:
    """Some of the stored images of a Dataset, spread evenly over `records`.

    Returns:
        None for what is not a Dataset in a folder: shards of a store would have to be fetched.
    """
    if not isinstance(data, Dataset) or data.origin is not None:
        return None
    return _rendered(title, [], _cards(ViewedDataset.reading(data), records))


def build_html(out: str | os.PathLike[str], facts: Sequence[str]) -> str:
    """What a build made: its facts, and some of the images of its first size, where `out` is a folder."""
    found = [] if is_url(out) else _datasets_in(Path(out))
    cards: list[Card] = []
    if found:
        opened = ViewedDataset.of(found[0])
        cards = _cards(opened, np.arange(opened.manifest.samples))
    return _rendered(str(out), facts, cards)


def _datasets_in(out: Path) -> list[Path]:
    return [out] if (out / MANIFEST).is_file() else sorted(path.parent for path in out.glob(f"*/{MANIFEST}"))


def _cards(opened: ViewedDataset, records: npt.NDArray[np.int64]) -> list[Card]:
    shown = records[np.linspace(0, len(records) - 1, min(IMAGES, len(records))).round().astype(np.int64)]
    try:
        return cards_of(opened, shown.tolist(), SIDE, usable_cores())
    except DatasetError:
        return []  # damage is raised where it is read, not where a cell shows a dataset


def _rendered(title: str, facts: Sequence[str], cards: Sequence[Card]) -> str:
    return template("notebook.html").render(title=title, facts=facts, cards=cards, rows=[])
