from __future__ import annotations

import threading
import time
from typing import Any, Callable

import numpy as np
import pytest
from conftest import run_ranks

import mscclgo

WORDS = 64
TOP = (1 << 64) - 1


def words(array: mscclgo.Array) -> Any:
    return array.numpy().view("uint64")


@pytest.fixture(params=["the current stream", "a stream"])
def choose(request: Any) -> Callable[[mscclgo.Group], Any]:
    """Returns what operations are given for a stream of a group."""
    return lambda group: None if request.param == "the current stream" else group.new_stream()


def test_operations(together: Any, choose: Any) -> None:
    """Each operation, with its flush and without, around a ring of three ranks."""

    def body(group: mscclgo.Group) -> None:
        me, size = group.rank, group.size
        next, before = (me + 1) % size, (me - 1) % size
        data = np.arange(WORDS) + 1000 * me
        start = np.zeros(WORDS, "int64")
        start[32:34] = 100, 900 + me
        local, inbox = group.array(data), group.array(start)
        ports = group.port_channels(local, inbox, per_peer=2, name="ring", on_stream=True)
        stream = choose(group)
        to, to_second = ports.on_stream(next, stream=stream), ports.on_stream(next, 1, stream)
        of, of_second = ports.on_stream(before, stream=stream), ports.on_stream(before, channel=1, stream=stream)

        to.put(0, 8, 80)
        to.put_with_signal(80, 88, 80)
        to_second.put_with_signal(remote_offset=160, local_offset=168, bytes=80, flush=True)
        to.store(240, 7000 + me)
        to_second.store(248, TOP - me, flush=True)
        to.add(256, 5)
        to.add(256, -1, flush=True)
        to.signal()
        to_second.signal()
        for _ in range(2):
            of.wait()
            of_second.wait()
        group.synchronize(stream)
        got = words(inbox)
        np.testing.assert_array_equal(got[:30], np.arange(30) + 1000 * before + 1)
        assert list(got[30:35]) == [7000 + before, TOP - before, 104, 900 + me, 0]

        group.barrier()
        of.get(0, 320, 80)
        of.flush()
        of_second.get(240, 400, 8, flush=True)
        to_second.exchange(264, 77, 416)
        to_second.exchange(264, -(1 << 63), 424, flush=True)
        group.synchronize(stream)
        group.barrier()
        data[40:50], data[50], data[52:54] = np.arange(10) + 1000 * next + 1, 7000 + next, (900 + next, 77)
        np.testing.assert_array_equal(local.numpy(), data)
        assert words(inbox)[33] == 1 << 63

    together(3, body)


def test_streams_and_graph(together: Any) -> None:
    """Operations come behind the work of their stream and before its later work, on a stream of other code
    as well, and in a graph."""

    def body(group: mscclgo.Group) -> None:
        peer = 1 - group.rank
        add = group.compile('extern "C" __global__ void add(long* to, const long* from, long by) { for (int i = 0; i < 64; i++) to[i] = from[i] + by; }').add
        local, inbox, total = group.array(np.zeros(WORDS, "int64")), group.array(np.zeros(WORDS, "int64")), group.empty(WORDS, "int64")
        ports = group.port_channels(local, inbox, on_stream=True)
        one = group.new_stream()
        to = ports.on_stream(peer, stream=one.handle)

        def step() -> None:
            add[1, 1](one, local, local, group.rank + 1)
            to.put_with_signal(0, 0, local.nbytes, flush=True)
            to.wait()
            add[1, 1](one, total, inbox, 1000)
            to.signal()  # it has been read
            to.wait()

        step()
        group.synchronize(one)
        np.testing.assert_array_equal(total.numpy(), peer + 1001)
        with one.capture() as capture:
            step()
        for _ in range(3):
            capture.graph.launch(one)
        group.synchronize(one)
        np.testing.assert_array_equal(total.numpy(), 4 * (peer + 1) + 1000)

    together(2, body)


