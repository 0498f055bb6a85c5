"""Fuzz the readers of datasets with structure-aware changes of manifest, index, rejects, shards and values.

    python tools/fuzz_datasets.py --seconds 60

Another process reads each changed dataset in every possible way. It must read it, or refuse it with a PresizeError.
Anything else (another exception, a signal, more than a minute) is a defect: the dataset is kept, its path is printed,
and the exit code is 1. After most changes, sizes and hashes are repaired, to get past the first check.
"""

from __future__ import annotations

import argparse
import contextlib
import hashlib
import json
import random
import resource
import select
import shutil
import struct
import subprocess
import sys
import tempfile
import time
import traceback
import zlib
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any, get_args

import fuzz_jpeg_decoder as differential
import lmdb
import pyarrow as pa

from presize import BuildOptions, ImageOptions, PresizeError, RunOptions, Size, build_dataset, make_samples
from presize.codecs.golden import source_images
from presize.options import ExportLayout
from presize.sources.sample import SampleOptions
from presize.store.shard import ShardWriter

PATIENCE_S = 60
MEMORY_BYTES = 12 << 30
PAGE = 4096

EXTREMES = [
    None, True, -1, 0, 1, 7, 255, 65_535, 2**31 - 1, 2**31, 2**32, 2**63 - 1, 2**63, 2**64, -(2**63), 1e308, 0.5, "",
    "x", "x" * 5000, "../../x", "/etc/passwd", "shards/00000.lmdb", "index.arrow", "\x1b[31m", "\0", "\ud800", [], {},
    [1], {"a": 1},
]  # fmt: skip

Change = Callable[[Path, random.Random], None]


# ---- reading ----


def read(root: Path) -> None:
    """Read a dataset in every possible way. Raises only PresizeError."""
    from presize.builder.derive import DeriveOptions, derive_dataset
    from presize.datasets import LMDBDataset, RandomResizedCrop
    from presize.store.dataset import Dataset
    from presize.store.export import export_dataset
    from presize.store.verify import verify_dataset

    def pixels() -> None:
        for number in range(len(data)):
            with contextlib.suppress(PresizeError):
                list(data.pixels([number]))

    def crops() -> None:
        images = LMDBDataset(root, decode="numpy", crop=RandomResizedCrop(24), target=None)
        for number in range(len(images)):
            with contextlib.suppress(PresizeError):
                images.__getitems__([number])

    def labels() -> None:
        images = LMDBDataset(root)
        images.targets, images.classes, images[0], [data.path(i) for i in range(len(data))]

    def export() -> None:
        for layout in get_args(ExportLayout):
            with tempfile.TemporaryDirectory() as folder, contextlib.suppress(PresizeError):
                export_dataset(root, Path(folder, "out"), layout=layout)

    def derive() -> None:
        with tempfile.TemporaryDirectory() as folder:
            options, run = DeriveOptions(Size(24, 24)), RunOptions(engine="sequential")
            derive_dataset([root], Path(folder, "new"), options, run)

    with contextlib.suppress(PresizeError):
        verify_dataset(root, jobs=1)
    data = Dataset(root)
    for way in (pixels, crops, labels, export, derive):
        with contextlib.suppress(PresizeError):
            way()


def serve() -> None:
    """Read the datasets named on stdin, one a line, and print each result."""
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY_BYTES, MEMORY_BYTES))
    for line in sys.stdin:
        try:
            read(Path(line.rstrip("\n")))
            said = "read"
        except PresizeError as error:
            said = f"refused {type(error).__name__}"
        except Exception:
            said = "defect " + json.dumps(traceback.format_exc())
        print(said, flush=True)


class Reader:
    """Process that reads datasets."""

    def __init__(self) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-W", "ignore", __file__, "--serve"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def ask(self, root: Path) -> str:
        """Return the result of reading: "read", "refused ..." or "defect ..."."""
        assert self.process.stdin is not None and self.process.stdout is not None
        self.process.stdin.write(f"{root}\n")
        self.process.stdin.flush()
        if not select.select([self.process.stdout], [], [], PATIENCE_S)[0]:
            self.close()
            return f"defect no answer within {PATIENCE_S} s"
        said = self.process.stdout.readline().rstrip("\n")
        return said or f"defect the process died with {self.process.wait()}"

    def close(self) -> None:
        self.process.kill()
        self.process.wait()


