"""The simple calls that _fast makes, and that all works without it. A framework of a GPU is imitated."""

from __future__ import annotations

import ctypes
import gc
import signal
import struct
import subprocess
import sys
import weakref
from typing import Any, List, Tuple

import pytest

import mscclgo
from mscclgo import _library
from mscclgo._library import MESSAGE, fast
from mscclgo._memory import _Tensor as View

pytestmark = pytest.mark.skipif(fast is None, reason="_fast was not built")


class Tensor:
    """One of an imitated framework: float32, on GPU 3, unless it is told otherwise."""

    def __init__(self, data: int = 0x700001000, shape: Tuple[int, ...] = (6, 4), strides: Any = None, **more: int) -> None:
        self.shape = (ctypes.c_int64 * len(shape))(*shape)
        self.strides = None if strides is None else (ctypes.c_int64 * len(strides))(*strides)
        self.view = View(data, 2, 3, len(shape), 2, 32, 1, self.shape, self.strides)
        self.fails = self.negated = False
        for name, value in more.items():
            setattr(self.view, name, value)


    def is_neg(self) -> bool:
        return self.negated


current = [0x77]  # the framework's current stream


@ctypes.PYFUNCTYPE(ctypes.c_int, ctypes.py_object, ctypes.POINTER(View))
def view(tensor: Tensor, to: Any) -> int:
    if tensor.fails:
        return -1
    to[0] = tensor.view
    return 0


@ctypes.PYFUNCTYPE(ctypes.c_int, ctypes.c_int32, ctypes.c_int32, ctypes.POINTER(ctypes.c_void_p))
def current_stream(kind: int, number: int, to: Any) -> int:
    to[0] = current[0]
    return 0 if (kind, number) == (2, 3) else -1


class Exchange(ctypes.Structure):
    _fields_ = [("major", ctypes.c_uint32), ("minor", ctypes.c_uint32), ("more", ctypes.c_void_p * 4), ("view", ctypes.c_void_p), ("current", ctypes.c_void_p)]


def exchange(major: int, minor: int) -> Any:
    made = Exchange(major, minor)
    made.view, made.current = ctypes.cast(view, ctypes.c_void_p), ctypes.cast(current_stream, ctypes.c_void_p)
    kept.append(made)
    new = ctypes.pythonapi.PyCapsule_New
    new.restype, new.argtypes = ctypes.py_object, [ctypes.c_void_p, ctypes.c_char_p, ctypes.c_void_p]
    return new(ctypes.addressof(made), b"dlpack_exchange_api", None)


kept: List[Any] = []  # for as long as the process lives
made: List[Any] = []  # the calls of the library, or the status that the next one has


@ctypes.CFUNCTYPE(ctypes.c_int, *[ctypes.c_uint64] * 7)
def function(*arguments: int) -> int:
    status = made.pop() if made else 0
    made.append(arguments)
    return int(status)


ADDRESS = ctypes.cast(function, ctypes.c_void_p).value or 0
GROUP, DEVICE = 11, 22
VOUCHED = 0x10000


def stream(handle: int) -> Any:
    of = mscclgo.Stream.__new__(mscclgo.Stream)
    of._handle, of._kept, of._look, of._capture = handle, [], 100, None
    return of


@pytest.fixture
def caller() -> Any:
    assert fast.learn(Tensor, exchange(1, 3))
    made.clear()
    return fast.Caller(GROUP, DEVICE, 3, 2, {0x77: stream(33)})


def place(caller: Any, tensor: Any) -> Any:
    """The address, the elements and their type in a message, and whether a stream keeps the tensor; or None."""
    packed: List[bytes] = []
    tensors: List[Any] = []
    held: List[Any] = []
    if not caller.add(packed, tensors, held, 33, 1, tensor, 0):
        assert not packed and not tensors and not held
        return None
    on, address, count, number, peer, direction = MESSAGE.unpack(packed[0])
    assert (on, peer, direction) == (33, 0, 1) and len(packed) == 1 and tensors == [tensor] and held in ([], [tensor])
    return address, count, number, bool(held)


