"""Channels between ranks, pipes, and peers' memory, as arguments of kernels."""

from __future__ import annotations

import ctypes
import operator
import struct
from typing import TYPE_CHECKING, Any, NamedTuple, Optional, Sequence, Tuple

from ._array import Array, Pointer
from ._errors import InvalidError, a_kind
from ._library import CHANNEL_SET_BYTES, PEER_MEMORY_HANDLE_BYTES, PIPE_SET_BYTES, ChannelOptions, PipeOptions, Owner, call, integer, library, make, stored, text
from ._messages import rank
from ._stream import Stream

if TYPE_CHECKING:
    from ._group import Group


class _Channels(Owner):
    """Channels of either kind. As an argument of a kernel they are a set, mscclgo::MemoryChannelSet or
    mscclgo::PortChannelSet, in which set.to(rank, i) is channel i to a rank and kernels with checks
    look whether there is one, or for a pointer the array of handles, in which that has the index
    i * size + rank; channels[rank] and channels[i, rank] are the handle of one."""

    _create: Any
    _struct: str  # the type of a handle
    _set: str  # the type of the set
    _get_set: Any
    _handles: Any
    _handle_of: Any

    def __init__(self, group: Group, proxy: Tuple[int, ...], local: Array, inbox: Optional[Array], per_peer: int, name: Optional[str]) -> None:
        for array in (local, inbox):
            if array is not None and not isinstance(array, Array):
                raise InvalidError(f"mscclgo: channels take an Array, of group.empty, group.array or group.wrap, not {a_kind(array)}")
            if array is not None:
                array.pointer  # raises if it was closed
        options = ChannelOptions(integer("per_peer", per_peer), None if inbox is None else inbox._handle, None if name is None else text("channels: the name", name))
        self._arrays: Tuple[Optional[Array], ...] = (local, inbox)  # which the channels need
        self._group = group
        self._per_peer = per_peer or 1
        self._handle: int = group._wait(lambda: make(self._create, group._handle, *proxy, local._handle, ctypes.addressof(options)))
        self._bytes = struct.pack("=Q", self.pointer)  # for kernels, until they are closed

    def __repr__(self) -> str:
        return f"mscclgo.{type(self).__name__}(rank={self._group.rank}, size={self._group.size}, per_peer={self._per_peer})"

    def _reform(self, function: Any, *proxy: int) -> bool:
        right = carried(self._group, function, self._handle, *proxy)
        self._bytes = struct.pack("=Q", self.pointer)
        return right

    def handle_bytes(self) -> bytes:
        """The set that kernels take."""
        return bytes(stored(ctypes.c_char * CHANNEL_SET_BYTES, self._get_set, self._handle).raw)

    @property
    def pointer(self) -> "Pointer":
        """The address, for kernels, of the array of handles."""
        return _handle_at(self._struct, make(self._handles, self._handle))

    def __getitem__(self, which: Any) -> "Pointer":
        i, rank = which if isinstance(which, tuple) and len(which) == 2 else (0, which)
        where = make(self._handle_of, self._handle, integer("the index of a channel", i), integer("a rank", rank))
        return _handle_at(self._struct, where)


def carried(group: Group, function: Any, *handles: int) -> bool:
    """Takes what was made of a group to the one that it was re-formed to, and returns whether captured graphs are right."""
    return bool(group._wait(lambda: stored(ctypes.c_int, function, *handles)).value)


def _handle_at(struct: str, address: int) -> "Pointer":
    pointer = Pointer(address)
    pointer.to = struct
    return pointer


class MemoryChannels(_Channels):
    """Channels to mapped memory, mscclgo::MemoryChannelHandle in kernels; see Group.memory_channels."""

    _create = library.mscclgo_memory_channels_create
    _struct = "MemoryChannelHandle"
    _set = "MemoryChannelSet"
    _get_set = library.mscclgo_memory_channels_get_set
    _handles = library.mscclgo_memory_channels_handles
    _handle_of = library.mscclgo_memory_channels_handle

    def __init__(self, group: Group, local: Array, inbox: Optional[Array], per_peer: int, name: Optional[str]) -> None:
        super().__init__(group, (), local, inbox, per_peer, name)
        _hold(group, self)

    def reform(self) -> bool:
        """Carries the channels to the group that theirs was re-formed to: see Group.reform. Returns whether
        graphs that use them are right, as they are among as many ranks in which this one has its number. New ranks
        call Group.memory_channels. Collective."""
        return self._reform(library.mscclgo_memory_channels_reform)

    def close(self) -> None:
        """Frees the channels. No kernel of any rank may use them any longer."""
        self._bytes = b""
        call(library.mscclgo_memory_channels_destroy, self._handle)
        _drop(self._group, self)
        self._arrays = ()


