"""Streams, events and graphs."""

from __future__ import annotations

import ctypes
import sys
import weakref
from collections import deque
from typing import TYPE_CHECKING, Any, Callable, Deque, List, Optional, Sequence, Tuple

from ._errors import Error, InvalidError, a_kind
from ._library import Owner, call, instance, integer, library, make, stored
from ._waiting import in_ticks

if TYPE_CHECKING:
    from ._group import Group


def destroy(function: Any, handle: int) -> None:
    """Destroys an object which may be gone, with the group."""
    function(handle)


def with_owner(owner: Any, function: Any, handle: int) -> "weakref.finalize[Any, Any]":
    """Has an object be destroyed with what has it. When Python ends, what is left is destroyed with its group:
    before that, work that is queued may use it."""
    finalizer = weakref.finalize(owner, destroy, function, handle)
    finalizer.atexit = False
    return finalizer


def is_busy(handle: int) -> bool:
    """Reports whether a stream is known to have work: one that captures, or has failed, or is gone, is not."""
    done = ctypes.c_int()
    return bool(library.mscclgo_stream_query(handle, ctypes.addressof(done)) == 0 and not done.value)


# The streams that nobody has any more though they have work, and what that work uses.
_dropped: Deque[Tuple[int, Any]] = deque()


_streams: "weakref.WeakSet[Stream]" = weakref.WeakSet()


def in_use() -> List[Any]:
    """Returns what the work of all streams uses."""
    return [s._kept for s in list(_streams)] + [used for _, used in list(_dropped)]


def sweep() -> None:
    """Destroys streams that were dropped, once their work is done."""
    for _ in range(len(_dropped)):
        try:
            handle, used = _dropped.popleft()
        except IndexError:  # another thread is here too
            return
        if is_busy(handle):
            _dropped.append((handle, used))
        else:
            destroy(library.mscclgo_stream_destroy, handle)


class Stream(Owner):
    """Work of the group's device, done in order. group.stream() and Group.new_stream make one.

    A Stream of other code stays that code's: it must live as long as this object.
    """

    owner: Any = None  # of a stream of other code: its object, if it has one

    def __init__(self, group: Group, handle: int) -> None:
        self.group = group
        self._handle = handle
        self._kept: List[Any] = []  # what the work that is queued uses
        self._look = 1024  # the length of that at which to look whether the work is done, never less: see _fast.h
        self._capture: Optional[Capture] = None  # that it takes part in
        _streams.add(self)
        sweep()

    def __del__(self) -> None:
        if self._kept and is_busy(self._handle):
            _dropped.append((self._handle, (self._kept, self.owner)))
        else:
            destroy(library.mscclgo_stream_destroy, self._handle)

    def __repr__(self) -> str:
        return f"mscclgo.Stream(rank={self.group.rank}, device={self.group.device!r})"

    @property
    def handle(self) -> int:
        """The handle of the stream for other code: a CUstream on a GPU."""
        return make(library.mscclgo_stream_handle, self._handle)

    def __cuda_stream__(self) -> "tuple[int, int]":
        return 0, self.handle

    def synchronize(self, timeout: Optional[float] = None) -> None:
        """Waits until the work is done, and raises the error of a wait in it that failed.

        timeout is in seconds; TimeoutError tells that it has passed, while the work goes on.
        """
        self._synchronize(self.group._handle, timeout)

    def _synchronize(self, group: int, timeout: Optional[float]) -> None:
        """Of the handle of a group, whose waits it tells of."""
        kept, self._kept = self._kept, []  # another thread may queue more meanwhile
        try:
            in_ticks(
                lambda ms: call(library.mscclgo_group_synchronize, group, self._handle, ms),
                timeout,
                lambda: library.mscclgo_group_error(group),
            )
        except BaseException:
            self._kept[:0] = kept  # the work may go on
            raise

    def query(self) -> bool:
        """Reports whether all work is done."""
        return bool(stored(ctypes.c_int, library.mscclgo_stream_query, self._handle).value)

    def capture(self) -> "Capture":
        """Returns a context in which the stream collects work in a graph in place of running it:

        with stream.capture() as capture: ...
        capture.graph.launch(stream)
        """
        return Capture(self)

    def wait(self, event: "Event") -> None:
        """Has what is queued from now on wait for what the event marks."""
        call(library.mscclgo_event_wait, instance("wait: the event", event, Event)._handle, self._handle)
        capture = None if event._capture is None else event._capture()
        if capture is not None and self._capture is None:
            capture._join(self)

    def record(self, event: Optional["Event"] = None) -> "Event":
        """Has an event, a new one if none is given, mark the work queued so far."""
        event = Event(self.group) if event is None else instance("record: the event", event, Event)
        call(library.mscclgo_event_record, event._handle, self._handle)
        event._capture = None if self._capture is None else weakref.ref(self._capture)
        return event

    def keep_for(self, held: Sequence[Any], used: Sequence[Any]) -> None:
        """Keeps what is held for work that was queued; see Group.address. Of a capture it is all that is used: no
        framework sees the launches of the graph."""
        self.keep(held if self._capture is None else [*held, *used])

    def keep(self, objects: Sequence[Any]) -> None:
        """Keeps objects alive until the work that is queued is done. It is called once what uses them
        was queued: until then the caller holds them."""
        self._kept.extend(objects)
        if len(self._kept) < self._look:
            return
        kept, self._kept = self._kept, []  # another thread may queue more meanwhile
        done = False
        try:
            done = self.query()  # nobody synchronizes
        except Error:
            pass  # the stream captures, or the work has failed, which its call tells
        finally:
            if not done:
                self._kept[:0] = kept
        self._look = 2 * len(self._kept) + 1024


