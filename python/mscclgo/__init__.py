"""Collectives and channels between GPUs, and kernels that use them.

    import mscclgo

    group = mscclgo.init()          # the group of the environment
    mscclgo.all_reduce(tensor)      # on the current stream
    group.synchronize()             # an error names the rank to blame

Started by "python -m mscclgo run -n 4 program.py", or by torchrun, mpirun or srun. A tensor is
one of PyTorch, anything with __dlpack__ or __cuda_array_interface__, or on emulated devices,
which need no GPU, a NumPy array. Kernels of the program's own use the same memory:

    module = mscclgo.compile(source)
    channels = group.memory_channels(group.empty(1000))
    module.kernel[1, 256](None, channels, group, tensor)

The package is a thin layer on the C library libmscclgo.so, which it contains; mscclgo.h describes
that, and include() says where both it and the headers of kernels are.
"""

from __future__ import annotations

import ctypes
import os
from typing import Any, Callable, Optional, Sequence

from ._array import Array, Pointer
from ._channels import MemoryChannels, PeerMemory, PipePool, Pipes, PortChannels, StreamPort
from ._config import Config
from ._elastic import Elastic, Member
from ._errors import AbortedError, Error, InvalidError, RemoteError, SystemError, TimeoutError, UnsupportedError, a_kind
from ._group import AnyStream, Group, connect, default, init
from ._library import LOG, call, integer, library
from ._local import local
from ._messages import Messages
from ._module import Kernel, Launch, Module
from ._precompile import precompile
from ._prepared import Prepared
from ._proxy import Proxy, Trigger
from ._rendezvous import Rendezvous
from ._stream import Capture, Event, Graph, Stream
from ._version import __version__ as __version__

__all__ = [
    "AbortedError",
    "Array",
    "Capture",
    "Config",
    "Elastic",
    "Error",
    "Event",
    "Graph",
    "Group",
    "InvalidError",
    "Kernel",
    "Launch",
    "Member",
    "MemoryChannels",
    "Messages",
    "Module",
    "PeerMemory",
    "PipePool",
    "Pipes",
    "Pointer",
    "Prepared",
    "PortChannels",
    "Proxy",
    "RemoteError",
    "Rendezvous",
    "Stream",
    "StreamPort",
    "SystemError",
    "TimeoutError",
    "Trigger",
    "UnsupportedError",
    "all_gather",
    "all_reduce",
    "all_to_all",
    "all_to_all_v",
    "broadcast",
    "compile",
    "connect",
    "default",
    "gather",
    "include",
    "init",
    "load",
    "local",
    "messages",
    "precompile",
    "recv",
    "reduce",
    "reduce_scatter",
    "scatter",
    "send",
    "send_receive",
    "set_log",
    "synchronize",
]


def all_reduce(tensor: Any, output: Any = None, op: str = "sum", stream: AnyStream = None) -> None:
    """Group.all_reduce of the default group."""
    default().all_reduce(tensor, output, op, stream)


def all_gather(output: Any, input: Any, stream: AnyStream = None) -> None:
    """Group.all_gather of the default group."""
    default().all_gather(output, input, stream)


def reduce_scatter(output: Any, input: Any, op: str = "sum", stream: AnyStream = None) -> None:
    """Group.reduce_scatter of the default group."""
    default().reduce_scatter(output, input, op, stream)


def all_to_all(output: Any, input: Any, stream: AnyStream = None) -> None:
    """Group.all_to_all of the default group."""
    default().all_to_all(output, input, stream)


def broadcast(tensor: Any, root: int = 0, stream: AnyStream = None) -> None:
    """Group.broadcast of the default group."""
    default().broadcast(tensor, root, stream)


def reduce(tensor: Any, output: Any = None, op: str = "sum", root: int = 0, stream: AnyStream = None) -> None:
    """Group.reduce of the default group."""
    default().reduce(tensor, output, op, root, stream)


def gather(output: Any, input: Any, root: int = 0, stream: AnyStream = None) -> None:
    """Group.gather of the default group."""
    default().gather(output, input, root, stream)


def scatter(output: Any, input: Any, root: int = 0, stream: AnyStream = None) -> None:
    """Group.scatter of the default group."""
    default().scatter(output, input, root, stream)


def send_receive(output: Any, input: Any, stream: AnyStream = None) -> None:
    """Group.send_receive of the default group."""
    default().send_receive(output, input, stream)


def all_to_all_v(
    output: Any, input: Any, send_counts: Sequence[int], receive_counts: Sequence[int], stream: AnyStream = None
) -> None:
    """Group.all_to_all_v of the default group."""
    default().all_to_all_v(output, input, send_counts, receive_counts, stream)


def messages(stream: AnyStream = None) -> Messages:
    """Group.messages of the default group."""
    return default().messages(stream)


def send(tensor: Any, peer: int, stream: AnyStream = None) -> None:
    """Group.send of the default group."""
    default().send(tensor, peer, stream)


def recv(tensor: Any, peer: int, stream: AnyStream = None) -> None:
    """Group.recv of the default group."""
    default().recv(tensor, peer, stream)


def synchronize(stream: AnyStream = None, timeout: Optional[float] = None) -> None:
    """Group.synchronize of the default group."""
    default().synchronize(stream, timeout)


def compile(
    source: str,
    name: str = "kernel.cu",
    defines: Sequence[str] = (),
    include_dirs: Sequence[str] = (),
    flags: Sequence[str] = (),
    check: bool = False,
) -> Module:
    """Group.compile of the default group."""
    return default().compile(source, name, defines, include_dirs, flags, check)


def load(file: Any) -> Module:
    """Group.load of the default group."""
    return default().load(file)


def include() -> str:
    """Returns the folder of mscclgo.h and of the headers of kernels, mscclgo/*.cuh."""
    return os.path.join(os.path.dirname(__file__), "include")


_log = LOG()  # that the library calls now; it must live as long


def set_log(function: Optional[Callable[[int, str], None]], level: int = 0) -> None:
    """Has function called with the level and the text of each record of the library's log: events
    that are not errors of a call. Levels are -4 (debug), 0, 4 (a warning) and 8. It is called by
    threads of the library and by threads in a call of this package, one at a time. It must not call
    this package, nor take a lock that a thread holds in a call. None ends it. With the variable
    MSCCLGO_LOG=info (or debug, warn, error) groups write theirs to the standard error too."""
    global _log
    if function is not None and not callable(function):
        raise InvalidError(f"mscclgo: set_log: the function is None or a function, not {a_kind(function)}")
    number = integer("set_log: level", level)

    def receive(_user: Any, at: int, text: bytes) -> None:
        if function is not None:
            function(at, text.decode("utf-8", "replace"))

    wrapped = LOG(receive) if function is not None else LOG()
    call(library.mscclgo_set_log, ctypes.cast(wrapped, ctypes.c_void_p), None, number)
    _log = wrapped


for _name in __all__:  # as a program, a traceback and pickle know them
    globals()[_name].__module__ = __name__
