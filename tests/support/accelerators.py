"""Simulated accelerator behind torch's interface of all accelerators.

Streams are threads that work late and in order. The allocator reuses freed memory for the next tensor at once. Copies
from pinned memory arrive late, with garbage until then. Tensors on the device are CPU tensors over its blocks.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import queue
import threading
import time
import weakref
from collections.abc import Callable
from functools import partial
from types import SimpleNamespace
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

_GARBAGE = 0xAB


class _Event:
    def __init__(self) -> None:
        self._done = threading.Event()
        self._done.set()

    def record(self, stream: _Stream) -> None:
        self._stream = stream
        self._done = done = threading.Event()

        def reach() -> None:
            self.at_s = time.perf_counter()
            done.set()

        stream.put(reach)

    def elapsed_time(self, later: _Event) -> float:
        return 1e3 * (later.at_s - self.at_s)

    def query(self) -> bool:
        return self._done.is_set()

    def synchronize(self) -> None:
        if self._stream is self._stream.device.default:
            self._stream.device.gate.set()
        if not self._done.wait(20):
            raise TimeoutError("an event that never comes")


class _Stream:
    """Stream that works in order in its own thread. As a context manager, it is the current stream."""

    def __init__(self, device: Accelerator) -> None:
        self.device = device
        self.free: list[_Block] = []  # blocks for the stream's allocator
        self._waiting: queue.Queue[Callable[[], object]] = queue.Queue()
        threading.Thread(target=self._run, daemon=True).start()

    def _run(self) -> None:
        while True:
            self._waiting.get()()

    def put(self, work: Callable[[], object]) -> None:
        self.device.check_process()
        self._waiting.put(work)

    def synchronize(self) -> None:
        event = _Event()
        event.record(self)
        event.synchronize()

    def __enter__(self) -> None:
        self._before, self.device.stream = self.device.stream, self

    def __exit__(self, *_: object) -> None:
        self.device.stream = self._before


class _Block:
    """A block of device memory."""

    def __init__(self, nbytes: int) -> None:
        self.memory = np.empty(nbytes, np.uint8)
        self.users: list[_Stream] = []
        self.events: list[_Event] = []  # other streams may reuse the memory only after these


class Accelerator:
    """A device of type `kind`: "cuda", "xpu", or "mps", which copies synchronously. `patch` is a pytest.MonkeyPatch.

    `pinned` has the sizes of pinned ranges by address, `registered` of all ranges ever pinned; `copies` and `pageable`
    count copies from pinned and from pageable memory; `refuses` is the error of registering memory, 0 for none. Steps
    wait for `gate`, which waiting for a step opens. `problems` lists races that a real device would usually not reveal.
    """

    def __init__(self, patch: Any, kind: str = "cuda") -> None:
        self.kind, self._pid = kind, os.getpid()
        self.pinned: dict[int, int] = {}
        self.registered: list[int] = []
        self.on_register: Callable[[], object] = lambda: None
        self.refuses = self.copies = self.pageable = self.in_use = self.most_waiting = 0
        self.copy_s, self.gate = 0.003, threading.Event()
        self.gate.set()
        self._waiting = 0
        self.out_of_memory_in: int | None = None
        self.problems: list[str] = []
        self._blocks: dict[int, _Block] = {}
        self._lock = threading.Lock()  # prevents unpinning during a copy
        self.stream = self.default = _Stream(self)
        self._plain_to: Any = torch.Tensor.to
        self._plain_pin: Any = torch.Tensor.pin_memory
        here = {
            "is_available": lambda: True, "current_accelerator": lambda: torch.device(kind), "device_count": lambda: 1,
            "current_device_index": lambda: 0, "current_stream": lambda _=None: self.stream,
            "synchronize": lambda _: self.finish(), "set_device_index": lambda _: None,
        }  # fmt: skip
        for name, function in here.items():
            patch.setattr(torch.accelerator, name, function)
        patch.setattr(torch, "Stream", lambda _: _Stream(self))
        patch.setattr(torch, "Event", lambda *_, **__: self._event())
        about = SimpleNamespace(name=f"simulated {kind}", total_memory=1 << 34, major=9, minor=0)
        known = {} if kind == "mps" else {"get_device_properties": lambda _: about}
        patch.setattr(torch, "get_device_module", lambda _: SimpleNamespace(**known))
        patch.setattr(torch.cuda, "device", contextlib.nullcontext)
        runtime = SimpleNamespace(cudaHostRegister=self._register, cudaHostUnregister=self._unregister)
        patch.setattr(torch.cuda, "cudart", lambda: runtime)
        patch.setattr(torch.Tensor, "to", lambda tensor, *to, **how: self._to(tensor, *to, **how))
        patch.setattr(torch.Tensor, "pin_memory", lambda tensor: self._pin(tensor))
        patch.setattr(torch.Tensor, "record_stream", lambda tensor, stream: self._record(tensor, stream))

    def step(self, batch: torch.Tensor) -> None:
        """Queue work on a batch that reads its memory late, and like kernels holds no reference to it."""
        memory = self._blocks[batch.data_ptr()].memory
        before = memory.copy()
        self._waiting += 1
        self.most_waiting = max(self.most_waiting, self._waiting)

        def compute() -> None:
            self.gate.wait(20)
            self._waiting -= 1
            if not np.array_equal(memory, before):
                self.problems.append("the memory of a batch was used again under a step")

        self.stream.put(compute)

    def finish(self) -> None:
        """Wait for all steps."""
        self.default.synchronize()

    def check_process(self) -> None:
        """Raise in a forked child, as CUDA does."""
        if os.getpid() != self._pid:
            raise RuntimeError("Cannot re-initialize CUDA in forked subprocess")

    def _event(self) -> _Event:
        if self.kind == "mps":
            self.problems.append("an event, which may hang")
        return _Event()

    def _register(self, address: int, nbytes: int, _: int) -> int:
        self.on_register()
        if not self.refuses:
            self.registered.append(nbytes)
            self.pinned[address] = nbytes
        return self.refuses

    def _unregister(self, address: int) -> int:
        with self._lock:
            del self.pinned[address]
        return 0

    def _pin(self, tensor: torch.Tensor) -> torch.Tensor:
        if self.refuses:
            raise RuntimeError("cannot pin memory")
        if self.kind == "mps":
            self.problems.append("memory was pinned for nothing")
        copy = tensor.clone()
        self._register(copy.data_ptr(), copy.nbytes, 0)
        weakref.finalize(copy, self._unregister, copy.data_ptr()).atexit = False
        return copy

    def _is_pinned(self, address: int, nbytes: int) -> bool:
        return any(begin <= address and address + nbytes <= begin + size for begin, size in [*self.pinned.items()])

    def _record(self, tensor: torch.Tensor, stream: _Stream) -> None:
        if tensor.nbytes:
            self._blocks[tensor.data_ptr()].users.append(stream)

    def _allocate(self, nbytes: int) -> npt.NDArray[np.uint8]:
        if self.out_of_memory_in is not None:
            self.out_of_memory_in -= 1
            if self.out_of_memory_in < 0:
                raise torch.OutOfMemoryError("out of memory")
        free = self.stream.free
        fits = [block for block in free if len(block.memory) == nbytes and all(event.query() for event in block.events)]
        if fits:
            block = fits[0]
            free.remove(block)
        else:
            block = _Block(nbytes)
        array = block.memory[:]
        self.in_use += 1
        self._blocks[array.ctypes.data] = block
        weakref.finalize(array, self._release, block, self.stream).atexit = False
        return array

    def _release(self, block: _Block, owner: _Stream) -> None:
        """Free memory for the tensors of its stream at once, and for other streams after their current work."""
        self.in_use -= 1
        block.events = [_Event() for _ in block.users]
        for event, stream in zip(block.events, block.users, strict=True):
            event.record(stream)
        block.users = []
        owner.free.append(block)

    def _to(self, tensor: torch.Tensor, *to: Any, non_blocking: bool = False, **how: Any) -> torch.Tensor:
        if not any(isinstance(each, torch.device) and each.type == self.kind for each in to):
            return self._plain_to(tensor, *to, non_blocking=non_blocking, **how)  # type: ignore[no-any-return]
        self.check_process()
        if len(to) > 1:  # includes a type
            return self._plain_to(tensor, to[1])  # type: ignore[no-any-return]
        if self.kind == "mps" and non_blocking:
            self.problems.append("a copy was not waited for")
        strides = torch.empty_like(tensor, device="meta").stride()
        if strides != tensor.stride():
            self.problems.append("a batch is more than one copy")
        array, source, nbytes = self._allocate(tensor.nbytes), tensor.data_ptr(), tensor.nbytes
        arrived = torch.from_numpy(array).view(tensor.dtype).as_strided(tensor.shape, strides)
        if not nbytes or not non_blocking or not self._is_pinned(source, nbytes):
            self.pageable += bool(nbytes)
            arrived.copy_(tensor)
        else:
            self.copies += 1
            if self.stream is self.default:
                self.problems.append("a copy is on the stream of the caller")
            before = bytes(ctypes.string_at(source, nbytes))
            self.stream.put(partial(self._arrive, array.ctypes.data, source, before, weakref.ref(tensor)))
        if type(tensor) is torch.Tensor:
            return arrived
        of_class = tensor.detach()
        of_class.data = arrived
        return of_class

    def _arrive(self, to: int, source: int, before: bytes, tensor: weakref.ref[torch.Tensor]) -> None:
        """Copy to a block, which is never freed, from a source without keeping a reference to it."""
        ctypes.memset(to, _GARBAGE, len(before))
        time.sleep(self.copy_s)
        with self._lock:
            if tensor() is None or not self._is_pinned(source, len(before)):
                self.problems.append("a source was freed before it was copied")
            elif ctypes.string_at(source, len(before)) != before:
                self.problems.append("a source was changed before it was copied")
            else:
                ctypes.memmove(to, source, len(before))
