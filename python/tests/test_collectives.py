from __future__ import annotations

import gc
import sys
import threading
import time
import weakref
from typing import Any, Callable, Dict, Optional

import numpy as np
import pytest

import mscclgo
from mscclgo import _group, _messages, _module, _stream


def values(rank: int, count: int, dtype: str = "float32") -> Any:
    return (np.arange(count) % 7 + rank + 1).astype(dtype)


@pytest.mark.parametrize("dtype", ["float32", "float16", "float64", "int32", "int64", "uint8"])
def test_all_reduce(together: Any, dtype: str) -> None:
    def body(group: mscclgo.Group) -> None:
        tensor = values(group.rank, 1000, dtype)
        output = np.empty_like(tensor)
        group.all_reduce(tensor, output)
        group.all_reduce(tensor, op="max")
        group.synchronize()
        np.testing.assert_array_equal(output, sum(values(r, 1000, dtype) for r in range(3)))
        np.testing.assert_array_equal(tensor, values(2, 1000, dtype))

    together(3, body)


def test_all(together: Any) -> None:
    """Every other collective, on NumPy arrays and on arrays of the library."""

    def body(group: mscclgo.Group) -> None:
        n, me, size = 50, group.rank, group.size
        for make in (lambda a: a.copy(), group.array):
            mine, parts = values(me, n), values(me, n * size)

            def new(count: int) -> Any:
                return make(np.zeros(count, "float32"))

            def check(got: Any, want: Any) -> None:
                group.synchronize()
                np.testing.assert_array_equal(got.numpy() if isinstance(got, mscclgo.Array) else got, want)

            all_of = np.concatenate([values(r, n) for r in range(size)])
            total = sum(values(r, n * size) for r in range(size))
            output = new(n * size)
            group.all_gather(output, make(mine))
            check(output, all_of)
            output = new(n)
            group.reduce_scatter(output, make(parts))
            check(output, total[me * n : (me + 1) * n])
            output = new(n * size)
            group.all_to_all(output, make(parts))
            check(output, np.concatenate([values(r, n * size)[me * n : (me + 1) * n] for r in range(size)]))
            tensor = make(mine)
            group.broadcast(tensor, root=1)
            check(tensor, values(1, n))
            tensor = make(parts)
            group.reduce(tensor, root=2)
            check(tensor, total if me == 2 else parts)
            output = new(n * size)
            group.gather(output, make(mine), root=1)
            check(output, all_of if me == 1 else np.zeros(n * size))
            output = new(n)
            group.scatter(output, make(parts), root=1)
            check(output, values(1, n * size)[me * n : (me + 1) * n])
            output = new(n)
            group.send_receive(output, make(mine))
            check(output, values((me - 1) % size, n))
            sends = [me + p for p in range(size)]
            receives = [p + me for p in range(size)]
            output = new(sum(receives))
            group.all_to_all_v(output, make(values(me, sum(sends))), sends, receives)
            check(output, np.concatenate([values(p, 3 * p + 3)[sum(p + q for q in range(me)) :][: p + me] for p in range(size)]))

    together(3, body)


