from __future__ import annotations

import gc
import os
import time
import weakref
from typing import Any, List

import numpy as np
import pytest
from conftest import run_ranks

import mscclgo
from mscclgo import _library

SOURCE = """
#include <mscclgo/group.cuh>
#include <mscclgo/port_channel.cuh>
extern "C" __global__ void arguments(double* to, char a, short b, int c, long d, float e, double f, bool g) {
  to[0] = a; to[1] = b; to[2] = c; to[3] = d; to[4] = e; to[5] = f; to[6] = g; to[7] = to[8] == 0;
}
extern "C" __global__ void shape(int* to, const void* null) {
  extern __shared__ int shared[];
  shared[threadIdx.x] = gridDim.x * 100 + blockDim.x * 10 + gridDim.y;
  to[0] = null == nullptr ? shared[threadIdx.x] : -1;
}
extern "C" __global__ void barrier(mscclgo::GroupHandle group, mscclgo::PeerMemory peers, int* to) {
  bool ok = group.barrier() == mscclgo::WaitResult::Done;
  if (threadIdx.x == 0 && ok)
    for (uint32_t rank = 0; rank < group.size; ++rank) to[rank] = peers.of<int>(rank)[0];
  group.barrier();
}
extern "C" __global__ void pass(const mscclgo::PortChannelHandle* next, const mscclgo::PortChannelHandle* ports,
                                uint32_t previous, uint64_t bytes) {
  if (threadIdx.x != 0) return;
  next->putWithSignal(bytes, 0, bytes);
  ports[previous].wait();
}
extern "C" __global__ void none() {}
"""


@pytest.fixture(scope="module")
def module(group: mscclgo.Group) -> mscclgo.Module:
    return group.compile(SOURCE, "test.cu")


def test_arguments(group: mscclgo.Group, module: mscclgo.Module) -> None:
    to = group.array(np.zeros(9))
    module.arguments[1, 1](None, to, -1, np.int16(-2), 3, 1 << 40, 0.5, 0.25, True)
    group.synchronize()
    np.testing.assert_array_equal(to.numpy()[:8], [-1, -2, 3, 1 << 40, 0.5, 0.25, 1, 1])
    host = np.zeros(9)
    module["arguments"][1, 1](group.new_stream(), host, 1, 2, 3, 4, np.float32(5), np.float64(6), False)
    group.synchronize()
    module.none[1, 1](None)
    group.synchronize()


def test_shape(group: mscclgo.Group, module: mscclgo.Module) -> None:
    to = np.zeros(1, "int32")
    module.shape[(2, 3), (4, 1, 1), 64](None, to, None)
    group.synchronize()
    assert to[0] == 243


def test_wrong_launches(group: mscclgo.Group, module: mscclgo.Module) -> None:
    to = np.zeros(9)
    good = [to, 1, 2, 3, 4, 5.0, 6.0, True]

    def refused(part: str, arguments: Any, grid: Any = 1, block: Any = 1) -> None:
        with pytest.raises(mscclgo.InvalidError, match=part) as caught:
            module.arguments[grid, block](None, *arguments)
        assert "launch arguments" in str(caught.value) and "\n" not in str(caught.value)

    refused("7 arguments given, and the kernel takes 8", good[:7])
    refused("argument 2 of 8: the parameter has 1 bytes, and 256 does not fit", [to, 256, *good[2:]])
    refused("argument 2 of 8: the parameter has 1 bytes, and -129 does not fit", [to, -129, *good[2:]])
    refused("argument 2 of 8: the parameter has 1 bytes, and a float is", [to, 1.0, *good[2:]])
    refused("argument 1 of 8: a str is not a tensor", ["to", *good[1:]])
    refused("argument 1 of 8: the tensor is not contiguous", [np.zeros((9, 9))[:, 0], *good[1:]])
    refused("argument 5 of 8: the parameter has 8 bytes, and a int32 has 4", [*good[:4], np.int32(4), *good[5:]])
    refused("makes no sense", good, grid=0)
    refused("makes no sense", good, block=(1, 2, 3, 4))
    refused("larger than the device allows", good, block=1 << 20)
    with pytest.raises(mscclgo.InvalidError, match="grid, block"):
        module.arguments[1]
    with pytest.raises(AttributeError, match="missing"):
        module.missing
    with pytest.raises(mscclgo.InvalidError, match="missing"):
        module["missing"]
    with pytest.raises(mscclgo.InvalidError, match="broken.cu"):
        group.compile("nonsense", "broken.cu")
    with pytest.raises(mscclgo.InvalidError, match="zero byte"):
        group.compile("\0")
    with pytest.raises(mscclgo.InvalidError, match="lists"):
        group.compile(SOURCE, defines="A=1")