def test_collect(caller: Any) -> None:
    def collect(output: Any, input: Any, parts: Tuple[int, int] = (1, 1), on: Any = None) -> Any:
        made.clear()
        status = caller.collect(ADDRESS, on, output, input, parts, (4,))
        return made[0] if status == 0 else status

    a, b = Tensor(), Tensor(0x700002000)
    assert collect(a, b) == -1  # the first call, which waits for other ranks
    for elements in 24, 12, 8:
        caller.meet(ADDRESS, elements, 0, (4,))
    assert collect(a, Tensor(0x700002000, code=0)) == collect(a, Tensor(0x700002000, (7,))) == -1  # others
    assert caller.collect(ADDRESS, None, a, b, (1, 1), (3,)) == caller.collect(ADDRESS, None, a, b, (1, 1), ()) == -1
    assert collect(a, b) == (GROUP, 33, 0x700001000, 0x700002000, 24, VOUCHED, 4)
    assert collect(a, a) == (GROUP, 33, 0x700001000, 0x700001000, 24, VOUCHED, 4)
    assert collect(a, None, (2, 1)) == (GROUP, 33, 0x700001000, 0, 12, VOUCHED, 4)
    assert collect(None, b, (1, 3)) == (GROUP, 33, 0, 0x700002000, 8, VOUCHED, 4)
    assert collect(a, Tensor(0x700002000, (8,)), (3, 1)) == (GROUP, 33, 0x700001000, 0x700002000, 8, VOUCHED, 4)
    assert collect(a, b, on=stream(44)) == (GROUP, 44, 0x700001000, 0x700002000, 24, VOUCHED, 4)
    assert collect(a, Tensor(0x700002000, (8,)), (1, 1)) == -1
    assert collect(Tensor(shape=(3,)), Tensor(0x700002000, (2,)), (2, 1)) == -1
    assert collect(None, None) == -1
    assert collect(a, b.shape) == -1
    assert collect(a, b, on=33) == -1
    current[0] = 0x78
    assert collect(a, b) == -1  # there is no Stream of it yet
    current[0] = 0x77
    assert collect(a, b)[1] == 33
    made[:] = [5]
    assert caller.collect(ADDRESS, None, a, b, (1, 1), (4,)) == 5

    # Another group, in which this call is the first again.
    caller.renew(5)
    assert collect(a, b) == -1
    caller.meet(ADDRESS, 24, 0, (4,))
    assert collect(a, b) == (GROUP, 33, 0x700001000, 0x700002000, 24, VOUCHED, 4)
    for wrong in (0, -1, 1 << 31):
        with pytest.raises(ValueError):
            caller.renew(wrong)
    with pytest.raises(TypeError):
        caller.renew("5")


@pytest.mark.parametrize("code, bits, number", [(2, 32, 0), (2, 16, 1), (4, 16, 2), (2, 64, 3), (0, 32, 4), (0, 64, 5), (1, 8, 6), (10, 8, 7), (12, 8, 8)])
def test_types(caller: Any, code: int, bits: int, number: int) -> None:
    tensor = Tensor(code=code, bits=bits)
    assert place(caller, tensor) == (0x700001000, 24, number | VOUCHED, False)
    assert caller.address(tensor, 1 << number) == 0x700001000
    assert caller.address(tensor, ~(1 << number) & 0x1FF) is None
    if number:
        assert caller.collect(ADDRESS, None, tensor, Tensor(), (1, 1), ()) == -1


