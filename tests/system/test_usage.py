"""What processes used, as the kernel counts it; and a GPU, where NVML tells."""

from __future__ import annotations

import os
import sys
import types
from pathlib import Path

import pytest

from presize.system.pagecache import drop, resident_share
from presize.system.usage import GpuUse, GpuWatch, Usage, pss_bytes, usage


def test_cpu_time_of_this_process_grows_with_its_work() -> None:
    before = usage()
    sum(range(300_000))
    assert (usage() - before).cpu_s > 0


def test_a_child_counts_while_it_runs_and_a_pid_that_is_none_counts_for_nothing() -> None:
    pid = os.fork()
    if pid == 0:
        sum(range(2_000_000))
        os.read(0, 0)
        while True:
            pass
    try:
        while usage([pid]).cpu_s - usage().cpu_s < 0.02:
            pass
        assert usage([2**22 + 1]).cpu_s - usage().cpu_s < 0.02
    finally:
        os.kill(pid, 9)
        os.waitpid(pid, 0)


def test_bytes_of_two_are_unknown_when_one_is() -> None:
    assert (Usage(2.0, None) - Usage(1.0, 5)) == Usage(1.0, None)
    assert (Usage(2.0, 7) - Usage(1.0, 5)) == Usage(1.0, 2)


def test_memory_of_a_process_is_known_while_it_runs() -> None:
    found = pss_bytes(os.getpid())
    assert found is not None and found > 1e6
    assert pss_bytes(2**22 + 1) is None


def test_a_gpu_that_is_not_named_is_not_known() -> None:
    with GpuWatch(None) as watch:
        pass
    assert watch.use is None


class NVMLError(Exception):
    pass


def test_nvml_is_asked_for_the_gpu_by_its_uuid(monkeypatch: pytest.MonkeyPatch) -> None:
    nvml = types.SimpleNamespace(
        NVMLError=NVMLError,
        nvmlInit=lambda: None,
        nvmlDeviceGetHandleByUUID=lambda uuid: uuid,
        nvmlDeviceGetUtilizationRates=lambda uuid: types.SimpleNamespace(gpu={"GPU-1": 50}[uuid]),
        nvmlDeviceGetMemoryInfo=lambda _: types.SimpleNamespace(used=1000),
    )
    monkeypatch.setitem(sys.modules, "pynvml", nvml)
    with GpuWatch("GPU-1") as watch:
        while watch.use is None:
            pass
    assert watch.use == GpuUse(busy=0.5, memory_bytes=1000)


def test_nvml_without_a_driver_is_not_known(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail() -> None:
        raise NVMLError("driver not loaded")

    monkeypatch.setitem(sys.modules, "pynvml", types.SimpleNamespace(NVMLError=NVMLError, nvmlInit=fail))
    with GpuWatch("GPU-1") as watch:
        pass
    assert watch.use is None


def test_files_leave_the_page_cache_when_they_are_dropped(tmp_path: Path) -> None:
    (tmp_path / "a").write_bytes(os.urandom(1 << 20))
    (tmp_path / "empty").touch()
    files = [tmp_path / "a", tmp_path / "empty"]
    assert resident_share(files) == 1
    drop(files)
    if resident_share(files) == 1:
        pytest.skip("this file system is memory")
    assert resident_share(files) < 0.1


def test_no_pages_are_not_resident() -> None:
    assert resident_share([]) == 0