def test_prepared(together: Any) -> None:
    """Every collective that can be prepared, twice each, and in a captured graph."""

    def body(group: mscclgo.Group) -> None:
        n, me, size = 50, group.rank, group.size
        all_of = np.concatenate([values(r, n) for r in range(size)])
        total = sum(values(r, n * size) for r in range(size))
        one, each = values(me, n), values(me, n * size)
        zeros = np.zeros(n * size, "float32")
        for name, sent, room, want in (
            ("all_reduce", one, n, sum(values(r, n) for r in range(size))),
            ("all_gather", one, n * size, all_of),
            ("reduce_scatter", each, n, total[me * n : (me + 1) * n]),
            ("all_to_all", each, n * size, np.concatenate([values(r, n * size)[me * n : (me + 1) * n] for r in range(size)])),
            ("send_receive", one, n, values((me - 1) % size, n)),
            ("broadcast", one, n, values(1, n)),
            ("reduce", each, n * size, total if me == 1 else zeros),
            ("gather", one, n * size, all_of if me == 1 else zeros),
            ("scatter", each, n, values(1, n * size)[me * n : (me + 1) * n]),
        ):
            output = group.array(zeros[:room])
            prepared = group.prepare(name, group.share(output), group.share(group.array(sent)), root=1)
            for _ in range(2):
                output.copy_from(zeros[:room])
                group.barrier()
                prepared()
                group.synchronize()
                np.testing.assert_array_equal(output.numpy(), want, err_msg=name)
                group.barrier()
            prepared.close()
            with pytest.raises(mscclgo.InvalidError, match="destroyed"):
                prepared()

        place = group.array(one)
        memory = group.share(place)
        prepared = group.prepare("all_reduce", memory, op="max", overlap=True)
        stream = group.new_stream()
        with stream.capture() as capture:
            prepared(stream)
        capture.graph.launch(stream)
        group.synchronize(stream)
        np.testing.assert_array_equal(place.numpy(), values(size - 1, n))
        other, third = group.share(group.empty(49)), group.share(group.empty(51))
        for problem, of in (
            (r"not a collective", lambda: group.prepare("all", memory)),
            (r"not an operation", lambda: group.prepare("all_reduce", memory, op="or")),
            (r"count is -1, and must be 0 to", lambda: group.prepare("all_reduce", memory, count=-1)),
            (r"Group.share", lambda: group.prepare("all_reduce", place)),  # type: ignore[arg-type]
            (r"200 bytes", lambda: group.prepare("all_reduce", memory, count=51)),
            (r"all_reduce: the output has 50 elements a part, and the input 49$", lambda: group.prepare("all_reduce", memory, other)),
            (r"all_reduce: the output has 49 elements a part, and the input 50$", lambda: group.prepare("all_reduce", other, memory)),
            (r"all_gather: the output has 50 elements, which is no multiple of 3 ranks$", lambda: group.prepare("all_gather", memory)),
            (r"reduce_scatter: the input has 49 elements, which is no multiple of 3", lambda: group.prepare("reduce_scatter", memory, other)),
            (r"scatter: the output has 50 elements a part, and the input 17$", lambda: group.prepare("scatter", memory, third)),
        ):
            with pytest.raises(mscclgo.InvalidError, match=problem):
                of()
        group.prepare("all_reduce", memory, other, count=48).close()  # a part of each, as it is asked for
        memory.close()
        with pytest.raises(mscclgo.InvalidError, match="closed"):
            group.prepare("all_reduce", memory)

    together(3, body)


def test_capture(together: Any) -> None:
    def body(group: mscclgo.Group) -> None:
        tensor = np.ones(100, "float32")
        stream = group.new_stream()
        group.all_reduce(tensor, stream=stream)
        stream.synchronize()
        with stream.capture() as capture:
            group.all_reduce(tensor, stream=stream)
            with pytest.raises(mscclgo.InvalidError):
                stream.query()
        for _ in range(3):
            capture.graph.launch(stream)
        stream.synchronize()
        np.testing.assert_array_equal(tensor, np.full(100, 16.0))

    together(2, body)


def test_capture_forks(together: Any) -> None:
    """A graph keeps what its work uses, on all streams that took part."""

    def body(group: mscclgo.Group) -> None:
        stream, side = group.new_stream(), group.new_stream()
        tensor, result = group.array(np.ones(100, "float32")), group.empty(100)
        group.all_reduce(tensor, result, stream=stream)
        group.synchronize(stream)
        with stream.capture() as capture:
            fork = stream.record()
            side.wait(fork)
            between = np.zeros(100, "float32")
            group.all_reduce(tensor, between, stream=side)
            group.all_reduce(between, result, stream=side)
            kept = weakref.ref(between)
            del between
            stream.wait(side.record())
        del fork
        group.synchronize(side)  # drops what the stream itself keeps
        assert kept() is not None
        for _ in range(3):
            capture.graph.launch(side)
        group.synchronize(side)
        np.testing.assert_array_equal(result.numpy(), np.full(100, group.size**2))
        del capture
        group.synchronize(side)
        assert kept() is None

    together(2, body)


class OnGPU:
    """A tensor of other code, as on a GPU, in the memory of an array."""

    def __init__(self, array: mscclgo.Array) -> None:
        self.array = array
        self.__cuda_array_interface__ = {"shape": array.shape, "typestr": "<f4", "data": (array.pointer, False), "version": 3}


