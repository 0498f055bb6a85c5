"""Finds the files that the paths of a table refer to, however they are spelled."""

from __future__ import annotations

import re
import unicodedata
from array import array
from collections import defaultdict
from collections.abc import Callable, Iterator
from functools import partial
from itertools import islice
from pathlib import Path
from urllib.parse import unquote

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from presize.sources.columns import python_values
from presize.sources.folder import Facts, NamesIn, Refuse, look_up_files, look_up_objects, names_in, names_in_bucket
from presize.sources.source_files import Url
from presize.store.filenames import PATH_MAX_BYTES, is_safe
from presize.store.rejects import claims_to_be_an_image

_DRIVE = re.compile(r"[A-Za-z]:(?=[/\\])")
_FOLDERS_TRIED = 100


def _nfc(name: str) -> str:
    return unicodedata.normalize("NFC", name)


def _caseless(name: str) -> str:
    return _nfc(name).casefold()


def plain(text: str) -> str:
    """Return the simplest spelling of a path: cats/1.jpg for ``./cats//1.jpg`` and ``C:\\cats\\1.jpg``."""
    parts = re.split(r"[/\\]", _DRIVE.sub("", text.strip(), count=1))
    return "/".join(part for part in parts if part not in ("", "."))


class Spellings:
    """The files of a source, found by other spellings of their paths.

    A path is tried unchanged, then after plain(). A name matches files in other Unicode normalizations, and files whose
    suffix it lacks, images first. Names in another case, or with ``%20`` for a blank, do not match. Results consist of
    listed names, so they are inside the source.

    Args:
        names_in: lists a folder; None if nothing can be listed, as on a web server.
        alike: returns a common form of names that count as the same.
    """

    def __init__(self, names_in: NamesIn | None, alike: Callable[[str], str] = _nfc) -> None:
        self._names_in = names_in
        self._alike = alike
        self._listed: dict[str, dict[str, list[str]]] = {}
        """For each folder, its names by common form: of folders with a slash at the end, of files without suffix."""

    def find(self, text: str) -> list[str]:
        for path in dict.fromkeys((text, plain(text))):
            *folders, name = path.split("/")
            above = [""]
            for folder in folders:
                above = [f"{each}{found}" for each in above for found in self._folders(each, f"{folder}/")]
            found = [f"{each}{file}" for each in above for file in self._files(each, name)]
            if found:
                return found
        return []

    def fits(self, text: str) -> bool:
        return self._names_in is not None and len(self.find(text)) == 1

    def spelled(self, text: str | None) -> str | None:
        """Return the path of the only file that a text refers to; else the text, or plain(text) if it is unsafe or if
        nothing can be listed."""
        found = self.find(text) if text is not None and self._names_in is not None else []
        if text is None or len(found) == 1:
            return found[0] if found else None
        return text if is_safe(text) and self._names_in is not None else plain(text)

    def hint(self, text: str) -> str:
        """Return a hint to append to an error about a path without a file, such as "; there is 'cats/1.jpg'"."""
        path = plain(text)
        if self._names_in is None or len(path) > PATH_MAX_BYTES or (found := self.find(text)) == [text]:
            return ""
        if not found:
            caseless = Spellings(self._names_in, _caseless)
            found = next(filter(None, map(caseless.find, self._guesses(path))), [])[:1]
        if not found:
            expected = "; expected a path relative to the source, with / between folders, such as cats/1.jpg"
            return "" if text == path else expected
        look_alike = len({_nfc(each) for each in (text, *found)}) <= len(found)
        shown = " and ".join(map(ascii if look_alike else repr, found[:2]))
        end = ", and case matters" if path != found[0] and _caseless(path) == _caseless(found[0]) else ""
        end = f", and this is {text!a}" if look_alike else end
        return f"; there {'is' if len(found) == 1 else 'are'} {shown}{end}"

    def _guesses(self, path: str) -> Iterator[str]:
        """Yield corrections of a path: in other folders, with decoded escapes, another suffix, or after a label."""
        parts = path.split("/")
        yield from ("/".join(parts[first:]) for first in range(len(parts)))
        yield plain(unquote(path))
        *above, name = parts
        yield "/".join((*above, _stem(name)))
        yield path.partition(" ")[2].lstrip()
        folders = (name for alike, names in self._in("").items() if alike.endswith("/") for name in names)
        yield from (f"{folder}{path}" for folder in islice(folders, _FOLDERS_TRIED))

    def _files(self, folder: str, name: str) -> list[str]:
        """Return the files that a name refers to: with this name, else a similar name, else this stem."""
        files, alike = self._in(folder), self._alike(name)
        named = files.get(self._alike(_stem(name)), [])
        if name in named:
            return [name]
        found = [file for file in named if self._alike(file) == alike] or files.get(alike, [])
        return (list(filter(claims_to_be_an_image, found)) or found) if len(found) > 1 else found

    def _folders(self, folder: str, name: str) -> list[str]:
        found = self._in(folder).get(self._alike(name), [])
        return [name] if name in found else found

    def _in(self, folder: str) -> dict[str, list[str]]:
        if folder not in self._listed and self._names_in is not None:
            names = self._listed[folder] = defaultdict(list)
            for name in sorted(self._names_in(folder)):
                names[self._alike(name if name.endswith("/") else _stem(name))].append(name)
        return self._listed[folder]


def _stem(name: str) -> str:
    return name.rpartition(".")[0] or name


class SourceFiles(Spellings):
    """The files of a source: a folder, or its URL. With `follow_links`, links may lead out of the folder."""

    def __init__(self, base: Path | Url, follow_links: bool) -> None:
        super().__init__(names_in_bucket(base) if isinstance(base, Url) else partial(names_in, str(base)))
        self.base = base
        self._follow_links = follow_links

    def look_up(self, paths: pa.ChunkedArray, refuse: Refuse, any_form: bool = False) -> Facts:
        """Look up paths, some of which may be null. In a folder, `any_form` also tries other Unicode normalizations."""
        if isinstance(self.base, Url):
            return look_up_objects(self.base, paths, refuse)
        return look_up_files(str(self.base), self._follow_links, paths, refuse, any_form)

    def look_up_spelled(self, paths: pa.ChunkedArray, refuse: Refuse) -> tuple[pa.ChunkedArray, Facts]:
        """Look up the files that a table lists, in any spelling; return their paths in the source, and Facts."""
        missing = array("q")
        facts = self.look_up(paths, lambda row, *_: missing.append(row))
        if not missing:
            return paths, facts
        rows = np.frombuffer(missing, np.int64)
        texts = paths.take(pa.array(rows))
        spelled = pa.chunked_array([pa.array(map(self.spelled, python_values(texts)), pa.large_string())])
        facts[rows] = self.look_up(spelled, lambda at, _, why: refuse(missing[at], texts[at].as_py() or "", why))
        is_missing = np.zeros(len(paths), np.bool_)
        is_missing[rows] = True
        found = pc.replace_with_mask(paths.combine_chunks(), is_missing, spelled.combine_chunks())
        return pa.chunked_array([found]), facts