def test_defines(group: mscclgo.Group) -> None:
    to = np.zeros(1, "int32")
    kernel = group.compile('extern "C" __global__ void k(int* to) { *to = A; }', defines=["A=7"]).k
    kernel[1, 1](None, to)  # the module lives as long as its kernel
    gc.collect()
    group.synchronize()
    assert to[0] == 7


def test_group_and_ports(together: Any) -> None:
    """Groups, peers' memory and port channels as arguments."""

    def body(group: mscclgo.Group) -> None:
        module = group.compile(SOURCE, "test.cu")
        mine, to = group.array(np.full(1, group.rank + 5, "int32")), np.zeros(group.size, "int32")
        peers = group.share(mine)
        group.max_blocks(module.barrier, 32)
        group.handle_bytes()
        module.barrier[1, 32](None, group, peers, to)
        group.synchronize()
        np.testing.assert_array_equal(to, np.arange(group.size) + 5)

        buffer = group.array(np.array([group.rank + 1.0, 0.0]))
        ports = group.port_channels(buffer)
        group.max_blocks(module["pass"], 1)
        me, size = group.rank, group.size
        module["pass"][1, 1](None, ports[(me + 1) % size], ports, (me - 1) % size, 8)
        group.synchronize()
        assert buffer.numpy()[1] == (me - 1) % size + 1
        with pytest.raises(mscclgo.InvalidError, match="no channel 1 to rank 0"):
            ports[1, 0]
        with pytest.raises(mscclgo.InvalidError, match="group.empty"):
            group.share(to)  # type: ignore[arg-type]

    together(3, body)


def test_nothing_is_left(group: mscclgo.Group, module: mscclgo.Module) -> None:
    """Arrays, streams and wrapped memory go with their objects."""

    def once() -> None:
        array, stream, host = group.empty(1 << 20), group.new_stream(), np.ones(1 << 16, "float32")
        group.all_reduce(host, stream=stream)
        module.shape[1, 1, 4](stream, array, None)
        stream.synchronize()

    for _ in range(3):
        once()
    gc.collect()
    before = len(os.listdir("/proc/self/fd"))
    for _ in range(50):
        once()
    gc.collect()
    assert len(os.listdir("/proc/self/fd")) <= before


PIPES = """
#include <mscclgo/pipe.cuh>
extern "C" __global__ void shift(mscclgo::PipeSet pipes, const char* from, char* to, uint64_t bytes) {
  if (blockIdx.x == 0)
    pipes.to(0).send(from, bytes);
  else
    pipes.from(0).recv(to, bytes);
}
"""


