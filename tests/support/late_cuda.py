"""A torch.cuda that is not there: what is copied from pinned memory arrives late, and is garbage until then."""

from __future__ import annotations

import contextlib
import ctypes
import queue
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch

_COPY_S = 0.003


class _Event:
    def __init__(self) -> None:
        self._done = threading.Event()
        self.synchronize = self._done.wait
        self.reached = self._done.set


class _Stream:
    """Works in a thread of its own, in order."""

    def __init__(self, _: object = None) -> None:
        self._waiting: queue.Queue[Callable[[], object]] = queue.Queue()
        threading.Thread(target=self._run, daemon=True).start()

    def _run(self) -> None:
        while True:
            self._waiting.get()()

    def put(self, work: Callable[[], object]) -> None:
        self._waiting.put(work)

    def record_event(self) -> _Event:
        event = _Event()
        self.put(event.reached)
        return event

    def synchronize(self) -> None:
        self.record_event().synchronize()


class LateCuda:
    """What the driver of such a device saw.

    Attributes:
        pinned: the sizes of pinned ranges, by address.
        copies: how many copies from these there were.
        problems: copies whose source was unpinned before they arrived.
    """

    def __init__(self, patch: pytest.MonkeyPatch) -> None:
        self.pinned: dict[int, int] = {}
        self.copies = 0
        self.problems: list[str] = []
        self._current = self._default = _Stream()
        self._plain_to: Any = torch.Tensor.to
        patch.setattr(torch.cuda, "is_available", lambda: True)
        patch.setattr(torch.cuda, "current_device", lambda: 0)
        patch.setattr(torch.cuda, "device", contextlib.nullcontext)
        patch.setattr(torch.cuda, "Stream", _Stream)
        patch.setattr(torch.cuda, "stream", self._on_stream)
        patch.setattr(torch.cuda, "current_stream", lambda _=None: self._current)
        patch.setattr(torch.cuda, "cudart", lambda: self)
        patch.setattr(torch.Tensor, "to", lambda tensor, *to, **options: self._to(tensor, *to, **options))
        patch.setattr(torch.Tensor, "record_stream", lambda *_: None)

    @contextlib.contextmanager
    def _on_stream(self, stream: _Stream) -> Iterator[None]:
        before, self._current = self._current, stream
        try:
            yield
        finally:
            self._current = before

    def cudaHostRegister(self, address: int, nbytes: int, _: int) -> int:
        self.pinned[address] = nbytes
        return 0

    def cudaHostUnregister(self, address: int) -> int:
        del self.pinned[address]
        return 0

    def _is_pinned(self, address: int, nbytes: int) -> bool:
        return any(begin <= address and address + nbytes <= begin + size for begin, size in [*self.pinned.items()])

    def _to(self, tensor: torch.Tensor, *to: Any, **options: Any) -> torch.Tensor:
        if not any(isinstance(each, torch.device) and each.type == "cuda" for each in to):
            return self._plain_to(tensor, *to, **options)  # type: ignore[no-any-return]
        if len(to) > 1:  # with a type
            return self._plain_to(tensor, to[1])  # type: ignore[no-any-return]
        source, nbytes, arrived = tensor.data_ptr(), tensor.nbytes, torch.empty_like(tensor)
        if not nbytes or not self._is_pinned(source, nbytes):
            return arrived.copy_(tensor)
        assert arrived.stride() == tensor.stride(), "it is not one copy"
        ctypes.memset(arrived.data_ptr(), 0xAB, nbytes)
        self.copies += 1

        def arrive() -> None:
            time.sleep(_COPY_S)
            if self._is_pinned(source, nbytes):
                ctypes.memmove(arrived.data_ptr(), source, nbytes)  # the source is kept by nothing but its slot
            else:
                self.problems.append("a source was unpinned before it was copied")

        self._current.put(arrive)
        return arrived
