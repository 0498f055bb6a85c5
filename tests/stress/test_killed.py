"""Loaders that are killed or interrupted, or whose worker is: one error within seconds, and no leftovers.

Half of all cases by default; PRESIZE_TEST_EFFORT=2 tries all.
"""

from __future__ import annotations

import json
from itertools import product
from pathlib import Path
from typing import Any

import pytest

from effort import EFFORT
from processes import mount_namespace, run_python, with_dev_shm

pytestmark = pytest.mark.slow

PROGRAM = """
import multiprocessing, sys, time
import torch.utils.data
from presize.datasets import LMDBDataset, Loader, RandomResizedCrop, make_loader

def loader(kind, context, root):
    crop = RandomResizedCrop(24)
    if kind == "threads":
        return Loader(LMDBDataset(root), 4, crop=crop, num_workers=2, mode="threads")
    if kind == "Loader":
        return Loader(LMDBDataset(root), 4, crop=crop, num_workers=2, multiprocessing_context=context)
    data = LMDBDataset(root, crop=crop, decode="tensor")
    if kind == "make_loader":
        return make_loader(data, 4, num_workers=2, multiprocessing_context=context)
    return torch.utils.data.DataLoader(
        data, 4, num_workers=2, multiprocessing_context=context, persistent_workers=True
    )

if __name__ == "__main__":
    batches, seen = loader(*sys.argv[1:]), 0
    while True:
        for _ in batches:
            seen += 1
            if seen == 3:
                print(*[child.pid for child in multiprocessing.active_children()], flush=True)
            time.sleep(0.005)
"""

HARNESS = """
import json, os, signal, subprocess, sys, time
from pathlib import Path

def alive():
    found = []
    for process in filter(str.isdigit, os.listdir("/proc")):
        try:
            if os.getsid(int(process)) == program.pid and "\\nState:\\tZ" not in open(f"/proc/{process}/status").read():
                found.append(int(process))
        except (OSError, ProcessLookupError):
            pass
    return found

victim, *command = sys.argv[1:]
pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
program = subprocess.Popen([sys.executable, *command], start_new_session=True, **pipes)
workers = [int(pid) for pid in program.stdout.readline().split()]
time.sleep(0.1)
if victim == "worker":
    os.kill(workers[0], signal.SIGKILL)
elif victim == "main":
    os.kill(program.pid, signal.SIGKILL)
elif victim == "main by SIGTERM":
    os.kill(program.pid, signal.SIGTERM)
else:  # as a terminal does it
    os.killpg(program.pid, signal.SIGINT)
begin = interrupted = time.monotonic()
hung = False
while alive():
    if victim == "Ctrl-C" and time.monotonic() - interrupted > 10:
        # Python ignores an interrupt that arrives in a callback of a weak reference, as when a batch is freed.
        os.killpg(program.pid, signal.SIGINT)
        interrupted = time.monotonic()
    if time.monotonic() - begin > 60:
        hung = True
        os.killpg(program.pid, signal.SIGKILL)
    time.sleep(0.05)
_, said = program.communicate()
print(json.dumps({
    "workers": len(workers), "hung": hung, "code": program.returncode, "said": said, "dev_shm": os.listdir("/dev/shm")
}))
"""

VICTIMS = ("worker", "main", "Ctrl-C", "main by SIGTERM")
KINDS = [*product(("Loader", "make_loader", "DataLoader"), ("fork", "forkserver", "spawn")), ("threads", "fork")]
CASES = [
    (victim, kind, context) for kind, context in KINDS for victim in VICTIMS if (kind, victim) != ("threads", "worker")
]


def kill(victim: str, kind: str, context: str, dataset: Path, folder: Path) -> dict[str, Any]:
    """Kill `victim` of a program, and return the program's report once all of its processes have ended."""
    script = folder / "program.py"  # spawn and forkserver need a file
    script.write_text(PROGRAM)
    within = with_dev_shm("size=256m") if mount_namespace() else ()
    found: dict[str, Any] = json.loads(
        run_python(HARNESS, victim, script, kind, context, dataset, timeout_s=180, within=within)
    )
    if not within:
        del found["dev_shm"]  # other processes use it
    return found


def was_ignored(said: str) -> bool:
    """Return True if Python ignored the interrupt (see HARNESS), according to its output."""
    return "Exception ignored in: <finalize object" in said and "KeyboardInterrupt" in said


@pytest.mark.parametrize(("victim", "kind", "context"), CASES[:: max(1, 3 - EFFORT)])
def test_nothing_outlives_a_kill(victim: str, kind: str, context: str, dataset: Path, tmp_path: Path) -> None:
    found = kill(victim, kind, context, dataset, tmp_path)
    if kind == "DataLoader" and was_ignored(found["said"]):  # its workers end nevertheless, and so does the program
        found = kill(victim, kind, context, dataset, tmp_path)
    if (victim, kind) == ("worker", "DataLoader") and found.get("dev_shm"):
        # torch's worker died between creating a file and unlinking it, which does not happen twice.
        found = kill(victim, kind, context, dataset, tmp_path)
    said = found["said"]
    assert not found["hung"], said
    assert found.get("dev_shm", []) == []
    if victim == "worker":
        assert found["code"] == 1
        errors = ["LoaderError: a loader worker died"]
        if kind != "Loader":
            errors = ["DataLoader worker (pid", "a DataLoader worker died"]
        if kind == "DataLoader":  # torch's error
            errors += ["ConnectionResetError", "ConnectionRefusedError", "EOFError"]
        assert any(error in said for error in errors), said
    elif victim == "Ctrl-C":
        assert found["code"] == -2, said
        assert kind == "DataLoader" or said.count("Traceback") <= 2, said
    else:
        assert found["code"] == (-9 if victim == "main" else -15)
