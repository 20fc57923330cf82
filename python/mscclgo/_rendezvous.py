"""Where the ranks of a new group meet."""

from __future__ import annotations

import ctypes
import warnings
from typing import Any

from ._library import ID_BYTES, Owner, call, library, make, text


class Rendezvous(Owner):
    """The place where the ranks of a new group meet: one process opens it and passes the id to all
    ranks, for connect or the variable MSCCLGO_ID. Everyone who has it can join, so it travels as a
    password would. When all are connected, the same processes may meet there for another group.

    address is "host:port"; with port 0 the system chooses one, and with no host all addresses of
    this machine count. It stays open until close, also where only the id is kept, and has a socket for as
    long; Python warns of one that was forgotten (ResourceWarning).
    """

    _handle = 0

    def __init__(self, address: str = "127.0.0.1:0") -> None:
        self._handle = make(library.mscclgo_rendezvous_create, text("rendezvous: the address", address))
        room = ctypes.create_string_buffer(ID_BYTES)
        call(library.mscclgo_rendezvous_id, self._handle, room, ID_BYTES)
        self.id: str = room.value.decode()

    def close(self) -> None:
        """Closes the rendezvous. A group that is complete stays."""
        if self._handle:
            handle, self._handle = self._handle, 0
            call(library.mscclgo_rendezvous_destroy, handle)

    def __enter__(self) -> "Rendezvous":
        return self

    def __exit__(self, *error: Any) -> None:
        self.close()

    def __del__(self, _warn: Any = warnings.warn) -> None:
        if self._handle:
            _warn("a mscclgo.Rendezvous was not closed, and stays open", ResourceWarning, source=self)
