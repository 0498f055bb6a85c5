"""watch: run somebody's script as Python would, and time how long it waits for the batches of its loaders.

The script runs in this process, unchanged: it draws the same random numbers, prints, and ends as it would. Nothing here
imports torch or NumPy before the script does, which may set their environment first. Once it has imported torch's
DataLoader or presize's Loader, iterating these is timed, which costs microseconds a batch.
"""

from __future__ import annotations

import importlib.util
import json
import os
import runpy
import signal
import sys
import tempfile
import time
import weakref
from array import array
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from importlib.machinery import ModuleSpec
from pathlib import Path
from types import ModuleType, TracebackType
from typing import TYPE_CHECKING, Any

from presize.formatting import plural
from presize.system.files import write_atomically
from presize.system.resources import cpu_seconds, read_cpu

if TYPE_CHECKING:
    from presize.measure.watched import Watched

_LOOK_EVERY_S = 1.0
"""How often the CPU time of workers is read."""

_INTERIM_S, _INTERIM_BATCHES = 60.0, 100
"""So long after the first batch, and after so many, there is an interim verdict."""

_RANKS_WAIT_S = 10.0
"""How long the first rank waits, at its end, for what the others found."""


@dataclass
class _Seen:
    """What was seen of a loader; see presize.measure.watched.Watched."""

    name: str
    workers: int
    prefetch: int | None
    in_order: bool | None
    persistent: bool | None
    pinned: bool | None
    starts_s: array[float] = field(default_factory=lambda: array("d"))
    waits_s: array[float] = field(default_factory=lambda: array("d"))
    steps_s: array[float] = field(default_factory=lambda: array("d"))
    images: int = 0
    batches: int = 0
    worker_cpu_s: float = 0.0
    worker_wall_s: float = 0.0
    events: list[tuple[Any, Any]] = field(default_factory=list)
    idle_s: float = 0.0

    def watched(self) -> Watched:
        from presize.measure.watched import Watched  # brings NumPy

        self._read_events(wait=True)
        known = self.worker_wall_s > 0
        return Watched(
            name=self.name, workers=self.workers, prefetch=self.prefetch, in_order=self.in_order,
            persistent=self.persistent, pinned=self.pinned, cores=read_cpu().usable,
            images=self.images / max(self.batches, 1), starts_s=self.starts_s, waits_s=self.waits_s,
            steps_s=self.steps_s, idle_s=self.idle_s if _has_cuda() else None,
            worker_cores=self.worker_cpu_s / self.worker_wall_s if known else None,
        )  # fmt: skip

    def _read_events(self, *, wait: bool = False) -> None:
        """Add the time from the device's last work before a wait to the end of the wait, as the device saw it."""
        while self.events and (wait or _is_done(self.events[0][1])):
            before, after = self.events.pop(0)
            if wait:
                after.synchronize()
            self.idle_s += before.elapsed_time(after) / 1e3

    def mark(self) -> Any:
        if not _has_cuda():
            return None
        event = sys.modules["torch"].cuda.Event(enable_timing=True)
        event.record()
        return event

    def waited(self, before: Any) -> None:
        after = self.mark()
        if before is not None and after is not None:
            self.events.append((before, after))
            self._read_events()


def _has_cuda() -> bool:
    """Whether the script uses CUDA. Never initializes it."""
    return "torch" in sys.modules and bool(sys.modules["torch"].cuda.is_initialized())


def _is_done(event: Any) -> bool:
    return bool(event.query())


def _images_in(batch: Any) -> int:
    """How many images there are in a batch, by the length of its first tensor or array; 0 if it has none. Calls nothing
    of the script's."""
    while isinstance(batch, (list, tuple, Mapping)) and type(batch).__module__ in ("builtins", "collections"):
        parts = list(batch.values() if isinstance(batch, Mapping) else batch)
        if not parts:
            return 0
        if isinstance(parts[0], (str, bytes, int, float)):
            return len(parts)
        batch = parts[0]
    known = type(batch).__module__ in ("torch", "numpy")
    shape: Sequence[int] = batch.shape if known and hasattr(batch, "shape") else ()
    return int(shape[0]) if len(shape) else 0