# ---- changes ----


def encoded(values: dict[str, Any]) -> bytes:
    return (json.dumps(values, indent=1, ensure_ascii=False) + "\n").encode("utf-8", "surrogatepass")


def write_manifest(root: Path, values: dict[str, Any]) -> None:
    """Write the manifest with its digest and its own hash repaired."""
    with contextlib.suppress(KeyError, TypeError):
        values["digest"] = hashlib.sha256(json.dumps(values["identity"], sort_keys=True).encode()).hexdigest()
    if "sha256" in values:
        del values["sha256"]
        values["sha256"] = hashlib.sha256(encoded(values)).hexdigest()
    (root / "manifest.json").write_bytes(encoded(values))


def repair(root: Path) -> None:
    """Repair the sizes and hashes of all files in the manifest."""
    values = json.loads((root / "manifest.json").read_bytes())
    for file in (values["index"], values["rejects"], *values["shards"]):
        content = (root / file["file"]).read_bytes()
        file.update(bytes=len(content), sha256=hashlib.sha256(content).hexdigest())
    write_manifest(root, values)


def change_bytes(path: Path, choice: random.Random) -> None:
    """Change bytes anywhere; or truncate or grow the file, or copy a part of it."""
    content = bytearray(path.read_bytes())
    for _ in range(choice.choice([1, 2, 4, 16])):
        at, kind = choice.randrange(max(1, len(content))), choice.random()
        if kind < 0.5:
            size = choice.choice([1, 2, 4, 8])
            content[at : at + size] = choice.choice([choice.randbytes(size), bytes(size), b"\xff" * size])
        elif kind < 0.7:
            nbytes = choice.randrange(1, 200)
            source = choice.randrange(max(1, len(content)))
            content[at : at + nbytes] = content[source : source + nbytes]
        elif kind < 0.8:
            del content[at : at + choice.choice([1, 8, PAGE])]
        elif kind < 0.9:
            content[at:at] = choice.randbytes(choice.choice([1, 8, PAGE]))
        else:
            del content[at:]
    path.write_bytes(content)


def change_manifest(root: Path, choice: random.Random) -> None:
    values = json.loads((root / "manifest.json").read_bytes())
    for _ in range(choice.choice([1, 1, 2, 3])):
        place: Any = values
        while True:
            keys = list(place) if isinstance(place, dict) else list(range(len(place)))
            if not keys:
                break
            key = choice.choice(keys)
            inside = place[key]
            if isinstance(inside, (dict, list)) and inside and choice.random() < 0.85:
                place = inside
                continue
            kind = choice.random()
            if kind < 0.6:
                place[key] = choice.choice(EXTREMES)
            elif kind < 0.75 and isinstance(inside, int):
                place[key] = inside + choice.choice([-1, 1, inside, PAGE, 2**40])
            elif kind < 0.85:
                del place[key]
            else:
                place[key] = place[choice.choice(keys)]
            break
    with contextlib.suppress(ValueError, RecursionError):  # the values may be circular
        write_manifest(root, values)


def change_index(root: Path, choice: random.Random) -> None:
    table = pa.ipc.open_file((root / "index.arrow").read_bytes()).read_all()
    for _ in range(choice.choice([1, 1, 2, 4])):
        number = choice.randrange(table.num_columns)
        field, kind = table.schema.field(number).with_nullable(True), choice.random()
        values = table.column(number).to_pylist()
        row = choice.randrange(len(values)) if values else 0
        if kind < 0.6 and values:
            old = values[row] or 0  # it may already be null
            if pa.types.is_integer(field.type):
                bits = field.type.bit_width
                signed = pa.types.is_signed_integer(field.type)
                low, high = (-(1 << bits - 1), (1 << bits - 1) - 1) if signed else (0, (1 << bits) - 1)
                near = [0, 1, low, high, max(low, -1), old + 1, choice.randint(low, high), choice.choice(values) or 0]
                values[row] = min(max(choice.choice(near), low), high)
            elif pa.types.is_string(field.type) or pa.types.is_large_string(field.type):
                values[row] = choice.choice(["", "../x", "/x", "x" * 5000, "a/b/c", "\0", values[0]])
            table = table.set_column(number, field, pa.array(values, field.type))
        elif kind < 0.7 and values:
            values[row] = None
            table = table.set_column(number, field, pa.array(values, field.type))
        elif kind < 0.8:
            table = table.remove_column(number) if table.num_columns > 1 else table
        elif kind < 0.9:
            with contextlib.suppress(pa.ArrowException):
                other = choice.choice([pa.int8(), pa.int64(), pa.float32(), pa.large_binary(), pa.string()])
                table = table.set_column(number, field.name, table.column(number).cast(other))
        else:
            table = choice.choice([table.slice(1), pa.concat_tables([table, table]), table.take(pa.array([0] * 12))])
    table = table.combine_chunks()
    options = pa.ipc.IpcWriteOptions(compression=choice.choice([None, None, None, "zstd", "lz4"]))
    with (
        pa.OSFile(str(root / "index.arrow"), "wb") as file,
        pa.ipc.new_file(file, table.schema, options=options) as out,
    ):
        out.write_table(table, choice.choice([None, None, 3]))


