"""Python programs that tests run in other processes, to limit, fork or hang them."""

from __future__ import annotations

import functools
import os
import signal
import subprocess
import sys
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from textwrap import dedent

import pytest


def run_python(script: str, *args: object, timeout_s: float = 60, stdin: str = "", within: Sequence[str] = ()) -> str:
    """Return the output of `script`, with `args` as its sys.argv[1:], started by the command `within`. Fails with its
    standard error if it fails."""
    return _run([*within, sys.executable, "-c", dedent(script), *map(str, args)], timeout_s, stdin)


def run_file(file: Path, script: str, *args: object, timeout_s: float = 60) -> list[str]:
    """Write `script` to `file`, as spawn and forkserver need, and return the lines that it prints."""
    file.write_text(dedent(script))
    return _run([sys.executable, str(file), *map(str, args)], timeout_s).splitlines()


def _run(command: list[str], timeout_s: float, stdin: str = "") -> str:
    ran = run_command(command, timeout_s, stdin)
    assert ran.returncode == 0, f"exit code {ran.returncode}: {ran.stderr}"
    return ran.stdout


def run_command(
    command: Sequence[object],
    timeout_s: float = 60,
    stdin: str = "",
    env: Mapping[str, str] | None = None,
    cwd: Path = Path("/"),  # the source tree would stand before what is installed
) -> subprocess.CompletedProcess[str]:
    """Run `command` with `env` added to the environment, and kill all of its processes at the end. subprocess.run kills
    only the process that it started, and then waits forever for pipes that its workers hold."""
    command = [str(part) for part in command]
    process = subprocess.Popen(
        command,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        errors="replace",
        cwd=cwd,
        env={**os.environ, **(env or {})},
        start_new_session=True,
    )
    try:
        out, err = process.communicate(stdin, timeout_s)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        out, err = process.communicate()
        pytest.fail(f"{command[:4]} ran for more than {timeout_s:g} s, and said {out[-1000:]!r}, {err[-3000:]!r}")
    finally:
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
    return subprocess.CompletedProcess(command, process.returncode, out, err)


def run_two_ranks(script: Path, *args: object) -> None:
    """Run `script` in two ranks of torchrun on the loopback interface: a machine's name need not resolve."""
    torchrun = ["-m", "torch.distributed.run", "--standalone", "--local-addr", "127.0.0.1", "--nproc-per-node", "2"]
    ran = run_command([sys.executable, *torchrun, script, *args], timeout_s=300, env={"GLOO_SOCKET_IFNAME": "lo"})
    assert ran.returncode == 0, ran.stderr[-3000:]


def fork(work: Callable[[], int]) -> int:
    """Fork a child and return its PID. Its exit code is the result of `work`, or 1 if it raises: a child that continued
    as a second test runner would hang the first one."""
    child = os.fork()
    if child:
        return child
    code = 1
    try:
        code = work()
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stderr.flush()
        os._exit(code)


@functools.cache
def mount_namespace() -> tuple[str, ...] | None:
    """Return a command prefix that runs a command in its own mount namespace; None if that is not possible."""
    for command in (("unshare", "-m"), ("unshare", "-rm")):
        try:
            tried = subprocess.run(
                [*command, "mount", "-t", "tmpfs", "tmpfs", "/mnt"], capture_output=True, timeout=30, check=False
            )
        except OSError:
            return None
        if tried.returncode == 0:
            return command
    return None


def with_dev_shm(options: str) -> list[str]:
    """Return a command prefix that runs a command with its own /dev/shm, mounted with these tmpfs options. Skips the
    test if that is not permitted."""
    command = mount_namespace()
    if command is None:
        pytest.skip("private mount namespaces are not available (unshare -m)")
    return [*command, "sh", "-c", f'mount -t tmpfs -o {options} tmpfs /dev/shm && exec "$@"', "sh"]


@contextmanager
def pids_group() -> Iterator[Path]:
    """Create a control group that can limit processes. Skips the test if that is not possible."""
    group = Path(f"/sys/fs/cgroup/pids/presize-test-{os.getpid()}")
    try:
        group.mkdir()
    except OSError:
        pytest.skip("control groups that limit processes are not available")
    try:
        yield group
    finally:
        group.rmdir()


def is_running(pid: int) -> bool:
    """Return False if the process has ended, even if its parent has not waited for it."""
    try:
        return "\nState:\tZ" not in Path(f"/proc/{pid}/status").read_text()
    except OSError:
        return False


def _running(place: int, value: int) -> list[int]:
    """Return the running processes with this value after their name in /proc/PID/stat: state, parent, group,
    session."""
    found = []
    for name in filter(str.isdigit, os.listdir("/proc")):
        with suppress(OSError):  # it has ended
            stat = Path("/proc", name, "stat").read_text().rpartition(")")[2].split()
            found += [int(name)] if stat[0] != "Z" and int(stat[place]) == value else []
    return found


def in_session(session: int) -> list[int]:
    """Return the running processes of a session."""
    return _running(3, session)


def children(pid: int) -> list[int]:
    """Return the running children of a process."""
    return _running(1, pid)


def workers_of(build: int) -> list[int]:
    """Return the worker processes of a build."""
    return [worker for server in fork_servers_of(build) for worker in children(server)]


def fork_servers_of(build: int) -> list[int]:
    return [pid for pid in children(build) if b"fork_server" in Path(f"/proc/{pid}/cmdline").read_bytes()]
