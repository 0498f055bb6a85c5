"""A dataset and filters -> pages of it, self-contained, and the pieces of HTML that notebooks show below a cell."""

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

SAMPLES, SAMPLES_BESIDE_SOURCES, REJECTS = 60, 24, 200  # of a page: sources are large, and are decoded for each
# Longer side of pictures in pixels: alone on a card, beside others, and on the page of one sample.
SIDE, SIDE_BESIDE, SIDE_ALONE = 220, 180, 720
NOTEBOOK_SAMPLES, NOTEBOOK_SIDE = 8, 128
MOST_CHOICES = 1000  # of a list to choose from; with more classes their name is typed


class Pager(NamedTuple):
    """Position of a page among all `pages`, from 1, and which of the `total` rows that match are on it: from `first`,
    counted from 1, to `last`, which is 0 where nothing matches."""

    page: int
    pages: int
    first: int
    last: int
    total: int

    @classmethod
    def of(cls, total: int, each: int, page: int) -> Pager:
        """Return the position of a page of `each`; a page past the last one is the last one."""
        pages = max(1, -(-total // each))
        page = min(page, pages)
        return cls(page, pages, (page - 1) * each + 1, min(page * each, total), total)


def gallery_page(viewed: ViewedDataset, filters: Filters) -> str:
    """Return the page at one address of a server. Names, texts and reasons may be hostile: they are escaped. Errors are
    those of matching()."""
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
    """Return a page of the dataset in `root`, without links: what ``presize view root -o FILE`` writes. It shows up to
    `images` samples or rejects, spread evenly over all that match.

    Args:
        raw: the folder that it was built from, to show sources beside what is stored.

    Raises:
        DatasetError: `root` is not a dataset in a folder, or is damaged.
        OptionError: `raw` is not the folder that it was built from, or a filter names what does not exist.
    """
    viewed = ViewedDataset.of(root, raw)
    viewed.check_sources()
    matches = matching(viewed, filters)
    shown = _spread(matches, images)
    return _render(viewed, filters, Pager(1, 1, 1, len(shown), len(matches)), shown, is_served=False)


def _spread(rows: Rows, count: int) -> Rows:
    """Return up to `count` of the rows, evenly spread."""
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
    """Return a piece of HTML with some of the stored images of a Dataset, spread evenly over `records`; None for
    anything but a Dataset in a folder: shards of a store would have to be fetched."""
    if not isinstance(data, Dataset) or data.origin is not None:
        return None
    return notebook_html(title, cards=_notebook_cards(ViewedDataset.reading(data), records))


def build_html(out: str | os.PathLike[str], facts: Sequence[str]) -> str:
    """Return a piece of HTML with the facts of a build, and some images of its first size where `out` is a folder."""
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
        return []  # damage is raised where it is read, not where a cell shows a dataset
