"""Class lists, and labels as their numbers."""

from __future__ import annotations

import os
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from unicodedata import normalize

import pyarrow as pa
import pyarrow.compute as pc

from presize.errors import SourceError
from presize.sources.text_columns import are_no_texts, no_text
from presize.store.manifest import read_manifest

_WHOLE = re.compile(r"-?[0-9]{1,18}")


@contextmanager
def naming(what: str) -> Iterator[None]:
    """Prefix each SourceError with `what` it is about."""
    try:
        yield
    except SourceError as error:
        raise SourceError(f"{what}: {error}") from None


def class_labels(
    labels: pa.ChunkedArray, classes: Sequence[str] | None, by_value: bool = False
) -> tuple[pa.ChunkedArray, tuple[str, ...]]:
    """Return string labels as int32 positions in the class list, which is `classes` or else the sorted labels; those
    that are all whole numbers are sorted `by_value`, 2 before 10. Raises SourceError when one is not in `classes`, or
    is no text."""
    names = labels.unique()
    known = tuple(classes) if classes is not None else tuple(sorted(names.to_pylist()))
    strange = names.filter(are_no_texts(names))
    if classes is None and len(strange):
        raise no_text(strange[0].as_py().encode())
    if classes is None and by_value and all(map(_WHOLE.fullmatch, known)):
        known = tuple(sorted(known, key=lambda name: (int(name), name)))
    number_of = class_numbers(names.to_pylist(), known)
    unknown = [name for name in names.to_pylist() if name not in number_of]
    if unknown:
        raise SourceError(
            f"the label {unknown[0]!r} is not in the class list of {len(known)} names, such as {known[0]!r}; a class "
            "list has one name a line, and nothing else"
        )
    numbers = pa.array([number_of[name] for name in names.to_pylist()], pa.int32())
    return pa.chunked_array([numbers.take(pc.index_in(labels, names).combine_chunks())]), known


def class_numbers(names: Iterable[str], classes: Sequence[str]) -> dict[str, int]:
    """Return the positions of `names` in a class list, as they are or in another Unicode normalization. Names that are
    not in it are left out."""
    alike = {normalize("NFC", name): number for number, name in enumerate(classes)}
    number_of = {name: number for number, name in enumerate(classes)}
    found = ((name, number_of.get(name, alike.get(normalize("NFC", name)))) for name in names)
    return {name: number for name, number in found if number is not None}


def check_classes(names: Sequence[str]) -> tuple[str, ...]:
    """Return a class list unchanged. Raises SourceError when it is empty, or has a name that is empty or repeated."""
    if isinstance(names, str):
        raise SourceError(f"expected a list of names, got the text {names!r}; read_classes reads a file")
    for name in names:
        if not isinstance(name, str) or not name:
            raise SourceError(f"{name!r} is not the name of a class")
    if not names:
        raise SourceError("expected at least one name, got none")
    name, times = Counter(names).most_common(1)[0]
    if times > 1:
        raise SourceError(f"expected each name once, got {name!r} {times} times")
    return tuple(names)


def read_classes(path: str | os.PathLike[str]) -> tuple[str, ...]:
    """The class list of a text file, one name per line, or of another dataset.

    Raises:
        SourceError: the file cannot be read, or is not a class list.
        DatasetError: `path` is a folder without a dataset.
    """
    path = Path(path)
    with naming(f"classes {str(path)!r}"):
        try:
            if not path.is_dir():
                lines = path.read_bytes().decode("utf-8-sig").replace("\r\n", "\n").split("\n")
                return check_classes([line for line in lines if line])
            classes = read_manifest(path).classes
        except UnicodeDecodeError:
            raise SourceError("it is not UTF-8 text; expected one name per line") from None
        except OSError as error:
            raise SourceError(error.strerror) from None
        if classes is None:
            raise SourceError("the dataset has no classes")
        return classes