def test_threads(group: mscclgo.Group) -> None:
    """Threads share a channel."""
    array = group.array(np.zeros(WORDS, "int64"))
    stream = group.new_stream()
    to = group.port_channels(array, on_stream=True).on_stream(0, stream=stream)

    def count() -> None:
        for _ in range(100):
            to.add(8, 3)

    threads = [threading.Thread(target=count) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    to.flush()
    group.synchronize(stream)
    assert array.numpy()[1] == 1200


def test_refused(group: mscclgo.Group) -> None:
    """What is wrong is told in a sentence, and the group goes on."""
    size = 8 * WORDS
    local, inbox, closed = group.empty(WORDS, "int64"), group.array(np.zeros(WORDS // 2, "int64")), group.empty(WORDS)
    plain = group.port_channels(local)
    ports = group.port_channels(local, inbox, per_peer=2, on_stream=True)
    of_closed = group.port_channels(closed, on_stream=True).on_stream(0)
    closed.close()
    to = ports.on_stream(0, 1)
    with mscclgo.Rendezvous() as rendezvous:
        other = mscclgo.connect(rendezvous.id, 0, 1, device="emu:1")
    foreign = ports.on_stream(0, stream=other.new_stream())
    wide = 1 << 64
    for problem, wrong in (
        (r"write group.port_channels\(..., on_stream=True\)", lambda: plain.on_stream(0)),
        ("on_stream: there is no rank 1, there are 0 to 0", lambda: ports.on_stream(1)),
        ("on_stream: there is no rank -1", lambda: ports.on_stream(-1)),
        ("a rank is an int, not a str", lambda: ports.on_stream("0")),  # type: ignore[arg-type]
        ("on_stream: channel is 2, and must be 0 to 1", lambda: ports.on_stream(0, 2)),
        ("on_stream: channel is -1", lambda: ports.on_stream(0, -1)),
        ("on_stream: channel is an int, not a float", lambda: ports.on_stream(0, 0.0)),  # type: ignore[arg-type]
        ("not a stream", lambda: ports.on_stream(0, stream="mine")),
        ("the stream is of .*, the channels of", lambda: foreign.signal()),
        ("the stream is of .*, the channels of", lambda: foreign.put(0, 0, 8)),
        (f"9 bytes at offset {size // 2 - 8} are outside", lambda: to.put(size // 2 - 8, 0, 9)),
        (f"9 bytes at offset {size - 8} are outside", lambda: to.put_with_signal(0, size - 8, 9, flush=True)),
        ("outside", lambda: to.put(wide - 1, 0, 2)),
        ("outside", lambda: to.get(0, size + 1, 0)),
        ("outside", lambda: to.get(0, 0, wide - 1, flush=True)),
        ("outside", lambda: to.store(size // 2, 1)),
        ("outside", lambda: to.exchange(0, 1, size)),
        ("at offset 4 .* is not aligned to 8 bytes", lambda: to.store(4, 1, flush=True)),
        ("at offset 1 .* is not aligned to 8 bytes", lambda: to.add(1, 1)),
        ("at offset 12 .* is not aligned to 8 bytes", lambda: to.exchange(0, 1, 12)),
        ("put: remote_offset is -8", lambda: to.put(-8, 0, 8)),
        ("put_with_signal: local_offset is -1", lambda: to.put_with_signal(0, -1, 8)),
        (f"get: bytes is {wide}", lambda: to.get(0, 0, wide)),
        ("put: bytes is an int, not a float", lambda: to.put(0, 0, 8.0)),  # type: ignore[arg-type]
        (f"store: value is {wide}", lambda: to.store(0, wide)),
        (f"add: value is {-(1 << 63) - 1}", lambda: to.add(0, -(1 << 63) - 1)),
        ("exchange: value is an int, not a str", lambda: to.exchange(0, "1", 0)),  # type: ignore[arg-type]
        ("closed", lambda: of_closed.put(0, 0, 8)),
        ("closed", lambda: of_closed.get(0, 0, 8, flush=True)),
    ):
        with pytest.raises(mscclgo.InvalidError, match=problem) as caught:
            wrong()
        assert "\n" not in str(caught.value)
    other.close()
    with pytest.raises(mscclgo.InvalidError, match="destroyed"):
        foreign.flush()

    # None of it was queued.
    to.flush()
    to.signal()
    to.wait()
    group.synchronize()
    np.testing.assert_array_equal(inbox.numpy(), np.zeros(WORDS // 2))
    group.check()


def test_group_closes() -> None:
    """Channels end with their group, also while a stream waits."""

    def rank(number: int, id: str) -> None:
        group = mscclgo.connect(id, number, 1, device="emu")
        to = group.port_channels(group.empty(WORDS), on_stream=True).on_stream(0)
        to.wait()
        try:
            group.close()
        except mscclgo.AbortedError as error:  # where the wait had not ended in time
            assert "synchronize the streams first" in str(error)
        for wrong in (to.signal, to.flush, to.wait, lambda: to.store(0, 1)):
            with pytest.raises(mscclgo.InvalidError, match="destroyed"):
                wrong()

    run_ranks(1, rank)


def test_wait_fails() -> None:
    """A wait without a signal ends by the group's timeout, and names the peer."""

    def rank(number: int, id: str) -> None:
        group = mscclgo.connect(id, number, 2, device="emu", timeout=3)
        ports = group.port_channels(group.empty(WORDS), name="halo", on_stream=True)
        if number == 0:
            ports.on_stream(1).wait()
            with pytest.raises(mscclgo.TimeoutError, match="halo") as caught:
                group.synchronize()
            assert (caught.value.rank, caught.value.peer) == (0, 1)
            with pytest.raises(mscclgo.TimeoutError):
                ports.on_stream(1).put(0, 0, 8)
        else:
            with pytest.raises(mscclgo.Error, match="halo"):
                deadline = time.monotonic() + 60
                while time.monotonic() < deadline:
                    group.check()
                    time.sleep(0.01)
        try:
            group.close()
        except mscclgo.Error:
            pass

    run_ranks(2, rank)
