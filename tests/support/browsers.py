"""A headless browser for the tests of pages."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page

_NOON = datetime(2026, 11, 1, 12, tzinfo=UTC)
NAMES = ("chromium", "chromium-browser", "google-chrome")


@contextmanager
def chromium() -> Iterator[Browser]:
    found = next(filter(None, map(shutil.which, NAMES)), None)
    if found is None:
        why = "needs a browser: apt-get install chromium (looked for " + ", ".join(NAMES) + ")"
        if os.environ.get("CI"):
            pytest.fail(why)
        pytest.skip(why)
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        # Chromium has no sandbox for root, nor in many containers. It opens only pages of the tests.
        with playwright.chromium.launch(executable_path=found, args=["--no-sandbox"]) as browser:
            yield browser


@dataclass
class Watched:
    """A page, its console messages and errors, and all of its requests."""

    page: Page
    url: str
    complaints: list[str] = field(default_factory=list)
    requests: list[str] = field(default_factory=list)

    @classmethod
    def open(cls, browser: Browser, path: Path, **options: Any) -> Watched:
        """Open a page. `options` are options of Browser.new_context, such as viewport, color_scheme, reduced_motion.
        The page's clock stands still until it is advanced."""
        page = browser.new_context(**options).new_page()
        watched = cls(page, path.absolute().as_uri())
        page.on("console", lambda message: watched.complaints.append(message.text))
        page.on("pageerror", lambda error: watched.complaints.append(str(error)))
        page.on("request", lambda request: watched.requests.append(request.url))
        page.clock.install(time=_NOON)
        page.goto(watched.url)
        page.clock.pause_at(_NOON + timedelta(hours=1))
        return watched


def colors(page: Page, selector: str, of: str = "color") -> tuple[str, str]:
    """Return a colour of the first element that `selector` finds, such as "color" or "fill", and its background."""
    found: tuple[str, str] = page.locator(selector).first.evaluate(
        """(element, of) => {
          const ground = (at) => {
            const color = getComputedStyle(at).backgroundColor;
            return /, 0\\)|transparent/.test(color) ? ground(at.parentElement) : color;
          };
          return [getComputedStyle(element)[of], ground(of === "color" ? element : element.parentElement)];
        }""",
        of,
    )
    return found


def contrast(one: str, other: str) -> float:
    """Return the contrast of two CSS colours, as defined by WCAG."""

    def luminance(color: str) -> float:
        levels = [int(level) / 255 for level in color.removeprefix("rgb(").removesuffix(")").split(",")]
        linear = [level / 12.92 if level <= 0.04045 else ((level + 0.055) / 1.055) ** 2.4 for level in levels]
        return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]

    low, high = sorted((luminance(one), luminance(other)))
    return (high + 0.05) / (low + 0.05)
