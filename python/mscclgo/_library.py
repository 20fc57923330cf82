"""The C library: its functions by ctypes, and its errors as exceptions."""

from __future__ import annotations

import ctypes
import functools
import operator
import os
import struct
from typing import Any, Callable, NoReturn, Optional, Tuple

from ._errors import KINDS, Error, InvalidError, UnsupportedError, a_kind
from ._version import __version__

fast: Any  # _fast, or None where it is not built, or not for this Python: all works without
try:
    from . import _fast

    fast = _fast
except ImportError:
    fast = None

VERSION = tuple(int(n) for n in __version__.split(".")[:3])  # of the header that this package was made for

# The functions that return a status: the types of their parameters, one letter each.
_TYPES = {
    "p": ctypes.c_void_p,
    "s": ctypes.c_char_p,
    "i": ctypes.c_int,
    "I": ctypes.c_uint32,
    "l": ctypes.c_int64,
    "L": ctypes.c_uint64,
    "z": ctypes.c_size_t,
}
FUNCTIONS = dict(
    check_version="I",
    set_log="ppi",
    group_join="pp",
    group_connect="siipp",
    group_join_configured="ppp",
    group_connect_configured="siippp",
    group_destroy="p",
    group_rank="pp",
    group_size="pp",
    group_get_pipe_pool="pp",
    group_device="pp",
    group_error="p",
    group_abort="ps",
    group_barrier="pl",
    group_all_gather="ppzpl",
    group_broadcast="pipzl",
    group_synchronize="ppl",
    group_max_blocks="ppiip",
    group_get_handle="pp",
    group_split="piip",
    group_split_configured="piipp",
    group_reform="psiil",
    group_reform_collectives="pp",
    elastic_create="spp",
    elastic_id="ppz",
    elastic_destroy="p",
    member_create="sppp",
    member_connect="plp",
    member_reform="ppl",
    member_generation="pp",
    member_newcomers="pp",
    member_leave="p",
    member_destroy="p",
    rendezvous_create="sp",
    rendezvous_id="ppz",
    rendezvous_destroy="p",
    run="ipip",
    device_open="sp",
    device_destroy="p",
    device_get_info="pp",
    buffer_create="pLp",
    buffer_create_host="pLp",
    buffer_wrap="ppLp",
    buffer_wrap_host="ppLp",
    buffer_slice="pLLp",
    buffer_destroy="p",
    buffer_size="pp",
    buffer_pointer="pp",
    buffer_host_pointer="pp",
    copy_in="pLpL",
    copy_out="ppLL",
    stream_create="pp",
    stream_wrap="ppp",
    stream_destroy="p",
    stream_handle="pp",
    stream_synchronize="pl",
    stream_query="pp",
    stream_copy="ppLpLL",
    stream_fill="ppLiL",
    stream_begin_capture="p",
    stream_end_capture="pp",
    graph_launch="pp",
    graph_destroy="p",
    event_create="pp",
    event_wrap="ppp",
    event_handle="pp",
    event_destroy="p",
    event_record="pp",
    event_wait="pp",
    event_synchronize="pl",
    event_query="pp",
    event_elapsed="ppp",
    module_compile="psspp",
    module_load="ppzp",
    module_load_bundle="psp",
    precompile="p",
    module_destroy="p",
    module_kernel="psp",
    kernel_parameters="ppzp",
    kernel_parameter_type="pzp",
    kernel_parameter_pointee="pzp",
    kernel_launch="ppppz",
    memory_channels_create="pppp",
    memory_channels_handles="pp",
    memory_channels_get_set="pp",
    memory_channels_handle="piip",
    memory_channels_reform="pp",
    memory_channels_destroy="p",
    proxy_create="pp",
    proxy_create_with_handler="pppp",
    trigger_ends="plp",
    proxy_get_fifo="pp",
    proxy_destroy="p",
    port_channels_create="ppppp",
    port_channels_handles="pp",
    port_channels_get_set="pp",
    port_channels_reform="ppp",
    port_channels_handle="piip",
    port_channels_create_for_streams="ppppp",
    port_put="ppiiLLL",
    port_put_with_signal="ppiiLLL",
    port_put_with_signal_and_flush="ppiiLLL",
    port_get="ppiiLLL",
    port_get_and_flush="ppiiLLL",
    port_store="ppiiLL",
    port_store_and_flush="ppiiLL",
    port_add="ppiiLL",
    port_add_and_flush="ppiiLL",
    port_exchange="ppiiLLL",
    port_exchange_and_flush="ppiiLLL",
    port_signal="ppii",
    port_flush="ppii",
    port_wait="ppii",
    pipes_create="ppp",
    pipes_open="ppi",
    pipes_get_set="pp",
    pipes_destroy="p",
    peer_memory_create="ppp",
    peer_memory_get_handle="pp",
    peer_memory_reform="pp",
    peer_memory_destroy="p",
    prepare="ppp",
    prepared_launch="pp",
    prepared_reform="pp",
    prepared_destroy="p",
    all_reduce="ppppLii",
    all_gather="ppppLi",
    reduce_scatter="ppppLii",
    all_to_all="ppppLi",
    all_to_all_v="ppppppi",
    broadcast="ppppLii",
    reduce="ppppLiii",
    gather="ppppLii",
    scatter="ppppLii",
    send_receive="ppppLi",
    messages_launch="ppz",
    collective_load="piLiii",
    messages_load="p",
    send="pppLii",
    recv="pppLii",
)