def test_simple(caller: Any) -> None:
    """What is simple, and what is left to the code in Python, which refuses it."""
    assert place(caller, Tensor(byte_offset=64))[0] == 0x700001040
    assert place(caller, Tensor(shape=()))[1] == 1
    assert place(caller, Tensor(shape=(6, 1, 4), strides=(4, 99, 1)))[1] == 24
    assert place(caller, Tensor(0, shape=(0, 4)))[1] == 0
    fails = Tensor()
    fails.fails = True
    negated = Tensor(shape=(1,))
    assert place(caller, negated)[1] == 1
    negated.negated = True
    assert caller.address(Tensor(code=5, bits=64), 1 << 31) is None  # it may be yet to be conjugated
    for tensor in (
        Tensor(strides=(1, 6)),
        Tensor(0),
        Tensor(64),  # a view of what was freed
        Tensor(device_type=1),
        Tensor(device_id=2),
        Tensor(lanes=2),
        Tensor(code=6, bits=8),
        Tensor(code=0, bits=16),
        Tensor(code=5, bits=64),
        fails,
        negated,
        object(),
        None,
    ):
        assert place(caller, tensor) is None
        assert caller.address(tensor, 0x1FF) is None


class Interface:
    """A tensor that has CUDA's array interface alone: 6 times 4 float32, unless it is told otherwise."""

    def __init__(self, **more: Any) -> None:
        self.__cuda_array_interface__ = {"shape": (6, 4), "typestr": "<f4", "data": (0x3000, False), "version": 3, **more}


def test_interface(caller: Any) -> None:
    """The library looks up where these are, as they do not tell their device."""
    assert caller.address(Interface(), 1) is None or fast.learn(Interface, None)
    assert fast.learn(Interface, None) and fast.learn(Interface, None)
    assert place(caller, Interface()) == (0x3000, 24, 0, False)
    assert place(caller, Interface(strides=None, mask=None)) == (0x3000, 24, 0, False)
    assert place(caller, Interface(strides=(16, 4))) == (0x3000, 24, 0, False)
    assert place(caller, Interface(shape=(6, 1, 4), strides=(16, 99, 4))) == (0x3000, 24, 0, False)
    assert place(caller, Interface(shape=())) == (0x3000, 1, 0, False)
    numbers = dict(f2=1, f8=3, i4=4, i8=5, u1=6)
    for name, number in numbers.items():
        assert place(caller, Interface(typestr="<" + name)) == (0x3000, 24, number, False)
        assert caller.address(Interface(typestr="<" + name), 1 << number) == 0x3000
    assert caller.address(Interface(typestr="<i2"), 1 << 11) == 0x3000  # of kernels alone
    assert caller.address(Interface(typestr="|V4"), 1 << 31) == 0x3000
    assert caller.address(Interface(data=(0x3000, True)), 1) == 0x3000
    for wrong in (
        dict(data=(0x3000, True)),  # it is written
        dict(data=(0, False)),
        dict(data=(-1, False)),
        dict(data=(1 << 64, False)),
        dict(data=None),
        dict(data=0x3000),
        dict(shape=(0, 4)),
        dict(shape=(-6, 4)),
        dict(shape=(1 << 40, 1 << 40)),
        dict(shape=(1 << 63,)),
        dict(shape=("6",)),
        dict(shape=24),
        dict(strides=(4, 16)),
        dict(strides=(4,)),
        dict(strides=("16", "4")),
        dict(strides=4),
        dict(typestr=">f4"),
        dict(typestr="<i2"),
        dict(typestr="<f16"),
        dict(typestr="<c8"),
        dict(typestr="f4"),
        dict(typestr=4),
        dict(mask=Interface()),
    ):
        assert place(caller, Interface(**wrong)) is None, wrong
    broken = Interface()
    broken.__cuda_array_interface__ = 3  # type: ignore[assignment]
    assert place(caller, broken) is None
    del broken.__cuda_array_interface__
    assert place(caller, broken) is None
    assert place(fast.Caller(GROUP, DEVICE, -1, 2, {}), Interface()) is None  # no GPU
    made.clear()
    caller.meet(ADDRESS, 24, 0, (4,))
    assert caller.collect(ADDRESS, None, Tensor(), Interface(), (1, 1), (4,)) == 0
    assert made[0] == (GROUP, 33, 0x700001000, 0x3000, 24, 0, 4)