def test_capture_keeps_tensors(together: Any) -> None:
    """A graph keeps tensors that a framework does not keep for it, of all calls."""

    def messages(group: mscclgo.Group, x: Any, y: Any, stream: mscclgo.Stream) -> None:
        with group.messages(stream) as m:
            m.send(x, 1 - group.rank)
            m.recv(y, 1 - group.rank)

    def in_turn(group: mscclgo.Group, x: Any, y: Any, stream: mscclgo.Stream) -> None:
        for call, tensor in ((group.send, x), (group.recv, y))[:: 1 - 2 * group.rank]:
            call(tensor, 1 - group.rank, stream)

    def body(group: mscclgo.Group) -> None:
        module = group.compile('extern "C" __global__ void add(float* to, const float* from) { to[threadIdx.x] += from[threadIdx.x]; }')
        calls: Dict[str, Callable[[Any, Any, mscclgo.Stream], Any]] = {
            "all_reduce": lambda x, y, stream: group.all_reduce(x, y, stream=stream),
            "all_to_all": lambda x, y, stream: group.all_to_all(x, y, stream=stream),
            "all_to_all_v": lambda x, y, stream: group.all_to_all_v(x, y, [5, 5], [5, 5], stream),
            "messages": lambda x, y, stream: messages(group, x, y, stream),
            "send": lambda x, y, stream: in_turn(group, x, y, stream),
            "kernel": lambda x, y, stream: module.add[1, 10](stream, x, y),
        }
        group._host_memory = False
        stream = group.new_stream()
        for name, call in calls.items():
            x, y = OnGPU(group.empty(10)), OnGPU(group.empty(10))
            call(x, y, stream)
            group.synchronize(stream)
            there = [weakref.ref(x), weakref.ref(y)]
            with stream.capture() as capture:
                call(x, y, stream)
            del x, y
            group.synchronize(stream)
            gc.collect()
            assert all(t() is not None for t in there), name
            capture.graph.launch(stream)
            group.synchronize(stream)
            del capture
            group.synchronize(stream)
            gc.collect()
            assert all(t() is None for t in there), name

    together(2, body)


def test_interfaces(group: mscclgo.Group) -> None:
    """A tensor by DLPack alone, with an offset, and by NumPy's interface."""

    class Packed:
        def __init__(self, array: Any) -> None:
            self.array = array

        def __dlpack__(self) -> Any:
            return self.array.__dlpack__()

        def __dlpack_device__(self) -> Any:
            return self.array.__dlpack_device__()

    base = np.arange(10, dtype="int64")
    output = np.zeros(4, "int64")
    group.all_reduce(Packed(base[3:7]), Packed(output))
    group.synchronize()
    np.testing.assert_array_equal(output, base[3:7])

    array = group.array(base)
    np.asarray(array)[2] = 77  # the same memory
    assert array.numpy()[2] == 77
    assert not hasattr(array, "__cuda_array_interface__")
    array.copy_from(base)
    np.testing.assert_array_equal(array.numpy(), base)


def test_strides(group: mscclgo.Group) -> None:
    """Tensors that are contiguous though their strides look odd, and empty ones."""
    group.all_reduce(np.ones((1, 5, 1), "float32")[::1, :, ::1])
    group.all_reduce(np.ones((4, 3), "float32")[2:3])
    group.all_reduce(np.empty((0, 3), "float32"))
    group.synchronize()


def test_wrong_tensors(group: mscclgo.Group) -> None:
    good = np.ones(8, "float32")

    def refused(part: str, *arguments: Any, **options: Any) -> None:
        with pytest.raises(mscclgo.InvalidError, match=part) as caught:
            group.all_reduce(*arguments, **options)
        assert "\n" not in str(caught.value)

    refused("not contiguous", np.ones((8, 8), "float32")[:, 0])
    refused("not contiguous", np.ones(8, "float32")[::-1])
    refused("elements of complex64", np.ones(8, "complex64"))
    refused("elements of bool", np.ones(8, "bool"))
    refused("byte order", np.ones(8, ">f4"))
    refused("is not a tensor", [1.0, 2.0])
    refused("no tensor", None)
    refused("of float32, and the input of int32", np.ones(8, "int32"), good)
    refused("8 elements a part, and the input 9", np.ones(9, "float32"), good)
    refused("not an operation", good, op="xor")
    refused("not a stream", good, stream="mine")
    refused("not the handle", good, stream=12345)
    read_only = good.copy()
    read_only.flags.writeable = False
    refused("read-only", read_only)
    closed = group.empty(8)
    closed.close()
    closed.close()
    refused("freed", closed)
    with pytest.raises(mscclgo.InvalidError, match="root|rank"):
        group.broadcast(good, root=1)
    with pytest.raises(mscclgo.InvalidError, match="count"):
        group.all_to_all_v(good, good, [9], [8])
    group.check()  # none of this has failed the group


def test_numbers_are_no_tensors(group: mscclgo.Group) -> None:
    array = group.array(np.ones(1))
    for number in (np.float64(3), np.float64(3).astype(np.int32), np.bool_(True)):
        with pytest.raises(mscclgo.InvalidError, match="is a number and not a tensor"):
            group.all_reduce(array, number)
    group.all_reduce(np.array(3.0), array)  # a tensor of no dimensions is one
    with pytest.raises(mscclgo.InvalidError, match="a str and not bytes"):
        group.all_gather_bytes("abc")  # type: ignore[arg-type]


