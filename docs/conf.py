"""The site of the documentation: `make docs`.

The pages are plain Markdown that GitHub shows as it is. What only Sphinx can make is added here: the sidebar from the
lists of docs/index.md, the options of each command, and what the docstrings say of each name in docs/api.md. The
sources begin at the root of the repository, so that links to benchmarks lead somewhere.
"""

from __future__ import annotations

import re

from sphinx.application import Sphinx

import presize

project = "presize"
author = "the authors of presize"
version = release = presize.__version__
extensions = ["myst_parser", "sphinx.ext.autodoc", "sphinx.ext.napoleon", "sphinx_click"]

root_doc = "docs/index"
include_patterns = ["docs/*.md", "benchmarks/*.md", "benchmarks/*/*.md", "CHANGELOG.md"]
exclude_patterns = [".*", "build", "demo", "bench", "presize", "datasets", "site", "tests", "tools"]
highlight_language = "none"
myst_heading_anchors = 4
smartquotes = False  # they make –raw of --raw
default_role = "code"

autodoc_member_order = "bysource"
autoclass_content = "both"
napoleon_use_ivar = True
python_maximum_signature_line_length = 100

html_theme = "furo"
html_title = "presize"
html_additional_pages = {"index": "redirect.html"}
templates_path = ["site"]
html_extra_path = ["llms.txt"]
html_copy_source = False

OPTIONS = """
```{eval-rst}
.. click:: presize.cli:cli
   :prog: presize
   :nested: full
```
"""
DOCSTRING = """
```{{eval-rst}}
.. {kind}:: {name}{members}
```
"""


def add_what_sphinx_makes(_app: Sphinx, page: str, source: list[str]) -> None:
    if page == "docs/index":
        source[0] += "".join(sidebar(source[0]))
    if page == "docs/cli":
        source[0] += OPTIONS
    if page == "docs/api":
        source[0] = re.sub(r"^- `([\w.]+)`$", docstring, source[0], flags=re.MULTILINE)


def sidebar(page: str) -> list[str]:
    """A table of contents for each section, of the pages that it links to."""
    sections = re.findall(r"^## (.*)\n([^#]*)", page, re.MULTILINE)
    linked = [(caption, re.findall(r"\]\((.*?)\.md\)", body)) for caption, body in sections]
    return [
        "\n".join(["\n```{toctree}", ":hidden:", f":caption: {caption}", "", *pages, "```\n"])
        for caption, pages in linked
    ]


def docstring(name: re.Match[str]) -> str:
    last = name[1].split(".")[-1]
    kind = "autodata" if last.isupper() else "autoclass" if last[0].isupper() else "autofunction"
    members = "\n   :members:" if kind == "autoclass" else ""
    return DOCSTRING.format(kind=kind, name=name[1], members=members)


def setup(app: Sphinx) -> None:
    app.connect("source-read", add_what_sphinx_makes)