class Capture:
    """The capture of a stream; see Stream.capture."""

    def __init__(self, stream: Stream) -> None:
        self._stream = stream
        self._before: List[Tuple[Stream, List[Any]]] = []  # what the streams that take part had kept
        self._active = False
        self._graph: Optional[Graph] = None

    def _join(self, stream: Stream) -> None:
        """Has what a stream keeps from now on be the graph's, until the capture ends."""
        if self._active:
            self._before.append((stream, stream._kept))
            stream._kept, stream._capture = [], self

    def _leave(self) -> List[Any]:
        """Returns what is the graph's."""
        kept: List[Any] = []
        for stream, before in self._before:
            kept += stream._kept
            stream._kept, stream._capture = before, None
        self._active, self._before = False, []
        return kept

    @property
    def graph(self) -> "Graph":
        """The graph, once the capture has ended."""
        if self._graph is None:
            raise InvalidError("mscclgo: the capture has not ended, or has failed")
        return self._graph

    def __enter__(self) -> "Capture":
        call(library.mscclgo_stream_begin_capture, self._stream._handle)
        self._active = True
        self._join(self._stream)
        return self

    def __exit__(self, kind: Any, error: Any, trace: Any) -> None:
        kept = self._leave()
        try:
            handle = make(library.mscclgo_stream_end_capture, self._stream._handle)
        except Error:
            if error is None:
                raise
            return  # the exception in the body is the one to tell
        graph = Graph(self._stream.group, handle, kept)
        if error is None:
            self._graph = graph


class Graph(Owner):
    """Captured work, which can be launched any number of times. It keeps the tensors it uses, also those
    of other code, which must not be given other memory, as by a resize."""

    def __init__(self, group: Group, handle: int, kept: List[Any]) -> None:
        self._group = group
        self._handle = handle
        self._kept = kept
        self._finalizer = with_owner(self, library.mscclgo_graph_destroy, handle)

    def launch(self, stream: Optional[Any] = None) -> None:
        """Queues the work on a stream, by default the current one."""
        on = self._group.stream(stream)
        try:
            call(library.mscclgo_graph_launch, self._handle, on._handle)
        finally:  # also after a signal's exception, which comes once the work is queued
            on.keep((self,))
        self._group._settle(stream, on, self._kept)


class Event(Owner):
    """A point in the work of a stream."""

    def __init__(self, group: Group) -> None:
        self._capture: Optional[weakref.ref[Capture]] = None  # that it was recorded in
        self._handle = make(library.mscclgo_event_create, group._device)
        self._finalizer = with_owner(self, library.mscclgo_event_destroy, self._handle)

    def synchronize(self, timeout: Optional[float] = None) -> None:
        """Waits until the point is reached, at most for timeout seconds."""
        in_ticks(lambda ms: call(library.mscclgo_event_synchronize, self._handle, ms), timeout)

    def elapsed(self, start: "Event") -> float:
        """Returns the milliseconds since another event, as the device measured them."""
        first = instance("elapsed: the start", start, Event)._handle
        return float(stored(ctypes.c_double, library.mscclgo_event_elapsed, first, self._handle).value)


# What returns the handle of PyTorch's current stream on a GPU of a number, once it runs there.
_current: Optional[Callable[[int], int]] = None


def current_handle(number: Optional[int]) -> Optional[int]:
    """The handle of the current stream of PyTorch on a GPU of that number, if it runs there."""
    global _current
    if number is None:
        return None
    if _current is None:
        torch = sys.modules.get("torch")
        if torch is None or not torch.cuda.is_initialized():
            return None
        # The first takes a twentieth of the time.
        _current = getattr(torch._C, "_cuda_getCurrentRawStream", None) or (lambda n: int(torch.cuda.current_stream(n).cuda_stream))
    return _current(number)


def handle_of(stream: Any) -> int:
    """Returns the handle of a stream of other code."""
    if isinstance(stream, int) and not isinstance(stream, bool):
        return integer("the handle of a stream", stream, 0, (1 << 64) - 1)
    protocol = getattr(stream, "__cuda_stream__", None)
    if protocol is not None:
        try:
            handle = (protocol() if callable(protocol) else protocol)[1]
        except Exception as error:
            raise InvalidError(f"mscclgo: the stream does not give its handle: {error}") from error
        return integer("the handle of a stream", handle, 0, (1 << 64) - 1)
    for name in ("cuda_stream", "ptr"):  # PyTorch's, CuPy's
        handle = getattr(stream, name, None)
        if isinstance(handle, int):
            return handle
    raise InvalidError(f"mscclgo: {a_kind(stream)} is not a stream: pass one of mscclgo or PyTorch, or a handle")