@pytest.mark.parametrize("way", ["threads", "ports", "buffer"])
def test_pipes(together: Any, way: str) -> None:
    """Around a ring, through few slots, by threads or a proxy, and straight into a buffer."""

    def body(group: mscclgo.Group) -> None:
        me, size, count = group.rank, group.size, 5000
        kernel = group.compile(PIPES, "pipes.cu").shift
        group.max_blocks(kernel, 64)
        data, room = group.array(np.arange(count) * (me + 1)), group.empty(count, "int64")
        pipes = group.pipes(
            [(me + 1) % size],
            [(me - 1) % size],
            slots=2,
            slot_bytes=1024,
            ports=way == "ports",
            buffer=room if way == "buffer" else None,
            name="ring",
        )
        kernel[2, 64](None, pipes, data, room, data.nbytes)
        group.synchronize()
        np.testing.assert_array_equal(room.numpy(), np.arange(count) * ((me - 1) % size + 1))
        pipes.close()
        with pytest.raises(mscclgo.InvalidError, match="destroyed"):
            kernel[2, 64](None, pipes, data, room, data.nbytes)

    together(3, body)


def test_pipes_refused(group: mscclgo.Group) -> None:
    closed = group.empty(8)
    closed.close()
    for problem, make in (
        ("not distinct ranks", lambda: group.pipes([1], [])),
        ("2 ranks are named, and the group has 1", lambda: group.pipes([0, 0], [0])),
        ("power of two", lambda: group.pipes([0], [0], slots=3)),
        ("multiple of 128", lambda: group.pipes([0], [0], slot_bytes=100)),
        ("slot_bytes is -128, and must be 0 to", lambda: group.pipes([0], [0], slot_bytes=-128)),
        ("slot_bytes is 18446744073709551744", lambda: group.pipes([0], [0], slot_bytes=(1 << 64) + 128)),
        ("slots is 4294967300", lambda: group.pipes([0], [0], slots=(1 << 32) + 4)),
        ("per_peer is 4294967297", lambda: group.pipes([0], [0], per_peer=(1 << 32) + 1)),
        ("per_peer is an int, not a float", lambda: group.pipes([0], [0], per_peer=1.0)),  # type: ignore[arg-type]
        ("pipes: a rank of to is 4294967296", lambda: group.pipes([1 << 32], [0])),
        ("is not in its From", lambda: group.pipes([0], [])),
        ("list of ranks", lambda: group.pipes(0, [])),  # type: ignore[arg-type]
        ("list of ranks", lambda: group.pipes([], ["0"])),  # type: ignore[list-item]
        ("closed", lambda: group.pipes([0], [0], buffer=closed)),
        ("not a ndarray", lambda: group.pipes([0], [0], buffer=np.ones(8))),  # type: ignore[arg-type]
    ):
        with pytest.raises(mscclgo.InvalidError, match=problem) as caught:
            make()
        assert "\n" not in str(caught.value)
    group.pipes([], [], ports=True).close()
    group.check()


def test_integers_are_not_cut(group: mscclgo.Group, module: mscclgo.Module) -> None:
    """What an int of C cannot hold is refused in a sentence."""
    wide, array = 1 << 32, group.empty(8)
    channels = group.port_channels(array)
    memory = group.share(array)
    for problem, make in (
        ("split: color is 4294967296", lambda: group.split(wide)),
        ("split: key is -4294967296", lambda: group.split(0, -wide)),
        ("split: color is an int, not a float", lambda: group.split(0.5)),  # type: ignore[arg-type]
        ("per_peer is 4294967297", lambda: group.port_channels(array, per_peer=wide + 1)),
        ("rank is 4294967296", lambda: channels[wide]),
        ("channel is 4294967296", lambda: channels[wide, 0]),
        ("threads is 4294967328", lambda: group.max_blocks(module.none, wide + 32)),
        ("broadcast: there is no rank 4294967296", lambda: group.broadcast(array, root=wide)),
        ("reduce: there is no rank 4294967296", lambda: group.reduce(array, root=wide)),
        ("prepare: there is no rank 4294967296", lambda: group.prepare("broadcast", memory, root=wide)),
        ("prepare: count is 18446744073709551617", lambda: group.prepare("all_reduce", memory, count=(1 << 64) + 1)),
        ("array in bytes is 18446744073709551620", lambda: group.empty((1 << 62) + 1)),
        ("mscclgo: rank is 4294967296", lambda: mscclgo.connect("", wide, 1)),
        ("size is 4294967297", lambda: mscclgo.connect("", 0, wide + 1)),
        ("local_rank is 4294967296", lambda: mscclgo.connect("", 0, 1, local_rank=wide)),
        ("scratch is 18446744073709551616", lambda: mscclgo.connect("", 0, 1, scratch=1 << 64)),
    ):
        with pytest.raises(mscclgo.InvalidError, match=problem) as caught:
            make()
        assert "\n" not in str(caught.value)
    memory.close()
    group.check()