class PortChannels(_Channels):
    """Channels that the host serves, mscclgo::PortChannelHandle in kernels; see Group.port_channels.
    They live as long as the group."""

    _create = library.mscclgo_port_channels_create
    _struct = "PortChannelHandle"
    _set = "PortChannelSet"
    _get_set = library.mscclgo_port_channels_get_set
    _handles = library.mscclgo_port_channels_handles
    _handle_of = library.mscclgo_port_channels_handle

    def __init__(self, group: Group, proxy: int, local: Array, inbox: Optional[Array], per_peer: int, name: Optional[str], on_stream: bool) -> None:
        if on_stream:
            self._create = library.mscclgo_port_channels_create_for_streams
        super().__init__(group, (proxy,), local, inbox, per_peer, name)
        self._on_stream = on_stream
        _hold(group, self)

    def reform(self) -> bool:
        """Is MemoryChannels.reform; new ranks call Group.port_channels. Collective."""
        return self._reform(library.mscclgo_port_channels_reform, self._group._port_proxy())

    def on_stream(self, peer: int, channel: int = 0, stream: Any = None) -> "StreamPort":
        """Returns a channel to a rank, for operations on a stream, without a kernel of the program's. The
        channels must have been made with on_stream=True. Without a stream, each operation goes on the
        one that is current when it is called. It may be used by any thread, and as long as the group."""
        if not self._on_stream:
            raise InvalidError("mscclgo: on_stream: the channels were not made for streams: write group.port_channels(..., on_stream=True)")
        number = integer("on_stream: channel", channel, 0, self._per_peer - 1)
        on = None if stream is None else self._group.stream(stream)
        return StreamPort(self, rank(self._group, "on_stream", peer), number, on)


