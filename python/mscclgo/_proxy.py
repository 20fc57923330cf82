"""Triggers of a program's own: what kernels ask of the host."""

from __future__ import annotations

import ctypes
from typing import TYPE_CHECKING, Any, Callable, List, NamedTuple, Optional

from ._channels import _drop, _hold
from ._errors import Error, InvalidError, a_kind, encode, reason
from ._library import FIFO_HANDLE_BYTES, HANDLER, WHY_BYTES, Owner, call, library, make, milliseconds, stored
from ._waiting import Waiting, wait

if TYPE_CHECKING:
    from ._group import Group


class Trigger(NamedTuple):
    """What a kernel asks of the host: mscclgo::Trigger::user of <mscclgo/fifo.cuh>. The kind is 128 to
    255, and detail has 52 bits."""

    kind: int
    a: int
    b: int
    c: int
    detail: int


class Proxy(Owner):
    """Calls a function for triggers, mscclgo::FifoHandle in kernels; see Group.proxy."""

    def __init__(self, group: Group, handler: Callable[[Trigger], Any]) -> None:
        if not callable(handler):
            raise InvalidError(f"mscclgo: proxy: the handler is a function, not {a_kind(handler)}")

        self._serves: Any = None  # the trigger that is being served

        def serve(_user: Any, trigger: Any, why: int) -> int:
            try:
                self._serves = trigger
                t = trigger.contents
                handler(Trigger(t.kind, t.a, t.b, t.c, t.detail))
                return 0
            except BaseException as error:  # nothing passes through the library, which would take it for a 0
                try:
                    text = encode(reason(error), WHY_BYTES - 1) + b"\0"
                    ctypes.memmove(why, text, len(text))
                except BaseException:
                    pass  # the library tells that there is no reason
            finally:
                self._serves = None
            return 1

        self._function = HANDLER(serve)  # must live as long as the proxy
        address = ctypes.cast(self._function, ctypes.c_void_p)
        self._handle = make(library.mscclgo_proxy_create_with_handler, group._handle, address, None)
        self._group = group
        _hold(group, self)

    def handle_bytes(self) -> bytes:
        """The mscclgo::FifoHandle that kernels take."""
        return bytes(stored(ctypes.c_char * FIFO_HANDLE_BYTES, library.mscclgo_proxy_get_fifo, self._handle).raw)

    def ends(self, timeout: Optional[float] = 0.0) -> bool:
        """For the handler: waits for at most timeout seconds until it is to return, and tells whether it is
        to. It is when the group has failed, and when a close of the proxy or the group waits no longer for
        what kernels have pushed. A handler that waits for something looks here now and then, or sleeps here,
        and raises an error. Otherwise an error says that it has not returned. InvalidError if no handler runs."""
        serves = self._serves
        if serves is None:
            raise InvalidError("mscclgo: proxy: ends is for the handler, and none runs")
        return bool(stored(ctypes.c_int, library.mscclgo_trigger_ends, serves, milliseconds(timeout)).value)

    def close(self) -> None:
        """Serves what kernels have pushed, and ends the proxy. The kernels must have ended. The handler
        must not call it. After Ctrl-C another thread goes on with that."""
        wait(self._destroy, self._interrupted_close)
        _drop(self._group, self)

    def _destroy(self) -> None:
        try:
            call(library.mscclgo_proxy_destroy, self._handle)
        except Error:
            self._linger()
            raise

    def _interrupted_close(self, error: BaseException, call: Waiting) -> None:
        self._group._late.append(call)
        _drop(self._group, self)

    def _linger(self) -> None:
        """Has the function live as long as the process: its proxy did not end well, and may be in it."""
        _lingering.append(self._function)


_lingering: List[Any] = []