class _Epoch:
    """An epoch of a loader that is being iterated."""

    def __init__(self, watch: Watch, seen: _Seen, begin_s: float) -> None:
        self.watch, self.seen, self.begin_s = watch, seen, begin_s
        self.count, self.last_s, self.looked_s, self.cpu_s = 0, begin_s, begin_s, 0.0
        self.elsewhere_s = 0.0  # in epochs of other loaders, since the last batch
        self.outer = {other: other.count for other in watch.running}
        watch.running.append(self)

    def next(self, take: Callable[[], Any], workers: Sequence[Any]) -> Any:
        seen, before = self.seen, self.seen.mark()
        asked_s = time.perf_counter()
        try:
            batch = take()
        except BaseException:
            self.end()
            raise
        now = time.perf_counter()
        if self.count == 0:
            seen.starts_s.append(now - self.begin_s)
        else:
            seen.steps_s.append(asked_s - self.last_s - self.elsewhere_s)
            seen.waits_s.append(now - asked_s)
            seen.waited(before)
        self.elsewhere_s = 0.0
        seen.images += _images_in(batch)
        seen.batches, self.count = seen.batches + 1, self.count + 1
        if workers and now - self.looked_s >= _LOOK_EVERY_S:
            self._look([worker.pid for worker in workers if worker.pid is not None], now)
        self.watch.tell_interim(seen, now)
        self.last_s = time.perf_counter()
        return batch

    def _look(self, pids: Sequence[int], now: float) -> None:
        cpu_s = (cpu_seconds(pids) - time.process_time()) / len(pids)
        if self.cpu_s:
            self.seen.worker_cpu_s += cpu_s - self.cpu_s
            self.seen.worker_wall_s += now - self.looked_s
        self.looked_s, self.cpu_s = now, cpu_s

    def end(self) -> None:
        """Leave the time of this epoch out of those that it ran within: that had no batch meanwhile."""
        if self not in self.watch.running:
            return
        self.watch.running.remove(self)
        for other, count in self.outer.items():
            if other.count == count:
                other.elsewhere_s += time.perf_counter() - self.begin_s


