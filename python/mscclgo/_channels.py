"""Channels between ranks, and peers' memory, as arguments of kernels."""

from __future__ import annotations

import ctypes
from typing import TYPE_CHECKING, Any, Optional, Tuple

from ._array import Array
from ._errors import InvalidError
from ._library import PEER_MEMORY_HANDLE_BYTES, ChannelOptions, call, library, make

if TYPE_CHECKING:
    from ._group import Group


class _Channels:
    """Channels of either kind. As an argument of a kernel they are the array of handles, in which
    channel i to a rank has the index i * size + rank; channels[rank] and channels[i, rank] are the
    handle of one."""

    _create: Any
    _handles: Any
    _handle_of: Any

    def __init__(self, parents: Tuple[int, ...], local: Array, inbox: Optional[Array], per_peer: int, name: Optional[str]) -> None:
        for array in (local, inbox):
            if array is not None and not isinstance(array, Array):
                raise InvalidError(f"mscclgo: channels take memory of group.empty or group.array, not a {type(array).__name__}")
            if array is not None:
                array.pointer  # raises if it was closed
        options = ChannelOptions(per_peer, None if inbox is None else inbox._handle, None if name is None else name.encode())
        self._arrays: Tuple[Optional[Array], ...] = (local, inbox)  # which the channels need
        self._handle = make(self._create, *parents, local._handle, ctypes.addressof(options))

    @property
    def pointer(self) -> int:
        """The address, for kernels, of the array of handles."""
        return make(self._handles, self._handle)

    def __getitem__(self, which: Any) -> "Pointer":
        i, rank = which if isinstance(which, tuple) else (0, which)
        return Pointer(make(self._handle_of, self._handle, i, rank))


class Pointer(int):
    """An address for kernels."""


class MemoryChannels(_Channels):
    """Channels to mapped memory, mscclgo::MemoryChannelHandle in kernels; see Group.memory_channels."""

    _create = library.mscclgo_memory_channels_create
    _handles = library.mscclgo_memory_channels_handles
    _handle_of = library.mscclgo_memory_channels_handle

    def __init__(self, group: Group, local: Array, inbox: Optional[Array], per_peer: int, name: Optional[str]) -> None:
        super().__init__((group._handle,), local, inbox, per_peer, name)
        _hold(group, self)

    def close(self) -> None:
        """Frees the channels. No kernel of any rank may use them any longer."""
        call(library.mscclgo_memory_channels_destroy, self._handle)
        self._arrays = ()


class PortChannels(_Channels):
    """Channels that the host serves, mscclgo::PortChannelHandle in kernels; see Group.port_channels.
    They live as long as the group."""

    _create = library.mscclgo_port_channels_create
    _handles = library.mscclgo_port_channels_handles
    _handle_of = library.mscclgo_port_channels_handle

    def __init__(self, group: Group, proxy: int, local: Array, inbox: Optional[Array], per_peer: int, name: Optional[str]) -> None:
        super().__init__((group._handle, proxy), local, inbox, per_peer, name)
        _hold(group, self)


class PeerMemory:
    """An array of each rank, mscclgo::PeerMemory in kernels; see Group.share."""

    def __init__(self, group: Group, array: Array) -> None:
        if not isinstance(array, Array):
            raise InvalidError(f"mscclgo: ranks share memory of group.empty or group.array, not a {type(array).__name__}")
        array.pointer  # raises if it was closed
        self._array: Optional[Array] = array
        self._handle = make(library.mscclgo_peer_memory_create, group._handle, array._handle)
        _hold(group, self)

    def _elements(self) -> Tuple[int, str]:
        """How many elements the array of this rank has, and of which type."""
        if self._array is None:
            raise InvalidError("mscclgo: the memory was closed")
        return self._array.size, self._array.dtype

    def handle_bytes(self) -> bytes:
        """The mscclgo::PeerMemory that kernels take."""
        room = ctypes.create_string_buffer(PEER_MEMORY_HANDLE_BYTES)
        call(library.mscclgo_peer_memory_get_handle, self._handle, room)
        return room.raw

    def close(self) -> None:
        """Unmaps the peers' arrays. Kernels that use them must be done. Collective if a call was
        prepared on it: then it waits for the other ranks, for at most 5 seconds."""
        call(library.mscclgo_peer_memory_destroy, self._handle)
        self._array = None


def _hold(group: Group, made: Any) -> None:
    """Has what peers access live as long as the group, also if nobody refers to it here."""
    group.__dict__.setdefault("_held", []).append(made)
