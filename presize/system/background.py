"""Calls in threads that nobody has to wait for: one to a silent server does not keep the process alive."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import Future
from functools import wraps
from typing import ParamSpec, TypeVar

P = ParamSpec("P")
R = TypeVar("R")


def in_background(function: Callable[P, R], *args: P.args, **kwargs: P.kwargs) -> Future[R]:
    """Call `function` in a thread of its own. The process may end before it has."""
    answer: Future[R] = Future()

    def call() -> None:
        try:
            answer.set_result(function(*args, **kwargs))
        except BaseException as error:
            answer.set_exception(error)

    threading.Thread(target=call, name="presize-background", daemon=True).start()
    return answer


def interruptible(function: Callable[P, R]) -> Callable[P, R]:
    """Let Ctrl-C reach the main thread while `function` waits in foreign code; it goes on in the background then."""

    @wraps(function)
    def call(*args: P.args, **kwargs: P.kwargs) -> R:
        if threading.current_thread() is not threading.main_thread():
            return function(*args, **kwargs)
        return in_background(function, *args, **kwargs).result()

    return call
