"""Waits that a signal such as Ctrl-C ends: Python raises in the main thread, and not in a call of the library."""

from __future__ import annotations

import math
import os
import queue
import threading
import time
from typing import Any, Callable, List, Optional

from ._errors import TimeoutError
from ._library import milliseconds

TICK = 0.2  # seconds that a wait lasts before Python looks at signals


def in_ticks(wait: Callable[[int], Any], timeout: Optional[float], failed: Callable[[], Any] = bool) -> None:
    """Calls a function for times in milliseconds until it raises no TimeoutError, for at most timeout seconds.
    Such an error is also one for what has failed."""
    milliseconds(timeout)  # raises if it is wrong
    left = None if timeout is None else float(timeout)
    while True:
        tick = milliseconds(TICK if left is None else min(left, TICK))
        try:
            wait(tick)
            return
        except TimeoutError:
            if failed():
                raise
            if left is not None:
                left -= TICK
                if left <= 0:
                    raise


class Waiting:
    """A call that cannot be made in ticks, as it would fail its group. Another thread makes it."""

    def __init__(self, body: Callable[[], Any]) -> None:
        self._body = body
        self.used: Any = None  # what lives until it has ended
        self.result: Any = None
        self.error: Optional[BaseException] = None
        self._taken = threading.Lock()  # by whoever makes the call, or cancels it
        self._has_ended = False
        self._end = threading.Lock()  # free once the call has ended
        self._end.acquire()

    def run(self, worker: _Worker) -> None:
        if self._taken.acquire(blocking=False):
            try:
                self.result = self._body()
            except BaseException as error:
                self.error = error
        _idle.append(worker)
        self._has_ended = True
        self._end.release()

    def cancel(self) -> bool:
        """Reports whether the call was not begun, and never will be."""
        return self._taken.acquire(blocking=False)

    def join(self, timeout: float = math.inf) -> None:
        """Waits until the call has ended. After an exception it may be called again: a signal's may come once
        the lock is taken."""
        end = time.monotonic() + timeout
        # In ticks: a signal that the system gives to another thread does not wake this one.
        while not self._has_ended and not self._end.acquire(timeout=min(TICK, max(end - time.monotonic(), 0))):
            if time.monotonic() >= end:
                return


class _Worker(threading.Thread):
    """Makes calls. It takes milliseconds to start a thread for each."""

    def __init__(self) -> None:
        super().__init__(name="mscclgo", daemon=True)
        self.calls: "queue.SimpleQueue[Waiting]" = queue.SimpleQueue()

    def run(self) -> None:
        while True:
            self.calls.get().run(self)


_idle: List[_Worker] = []
os.register_at_fork(after_in_child=_idle.clear)


def wait(body: Callable[[], Any], interrupted: Callable[[BaseException, Waiting], Any]) -> Any:
    """Returns what a function returns that waits in the library. For an exception that a signal raises
    once that was called, interrupted is called, which ends the wait where it can."""
    if threading.get_ident() != threading.main_thread().ident:
        return body()  # no signal comes
    call = Waiting(body)
    try:
        worker = _worker()
        if worker is None:
            return body()
        worker.calls.put(call)
        call.join()
    except BaseException as error:
        if not call.cancel():
            interrupted(error, call)
        raise
    failure, call.error = call.error, None
    if failure is None:
        return call.result
    try:
        raise failure
    finally:
        del failure  # whose traceback leads here: without the cycle it goes when nobody has it


def _worker() -> Optional[_Worker]:
    """Returns a thread that makes calls, or None where none starts."""
    if _idle:
        return _idle.pop()
    worker = _Worker()
    try:
        worker.start()
    except RuntimeError:  # Python ends, or there are too many threads
        return None
    return worker
