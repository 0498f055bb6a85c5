"""Shared list of samples of a build in parts: the part that starts first lists the source; all others read it."""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa

from presize.builder.output_dir import LISTING
from presize.errors import BuildError
from presize.formatting import plural
from presize.options import SourceOptions
from presize.sources.contents import Source
from presize.sources.source_files import Container, Url, check_containers
from presize.store.index import write_arrow
from presize.store.rejects_file import SCHEMA, Rejects

_FACTS, _REJECTS = b"presize", b"rejects"
_SHOWN = 12


@dataclass(frozen=True)
class SharedListing:
    """Listing that the parts of a build share: the samples, the options of the listing, and the number of parts."""

    source: Source
    how: dict[str, Any]
    parts: int

    def check(self, source: str | os.PathLike[str], samples: SourceOptions, out: Path) -> None:
        """Raise BuildError unless the listing has this source and options, and no container has changed since."""
        asked = how_listed(source, samples)
        for name, value in asked.items():
            if value != self.how.get(name):
                option = "SRC" if name == "source" else f"--{name.replace('_', '-')}"
                raise BuildError(
                    f"the parts in OUT {out} were started with a different {option} ({self.how.get(name)!r}, not "
                    f"{value!r}); use the same for all parts, or --overwrite without --part to start over"
                )
        fix = f"the parts in OUT {out} share that listing; use --overwrite without --part to start over"
        check_containers(self.source.root, self.source.containers, fix)

    def check_finished(self, waiting: Sequence[int], out: Path) -> None:
        """Raise BuildError, and name the parts, if shards are `waiting` to be built."""
        if waiting:
            missing = {number % self.parts + 1 for number in waiting}
            several = len(missing) > 1
            raise BuildError(
                f"OUT {out} lacks {'parts' if several else 'part'} {parts_text(missing)} of {self.parts} "
                f"({plural(len(waiting), 'shard')}); run with --part {min(missing)}/{self.parts}"
                f"{' and so on' if several else ''}, then run this command again"
            )


def parts_text(parts: Iterable[int]) -> str:
    """Format part numbers as ``1, 2 and 4``; of many, only the first 12."""
    found = [str(part) for part in sorted(parts)]
    if len(found) > _SHOWN:
        found = [*found[:_SHOWN], f"{len(found) - _SHOWN} more"]
    return " and ".join([", ".join(found[:-1]), found[-1]] if len(found) > 1 else found)


def how_listed(source: str | os.PathLike[str], samples: SourceOptions) -> dict[str, Any]:
    """Return the options by which a source is listed, as plain JSON values."""
    options = asdict(samples) | {"labels": None if samples.labels is None else os.fspath(samples.labels)}
    found: dict[str, Any] = json.loads(json.dumps({"source": Url.of(source) or os.path.realpath(source), **options}))
    return found


def write_listing(out: Path, listing: SharedListing) -> None:
    found = listing.source
    facts = {
        "parts": listing.parts,
        "how": listing.how,
        "root": str(found.root),
        "classes": found.classes,
        "hidden": found.hidden,
        "outside": found.outside,
        "by_folder": found.by_folder,
        "has_table": found.has_table,
        "containers": found.containers,
    }
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, SCHEMA) as stream:
        stream.write_batch(found.rejects.columns)
    kept = {_FACTS: json.dumps(facts).encode(), _REJECTS: sink.getvalue().to_pybytes()}
    write_arrow(out / LISTING, found.table.replace_schema_metadata(kept))


def read_listing(out: Path) -> SharedListing | None:
    """Return the listing in `out`; None if it is missing. Raises BuildError if it is damaged."""
    path = out / LISTING
    try:
        with pa.memory_map(os.fsencode(path)) as mapped:
            table = pa.ipc.open_file(mapped).read_all()
        kept = table.schema.metadata
        facts = json.loads(kept[_FACTS])
        with pa.ipc.open_stream(kept[_REJECTS]) as stream:
            rejects = stream.read_all()
        rejects.validate(full=True)
        source = Source(
            root=Url.of(facts["root"]) or Path(facts["root"]),
            table=table.replace_schema_metadata(None),
            classes=None if facts["classes"] is None else tuple(facts["classes"]),
            rejects=Rejects.with_columns(rejects.select(SCHEMA.names).columns),
            hidden=facts["hidden"],
            outside=facts["outside"],
            by_folder=facts["by_folder"],
            has_table=facts["has_table"],
            containers=tuple(Container.of_json(*container) for container in facts["containers"]),
        )
        return SharedListing(source, facts["how"], facts["parts"])
    except (FileNotFoundError, NotADirectoryError):
        return None
    except (pa.ArrowException, ValueError, KeyError, TypeError):
        raise BuildError(f"{path} is damaged; remove it, and run the parts again") from None
