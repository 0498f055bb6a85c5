"""CPU time of processes, as the kernel counts it."""

from __future__ import annotations

import os

from presize.system.usage import cpu_seconds


def test_cpu_time_of_this_process_grows_with_its_work() -> None:
    before = cpu_seconds()
    sum(range(300_000))
    assert cpu_seconds() > before


def test_a_child_counts_while_it_runs_and_a_pid_that_is_none_counts_for_nothing() -> None:
    pid = os.fork()
    if pid == 0:
        sum(range(2_000_000))
        os.read(0, 0)
        while True:
            pass
    try:
        while cpu_seconds([pid]) - cpu_seconds() < 0.02:
            pass
        assert cpu_seconds([2**22 + 1]) - cpu_seconds() < 0.02
    finally:
        os.kill(pid, 9)
        os.waitpid(pid, 0)