def test_transfer(caller: Any) -> None:
    def transfer(tensor: Any, peer: Any = 1, on: Any = None, written: bool = False) -> Any:
        made.clear()
        status = caller.transfer(ADDRESS, on, written, tensor, peer)
        return made[0][:6] if status == 0 else status

    assert transfer(Tensor()) == (GROUP, 33, 0x700001000, 24, VOUCHED, 1)
    assert transfer(Tensor(), 0, stream(44)) == (GROUP, 44, 0x700001000, 24, VOUCHED, 0)
    for peer in (2, -1, 1 << 40, 1 << 80, 1.0, True, None, "1"):
        assert transfer(Tensor(), peer) == -1
        assert not caller.add([], [], [], 33, 0, Tensor(), peer)
    assert transfer(Tensor(device_id=2)) == -1
    assert transfer(Tensor(), on=33) == -1
    fast.learn(Interface, None)
    assert transfer(Interface(), on=stream(44)) == (GROUP, 44, 0x3000, 24, 0, 1)
    read_only = Interface(data=(0x3000, True))
    assert transfer(read_only, on=stream(44)) == (GROUP, 44, 0x3000, 24, 0, 1)
    assert transfer(read_only, on=stream(44), written=True) == -1
    for wrong in ((), (1, 2, 3, 4), (ADDRESS, None, False, Tensor(), 1, 1)):
        with pytest.raises(TypeError):
            caller.transfer(*wrong)
        with pytest.raises(TypeError):
            caller.add(*wrong)


launched: List[Any] = []


@ctypes.CFUNCTYPE(ctypes.c_int, *[ctypes.c_uint64] * 5)
def launch(kernel: int, on: int, config: int, block: int, bytes: int) -> int:
    launched.append((kernel, on, config, ctypes.string_at(block, bytes) if block else None))
    return int(made.pop()) if made else 0


LAUNCH = ctypes.cast(launch, ctypes.c_void_p).value or 0
ASK, SIGNED, UNSIGNED, FLOAT, BOOL, POINTER, STRUCT = range(7)


def test_kernel(caller: Any) -> None:
    """What is simple is packed in C, and all else by the packers, which may refuse it."""
    asked: List[Any] = []

    def ask(size: int) -> Any:
        def pack(argument: Any, held: List[Any]) -> bytes:
            asked.append(argument)
            if argument == "wrong":
                raise mscclgo.InvalidError("mscclgo: this is wrong")
            held.append(argument)
            return b"?" * size

        return pack

    layout: Any = ((0, 8, POINTER, 1), (8, 1, SIGNED, 0), (10, 2, UNSIGNED, 0), (12, 4, FLOAT, 0), (16, 8, FLOAT, 0))
    layout += ((24, 1, BOOL, 0), (32, 8, SIGNED, 0), (40, 8, UNSIGNED, 0), (48, 3, ASK, 0), (51, 5, STRUCT, 0))
    kernel = fast.Kernel(caller, "module", LAUNCH, 55, tuple((o, n, how, types, ask(n)) for o, n, how, types in layout))
    on = stream(44)

    def block(*arguments: Any) -> Any:
        for emptied in (made, launched, asked, on._kept):
            emptied.clear()
        assert kernel.launch(66, on, arguments) == 0
        assert launched[0][:3] == (55, 44, 66) and on._kept == ["module", *asked]
        return launched[0][3]

    simple: List[Any] = [Tensor(), -1, 2, 0.1, 0.1, True, -(1 << 63), (1 << 64) - 1, "x", "y"]
    want = struct.pack("=QbxHfd?7xqQ3s5s", 0x700001000, -1, 2, 0.1, 0.1, True, -(1 << 63), (1 << 64) - 1, b"???", b"?????")
    assert block(*simple) == want and asked == ["x", "y"]
    assert block(None, *simple[1:])[:8] == bytes(8) and asked == ["x", "y"]
    for at, argument in (
        (0, Tensor(code=0)),
        (0, Tensor(strides=(1, 6))),
        (0, 5),
        (0, mscclgo.Pointer(5)),
        (0, 5.0),
        (0, b"12345678"),
        (1, 128),
        (1, -129),
        (1, 1 << 64),
        (1, True),
        (1, 1.0),
        (2, -1),
        (2, 1 << 16),
        (2, mscclgo.Pointer(5)),
        (3, 1e39),
        (3, 1),
        (4, 1),
        (5, 1),
        (6, 1 << 63),
        (6, -(1 << 63) - 1),
        (7, -1),
        (7, 1 << 64),
        (9, caller),
    ):
        arguments = simple[:at] + [argument] + simple[at + 1 :]
        got = block(*arguments)
        offset, size = layout[at][:2]
        assert argument in asked and got[offset : offset + size] == b"?" * size
        assert got[:offset] + want[offset : offset + size] + got[offset + size :] == want
    assert block(*simple[:3], float("inf"), float("nan"), *simple[5:])[12:16] == struct.pack("=f", float("inf")) and asked == ["x", "y"]

    # Nothing is launched, or it fails.
    launched.clear()
    with pytest.raises(mscclgo.InvalidError, match="this is wrong"):
        kernel.launch(66, on, (*simple[:8], "wrong", "y"))
    assert kernel.launch(66, on, tuple(simple[:9])) == -1
    assert kernel.launch(66, 44, tuple(simple)) == -1
    current[0] = 0x78
    assert kernel.launch(66, None, tuple(simple)) == -1  # there is no Stream of it yet
    current[0] = 0x77
    assert kernel.launch(66, None, (None, *simple[1:])) == -1  # no tensor tells what is current
    assert not launched
    assert kernel.launch(66, None, tuple(simple)) == 0 and launched[0][1] == 33
    made[:], on._kept[:] = [5], []
    assert kernel.launch(66, on, tuple(simple)) == 5 and on._kept == []
    for wrong in ((), (66, on), (66, on, simple), ("66", on, tuple(simple))):
        with pytest.raises(TypeError):
            kernel.launch(*wrong)


