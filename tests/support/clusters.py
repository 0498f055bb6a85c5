"""Clusters of real engines on this machine: schedulers and workers as processes, on one host or, if possible, on
several hosts in network namespaces that a bridge connects."""

from __future__ import annotations

import os
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path

import psutil

WAIT_S = 90


@dataclass
class Cluster:
    """A running cluster: its `scheduler` (None if it is the driver), and a process of each worker, or of each node of
    workers, whose death kills its children. `env` is the environment that drivers need."""

    engine: str
    address: str
    scheduler: subprocess.Popen[bytes] | None
    workers: list[subprocess.Popen[bytes]] = field(default_factory=list)
    env: Mapping[str, str] = field(default_factory=dict)

    @property
    def options(self) -> list[str]:
        return ["--backend", self.engine, "--scheduler", self.address]


def wait_until(is_so: Callable[[], object], what: str) -> None:
    deadline = time.monotonic() + WAIT_S
    while not is_so():
        assert time.monotonic() < deadline, f"waited {WAIT_S} s for {what}"
        time.sleep(0.05)


def free_port() -> int:
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return int(found.getsockname()[1])


def is_listening(host: str, port: int) -> bool:
    with suppress(OSError), socket.create_connection((host, port), timeout=1):
        return True
    return False


def kill_group(process: subprocess.Popen[bytes]) -> None:
    """Send SIGKILL to a process and all processes that it started."""
    family = [process.pid]
    with suppress(psutil.NoSuchProcess):
        family += [child.pid for child in psutil.Process(process.pid).children(recursive=True)]
    for pid in family:
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    process.wait()


@contextmanager
def processes(log: Path) -> Iterator[Callable[..., subprocess.Popen[bytes]]]:
    """Yield a function that starts a command with its output in `log`. Kills all of them at the end."""
    started: list[subprocess.Popen[bytes]] = []

    def start(*command: object, env: Mapping[str, str] | None = None) -> subprocess.Popen[bytes]:
        with log.open("ab") as output:
            started.append(
                subprocess.Popen(
                    list(map(str, command)),
                    stdin=subprocess.DEVNULL,
                    stdout=output,
                    stderr=output,
                    cwd=log.parent,
                    env={**os.environ, **(env or {})},
                    start_new_session=True,
                )
            )
        return started[-1]

    try:
        yield start
    finally:
        for process in reversed(started):
            kill_group(process)


@dataclass(frozen=True)
class Host:
    """A separate host on a virtual network. `within` runs a command on it; `cable` is our end of its cable."""

    address: str
    within: tuple[str, ...]
    cable: str

    def cut_off(self) -> None:
        """Disconnect the host without notice."""
        subprocess.run(["ip", "link", "set", self.cable, "down"], check=True)


def can_make_hosts() -> bool:
    if os.geteuid() != 0 or not shutil.which("ip"):
        return False
    name = f"presize-{os.getpid()}-try"
    made = subprocess.run(["ip", "netns", "add", name], capture_output=True)
    subprocess.run(["ip", "netns", "delete", name], capture_output=True)
    return made.returncode == 0


@contextmanager
def hosts(count: int) -> Iterator[tuple[str, list[Host]]]:
    """Yield the address of this machine on a virtual network, and the other hosts on it."""
    mark, net = f"pz{os.getpid() % 100_000}", f"10.213.{os.getpid() % 250}"

    def ip(*words: str) -> None:
        subprocess.run(["ip", *words], check=True, capture_output=True)

    with ExitStack() as stack:
        ip("link", "add", mark, "type", "bridge")
        stack.callback(ip, "link", "delete", mark)
        ip("addr", "add", f"{net}.1/24", "dev", mark)
        ip("link", "set", mark, "up")
        made = []
        for number in range(count):
            name, cable = f"{mark}-{number}", f"{mark}c{number}"
            ip("netns", "add", name)
            stack.callback(ip, "netns", "delete", name)
            ip("link", "add", cable, "type", "veth", "peer", "name", "eth0", "netns", name)
            ip("link", "set", cable, "master", mark, "up")
            ip("-n", name, "addr", "add", f"{net}.{number + 2}/24", "dev", "eth0")
            ip("-n", name, "link", "set", "eth0", "up")
            ip("-n", name, "link", "set", "lo", "up")
            made.append(Host(f"{net}.{number + 2}", ("ip", "netns", "exec", name), cable))
        yield f"{net}.1", made


