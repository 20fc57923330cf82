"""The simple calls that _fast makes, and that all works without it. A framework of a GPU is imitated."""

from __future__ import annotations

import ctypes
import gc
import subprocess
import sys
import weakref
from typing import Any, List, Tuple

import pytest

import mscclgo
from mscclgo._library import fast
from mscclgo._memory import _Tensor as View

pytestmark = pytest.mark.skipif(fast is None, reason="_fast was not built")


class Tensor:
    """One of an imitated framework: float32, on GPU 3, unless it is told otherwise."""

    def __init__(self, data: int = 0x1000, shape: Tuple[int, ...] = (6, 4), strides: Any = None, **more: int) -> None:
        self.shape = (ctypes.c_int64 * len(shape))(*shape)
        self.strides = None if strides is None else (ctypes.c_int64 * len(strides))(*strides)
        self.view = View(data, 2, 3, len(shape), 2, 32, 1, self.shape, self.strides)
        self.fails = False
        for name, value in more.items():
            setattr(self.view, name, value)


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
    of._handle, of._kept, of._look = handle, [], 100
    return of


@pytest.fixture
def caller() -> Any:
    assert fast.learn(Tensor, exchange(1, 3))
    made.clear()
    return fast.Caller(GROUP, DEVICE, 3, {0x77: stream(33)})


def test_collect(caller: Any) -> None:
    def collect(output: Any, input: Any, parts: Tuple[int, int] = (1, 1), on: Any = None) -> Any:
        made.clear()
        status = caller.collect(ADDRESS, on, output, input, parts, (4,))
        return made[0] if status == 0 else status

    a, b = Tensor(), Tensor(0x2000)
    assert collect(a, b) == (GROUP, 33, 0x1000, 0x2000, 24, VOUCHED, 4)
    assert collect(a, a) == (GROUP, 33, 0x1000, 0x1000, 24, VOUCHED, 4)
    assert collect(a, None, (2, 1)) == (GROUP, 33, 0x1000, 0, 12, VOUCHED, 4)
    assert collect(None, b, (1, 3)) == (GROUP, 33, 0, 0x2000, 8, VOUCHED, 4)
    assert collect(a, Tensor(0x2000, (8,)), (3, 1)) == (GROUP, 33, 0x1000, 0x2000, 8, VOUCHED, 4)
    assert collect(a, b, on=stream(44)) == (GROUP, 44, 0x1000, 0x2000, 24, VOUCHED, 4)
    assert collect(a, Tensor(0x2000, (8,)), (1, 1)) == -1
    assert collect(Tensor(shape=(3,)), Tensor(0x2000, (2,)), (2, 1)) == -1
    assert collect(None, None) == -1
    assert collect(a, b.shape) == -1
    assert collect(a, b, on=33) == -1
    current[0] = 0x78
    assert collect(a, b) == -1  # there is no Stream of it yet
    current[0] = 0x77
    assert collect(a, b)[1] == 33
    made[:] = [5]
    assert caller.collect(ADDRESS, None, a, b, (1, 1), (4,)) == 5


@pytest.mark.parametrize("code, bits, number", [(2, 32, 0), (2, 16, 1), (4, 16, 2), (2, 64, 3), (0, 32, 4), (0, 64, 5), (1, 8, 6), (10, 8, 7), (12, 8, 8)])
def test_types(caller: Any, code: int, bits: int, number: int) -> None:
    tensor = Tensor(code=code, bits=bits)
    assert caller.place(tensor) == (0x1000, 24, number | VOUCHED, False)
    assert caller.address(tensor, 1 << number) == 0x1000
    assert caller.address(tensor, ~(1 << number) & 0x1FF) is None
    if number:
        assert caller.collect(ADDRESS, None, tensor, Tensor(), (1, 1), ()) == -1


def test_simple(caller: Any) -> None:
    """What is simple, and what is left to the code in Python, which refuses it."""
    assert caller.place(Tensor(byte_offset=64))[0] == 0x1040
    assert caller.place(Tensor(shape=()))[1] == 1
    assert caller.place(Tensor(shape=(6, 1, 4), strides=(4, 99, 1)))[1] == 24
    assert caller.place(Tensor(0, shape=(0, 4)))[1] == 0
    fails = Tensor()
    fails.fails = True
    for tensor in (
        Tensor(strides=(1, 6)),
        Tensor(0),
        Tensor(device_type=1),
        Tensor(device_id=2),
        Tensor(lanes=2),
        Tensor(code=6, bits=8),
        Tensor(code=0, bits=16),
        Tensor(code=5, bits=64),
        fails,
        object(),
        None,
    ):
        assert caller.place(tensor) is None
        assert caller.address(tensor, 0x1FF) is None


def test_learn() -> None:
    assert not fast.learn(type("Older", (), {}), exchange(1, 2))
    assert not fast.learn(type("Newer", (), {}), exchange(2, 0))
    with pytest.raises(ValueError):
        fast.learn(Tensor, ctypes.pythonapi)


def test_arrays(group: mscclgo.Group) -> None:
    """Arrays are taken as long as they are open, of the device and kept with the stream."""
    assert group._quick is not None
    array = group.empty((3, 5), "float16")
    assert group._quick.place(array) == (array.pointer, 15, 1 | VOUCHED, True)
    assert fast.Caller(GROUP, DEVICE, 3, {}).place(array) is None
    on = group.new_stream()
    group.all_reduce(array, stream=on)
    assert any(held is array for held in on._kept)
    on.synchronize()
    array.close()
    assert group._quick.place(array) is None
    with pytest.raises(mscclgo.InvalidError, match="closed"):
        group.all_reduce(array, stream=on)


def test_collected() -> None:
    """Streams refer to their group, whose caller refers to them: the collector finds that."""

    class Holder:
        pass

    holder = Holder()
    streams: Any = {}
    holder.caller, streams[1] = fast.Caller(GROUP, DEVICE, 3, streams), holder  # type: ignore[attr-defined]
    gone = weakref.ref(holder)
    del holder, streams
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
