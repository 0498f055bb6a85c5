"""Workers do not accumulate memory: neither between epochs, nor with the size of the dataset."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import NamedTuple

import cv2
import numpy as np
import pytest

from builds import SERIAL
from presize.builder.run import build_dataset
from presize.options import BuildOptions, ImageOptions
from processes import run_python
from tampering import repeat_samples

EPOCHS = """
    import json, multiprocessing, sys
    from pathlib import Path
    import torch
    from presize.datasets import LMDBDataset, Loader, RandomResizedCrop

    def private_kib(pid, root):
        # Pages of the shards and the index, which are the page cache's, and of the batches that Loader shares with
        # its workers count as private where nobody else has touched them.
        total, counted = 0, True
        for line in Path(f"/proc/{pid}/smaps").read_text().splitlines():
            name = line.split()[0]
            if not name.endswith(":"):
                counted = root not in line and "memfd:presize-loader" not in line
            elif counted and name in ("Private_Clean:", "Private_Dirty:"):
                total += int(line.split()[1])
        return total

    def measure(root, which, context, epochs):
        crop = None if which == "DataLoader of whole images" else RandomResizedCrop(32)
        dataset = LMDBDataset(root, crop=crop, decode="tensor")
        if which == "Loader":
            loader = Loader(dataset, 100, shuffle=True, num_workers=1, multiprocessing_context=context)
        else:
            loader = torch.utils.data.DataLoader(
                dataset, 100, shuffle=True, num_workers=1, multiprocessing_context=context, persistent_workers=True
            )
        seen = []
        for _ in range(epochs):
            assert sum(len(images) for images, _ in loader) == len(dataset)
            (worker,) = multiprocessing.active_children()
            seen.append(private_kib(worker.pid, root))
        return seen

    torch.set_num_threads(1)
    which, context, epochs, *roots = sys.argv[1:]
    print(json.dumps([measure(root, which, context, int(epochs)) for root in roots]))
"""


class Sizes(NamedTuple):
    """The same images, once and a hundred times."""

    few: Path
    many: Path


@pytest.fixture(scope="module")
def sizes(tmp_path_factory: pytest.TempPathFactory) -> Sizes:
    folder = tmp_path_factory.mktemp("sizes").resolve()
    draw = np.random.default_rng(0)
    for k in range(200):
        path = folder / "raw" / f"class-{k % 4}" / f"{k}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        cv2.imwrite(str(path), draw.integers(0, 256, (32, 32, 3), np.uint8))
    build_dataset(folder / "raw", folder / "few", BuildOptions(ImageOptions(format="raw")), SERIAL)
    shutil.copytree(folder / "few", folder / "many")
    repeat_samples(folder / "many", 100)
    return Sizes(folder / "few", folder / "many")


@pytest.mark.slow
@pytest.mark.parametrize("which", ["Loader", "DataLoader", "DataLoader of whole images"])
def test_the_memory_of_a_forked_worker_is_flat_over_twenty_epochs(which: str, sizes: Sizes) -> None:
    (kib,) = json.loads(run_python(EPOCHS, which, "fork", 20, sizes.few, timeout_s=300))
    assert max(kib[2:]) - kib[1] < 2000, f"the records alone would be 11000: {kib}"


@pytest.mark.slow
@pytest.mark.parametrize("which", ["Loader", "DataLoader"])
def test_the_memory_of_a_spawned_worker_does_not_depend_on_the_size_of_the_dataset(which: str, sizes: Sizes) -> None:
    few, many = json.loads(run_python(EPOCHS, which, "spawn", 2, sizes.few, sizes.many, timeout_s=300))
    assert max(many) - min(few) < 1000, f"of 19800 samples more: {few}, {many}"
