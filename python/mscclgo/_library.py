"""The C library: its functions by ctypes, and its errors as exceptions."""

from __future__ import annotations

import ctypes
import functools
import operator
import os
import platform
import struct
from typing import Any, Callable, NoReturn, Optional, Tuple

from ._errors import KINDS, Error, InvalidError, UnsupportedError, a_kind
from ._header import *
from ._version import __version__

fast: Any  # _fast, or None where it is not built, or not for this Python: all works without
try:
    from . import _fast

    fast = _fast
except ImportError:
    fast = None

VERSION = tuple(int(n) for n in __version__.split(".")[:3])  # of the header that this package was made for

# The types of parameters, by their letters in FUNCTIONS.
_TYPES = {
    "p": ctypes.c_void_p,
    "s": ctypes.c_char_p,
    "i": ctypes.c_int,
    "I": ctypes.c_uint32,
    "l": ctypes.c_int64,
    "L": ctypes.c_uint64,
    "z": ctypes.c_size_t,
}

LOG = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_int, ctypes.c_char_p)
HANDLER = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_void_p, ctypes.POINTER(Trigger), ctypes.c_void_p)

# A message: the stream, the address, the count, the type, the peer and the direction. Programs
# pack many, for which a Structure takes too long.
MESSAGE = struct.Struct("=QQQiii4x")


def _load() -> ctypes.CDLL:
    path = os.environ.get("MSCCLGO_LIBRARY") or os.path.join(os.path.dirname(__file__), "libmscclgo.so")
    try:
        loaded = ctypes.CDLL(path)
    except OSError as error:
        raise UnsupportedError(f"mscclgo: load the library: {error}; {remedy(path, str(error), platform.machine())}") from error
    return check(loaded, path)


def remedy(path: str, why: str, machine: str) -> str:
    """Tells what mends that a library cannot be loaded on a machine."""
    try:
        with open(path, "rb") as file:
            made = {b"\x3e\x00": "x86_64", b"\xb7\x00": "aarch64"}.get(file.read(20)[18:], machine)
    except OSError:
        made = ""
    if "MSCCLGO_LIBRARY" in os.environ:
        return "MSCCLGO_LIBRARY names it"
    if made and made != machine:
        return f"it is for {made}, and this machine is {machine}: pip install --force-reinstall --no-cache-dir mscclgo"
    if made and ("GLIBC_" in why or "musl" in why or "Error relocating" in why):
        return "it needs glibc 2.28 or later, as of Debian 10, Ubuntu 20.04 and RHEL 8: docker run -it --rm python:3 has it"
    return "the package is not whole: pip install --force-reinstall --no-cache-dir mscclgo"


def check(loaded: ctypes.CDLL, path: str) -> ctypes.CDLL:
    """Prepares the functions of a library, unless it is of another version."""
    try:
        loaded.mscclgo_version.restype = ctypes.c_uint32
        number = loaded.mscclgo_version()
        has = (number >> 16, number >> 8 & 0xFF, number & 0xFF)
        if has[:2] != VERSION[:2]:
            raise UnsupportedError(
                "mscclgo: load the library: {} is version {}.{}.{}, and the Python package {}.{}.{}: install "
                "both in one version: {}".format(path, *has, *VERSION, remedy(path, "", platform.machine()))
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


def stored(of: Any, function: Any, *arguments: Any) -> Any:
    """Calls a function whose last parameter is the place of a result, and returns that, of a type of ctypes."""
    result = of()
    call(function, *arguments, ctypes.addressof(result))
    return result


def make(function: Any, *arguments: Any) -> int:
    """Calls a function whose last parameter is the place of a handle or an address."""
    return stored(ctypes.c_void_p, function, *arguments).value or 0


def integer(what: str, value: Any, least: int = -(1 << 31), most: int = (1 << 31) - 1) -> int:
    """Returns an integer of a range, by default the range of an int of C, in which ctypes would cut it silently."""
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
    """Returns the integers of a range of a sequence, or a single int."""
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
    except Exception:  # such as an array's
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
