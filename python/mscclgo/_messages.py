"""Sends and receives that go together, as one kernel."""

from __future__ import annotations

import functools
import operator
from typing import TYPE_CHECKING, Any, Callable, List, Optional, Sequence

from . import _memory
from ._errors import InvalidError, a_kind
from ._header import RECV, SEND
from ._library import MESSAGE, direct, failure, library
from ._stream import Stream

if TYPE_CHECKING:
    from ._group import Group

MESSAGES = "messages"  # the key of Group._first, for all of them
_NAMES = ("send", "recv")


class Messages:
    """Sends and receives of one rank, in the body of a with statement; see Group.messages. It may be
    entered again, for others."""

    def __init__(self, group: Group, stream: Any) -> None:
        self._group = group
        self._given = stream
        self._stream: Optional[Stream] = None  # of messages that name none
        self._first: Optional[Stream] = None  # of the first message, which runs them all, if it is another
        self._settles = False  # whether a message was added without a stream, to messages without one
        self._quick: Optional[Callable[..., bool]] = None  # adds a simple message; None where there is no _fast
        self._packed: Optional[List[bytes]] = None  # outside of the body
        self._tensors: List[Any] = []  # of the body, which live until the launch
        self._held: List[Any] = []  # what lives until the messages are done; see Group.address

    def __enter__(self) -> "Messages":
        if self._packed is not None:
            raise InvalidError("mscclgo: messages: these are being put together already; take another group.messages()")
        self._stream = self._group.stream(self._given)
        self._first = None
        self._settles = False
        self._packed = []
        quick = self._group._quick
        if quick is not None:
            self._quick = functools.partial(quick.add, self._packed, self._tensors, self._held, self._stream._handle)
        return self

    def __exit__(self, kind: Any, error: Any, trace: Any) -> None:
        packed, self._packed, self._quick = self._packed, None, None
        try:
            if error is None and packed is not None:
                if MESSAGES in self._group._met:
                    self._queue(packed, self._held, self._tensors)
                else:
                    held, tensors = self._held, self._tensors
                    self._group._first(MESSAGES, lambda: self._queue(packed, held, tensors))
                # Where the stream of the first one captures, so do the others.
                if self._settles and self._stream is not None and (self._first or self._stream)._capture is None:
                    self._group._settle(None, self._stream, self._held)
        finally:
            self._tensors, self._held = [], []

    def _queue(self, packed: List[bytes], held: List[Any], tensors: Sequence[Any]) -> None:
        """Launches messages. The tensors live as long as the call, also after an interrupt."""
        first, all = self._first or self._stream, b"".join(packed)
        try:
            status = _launch(self._group._handle, all, len(packed))
        finally:  # also after a signal's exception, which comes once they are queued
            if first is not None and packed:
                first.keep_for(held, tensors)
        if status:
            raise failure(status)

    def send(self, tensor: Any, peer: int, stream: Any = None) -> None:
        """Adds a send of a tensor to a rank, which may be this one. The stream is the messages' own
        unless another one is given."""
        if stream is not None or self._quick is None or not self._quick(SEND, tensor, peer):
            self._add(SEND, tensor, peer, stream)

    def recv(self, tensor: Any, peer: int, stream: Any = None) -> None:
        """Adds a receive of a tensor from a rank; see send."""
        if stream is not None or self._quick is None or not self._quick(RECV, tensor, peer):
            self._add(RECV, tensor, peer, stream)

    def _add(self, direction: int, tensor: Any, peer: int, stream: Any) -> None:
        packed, group, name = self._packed, self._group, _NAMES[direction]
        if packed is None or self._stream is None:
            raise InvalidError(f"mscclgo: {name}: these messages were launched, or not begun: write 'with group.messages() as m: m.{name}(...)'")
        on = self._stream if stream is None else group.stream(stream)
        if not packed:
            self._first = on
        address, count, number = place(group, name, tensor, direction, self._held)
        self._tensors.append(tensor)
        self._settles |= stream is None and self._given is None
        packed.append(MESSAGE.pack(on._handle, address, count, number, rank(group, name, peer), direction))


def place(group: Group, name: str, tensor: Any, direction: int, held: List[Any]) -> "tuple[int, int, int]":
    """Returns where a tensor is, its number of elements, and their type's number; see Group.address."""
    address, memory = group.address(tensor, held, direction == RECV)
    known = _memory.TYPES.get(memory.dtype)
    if known is None:
        raise InvalidError(f"mscclgo: {name}: the tensor has elements of {memory.dtype}, and messages take {', '.join(_memory.TYPES)}")
    return address, memory.elements, known[0]


def rank(group: Group, name: str, peer: Any) -> int:
    """Returns the number of a rank of the group."""
    try:
        number = operator.index(peer)
    except TypeError:
        raise InvalidError(f"mscclgo: {name}: a rank is an int, not {a_kind(peer)}") from None
    if not 0 <= number < group.size:
        raise InvalidError(f"mscclgo: {name}: there is no rank {number}, there are 0 to {group.size - 1}")
    return number


_launch = direct(library.mscclgo_messages_launch)