def test_pipes_of_some(together: Any) -> None:
    """Two ranks have pipes by a proxy, and the third has none and says nothing of ports."""

    def body(group: mscclgo.Group) -> None:
        me = group.rank
        if me == 2:
            group.pipes([], [], name="some")
            return
        kernel = group.compile(PIPES, "pipes.cu").shift
        data, room = group.array(np.arange(1000) * (me + 1)), group.empty(1000, "int64")
        pipes = group.pipes([1 - me], [1 - me], ports=True, name="some")
        kernel[2, 64](None, pipes, data, room, data.nbytes)
        group.synchronize()
        np.testing.assert_array_equal(room.numpy(), np.arange(1000) * (2 - me))

    together(3, body)


TRIGGERS = """
#include <mscclgo/fifo.cuh>
extern "C" __global__ void report(mscclgo::FifoHandle fifo, uint32_t kind) {
  fifo.push(mscclgo::Trigger::user(kind, blockIdx.x, threadIdx.x, 1ull << 63));
}
extern "C" __global__ void count(mscclgo::FifoHandle fifo, uint64_t to) {
  for (uint64_t i = 0; i < to; i++) fifo.push(mscclgo::Trigger::user(128, i, 0, 0));
}
"""


def test_triggers(group: mscclgo.Group) -> None:
    """Kernels push triggers of their own, which a function gets, those of a thread in the order in which
    it pushes them."""
    module = group.compile(TRIGGERS, "triggers.cu")
    kernel = module.report
    got: List[mscclgo.Trigger] = []
    proxy = group.proxy(got.append)
    kernel[3, 4](None, proxy, 200)
    group.synchronize()
    proxy.close()
    assert sorted(got) == [mscclgo.Trigger(200, block, thread, 1 << 63, 0) for block in range(3) for thread in range(4)]
    with pytest.raises(mscclgo.InvalidError, match="destroyed"):
        kernel[3, 4](None, proxy, 200)

    got.clear()
    proxy = group.proxy(got.append)
    module["count"][1, 1](None, proxy, 2000)
    group.synchronize()
    proxy.close()
    assert [t.a for t in got] == list(range(2000))
    group.check()


def test_closed_parts_go(group: mscclgo.Group) -> None:
    """A group keeps what is made of it until that is closed."""
    array = group.empty(8)
    made = [group.proxy(print), group.pipes([], []), group.memory_channels(array), group.share(array)]
    parts = [weakref.ref(part) for part in made]
    made.clear()
    gc.collect()
    assert None not in [part() for part in parts]
    for part in parts:
        part().close()  # type: ignore[union-attr]
    gc.collect()
    assert [part() for part in parts] == 4 * [None]


def test_no_handler(group: mscclgo.Group) -> None:
    with pytest.raises(mscclgo.InvalidError, match="the handler is a function, not a NoneType"):
        group.proxy(None)  # type: ignore[arg-type]


class Unspeakable(Exception):
    def __str__(self) -> str:
        raise RuntimeError


