"""Many processes and threads read one dataset at once, with every start method: each gets the same bytes."""

from __future__ import annotations

from pathlib import Path

import cv2
import numpy as np
import pytest

from builds import SERIAL
from effort import EFFORT
from presize.builder.run import build_dataset
from presize.options import BuildOptions, ImageOptions
from processes import run_file, run_python

pytestmark = pytest.mark.slow

CHECKSUMS = """
import multiprocessing, os, random, resource, sys, threading, zlib
import torch.utils.data
from presize.datasets import CenterCrop, LMDBDataset, Loader, make_loader

def checksum(image):
    return zlib.crc32(image.permute(1, 2, 0).contiguous().numpy().tobytes())

def read_all(data, expected, seed):
    order = list(range(len(data)))
    random.Random(seed).shuffle(order)
    return sum(zlib.crc32(data[i][0].tobytes()) != expected[i] for i in order)
"""

FIFTY = (
    CHECKSUMS
    + """
root, passes = sys.argv[1], int(sys.argv[2])
data = LMDBDataset(root, decode="numpy")
expected = [zlib.crc32(image.tobytes()) for image, _ in data]
data = LMDBDataset(root, decode="numpy")  # its shards are not open yet when the children are forked
children = []
for number in range(50):
    child = os.fork()
    if child == 0:
        mine = data if number % 2 else LMDBDataset(root, decode="numpy")
        os._exit(sum(read_all(mine, expected, passes * number + k) for k in range(passes)) != 0)
    children.append(child)
wrong = []
threads = [
    threading.Thread(target=lambda seed=seed: wrong.append(sum(read_all(data, expected, seed) for _ in range(passes))))
    for seed in range(50)
]
for thread in threads:
    thread.start()
for thread in threads:
    thread.join()
print([os.waitpid(child, 0)[1] for child in children] == [0] * 50, wrong == [0] * 50)
"""
)


def test_fifty_processes_and_fifty_threads_read_the_same(dataset: Path) -> None:
    assert run_python(FIFTY, dataset, 3 * EFFORT, timeout_s=120 + 120 * EFFORT) == "True True\n"


LOADERS = (
    CHECKSUMS
    + """
def loaders(root, context, workers):
    data = LMDBDataset(root, crop=CenterCrop(16), decode="tensor")
    yield Loader(data, 8, shuffle=True, num_workers=workers, multiprocessing_context=context)
    yield make_loader(data, 8, shuffle=True, num_workers=workers, multiprocessing_context=context)
    yield torch.utils.data.DataLoader(data, 8, shuffle=True, num_workers=workers, multiprocessing_context=context)

if __name__ == "__main__":
    root, files, *contexts = sys.argv[1:]
    if int(files):
        resource.setrlimit(resource.RLIMIT_NOFILE, (int(files), int(files)))
    data = LMDBDataset(root, crop=CenterCrop(16), decode="tensor")
    expected = sorted(checksum(image) for image, _ in data)
    for context in contexts:
        for loader in loaders(root, context, 2):
            for _ in range(2):
                # One batch at a time: torch keeps a file open for each.
                found = sorted(checksum(image) for batch, _ in loader for image in batch)
                print(context, type(loader).__name__, found == expected)
            del loader
"""
)


@pytest.mark.parametrize("context", ["fork", "spawn", "forkserver"])
def test_every_start_method_yields_the_same(context: str, dataset: Path, tmp_path: Path) -> None:
    lines = run_file(tmp_path / "program.py", LOADERS, dataset, 0, context, timeout_s=180)
    assert len(lines) == 6 and all(line.endswith(" True") for line in lines), lines


@pytest.fixture(scope="module")
def thousand_shards(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("thousand")
    draw = np.random.default_rng(0)
    (folder / "raw" / "a").mkdir(parents=True)
    for number in range(1000):
        cv2.imwrite(str(folder / "raw" / "a" / f"{number:03}.png"), draw.integers(0, 256, (16, 16, 3), np.uint8))
    build_dataset(folder / "raw", folder / "out", BuildOptions(ImageOptions(format="raw"), shard_samples=1), SERIAL)
    return folder / "out"


def test_a_thousand_shards_are_read_by_processes_that_may_open_128_files(thousand_shards: Path, tmp_path: Path) -> None:
    contexts = ["fork", "spawn"] if EFFORT > 1 else ["fork"]
    lines = run_file(tmp_path / "program.py", LOADERS, thousand_shards, 128, *contexts, timeout_s=300)
    assert len(lines) >= 6 and all(line.endswith(" True") for line in lines), lines
