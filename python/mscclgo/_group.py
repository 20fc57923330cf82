"""Groups of ranks, and the collectives."""

from __future__ import annotations

import atexit
import ctypes
import sys
import threading
import weakref
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Any, Callable, Dict, Iterator, List, Optional, Sequence, Set, Tuple, Union

from . import _compiler, _memory, _module
from ._array import Array, Wrapped
from ._channels import MemoryChannels, PeerMemory, PipePool, Pipes, PortChannels, carried
from ._config import Config, pack
from ._errors import Error, InvalidError, UnsupportedError, a_kind, encode, reason
from ._library import FIFO_HANDLE_BYTES, GROUP_HANDLE_BYTES, PIPE_SET_BYTES, DeviceInfo, GroupOptions, Owner, address_of, call, failure, fast, instance, integer, integers, library, make, milliseconds, stored, text
from ._header import RECV, SEND
from ._messages import MESSAGES, Messages, place, rank
from ._module import Kernel, Module
from ._prepared import COLLECTIVES, Prepared, operation
from ._proxy import Proxy, Trigger
from ._stream import Stream, current_handle, handle_of, in_use, sweep
from ._waiting import TICK, Waiting, wait

if TYPE_CHECKING:
    from ._fast import Caller

# What a stream may be given as: one of this package, one of other code, a handle, or None for
# the current one.
AnyStream = Any


