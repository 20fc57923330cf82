"""A group whose ranks are threads of this process: for notebooks and tests."""

from __future__ import annotations

import threading
from contextlib import suppress
from typing import Any, Callable, List, Optional

from ._config import Config
from ._errors import AbortedError, Error, InvalidError, RemoteError, a_kind, reason
from ._group import Group, connect, own_default
from ._library import integer
from ._rendezvous import Rendezvous
from ._waiting import TICK


def local(
    ranks: int,
    body: Callable[[Group], Any],
    device: Optional[str] = None,
    timeout: float = 30.0,
    config: Optional[Config] = None,
) -> List[Any]:
    """Calls body(group) for each rank of a new group, on threads of this process, and returns what it
    returns for each. In body the group is the default group.

    device, timeout and config are as for connect: with "emu" the ranks need no GPU. If body raises an
    exception, the group fails, which ends the other ranks' waits, and local raises that exception.
    """
    if integer("local: ranks", ranks) < 1:
        raise InvalidError(f"mscclgo: local: a group has one rank or more, not {ranks}")
    if not callable(body):
        raise InvalidError(f"mscclgo: local: body is a function of a group, not {a_kind(body)}")
    results: List[Any] = [None] * ranks
    errors: List[BaseException] = []
    groups: List[Group] = []
    interrupted = threading.Event()
    done = threading.Barrier(ranks)  # none leaves while another still uses its memory

    def run(number: int, id: str) -> None:
        try:
            with connect(id, number, ranks, device, timeout, config=config) as group, own_default(group):
                groups.append(group)
                if interrupted.is_set():
                    group.abort("interrupted")
                results[number] = body(group)
                done.wait()
        except threading.BrokenBarrierError:
            pass  # another rank has raised
        except BaseException as error:
            errors.append(error)
            done.abort()

    with Rendezvous() as rendezvous:
        threads = [threading.Thread(target=run, args=(n, rendezvous.id), name=f"mscclgo rank {n}", daemon=True) for n in range(ranks)]
        for thread in threads:
            thread.start()
        try:
            for thread in threads:
                while thread.is_alive():
                    thread.join(TICK)  # Python looks at signals between
        except BaseException as error:
            interrupted.set()
            done.abort()
            for group in list(groups):
                with suppress(Error):
                    group.abort(reason(error))
            raise
    errors.sort(key=lambda error: isinstance(error, (AbortedError, RemoteError)))  # which tell of another's
    if errors:
        raise errors[0]
    return results
