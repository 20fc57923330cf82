"""Channels between ranks, pipes, and peers' memory, as arguments of kernels."""

from __future__ import annotations

import ctypes
import operator
from typing import TYPE_CHECKING, Any, Optional, Sequence, Tuple

from ._array import Array
from ._errors import InvalidError
from ._library import PEER_MEMORY_HANDLE_BYTES, PIPE_SET_BYTES, ChannelOptions, PipeOptions, call, integer, library, make

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
        options = ChannelOptions(integer("per_peer", per_peer), None if inbox is None else inbox._handle, None if name is None else name.encode())
        self._arrays: Tuple[Optional[Array], ...] = (local, inbox)  # which the channels need
        self._handle = make(self._create, *parents, local._handle, ctypes.addressof(options))

    @property
    def pointer(self) -> int:
        """The address, for kernels, of the array of handles."""
        return make(self._handles, self._handle)

    def __getitem__(self, which: Any) -> "Pointer":
        i, rank = which if isinstance(which, tuple) else (0, which)
        return Pointer(make(self._handle_of, self._handle, integer("the index of a channel", i), integer("a rank", rank)))


class Pointer(int):
    """An address for kernels."""


class MemoryChannels(_Channels):
    """Channels to mapped memory, mscclgo::MemoryChannelHandle in kernels; see Group.memory_channels."""

    _create = library.mscclgo_memory_channels_create
    _handles = library.mscclgo_memory_channels_handles
    _handle_of = library.mscclgo_memory_channels_handle

    def __init__(self, group: Group, local: Array, inbox: Optional[Array], per_peer: int, name: Optional[str]) -> None:
        super().__init__((group._handle,), local, inbox, per_peer, name)
        self._group = group
        _hold(group, self)

    def close(self) -> None:
        """Frees the channels. No kernel of any rank may use them any longer."""
        call(library.mscclgo_memory_channels_destroy, self._handle)
        _drop(self._group, self)
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


class Pipes:
    """One-way streams of messages, mscclgo::PipeSet in kernels; see Group.pipes."""

    def __init__(
        self,
        group: Group,
        to: Sequence[int],
        from_: Sequence[int],
        per_peer: int,
        slots: int,
        slot_bytes: int,
        buffer: Optional[Array],
        by_proxy: bool,
        ports: bool,
        name: Optional[str],
    ) -> None:
        if buffer is not None:
            if not isinstance(buffer, Array):
                raise InvalidError(f"mscclgo: pipes take memory of group.empty or group.array, not a {type(buffer).__name__}")
            buffer.pointer  # raises if it was closed
        receivers, senders = _ranks("to", to), _ranks("from_", from_)
        options = PipeOptions(
            to=receivers,
            to_count=len(to),
            from_count=len(from_),
            per_peer=integer("pipes: per_peer", per_peer),
            slots=integer("pipes: slots", slots),
            slot_bytes=integer("pipes: slot_bytes", slot_bytes, 0, (1 << 64) - 1),
            buffer=None if buffer is None else buffer._handle,
            ports=ports,
            name=None if name is None else name.encode(),
        )
        setattr(options, "from", senders)  # which is no name in Python
        self._array = buffer  # which the pipes need
        # The pipes are destroyed with what moves their messages.
        self._proxy = make(library.mscclgo_proxy_create, group._handle) if by_proxy else None
        options.proxy = self._proxy
        try:
            self._handle = make(library.mscclgo_pipes_create, group._handle, ctypes.addressof(options))
        except Exception:
            if self._proxy is not None:
                library.mscclgo_proxy_destroy(self._proxy)
            raise
        self._group = group
        _hold(group, self)

    def handle_bytes(self) -> bytes:
        """The mscclgo::PipeSet that kernels take."""
        room = ctypes.create_string_buffer(PIPE_SET_BYTES)
        call(library.mscclgo_pipes_get_set, self._handle, room)
        return room.raw

    def close(self) -> None:
        """Frees the pipes. No kernel of any rank may use them any longer. Collective: it waits for the
        other ranks, for at most 5 seconds."""
        if self._proxy is not None:
            call(library.mscclgo_proxy_destroy, self._proxy)
        else:
            call(library.mscclgo_pipes_destroy, self._handle)
        _drop(self._group, self)
        self._array = None


def _ranks(name: str, ranks: Sequence[int]) -> Any:
    # Whether the group has them, the library tells all ranks.
    try:
        numbers = [operator.index(r) for r in ranks]
    except TypeError:
        raise InvalidError(f"mscclgo: pipes: {name} is a list of ranks, not {ranks!r}") from None
    return (ctypes.c_int * max(len(numbers), 1))(*[integer(f"pipes: a rank of {name}", n) for n in numbers])


class PeerMemory:
    """An array of each rank, mscclgo::PeerMemory in kernels; see Group.share."""

    def __init__(self, group: Group, array: Array) -> None:
        if not isinstance(array, Array):
            raise InvalidError(f"mscclgo: ranks share memory of group.empty or group.array, not a {type(array).__name__}")
        array.pointer  # raises if it was closed
        self._array: Optional[Array] = array
        self._group = group
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
        _drop(self._group, self)
        self._array = None


def _hold(group: Group, made: Any) -> None:
    """Has what peers access live as long as the group, also if nobody refers to it here."""
    group._held.add(made)


def _drop(group: Group, made: Any) -> None:
    """Ends _hold, when what was made is closed."""
    group._held.discard(made)