class Group(Owner):
    """One rank's view of its group. init and connect make one.

    Methods marked collective are called by every rank, in the same order and with arguments
    that fit. Ctrl-C in one that waits for other ranks ends the wait and fails the group.

    A tensor is an Array of this package, a NumPy array (on emulated devices), a tensor of PyTorch,
    or anything with __dlpack__ or __cuda_array_interface__; it is contiguous, and on the group's
    device. A stream is a Stream, one of PyTorch or CuPy, or a handle; None means the current one:
    PyTorch's where that runs on the device, else one of the group. Calls queue their work and return.
    On an emulated device a call on a tensor of the host without a stream returns once the work is done,
    since nothing else orders what the program does next. Messages wait so at the end of their body, and
    captured calls when the graph is launched. Ctrl-C ends such a wait, and the work goes on.

    A Graph of this package keeps what its work uses. A graph that other code captures, such as PyTorch's,
    does not: the tensors, Arrays and Modules of its work must live as long as it is launched. PyTorch's
    graphs want it of tensors that were made before the capture anyway.

    As a context manager, a group is aborted if the body raises, and else closed.
    """

    def __init__(self, handle: int) -> None:
        """Takes the handle of a group of the C library."""
        self._handle = handle
        self.rank = self._integer(library.mscclgo_group_rank)
        self.size = self._integer(library.mscclgo_group_size)
        self._device = make(library.mscclgo_group_device, handle)
        info = DeviceInfo()
        call(library.mscclgo_device_get_info, self._device, ctypes.addressof(info))
        self.device: str = info.name.decode()
        self.model: str = info.model.decode()
        self._host_memory = self._is_host_memory()
        # The number of the GPU, as CUDA and PyTorch count them.
        self._number = None if self._host_memory else int(self.device.partition(":")[2])
        self._own: Optional[Stream] = None
        self._streams: Dict[int, Stream] = {}
        self._making = threading.Lock()
        # What makes the simple calls; None where there is none.
        number = -1 if self._number is None else self._number
        self._quick: Optional[Caller] = None if fast is None else fast.Caller(handle, self._device, number, self.size, self._streams)
        self._met: Set[Any] = set()  # the calls whose first one, which waits for the other ranks, was made
        self._bytes: Optional[bytes] = None
        self._proxy: Optional[int] = None
        self._held: Set[Any] = set()  # what peers access and the library calls
        self._parts: List[Group] = []  # of split, which the library destroys with this one
        self._arrays: weakref.WeakSet[Array] = weakref.WeakSet()  # of its device, which a part does not free
        self._is_part = False
        self._late: List[Waiting] = []  # closes of parts and proxies that were interrupted, and go on
        self.closed = False
        _open[self] = None

    def _integer(self, function: Any) -> int:
        return int(stored(ctypes.c_int, function, self._handle).value)

    def _is_host_memory(self) -> bool:
        """Whether the device's memory is the host's too."""
        probe = make(library.mscclgo_buffer_create, self._device, 8)
        try:
            make(library.mscclgo_buffer_host_pointer, probe)
            return True
        except UnsupportedError:
            return False
        finally:
            call(library.mscclgo_buffer_destroy, probe)

    def __repr__(self) -> str:
        return f"mscclgo.Group(rank={self.rank}, size={self.size}, device={self.device!r})"

    def __enter__(self) -> "Group":
        return self

    def __exit__(self, kind: Any, error: Any, trace: Any) -> None:
        if error is None:
            self.close()
            return
        self._fail(error)

    def _fail(self, error: BaseException) -> None:
        """Aborts and closes the group for an exception, which is the one to tell."""
        try:
            try:
                self.abort(reason(error))
            finally:
                self.close()
        except Error:
            pass

    # Life

    def close(self) -> None:
        """Leaves the group and frees all that was made of it. It waits for the other ranks to leave
        too, for at most 5 seconds. Then waits in kernels end, and what is queued on streams has
        30 seconds to end before its memory is freed. After Ctrl-C another thread goes on with that. It may
        be called twice."""
        if self.closed:
            return
        self.closed = True
        try:
            wait(self._destroy, self._interrupted_close)
        except Error:
            if self._is_there():  # another thread is in a call; it may be closed later
                self.closed = False
                raise
            self._linger()
            self._left()
            raise
        except BaseException:
            self.closed = self not in _open  # a signal may come before the library is called
            raise
        self._left()
        sweep()

    def _destroy(self) -> None:
        while self._late:  # while a part or a proxy is closed, its group cannot be
            self._late.pop().join()
        call(library.mscclgo_group_destroy, self._handle)

    def _interrupted_close(self, error: BaseException, call: Waiting) -> None:
        # Of arrays that wrap tensors of other code too, which let go of them below.
        call.used = in_use(), [array._owner for array in list(self._arrays)]
        if self._is_part:
            self._late.append(call)
        self._linger()
        self._left()

    def _linger(self) -> None:
        """Has the functions that proxies call live as long as the process."""
        for made in list(self._held):
            if isinstance(made, Proxy):
                made._linger()

    def _is_there(self) -> bool:
        """Whether the library has the group."""
        size = ctypes.c_int()
        return bool(library.mscclgo_group_size(self._handle, ctypes.addressof(size)) == 0)

    def _left(self) -> None:
        """The library has ended the group and its parts."""
        self.closed = True
        _open.pop(self, None)
        for part in self._parts:
            part._left()
        if not self._is_part:
            for array in list(self._arrays):
                array._forget()

    def abort(self, reason: str) -> None:
        """Fails the group: waits of all ranks end, and their calls raise an error with the reason."""
        if not isinstance(reason, str):
            raise InvalidError(f"mscclgo: abort: the reason is a str, not {a_kind(reason)}")
        call(library.mscclgo_group_abort, self._handle, encode(reason))

    def check(self) -> None:
        """Raises the group's error if it has failed."""
        call(library.mscclgo_group_error, self._handle)

    def split(self, color: int, key: int = 0, config: Optional[Config] = None) -> "Optional[Group]":
        """Divides the group: the ranks that pass the same color form a group of their own, in the order
        of their keys, and by rank where keys are equal. Returns this rank's view of it, or None
        for a negative color. It has the device of this group, and is closed with it unless it was before.
        Each fails alone. config, alike on the ranks of a part, configures its collectives; by default it is
        this group's. Collective, also for ranks with a negative color.

        Collectives and messages of the two groups have no order among them: on several streams their
        kernels run at the same time. Then the device needs room for all of their blocks, or ranks may wait
        for each other; Config(max_blocks=...) bounds them. On one stream, in the same order on all ranks,
        one's room is enough."""
        packed = pack(config)
        numbers = integer("split: color", color), integer("split: key", key)
        handle = self._wait(lambda: make(library.mscclgo_group_split_configured, self._handle, *numbers, _place(packed)))
        if not handle:
            return None
        part = Group(handle)
        part._arrays, part._late, part._is_part = self._arrays, self._late, True
        self._parts = [p for p in self._parts if not p.closed] + [part]
        return part

    def reform(self, id: str, rank: int, size: int, timeout: Optional[float] = None) -> None:
        """Makes this rank, of a group that has failed or works, a rank of the next group: rank of size, at the
        Rendezvous of an id. The ranks that survive a failure call it, or ranks of a working group that all agree.
        New ranks call connect. This object then stands for the new group, with other rank and size; Member.reform
        has a server decide who goes on. Collective, for the ranks of the new group.

        Arrays with their elements, streams, modules, graphs and events stay. Call reform of memory channels, port
        channels, shared memory and, after that, of prepared calls, on all ranks in one order: then these stay too. Pipes,
        proxies and parts are closed: make them again. Capture graphs again if reform of an object that they use
        returns False, if reform_collectives does and they have collectives or messages, or if handle_bytes of the
        group is not as before. Queued work ends before, waits as aborted if the group has failed. Work on streams
        that the package does not know must have ended.

        After an error it may be called again with another id, or the group closed. If the ranks did not
        come together, all is as before. After Ctrl-C another thread goes on with it, and fails the new group."""
        place = text("reform: the id", id)
        numbers = integer("reform: rank", rank), integer("reform: size", size)
        ms = milliseconds(timeout)
        self._follow(lambda: call(library.mscclgo_group_reform, self._handle, place, *numbers, ms))

    def reform_collectives(self) -> bool:
        """Carries what the group had for collectives and messages to the group that it was re-formed to. Returns
        whether graphs with collectives and messages are right, but for graphs with prepared calls. If they are not, a
        graph of the package raises InvalidError when it is launched, and a graph that other code captured, such as
        PyTorch, must not be launched. All ranks call it, or make their first collective instead. Collective."""
        return carried(self, library.mscclgo_group_reform_collectives, self._handle)

    def _follow(self, reform: Callable[[], Any], forsake: "Optional[Forsake]" = None) -> None:
        """Calls a function that has the library re-form the group. forsake is as in _connected."""

        def body() -> None:
            while self._late:  # while a part or a proxy is closed, its group cannot be re-formed
                self._late.pop().join()
            try:
                reform()
            except Error:
                self._drop_destroyed(failed=True)
                raise
            self._drop_destroyed()
            self._begin_anew()

        def interrupted(error: BaseException, call: Waiting) -> None:
            why = encode(reason(error))
            (forsake or end_later)(call, lambda: library.mscclgo_group_abort(self._handle, why))

        wait(body, interrupted)

    def _drop_destroyed(self, failed: bool = False) -> None:
        """Drops what the library has destroyed with the old group, of which a handler may go on if that failed."""
        room = ctypes.create_string_buffer(max(FIFO_HANDLE_BYTES, PIPE_SET_BYTES))
        for part in [p for p in self._parts if not p.closed and not p._is_there()]:
            part._left()
        for made in list(self._held):
            get = {Proxy: library.mscclgo_proxy_get_fifo, Pipes: library.mscclgo_pipes_get_set}.get(type(made))
            if get is not None and get(made._handle, room):
                if failed and isinstance(made, Proxy):
                    made._linger()
                self._held.discard(made)
        if self._proxy is not None and library.mscclgo_proxy_get_fifo(self._proxy, room):
            self._proxy = None

    def _begin_anew(self) -> None:
        """Forgets what was so of the old group."""
        self.rank = self._integer(library.mscclgo_group_rank)
        self.size = self._integer(library.mscclgo_group_size)
        self._bytes = None
        for made in list(self._held):  # channels and memory, until they are carried
            made._bytes = b""
        self._met.clear()
        if self._quick is not None:
            self._quick.renew(self.size)

    # Messages of the host

    def barrier(self, timeout: Optional[float] = None) -> None:
        """Waits until all ranks have called it; not for streams. Collective."""
        ms = milliseconds(timeout)
        self._wait(lambda: call(library.mscclgo_group_barrier, self._handle, ms))

    def all_gather_bytes(self, data: bytes, timeout: Optional[float] = None) -> "list[bytes]":
        """Returns the bytes of all ranks, as many from each, by rank. Collective."""
        if not isinstance(data, bytes):
            raise InvalidError(f"mscclgo: gather bytes of all ranks: data is {a_kind(data)} and not bytes")
        received = ctypes.create_string_buffer(max(len(data) * self.size, 1))
        ms = milliseconds(timeout)
        self._wait(lambda: call(library.mscclgo_group_all_gather, self._handle, data, len(data), received, ms))
        return [received.raw[r * len(data) : (r + 1) * len(data)] for r in range(self.size)]

    def _wait(self, body: Callable[[], Any]) -> Any:
        """Calls what waits for other ranks, for which this one would be missing after an interrupt."""
        return wait(body, self._interrupted)

    def _first(self, key: Any, body: Callable[[], Any]) -> None:
        """Makes a call of which only the first of a key waits for other ranks."""
        if key in self._met or _PER_THREAD in self._streams:  # another thread would queue it on its own
            body()
        else:
            self._wait(body)
        self._met.add(key)

    def _interrupted(self, error: BaseException, call: Waiting) -> None:
        try:
            self.abort(reason(error))
        except Error:
            pass  # the exception of the signal is the one to tell
        call.join(_END)

    # Streams and memory

    def stream(self, stream: AnyStream = None) -> Stream:
        """Returns the Stream of what is given; see Group."""
        if isinstance(stream, Stream):
            return stream
        handle = current_handle(self._number) if stream is None else handle_of(stream)
        known = self._own if handle is None else self._streams.get(handle)
        if known is not None:
            return known
        with self._making:  # another thread may be here too
            if handle is None:
                if self._own is None:
                    self._own = self.new_stream()
                return self._own
            if handle not in self._streams:
                known = Stream(self, make(library.mscclgo_stream_wrap, self._device, handle))
                known.owner = stream  # which must live as long
                self._streams[handle] = known
            return self._streams[handle]

    def new_stream(self) -> Stream:
        """Makes a stream on the group's device."""
        return Stream(self, make(library.mscclgo_stream_create, self._device))

    def synchronize(self, stream: AnyStream = None, timeout: Optional[float] = None) -> None:
        """Waits until a stream's work is done, and raises the error of a wait of this group in it that
        failed; see Stream.synchronize."""
        self.stream(stream)._synchronize(self._handle, timeout)

    def _settle(self, given: AnyStream, on: Stream, held: Sequence[Any]) -> None:
        """Waits for work that was queued on tensors of the host, or Arrays that wrap such, where no stream was given: nothing
        else orders what Python does with them next. held is what address has added."""
        if given is not None or not self._host_memory or on._capture is not None:
            return
        if any(isinstance(h, Wrapped) or isinstance(h, Array) and h._owner is not None for h in held):
            on._synchronize(self._handle, None)

    def empty(self, shape: Union[int, Sequence[int]], dtype: Any = "float32") -> Array:
        """Allocates device memory of undefined content, which peers may access."""
        return Array(self, shape, dtype)

    def array(self, source: Any) -> Array:
        """Allocates device memory with the elements of a tensor of the host, such as a NumPy array."""
        memory = _memory.of(source)
        return Array(self, getattr(source, "shape", memory.elements), memory.dtype).copy_from(source)

    def wrap(self, tensor: Any) -> Array:
        """Returns an array of a tensor of other code on the group's device, such as PyTorch's, where it is:
        for channels, pipes and prepared collectives, by which peers access it. The tensor is
        contiguous and not freed before the array. On emulated devices it is a view of an Array.

        Peers access all of the allocation that the tensor is in. They cannot access allocations that
        PyTorch makes with expandable segments."""
        memory = _memory.of(tensor)
        if memory.kind == _memory.OWN:
            raise InvalidError("mscclgo: wrap takes a tensor of other code, and this is an Array")
        if memory.elements == 0:
            raise InvalidError("mscclgo: the tensor has no elements to wrap")
        if not memory.writable:
            raise InvalidError("mscclgo: the tensor is read-only, and peers may write to what is wrapped")
        if self._host_memory == (memory.kind == _memory.CUDA) or memory.number not in (None, self._number):
            where = "in the host's memory" if memory.kind == _memory.CPU else "on a GPU" if memory.number is None else f"on cuda:{memory.number}"
            raise InvalidError(f"mscclgo: the tensor is {where}, and the group's device is {self.device}")
        return Array(self, getattr(tensor, "shape", memory.elements), memory.dtype, memory, tensor)

    def address(self, tensor: Any, held: List[Any], written: bool = True) -> Tuple[int, _memory.Memory]:
        """Returns where the tensor is for kernels, and adds what must live until their work is done to
        held, which the caller passes to Stream.keep_for once it has queued the work: an Array, or what
        wraps memory of the host. A framework keeps its tensors of a GPU as it does for kernels of its
        own, if they live until the work is queued."""
        memory = _memory.of(tensor)
        if memory.kind == _memory.OWN:
            if tensor.group.device != self.device:
                raise InvalidError(f"mscclgo: the array is on {tensor.group.device}, and the group's device is {self.device}")
            held.append(tensor)
            return memory.address, memory
        if written and not memory.writable:
            raise InvalidError("mscclgo: the tensor is read-only, and would be written")
        if memory.kind == _memory.CUDA:
            if self._host_memory or memory.number not in (None, self._number):
                where = "a GPU" if memory.number is None else f"cuda:{memory.number}"
                raise InvalidError(f"mscclgo: the tensor is on {where}, and the group's device is {self.device}")
            return memory.address, memory
        if not self._host_memory:
            raise InvalidError(f"mscclgo: the tensor is in the host's memory, and the group's device is {self.device}: move it there")
        if memory.elements == 0:
            return 0, memory
        wrapped = Wrapped(self._device, memory, tensor)
        held.append(wrapped)
        return wrapped.address, memory

    # Kernels

    def compile(
        self,
        source: str,
        name: str = "kernel.cu",
        defines: Sequence[str] = (),
        include_dirs: Sequence[str] = (),
        flags: Sequence[str] = (),
        check: bool = False,
    ) -> Module:
        """Compiles a CUDA source for the group's device and loads it.

        The kernels are extern "C" __global__ and may include the headers of the library, such
        as <mscclgo/memory_channel.cuh>. What was compiled before comes from a cache. With check
        they check what they do with the library, as they always do on emulated devices.
        InvalidError has the compiler's messages.
        """
        return _module.compile(self, source, name, defines, include_dirs, flags, check)

    def load(self, file: Any) -> Module:
        """Loads the kernels for the group's device from a file that `mscclgo compile` has made, which
        needs no compiler. What is in it runs with the rights of this process: load none of strangers.

        UnsupportedError if the file has no image for the device, InvalidError if it is no bundle."""
        return _module.load(self, file)

    def max_blocks(self, kernel: Kernel, threads: int, shared: int = 0) -> int:
        """Returns how many blocks of a kernel whose blocks wait for peers a rank may launch, with so
        many threads a block and bytes of dynamic shared memory. When it returns, all ranks have
        loaded the kernel: call it before the first launch. Collective."""
        handle = instance("max_blocks: the kernel", kernel, Kernel)._handle
        sizes = integer("max_blocks: threads", threads), integer("max_blocks: shared", shared)
        return int(self._wait(lambda: stored(ctypes.c_int, library.mscclgo_group_max_blocks, self._handle, handle, *sizes)).value)

    def handle_bytes(self) -> bytes:
        """The mscclgo::GroupHandle that kernels take. Collective the first time."""
        if self._bytes is None:
            room = ctypes.c_char * GROUP_HANDLE_BYTES
            self._bytes = self._wait(lambda: stored(room, library.mscclgo_group_get_handle, self._handle)).raw
        return self._bytes

    def memory_channels(
        self, local: Array, inbox: Optional[Array] = None, per_peer: int = 1, name: Optional[str] = None
    ) -> MemoryChannels:
        """Makes channels between all ranks, by which kernels copy straight into the peer's memory.
        Peers write the local array, or the inbox. Collective."""
        return MemoryChannels(self, local, inbox, per_peer, name)

    def port_channels(
        self, local: Array, inbox: Optional[Array] = None, per_peer: int = 1, name: Optional[str] = None, on_stream: bool = False
    ) -> PortChannels:
        """Makes channels between all ranks over any transport, which a thread of the library serves.
        Peers write the local array, or the inbox. With on_stream, alike on all ranks, they take operations
        on streams too: channels.on_stream(peer).put(...). Collective."""
        return PortChannels(self, self._port_proxy(), local, inbox, per_peer, name, on_stream)

    def _port_proxy(self) -> int:
        """The proxy of all port channels."""
        if self._proxy is None:
            self._proxy = make(library.mscclgo_proxy_create, self._handle)
        return self._proxy

    def pipes(
        self,
        to: Sequence[int],
        from_: Sequence[int],
        per_peer: int = 1,
        slots: int = 0,
        slot_bytes: int = 0,
        buffer: Optional[Array] = None,
        ports: bool = False,
        name: Optional[str] = None,
        shared: bool = False,
        lazy: bool = False,
    ) -> Pipes:
        """Makes pipes, one-way streams of messages, with which kernels send to the ranks of to and receive
        from the ranks of from_: mscclgo::PipeSet of <mscclgo/pipe.cuh>. Each rank of to names this one in
        its from_, and the other way round.

        A pipe has a ring of slots, a power of two, of so many bytes, a multiple of 128; 0 means 8 of
        128 KiB, or among more than 8 ranks of a half, a quarter and so on, so that no rank's pipes take
        more than 64 MiB of device memory. What is received into the buffer is written there at once,
        without slots. With ports, and between ranks that do not map each other's memory, a thread of the
        library moves the messages. The slots of all shared pipes of the group lie in 64 MiB of a rank's
        memory, or in Config.pipe_pool bytes. A pipe then has 2 by default, and longer messages borrow
        others; pipe_pool tells how the memory is used. Lazy pipes are shared, and cost no more than a
        handle until Pipes.open connects them. Collective: ranks without pipes call it too.
        """
        mapped = self._all_mapped()  # by all ranks, whatever their ports
        by_proxy = ports or not mapped
        return Pipes(self, to, from_, per_peer, slots, slot_bytes, buffer, by_proxy, ports, name, shared, lazy)

    def pipe_pool(self) -> PipePool:
        """How the memory of this rank's shared pipes is used; all is 0 before its first use. Kernels may be
        under way."""
        return PipePool(*stored(ctypes.c_uint64 * len(PipePool._fields), library.mscclgo_group_get_pipe_pool, self._handle))

    def _all_mapped(self) -> bool:
        """Whether all ranks map each other's memory. Collective the first time."""
        try:
            self.handle_bytes()
            return True
        except UnsupportedError:
            return False

    def proxy(self, handler: Callable[[Trigger], Any]) -> Proxy:
        """Has a function called for each trigger that kernels push with the proxy as mscclgo::FifoHandle
        of <mscclgo/fifo.cuh>, in the order of the pushes, on a thread of the library. An exception
        of the handler fails the group. The handler must neither wait for kernels that wait for the proxy
        nor close the proxy or the group. Proxy.ends tells one that waits for something when to return."""
        return Proxy(self, handler)

    def share(self, array: Array) -> PeerMemory:
        """Gives all ranks access to an array of each rank. Collective."""
        return PeerMemory(self, array)

    # Collectives

    def prepare(
        self,
        name: str,
        output: PeerMemory,
        input: Optional[PeerMemory] = None,
        op: str = "sum",
        root: int = 0,
        count: Optional[int] = None,
        overlap: bool = False,
    ) -> Prepared:
        """Prepares a collective on arrays that the ranks share, and returns what launches it, which
        is called with a stream. It is the fastest way, for arrays that are used again and again:

            x = group.array(numpy.ones(1 << 20, "float32"))
            reduce = group.prepare("all_reduce", group.share(x))
            reduce()

        name is the name of a method below. Without an input the output holds both: an all_gather finds
        this rank's part in its place of the output, and a reduce_scatter leaves the result there. count
        is the elements of a part, from where the arrays begin. By default it is as many as the arrays
        have; then their sizes must fit. With overlap, a launch may begin while the kernel before it in the
        stream ends. Collective.
        """
        return Prepared(self, name, output, input, op, root, count, overlap)

    def _part(self, name: str, tensor: Any, parts: int, held: List[Any], written: bool) -> Tuple[int, int, str]:
        """Returns where a tensor of a collective is, the elements of each of its parts, and their type."""
        address, memory = self.address(tensor, held, written)
        count, dtype = memory.elements, memory.dtype
        if dtype not in _memory.TYPES:
            raise InvalidError(f"mscclgo: {name}: the tensor has elements of {dtype}, and the collectives take {', '.join(_memory.TYPES)}")
        if parts == 1:
            return address, count, dtype
        if count % parts:
            raise InvalidError(f"mscclgo: {name}: the tensor has {count} elements, which is no multiple of {parts} ranks")
        return address, count // parts, dtype

    def _collect(self, name: str, output: Any, input: Any, parts: Tuple[int, int], *more: int, stream: AnyStream) -> None:
        """Queues a collective. parts are how many parts, each of the call's count of elements,
        the output and the input have; a tensor that is None is not used on this rank. more are
        the last arguments of the library's function."""
        if self._quick is not None:
            status = self._quick.collect(_ADDRESSES[name], stream, output, input, parts, more)
            if status < 0 and type(stream) is not Stream:
                status = self._quick.collect(_ADDRESSES[name], self.stream(stream), output, input, parts, more)
            if status == 0:
                return
            if status > 0:
                raise failure(status)
        on = self.stream(stream)
        if output is None and input is None:
            raise InvalidError(f"mscclgo: {name}: there is no tensor")
        held: List[Any] = []
        to = at = 0
        if output is not None:
            to, count, dtype = self._part(name, output, parts[0], held, True)
        if input is output:
            at = to
        elif input is not None:
            at, n, of = self._part(name, input, parts[1], held, False)
            if output is None:
                count, dtype = n, of
            if n != count:
                raise InvalidError(f"mscclgo: {name}: the output has {count} elements a part, and the input {n}")
            if of != dtype:
                raise InvalidError(f"mscclgo: {name}: the output has elements of {dtype}, and the input of {of}")
        number, used = _memory.TYPES[dtype][0], (output, input)

        def queue() -> None:
            try:
                call(getattr(library, "mscclgo_" + name), self._handle, on._handle, to, at, count, number, *more)
            finally:  # also after a signal's exception, which comes once the work is queued
                on.keep_for(held, used)  # which live until here, also after an interrupt

        self._first((name, count, number, more), queue)
        if self._quick is not None:
            self._quick.meet(_ADDRESSES[name], count, number, more)
        self._settle(stream, on, held)

    def load_collective(self, name: str, count: int, dtype: str = "float32", op: str = "sum", root: int = 0) -> None:
        """Prepares what the first such call needs, so that it only queues, and can be captured. name is the name of a
        method below, and count the elements of a part, as for prepare. op is not used if the collective does not
        reduce, nor root if it has none. Collective."""
        if not isinstance(name, str) or name not in COLLECTIVES:
            raise InvalidError(f"mscclgo: load_collective: {name!r} is not a collective: {', '.join(COLLECTIVES)} are")
        if not isinstance(dtype, str) or dtype not in _memory.TYPES:
            raise InvalidError(f"mscclgo: load_collective: {dtype!r} is not a type of elements: {', '.join(_memory.TYPES)} are")
        elements, number = integer("load_collective: count", count, 0, (1 << 64) - 1), _memory.TYPES[dtype][0]
        how, at = operation("load_collective", op), rank(self, "load_collective", root)
        self._wait(lambda: call(library.mscclgo_collective_load, self._handle, COLLECTIVES[name][0], elements, number, how, at))
        # As the method has it, whose first call only queues now.
        more = ((how,) if "reduce" in name else ()) + ((at,) if name in ("broadcast", "reduce", "gather", "scatter") else ())
        self._met.add((name, elements, number, more))
        if self._quick is not None:
            self._quick.meet(_ADDRESSES[name], elements, number, more)

    def all_reduce(self, tensor: Any, output: Any = None, op: str = "sum", stream: AnyStream = None) -> None:
        """Reduces the tensors of all ranks into every rank's output, or in place without one. op is
        sum, prod, max, min or avg.

        This and the methods below queue their work on the stream and return, on tensors of the host once it
        is done unless a stream is given: see Group. All ranks make the
        same calls in the same order. The first call of a kind, type, operation and algorithm, which the size decides
        on, waits for the other ranks while it prepares: call load_collective, or make it once, before you capture it.
        """
        self._collect("all_reduce", tensor if output is None else output, tensor, (1, 1), operation("all_reduce", op), stream=stream)

    def all_gather(self, output: Any, input: Any, stream: AnyStream = None) -> None:
        """Concatenates the inputs of all ranks in every rank's output."""
        self._collect("all_gather", output, input, (self.size, 1), stream=stream)

    def reduce_scatter(self, output: Any, input: Any, op: str = "sum", stream: AnyStream = None) -> None:
        """Reduces the inputs of all ranks, and leaves part r of the result in the output of rank r."""
        self._collect("reduce_scatter", output, input, (1, self.size), operation("reduce_scatter", op), stream=stream)

    def all_to_all(self, output: Any, input: Any, stream: AnyStream = None) -> None:
        """Makes part p of this rank's input this rank's part of the output of rank p."""
        self._collect("all_to_all", output, input, (self.size, self.size), stream=stream)

    def broadcast(self, tensor: Any, root: int = 0, stream: AnyStream = None) -> None:
        """Copies the root's tensor into the tensors of all ranks."""
        self._collect("broadcast", tensor, tensor, (1, 1), rank(self, "broadcast", root), stream=stream)

    def reduce(self, tensor: Any, output: Any = None, op: str = "sum", root: int = 0, stream: AnyStream = None) -> None:
        """Reduces the tensors of all ranks into the root's output, or in place without one."""
        root = rank(self, "reduce", root)
        to = (tensor if output is None else output) if self.rank == root else None
        self._collect("reduce", to, tensor, (1, 1), operation("reduce", op), root, stream=stream)

    def gather(self, output: Any, input: Any, root: int = 0, stream: AnyStream = None) -> None:
        """Concatenates the inputs of all ranks in the root's output. On other ranks that is not used."""
        root = rank(self, "gather", root)
        self._collect("gather", output if self.rank == root else None, input, (self.size, 1), root, stream=stream)

    def scatter(self, output: Any, input: Any, root: int = 0, stream: AnyStream = None) -> None:
        """Copies part r of the root's input into the output of rank r. On other ranks the input is not used."""
        root = rank(self, "scatter", root)
        self._collect("scatter", output, input if self.rank == root else None, (1, self.size), root, stream=stream)

    def send_receive(self, output: Any, input: Any, stream: AnyStream = None) -> None:
        """Copies the input into the output of the next rank, around the ring of all ranks."""
        self._collect("send_receive", output, input, (1, 1), stream=stream)

    def all_to_all_v(
        self, output: Any, input: Any, send_counts: Sequence[int], receive_counts: Sequence[int], stream: AnyStream = None
    ) -> None:
        """Sends send_counts[p] elements of the input to each rank p, and receives receive_counts[p] from
        it. Both lie in the order of the ranks, without gaps."""
        on = self.stream(stream)
        sends, receives = self._counts("send_counts", send_counts), self._counts("receive_counts", receive_counts)
        held: List[Any] = []
        places, dtype = [], None
        for tensor, counts, written in ((output, receives, True), (input, sends, False)):
            address, memory = self.address(tensor, held, written)
            if sum(counts) > memory.elements:
                raise InvalidError(f"mscclgo: all_to_all_v: the counts are {sum(counts)} elements, and the tensor has {memory.elements}")
            if memory.dtype not in _memory.TYPES or dtype not in (None, memory.dtype):
                raise InvalidError(f"mscclgo: all_to_all_v: elements of {memory.dtype} are of the wrong type")
            places.append(address)
            dtype = memory.dtype
        array = ctypes.c_uint64 * self.size
        number, used = _memory.TYPES[str(dtype)][0], (output, input)

        def queue() -> None:
            try:
                call(library.mscclgo_all_to_all_v, self._handle, on._handle, *places, array(*sends), array(*receives), number)
            finally:  # also after a signal's exception, which comes once the work is queued
                on.keep_for(held, used)  # which live until here, also after an interrupt

        self._first(("all_to_all_v", number), queue)
        self._settle(stream, on, held)

    def _counts(self, name: str, counts: Any) -> Tuple[int, ...]:
        """Returns the counts of all_to_all_v."""
        numbers = integers(f"all_to_all_v: a count of {name}", counts, 0, (1 << 63) - 1)
        if len(numbers) != self.size:
            raise InvalidError(f"mscclgo: all_to_all_v: {name} has a count for each of {self.size} ranks")
        return numbers

    # Sends and receives

    def messages(self, stream: AnyStream = None) -> Messages:
        """Begins sends and receives that go together, as one kernel, which the end of the body queues:

            with group.messages() as m:
                m.send(x, (group.rank + 1) % group.size)
                m.recv(y, (group.rank - 1) % group.size)

        All progress together, whatever their order; two ranks that send to each other do it in
        one body each. Messages of a pair of ranks are received in the order in which they were
        sent. A receive has the elements and the type of its send: if not, the group of ranks fails
        with an error that names both, and nothing is written. What a rank sends to itself it
        receives in the same body. If the body raises, nothing is sent.

        Only ranks that have messages take part. But the first messages of a group are launched by
        all ranks, with an empty body if need be, unless all have called load_messages.
        """
        return Messages(self, stream)

    def load_messages(self) -> None:
        """Prepares what messages need, so that the first ones concern only ranks that have some, and
        can be captured. Collective."""
        self._first(MESSAGES, lambda: call(library.mscclgo_messages_load, self._handle))

    def send(self, tensor: Any, peer: int, stream: AnyStream = None) -> None:
        """Sends a tensor to a rank, which receives it; see messages, for several at once."""
        self._transfer("send", tensor, peer, stream)

    def recv(self, tensor: Any, peer: int, stream: AnyStream = None) -> None:
        """Receives a tensor from a rank that sends it; see send."""
        self._transfer("recv", tensor, peer, stream)

    def _transfer(self, name: str, tensor: Any, peer: int, stream: AnyStream) -> None:
        """Queues one send or receive."""
        if self._quick is not None and MESSAGES in self._met:
            status = self._quick.transfer(_ADDRESSES[name], stream, name == "recv", tensor, peer)
            if status < 0 and type(stream) is not Stream:
                status = self._quick.transfer(_ADDRESSES[name], self.stream(stream), name == "recv", tensor, peer)
            if status == 0:
                return
            if status > 0:
                raise failure(status)
        on = self.stream(stream)
        held: List[Any] = []
        direction = RECV if name == "recv" else SEND
        what = *place(self, name, tensor, direction, held), rank(self, name, peer)

        def queue() -> None:
            try:
                call(getattr(library, "mscclgo_" + name), self._handle, on._handle, *what)
            finally:  # also after a signal's exception, which comes once the work is queued
                on.keep_for(held, [tensor])  # which lives until here, also after an interrupt

        self._first(MESSAGES, queue)
        self._settle(stream, on, held)


