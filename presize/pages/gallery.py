"""Renders self-contained pages of a dataset, and the HTML that notebooks show below a cell."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path, PurePath
from typing import Any, NamedTuple

import numpy as np

from presize.errors import DatasetError
from presize.pages.html import notebook_html, template
from presize.pages.samples import Card, ViewedDataset, cards_of
from presize.pages.selection import Filters, Rows, class_counts, matching, reason_counts, split_counts
from presize.store.data_files import MANIFEST
from presize.store.dataset import Dataset
from presize.system.files import is_url
from presize.system.resources import usable_cores

SAMPLES, SAMPLES_BESIDE_SOURCES, REJECTS = 60, 24, 200  # per page; sources are large, and each page decodes them
# Longer side of pictures in pixels: single on a card, next to others, and on the page of one sample.
SIDE, SIDE_BESIDE, SIDE_ALONE = 220, 180, 720
NOTEBOOK_SAMPLES, NOTEBOOK_SIDE = 8, 128
MOST_CHOICES = 1000  # in a drop-down list; with more classes, users type the name


class Pager(NamedTuple):
    """Position of a page among `pages`, from 1. It shows the rows `first` to `last`, from 1, of `total` matching rows;
    `last` is 0 if nothing matches."""

    page: int
    pages: int
    first: int
    last: int
    total: int

    @classmethod
    def of(cls, total: int, each: int, page: int) -> Pager:
        """Return the position of a page of `each` rows; `page` is limited to the last page."""
        pages = max(1, -(-total // each))
        page = min(page, pages)
        return cls(page, pages, (page - 1) * each + 1, min(page * each, total), total)


def gallery_page(viewed: ViewedDataset, filters: Filters) -> str:
    """Return a server's page for `filters`. All texts may be hostile: they are escaped. Raises as matching() does."""
    matches = matching(viewed, filters)
    of_rejects = filters.show == "rejects"
    each = REJECTS if of_rejects else SAMPLES if viewed.raw is None else SAMPLES_BESIDE_SOURCES
    pager = Pager.of(len(matches), each, filters.page)
    choices = {
        "classes": class_counts(viewed),
        "splits": split_counts(viewed),
        "reasons": reason_counts(viewed.rejects, MOST_CHOICES) if of_rejects else [],
    }
    return _render(viewed, filters, pager, matches[pager.first - 1 : pager.last], is_served=True, **choices)


def view_dataset(
    root: str | os.PathLike[str],
    raw: str | os.PathLike[str] | None = None,
    filters: Filters = Filters(),
    images: int = SAMPLES,
) -> str:
    """Return an HTML page of the dataset in `root`, without links, as ``presize view root -o FILE`` writes it. It shows
    up to `images` samples or rejects, spread evenly over all that match.

    Args:
        raw: the folder that it was built from, to show sources next to stored images.

    Raises:
        DatasetError: `root` is not a dataset in a folder, or is damaged.
        OptionError: `raw` is not the folder that it was built from, or a filter has an unknown value.
    """
    viewed = ViewedDataset.of(root, raw)
    viewed.check_sources()
    matches = matching(viewed, filters)
    shown = _spread(matches, images)
    return _render(viewed, filters, Pager(1, 1, 1, len(shown), len(matches)), shown, is_served=False)


def _spread(rows: Rows, count: int) -> Rows:
    return rows[np.linspace(0, len(rows) - 1, min(count, len(rows))).round().astype(np.int64)]


def _render(viewed: ViewedDataset, filters: Filters, pager: Pager, shown: Rows, is_served: bool, **choices: Any) -> str:
    cards: list[Card] = []
    if filters.show == "stored":
        side = SIDE if viewed.raw is None and not viewed.manifest.companions else SIDE_BESIDE
        side = SIDE_ALONE if is_served and filters.sample >= 0 else side
        cards = cards_of(viewed, shown.tolist(), side, usable_cores())
    return template("gallery.html").render(
        name=PurePath(viewed.root).name,
        manifest=viewed.manifest,
        not_stored=sum(viewed.manifest.left_out.get(name, 0) for name in ("rejected", "skipped", "unreadable")),
        filters=filters,
        pager=pager,
        cards=cards,
        rejects=list(viewed.rejects.take(shown)) if filters.show == "rejects" else [],
        is_served=is_served,
        most_choices=MOST_CHOICES,
        **choices,
    )


def dataset_html(data: Any, records: Rows, title: str) -> str | None:
    """Return HTML with some stored images of a Dataset, spread evenly over `records`; None unless `data` is a Dataset
    in a folder: remote shards would have to be fetched."""
    if not isinstance(data, Dataset) or data.origin is not None:
        return None
    return notebook_html(title, cards=_notebook_cards(ViewedDataset.reading(data), records))


def build_html(out: str | os.PathLike[str], facts: Sequence[str]) -> str:
    """Return HTML with the facts of a build, and some images of its first size if `out` is a folder."""
    cards: list[Card] = []
    folder = Path(out)
    datasets = [folder] if (folder / MANIFEST).is_file() else sorted(one.parent for one in folder.glob(f"*/{MANIFEST}"))
    if not is_url(out) and datasets:
        viewed = ViewedDataset.of(datasets[0])
        cards = _notebook_cards(viewed, np.arange(viewed.manifest.samples))
    return notebook_html(str(out), facts, cards=cards)


def _notebook_cards(viewed: ViewedDataset, records: Rows) -> list[Card]:
    try:
        return cards_of(viewed, _spread(records, NOTEBOOK_SAMPLES).tolist(), NOTEBOOK_SIDE, usable_cores())
    except DatasetError:
        return []  # damage raises when it is read, not when a cell shows a dataset
