"""What calls return, and where they run. C++ keeps the works of most calls, and no object of Python for them, so they are
made of futures."""

from __future__ import annotations

import functools
import queue
import threading
from datetime import timedelta
from typing import Any, Callable, List

import torch
import torch.distributed as dist
from torch.futures import Future

import mscclgo

After = List[Callable[[], Any]]  # what is to be done behind the work of a call


def known(error: mscclgo.Error) -> Exception:
    """Returns the exception by which PyTorch's users know an error of a group. Wrong use is a ValueError already."""
    if isinstance(error, (mscclgo.InvalidError, mscclgo.UnsupportedError)):
        return error
    failed: Exception = dist.DistBackendError(str(error))
    return failed


class Done(dist.Work):  # type: ignore[misc]
    """Of a call behind which the current stream is."""

    def wait(self, timeout: timedelta = timedelta(0)) -> bool:
        return True

    def is_completed(self) -> bool:
        return True


class Side:
    """The stream of a GPU for work beside the current one, as a context: it begins behind what the current stream has.

    All process groups have the same. Their kernels wait for other ranks, and those of two groups may not all fit on a
    GPU, so they must not run at the same time."""

    def __init__(self, device: Any) -> None:
        self._stream = torch.cuda.Stream(device)
        self._current: Any = None
        self._used = False
        self._behind: Any = None  # the stream that has waited for all work

    def __enter__(self) -> Any:
        self._stream.wait_stream(torch.cuda.current_stream(self._stream.device))
        self._current = torch.cuda.stream(self._stream)
        self._current.__enter__()
        self._used, self._behind = True, None
        return self._stream

    def __exit__(self, *error: Any) -> None:
        self._current.__exit__(*error)

    def before_current(self) -> None:
        """Has the current stream wait for the work beside it, unless it captures: what is not captured is no part of a
        graph."""
        if not self._used or torch.cuda.is_current_stream_capturing():
            return
        current = torch.cuda.current_stream(self._stream.device)
        if current != self._behind:
            current.wait_stream(self._stream)
            self._behind = current


@functools.lru_cache(maxsize=None)
def side_of(device: Any) -> Side:
    """Returns the side of a GPU, always the same."""
    return Side(device)


class Waiter:
    """Completes futures of calls on tensors of the host, in their order, on a thread of its own."""

    def __init__(self, group: mscclgo.Group) -> None:
        self._group = group
        self._calls: "queue.SimpleQueue[Any]" = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._run, name="mscclgo works", daemon=True)
        self._thread.start()

    def add(self, event: mscclgo.Event, after: After, future: Any, result: List[Any]) -> None:
        """Has a future be complete once an event is, and after was done."""
        self._calls.put((event, after, future, result))

    def end(self) -> None:
        """Ends the thread once all is complete."""
        self._calls.put(None)
        if threading.current_thread() is not self._thread:  # which may be the last to have the process group
            self._thread.join()

    def _run(self) -> None:
        while True:
            call = self._calls.get()
            if call is None:
                return
            event, after, future, result = call
            try:
                event.synchronize()
                self._group.check()
                for put in after:
                    put()
                future.set_result(result)
            except Exception as error:
                future.set_exception(known(error) if isinstance(error, mscclgo.Error) else error)


class Messages(dist.Work):  # type: ignore[misc]
    """Of messages of tensors of the host, which go when somebody waits for one of them."""

    def __init__(self, launch: Callable[[], Any], future: Any) -> None:
        super().__init__()
        self._launch, self._future = launch, future

    def wait(self, timeout: timedelta = timedelta(0)) -> bool:
        self._launch()
        self._future.wait()
        return True

    def is_completed(self) -> bool:
        self._launch()
        return bool(self._future.done())

    def get_future(self) -> Any:
        self._launch()
        return self._future