@contextmanager
def dask(folder: Path, workers: int = 2, env: Mapping[str, str] | None = None, on: tuple[Host, ...] = (),
         address: str = "127.0.0.1") -> Iterator[Cluster]:  # fmt: skip
    """Run a Dask cluster of workers with one thread and with `env`, as many on each host of `on` if there are any."""
    port = free_port()
    config = {"DASK_DISTRIBUTED__COMM__TIMEOUTS__TCP": "11s", "DASK_DISTRIBUTED__COMM__TIMEOUTS__CONNECT": "5s"}
    with processes(folder / "dask.log") as start:
        dask_scheduler = start(
            sys.executable, "-m", "distributed.cli.dask_scheduler", "--host", address, "--port", port, "--no-dashboard",
            env=config,
        )  # fmt: skip
        wait_until(lambda: is_listening(address, port), "Dask's scheduler")
        cluster = Cluster("dask", f"tcp://{address}:{port}", dask_scheduler, env=config)
        for number in range(workers * max(1, len(on))):
            within = on[number % len(on)].within if on else ()
            cluster.workers.append(
                start(
                    *within, sys.executable, "-m", "distributed.cli.dask_worker", cluster.address, "--nthreads", 1,
                    "--no-nanny", "--no-dashboard", "--name", f"worker-{number}", "--local-directory",
                    folder / f"dask-{number}", env={**config, **(env or {})},
                )
            )  # fmt: skip
        yield cluster


@contextmanager
def ray(folder: Path, workers: int = 2, env: Mapping[str, str] | None = None) -> Iterator[Cluster]:
    """Run a Ray cluster: a head without tasks, and nodes of one core each."""
    port = free_port()
    program = Path(sys.executable).with_name("ray")
    common = ("--block", "--disable-usage-stats", "--object-store-memory", 100_000_000)
    quiet = {"RAY_ENABLE_UV_RUN_RUNTIME_ENV": "0", "RAY_health_check_period_ms": "500"}
    log = folder / "ray.log"
    with processes(log) as start:
        head = start(
            program, "start", "--head", "--node-ip-address", "127.0.0.1", "--port", port, "--num-cpus", 0,
            "--include-dashboard", "false", *common, env=quiet,
        )  # fmt: skip
        wait_until(lambda: is_listening("127.0.0.1", port), "Ray's head")
        cluster = Cluster("ray", f"127.0.0.1:{port}", head)
        for _ in range(workers):
            cluster.workers.append(
                start(
                    program, "start", "--address", cluster.address, "--num-cpus", 1, *common,
                    env={**quiet, **(env or {})},
                )
            )  # fmt: skip
            # One after the other: if two start at once, one may fail because the other has taken its ports.
            wait_until(lambda: log.read_text().count("Ray runtime started") == len(cluster.workers) + 1, "Ray's node")
        yield cluster


@contextmanager
def spark(folder: Path, workers: int = 2, env: Mapping[str, str] | None = None) -> Iterator[Cluster]:
    """Run a standalone Spark cluster: a master, and `workers` of one core each."""
    import pyspark

    port = free_port()
    program = Path(pyspark.__file__).parent / "bin" / "spark-class"
    here = {"PYSPARK_PYTHON": sys.executable, "SPARK_LOCAL_IP": "127.0.0.1", "SPARK_NO_DAEMONIZE": "1"}
    with processes(folder / "spark.log") as start:
        master = start(
            program, "org.apache.spark.deploy.master.Master", "--host", "127.0.0.1", "--port", port, "--webui-port", 0,
            env=here,
        )  # fmt: skip
        wait_until(lambda: is_listening("127.0.0.1", port), "Spark's master")
        cluster = Cluster("spark", f"spark://127.0.0.1:{port}", master, env=here)
        for number in range(workers):
            cluster.workers.append(
                start(
                    program, "org.apache.spark.deploy.worker.Worker", "--host", "127.0.0.1", "--webui-port", 0,
                    "--cores", 1, "--memory", "1g", "--work-dir", folder / f"spark-{number}", cluster.address,
                    env={**here, **(env or {})},
                )
            )  # fmt: skip
        yield cluster


START = {"dask": dask, "ray": ray, "spark": spark}
