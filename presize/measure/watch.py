"""Run a user's script as Python would, time how long it waits for the batches of its loaders, and say what to try.

The script runs in this process, unchanged. This module never imports torch or NumPy before the script does, because
scripts may set environment variables first. torch's DataLoader and presize's Loader are patched after their import.
"""

from __future__ import annotations

import importlib.util
import io
import json
import math
import os
import signal
import sys
import tempfile
import time
import weakref
from array import array
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, closing, contextmanager, suppress
from dataclasses import asdict, dataclass, field
from importlib.machinery import ModuleSpec
from pathlib import Path
from types import ModuleType
from typing import Any

from presize.formatting import factor_text, ordinal, plural, printable, seconds_text
from presize.measure.stages import (
    UNKNOWN_ERROR,
    Interval,
    bottleneck,
    bottleneck_words,
    factor_interval,
    percentile,
    rate_interval,
    regular_stops,
)
from presize.system.files import AGAIN, write_atomically
from presize.system.resources import cpu_seconds, read_cpu

_LEAST_BATCHES = 10  # needed for a verdict, without the first batch of each epoch
_LOOK_EVERY_S = 1.0  # interval of reading the CPU time of workers
_INTERIM_S, _INTERIM_BATCHES = 60.0, 100  # an interim verdict is printed after both
_RANKS_WAIT_S = 10.0  # the first rank waits at most this long, at its end, for the results of the others

_SLOW_SHARE, _NOTHING_ELSE, _LONG_START = 0.6, 0.99, 0.05
_BUSY, _IDLE = 0.85, 0.5  # shares of a core: a worker is at its limit from the first on, and idle below the second