def test_gpu_tensors_refused(group: mscclgo.Group) -> None:
    class OnGPU:
        __cuda_array_interface__ = {"shape": (4,), "typestr": "<f4", "data": (1 << 40, False), "version": 3, "strides": None}

    class ByDLPack:
        def __dlpack_device__(self) -> Any:
            return (2, 3)

        def __dlpack__(self, stream: int) -> Any:
            raise RuntimeError("the tensor was freed")

    class Gradient:
        @property
        def __cuda_array_interface__(self) -> Any:
            raise RuntimeError("it has a gradient")

    for tensor, part in ((OnGPU(), "on a GPU, and the group's device is emu"), (ByDLPack(), "was freed"), (Gradient(), "gradient")):
        with pytest.raises(mscclgo.InvalidError, match=part):
            group.all_reduce(tensor)


def test_streams(group: mscclgo.Group) -> None:
    class Theirs:
        def __init__(self, stream: mscclgo.Stream) -> None:
            self.cuda_stream = stream.handle
            self.stream = stream

    tensor = np.ones(4, "float32")
    mine = group.new_stream()
    assert group.stream(Theirs(mine)) is group.stream(mine.handle)
    group.all_reduce(tensor, stream=Theirs(mine))
    event = mine.record()
    other = group.new_stream()
    other.wait(event)
    other.synchronize(30)
    assert event.elapsed(event) == 0
    assert mine.query() and other.query()

    # A stream of another device.
    with mscclgo.Rendezvous() as rendezvous:
        with mscclgo.connect(rendezvous.id, 0, 1, device="emu:1") as elsewhere:
            theirs = elsewhere.new_stream()
            with pytest.raises(mscclgo.InvalidError, match="emu:1"):
                group.all_reduce(tensor, stream=theirs)
            with pytest.raises(mscclgo.InvalidError, match="emu:1"):
                group.all_reduce(tensor, stream=theirs.handle)