_PER_THREAD = 2  # cudaStreamPerThread, the handle of a default stream that each thread has of its own

# Where the library's functions of the collectives and of messages are.
_ADDRESSES = {name: address_of(getattr(library, "mscclgo_" + name)) for name in (*COLLECTIVES, "send", "recv")}

if fast is not None:
    fast.own(Array, Stream, MemoryChannels, PortChannels, Group, PeerMemory)

_END = 5.0  # seconds that a call of a group that has failed may last

# The groups that are not closed: the library works for one also if nobody refers to it here.
_open: Dict[Group, None] = {}  # in the order in which they were made
_default: Optional[Group] = None


def _options(device: Optional[str], timeout: float, heartbeat: Optional[float], scratch: int, local_rank: int = 0) -> GroupOptions:
    ms = milliseconds(timeout)
    if ms <= 0:
        raise InvalidError("mscclgo: the timeout is a number of seconds above 0")
    beat = 0 if heartbeat is None else milliseconds(heartbeat, "heartbeat_timeout") or -1
    name = None if device is None else text("the device", device)
    return GroupOptions(name, integer("local_rank", local_rank), ms, beat, integer("scratch", scratch, 0, (1 << 64) - 1))


def _place(struct: Optional[ctypes.Structure]) -> Optional[int]:
    return None if struct is None else ctypes.addressof(struct)


