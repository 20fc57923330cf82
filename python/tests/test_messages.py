from __future__ import annotations

import gc
import re
import weakref
from typing import Any

import numpy as np
import pytest
from conftest import run_ranks

import mscclgo


def values(rank: int, count: int, dtype: str = "float32") -> Any:
    return (np.arange(count) % 7 + 10 * rank + 1).astype(dtype)


@pytest.mark.parametrize("dtype", ["float32", "float16", "float64", "int32", "int64", "uint8"])
def test_ring(together: Any, dtype: str) -> None:
    """To the next rank and from the one before, of NumPy arrays and of arrays of the library, small
    and large, one body after the other."""

    def body(group: mscclgo.Group) -> None:
        group.load_messages()
        me, size = group.rank, group.size
        messages = group.messages()  # which may be entered again
        for count in (1, 1000, 200_001):
            got = np.zeros(count, dtype)
            array, room = group.array(values(me, count, dtype)), group.empty(count, dtype)
            with messages as m:
                m.recv(got, (me - 1) % size)
                m.send(values(me, count, dtype), (me + 1) % size)  # kept until it is sent
            with messages as m:
                m.send(array, (me - 1) % size)
                m.recv(room, (me + 1) % size)
            group.synchronize()
            np.testing.assert_array_equal(got, values((me - 1) % size, count, dtype))
            np.testing.assert_array_equal(room.numpy(), values((me + 1) % size, count, dtype))

    together(3, body)


def test_uneven(together: Any) -> None:
    """All ranks to all, themselves too, some nothing, in any order; then some ranks only."""

    def body(group: mscclgo.Group) -> None:
        me, size = group.rank, group.size
        data = values(me, 300, "int32")
        got = [np.full(1000 * q + 10 * me, -1, "int32") for q in range(size)]
        with group.messages() as m:
            for p in range(size):
                m.send(np.arange(1000 * me + 10 * p, dtype="int32"), p)
            for q in reversed(range(size)):
                m.recv(got[q], q)
        group.synchronize()
        for q in range(size):
            np.testing.assert_array_equal(got[q], np.arange(1000 * q + 10 * me))

        if me == 0:
            group.send(data[10:20], 2)
            group.send(data[5:6], np.int64(2))
        if me == 2:
            first, second = np.zeros(10, "int32"), np.zeros(1, "int32")
            group.recv(first, 0)
            group.recv(second, 0)
            group.synchronize()
            np.testing.assert_array_equal(first, values(0, 300)[10:20])
            np.testing.assert_array_equal(second, values(0, 300)[5:6])
        group.synchronize()

    together(3, body)


def test_empty_body(together: Any) -> None:
    """The first messages are launched by all ranks, also by ranks that have none."""

    def body(group: mscclgo.Group) -> None:
        got = np.zeros(5)
        with group.messages() as m:
            if group.rank == 0:
                m.send(np.arange(5.0), 1)
            elif group.rank == 1:
                m.recv(got, 0)
        with group.messages():
            pass
        group.synchronize()
        if group.rank == 1:
            np.testing.assert_array_equal(got, np.arange(5.0))

    together(3, body)


def test_streams_and_graph(together: Any) -> None:
    """Messages wait for the work of all their streams, which go on behind them; and in a graph."""

    def body(group: mscclgo.Group) -> None:
        peer = 1 - group.rank
        one, two = group.new_stream(), group.new_stream()
        group.load_messages()
        x, y, total = values(group.rank, 5000), np.zeros(5000, "float32"), np.zeros(5000, "float32")
        kernel = group.compile('extern "C" __global__ void add(float* to, const float* from, float by) { for (int i = 0; i < 5000; i++) to[i] = from[i] + by; }').add

        def step() -> None:
            with group.messages(one) as m:
                m.send(x, peer)
                m.recv(y, peer, stream=two)

        kernel[1, 1](one, x, x, 1.0)
        step()
        kernel[1, 1](two, total, y, 1.0)
        two.synchronize()
        np.testing.assert_array_equal(total, values(peer, 5000) + 2)

        with one.capture() as capture:
            kernel[1, 1](one, x, x, 1.0)
            with group.messages(one) as m:
                m.send(x, peer)
                m.recv(y, peer)
        for _ in range(3):
            capture.graph.launch(one)
        one.synchronize()
        np.testing.assert_array_equal(y, values(peer, 5000) + 4)

    together(2, body)


def test_body_raises(together: Any) -> None:
    """Nothing of a body that raises is sent."""

    def body(group: mscclgo.Group) -> None:
        group.load_messages()
        got = np.zeros(3)
        with pytest.raises(KeyError):
            with group.messages() as m:
                m.send(np.ones(3), 1 - group.rank)
                raise KeyError
        with group.messages() as m:
            m.send(np.full(3, 2.0), 1 - group.rank)
            m.recv(got, 1 - group.rank)
        group.synchronize()
        np.testing.assert_array_equal(got, np.full(3, 2.0))

    together(2, body)


