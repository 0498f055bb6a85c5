"""Profile a build in one process: time per image by stage.

    python benchmarks/building/profile_build.py PHOTOS

Runs presize.builder.run.build_dataset with a clock around the functions below. The time of a stage excludes the stages
inside it. The clock takes about 3 µs per call, most of which counts for the enclosing stage.
"""

from __future__ import annotations

import argparse
import os
import shutil
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from functools import wraps
from pathlib import Path
from typing import Any, NamedTuple
from unittest import mock

import cv2
import simplejpeg
from zlib_ng import zlib_ng

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from presize import options
from presize.builder import output_dir, run
from presize.builder.executors import executor
from presize.builder.shard_table import ShardTable
from presize.codecs import decode, encode, resize, transcode
from presize.codecs.jpeg import decoder as jpeg_decoder
from presize.codecs.jpeg import segments as jpeg_segments
from presize.codecs.jpeg import tiles as tiling
from presize.sources.source_files import SourceReader
from presize.store import shard
from shared import rates
from shared.builds import link_tree
from shared.conditions import find_photos

_STAGES: dict[str, list[tuple[object, str]]] = {
    "list the source": [(run, "scan")],
    "plan": [(run, "make_plan")],
    "read the file": [(SourceReader, "read")],
    "parse the header": [(jpeg_segments, "parse")],
    "decode, outside the codec": [(decode, "decode")],
    "  decode the pixels": [(jpeg_decoder, "decode"), (simplejpeg, "decode_jpeg")],
    "  decode and resize the pixels, row by row": [(jpeg_decoder, "decode_into")],
    "resize": [(resize, "resize")],
    "ICC profile to sRGB": [(decode, "finish")],
    "encode, outside the codec": [(encode, "encode")],
    "  cv2.imencode": [(cv2, "imencode")],
    "  index of the tiles": [(tiling, "with_index")],
    "rest of transcode": [(transcode, "transcode")],
    "CRC-32": [(zlib_ng, "crc32")],
    "open a shard": [(shard.ShardWriter, "__init__")],
    "LMDB put": [(shard.ShardWriter, "append")],
    "LMDB commit and sync": [(shard.ShardWriter, "publish")],
    "SHA-256 of the shard": [(shard, "file_digest")],
    "sidecar": [(ShardTable, "write"), (ShardTable, "read")],
    "rest of the task": [(executor, "write_shard")],
    "index and manifest": [(run, "publish"), (output_dir, "publish_manifest")],
}
"""The timed functions of each stage, in the module where they are looked up."""


class Times(NamedTuple):
    """Seconds of wall time, and of this thread's CPU time."""

    wall: float = 0.0
    cpu: float = 0.0

    @classmethod
    def now(cls) -> Times:
        return cls(time.perf_counter(), time.thread_time())

    def __add__(self, other: Times) -> Times:  # type: ignore[override]
        return Times(self.wall + other.wall, self.cpu + other.cpu)

    def __sub__(self, other: Times) -> Times:
        return Times(self.wall - other.wall, self.cpu - other.cpu)


class Stopwatch:
    """Times and calls by stage, for one thread. Times exclude the stages inside.

    Where the wall time exceeds the CPU time, the stage waited for the disk, or for a busy machine.
    """

    def __init__(self) -> None:
        self.times: dict[str, Times] = {}
        self.calls: dict[str, int] = {}
        self._inside: list[Times] = []  # for each open stage, the time of the stages inside it

    def around(self, stage: str, function: Callable[..., Any]) -> Callable[..., Any]:
        self.times.setdefault(stage, Times())
        self.calls.setdefault(stage, 0)

        @wraps(function)
        def timed(*arguments: Any, **named: Any) -> Any:
            self._inside.append(Times())
            start = Times.now()
            try:
                return function(*arguments, **named)
            finally:
                spent = Times.now() - start
                self.times[stage] += spent - self._inside.pop()
                self.calls[stage] += 1
                if self._inside:
                    self._inside[-1] += spent

        return timed


@contextmanager
def timed_stages() -> Iterator[Stopwatch]:
    stopwatch = Stopwatch()
    with ExitStack() as patches:
        for stage, functions in _STAGES.items():
            for owner, name in functions:
                timed = stopwatch.around(stage, getattr(owner, name))
                patches.enter_context(mock.patch.object(owner, name, timed))
        yield stopwatch


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("source", type=Path, metavar="PHOTOS", help="searched recursively for JPEGs")
    parser.add_argument("--work", type=Path, default=Path(tempfile.gettempdir(), "presize-benchmark"))
    parser.add_argument("--images", type=int, default=1000)
    parser.add_argument("--size", type=int, default=256)
    arguments = parser.parse_args()
    photos = find_photos(arguments.source)
    tree = link_tree(photos, arguments.work, arguments.images)
    size = options.Size(arguments.size, arguments.size)
    wanted = options.BuildOptions(options.ImageOptions(sizes=(size,)))
    out = arguments.work / "profile"
    for _ in range(2):  # the first run imports, and warms the page cache
        shutil.rmtree(out, ignore_errors=True)
        os.sync()
        with timed_stages() as stopwatch:
            start = Times.now()
            result = run.build_dataset(tree, out, wanted, options.RunOptions(engine="sequential", report=False))
            whole = Times.now() - start
    shutil.rmtree(out)
    print(table(stopwatch, whole, result.samples))


def table(stopwatch: Stopwatch, whole: Times, samples: int) -> str:
    """Format microseconds per sample, counting all samples also for stages that only some pass."""
    rest = whole
    for times in stopwatch.times.values():
        rest -= times
    lines = []
    for stage, times in [*stopwatch.times.items(), ("rest of the build", rest), ("**all**", whole)]:
        wall, cpu = times.wall / samples * 1e6, times.cpu / samples * 1e6
        calls = f"{stopwatch.calls[stage]:,}" if stage in stopwatch.calls else ""
        lines.append([stage, f"{wall:.1f}", f"{cpu:.1f}", f"{times.cpu / whole.cpu:.1%}", calls])
    codecs = sum(times.cpu for stage, times in stopwatch.times.items() if "pixels" in stage or "cv2." in stage)
    found = rates.table(["stage", "µs per image", "CPU, µs", "share of CPU", "calls"], lines)
    return f"{found}\n\nDecoding and encoding pixels take {codecs / whole.cpu:.2f} of the CPU time."


if __name__ == "__main__":
    main()