class Watch:
    """Times all loaders that are iterated while it is open. For the main thread of one process: a forked child times
    nothing.

    Args:
        on_interim: is called once, when a loader has given many batches.
        interim_s: but not within so many seconds of the first one.
    """

    def __init__(self, on_interim: Callable[[], None] | None = None, interim_s: float = _INTERIM_S) -> None:
        self.seen: weakref.WeakKeyDictionary[Any, _Seen] = weakref.WeakKeyDictionary()
        self.order: list[_Seen] = []
        self.running: list[_Epoch] = []
        self.pid = os.getpid()
        self.on_interim, self.interim_s, self.begin_s = on_interim, interim_s, time.perf_counter()
        self._stack = ExitStack()

    def __enter__(self) -> Watch:
        patches = {"torch.utils.data.dataloader": self._patch_torch, "presize.datasets.loader": self._patch_presize}
        later = _AfterImport({name: patch for name, patch in patches.items() if name not in sys.modules})
        for name in patches.keys() - later.calls.keys():
            patches[name](sys.modules[name])
        sys.meta_path.insert(0, later)
        self._stack.callback(sys.meta_path.remove, later)
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    def _patch_torch(self, module: Any) -> None:
        base = module._BaseDataLoaderIter
        self._patch(module.DataLoader, "__iter__", self._iter_of_dataloader(module.DataLoader.__iter__, base))
        self._patch(base, "__next__", self._next_of_dataloader(base.__next__))
        if "next" in vars(base):  # another name of it in some versions of torch
            self._patch(base, "next", base.__next__)

    def _patch_presize(self, module: Any) -> None:
        self._patch(module.Loader, "__iter__", self._iter_of_loader(module.Loader.__iter__))

    def _patch(self, owner: Any, name: str, wrapped: Callable[..., Any]) -> None:
        self._stack.callback(setattr, owner, name, getattr(owner, name))
        setattr(owner, name, wrapped)

    def tell_interim(self, seen: _Seen, now: float) -> None:
        """Call on_interim, if it is time for that."""
        if self.on_interim is None or len(seen.waits_s) < _INTERIM_BATCHES or now - self.begin_s < self.interim_s:
            return
        call, self.on_interim = self.on_interim, None
        call()

    def watched(self) -> list[Watched]:
        """What was seen until now, of each loader that gave a batch, in the order of their first ones."""
        return [seen.watched() for seen in self.order if seen.batches]

    def _begin(self, loader: Any, begin_s: float) -> _Epoch:
        seen = self.seen.get(loader)
        if seen is None:
            seen = self.seen[loader] = _seen_of(loader)
            self.order.append(seen)
        for epoch in [epoch for epoch in self.running if epoch.seen is seen]:
            epoch.end()  # left early
        return _Epoch(self, seen, begin_s)

    def _is_elsewhere(self) -> bool:
        return os.getpid() != self.pid or sys.modules["torch"].utils.data.get_worker_info() is not None

    def _iter_of_dataloader(self, original: Callable[..., Any], base: type) -> Callable[..., Any]:
        def __iter__(loader: Any) -> Any:
            begin_s = time.perf_counter()
            batches = original(loader)
            if not self._is_elsewhere() and isinstance(batches, base):
                vars(batches)["_presize_epoch"] = self._begin(loader, begin_s)
            return batches

        return __iter__

    def _next_of_dataloader(self, original: Callable[..., Any]) -> Callable[..., Any]:
        def __next__(batches: Any) -> Any:
            epoch: _Epoch | None = getattr(batches, "_presize_epoch", None)
            if epoch is None or self._is_elsewhere():
                return original(batches)
            return epoch.next(lambda: original(batches), getattr(batches, "_workers", ()))

        return __next__

    def _iter_of_loader(self, original: Callable[..., Any]) -> Callable[..., Any]:
        def __iter__(loader: Any) -> Iterator[Any]:
            if self._is_elsewhere():
                yield from original(loader)
                return
            epoch = self._begin(loader, time.perf_counter())
            batches = original(loader)
            try:
                while True:
                    try:
                        batch = epoch.next(lambda: next(batches), ())
                    except StopIteration:
                        return
                    yield batch
                    del batch
            finally:
                batches.close()

        return __iter__


class _AfterImport:
    """A finder of modules that leaves finding to the others, and calls a function with a module once it is imported."""

    def __init__(self, calls: dict[str, Callable[[ModuleType], None]]) -> None:
        self.calls = calls

    def find_spec(self, name: str, _path: Any = None, _target: Any = None) -> ModuleSpec | None:
        call = self.calls.pop(name, None)
        spec = None if call is None else importlib.util.find_spec(name)
        if call is None or spec is None or spec.loader is None:
            return None
        execute = spec.loader.exec_module

        def exec_module(module: ModuleType) -> None:
            execute(module)
            call(module)

        vars(spec.loader)["exec_module"] = exec_module
        return spec


def _seen_of(loader: Any) -> _Seen:
    dataset = type(loader.dataset).__name__
    sampler = type(getattr(loader, "sampler", None)).__name__
    if not hasattr(loader, "in_order") or sampler in ("SequentialSampler", "RandomSampler"):  # which ask for it, too
        dataset += f" with {plural(len(loader.dataset), 'sample')}"
    name = f"{type(loader).__name__} over {dataset}, {plural(loader.num_workers, 'worker')}"
    if not hasattr(loader, "in_order"):  # a Loader of presize
        return _Seen(name, loader.num_workers, loader.prefetch_factor, None, None, None)
    pinned = loader.pin_memory if sys.modules["torch"].cuda.is_available() else None
    return _Seen(name, loader.num_workers, loader.prefetch_factor, loader.in_order, loader.persistent_workers, pinned)


