"""A parser that checks the balance of tags, and names that try to break out of pages."""

from __future__ import annotations

from collections import Counter
from html.parser import HTMLParser

HOSTILE = [
    "<script>alert(1)<!--.jpg",
    "<b",  # together with the next name: <b/script>...
    '"onload="alert(1)" x=".jpg',
    "'><img src=x onerror=alert(1)>.jpg",
    "{{ 7 * 7 }}{% raw %}.jpg",
    "a\nb\r\x1b[2J\u202egpj.jpg",
    "&lt;b&gt;&amp;.jpg",
]


class Balance(HTMLParser):
    """Parser that counts unclosed tags and collects all attributes."""

    void = ("meta", "img", "input", "rect", "line")

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.tags: Counter[str] = Counter()
        self.attributes: list[tuple[str, str | None]] = []
        self.text: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags[tag] += 1
        self.attributes += attrs
        if tag not in self.void:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags[tag] += 1
        self.attributes += attrs

    def handle_endtag(self, tag: str) -> None:
        if tag not in self.void:
            assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.text.append(data)


def parsed(page: str) -> Balance:
    parser = Balance()
    parser.feed(page)
    parser.close()
    assert not parser.open
    return parser