def shard_of(root: Path, choice: random.Random) -> Path:
    return choice.choice(sorted((root / "shards").iterdir()))


def change_pages(root: Path, choice: random.Random) -> None:
    """Change fields of LMDB's pages (meta pages, headers, offsets, sizes and flags of nodes), or copy whole pages."""
    path = shard_of(root, choice)
    content = bytearray(path.read_bytes())
    pages = len(content) // PAGE
    for _ in range(choice.choice([1, 1, 2, 5])):
        page = choice.choice([0, 1, pages - 1, choice.randrange(pages)]) * PAGE
        kind = choice.random()
        if kind < 0.15:
            other = choice.randrange(pages) * PAGE
            content[page : page + PAGE] = content[other : other + PAGE]
            continue
        if kind < 0.4:  # a meta page: version, map size, trees, last page, transaction
            at, layout = page % (2 * PAGE) + 16 + 8 * choice.randrange(17), choice.choice("IQ")
        elif kind < 0.7:  # the header of a page
            at, layout = page + 2 * choice.randrange(8), choice.choice("HHIQ")
        else:  # an offset of a node, or the node
            (lower,) = struct.unpack_from("<H", content, page + 12)
            slot = page + 16 + 2 * choice.randrange(max(1, (lower - 16) // 2 if lower > 16 else 1))
            node = page + struct.unpack_from("<H", content, min(slot, len(content) - 2))[0]
            at, layout = choice.choice(
                [(slot, "H"), (node, "H"), (node + 2, "H"), (node + 4, "H"), (node + 6, "H"), (node + 16, "Q")]
            )
        size = struct.calcsize("<" + layout)
        if at + size > len(content):
            continue
        (old,) = struct.unpack_from("<" + layout, content, at)
        most = (1 << 8 * size) - 1
        near = [
            0,
            1,
            2,
            most,
            most >> 1,
            old ^ 1 << choice.randrange(8 * size),
            old + 1,
            old - 1,
            old * 2,
            pages,
            pages - 1,
            PAGE,
        ]
        struct.pack_into("<" + layout, content, at, choice.choice([*near, choice.randint(0, most)]) & most)
    path.write_bytes(content)


def change_values(root: Path, choice: random.Random) -> None:
    """Damage or replace stored images, and update the index accordingly."""
    values = json.loads((root / "manifest.json").read_bytes())
    table = pa.ipc.open_file((root / "index.arrow").read_bytes()).read_all()
    shard, row = (table.column(name).to_pylist() for name in ("shard", "row"))
    nbytes, crc32 = (table.column(name).to_pylist() for name in ("nbytes", "crc32"))
    others = [*differential.corpus(), *source_images().values()]
    for number, file in enumerate(values["shards"]):
        path = root / file["file"]
        with lmdb.open(str(path), subdir=False, readonly=True, lock=False) as env, env.begin() as txn:
            records = [bytes(value) for _, value in txn.cursor()]
        for at in range(len(records)):
            kind = choice.random()
            if kind < 0.6:
                records[at] = differential.damaged(records[at] or b"\0", choice)
            elif kind < 0.8:
                records[at] = choice.choice(others)
            sample = next(i for i in range(len(row)) if (shard[i], row[i]) == (number, at))
            nbytes[sample], crc32[sample] = len(records[at]), zlib.crc32(records[at])
        with ShardWriter(path, 1 << 24, 1000) as writer:
            for record in records:
                writer.append(record)
            writer.publish()
    for name, column in (("nbytes", nbytes), ("crc32", crc32)):
        place = table.column_names.index(name)
        table = table.set_column(place, table.schema.field(place), pa.array(column, table.schema.field(place).type))
    if choice.random() < 0.4:
        name = choice.choice(["height", "width"])
        place = table.column_names.index(name)
        sides = [choice.choice([side, 1, 0, 65_500, 16, 2**31 - 1]) for side in table.column(name).to_pylist()]
        table = table.set_column(place, table.schema.field(place), pa.array(sides, pa.int32()))
    with pa.OSFile(str(root / "index.arrow"), "wb") as out, pa.ipc.new_file(out, table.schema) as written:
        written.write_table(table.combine_chunks())


CHANGES: list[tuple[str, Change, bool]] = [
    ("manifest", change_manifest, False),
    ("bytes of the manifest", lambda root, choice: change_bytes(root / "manifest.json", choice), False),
    ("index", change_index, True),
    ("bytes of the index", lambda root, choice: change_bytes(root / "index.arrow", choice), True),
    ("rejects", lambda root, choice: change_bytes(root / "rejects.jsonl", choice), True),
    ("pages of a shard", change_pages, True),
    ("bytes of a shard", lambda root, choice: change_bytes(shard_of(root, choice), choice), True),
    ("values", change_values, True),
]
"""A name, the change, and whether sizes and hashes can be repaired afterwards."""


# ---- the loop ----


def originals(folder: Path) -> list[Path]:
    """Build datasets of JPEG, PNG, WebP and raw pixels, with 12 images each in two shards; some have rejects."""
    make_samples(folder / "source", SampleOptions(images=12, classes=2, long_side=90, broken=1))
    found = []
    for name, size in (("jpeg", 48), ("png", 20), ("webp", 20), ("raw", 20)):
        image = ImageOptions(sizes=(Size(size, size),), format=name, fit="stretch" if name == "raw" else "shorter")  # type: ignore[arg-type]
        build_dataset(
            folder / "source", folder / name, BuildOptions(image, shard_samples=7), RunOptions(jobs=1, report=False)
        )
        found.append(folder / name)
    return found


def fuzz(seed: int, seconds: float, least: int = 0) -> Counter[str]:
    """Fuzz for `seconds`, and at least `least` datasets. Return the number of datasets for each change and result. Exit
    at the first defect."""
    choice = random.Random(seed)
    counts: Counter[str] = Counter()
    end = time.monotonic() + seconds
    with tempfile.TemporaryDirectory(prefix="presize-fuzz-") as temporary:
        sound = originals(Path(temporary, "sound"))
        reader = Reader()
        try:
            assert reader.ask(sound[0]) == "read"
            tried = 0
            while time.monotonic() < end or tried < least:
                tried += 1
                root = Path(temporary, f"changed-{tried}")
                shutil.copytree(choice.choice([sound[0], *sound]), root)
                name, change, repairable = choice.choice(CHANGES)
                change(root, choice)
                if repairable and choice.random() < 0.9:
                    repair(root)
                said = reader.ask(root)
                if said.startswith("defect"):
                    place = Path(tempfile.mkdtemp(prefix="presize-fuzz-"), "dataset")
                    shutil.copytree(root, place)
                    what = said.removeprefix("defect ")
                    sys.exit(f"{place}: {name}: {json.loads(what) if what.startswith(chr(34)) else what}")
                counts[f"{name}: {said}"] += 1
                shutil.rmtree(root)
        finally:
            reader.close()
    return counts


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=60)
    parser.add_argument("--least", type=int, default=0, help="minimum number of datasets, even if it takes longer")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--serve", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.serve:
        serve()
        return
    counts = fuzz(options.seed, options.seconds, options.least)
    for name, count in sorted(counts.items()):
        print(f"{count:8,} {name}")
    print(f"{sum(counts.values()):,} datasets, no defects")


if __name__ == "__main__":
    main()
