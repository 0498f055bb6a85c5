"""Flip one bit of a dataset at a time: verify must find it, and readers must not return other samples.

    python tests/support/flips.py OUT [BITS|all [FILE ...]]

flips BITS bits of each file of a small dataset, or all, in a copy, and prints a line of JSON for each file.
"""

from __future__ import annotations

import json
import os
import random
import shutil
import signal
import sys
import tempfile
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from presize.datasets import CenterCrop, FolderDataset, LMDBDataset
from presize.datasets.reading.batch_reader import BatchReader
from presize.errors import DatasetError, ImageError
from presize.store.data_files import MANIFEST
from presize.store.manifest import read_manifest
from presize.store.verify import verify_dataset
from processes import fork

_HANGS_AFTER_S = 60


def samples(root: Path, check: bool) -> list[Any]:
    """Return the classes and each sample's path, pixels and label, as readers return them; None for a refused sample.

    Raises:
        DatasetError: The dataset cannot be opened.
    """
    if read_manifest(root).layout == "folder":
        files = FolderDataset(root, decode="numpy")
        return [files.classes, *(_given(lambda i=i: (files.samples[i], *_plain(files[i]))) for i in range(len(files)))]
    images = LMDBDataset(root, decode="numpy", check=check)
    try:
        whole = [_given(lambda i=i: (images.data.path(i), *_plain(images[i]))) for i in range(len(images))]
        return [images.classes, *whole, *_crops(BatchReader(images.data, CenterCrop(8), skips=True))]
    finally:
        for shard in images.data.shards:
            shard.close()  # so that the next reader checks its pages again


def _crops(reader: BatchReader) -> list[Any]:
    """Return the pixels that a Loader yields for all samples; None for skipped ones."""
    numbers = np.arange(len(reader.data))
    out = np.zeros((len(numbers), *reader.shapes[0]), np.uint8)
    try:
        skipped = [sample.position for sample in reader.read([out], numbers, 0, 0, numbers)]
    except DatasetError:
        return [None] * len(numbers)
    kept = iter(out)
    return [None if i in skipped else next(kept).tobytes() for i in range(len(numbers))]


def _given(read: Callable[[], Any]) -> Any:
    try:
        return read()
    except (DatasetError, ImageError):
        return None


def _plain(sample: tuple[Any, int]) -> tuple[Any, ...]:
    return sample[0].shape, sample[0].tobytes(), sample[1]


_UNREAD = ("rejects.jsonl", "report.html")
"""Files that readers of samples do not open."""


def outcome(root: Path, file: str, expected: list[Any]) -> list[str]:
    """Return the outcomes for a dataset with a damaged `file`: "found" by verify or "missed"; "same", "refused" or
    "wrong" for readers with and without checks; "raised", with the error, for errors other than DatasetError."""
    words = []
    try:
        found = any(problem.file == file for problem in verify_dataset(root, jobs=1).problems)
    except DatasetError:
        found = file == MANIFEST
    except Exception as error:
        words.append(f"verify raised {error!r}")
        found = True
    words.append("found" if found else "missed")
    for check in (True, False) if file not in _UNREAD else ():
        who = "checked" if check else "unchecked"
        try:
            given = samples(root, check)
            wrong = any(a is not None and a != b for a, b in zip(given, expected, strict=True))
            words.append(f"{who} {'wrong' if wrong else 'refused' if None in given[1:] else 'same'}")
        except DatasetError:
            words.append(f"{who} refused")
        except Exception as error:
            words.append(f"{who} raised {error!r}")
    return words


@contextmanager
def _flipped(path: Path, bit: int) -> Iterator[None]:
    _flip(path, bit)
    try:
        yield
    finally:
        _flip(path, bit)


def _flip(path: Path, bit: int) -> None:
    with path.open("r+b", buffering=0) as file:
        file.seek(bit >> 3)
        byte = file.read(1)[0] ^ 1 << (bit & 7)
        file.seek(bit >> 3)
        file.write(bytes([byte]))


def _answer(root: Path, file: str, bits: Sequence[int], expected: list[Any], write_end: int) -> int:
    with os.fdopen(write_end, "w", buffering=1) as answers:
        for bit in bits:
            signal.alarm(_HANGS_AFTER_S)
            with _flipped(root / file, bit):
                answers.write(json.dumps(outcome(root, file, expected)) + "\n")
    return 0


def try_flips(root: Path, file: str, bits: Sequence[int]) -> tuple[Counter[str], list[str]]:
    """Flip each of `bits` of `file`, in a child process. Return the count of each outcome ("dead": killed by a signal,
    or after a minute), and the places where something raised or died."""
    counts, notes, rest = Counter[str](), [], list(bits)
    expected = samples(root, True)
    while rest:
        read_end, write_end = os.pipe()
        child = fork(partial(_answer, root, file, rest, expected, write_end))
        os.close(write_end)
        with os.fdopen(read_end) as answers:
            done = [json.loads(line) for line in answers]
        status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
        if len(done) < len(rest):
            _flip(root / file, rest[len(done)])
            done.append([f"dead by {status}"])
        for bit, words in zip(rest, done, strict=False):
            counts.update(["tried", *(" ".join(word.split()[:2]) for word in words)])
            bad = [word for word in words if word == "missed" or " raised " in word or word.startswith("dead")]
            notes += [f"byte {bit >> 3}, bit {bit & 7}: {', '.join(bad)}"] if bad else []
        rest = rest[len(done) :]
    return counts, notes


def data_files(root: Path) -> list[str]:
    """Return every file of a dataset, relative to its folder."""
    return sorted(path.relative_to(root).as_posix() for path in root.rglob("*") if path.is_file())


def main(root: str, some: str = "all", *files: str) -> None:
    with tempfile.TemporaryDirectory() as place:
        copied = Path(shutil.copytree(root, Path(place) / "copied"))
        for file in files or data_files(copied):
            every = range(8 * (copied / file).stat().st_size)
            bits = random.Random(0).sample(every, len(every) if some == "all" else min(int(some), len(every)))
            counts, notes = try_flips(copied, file, bits)
            sys.stdout.write(json.dumps({"file": file, "counts": dict(sorted(counts.items())), "notes": notes}) + "\n")
            sys.stdout.flush()


if __name__ == "__main__":
    main(*sys.argv[1:])