class StreamPort:
    """A port channel to one rank, of PortChannels.on_stream. Each method queues an operation of
    mscclgo::PortChannelHandle in <mscclgo/port_channel.cuh>, and returns. Offsets and sizes are in
    bytes: remote offsets in what the peer lets its peers write, local ones in this rank's local array.
    Words have 8 bytes; a negative value is in two's complement.

    An operation begins when the work before it in the stream is done, and finds the memory as that
    work has left it. flush, wait, and methods with flush=True hold the stream until they are done. The
    others end once the library's thread has been asked: before a flush the source of a put must not
    change, and the bytes of a get must not be used. The operations of one channel, also by kernels,
    are done in the order in which they were asked for. While the stream captures, operations become
    part of the graph, with these offsets and values.

    A wait or flush that fails, by the group's timeout or because the group fails, fails the group:
    Group.synchronize raises the error. Operations behind it do nothing. An operation is a kernel of one
    thread: kernels that fill the device must not wait for what it does.

    Raises InvalidError, and queues nothing, for a stream of another device, bytes outside the
    memories, words that are not aligned to 8 bytes, and a copy or exchange of a local array that was
    closed; and the group's error once that has failed. Synchronize the stream before the group is closed.
    """

    def __init__(self, channels: PortChannels, peer: int, channel: int, stream: Optional[Stream]) -> None:
        self._channels = channels
        self._group = channels._group
        self._where = channel, peer
        self._stream = stream

    def put(self, remote_offset: int, local_offset: int, bytes: int) -> None:
        """Copies from this rank's memory to the peer's."""
        places = _unsigned("put", remote_offset=remote_offset, local_offset=local_offset, bytes=bytes)
        self._queue(library.mscclgo_port_put, *places)

    def put_with_signal(self, remote_offset: int, local_offset: int, bytes: int, flush: bool = False) -> None:
        """Is put and signal in one."""
        places = _unsigned("put_with_signal", remote_offset=remote_offset, local_offset=local_offset, bytes=bytes)
        self._queue(library.mscclgo_port_put_with_signal_and_flush if flush else library.mscclgo_port_put_with_signal, *places)

    def get(self, remote_offset: int, local_offset: int, bytes: int, flush: bool = False) -> None:
        """Copies from the peer's memory to this rank's, where it is after a flush."""
        places = _unsigned("get", remote_offset=remote_offset, local_offset=local_offset, bytes=bytes)
        self._queue(library.mscclgo_port_get_and_flush if flush else library.mscclgo_port_get, *places)

    def store(self, remote_offset: int, value: int, flush: bool = False) -> None:
        """Stores a value to a word of the peer's memory."""
        places = _unsigned("store", remote_offset=remote_offset)
        self._queue(library.mscclgo_port_store_and_flush if flush else library.mscclgo_port_store, *places, _word("store", value))

    def add(self, remote_offset: int, value: int, flush: bool = False) -> None:
        """Adds a value to a word of the peer's memory. The comment of PortChannelHandle::add
        says to which accesses it is atomic."""
        places = _unsigned("add", remote_offset=remote_offset)
        self._queue(library.mscclgo_port_add_and_flush if flush else library.mscclgo_port_add, *places, _word("add", value))

    def exchange(self, remote_offset: int, value: int, local_offset: int, flush: bool = False) -> None:
        """Replaces a word of the peer's memory by a value. After a flush a word of this rank's memory
        has the previous value. It is atomic as add is."""
        remote, local = _unsigned("exchange", remote_offset=remote_offset, local_offset=local_offset)
        function = library.mscclgo_port_exchange_and_flush if flush else library.mscclgo_port_exchange
        self._queue(function, remote, _word("exchange", value), local)

    def signal(self) -> None:
        """Ends a wait of the peer's, after all that the channel was asked for before."""
        self._queue(library.mscclgo_port_signal)

    def flush(self) -> None:
        """Holds the stream until all that the channel was asked for is done at the peer, and what was got
        or exchanged is here."""
        self._queue(library.mscclgo_port_flush)

    def wait(self) -> None:
        """Holds the stream until one more signal of the peer's has come, and consumes it. Later work
        of the stream sees what the peer asked for before. Waits of one channel are on one stream, or
        ordered by events."""
        self._queue(library.mscclgo_port_wait)

    def _queue(self, function: Any, *arguments: int) -> None:
        stream = self._stream or self._group.stream()
        call(function, self._channels._handle, stream._handle, *self._where, *arguments)


def _unsigned(name: str, **values: Any) -> "list[int]":
    return [integer(f"{name}: {what}", value, 0, (1 << 64) - 1) for what, value in values.items()]


def _word(name: str, value: Any) -> int:
    """Returns a value of 8 bytes, of which ctypes would take the lower bits of any int."""
    return integer(f"{name}: value", value, -(1 << 63), (1 << 64) - 1) % (1 << 64)


HANDLES = (MemoryChannels._struct, PortChannels._struct)
SETS = (MemoryChannels._set, PortChannels._set)


class PipePool(NamedTuple):
    """How the memory of a rank's shared pipes is used; see Group.pipe_pool."""

    bytes: int  # of the memory
    for_ends: int  # bytes of it for the control words and own slots of pipes
    taken: int  # bytes of these that pipes take
    lots: int  # pieces that long messages borrow
    lent: int  # lots that messages under way have
    asked: int  # how often a message was to borrow a lot
    refused: int  # how often it got none, so that it went through its pipe's own slots