LOG = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_int, ctypes.c_char_p)


class GroupOptions(ctypes.Structure):
    _fields_ = [
        ("device", ctypes.c_char_p),
        ("local_rank", ctypes.c_int),
        ("timeout_ms", ctypes.c_int64),
        ("heartbeat_timeout_ms", ctypes.c_int64),
        ("scratch_bytes", ctypes.c_uint64),
    ]


class GroupConfig(ctypes.Structure):
    _fields_ = [
        ("bytes", ctypes.c_size_t),
        ("transports", ctypes.c_char_p),
        ("trace", ctypes.c_char_p),
        ("trace_events", ctypes.c_uint64),
        ("tuning", ctypes.c_char_p),
        ("collective_scratch_bytes", ctypes.c_uint64),
        ("max_blocks", ctypes.c_int),
        ("find_deadlocks", ctypes.c_int),
        ("pipe_pool_bytes", ctypes.c_uint64),
        ("host", ctypes.c_char_p),
    ]


class ElasticOptions(ctypes.Structure):
    _fields_ = [
        ("least", ctypes.c_int),
        ("most", ctypes.c_int),
        ("settle_ms", ctypes.c_int64),
        ("id", ctypes.c_char_p),
    ]


class DeviceInfo(ctypes.Structure):
    _fields_ = [
        ("name", ctypes.c_char * 32),
        ("model", ctypes.c_char * 128),
        ("arch", ctypes.c_char * 32),
        ("uuid", ctypes.c_ubyte * 16),
        ("multiprocessors", ctypes.c_int),
        ("max_threads_per_block", ctypes.c_int),
        ("max_shared_per_block", ctypes.c_int),
        ("warp_size", ctypes.c_int),
        ("total_memory", ctypes.c_uint64),
    ]


class CompileOptions(ctypes.Structure):
    _fields_ = [
        ("defines", ctypes.POINTER(ctypes.c_char_p)),
        ("include_dirs", ctypes.POINTER(ctypes.c_char_p)),
        ("flags", ctypes.POINTER(ctypes.c_char_p)),
        ("check", ctypes.c_int),
    ]


class PrecompileOptions(ctypes.Structure):
    _fields_ = [
        ("architectures", ctypes.c_char_p),
        ("collectives", ctypes.c_char_p),
        ("types", ctypes.c_char_p),
        ("operations", ctypes.c_char_p),
        ("ranks", ctypes.c_char_p),
        ("several_hosts", ctypes.c_int),
    ]


class Parameter(ctypes.Structure):
    _fields_ = [("offset", ctypes.c_uint32), ("bytes", ctypes.c_uint32)]


# The kinds of types.
KIND_UNKNOWN, KIND_BOOL, KIND_INT, KIND_UINT, KIND_ENUM, KIND_FLOAT, KIND_POINTER, KIND_STRUCT = range(8)


