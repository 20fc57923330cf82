"""The exceptions of the package: one for each kind of failure of the library."""

from __future__ import annotations

import builtins
from typing import Dict, Optional, Type

from . import _header


class Error(RuntimeError):
    """A failure. The text says what was tried, why it failed, and what to do.

    rank is the rank that reports it, usually this one, and peer the one to blame or at the other end. It
    is None where that is rank itself, and where none is known. Where the launcher reports that a rank
    failed, rank is that one.
    """

    def __init__(self, text: str, rank: Optional[int] = None, peer: Optional[int] = None) -> None:
        super().__init__(text)
        self.rank = rank
        self.peer = peer


class InvalidError(Error, ValueError):
    """The call is wrong."""


class TimeoutError(Error, builtins.TimeoutError):
    """A time passed."""


class AbortedError(Error):
    """A rank aborted the group, or it was closed during the call."""


class RemoteError(Error):
    """A peer failed, left, or sent something wrong."""


class UnsupportedError(Error, NotImplementedError):
    """This machine, device or build cannot do that."""


class SystemError(Error):
    """The operating system, the driver or a compiler failed."""


def reason(error: BaseException) -> str:
    """Returns what an exception says, also if it cannot say it."""
    name = type(error).__name__
    try:
        text = str(error)
    except BaseException as another:
        return f"{name}, whose text raised {type(another).__name__}"
    if text:
        return f"{name}: {text}"
    return f"interrupted ({name})" if isinstance(error, KeyboardInterrupt) else name


def article(name: str) -> str:
    """Returns a name with its indefinite article."""
    return f"{'an' if name[:1] in 'AEIaeio' or name.startswith('uns') else 'a'} {name}"


def a_kind(value: object) -> str:
    """Returns the name of a value's type, with its article, for errors."""
    return article(type(value).__name__)


def encode(text: str, room: Optional[int] = None) -> bytes:
    """Returns a text for the library, in at most so many bytes: characters that UTF-8 does not have, and
    zeros, are escaped, and no character is cut."""
    data = text.encode("utf-8", "backslashreplace").replace(b"\0", b"\\0")
    return data if room is None else data[:room].decode("utf-8", "ignore").encode()


KINDS: Dict[int, Type[Error]] = {
    _header.INVALID: InvalidError,
    _header.TIMEOUT: TimeoutError,
    _header.ABORTED: AbortedError,
    _header.REMOTE: RemoteError,
    _header.UNSUPPORTED: UnsupportedError,
    _header.SYSTEM: SystemError,
}