def test_capture(caller: Any) -> None:
    """The code in Python makes the calls on a stream that captures, as the graph keeps all tensors."""
    capturing = stream(44)
    capturing._capture = object()
    current_captures = fast.Caller(GROUP, DEVICE, 3, 2, {0x77: capturing})
    for of, on in ((caller, capturing), (current_captures, None)):
        of.meet(ADDRESS, 24, 0, (4,))
        kernel = fast.Kernel(of, None, LAUNCH, 55, ((0, 8, POINTER, 1, None),))
        calls = (
            lambda: of.collect(ADDRESS, on, Tensor(), Tensor(), (1, 1), (4,)),
            lambda: of.transfer(ADDRESS, on, False, Tensor(), 1),
            lambda: kernel.launch(66, on, (Tensor(),)),
        )
        for capturing._capture in (object(), None):
            for call in calls:
                made.clear()
                launched.clear()
                captures = capturing._capture is not None
                assert call() == -captures and bool(made or launched) == (not captures)


def test_kernel_read_only(caller: Any) -> None:
    """Read-only memory is for pointers that take it. Their packers are asked, and no others."""
    fast.learn(Interface, None)
    on, read_only, asked = stream(44), Interface(data=(0x3000, True)), []

    def ask(argument: Any, held: List[Any]) -> bytes:
        asked.append(argument)
        return b"?" * 8

    for types, tensor, want in (
        (1, Interface(), struct.pack("Q", 0x3000)),
        (1, read_only, b"?" * 8),
        (1 | 1 << 28, read_only, struct.pack("Q", 0x3000)),
    ):
        for emptied in (made, launched, asked):
            emptied.clear()
        assert fast.Kernel(caller, None, LAUNCH, 55, ((0, 8, POINTER, types, ask),)).launch(66, on, (tensor,)) == 0
        assert launched[0][3] == want and asked == [tensor] * (want[0] == ord("?"))


