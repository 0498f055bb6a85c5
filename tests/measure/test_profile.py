"""Own times of functions, grouped into parts of loading, from real profiles."""

from __future__ import annotations

import io
import json
import threading
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import cv2
import numpy as np
import pytest
import torch
from PIL import Image

from presize.measure.profile import PARTS, Part, Profile, part_of, split


def profiled(work: Callable[[], Any]) -> Profile:
    profiler = Profile()
    profiler.runcall(work)
    return profiler


def jpeg(side: int = 1500) -> bytes:
    noise = np.random.default_rng(0).integers(0, 256, (side, side, 3), np.uint8)
    return cv2.imencode(".jpg", noise)[1].tobytes()


PHOTO = jpeg()
DECODED = Image.open(io.BytesIO(PHOTO)).convert("RGB")


def read_files(folder: Path) -> None:
    for _ in range(50):
        (folder / "large").read_bytes()


def augment_in_opencv() -> None:
    pixels = np.asarray(DECODED)
    for _ in range(5):
        cv2.resize(pixels, (1000, 1000), interpolation=cv2.INTER_AREA)


def collate_batches() -> None:
    for _ in range(20):
        torch.utils.data.default_collate([torch.zeros(3, 300, 300)] * 16)


@pytest.mark.parametrize(
    ("work", "part"),
    [
        (lambda: Image.open(io.BytesIO(PHOTO)).convert("RGB"), "decode"),
        (lambda: cv2.imdecode(np.frombuffer(PHOTO, np.uint8), cv2.IMREAD_COLOR), "decode"),
        (lambda: [DECODED.resize((900, 900)) for _ in range(3)], "augment"),
        (augment_in_opencv, "augment"),
        (collate_batches, "collate"),
        (lambda: json.loads(json.dumps(list(range(200_000)))), "other"),
    ],
)
def test_the_time_of_known_libraries_counts_for_their_part(work: Callable[[], Any], part: Part) -> None:
    parts = split(profiled(work)).parts
    assert max(parts, key=parts.__getitem__) == part


def test_reading_files_is_reading(tmp_path: Path) -> None:
    (tmp_path / "large").write_bytes(bytes(20_000_000))
    parts = split(profiled(lambda: read_files(tmp_path))).parts
    assert max(parts, key=parts.__getitem__) == "read"


def test_no_time_is_lost() -> None:
    profiler = profiled(lambda: Image.open(io.BytesIO(PHOTO)).convert("RGB").resize((300, 300)))
    entries: Any = profiler.getstats()
    spent = split(profiler)
    assert sum(spent.parts.values()) == pytest.approx(sum(entry.inlinetime for entry in entries))
    assert set(spent.parts) == set(PARTS)
    seconds = [one for _, _, one in spent.functions]
    assert seconds == sorted(seconds, reverse=True)


def test_work_of_other_threads_does_not_count_for_the_function_that_waits_meanwhile() -> None:
    # As in a worker of a DataLoader, whose second thread sends batches. Decoding lets it run.
    done = threading.Event()

    def other_thread() -> None:
        while not done.wait(0.0005):
            np.linalg.norm(range(100))

    thread = threading.Thread(target=other_thread)
    thread.start()
    profiler = Profile()
    try:
        profiler.runcall(lambda: [cv2.imdecode(np.frombuffer(PHOTO, np.uint8), cv2.IMREAD_COLOR) for _ in range(10)])
    finally:
        done.set()
        thread.join()
    spent = split(profiler)
    assert spent.parts["decode"] > 0.9 * sum(spent.parts.values())
    assert not [name for name, *_ in spent.functions if "norm" in name or "other_thread" in name]
    entries: Any = profiler.getstats()
    (decode,) = (call for entry in entries for call in entry.calls or () if str(call.code) == "<imdecode>")
    assert decode.callcount == 10


def test_unknown_functions_count_for_their_caller_and_recursion_ends() -> None:
    def busy() -> int:
        return sum(range(10_000_000))

    def odd(n: int) -> bool:
        return n != 0 and even(n - 1)

    def even(n: int) -> bool:
        return n == 0 or odd(n - 1)

    # A function in the folder of torchvision's transforms that calls an unknown one.
    source = compile("def call(work):\n    return work()", "/x/site-packages/torchvision/transforms/v2.py", "exec")
    names: dict[str, Any] = {}
    exec(source, names)
    parts = split(profiled(lambda: names["call"](busy))).parts
    assert parts["augment"] > 0.9 * sum(parts.values())
    parts = split(profiled(lambda: even(400))).parts
    assert parts["other"] == pytest.approx(sum(parts.values()))


def test_resizing_and_decoding_in_one_module_are_distinguished() -> None:
    resized, decoded = (part_of(f"presize/datasets/reading/regions.py:{name}") for name in ("by_pillow", "jpeg_box"))
    assert (resized, decoded) == ("augment", "decode")


@pytest.mark.parametrize(
    "name", ["./lmdb/train.py:go", "./simplejpeg/mine.py:f", "./collate/x.py:f", "somebody/x.py:f"]
)
def test_a_users_folder_is_not_taken_for_a_package(name: str) -> None:
    assert part_of(name) is None


class Sleepy(torch.utils.data.Dataset[tuple[torch.Tensor, int]]):
    def __len__(self) -> int:
        return 64

    def __getitem__(self, index: int) -> tuple[torch.Tensor, int]:
        time.sleep(0.001)
        return torch.zeros(3), index


def gather(samples: list[Any]) -> list[Any]:
    time.sleep(0.05)
    return samples


def test_collating_counts_only_the_loaders_own_function() -> None:
    batches = [iter(torch.utils.data.DataLoader(Sleepy(), 32, collate_fn=how)) for how in (None, gather)]
    plain, own = (profiled(partial(next, each)) for each in batches)
    spent = split(plain)
    assert spent.parts["collate"] < 0.08 * sum(spent.parts.values())
    (frame, seconds), *_ = spent.frames.items()
    assert frame.endswith("test_profile.py:__getitem__")
    assert seconds > 0.03
    assert split(own).parts["collate"] < 0.01
    assert split(own, collate=gather).parts["collate"] > 0.04
