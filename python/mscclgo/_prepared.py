"""Collectives that are prepared once, on memory that the peers reach, and launched often."""

from __future__ import annotations

import ctypes
from typing import TYPE_CHECKING, Any, Optional, Tuple

from . import _header, _memory
from ._channels import PeerMemory, carried
from ._errors import InvalidError, a_kind
from ._library import Call, Owner, call, direct, failure, integer, library, make
from ._messages import rank
from ._stream import Stream, with_owner

if TYPE_CHECKING:
    from ._group import Group

OPERATIONS = {"sum": _header.SUM, "prod": _header.PROD, "max": _header.MAX, "min": _header.MIN, "avg": _header.AVG}

# By name: the number in the library, and whether the output and the input have a part for each
# rank.
COLLECTIVES = {
    "all_reduce": (_header.ALL_REDUCE, False, False),
    "all_gather": (_header.ALL_GATHER, True, False),
    "reduce_scatter": (_header.REDUCE_SCATTER, False, True),
    "all_to_all": (_header.ALL_TO_ALL, True, True),
    "send_receive": (_header.SEND_RECEIVE, False, False),
    "broadcast": (_header.BROADCAST, False, False),
    "reduce": (_header.REDUCE, False, False),
    "gather": (_header.GATHER, True, False),
    "scatter": (_header.SCATTER, False, True),
}


def operation(name: str, op: str) -> int:
    """Returns the number of an operation."""
    if not isinstance(op, str) or op not in OPERATIONS:
        raise InvalidError(f"mscclgo: {name}: {op!r} is not an operation: {', '.join(OPERATIONS)} are")
    return OPERATIONS[op]


class Prepared(Owner):
    """A collective that is ready to run; see Group.prepare."""

    def __init__(self, group: Group, name: str, output: PeerMemory, input: Optional[PeerMemory], op: str, root: int, count: Optional[int], overlap: bool) -> None:
        if not isinstance(name, str) or name not in COLLECTIVES:
            raise InvalidError(f"mscclgo: prepare: {name!r} is not a collective: {', '.join(COLLECTIVES)} are")
        number, gathered, scattered = COLLECTIVES[name]
        # In place, the output holds both.
        parts = (gathered or (input is None and scattered), scattered)
        dtype, whole = None, count is None  # without a count the call is on all elements
        for what, memory, has_parts in zip(("output", "input"), (output, input), parts):
            if memory is None:
                continue
            if not isinstance(memory, PeerMemory):
                raise InvalidError(f"mscclgo: prepare: calls are prepared on memory of Group.share, not on {a_kind(memory)}")
            elements, of = memory._elements()
            if dtype not in (None, of):
                raise InvalidError(f"mscclgo: prepare: the output has elements of {dtype}, and the input of {of}")
            dtype = of
            if whole:
                each, rest = divmod(elements, group.size if has_parts else 1)
                if rest:
                    raise InvalidError(f"mscclgo: prepare: {name}: the {what} has {elements} elements, which is no multiple of {group.size} ranks")
                if count not in (None, each):
                    raise InvalidError(f"mscclgo: prepare: {name}: the output has {count} elements a part, and the input {each}")
                count = each
        if dtype is None or count is None:
            raise InvalidError("mscclgo: prepare: there is no output")
        self._memories: Tuple[Optional[PeerMemory], ...] = (output, input)  # which launches use
        self._group = group
        wanted = Call(
            collective=number,
            type=_memory.TYPES[dtype][0],
            operation=operation(name, op),
            root=rank(group, "prepare", root),
            count=integer("prepare: count", count, 0, (1 << 64) - 1),
            out=output._handle,
            overlap=bool(overlap),
        )
        setattr(wanted, "in", None if input is None else input._handle)  # which is no name in Python
        self._handle: int = group._wait(lambda: make(library.mscclgo_prepare, group._handle, ctypes.addressof(wanted)))
        self._finalizer = with_owner(self, library.mscclgo_prepared_destroy, self._handle)

    def __call__(self, stream: Any = None) -> None:
        """Queues the collective on a stream and returns. All ranks launch the same, in the same order."""
        on = stream if type(stream) is Stream else self._group.stream(stream)
        status = _launch(self._handle, on._handle)
        if status:
            raise failure(status)
        if stream is None:
            self._group._settle(stream, on, [memory._array for memory in self._memories if memory is not None])

    def reform(self) -> bool:
        """Carries the collective to the group that this one's was re-formed to, after its memory: see Group.reform. It is the
        same call, by an algorithm that is chosen anew; where its count does not suit the number of ranks any more, that is
        an InvalidError on all. Returns whether graphs that hold it are right. New ranks call Group.prepare. Collective."""
        return carried(self._group, library.mscclgo_prepared_reform, self._handle)

    def close(self) -> None:
        """Ends its use, on this rank alone. What was launched goes on."""
        if self._finalizer.detach() is not None:
            call(library.mscclgo_prepared_destroy, self._handle)


_launch = direct(library.mscclgo_prepared_launch)
