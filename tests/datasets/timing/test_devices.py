"""Facts from torch, and timing of work on simulated accelerators. MUTANTS are faults in presize.datasets.timing.epochs
that the simulated devices must detect."""

from __future__ import annotations

import sys
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch

from accelerators import Accelerator
from presize.datasets import diagnose
from presize.datasets.timing import diagnose_path, epochs
from presize.datasets.timing.devices import read_torch
from presize.datasets.timing.epochs import NoModel
from presize.measure.bench_options import DiagnoseOptions
from presize.system.resources import Gpu

KINDS = ("cuda", "xpu", "mps")
WORK_S = 0.01


def test_torch_reports_its_version_its_threads_and_its_gpus() -> None:
    found = read_torch()
    assert (found.version, found.threads) == (torch.__version__, torch.get_num_threads())
    assert found.instructions == torch.backends.cpu.get_cpu_capability()
    assert len(found.gpus) == torch.accelerator.device_count()
    assert all(gpu.name and gpu.memory_bytes > 0 for gpu in found.gpus)


@pytest.mark.parametrize("kind", KINDS)
def test_an_accelerator_is_named_by_its_type_and_its_name_if_torch_knows_it(
    kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    Accelerator(monkeypatch, kind)
    found = read_torch()
    assert found.accelerator == kind
    capability = "9.0" if kind == "cuda" and torch.version.cuda else None
    assert found.gpus == (() if kind == "mps" else (Gpu(f"simulated {kind}", 1 << 34, capability),))


def test_torchs_report_about_its_driver_is_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    def is_available() -> bool:
        warnings.warn("CUDA initialization: The NVIDIA driver on your system is too old\nsecond line", stacklevel=1)
        return False

    monkeypatch.setattr(torch.accelerator, "is_available", is_available)
    found = read_torch()
    assert found.said == "CUDA initialization: The NVIDIA driver on your system is too old"
    assert (found.accelerator, found.gpus) == (None, ())


class Working(NoModel):
    """A step whose device continues after it returns."""

    def __init__(self, device: Accelerator) -> None:
        super().__init__(torch.device(device.kind, 0))
        self.simulated, self.begun, self.done = device, 0, 0

    def __call__(self, placed: Any) -> None:  # noqa: ARG002
        self.begun += 1
        self.simulated.stream.put(self.work)

    def work(self) -> None:
        time.sleep(WORK_S)
        self.done += 1


def time_an_epoch(device: Accelerator, timing: Any) -> None:
    step = Working(device)
    timing.time_epoch([torch.zeros(4, 3)] * 3, step)
    if step.done < step.begun:
        device.problems.append("an epoch ends before its last step")


def time_a_step(device: Accelerator, timing: Any) -> None:
    step = Working(device)
    step.clock = timing.Clock(step.device)
    if timing.resident_s(step, torch.zeros(4, 3)) < WORK_S:
        device.problems.append("a step ends before its work")


def copy_in_each_step(device: Accelerator, timing: Any) -> None:
    step = NoModel(torch.device(device.kind, 0))
    batch = timing.on_host([torch.zeros(4, 3)], step.device)
    timing.copied_s(step, batch)
    device.finish()
    ours = "a copy is on the stream of the caller"  # as in a training loop
    device.problems = [problem for problem in device.problems if problem != ours]
    if (device.copies > 0, device.pageable > 0) != (device.kind != "mps", device.kind == "mps"):
        device.problems.append("batches are copied from the wrong memory")


Scenario = Callable[[Accelerator, Any], None]

MUTANTS: dict[str, tuple[str, str, str, Scenario]] = {
    "leaves the last step out": ("cuda", "    step.clock.wait()\n    end_s", "    end_s", time_an_epoch),
    "times what the host does": (
        "mps",
        "            self.wait()\n            return",
        "            return",
        time_a_step,
    ),
    "uses events that hang": ("mps", "_events = is_asynchronous(device.type)", "_events = True", time_a_step),
    "copies from pageable memory": ("cuda", "tensor.cpu().pin_memory() if", "tensor.cpu() if", copy_in_each_step),
    "pins for nothing": ("mps", "pin_memory() if pins", "pin_memory() if True", copy_in_each_step),
}


@pytest.fixture(autouse=True)
def briefly(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(epochs, "STEP_BUDGET", epochs.Budget(4, 9.0))


@pytest.mark.parametrize("scenario", [time_an_epoch, time_a_step, copy_in_each_step])
@pytest.mark.parametrize("kind", KINDS)
def test_work_of_a_device_is_timed(kind: str, scenario: Scenario, monkeypatch: pytest.MonkeyPatch) -> None:
    device = Accelerator(monkeypatch, kind)
    scenario(device, epochs)
    assert device.problems == []


@pytest.mark.parametrize("mutant", MUTANTS.values(), ids=list(MUTANTS))
def test_a_simulated_device_detects_a_fault_in_the_timing(
    mutant: tuple[str, str, str, Scenario], monkeypatch: pytest.MonkeyPatch
) -> None:
    kind, right, wrong, scenario = mutant
    source = Path(str(epochs.__file__)).read_text()
    assert source.count(right) == 1
    faulty = ModuleType("faulty_epochs")
    monkeypatch.setitem(sys.modules, "faulty_epochs", faulty)  # dataclasses look it up there
    exec(source.replace(right, wrong), vars(faulty))
    faulty.STEP_BUDGET = epochs.STEP_BUDGET  # type: ignore[attr-defined]
    device = Accelerator(monkeypatch, kind)
    scenario(device, faulty)
    assert device.problems


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
def test_any_device_is_diagnosed_and_is_called_a_gpu(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    device = Accelerator(monkeypatch, kind)
    found = diagnose([torch.zeros(4, 3)] * 20, Working(device), seconds=0.3)
    assert found.device == kind
    assert found.step.mean_s >= WORK_S
    assert "the GPU is busy" in found.headline
    copying = dict(found.evidence())["copying"]
    assert copying.endswith("from memory" if kind == "mps" else "from pinned memory")


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
def test_a_folder_is_diagnosed_on_the_accelerator_of_the_machine(
    kind: str, dataset: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    device = Accelerator(monkeypatch, kind)
    monkeypatch.setattr(diagnose_path, "TrainingStep", lambda _, where: NoModel(where))
    options = DiagnoseOptions(workers=0, batch=8, crop=24, seconds=0.3)
    assert diagnose_path.diagnose_path(dataset, options).device == kind
    assert (device.copies > 0) == (kind != "mps")
