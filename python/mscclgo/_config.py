"""What groups can be told beyond the arguments of init and connect."""

from __future__ import annotations

import ctypes
import dataclasses
import os
from typing import Any, Optional, Sequence, Union

from ._errors import InvalidError, a_kind
from ._library import GroupConfig, integer


@dataclasses.dataclass(frozen=True)
class Config:
    """What init, connect and Group.split take beyond their arguments. The defaults are right for most uses.

    The collectives of the group, alike on all ranks:

    - max_blocks bounds the blocks of each kernel of the collectives and messages, and so the
      multiprocessors that it takes from kernels on other streams; 0 is no bound.
    - collective_scratch is the device memory in bytes for the input, and for the output, of collectives
      whose algorithms reach the peers' memory, on several hosts for both together; larger calls go
      through it in pieces. 0 is 64 MiB.
    - tuning is the text of a tuning, which chooses the algorithms, as "mscclgo bench -tune" writes it.

    The group, which a part of it has alike:

    - transports has the names of the transports that may be used: cudaipc, shm, infiniband, ethernet,
      in a sequence, or in a text with commas. None is all. They may differ among ranks.
    - trace is a file to which closing the group on rank 0 writes a timeline of all ranks, for
      ui.perfetto.dev. All ranks or none have one. Kernels tell of more than launches where they are
      compiled with the variable MSCCLGO_TRACE set. trace_events is how many events each rank keeps, 0 for
      65536.
    - find_deadlocks has the group fail as soon as nothing of it can go on, on emulated devices of one
      host, for programs in which no other thread ends a wait. All ranks set it.
    - pipe_pool is the size in bytes of the memory for shared pipes, which each rank has from its first
      such pipes on; 0 is 64 MiB.
    - host is the identity of this rank's host: ranks with the same one may map each other's memory,
      others need a network. None is the variable MSCCLGO_HOST_ID, or else the kernel's identity.

    For init the variables MSCCLGO_TRANSPORTS, MSCCLGO_TRACE, MSCCLGO_TRACE_EVENTS and MSCCLGO_DEADLOCKS
    are used instead where they are set.
    """

    max_blocks: int = 0
    collective_scratch: int = 0
    tuning: Optional[str] = None
    transports: Union[None, str, Sequence[str]] = None
    trace: "Union[None, str, os.PathLike[str]]" = None
    trace_events: int = 0
    find_deadlocks: bool = False
    pipe_pool: int = 0
    host: Optional[str] = None


def pack(config: Optional[Config]) -> Optional[GroupConfig]:
    """Returns what the library takes for a config."""
    if config is None:
        return None
    if not isinstance(config, Config):
        raise InvalidError(f"mscclgo: config: {a_kind(config)} is given, and mscclgo.Config(...) is needed")
    transports = config.transports
    if transports is not None and not transports:
        raise InvalidError("mscclgo: config: there are no transports; None is all of them")
    if transports is not None and not isinstance(transports, str):
        try:
            transports = ",".join(transports)
        except TypeError:
            raise InvalidError("mscclgo: config: transports are names, such as ('cudaipc', 'shm')") from None
    return GroupConfig(
        bytes=ctypes.sizeof(GroupConfig),
        transports=_text("transports", transports),
        trace=_text("trace", config.trace.__fspath__() if isinstance(config.trace, os.PathLike) else config.trace),
        trace_events=integer("config: trace_events", config.trace_events, 0, (1 << 64) - 1),
        tuning=_text("tuning", config.tuning),
        collective_scratch_bytes=integer("config: collective_scratch", config.collective_scratch, 0, (1 << 64) - 1),
        max_blocks=integer("config: max_blocks", config.max_blocks, 0),
        find_deadlocks=bool(config.find_deadlocks),
        pipe_pool_bytes=integer("config: pipe_pool", config.pipe_pool, 0, (1 << 64) - 1),
        host=_text("host", config.host),
    )


def _text(name: str, text: Any) -> Optional[bytes]:
    if text is None:
        return None
    try:
        if isinstance(text, str) and "\0" not in text:
            return os.fsencode(text)
    except UnicodeEncodeError:
        pass
    raise InvalidError(f"mscclgo: config: {name} is a text without zero bytes, of characters of UTF-8")
