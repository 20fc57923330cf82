"""Where processes meet as one group after the other: the survivors of a failure, and new ones."""

from __future__ import annotations

import ctypes
import threading
import time
from typing import Any, Callable, List, Optional

from ._config import Config, pack
from ._group import _END, Group, _connected, _options, _place, end_later
from ._library import ElasticOptions, Owner, call, instance, integer, library, make, milliseconds, stored, text
from ._rendezvous import Server
from ._waiting import Waiting


class Elastic(Server):
    """A server at which processes meet as a group again and again, each time as a generation:

        server = mscclgo.Elastic(least=3, most=4)   # in a process that outlives the ranks

        member = mscclgo.Member(id)                 # in each rank, with the server's id
        group = member.connect()
        while working:
            try:
                step(group)
            except (mscclgo.RemoteError, mscclgo.AbortedError, mscclgo.TimeoutError):
                member.reform(group)            # with the ranks that are left; if it raises, once more

    A generation forms of the processes that came when settle seconds have passed since the last came, or at
    once when they are most and none of the generation before is missing. Processes that do not come are left out,
    and their old group fails. Survivors keep their rank where possible, and their order. least and most
    bound the ranks of a generation: 0 is 1, and as many as there may be. A least above half of the usual
    number keeps ranks that lost the others from going on as a second group. settle is longer than ranks take to
    notice a failure one after the other.

    id is the id of a server that has ended and that this one replaces. The address is as a
    Rendezvous's. Everyone who has the server's id can come, so it travels as a password would.
    """

    def __init__(self, address: str = "127.0.0.1:0", least: int = 0, most: int = 0, settle: float = 1.0, id: Optional[str] = None) -> None:
        options = ElasticOptions(
            integer("elastic: least", least),
            integer("elastic: most", most),
            max(milliseconds(settle, "settle"), 1),
            None if id is None else text("elastic: the id", id),
        )
        super().__init__("elastic", text("elastic: the address", address), ctypes.addressof(options))


class Member(Owner):
    """A process that takes part in the generations of an Elastic, for as long as it is a rank. The arguments
    are as for connect, for the groups.

    Ctrl-C in a method that waits leaves the server, until such a method is called again."""

    _handle = 0

    def __init__(
        self,
        id: str,
        device: Optional[str] = None,
        timeout: float = 30.0,
        heartbeat_timeout: Optional[float] = None,
        scratch: int = 0,
        local_rank: int = 0,
        config: Optional[Config] = None,
    ) -> None:
        self._late: List[threading.Thread] = []  # that end calls which were interrupted
        options, packed = _options(device, timeout, heartbeat_timeout, scratch, local_rank), pack(config)
        self._handle = make(library.mscclgo_member_create, text("member: the id", id), ctypes.addressof(options), _place(packed))

    def connect(self, timeout: Optional[float] = None) -> Group:
        """Waits for a generation with this process, for at most timeout seconds, and returns its first group. After
        an error it may be called again. Collective."""
        ms = milliseconds(timeout)
        return _connected(self._next(lambda: make(library.mscclgo_member_connect, self._handle, ms)), self._forsake)

    def reform(self, group: Group, timeout: Optional[float] = None) -> None:
        """Waits for the next generation with this process, and makes its group that one, as Group.reform does.
        Collective."""
        of = instance("reform: the group", group, Group)
        ms = milliseconds(timeout)
        of._follow(self._next(lambda: call(library.mscclgo_member_reform, self._handle, of._handle, ms)), self._forsake)

    def _next(self, wait: Callable[[], Any]) -> Callable[[], Any]:
        """Returns what calls a function that waits for a generation, once no thread leaves the server any more."""
        self._late = [thread for thread in self._late if thread.is_alive()]
        before = tuple(self._late)  # not the thread that ends this call, if it is interrupted

        def body() -> Any:
            for thread in before:
                thread.join()
            return wait()

        return body

    def _forsake(self, interrupted: Waiting, fail: Callable[[], Any]) -> None:
        handle = self._handle
        self._late.append(end_later(interrupted, fail, lambda: library.mscclgo_member_leave(handle)))

    @property
    def generation(self) -> int:
        """The number of the last generation that this process was in, from 1, or 0."""
        return int(stored(ctypes.c_uint64, library.mscclgo_member_generation, self._handle).value)

    @property
    def newcomers(self) -> bool:
        """Whether processes wait to be taken in by the generation of this one. It may differ among ranks: they agree,
        as by Group.all_gather_bytes, to call reform."""
        return bool(stored(ctypes.c_int, library.mscclgo_member_newcomers, self._handle).value)

    def close(self) -> None:
        """Leaves the server. The group stays."""
        if not self._handle:
            return
        end = time.monotonic() + _END
        for thread in self._late:
            thread.join(max(end - time.monotonic(), 0))
        if any(thread.is_alive() for thread in self._late):  # such as one whose call opens a GPU
            threading.Thread(target=_destroy, args=(self._handle, self._late), daemon=True).start()
        else:
            call(library.mscclgo_member_destroy, self._handle)
        self._handle = 0

    def __enter__(self) -> "Member":
        return self

    def __exit__(self, *error: Any) -> None:
        self.close()

    def __del__(self) -> None:
        if self._handle:
            library.mscclgo_member_destroy(self._handle)


def _destroy(handle: int, late: List[threading.Thread]) -> None:
    """Destroys a member once threads have ended."""
    for thread in late:
        thread.join()
    library.mscclgo_member_destroy(handle)