def init(
    device: Optional[str] = None,
    timeout: float = 30.0,
    heartbeat_timeout: Optional[float] = None,
    scratch: int = 0,
    config: Optional[Config] = None,
) -> Group:
    """Joins the group that the environment describes, as set by torchrun, mpirun, srun,
    "mscclgo run" or "python -m mscclgo run", and makes it the default group. Collective.

    device is "auto" (the default), "cuda", "emu", or one such as "cuda:0"; the variable
    MSCCLGO_DEVICE overrides it. timeout bounds every wait in a kernel, and heartbeat_timeout for
    how long a rank may give no sign of life (0 is for ever), in seconds. scratch is the memory
    for packets in bytes, 0 for 48 MiB. config has what is seldom needed, such as Config(max_blocks=8).

    Raises InvalidError if the environment describes no group.
    """
    options, packed = _options(device, timeout, heartbeat_timeout, scratch), pack(config)
    return _use(_connected(lambda: make(library.mscclgo_group_join_configured, ctypes.addressof(options), _place(packed))))


def connect(
    id: str,
    rank: int,
    size: int,
    device: Optional[str] = None,
    timeout: float = 30.0,
    heartbeat_timeout: Optional[float] = None,
    scratch: int = 0,
    local_rank: Optional[int] = None,
    config: Optional[Config] = None,
    default: bool = False,
) -> Group:
    """Is init for ranks that know the id of a Rendezvous, their numbers and how many they are. Ranks
    of one process call it on threads of their own; see also local. It sets the default group only if
    default is true."""
    rank, size = integer("rank", rank), integer("size", size)
    options = _options(device, timeout, heartbeat_timeout, scratch, rank if local_rank is None else local_rank)
    packed = pack(config)
    place = text("connect: the id", id)
    group = _connected(lambda: make(library.mscclgo_group_connect_configured, place, rank, size, ctypes.addressof(options), _place(packed)))
    return _use(group) if default else group