@dataclass(eq=False)
class Watched:
    name: str
    workers: int
    prefetch: int | None
    in_order: bool | None = None  # options of a DataLoader; None if they cannot be chosen, or cannot help
    persistent: bool | None = None
    pinned: bool | None = None
    cores: float = field(default_factory=lambda: read_cpu().usable)  # usable by this process
    starts_s: array[float] = field(default_factory=lambda: array("d"))  # wait for the first batch of each epoch
    waits_s: array[float] = field(default_factory=lambda: array("d"))  # wait for each other batch
    # From each batch to the request of the next one, without epochs of other loaders in between.
    steps_s: array[float] = field(default_factory=lambda: array("d"))
    last_steps_s: array[float] = field(default_factory=lambda: array("d"))  # after the last batches of whole epochs
    all_images: int = 0  # in all batches; 0 if not known
    idle_s: float | None = None  # part of `waits_s` in which the GPU was idle; None without CUDA
    worker_cpu_s: float = 0.0  # mean CPU time of a worker, and the time over which it was measured
    worker_wall_s: float = 0.0
    events: deque[tuple[Any, Any]] = field(default_factory=deque)  # CUDA events around waits, not yet counted

    @classmethod
    def of(cls, loader: Any) -> Watched:
        dataset = type(loader.dataset).__name__
        batches = getattr(loader, "batch_sampler", None)  # the script's own leaves loader.sampler unused
        sampler = type(getattr(loader if batches is None else batches, "sampler", None)).__name__
        is_presize = not hasattr(loader, "in_order")
        if is_presize or sampler in ("SequentialSampler", "RandomSampler"):  # these call len(), too
            dataset += f" with {plural(len(loader.dataset), 'sample')}"
        name = f"{type(loader).__name__} over {dataset}, {plural(loader.num_workers, 'worker')}"
        if is_presize:
            return cls(name, loader.num_workers, loader.prefetch_factor)
        pinned = loader.pin_memory if sys.modules["torch"].cuda.is_available() else None
        return cls(name, loader.num_workers, loader.prefetch_factor, loader.in_order, loader.persistent_workers, pinned)

    @property
    def batches(self) -> int:
        return len(self.starts_s) + len(self.waits_s)

    def known(self) -> dict[str, Any]:
        """Return the measurements as plain values of JSON: rates, shares of the time, a `headline`, and `sentences` on
        what to try. With too few batches `headline` is None and `sentences` is empty."""
        all_steps_s = [*self.steps_s, *self.last_steps_s]
        starts_s, waits_s, steps_s = map(sum, (self.starts_s, self.waits_s, all_steps_s))
        seconds = starts_s + waits_s + steps_s
        # Waiting does not count while the GPU still works.
        wait = (starts_s + (waits_s if self.idle_s is None else self.idle_s)) / (seconds or 1)
        start = starts_s / (seconds or 1)
        images, is_known = self.all_images / max(self.batches, 1), len(self.waits_s) >= _LEAST_BATCHES
        headline = f"{bottleneck_words(1 - wait)}: training waits {wait:.0%} of the time for batches"
        return {
            "name": self.name,
            "bottleneck": bottleneck(1 - wait),
            "wait": wait,
            "start": start,
            "batches": self.batches,
            "images": images,
            "unit": "images" if images else "batches",
            "seconds": seconds,
            "workers": self.workers,
            "worker_cores": self.worker_cores,
            "headline": headline if is_known else None,
            "sentences": list(self._sentences(wait, start, seconds)) if is_known else [],
            "images_per_s": asdict(self._rate(images or 1)),
            "epochs": len(self.starts_s),
            "step_s": steps_s / max(len(all_steps_s), 1),
            "wait_s": waits_s / max(len(self.waits_s), 1),
            "wait_p50_s": percentile(self.waits_s, 50) if self.waits_s else None,
            "wait_p99_s": percentile(self.waits_s, 99) if self.waits_s else None,
        }

    @property
    def worker_cores(self) -> float | None:
        """Mean number of cores that a worker kept busy; None if not known."""
        return self.worker_cpu_s / self.worker_wall_s if self.worker_wall_s else None

    def _rate(self, images: float) -> Interval:
        """Return the rate between the first and the last batch of epochs, from the rates of tenths of all batches."""
        times = [wait + step for wait, step in zip(self.waits_s, self.steps_s, strict=False)]
        size = max(len(times) // 10, 2 * self.workers, 1)  # workers that start together deliver together
        tenths = [sum(times[at : at + size]) for at in range(0, len(times) - size + 1, size)]
        rates = [images * size / seconds for seconds in tenths if seconds > 0]
        return Interval.of(rates) if rates else Interval(0.0, UNKNOWN_ERROR)

    def _sentences(self, wait: float, start: float, seconds: float) -> Iterator[str]:
        """Yield observations, and what to try."""
        if wait > _NOTHING_ELSE:
            yield "The script does next to nothing but wait for batches."
        else:
            yield f"If loading cost nothing, training would be {factor_text(1 / (1 - wait))} times as fast."
        every = regular_stops(self.waits_s, 2 * (self.workers or 1), seconds)
        if every:
            yield f"It stops before every {ordinal(every)} batch: workers that start together deliver together."
        busy = self.worker_cores if self.workers else None
        if busy is not None:
            yield f"Each worker keeps {busy:.0%} of a core busy."
        if bottleneck(1 - wait) == "compute":
            return
        waits_s = sorted(self.waits_s, reverse=True)
        slow = sum(waits_s[: len(waits_s) // 10]) / (sum(waits_s) or 1)
        if self.workers > 1 and self.prefetch and slow >= _SLOW_SHARE and not every:
            also = " or in_order=False (the order of samples then varies)" if self.in_order else ""
            yield (
                f"{slow:.0%} of the waiting is for one batch in ten: slow batches hold up the others. "
                f"Try prefetch_factor={2 * self.prefetch}{also}."
            )
        spare = int(self.cores - self.workers)
        if self.workers == 0:
            yield f"Try num_workers={max(1, min(4, spare))}: at present, batches are made between steps."
        elif busy is not None and busy >= _BUSY and spare >= 1:
            cores = plural(self.cores - self.workers, "core")
            yield f"Try num_workers={self.workers + spare}: the workers are at their limit, with {cores} left."
        elif busy is not None and busy >= _BUSY:
            yield "The workers and the cores are at their limit: reduce the work per image, for example by presizing."
        elif busy is not None and busy < _IDLE:
            yield "The workers also wait: for the disk, for cores, or for training to take their batches."
        if start >= _LONG_START:
            again = self.persistent is False and self.workers and len(self.starts_s) > 1
            how = "Try persistent_workers=True: " if again else ""
            yield f"{how}{start:.0%} of the time passes before the first batch of an epoch."
        if self.pinned is False:
            yield "Try pin_memory=True: batches are copied to the GPU from pageable memory."

    def count_events(self, *, wait: bool = False) -> None:
        """Add to `idle_s` the time from the end of the device's work before a wait to the end of the wait."""
        while self.events and (wait or self.events[0][1].query()):
            before, after = self.events.popleft()
            if wait:
                after.synchronize()
            self.idle_s = (self.idle_s or 0.0) + before.elapsed_time(after) / 1e3


def watched_text(found: Sequence[dict[str, Any]], ranks: Sequence[dict[str, Any] | None] = ()) -> str:
    """Return the verdicts. `found`: Watched.known of each loader; `ranks`: that of the first loader of each rank."""
    lines: list[str] = []
    for one in found:
        lines.append(f"{printable(one['name'])}:")
        batches = plural(one["batches"], "batch", "batches")
        if one["headline"] is None:
            lines.append(f"  {batches}: too few for a verdict.")
            continue
        of = f" of {one['images']:.0f}" if one["images"] else ""
        lines += [f"  {one['headline']}.", *(f"  {sentence}" for sentence in one["sentences"])]
        lines.append(
            f"  {rate_interval(Interval(**one['images_per_s']))} {one['unit']}/s in {batches}{of}; "
            f"per batch {seconds_text(one['step_s'])} in the body of the loop, including the step, then "
            f"{seconds_text(one['wait_s'])} of waiting."
        )
    if not found:
        lines.append("No DataLoader or Loader was iterated: there is nothing to diagnose.")
    waits = {rank: known["wait"] for rank, known in enumerate(ranks) if known is not None}
    if len(waits) > 1:
        slowest, least = max(waits, key=waits.__getitem__), min(waits.values())
        shares = ", ".join(f"{rank}: {wait:.0%}" for rank, wait in waits.items())
        lines.append(f"Ranks wait for batches (share of the time): {shares}.")
        if waits[slowest] > 2 * least and waits[slowest] - least > 1 - _BUSY:
            lines.append(f"Rank {slowest} is the straggler: the others wait for it in each step.")
    return "\n".join(lines)


def compared_text(before: dict[str, Any], after: dict[str, Any]) -> str:
    """Return the changes between two results of ``diagnose --json``, by loader. Raises KeyError for anything else."""
    lines = []
    olds, news = (found.get("loaders", [{**found, "name": "training"}]) for found in (before, after))
    for old, new in zip(olds, news, strict=False):
        name = printable(old["name"])
        was, now = (Interval(**one["images_per_s"]) for one in (old, new))
        if not was.value or not now.value:
            lines.append(f"{name}: too few batches to compare")
            continue
        gain = Interval(now.value / was.value, (was.error**2 + now.error**2) ** 0.5)
        verdict = "faster" if gain.low > 1 else "slower" if gain.high < 1 else "the difference could be due to chance"
        lines.append(
            f"{name}: {rate_interval(was)} → {rate_interval(now)} {old.get('unit', 'images')}/s, "
            f"a factor of {factor_interval(gain)}: {verdict}"
        )
        waits = (one["wait"] if "wait" in one else 1 - one["utilisation"] for one in (old, new))
        lines.append(f"  waiting for batches: {' → '.join(f'{wait:.0%}' for wait in waits)} of the time")
    return "\n".join(lines)


def _mark() -> Any:
    """Record an event on the device and return it; None unless the script uses CUDA. Never initializes CUDA."""
    if "torch" not in sys.modules or not sys.modules["torch"].cuda.is_initialized():
        return None
    event = sys.modules["torch"].cuda.Event(enable_timing=True)
    event.record()
    return event


def images_in(batch: Any) -> int:
    """Return the number of images in a batch: the length of its first tensor or array or, if that is a single image,
    of the list that holds one for each; 0 if not known. Runs no user code."""
    lists: list[Any] = []
    depth = 0
    while isinstance(batch, (list, tuple, Mapping)) and type(batch).__module__ in ("builtins", "collections"):
        if not isinstance(batch, Mapping):
            lists.append(batch)
        batch = next(iter(batch.values() if isinstance(batch, Mapping) else batch), None)
        depth += 1
    shape = _shape_of(batch)
    is_one_image = depth > 1 and len(shape) == 3 and not {1, 3, 4}.isdisjoint((shape[0], shape[2]))
    if isinstance(batch, (str, bytes, int, float)) or is_one_image:
        for samples in reversed(lists):  # [(image, label), ...] and (images, labels) are both common
            if len({(type(one), len(_shape_of(one))) for one in samples}) == 1:
                return len(samples)
    return int(shape[0]) if shape else 0


def _shape_of(value: Any) -> tuple[int, ...]:
    return tuple(value.shape) if type(value).__module__ in ("torch", "numpy") and hasattr(value, "shape") else ()


def covered_s(intervals: Sequence[tuple[float, float]]) -> float:
    """Return the length of the union of intervals, each with its begin and its end."""
    total_s, until_s = 0.0, -math.inf
    for begin_s, end_s in sorted(intervals):
        total_s += max(end_s - max(begin_s, until_s), 0.0)
        until_s = max(until_s, end_s)
    return total_s


class _Epoch:
    def __init__(self, watch: Watch, seen: Watched, begin_s: float) -> None:
        self.watch, self.seen, self.begin_s = watch, seen, begin_s
        self.opening_s = time.perf_counter() - begin_s  # the script may then do other work before next()
        self.count, self.last_s, self.looked_s, self.cpu_s = 0, begin_s, begin_s, 0.0
        self.elsewhere: list[tuple[float, float]] = []  # begin and end of epochs of other loaders since the last batch
        self.outer = {other: other.count for other in watch.running}
        watch.running.append(self)

    def next(self, take: Callable[[], Any], workers: Sequence[Any] = ()) -> Any:
        seen, before = self.seen, _mark()
        asked_s = time.perf_counter()
        for other in self.watch.running:
            if other.outer.get(self) == self.count:  # it was left early, or goes on later
                self.elsewhere.append((other.begin_s, other.last_s))
        step_s = asked_s - self.last_s - covered_s(self.elsewhere)
        try:
            batch = take()
        except BaseException as error:
            if self.count and isinstance(error, StopIteration):
                seen.last_steps_s.append(step_s)
            self.end()
            raise
        now = time.perf_counter()
        if self.count == 0:
            seen.starts_s.append(self.opening_s + now - asked_s)
        else:
            seen.steps_s.append(step_s)
            seen.waits_s.append(now - asked_s)
            if before is not None:
                seen.events.append((before, _mark()))
                seen.count_events()
        self.elsewhere.clear()
        seen.all_images += images_in(batch)
        self.count += 1
        if workers and now - self.looked_s >= _LOOK_EVERY_S:
            self._look(workers, now)
        watch = self.watch
        if len(seen.waits_s) >= _INTERIM_BATCHES and now - watch.begin_s >= watch.interim_s:
            call, watch.on_interim = watch.on_interim, None
            if call is not None:
                call()
        self.last_s = time.perf_counter()
        return batch

    def _look(self, workers: Sequence[Any], now: float) -> None:
        """Add the CPU time of the workers since the last call."""
        pids = [worker.pid for worker in workers if worker.pid is not None]
        cpu_s = (cpu_seconds(pids) - time.process_time()) / len(pids)
        if self.cpu_s:
            self.seen.worker_cpu_s += cpu_s - self.cpu_s
            self.seen.worker_wall_s += now - self.looked_s
        self.looked_s, self.cpu_s = now, cpu_s

    def end(self) -> None:
        """End the epoch. Subtract its time from enclosing epochs of other loaders that got no batch meanwhile."""
        if self not in self.watch.running:
            return
        self.watch.running.remove(self)
        for other, count in self.outer.items():
            if other.count == count:
                other.elsewhere.append((self.begin_s, time.perf_counter()))


class Watch:
    """Context manager that times all loaders iterated within it. For the main thread of one process; forked children
    time nothing. Calls `on_interim` once, after `interim_s`, when a loader has given many batches."""

    def __init__(self, on_interim: Callable[[], None] | None = None, interim_s: float = _INTERIM_S) -> None:
        self.seen: weakref.WeakKeyDictionary[Any, Watched] = weakref.WeakKeyDictionary()
        self.order: list[Watched] = []
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

    def _patch(self, owner: Any, name: str, wrapped: Callable[..., Any]) -> None:
        self._stack.callback(setattr, owner, name, getattr(owner, name))
        setattr(owner, name, wrapped)

    def _patch_torch(self, module: Any) -> None:
        base, iterate = module._BaseDataLoaderIter, module.DataLoader.__iter__
        take = base.__next__

        def __iter__(loader: Any) -> Any:
            begin_s = time.perf_counter()
            batches = iterate(loader)
            if not self._is_elsewhere() and isinstance(batches, base):
                epoch = vars(batches)["_presize_epoch"] = self._begin(loader, begin_s)
                weakref.finalize(batches, epoch.end).atexit = False  # an epoch that is left early ends there
            return batches

        def __next__(batches: Any) -> Any:
            epoch: _Epoch | None = getattr(batches, "_presize_epoch", None)
            if epoch is None or self._is_elsewhere():
                return take(batches)
            return epoch.next(lambda: take(batches), getattr(batches, "_workers", ()))

        self._patch(module.DataLoader, "__iter__", __iter__)
        for name in {"__next__", "next"} & vars(base).keys():  # "next" in some versions of torch
            self._patch(base, name, __next__)

    def _patch_presize(self, module: Any) -> None:
        iterate = module.Loader.__iter__

        def __iter__(loader: Any) -> Iterator[Any]:
            if self._is_elsewhere():
                yield from iterate(loader)
                return
            epoch = self._begin(loader, time.perf_counter())
            try:
                with closing(iterate(loader)) as batches, suppress(StopIteration):
                    while True:
                        yield epoch.next(lambda: next(batches))
            finally:
                epoch.end()

        self._patch(module.Loader, "__iter__", __iter__)

    def _begin(self, loader: Any, begin_s: float) -> _Epoch:
        seen = self.seen.get(loader)
        if seen is None:
            seen = self.seen[loader] = Watched.of(loader)
            self.order.append(seen)
        for epoch in [epoch for epoch in self.running if epoch.seen is seen]:
            epoch.end()  # it was left early
        return _Epoch(self, seen, begin_s)

    def _is_elsewhere(self) -> bool:
        return os.getpid() != self.pid or sys.modules["torch"].utils.data.get_worker_info() is not None

    def watched(self) -> list[Watched]:
        """Return the measurements so far of loaders that gave a batch, in the order of their first iteration."""
        for seen in self.order:
            with suppress(RuntimeError):  # after an error of the device, events cannot be read
                seen.count_events(wait=True)
        return [seen for seen in self.order if seen.batches]


class _AfterImport:
    """Module finder that delegates finding to the others, and calls a function with the module after its import."""

    def __init__(self, calls: dict[str, Callable[[ModuleType], None]]) -> None:
        self.calls = calls

    def find_spec(self, name: str, _path: Any = None, _target: Any = None) -> ModuleSpec | None:
        call = self.calls.pop(name, None)
        spec = importlib.util.find_spec(name) if call else None
        if call is None or spec is None or spec.loader is None:
            return None
        execute = spec.loader.exec_module

        def exec_module(module: ModuleType) -> None:
            execute(module)
            call(module)

        vars(spec.loader)["exec_module"] = exec_module
        return spec


def run_script(script: str, arguments: Sequence[str], watch: Watch, on_end: Callable[[], None]) -> int:
    """Run a script as ``python SCRIPT ARGUMENTS`` does, within `watch`, and return its exit code; -SIGINT if Ctrl-C
    stopped it. Prints errors as Python does, without frames of presize. Calls `on_end` once, in this process only,
    however the script ends, and also before os.exec* and os._exit."""
    path, argv, name = sys.path[:], sys.argv[:], os.path.abspath(script)
    sys.argv = [script, *arguments]
    if not sys.flags.safe_path:
        sys.path[0] = os.path.dirname(os.path.realpath(script))

    def end() -> None:
        if os.getpid() == watch.pid:
            on_end()

    code: Any = 0
    try:
        with watch, _before_exec(end):
            _run_as_main(name)
    except SystemExit as exit:
        code = exit.code
    except BaseException as error:
        trace = error.__traceback__  # from the script on; none if the script has not started, as on a syntax error
        while trace is not None and trace.tb_frame.f_code.co_filename != name:
            trace = trace.tb_next
        sys.excepthook(type(error), error.with_traceback(trace), trace)
        code = -signal.SIGINT if isinstance(error, KeyboardInterrupt) else 1
    finally:
        sys.path[:], sys.argv = path, argv
        end()
    if code is None or isinstance(code, int):
        return code or 0
    sys.stderr.write(f"{code}\n")
    return 1


def _run_as_main(path: str) -> None:
    """Run a file as `python FILE` does, whose ``__file__`` is absolute. runpy would also change sys.argv[0]."""
    with io.open_code(path) as file:
        code = compile(file.read(), path, "exec", dont_inherit=True)
    main, ours = ModuleType("__main__"), sys.modules["__main__"]
    vars(main).update(__file__=path, __cached__=None)
    sys.modules["__main__"] = main
    try:
        exec(code, vars(main))
    finally:
        sys.modules["__main__"] = ours


@contextmanager
def _before_exec(call: Callable[[], None]) -> Iterator[None]:
    """Call `call` before this process is replaced by os.exec*, or ends by os._exit."""

    def wrap(original: Callable[..., Any], is_exit: bool) -> Callable[..., Any]:
        def execute(*arguments: Any, **named: Any) -> Any:
            if is_exit or os.access(arguments[0], os.X_OK):  # execlp tries each folder of PATH
                call()
            return original(*arguments, **named)

        return execute

    with ExitStack() as stack:
        for name in ("execv", "execve", "_exit"):
            stack.callback(setattr, os, name, getattr(os, name))
            setattr(os, name, wrap(getattr(os, name), name == "_exit"))
        yield


def share_with_ranks(mine: list[dict[str, Any]]) -> list[dict[str, Any] | None] | None:
    """Send the result of this rank, in a file, to the first rank that torchrun started on this machine. Returns there
    the result for the first loader of each rank, with None for ranks without a loader and ranks that did not end in
    time; on other ranks None; without torchrun an empty list."""
    rank, ranks = int(os.environ.get("LOCAL_RANK", "0")), int(os.environ.get("LOCAL_WORLD_SIZE", "1"))
    if ranks == 1:
        return []
    names = ("TORCHELASTIC_RUN_ID", "MASTER_PORT", "TORCHELASTIC_RESTART_COUNT")
    run = "-".join(os.environ.get(name, "") for name in names)
    folder = Path(tempfile.gettempdir(), f"presize-diagnose-{os.getuid()}-{os.getppid()}-{run}")
    folder.mkdir(mode=0o700, exist_ok=True)
    write_atomically(folder / f"{rank}.json", json.dumps(mine[0] if mine else None).encode(), AGAIN)
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
