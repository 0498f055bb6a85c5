"""What a check-up gathers, and what a finding is. Pure."""

from __future__ import annotations

from dataclasses import asdict, dataclass, replace
from typing import Any, Literal, NamedTuple

from presize.doctor.codec_features import Codecs
from presize.measure.read_speed import Content, Reading
from presize.system.machine import Cpu, Limits, Nvidia, SharedMemory, Torch
from presize.system.resources import Memory
from presize.system.storage import Storage

Level = Literal["ok", "warn", "bad", "unknown"]


class Finding(NamedTuple):
    """What a check-up has to say on one topic.

    Attributes:
        topic: What it is about, in a word or two.
        level: "ok"; "warn" for what is slower than it could be, or a trap; "bad" for what makes training fail, or
            several times slower; "unknown" for what could not be found out.
        found: What there is.
        fix: What to do about it; None if there is nothing to do.
    """

    topic: str
    level: Level
    found: str
    fix: str | None = None


@dataclass(frozen=True)
class CheckUp:
    """The facts that findings are drawn from.

    Attributes:
        cpu: The processor.
        memory: Main memory and its limits.
        shared_memory: /dev/shm; None if there is none.
        limits: Limits of this process.
        open_shards: Shards that a dataset keeps open at most.
        codecs: Codecs and resizers that are installed.
        nvidia: The NVIDIA driver and its GPUs; None if there is none.
        torch: What torch offers, or why it cannot be imported.
        storage: Where the path lies, or the current folder.
        content: What there is to read in the path; None if no path was given.
        reading: How fast that was read, or what went wrong; None if there is too little to read.
    """

    cpu: Cpu
    memory: Memory
    shared_memory: SharedMemory | None
    limits: Limits
    open_shards: int
    codecs: Codecs
    nvidia: Nvidia | None
    torch: Torch | str
    storage: Storage
    content: Content | None = None
    reading: Reading | str | None = None

    def known(self) -> dict[str, Any]:
        """The facts as JSON has them; of the content the number and size of its files only."""
        content = self.content and {
            "files": len(self.content.files),
            "bytes": self.content.nbytes,
            "all_files": self.content.all_files,
            "record_bytes": self.content.record_bytes,
        }
        return asdict(replace(self, content=None)) | {"content": content}
