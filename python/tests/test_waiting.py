"""Exceptions of signals at each moment of a wait that another thread makes."""

from __future__ import annotations

import gc
import signal
import threading
import time
import weakref
from typing import Any, Callable, Dict, List, Tuple

import numpy as np
import pytest

import mscclgo
from mscclgo import _group, _waiting
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
    return [t for t in threading.enumerate() if isinstance(t, _waiting._Worker) or "end_later" in t.name]


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
    """What work uses, and what arrays wrap, lives until the group that another thread closes has waited for it."""
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
    wrapped = np.asarray(group.empty(4))
    array = group.wrap(wrapped)  # which peers may reach as long
    there.append(weakref.ref(wrapped))
    del to, stream, wrapped
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


def begin_and_interrupt(patch: pytest.MonkeyPatch) -> List[float]:
    """Has Ctrl-C come once a call has begun, and not at its end, for which a test would wait. Returns for how
    long the call is then waited for, each time that it is."""
    later: List[float] = []

    def join(call: _waiting.Waiting, timeout: float = 0) -> None:
        if not timeout:  # the first time
            while not call._taken.locked():
                time.sleep(0.001)
            raise KeyboardInterrupt
        later.append(timeout)
        method(call, timeout)

    method = _waiting.Waiting.join
    patch.setattr(_waiting.Waiting, "join", join)
    return later


def ones(elements: int = 100) -> Any:
    return np.ones(elements, "float32")


def one_message(group: mscclgo.Group) -> None:
    with group.messages() as m:
        m.send(ones(), 1)


def nothing(group: mscclgo.Group) -> None:
    pass


def prepared(group: mscclgo.Group) -> mscclgo.PeerMemory:
    memory = group.share(group.empty(100))
    group.prepare("all_reduce", memory)
    return memory


KERNEL = '#include <mscclgo/group.cuh>\nextern "C" __global__ void k(mscclgo::GroupHandle) {}'

# What all ranks do before, and what waits for a rank that does not come.
WAITS: Dict[str, Tuple[Callable[[mscclgo.Group], Any], Callable[[mscclgo.Group, Any], Any]]] = {
    "barrier": (nothing, lambda group, _: group.barrier()),
    "split": (nothing, lambda group, _: group.split(0)),
    "max_blocks": (nothing, lambda group, _: group.max_blocks(group.compile(KERNEL).k, 32)),
    "launch": (nothing, lambda group, _: group.compile(KERNEL).k[1, 32](None, group)),
    "memory_channels": (nothing, lambda group, _: group.memory_channels(group.empty(100))),
    "port_channels": (nothing, lambda group, _: group.port_channels(group.empty(100))),
    "pipes": (lambda group: group.handle_bytes(), lambda group, _: group.pipes([1], [1])),
    "pipes.close": (lambda group: group.pipes([1 - group.rank], [1 - group.rank]), lambda _, pipes: pipes.close()),
    "pipes.close, by ports": (lambda group: group.pipes([1 - group.rank], [1 - group.rank], ports=True), lambda _, pipes: pipes.close()),
    "share": (nothing, lambda group, _: group.share(group.empty(100))),
    "prepare": (lambda group: group.share(group.empty(100)), lambda group, memory: group.prepare("all_reduce", memory)),
    "memory.close": (prepared, lambda _, memory: memory.close()),
    "all_reduce": (nothing, lambda group, _: group.all_reduce(ones())),
    "all_reduce, of another size": (lambda group: group.all_reduce(ones()), lambda group, _: group.all_reduce(ones(200))),
    "all_to_all_v": (nothing, lambda group, _: group.all_to_all_v(ones(), ones(), [0, 100], [0, 100])),
    "load_collective": (nothing, lambda group, _: group.load_collective("all_reduce", 100)),
    "load_messages": (nothing, lambda group, _: group.load_messages()),
    "messages": (nothing, lambda group, _: one_message(group)),
    "send": (nothing, lambda group, _: group.send(ones(), 1)),
}