def test_kernel_layouts(caller: Any) -> None:
    def kernel(*parameters: Any) -> Any:
        return fast.Kernel(caller, None, LAUNCH, 55, tuple((*p, lambda argument, held: argument) for p in parameters))

    on = stream(44)
    launched.clear()
    made.clear()
    assert kernel().launch(66, on, ()) == 0 and launched[0][3] is None
    big = kernel((0, 4000, ASK, 0), (4000, 8, UNSIGNED, 0))
    assert big.launch(66, on, (b"x" * 4000, 7)) == 0 and launched[1][3] == b"x" * 4000 + (7).to_bytes(8, "little")
    for wrong in (b"x", "x", None):
        with pytest.raises(TypeError, match="something else"):
            big.launch(66, on, (wrong, 7))
    for parameters in (
        ((0, 9, SIGNED, 0),),
        ((0, 0, SIGNED, 0),),
        ((0, 2, FLOAT, 0),),
        ((0, 4, POINTER, 0),),
        ((0, 1, 7, 0),),
        ((0, 8, ASK, 0), (4, 8, ASK, 0)),
        ((8, (1 << 32) - 8, ASK, 0),),
    ):
        with pytest.raises(ValueError, match="do not fit"):
            kernel(*parameters)


def test_same_blocks(group: mscclgo.Group) -> None:
    """C and Python pack the same blocks."""
    kernel = group.compile(
        """
        #include <mscclgo/group.cuh>
        #include <mscclgo/memory_channel.cuh>
        extern "C" __global__ void all(char a, const float* b, unsigned short c, mscclgo::GroupHandle d, int e, float f, bool g, double h,
          mscclgo::PeerMemory i, const mscclgo::MemoryChannelHandle* j, void* k, unsigned long l, signed char m, const bool* n) {}
        """
    ).all
    array, on = group.empty(4), group.new_stream()
    channels, peers = group.memory_channels(array), group.share(array)
    flags = group.empty(4, "uint8")
    arguments = (-5, array, 7, group, -9, 0.1, True, 0.1, peers, channels, flags, 1 << 63, -128, flags)
    group.handle_bytes()
    peers.handle_bytes()
    places = [pack.__self__.quick for _, pack in kernel._packers]  # type: ignore[attr-defined]
    offsets = (_library.Parameter * len(places))()
    _library.call(_library.library.mscclgo_kernel_parameters, kernel._handle, offsets, len(places), ctypes.addressof(ctypes.c_size_t()))

    def never(argument: Any, held: List[Any]) -> bytes:
        raise AssertionError(f"{argument!r} is asked for")

    parameters = tuple((*quick(place.offset)[:4], never) for quick, place in zip(places, offsets))
    launched.clear()
    made.clear()
    assert fast.Kernel(group._quick, None, LAUNCH, 55, parameters).launch(66, on, arguments) == 0
    held: List[Any] = []
    assert launched[0][3] == kernel._pack(*[pack(a, held) for a, (_, pack) in zip(arguments, kernel._packers)])
    assert [id(one) for one in on._kept] == [id(one) for one in (None, array, peers, channels, flags, flags)]
    # What was closed is for Python, which refuses it.
    peers.close()
    channels.close()
    for at in (8, 9):
        with pytest.raises(AssertionError, match="asked for"):
            fast.Kernel(group._quick, None, LAUNCH, 55, parameters).launch(66, on, arguments)


def test_signals(group: mscclgo.Group) -> None:
    """What a call uses is kept before Python's code for a signal runs, that came while it was queued."""
    raises = ctypes.cast(ctypes.CDLL(None)["raise"], ctypes.c_void_p).value or 0  # a call of the library that a signal comes in
    on, array = group.new_stream(), group.empty(4)
    caller = fast.Caller(signal.SIGINT, group._device, 3, 2, {})
    caller.meet(raises, 4, 0, ())
    kernel = fast.Kernel(caller, "module", raises, signal.SIGINT, ())
    calls = [
        (lambda: caller.collect(raises, on, array, array, (1, 1), ()), array),
        (lambda: caller.transfer(raises, on, False, array, 0), array),
        (lambda: kernel.launch(66, on, ()), "module"),
    ]
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        for number, (call, used) in enumerate(calls):
            on._kept.clear()
            with pytest.raises(KeyboardInterrupt):
                call()
            assert any(held is used for held in on._kept), f"call {number}"
    finally:
        signal.signal(signal.SIGINT, before)