def run_script(script: str, arguments: Sequence[str], watch: Watch, on_end: Callable[[], None]) -> int:
    """Run a script as ``python SCRIPT ARGUMENTS`` does, and return its exit code; -SIGINT for one that Ctrl-C ended. An
    error that it raises is shown as Python shows it, without our frames.

    Args:
        script: its path.
        arguments: what follows it in sys.argv.
        watch: is open while it runs.
        on_end: called when it has ended, in this process alone, whatever ended it; and before it is replaced by
            another program (os.exec), or ends itself (os._exit).
    """
    path, argv = sys.path[:], sys.argv[:]
    sys.argv = [script, *arguments]
    if not sys.flags.safe_path:
        sys.path[0] = os.path.dirname(os.path.realpath(script))
    try:
        with watch, _before_exec(lambda: on_end() if os.getpid() == watch.pid else None):
            runpy.run_path(script, run_name="__main__")
        code: Any = 0
    except SystemExit as end:
        code = end.code
    except BaseException as error:
        trace = _of_script(error.__traceback__, script)
        sys.excepthook(type(error), error.with_traceback(trace), trace)
        code = -signal.SIGINT if isinstance(error, KeyboardInterrupt) else 1
    finally:
        sys.path[:], sys.argv = path, argv
        if os.getpid() == watch.pid:
            on_end()
    if code is None or isinstance(code, int):
        return code or 0
    sys.stderr.write(f"{code}\n")
    return 1


def _of_script(trace: TracebackType | None, script: str) -> TracebackType | None:
    """The part of a traceback from the script on; None where it has not begun, as with a syntax error."""
    while trace is not None and trace.tb_frame.f_code.co_filename != script:
        trace = trace.tb_next
    return trace


@contextmanager
def _before_exec(call: Callable[[], None]) -> Iterator[None]:
    """Call before this process is replaced, or ends without Python's clean-up."""
    originals = {name: getattr(os, name) for name in ("execv", "execve", "_exit")}

    def wrap(original: Callable[..., Any]) -> Callable[..., Any]:
        def execute(*arguments: Any, **named: Any) -> Any:
            if original is originals["_exit"] or os.access(arguments[0], os.X_OK):  # execlp tries each folder of PATH
                call()
            return original(*arguments, **named)

        return execute

    try:
        for name, original in originals.items():
            setattr(os, name, wrap(original))
        yield
    finally:
        for name, original in originals.items():
            setattr(os, name, original)


def share_with_ranks(mine: list[dict[str, Any]]) -> list[dict[str, Any] | None] | None:
    """Among the processes of a run that torchrun started on this machine: hand over what this rank found, by a file.

    Returns:
        For the first local rank, what each rank found of its first loader, None for one that had none, or did not end
        in time; None for the others. Without torchrun, an empty list.
    """
    rank, ranks = int(os.environ.get("LOCAL_RANK", "0")), int(os.environ.get("LOCAL_WORLD_SIZE", "1"))
    if ranks == 1:
        return []
    names = ("TORCHELASTIC_RUN_ID", "MASTER_PORT", "TORCHELASTIC_RESTART_COUNT")
    run = "-".join(os.environ.get(name, "") for name in names)
    folder = Path(tempfile.gettempdir(), f"presize-diagnose-{os.getuid()}-{os.getppid()}-{run}")
    folder.mkdir(mode=0o700, exist_ok=True)
    write_atomically(folder / f"{rank}.json", json.dumps(mine[0] if mine else None).encode())
    if rank != 0:
        return None
    deadline = time.monotonic() + _RANKS_WAIT_S
    files = [folder / f"{number}.json" for number in range(ranks)]
    while not all(file.exists() for file in files) and time.monotonic() < deadline:
        time.sleep(0.05)
    found = [json.loads(file.read_text()) if file.exists() else None for file in files]
    for file in files:
        file.unlink(missing_ok=True)
    with suppress(OSError):
        folder.rmdir()
    return found
