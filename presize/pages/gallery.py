"""A dataset and filters -> a page of it, self-contained."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import PurePath
from typing import Any

import numpy as np

from presize.pages.cards import Card, cards_of
from presize.pages.html import template
from presize.pages.opened import ViewedDataset
from presize.pages.selection import (
    Filters,
    Rows,
    class_counts,
    matching,
    matching_rejects,
    reason_counts,
    split_counts,
)
from presize.store.rejects import Reject
from presize.system.resources import usable_cores

SAMPLES, SAMPLES_BESIDE_SOURCES, REJECTS = 60, 24, 200
"""Of a page. Sources are large, and are decoded for each page."""

SIDE, SIDE_BESIDE, SIDE_ALONE = 220, 180, 720
"""Of pictures, in pixels at most: alone on a card, beside others, and of a page with one sample."""

MOST_CHOICES = 1000
"""Of a list to choose from; with more classes their name is typed."""


@dataclass(frozen=True)
class Pager:
    """Where a page is among others.

    Attributes:
        page, pages: this one, from 1, and the last one.
        first, last: of all that match, those on this page, from 1; `last` is 0 where nothing matches.
        total: how many match.
    """

    page: int
    pages: int
    first: int
    last: int
    total: int

    @classmethod
    def of(cls, total: int, each: int, page: int) -> Pager:
        """A page past the last one is the last one.

        >>> Pager.of(total=61, each=60, page=9)
        Pager(page=2, pages=2, first=61, last=61, total=61)
        """
        pages = max(1, -(-total // each))
        page = min(page, pages)
        return cls(page, pages, (page - 1) * each + 1, min(page * each, total), total)

    def rows(self, found: Rows) -> Rows:
        """Those of this page."""
        return found[self.first - 1 : self.last]


def gallery_page(opened: ViewedDataset, filters: Filters) -> str:
    """The page at one address of a server. Names, texts and reasons may be hostile: they are escaped.

    Raises:
        OptionError: a filter names a class, a split or a sample that is not there.
        DatasetError: the index or the rejects are damaged.
    """
    if filters.show == "rejects":
        found = matching_rejects(opened.rejects, filters)
        pager = Pager.of(len(found), REJECTS, filters.page)
        return _render(opened, filters, pager, rejects=list(opened.rejects.take(pager.rows(found))))
    found = matching(opened, filters)
    pager = Pager.of(len(found), SAMPLES if opened.raw is None else SAMPLES_BESIDE_SOURCES, filters.page)
    side = SIDE_ALONE if filters.sample >= 0 else _side(opened)
    return _render(opened, filters, pager, cards_of(opened, pager.rows(found).tolist(), side, usable_cores()))


def view_dataset(
    root: str | os.PathLike[str],
    raw: str | os.PathLike[str] | None = None,
    filters: Filters = Filters(),
    images: int = SAMPLES,
) -> str:
    """A page of a dataset, to be written to a file: what ``presize view root -o FILE`` writes.

    Args:
        root: the dataset.
        raw: the folder that it was built from, to show sources beside what is stored.
        filters: which samples to choose from.
        images: how many to show at most, at least 1.

    Raises:
        DatasetError: `root` is no dataset in a folder, or is damaged.
        OptionError: `raw` is not the folder that it was built from, or a filter names what is not there.
    """
    opened = ViewedDataset.of(root, raw)
    opened.check_sources()
    return sample_page(opened, filters, images)


def sample_page(opened: ViewedDataset, filters: Filters, images: int = SAMPLES) -> str:
    """A page of its own, without links: up to `images` samples or rejects, spread evenly over those that match.

    Raises:
        OptionError, DatasetError: as for gallery_page().
    """
    of_rejects = filters.show == "rejects"
    found = matching_rejects(opened.rejects, filters) if of_rejects else matching(opened, filters)
    shown = found[np.linspace(0, len(found) - 1, min(images, len(found))).round().astype(np.int64)]
    pager = Pager(1, 1, 1, len(shown), len(found))
    if of_rejects:
        return _render(opened, filters, pager, rejects=list(opened.rejects.take(shown)), is_served=False)
    cards = cards_of(opened, shown.tolist(), _side(opened), usable_cores())
    return _render(opened, filters, pager, cards, is_served=False)


def _side(opened: ViewedDataset) -> int:
    return SIDE if opened.raw is None and not opened.manifest.companions else SIDE_BESIDE


def _render(
    opened: ViewedDataset,
    filters: Filters,
    pager: Pager,
    cards: list[Card] | None = None,
    rejects: list[Reject] | None = None,
    is_served: bool = True,
) -> str:
    left_out = opened.manifest.left_out
    choices: dict[str, Any] = {}
    if is_served:
        choices = {
            "classes": class_counts(opened),
            "splits": split_counts(opened),
            "reasons": reason_counts(opened.rejects, MOST_CHOICES) if rejects is not None else [],
        }
    return template("gallery.html").render(
        name=PurePath(opened.root).name,
        manifest=opened.manifest,
        not_stored=sum(left_out.get(name, 0) for name in ("rejected", "skipped", "unreadable")),
        filters=filters,
        pager=pager,
        cards=cards,
        rejects=rejects,
        is_served=is_served,
        most_choices=MOST_CHOICES,
        extra_style="gallery.css",
        **choices,
    )
