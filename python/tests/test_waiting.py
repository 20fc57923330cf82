"""Exceptions of signals at each moment of a wait that another thread makes."""

from __future__ import annotations

import gc
import signal
import threading
import time
import weakref
from typing import Any, Callable, List

import numpy as np
import pytest

import mscclgo
from mscclgo import _waiting
from mscclgo._stream import sweep


def connect(id: str, number: int = 0, ranks: int = 1) -> mscclgo.Group:
    return mscclgo.connect(id, number, ranks, device="emu")


def interrupt(patch: pytest.MonkeyPatch, owner: Any, name: str) -> None:
    """Has a method raise what Ctrl-C does, once, when it has done its work."""
    method, calls = getattr(owner, name), iter([True])

    def then(*arguments: Any) -> Any:
        method(*arguments)
        if next(calls, False):
            raise KeyboardInterrupt

    patch.setattr(owner, name, then)


def helpers() -> List[threading.Thread]:
    return [t for t in threading.enumerate() if isinstance(t, _waiting._Worker) or "_forsake" in t.name]


def test_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    """The signal comes when the call has just ended."""
    with mscclgo.Rendezvous() as r:
        group = connect(r.id)
    start = time.monotonic()
    interrupt(monkeypatch, _waiting.Waiting, "join")
    with pytest.raises(KeyboardInterrupt):
        group.barrier()
    assert time.monotonic() - start < 3
    with pytest.raises(mscclgo.AbortedError, match="KeyboardInterrupt"):
        group.check()
    group.close()


def test_connected(monkeypatch: pytest.MonkeyPatch) -> None:
    """The others learn of a rank that was interrupted when the group was just complete."""
    others: List[mscclgo.Group] = []
    before = len(helpers())
    interrupt(monkeypatch, _waiting.Waiting, "join")
    with mscclgo.Rendezvous() as r:
        thread = threading.Thread(target=lambda: others.append(connect(r.id, 1, 2)))
        thread.start()
        with pytest.raises(KeyboardInterrupt):
            connect(r.id, 0, 2)
        thread.join()
    with pytest.raises(mscclgo.Error, match="KeyboardInterrupt"):
        others[0].barrier(20)
    others[0].close()
    end = time.monotonic() + 20
    while len(helpers()) > before + 1 and time.monotonic() < end:  # one stays, for more calls
        time.sleep(0.01)
    assert len(helpers()) <= before + 1


def test_not_begun(monkeypatch: pytest.MonkeyPatch) -> None:
    """A group that could not even begin to close can still be closed."""
    with mscclgo.Rendezvous() as r:
        group = connect(r.id)
    monkeypatch.setattr(_waiting, "_idle", [])
    interrupt(monkeypatch, _waiting._Worker, "start")
    with pytest.raises(KeyboardInterrupt):
        group.close()
    assert not group.closed
    group.barrier()
    group.close()
    assert group.closed and not group._is_there()


def test_threads_are_used_again() -> None:
    """Also those whose calls were interrupted."""
    before = len(helpers())
    for _ in range(5):
        call = _waiting.Waiting(lambda: None)
        worker = _waiting._worker()
        assert worker is not None
        worker.calls.put(call)  # nobody waits
        while not call._has_ended:
            time.sleep(0.001)
    assert len(helpers()) <= before + 1


def test_errors_go() -> None:
    """An error does not keep itself, and with it what the call used, until Python collects garbage."""
    with mscclgo.Rendezvous() as r:
        group = connect(r.id)
    group.abort("over")
    gc.collect()
    gc.disable()
    try:
        with pytest.raises(mscclgo.AbortedError) as caught:
            group.barrier()
        error = weakref.ref(caught.value)
        del caught
        assert error() is None
    finally:
        gc.enable()
    group.close()


def test_work_of_interrupted_close(monkeypatch: pytest.MonkeyPatch) -> None:
    """What work uses lives until the group that another thread closes has waited for it."""
    with mscclgo.Rendezvous() as r:
        group = connect(r.id)
    kernel = group.compile(
        'extern "C" __global__ void k(volatile int* flag, int* to, int n) {\n'
        "  while (!*flag) __nanosleep(100);\n"
        "  for (int i = 0; i < n; i++) to[i] = 5;\n"
        "}\n"
    ).k
    flag = np.zeros(1, "int32")
    streams, tensors = [group.new_stream() for _ in range(2)], [np.zeros(1 << 13, "int32") for _ in range(2)]
    there = [weakref.ref(to) for to in tensors]
    for stream, to in zip(streams, tensors):
        kernel[1, 1](stream, flag, to, to.size)
    tensors.clear()
    del to, stream
    streams.pop()  # one is dropped before, and one after

    def interrupt(call: _waiting.Waiting) -> None:
        time.sleep(0.2)
        raise KeyboardInterrupt

    try:
        with monkeypatch.context() as patch:
            patch.setattr(_waiting.Waiting, "join", interrupt)
            with pytest.raises(KeyboardInterrupt):
                group.close()
        streams.clear()
        sweep()
        gc.collect()
        assert all(to() is not None for to in there)
    finally:
        flag[0] = 1  # or the kernels never end
    end = time.monotonic() + 30
    while any(to() is not None for to in there) and time.monotonic() < end:
        time.sleep(0.01)
    assert all(to() is None for to in there)


def two() -> List[mscclgo.Group]:
    """Returns the groups of two ranks, whose waits end early where no interrupt ends them."""
    groups: List[Any] = [None, None]

    def join(number: int) -> None:
        groups[number] = mscclgo.connect(r.id, number, 2, device="emu", timeout=8)

    with mscclgo.Rendezvous() as r:
        on_both([lambda n=n: join(n) for n in range(2)])  # type: ignore[misc]
    return groups


def on_both(bodies: List[Callable[[], Any]]) -> List[Any]:
    """Returns what functions return that wait for each other."""
    results: List[Any] = [None] * len(bodies)

    def run(number: int) -> None:
        results[number] = bodies[number]()

    threads = [threading.Thread(target=run, args=(n,)) for n in range(len(bodies))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return results


def test_other_thread_takes_signal() -> None:
    """A signal that comes to another thread ends a wait too, though it wakes nobody."""
    groups = two()
    had = signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell's background jobs ignore it

    def hit() -> None:
        time.sleep(0.2)
        signal.pthread_kill(threading.get_ident(), signal.SIGINT)

    thread = threading.Thread(target=hit)
    thread.start()
    try:
        with pytest.raises(KeyboardInterrupt):
            groups[0].barrier()
    finally:
        signal.signal(signal.SIGINT, had)
        thread.join()
    on_both([g.close for g in groups])
