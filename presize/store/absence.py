"""What is in a folder that is no dataset, or not yet."""

from __future__ import annotations

import os
import re
from pathlib import Path

from presize.store.data_files import MANIFEST

STATE = ".presize.json"
"""Present in OUT while a build is unfinished."""
FETCHING = ".presize-fetching.json"
"""The manifest of a dataset while the rest of it is being fetched."""


def what_is_there(root: Path) -> str:
    """For whoever expected a dataset: what is there, and what to do."""
    try:
        names = sorted(os.listdir(root))  # first, and once: somebody may be replacing it
    except FileNotFoundError:
        if url := re.search(r"(?:^|/)(s3|https?|gs|az):/([^/].*)", os.fspath(root)):  # as Path has it
            return (
                f"{url[1]}://{url[2]} is no folder; copy a dataset from a URL with presize fetch, or read it with "
                "LMDBDataset(URL)"
            )
        return f"{root} does not exist; expected a folder that presize build has made"
    except NotADirectoryError:
        return f"{root} is a file; expected a folder that presize build has made"
    except OSError as error:
        return f"{root}: {error.strerror}"
    if STATE in names or (root.parent / STATE).exists():
        return f"{root} holds an unfinished build; run the same presize build again to finish it"
    if FETCHING in names:
        return f"{root} holds an unfinished copy; run the same presize fetch again to finish it"
    inside = [name for name in names if (root / name / MANIFEST).exists()]
    if inside:
        return f"{root} holds the datasets {', '.join(inside)}; open one of them, such as {root / inside[0]}"
    return (
        f"{root} is not a presize dataset: it has no {MANIFEST}; presize build makes a dataset from a folder of images"
    )