class Pipes(Owner):
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
        shared: bool,
        lazy: bool,
    ) -> None:
        if buffer is not None:
            if not isinstance(buffer, Array):
                raise InvalidError(f"mscclgo: pipes take an Array, of group.empty, group.array or group.wrap, not {a_kind(buffer)}")
            buffer.pointer  # raises if it was closed
        receivers, senders = _ranks("to", to), _ranks("from_", from_)
        options = PipeOptions(
            to=receivers,
            to_count=len(receivers),
            from_count=len(senders),
            per_peer=integer("pipes: per_peer", per_peer),
            slots=integer("pipes: slots", slots),
            slot_bytes=integer("pipes: slot_bytes", slot_bytes, 0, (1 << 64) - 1),
            buffer=None if buffer is None else buffer._handle,
            ports=bool(ports),
            shared=bool(shared),
            lazy=bool(lazy),
            name=None if name is None else text("pipes: the name", name),
        )
        setattr(options, "from", senders)  # which is no name in Python
        self._array = buffer  # which the pipes need
        # The pipes are destroyed with what moves their messages.
        self._proxy = make(library.mscclgo_proxy_create, group._handle) if by_proxy else None
        options.proxy = self._proxy
        try:
            self._handle: int = group._wait(lambda: make(library.mscclgo_pipes_create, group._handle, ctypes.addressof(options)))
        except Exception:
            if self._proxy is not None:
                library.mscclgo_proxy_destroy(self._proxy)
            raise
        self._group = group
        _hold(group, self)

    def open(self, *ranks: int) -> None:
        """Connects lazy pipes to and from ranks, for kernels that are launched afterwards; in graphs too.
        Each of these ranks names this one in such a call of its own, for which this one waits; no other
        rank takes part. What is connected costs nothing."""
        numbers = _ranks("open", ranks)
        self._group._wait(lambda: call(library.mscclgo_pipes_open, self._handle, numbers, len(numbers)))

    def handle_bytes(self) -> bytes:
        """The mscclgo::PipeSet that kernels take."""
        return bytes(stored(ctypes.c_char * PIPE_SET_BYTES, library.mscclgo_pipes_get_set, self._handle).raw)

    def close(self) -> None:
        """Frees the pipes. No kernel of any rank may use them any longer. Collective: it waits for the
        other ranks, for at most 5 seconds."""
        proxy, handle = self._proxy, self._handle
        if proxy is not None:
            self._group._wait(lambda: call(library.mscclgo_proxy_destroy, proxy))
        else:
            self._group._wait(lambda: call(library.mscclgo_pipes_destroy, handle))
        _drop(self._group, self)
        self._array = None


def _ranks(name: str, ranks: Sequence[int]) -> Any:
    # Whether the group has them, the library tells all ranks.
    try:
        numbers = [operator.index(r) for r in ranks]
    except TypeError:
        raise InvalidError(f"mscclgo: pipes: {name} is a list of ranks, not {ranks!r}") from None
    return (ctypes.c_int * len(numbers))(*[integer(f"pipes: a rank of {name}", n) for n in numbers])


class PeerMemory(Owner):
    """An array of each rank, mscclgo::PeerMemory in kernels; see Group.share."""

    def __init__(self, group: Group, array: Array) -> None:
        if not isinstance(array, Array):
            raise InvalidError(f"mscclgo: ranks share an Array, of group.empty, group.array or group.wrap, not {a_kind(array)}")
        array.pointer  # raises if it was closed
        self._array: Optional[Array] = array
        self._group = group
        self._handle: int = group._wait(lambda: make(library.mscclgo_peer_memory_create, group._handle, array._handle))
        self._bytes = b""  # for kernels, once they were asked for and until it is closed
        _hold(group, self)

    def _elements(self) -> Tuple[int, str]:
        """How many elements the array of this rank has, and of which type."""
        if self._array is None:
            raise InvalidError("mscclgo: the memory was closed")
        return self._array.size, self._array.dtype

    def handle_bytes(self) -> bytes:
        """The mscclgo::PeerMemory that kernels take."""
        self._bytes = bytes(stored(ctypes.c_char * PEER_MEMORY_HANDLE_BYTES, library.mscclgo_peer_memory_get_handle, self._handle).raw)
        return self._bytes

    def reform(self) -> bool:
        """Carries the memory to the group that this one's was re-formed to, each survivor's array untouched: see
        Group.reform. Returns whether graphs that use it are right. New ranks call Group.share. Collective."""
        return carried(self._group, library.mscclgo_peer_memory_reform, self._handle)

    def close(self) -> None:
        """Unmaps the peers' arrays. Kernels that use them must be done. Collective if a call was
        prepared on it: then it waits for the other ranks, for at most 5 seconds."""
        self._bytes = b""
        self._group._wait(lambda: call(library.mscclgo_peer_memory_destroy, self._handle))
        _drop(self._group, self)
        self._array = None


def _hold(group: Group, made: Any) -> None:
    """Has what peers access live as long as the group, also if nobody refers to it here."""
    group._held.add(made)


def _drop(group: Group, made: Any) -> None:
    """Ends _hold, when what was made is closed."""
    group._held.discard(made)