def _connected(connect: Callable[[], int], forsake: "Optional[Forsake]" = None) -> Group:
    """Returns the group whose handle a function returns once all ranks are there. forsake is called after an
    interrupt, with the call and what fails the group, in place of end_later."""

    def interrupted(error: BaseException, call: Waiting) -> None:
        why = encode(reason(error))

        def fail() -> None:
            library.mscclgo_group_abort(call.result, why)
            library.mscclgo_group_destroy(call.result)

        (forsake or end_later)(call, fail)

    _compiler.find()
    return Group(wait(connect, interrupted))


Forsake = Callable[[Waiting, Callable[[], Any]], Any]


def end_later(call: Waiting, fail: Callable[[], Any], end: Callable[[], Any] = bool) -> threading.Thread:
    """Has another thread, which it returns, fail the group that a call makes which was interrupted. end ends the
    call if it waits; it is called again and again, as the call may not wait yet, and when that has ended."""

    def body() -> None:
        while not call._has_ended:
            end()
            call.join(TICK)
        end()
        if call.error is None:
            fail()

    thread = threading.Thread(target=body, name="mscclgo end_later", daemon=True)
    thread.start()
    return thread


def _use(group: Group) -> Group:
    global _default
    _default = group
    return group


_own = threading.local()  # its group is the default one of a thread


@contextmanager
def own_default(group: Group) -> Iterator[None]:
    """Makes a group the default one of this thread."""
    _own.group = group
    try:
        yield
    finally:
        del _own.group


def default() -> Group:
    """Returns the group of init, or in a function that local calls the group of that rank."""
    group = getattr(_own, "group", _default)
    if group is None or group.closed:
        raise InvalidError("mscclgo: there is no group; call mscclgo.init() first")
    return group


def _leave() -> None:
    """Closes the groups when Python ends: after an exception that nobody handled, they fail."""
    error = getattr(sys, "last_value", None)
    groups = list(_open)[::-1]  # in one order on all ranks, as they wait for each other
    if error is not None:
        for group in groups:
            with suppress(Error):  # nobody is left to tell
                group.abort(reason(error))
    for group in groups:
        if not group._is_part:  # parts are closed with theirs, in the order of the library
            with suppress(Error):
                group.close()
    library.mscclgo_set_log(None, None, 0)


atexit.register(_leave)