@pytest.mark.parametrize(
    "error, text",
    [
        (ValueError("no file \udcff\0 here"), r"ValueError: no file \\udcff\\0 here"),
        (ValueError(100 * "x" + 200 * "\u00e9"), "ValueError: x+\u00e9+$"),
        (Unspeakable(), "Unspeakable, whose text raised RuntimeError"),
    ],
)
def test_any_text_of_a_failure(error: Exception, text: str) -> None:
    """The reason of a handler or of a body is told, whatever its text is."""

    def handler(trigger: mscclgo.Trigger) -> None:
        raise error

    def handled(number: int, id: str) -> None:
        with mscclgo.connect(id, number, 1, device="emu") as group:
            proxy = group.proxy(handler)
            group.compile(TRIGGERS, "triggers.cu").report[1, 1](None, proxy, 255)
            with pytest.raises(mscclgo.Error, match=text):
                deadline = time.monotonic() + 60
                while time.monotonic() < deadline:
                    group.barrier()
            with pytest.raises(mscclgo.SystemError, match=text):
                proxy.close()

    run_ranks(1, handled)

    def raised(number: int, id: str) -> None:
        if number == 0:
            with pytest.raises(type(error)) as caught:
                with mscclgo.connect(id, 0, 2, device="emu") as group:
                    raise error
            assert caught.value is error and group.closed
            return
        with mscclgo.connect(id, 1, 2, device="emu") as group:
            with pytest.raises(mscclgo.Error, match=text):
                group.barrier()

    run_ranks(2, raised)


def test_group_lives_until_closed() -> None:
    """The library calls handlers and lets peers access arrays also if nobody refers to the group."""

    def make() -> "weakref.ref[mscclgo.Group]":
        with mscclgo.Rendezvous() as rendezvous:
            group = mscclgo.connect(rendezvous.id, 0, 1, device="emu")
        group.proxy(print)
        return weakref.ref(group)

    made = make()
    gc.collect()
    group = made()
    assert group is not None
    group.close()
    del group
    gc.collect()
    assert made() is None


def test_refused_close_can_be_repeated(monkeypatch: Any) -> None:
    """A group that is not closed, since another thread is in a call, can be closed later."""

    def rank(number: int, id: str) -> None:
        group = mscclgo.connect(id, number, 1, device="emu")
        part = group.split(0)
        assert part is not None
        with monkeypatch.context() as patch:
            # Refused too, as the device is the group's.
            patch.setattr(_library.library, "mscclgo_group_destroy", lambda _: _library.library.mscclgo_device_destroy(group._device))
            with pytest.raises(mscclgo.InvalidError, match="the group's"):
                group.close()
        assert not group.closed and not part.closed
        group.barrier()
        group.close()
        group.close()
        assert group.closed and part.closed
        with pytest.raises(mscclgo.InvalidError, match="destroyed"):
            group.barrier()

    run_ranks(1, rank)


def test_handler_fails() -> None:
    """An exception of the handler fails the group, on all ranks, with its text."""

    def handler(trigger: mscclgo.Trigger) -> None:
        raise KeyError(f"no {trigger.kind}" + 300 * "!")

    def rank(number: int, id: str) -> None:
        with mscclgo.connect(id, number, 2, device="emu") as group:
            proxy = group.proxy(handler)
            if number == 0:
                group.compile(TRIGGERS, "triggers.cu").report[1, 1](None, proxy, 255)
            with pytest.raises(mscclgo.Error, match="KeyError: 'no 255!!!") as caught:
                deadline = time.monotonic() + 60
                while time.monotonic() < deadline:
                    group.barrier()
            assert caught.value.peer == 0 or number == 0
            if number == 0:
                with pytest.raises(mscclgo.SystemError, match="serve trigger 0 of kind 255"):
                    proxy.close()

    run_ranks(2, rank)

    def alone(number: int, id: str) -> None:
        with pytest.raises(ZeroDivisionError):  # and not what closing the group says
            with mscclgo.connect(id, number, 1, device="emu") as group:
                group.compile(TRIGGERS, "triggers.cu").report[1, 1](None, group.proxy(handler), 255)
                1 / 0

    run_ranks(1, alone)