class ParameterType(ctypes.Structure):
    _fields_ = [
        ("name", ctypes.c_char_p),
        ("type", ctypes.c_char_p),
        ("kind", ctypes.c_int),
        ("bytes", ctypes.c_uint32),
        ("pointee", ctypes.c_int),
        ("pointee_bytes", ctypes.c_uint32),
    ]


class LaunchConfig(ctypes.Structure):
    _fields_ = [
        ("grid", ctypes.c_uint32 * 3),
        ("block", ctypes.c_uint32 * 3),
        ("dynamic_shared_bytes", ctypes.c_uint32),
        ("cooperative", ctypes.c_int),
    ]


class ChannelOptions(ctypes.Structure):
    _fields_ = [("per_peer", ctypes.c_int), ("inbox", ctypes.c_void_p), ("name", ctypes.c_char_p)]


class Trigger(ctypes.Structure):
    _fields_ = [
        ("a", ctypes.c_uint64),
        ("b", ctypes.c_uint64),
        ("c", ctypes.c_uint64),
        ("detail", ctypes.c_uint64),
        ("kind", ctypes.c_uint32),
    ]


HANDLER = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_void_p, ctypes.POINTER(Trigger), ctypes.c_void_p)


class PipeOptions(ctypes.Structure):
    _fields_ = [
        ("to", ctypes.POINTER(ctypes.c_int)),
        ("from", ctypes.POINTER(ctypes.c_int)),
        ("to_count", ctypes.c_int),
        ("from_count", ctypes.c_int),
        ("per_peer", ctypes.c_int),
        ("slots", ctypes.c_int),
        ("slot_bytes", ctypes.c_uint64),
        ("buffer", ctypes.c_void_p),
        ("proxy", ctypes.c_void_p),
        ("ports", ctypes.c_int),
        ("shared", ctypes.c_int),
        ("lazy", ctypes.c_int),
        ("name", ctypes.c_char_p),
    ]


class Call(ctypes.Structure):
    _fields_ = [
        ("collective", ctypes.c_int),
        ("type", ctypes.c_int),
        ("operation", ctypes.c_int),
        ("root", ctypes.c_int),
        ("count", ctypes.c_uint64),
        ("input", ctypes.c_void_p),
        ("output", ctypes.c_void_p),
        ("input_offset", ctypes.c_uint64),
        ("output_offset", ctypes.c_uint64),
        ("overlap", ctypes.c_int),
    ]


# A message: the stream, the address, the count, the type, the peer and the direction. Programs
# pack many, for which a Structure takes too long.
MESSAGE = struct.Struct("=QQQiii4x")

GROUP_HANDLE_BYTES = 88 * 8
PEER_MEMORY_HANDLE_BYTES = 80 * 8
PIPE_SET_BYTES = 7 * 8
CHANNEL_SET_BYTES = 6 * 8
FIFO_HANDLE_BYTES = 9 * 8
WHY_BYTES = 256
ID_BYTES = 4096


def _load() -> ctypes.CDLL:
    path = os.environ.get("MSCCLGO_LIBRARY") or os.path.join(os.path.dirname(__file__), "libmscclgo.so")
    try:
        loaded = ctypes.CDLL(path)
    except OSError as error:
        raise UnsupportedError(f"mscclgo: load the library: {error}; MSCCLGO_LIBRARY can name another one") from error
    return check(loaded, path)


def check(loaded: ctypes.CDLL, path: str) -> ctypes.CDLL:
    """Prepares the functions of a library, unless it is of another version."""
    try:
        loaded.mscclgo_version.restype = ctypes.c_uint32
        number = loaded.mscclgo_version()
        has = (number >> 16, number >> 8 & 0xFF, number & 0xFF)
        if has[:2] != VERSION[:2]:
            raise UnsupportedError(
                "mscclgo: load the library: {} is version {}.{}.{}, and the Python package {}.{}.{}: install those of "
                "one version".format(path, *has, *VERSION)
            )
        for name, result in dict(error_text=ctypes.c_char_p, error_rank=ctypes.c_int, error_peer=ctypes.c_int).items():
            getattr(loaded, "mscclgo_" + name).restype = result
        for name, codes in FUNCTIONS.items():
            function = getattr(loaded, "mscclgo_" + name)
            function.restype = ctypes.c_int
            function.argtypes = [_TYPES[code] for code in codes]
    except AttributeError as error:
        raise UnsupportedError(f"mscclgo: load the library: {path} is not libmscclgo.so, or another version: {error}") from error
    return loaded


