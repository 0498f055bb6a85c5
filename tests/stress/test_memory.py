"""Twenty epochs: the private memory of a loader's process and of its workers is flat after the first one."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from effort import EFFORT
from processes import run_python

pytestmark = pytest.mark.slow

EPOCHS = """
import ctypes, gc, json, multiprocessing, os, sys
import torch.utils.data
from presize.datasets import LMDBDataset, Loader, RandomResizedCrop, make_loader

def private_kib(pid):
    # Anonymous memory; pages of files, such as shards and batches in shared memory, are not private.
    with open(f"/proc/{pid}/status") as lines:
        return next(int(line.split()[1]) for line in lines if line.startswith("RssAnon:"))

kind, epochs, root = sys.argv[1], int(sys.argv[2]), sys.argv[3]
data = LMDBDataset(root, crop=RandomResizedCrop(96), decode="tensor")
if kind == "Loader":
    loader = Loader(data, 8, shuffle=True, num_workers=1, multiprocessing_context="fork")
elif kind == "make_loader":
    loader = make_loader(data, 8, shuffle=True, num_workers=1, multiprocessing_context="fork")
else:
    loader = torch.utils.data.DataLoader(
        data, 8, shuffle=True, num_workers=1, multiprocessing_context="fork", persistent_workers=True
    )
seen = []
for _ in range(epochs):
    for _ in range(4):
        for batch in loader:
            del batch
    gc.collect()
    ctypes.CDLL(None).malloc_trim(0)  # what is free is no leak
    processes = [os.getpid(), *(child.pid for child in multiprocessing.active_children())]
    seen.append([private_kib(pid) for pid in processes])
print(json.dumps(seen))
"""

BATCH_KIB = 8 * 96 * 96 * 3 / 1024


@pytest.mark.parametrize("kind", ["Loader", "make_loader", "DataLoader"])
def test_private_memory_is_flat_from_the_second_epoch_on(kind: str, dataset: Path) -> None:
    epochs = 20 * EFFORT
    seen = json.loads(run_python(EPOCHS, kind, epochs, dataset, timeout_s=120 + 60 * EFFORT))
    for process, kib in zip(("consumer", "worker"), zip(*seen, strict=True), strict=True):
        grown = max(kib[2:]) - kib[1]
        assert grown < 10 * BATCH_KIB, f"the {process} after each of {epochs} epochs of 28 batches: {kib} KiB"
