"""Where the ranks of a new group meet."""

from __future__ import annotations

import ctypes
import warnings
from typing import Any, TypeVar

from ._library import ID_BYTES, Owner, call, library, make, text

Self = TypeVar("Self", bound="Server")


class Server(Owner):
    """A place where processes meet that know its id; it is open until close."""

    _handle = 0

    def __init__(self, kind: str, *arguments: Any) -> None:
        self._kind = kind
        self._handle = make(self._function("create"), *arguments)
        room = ctypes.create_string_buffer(ID_BYTES)
        call(self._function("id"), self._handle, room, ID_BYTES)
        self.id: str = room.value.decode()

    def _function(self, name: str) -> Any:
        return getattr(library, f"mscclgo_{self._kind}_{name}")

    def close(self) -> None:
        """Closes it. Groups stay; who waits for a generation of an Elastic goes on waiting for a server."""
        if self._handle:
            handle, self._handle = self._handle, 0
            call(self._function("destroy"), handle)

    def __enter__(self: Self) -> Self:
        return self

    def __exit__(self, *error: Any) -> None:
        self.close()

    def __del__(self, _warn: Any = warnings.warn) -> None:
        if self._handle:
            _warn(f"a mscclgo.{type(self).__name__} was not closed, and stays open", ResourceWarning, source=self)


class Rendezvous(Server):
    """The place where the ranks of a new group meet: one process opens it and passes the id to all
    ranks, for connect or the variable MSCCLGO_ID. Everyone who has it can join, so it travels as a
    password would. When all are connected, the same processes may meet there for another group.

    address is "host:port"; with port 0 the system chooses one, and with no host all addresses of
    this machine count. It stays open until close, also where only the id is kept, and has a socket for as
    long; Python warns of one that was forgotten (ResourceWarning).
    """

    def __init__(self, address: str = "127.0.0.1:0") -> None:
        super().__init__("rendezvous", text("rendezvous: the address", address))