def test_look(group: mscclgo.Group) -> None:
    """A stream that keeps much looks whether its work is done."""
    on, array = group.new_stream(), group.empty(4)
    group.all_reduce(array, stream=on)
    on.synchronize()
    on._kept[:] = 1024 * [None]
    kernel = fast.Kernel(group._quick, "module", LAUNCH, 55, ())
    assert kernel.launch(66, on, ()) == 0 and on._kept == [] and on._look == 1024


def test_learn() -> None:
    assert not fast.learn(type("Older", (), {}), exchange(1, 2))
    assert not fast.learn(type("Newer", (), {}), exchange(2, 0))
    with pytest.raises(ValueError):
        fast.learn(Tensor, ctypes.pythonapi)


def test_arrays(group: mscclgo.Group) -> None:
    """Arrays are taken as long as they are open, of the device and kept with the stream."""
    assert group._quick is not None
    array = group.empty((3, 5), "float16")
    assert place(group._quick, array) == (array.pointer, 15, 1 | VOUCHED, True)
    assert place(fast.Caller(GROUP, DEVICE, 3, 2, {}), array) is None
    on = group.new_stream()
    group.all_reduce(array, stream=on)
    assert any(held is array for held in on._kept)
    on.synchronize()
    array.close()
    assert place(group._quick, array) is None
    with pytest.raises(mscclgo.InvalidError, match="closed"):
        group.all_reduce(array, stream=on)


def test_collected() -> None:
    """Streams refer to their group, whose caller refers to them: the collector finds that."""

    class Holder:
        pass

    holder = Holder()
    streams: Any = {}
    holder.caller, streams[1] = fast.Caller(GROUP, DEVICE, 3, 2, streams), holder  # type: ignore[attr-defined]
    # A kernel refers to its module, which refers to it, and to what packs its arguments.
    pack = lambda argument, held, holder=holder: b""  # noqa: E731
    holder.kernel = fast.Kernel(holder.caller, holder, LAUNCH, 55, ((0, 0, ASK, 0, pack),))  # type: ignore[attr-defined]
    gone = weakref.ref(holder)
    del holder, streams, pack
    gc.collect()
    assert gone() is None


def test_call() -> None:
    assert fast.call(ADDRESS, 1, None, b"x", 4, -1, 6, 7) == 0
    given = made.pop()
    assert given[0] == 1 and given[1] == 0 and ctypes.string_at(given[2]) == b"x" and given[4] == 2**64 - 1
    for wrong in ((), (ADDRESS,), (ADDRESS, "x"), (ADDRESS, 1.5), (ADDRESS,) + 9 * (1,)):
        with pytest.raises(TypeError):
            fast.call(*wrong)


def test_without() -> None:
    """All works without _fast too."""
    program = """
import sys
sys.modules["mscclgo._fast"] = None
import numpy, mscclgo
with mscclgo.Rendezvous() as rendezvous:
    group = mscclgo.connect(rendezvous.id, 0, 1, device="emu")
with group:
    assert group._quick is None
    array, output = group.array(numpy.arange(4, dtype="float32")), group.empty(4)
    group.all_reduce(array, output)
    group.prepare("all_reduce", group.share(output))()
    kernel = group.compile('extern "C" __global__ void add(float* a, int n) { a[threadIdx.x] += n; }').add
    kernel[1, 4](None, output, 10)
    with group.messages() as m:
        m.send(output, 0)
        m.recv(array, 0)
    group.synchronize()
    print(array.numpy().tolist())
    try: group.all_reduce(numpy.arange(4, dtype="int16"))
    except mscclgo.InvalidError as error: print(error)
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=100)
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("[10.0, 11.0, 12.0, 13.0]\n") and "int16" in done.stdout