@pytest.mark.parametrize("name", WAITS)
def test_waits(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Ctrl-C ends each call that waits for other ranks, which learn of it."""
    before, wait = WAITS[name]
    groups = two()
    made = on_both([lambda g=g: before(g) for g in groups])[0]  # type: ignore[misc]
    with monkeypatch.context() as patch:
        begin_and_interrupt(patch)
        with pytest.raises(KeyboardInterrupt):
            wait(groups[0], made)
    with pytest.raises(mscclgo.Error, match=r": interrupted \(KeyboardInterrupt\)"):
        groups[1].barrier(20)
    on_both([g.close for g in groups])


def test_waits_once(group: mscclgo.Group, monkeypatch: pytest.MonkeyPatch) -> None:
    """Only calls that prepare run as calls that wait do."""
    waits: List[Any] = []
    monkeypatch.setattr(_group, "wait", lambda body, interrupted: (waits.append(body), body())[1])
    x, y = ones(321), ones(321)

    def message() -> None:
        with group.messages() as m:
            m.send(x, 0)
            m.recv(y, 0)

    group.load_messages()
    for body, want in (lambda: group.all_reduce(x, op="min"), 1), (lambda: group.all_reduce(x, op="max"), 1), (message, 0):
        waits.clear()
        for _ in range(3):
            body()
        assert len(waits) == want
    group.synchronize()


def test_loaded_collectives(monkeypatch: pytest.MonkeyPatch) -> None:
    """The first call of each collective waits for nobody if it was prepared."""
    groups = two()
    names = [name for name in mscclgo._prepared.COLLECTIVES]

    def load(group: mscclgo.Group) -> None:
        for name in names:
            group.load_collective(name, 50, "int32", "max", root=1)

    def first(group: mscclgo.Group) -> None:
        part, all = group.array(np.full(50, group.rank, "int32")), group.array(np.full(100, group.rank, "int32"))
        group.all_reduce(part, op="max")
        group.all_gather(all, part)
        group.reduce_scatter(part, all, op="max")
        group.all_to_all(group.empty(100, "int32"), all)
        group.send_receive(group.empty(50, "int32"), part)
        group.broadcast(part, root=1)
        group.reduce(part, op="max", root=1)
        group.gather(all, part, root=1)
        group.scatter(part, all, root=1)

    on_both([lambda g=g: load(g) for g in groups])  # type: ignore[misc]
    waits: List[Any] = []
    with monkeypatch.context() as patch:
        patch.setattr(_group, "wait", lambda body, interrupted: (waits.append(body), body())[1])
        for group in groups:  # one after the other
            first(group)
    on_both([lambda g=g: (g.synchronize(timeout=60), g.close()) for g in groups])  # type: ignore[misc]
    assert not waits


def test_stream_of_each_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    """Work for a default stream that each thread has of its own is queued by the thread that calls."""
    groups = two()
    waits: List[Any] = []
    sums = [ones(7), ones(7)]
    with monkeypatch.context() as patch:
        patch.setattr(_group, "wait", lambda body, interrupted: (waits.append(body), body())[1])
        on_both([lambda n=n: groups[n].all_reduce(sums[n], stream=2) for n in range(2)])  # type: ignore[misc]
    on_both([lambda g=g: (g.synchronize(2), g.close()) for g in groups])  # type: ignore[misc]
    assert not waits
    assert [list(s) for s in sums] == [[2] * 7] * 2


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


def test_close_of_part(monkeypatch: pytest.MonkeyPatch) -> None:
    """A group is closed once the close of its part, which was interrupted, has ended."""
    groups = two()
    parts = on_both([lambda g=g: g.split(0) for g in groups])  # type: ignore[misc]
    with monkeypatch.context() as patch:
        begin_and_interrupt(patch)
        with pytest.raises(KeyboardInterrupt):
            parts[0].close()

    def leave() -> None:
        time.sleep(0.2)  # the part's other rank closes it later
        parts[1].close()
        groups[1].close()

    on_both([groups[0].close, leave])
    assert not groups[0]._is_there()


PUSH = '#include <mscclgo/fifo.cuh>\nextern "C" __global__ void k(mscclgo::FifoHandle fifo) { fifo.push(mscclgo::Trigger::user(200, 0, 0, 0)); }'


@pytest.mark.parametrize("returns", [True, False])
def test_close_of_proxy(returns: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Ctrl-C ends the wait for a handler. It does not fail the group, which closes when the handler has returned."""
    come, go = threading.Event(), threading.Event()
    served: List[int] = []

    def handler(trigger: mscclgo.Trigger) -> None:
        come.set()
        go.wait(60)
        served.append(trigger.kind)

    with mscclgo.Rendezvous() as r:
        group = connect(r.id)
    proxy = group.proxy(handler)
    there = weakref.ref(proxy._function)
    try:
        group.compile(PUSH, "push.cu").k[1, 1](None, proxy)
        assert come.wait(60)
        with monkeypatch.context() as patch:
            later = begin_and_interrupt(patch)
            with pytest.raises(KeyboardInterrupt):
                proxy.close()
        assert not later and not served
        group.barrier()
        if returns:
            go.set()
        del proxy
        group.close()
        gc.collect()
        assert returns or there() is not None  # the handler is in it
        assert served == returns * [200]
    finally:
        go.set()