def test_first_calls_of_threads(together: Any) -> None:
    """Threads that use a group first at the same time get the same streams."""

    def body(group: mscclgo.Group) -> None:
        theirs = group.new_stream()
        ready = threading.Barrier(8)
        found = []

        def call() -> None:
            ready.wait()
            found.append((group.stream(), group.stream(theirs.handle)))

        threads = [threading.Thread(target=call) for _ in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert len(found) == 8 and len({tuple(map(id, pair)) for pair in found}) == 1

    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        for _ in range(20):
            together(1, body)
    finally:
        sys.setswitchinterval(interval)


def test_timeout(together: Any) -> None:
    """A rank that does not come is named, and Python is not stuck meanwhile."""

    gone = threading.Event()

    def body(group: mscclgo.Group) -> Any:
        if group.rank == 0:
            with pytest.raises(mscclgo.TimeoutError) as caught:
                group.barrier(0.2)
            gone.set()
            return caught.value.peer
        gone.wait()
        with pytest.raises(mscclgo.Error):
            group.barrier()
        return None

    assert together(2, body) == [1, None]


def test_split(together: Any) -> None:
    """Parts of a group, of which one fails alone; they are closed with the whole."""

    def body(group: mscclgo.Group) -> Any:
        part = group.split(group.rank % 2, key=-group.rank)
        assert part is not None and part.size == 2
        assert part.rank == (0 if group.rank >= 2 else 1)
        assert part.device == group.device
        stream = group.new_stream()
        tensor = np.full(10, group.rank + 1.0)
        part.all_reduce(tensor, stream=stream)
        group.all_reduce(tensor, stream=stream)
        part.synchronize(stream)
        np.testing.assert_array_equal(tensor, np.full(10, 20.0))
        other = group.split(-1 if group.rank else 3)
        assert (other is None) == (group.rank > 0)
        if group.rank == 1:
            part.abort("enough of this")
            with pytest.raises(mscclgo.AbortedError, match="enough of this"):
                part.synchronize(stream)
        group.barrier()
        group.check()
        return part

    for part in together(4, body):
        assert part.closed


def test_operands_live_after_signals(group: mscclgo.Group, monkeypatch: pytest.MonkeyPatch) -> None:
    """What a call uses is kept also if a signal's exception comes once it is queued."""
    on, x, y = group.new_stream(), np.ones(8, "float32"), np.ones(8, "float32")
    kernel = group.compile('extern "C" __global__ void k(float* to) {}').k
    kernel._quick = None  # which keeps them itself
    group.all_reduce(x, y, stream=on)
    group.all_to_all_v(x, y, [8], [8], stream=on)
    group.load_messages()
    with on.capture() as capture:
        kernel[1, 1](on, x)
    on.synchronize()

    def messages() -> None:
        with group.messages(on) as m:
            m.send(x, 0)
            m.recv(y, 0)

    calls = [
        lambda: group.all_reduce(x, y, stream=on),
        lambda: group.all_to_all_v(x, y, [8], [8], stream=on),
        lambda: group.send(x, 0, stream=on),
        lambda: kernel[1, 1](on, x),
        lambda: capture.graph.launch(on),
        messages,
    ]

    def interrupted(*arguments: Any) -> None:
        raise KeyboardInterrupt

    for module, name in ((_group, "call"), (_stream, "call"), (_module, "_launch"), (_messages, "_launch")):
        monkeypatch.setattr(module, name, interrupted)
    for number, call in enumerate(calls):
        on._kept.clear()
        with pytest.raises(KeyboardInterrupt):
            call()
        assert on._kept, f"call {number}"


@pytest.mark.parametrize("done", [True, False, None])
def test_kept_while_looking(group: mscclgo.Group, monkeypatch: pytest.MonkeyPatch, done: Optional[bool]) -> None:
    """What another thread queues while a stream looks whether its work is done is kept."""
    on = group.new_stream()
    on._look = 2

    def query(self: mscclgo.Stream) -> bool:
        self._kept.append("another's")
        if done is None:
            raise mscclgo.InvalidError("mscclgo: the stream captures")
        return done

    monkeypatch.setattr(mscclgo.Stream, "query", query)
    on.keep([1, 2])
    assert on._kept == (["another's"] if done else [1, 2, "another's"])


def test_operands_live_until_queued(group: mscclgo.Group) -> None:
    """What a call uses is not dropped with what earlier calls have used, while it is being queued."""
    stream = group.new_stream()
    for _ in range(1023):
        stream.keep([None])
    output = np.zeros(8)
    group.all_reduce(np.ones(8), output, stream=stream)
    stream.synchronize()
    np.testing.assert_array_equal(output, np.ones(8))


def test_host_tensors_are_done(together: Any) -> None:
    """Calls on tensors of the host return when they are done if no stream is given, however late the others come."""

    def body(group: mscclgo.Group) -> None:
        me, n, ones = group.rank, 1000, np.ones(1000, "float32")
        module = group.compile('extern "C" __global__ void add(float* to) { to[threadIdx.x] += 1; }')
        view = np.asarray(group.array(np.ones(n, "float32")))
        wrapped = group.wrap(view)
        prepared = group.prepare("all_reduce", group.share(wrapped))

        def messages(t: Any, y: Any) -> None:
            with group.messages() as m:
                m.send(t, 1 - me)
                m.recv(y, 1 - me)

        def two(t: Any, y: Any) -> None:
            (group.send if me else group.recv)(t if me else y, 1 - me)
            (group.recv if me else group.send)(y if me else t, 1 - me)

        captured = np.zeros(n, "float32")
        group.all_reduce(captured)
        with group.stream().capture() as capture:
            group.all_reduce(captured)

        def launch(t: Any, y: Any) -> None:
            captured[:] = t
            capture.graph.launch()
            y[:] = captured

        def of_wrapped(call: Callable[[], None], t: Any, y: Any) -> None:
            view[:] = t
            call()
            y[:] = view

        calls: Dict[str, Callable[[Any, Any], Any]] = {
            "all_reduce": group.all_reduce,
            "all_to_all_v": lambda t, y: group.all_to_all_v(y, t, [n, 0] if me else [0, n], [n, 0] if me else [0, n]),
            "messages": messages,
            "send, recv": two,
            "graph": launch,
            "prepared": lambda t, y: of_wrapped(prepared, t, y),
            "wrapped": lambda t, y: of_wrapped(lambda: group.all_reduce(wrapped), t, y),
            "kernel": lambda t, y: module.add[1, n](None, y),
        }
        for name, call in calls.items():
            for turn in range(3):  # the first one prepares
                if turn and me:
                    time.sleep(0.02)
                y = np.zeros(n, "float32")
                call(ones, y)
                seen = y.copy()
                np.testing.assert_array_equal(seen, 2 * ones if name in ("all_reduce", "graph", "prepared", "wrapped") else ones, err_msg=name)
        on = group.new_stream()
        if me:
            group.barrier()
        group.all_reduce(ones, stream=on)  # the other rank comes once this one has returned
        if not me:
            group.barrier()
        group.synchronize(on)

    together(2, body)
