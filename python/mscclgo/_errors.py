"""The exceptions of the package: one for each kind of failure of the library."""

from __future__ import annotations

import builtins
from typing import Dict, Optional, Type


class Error(RuntimeError):
    """A failure. The text says what was tried, why it failed, and what to do.

    rank is the rank that failed and peer the one at the other end, or None where none is
    involved.
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
    """The group failed, or was closed during the call."""


class RemoteError(Error):
    """A peer failed, left, or sent something wrong."""


class UnsupportedError(Error, NotImplementedError):
    """This machine, device or build cannot do that."""


class SystemError(Error):
    """The operating system, the driver or a compiler failed."""


KINDS: Dict[int, Type[Error]] = {
    1: InvalidError,
    2: TimeoutError,
    3: AbortedError,
    4: RemoteError,
    5: UnsupportedError,
    6: SystemError,
}