library = _load()


def failure(status: int) -> Error:
    """Returns the exception of a call of this thread that has just failed."""
    text = library.mscclgo_error_text().decode("utf-8", "replace")
    rank, peer = library.mscclgo_error_rank(), library.mscclgo_error_peer()
    kind = KINDS.get(status, Error)
    return kind(text, None if rank < 0 else rank, None if peer < 0 else peer)


def call(function: Any, *arguments: Any) -> None:
    """Calls a function of the library and raises its error."""
    status = function(*arguments)
    if status:
        raise failure(status)


def address_of(function: Any) -> int:
    """Returns where a function of the library is."""
    return ctypes.cast(function, ctypes.c_void_p).value or 0


def direct(function: Any) -> Callable[..., int]:
    """Returns what calls a function of the library and returns its status, faster than ctypes does. Its
    arguments are ints, bytes and None, of which nothing is checked."""
    return function if fast is None else functools.partial(fast.call, address_of(function))


def make(function: Any, *arguments: Any) -> int:
    """Calls a function whose last parameter is the place of a handle or an address."""
    result = ctypes.c_void_p()
    call(function, *arguments, ctypes.addressof(result))
    return result.value or 0


def integer(what: str, value: Any, least: int = -(1 << 31), most: int = (1 << 31) - 1) -> int:
    """Returns an integer of a range, by default that of an int of C, in which ctypes would cut it silently."""
    try:
        number = operator.index(value)
    except TypeError:
        raise InvalidError(f"mscclgo: {what} is an int, not {a_kind(value)}") from None
    if not least <= number <= most:
        raise InvalidError(f"mscclgo: {what} is {number}, and must be {least} to {most}")
    return number


def instance(what: str, value: Any, of: type) -> Any:
    """Returns an object of this package, of the class that is needed."""
    if not isinstance(value, of):
        raise InvalidError(f"mscclgo: {what} is a mscclgo.{of.__name__}, not {a_kind(value)}")
    return value


def integers(what: str, value: Any, least: int, most: int) -> Tuple[int, ...]:
    """Returns the integers of a range of a sequence, or that of an int."""
    try:
        each = (operator.index(value),)
    except TypeError:
        try:
            each = (value,) if isinstance(value, (str, bytes)) else tuple(value)
        except TypeError:
            each = (value,)  # of which integer tells what is wrong
    return tuple(integer(what, n, least, most) for n in each)


def milliseconds(seconds: Optional[float], what: str = "a timeout") -> int:
    """Converts a time, of which None is without limit."""
    if seconds is None:
        return -1
    try:
        fits = bool(0 <= seconds < 2**31) if hasattr(seconds, "__float__") else None
    except Exception:  # such as that of an array
        fits = None
    if fits is None:
        raise InvalidError(f"mscclgo: {what} is a number of seconds, not {a_kind(seconds)}")
    if not fits:
        raise InvalidError(f"mscclgo: {what} of {seconds} seconds is not from 0 to {2**31 - 1}")
    return max(int(seconds * 1000), 1 if seconds > 0 else 0)


def text(what: str, value: Any) -> bytes:
    """Returns a text for the library, which takes it up to a zero byte."""
    if not isinstance(value, str):
        raise InvalidError(f"mscclgo: {what} is a str, not {a_kind(value)}")
    try:
        data = value.encode()
    except UnicodeEncodeError:
        raise InvalidError(f"mscclgo: {what} has a character that UTF-8 has not, a surrogate") from None
    if b"\0" in data:
        raise InvalidError(f"mscclgo: {what} has a zero byte")
    return data


class Owner:
    """What has an object of the library, which is destroyed with it."""

    def __reduce__(self) -> NoReturn:
        raise InvalidError(f"mscclgo: objects of {type(self).__name__} can be neither copied nor pickled, as each stands for what the library has once")