def test_temporaries(group: mscclgo.Group) -> None:
    """A body holds its tensors until the launch, however many, and whatever is waited for meanwhile."""
    got = np.zeros((2000, 4))
    with group.messages() as m:
        for i in range(2000):
            m.send(np.full(4, i, "float64"), 0)
            m.recv(got[i], 0)
            if i % 500 == 0:
                group.synchronize()
    group.synchronize()
    np.testing.assert_array_equal(got, np.arange(2000)[:, None] + np.zeros(4))


def test_body_releases(group: mscclgo.Group) -> None:
    """What a body held goes when its messages are done, or when it raises."""

    class Tensor(np.ndarray):  # to which weak references are possible
        pass

    def tensor() -> Any:
        return np.ones(4).view(Tensor)

    sent, received = tensor(), tensor()
    parts = [weakref.ref(sent), weakref.ref(received)]
    with group.messages() as m:
        m.send(sent, 0)
        m.recv(received, 0)
    group.synchronize()
    dropped = tensor()
    parts.append(weakref.ref(dropped))
    with pytest.raises(KeyError):
        with m:
            m.send(dropped, 0)
            raise KeyError
    del sent, received, dropped
    gc.collect()
    assert [part() is None for part in parts] == 3 * [True]


def test_refused(group: mscclgo.Group) -> None:
    """What is wrong is told in a sentence where it is added, and the group goes on."""
    good = np.ones(8, "float32")
    read_only = np.ones(8, "float32")
    read_only.flags.writeable = False
    closed = group.empty(8)
    closed.close()

    def refused(part: str, add: Any) -> None:
        with pytest.raises(mscclgo.InvalidError, match=part) as caught:
            with group.messages() as m:
                add(m)
        assert "\n" not in str(caught.value)

    refused(r"send: there is no rank 1, there are 0 to 0", lambda m: m.send(good, 1))
    refused(r"recv: there is no rank -1", lambda m: m.recv(good, -1))
    refused(r"a rank is an int, not a str", lambda m: m.send(good, "0"))
    refused(r"not contiguous", lambda m: m.send(np.ones((8, 8), "float32")[:, 0], 0))
    refused(r"read-only", lambda m: m.recv(read_only, 0))
    refused(r"elements of complex64", lambda m: m.send(np.ones(8, "complex64"), 0))
    refused(r"is not a tensor", lambda m: m.send([1.0], 0))
    refused(r"freed", lambda m: m.send(closed, 0))
    refused(r"not a stream", lambda m: m.send(good, 0, stream="mine"))
    refused(r"does not receive in the same group", lambda m: m.send(good, 0))
    refused(r"does not send in the same group", lambda m: m.recv(good, 0))

    def both(sent: Any, received: Any) -> Any:
        def add(m: mscclgo.Messages) -> None:
            m.send(sent, 0)
            m.recv(received, 0)

        return add

    refused(r"sends 8 f32 to itself", both(good, np.ones(7, "float32")))
    refused(r"sends 8 f32 to itself", both(good, np.ones(8, "int32")))
    refused(r"overlaps", both(good[:6], good[2:]))

    def close_late(m: mscclgo.Messages) -> None:
        array = group.empty(8)
        m.send(array, 0)
        m.recv(good, 0)
        array.close()

    refused(r"message 1 of 2", close_late)

    with group.messages() as m:
        with pytest.raises(mscclgo.InvalidError, match="another group.messages"):
            m.__enter__()
        m.send(good, 0)
        m.recv(np.zeros(8, "float32"), 0)
    for name in ("send", "recv"):
        with pytest.raises(mscclgo.InvalidError, match=re.escape(f"with group.messages() as m: m.{name}")):
            getattr(m, name)(good, 0)
    for function in (group.send, group.recv):
        with pytest.raises(mscclgo.InvalidError, match="no rank 7"):
            function(good, 7)
    got = np.zeros(8, "float32")
    with m:
        m.send(good, 0)
        m.recv(got, 0)
    group.synchronize()
    np.testing.assert_array_equal(got, good)


@pytest.mark.parametrize("sent, received", [(("float32", 6), ("float32", 5)), (("float32", 6), ("int32", 6))])
def test_ends_differ(together: Any, sent: Any, received: Any) -> None:
    """A receive that is not like its send fails the group, and names both; nothing is written."""
    got = np.full(received[1], 7, received[0])

    def rank(number: int, id: str) -> None:
        with mscclgo.connect(id, number, 2, device="emu") as group:
            group.load_messages()
            if number == 0:
                group.send(np.ones(sent[1], sent[0]), 1)
                with pytest.raises(mscclgo.Error):
                    group.synchronize()  # which may be done before the receive is
                    group.barrier()
                return
            with pytest.raises(mscclgo.InvalidError, match="6 f32") as caught:
                group.recv(got, 0)
                group.synchronize()
            assert f"{received[1]} {'f32' if received[0] == 'float32' else 'i32'}" in str(caught.value)

    run_ranks(2, rank)
    np.testing.assert_array_equal(got, np.full(received[1], 7))
