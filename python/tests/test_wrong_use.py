"""Wrong use gets one sentence, and no exception of Python's own."""

from __future__ import annotations

import copy
import ctypes
import gc
import pickle
import re
import sys
import warnings
from types import SimpleNamespace
from typing import Any, Callable, Dict, NamedTuple, Optional

import numpy as np
import pytest
from conftest import run_ranks

import mscclgo
from mscclgo import _memory


class Image:
    """What tells its elements by a copy of them, as an image of PIL does."""

    __array_interface__ = {"shape": (4,), "typestr": "|u1", "data": b"abcd", "version": 3}


class Broken:
    def __init__(self, **interface: Any) -> None:
        self.__array_interface__ = interface


class Streams:
    def __init__(self, protocol: Any) -> None:
        self.__cuda_stream__ = protocol


class Refuses:
    @property
    def __array_interface__(self) -> Any:
        raise RuntimeError("not now")


class Used:
    """What has given its capsule to another."""

    def __init__(self) -> None:
        self.owner = np.ones(3, "float32")
        self.capsule = self.owner.__dlpack__()
        name = ctypes.pythonapi.PyCapsule_SetName
        name.argtypes = [ctypes.py_object, ctypes.c_char_p]
        name(self.capsule, b"used_dltensor")

    def __dlpack_device__(self) -> Any:
        return (1, 0)

    def __dlpack__(self, **options: Any) -> Any:
        return self.capsule


class Device(NamedTuple):
    type: str = "cpu"
    index: Optional[int] = None


class Lazy:
    """A tensor as of PyTorch: the bits of what its elements are yet to be, and where its storage is."""

    def __init__(self, conj: bool = False, neg: bool = False, storage: int = 64) -> None:
        self.device, self.dtype = Device(), "torch.float32"
        self.is_conj, self.is_neg, self.is_contiguous = (lambda: conj), (lambda: neg), (lambda: True)
        self.numel, self.element_size, self.storage_offset = (lambda: 3), (lambda: 4), (lambda: 2)
        self.data_ptr = lambda: storage + 8
        self.untyped_storage = lambda: SimpleNamespace(data_ptr=lambda: storage)


SOURCE = 'extern "C" __global__ void k(void* to) {}'
ONES = np.ones(8, "float32")

# What is called with a group and a kernel, by what the error says.
WRONG: Dict[str, Callable[[Any, Any], Any]] = {
    "elements of datetime64.*, which are no numbers": lambda g, k: k[1, 1](None, np.zeros(3, "datetime64[s]")),
    "elements of timedelta64.*, which are no numbers": lambda g, k: g.array(np.zeros(3, "timedelta64[s]")),
    "elements of object, which are no numbers": lambda g, k: k[1, 1](None, np.array([None, 1])),
    "elements of str.*, which are no numbers": lambda g, k: k[1, 1](None, np.array(["ab"])),
    "where its elements are; pass a copy": lambda g, k: g.array(Image()),
    "array interface is wrong: KeyError: 'typestr'": lambda g, k: g.array(Broken(shape=(1,))),
    "array interface is wrong: TypeError": lambda g, k: g.array(Broken(shape=3, typestr="<f4", data=(64, False), strides=3)),
    "array interface is wrong: .*'str' object": lambda g, k: g.array(Broken(shape=(1,), typestr="<f4", data=("address", False))),
    "array interface is wrong: .*'float' object": lambda g, k: g.array(Broken(shape=(1.5,), typestr="<f4", data=(64, False))),
    "the handle of a stream is -1": lambda g, k: g.stream(-1),
    "the handle of a stream is 1180591620717411303424": lambda g, k: g.stream(1 << 70),
    "the stream does not give its handle: .*subscriptable": lambda g, k: g.stream(Streams(5)),
    "the handle of a stream is an int, not a NoneType": lambda g, k: g.stream(Streams((0, None))),
    "does not give its memory: not now": lambda g, k: g.array(Refuses()),
    "does not give its memory: .*PyCapsule": lambda g, k: g.array(Used()),
    "has a mask; pass its data": lambda g, k: g.all_reduce(np.ma.masked_array(ONES, ONES > 0)),
    "an extent of an array is an int, not a NoneType": lambda g, k: g.empty(None),
    "an extent of an array is an int, not a float": lambda g, k: g.empty((2, 1.5)),
    "an extent of an array is an int, not a str": lambda g, k: g.empty("23"),
    "an extent of an array is an int, not a ndarray": lambda g, k: g.empty(np.array(1.5)),
    "an extent of an array is an int, not a type": lambda g, k: g.empty(list),
    "an extent of an array is an int, not a str$": lambda g, k: g.empty(""),
    "an extent of an array is -1, and must be 0 to": lambda g, k: g.empty(-1),
    "the timeout is a number of seconds above 0$": lambda g, k: mscclgo.connect("", 0, 1, timeout=None),  # type: ignore[arg-type]
    "the timeout is a number of seconds above 0": lambda g, k: mscclgo.connect("", 0, 1, timeout=0),
    "a timeout is a number of seconds, not a str": lambda g, k: g.barrier("5"),
    "a timeout is a number of seconds, not a ndarray": lambda g, k: g.barrier(np.array([1, 2])),
    "a timeout is a number of seconds, not a type": lambda g, k: g.barrier(np.float32),
    "a timeout is a number of seconds, not a list": lambda g, k: g.synchronize(timeout=[1]),
    "a timeout of -1 seconds is not from 0 to 2147483647": lambda g, k: g.barrier(-1),
    "heartbeat_timeout of -2 seconds is not from 0": lambda g, k: mscclgo.connect("", 0, 1, heartbeat_timeout=-2),
    "heartbeat_timeout is a number of seconds, not a str": lambda g, k: mscclgo.connect("", 0, 1, heartbeat_timeout="1"),  # type: ignore[arg-type]
    r"\['sum'\] is not an operation": lambda g, k: g.all_reduce(ONES, op=["sum"]),
    r"\['all_reduce'\] is not a collective": lambda g, k: g.prepare(["all_reduce"], None),
    "a count of send_counts is an int, not a float": lambda g, k: g.all_to_all_v(ONES, ONES, [8.0], [8]),
    "a count of receive_counts is an int, not a NoneType": lambda g, k: g.all_to_all_v(ONES, ONES, [8], None),
    "a count of send_counts is -1": lambda g, k: g.all_to_all_v(ONES, ONES, [-1], [8]),
    "send_counts has a count for each of 1 rank": lambda g, k: g.all_to_all_v(ONES, ONES, [4, 4], [8]),
    "the id is a str, not a bytes": lambda g, k: mscclgo.connect(b"id", 0, 1),  # type: ignore[arg-type]
    "the id is a str, not a NoneType": lambda g, k: mscclgo.connect(None, 0, 1),  # type: ignore[arg-type]
    "the id has a zero byte": lambda g, k: mscclgo.connect("a\0b", 0, 1),
    "the device is a str, not a bytes": lambda g, k: mscclgo.init(device=b"emu"),  # type: ignore[arg-type]
    "the device has a character that UTF-8 has not": lambda g, k: mscclgo.init(device="emu\ud800"),
    "the address is a str, not a NoneType": lambda g, k: mscclgo.Rendezvous(None),  # type: ignore[arg-type]
    "config: trace is a text": lambda g, k: g.split(0, config=mscclgo.Config(trace=5)),  # type: ignore[arg-type]
    "config: tuning is a text": lambda g, k: g.split(0, config=mscclgo.Config(tuning="\ud800")),
    "there are no transports; None is all": lambda g, k: g.split(0, config=mscclgo.Config(transports="")),
    "are no transports; None is all of them": lambda g, k: g.split(0, config=mscclgo.Config(transports=())),
    "a text of defines has a zero byte": lambda g, k: g.compile(SOURCE, defines=["A\0B"]),
    "a text of flags is a str, not an int": lambda g, k: g.compile(SOURCE, flags=[3]),
    "include_dirs is a list of texts, not a NoneType": lambda g, k: g.compile(SOURCE, include_dirs=None),
    "the source is a str, not a bytes": lambda g, k: g.compile(SOURCE.encode()),
    "the source has a character that UTF-8 has not": lambda g, k: g.compile(SOURCE + "// \ud800"),
    "the name of a kernel has a zero byte": lambda g, k: k._module["k\0"],
    "the name is a str, not an int": lambda g, k: g.memory_channels(g.empty(1), name=3),
    "an extent of the grid is an int, not a float": lambda g, k: k[1.5, 256],
    "an extent of the block is an int, not a NoneType": lambda g, k: k[1, None],
    "the shared memory is an int, not a float": lambda g, k: k[1, 1, 64.0],
    "the reason is a str, not a NoneType": lambda g, k: g.abort(None),
    "wait: the event is a mscclgo.Event, not a NoneType": lambda g, k: g.stream().wait(None),
    "record: the event is a mscclgo.Event, not an int": lambda g, k: g.stream().record(0),
    "elapsed: the start is a mscclgo.Event, not a Stream": lambda g, k: g.stream().record().elapsed(g.stream()),
    "max_blocks: the kernel is a mscclgo.Kernel, not a Module": lambda g, k: g.max_blocks(k._module, 32),
    "set_log: the function is None or a function, not an int": lambda g, k: mscclgo.set_log(5),  # type: ignore[arg-type]
    "set_log: level is an int, not a str": lambda g, k: mscclgo.set_log(None, "debug"),  # type: ignore[arg-type]
}


@pytest.fixture(scope="module")
def kernel(group: mscclgo.Group) -> mscclgo.Kernel:
    return group.compile(SOURCE).k


@pytest.mark.parametrize("says", WRONG)
def test_wrong_use(group: mscclgo.Group, kernel: mscclgo.Kernel, says: str) -> None:
    with pytest.raises(mscclgo.InvalidError, match=says) as caught:
        WRONG[says](group, kernel)
    assert "\n" not in str(caught.value)
    group.check()


def test_numpy_numbers(group: mscclgo.Group) -> None:
    """Integers of NumPy are integers."""
    assert group.empty(np.int64(5)).shape == group.empty(np.array(5)).shape == (5,)
    assert group.empty(np.array([2, 3])).shape == (2, 3)
    group.barrier(np.float32(5))
    group.all_to_all_v(ONES.copy(), ONES, np.array([8]), (np.uint8(8),))
    group.synchronize(timeout=np.float64(5))


def test_flags_and_ranks(group: mscclgo.Group) -> None:
    """Ranks are of any iterable, and flags of any kind."""
    group.pipes((r for r in [0]), {0}, ports=None).close()  # type: ignore[arg-type]
    memory = group.share(group.empty(8))
    group.prepare("all_reduce", memory, overlap="yes").close()  # type: ignore[arg-type]
    memory.close()


def test_closed_group() -> None:
    """Arrays are freed with their group, and not with a part of it."""

    def run(number: int, id: str) -> None:
        group = mscclgo.connect(id, number, 1, device="emu")
        part = group.split(0)
        assert part is not None
        arrays = [group.array(ONES), part.array(ONES)]
        part.close()
        assert [a.numpy().sum() for a in arrays] == [8, 8]
        group.close()
        for array in arrays:
            for use in (lambda: array.pointer, lambda: array.numpy(), lambda: array.__array_interface__):
                with pytest.raises(mscclgo.InvalidError, match="the array was closed, or its group"):
                    use()
            array.close()

    run_ranks(1, run)


def test_copies(group: mscclgo.Group, kernel: mscclgo.Kernel) -> None:
    """What owns an object of the library has no second owner, which would be left with nothing."""
    array = group.array(ONES)
    stream = group.new_stream()
    for owner in (group, array, stream, stream.record(), kernel, kernel._module, group.memory_channels(array), group.proxy(print)):
        for copies in (copy.copy, copy.deepcopy, pickle.dumps):
            with pytest.raises(mscclgo.InvalidError, match=f"objects of {type(owner).__name__} can be neither copied nor pickled"):
                copies(owner)
    gc.collect()
    assert array.numpy().sum() == 8


def test_forgotten_rendezvous() -> None:
    """A rendezvous that is dropped stays open for whoever has its id."""
    with pytest.warns(ResourceWarning, match="not closed"):
        id = mscclgo.Rendezvous().id
        gc.collect()
    mscclgo.connect(id, 0, 1, device="emu").close()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with mscclgo.Rendezvous():
            pass
        gc.collect()


def test_lazy_tensors(monkeypatch: pytest.MonkeyPatch) -> None:
    """Tensors of PyTorch whose memory is not what they stand for are refused."""
    torch = type(sys)("torch")
    torch.Tensor = Lazy  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "torch", torch)
    assert _memory.of(Lazy())[:3] == (72, 3, "float32")
    for tensor, why in ((Lazy(conj=True), "resolve_conj()"), (Lazy(neg=True), "resolve_neg()"), (Lazy(storage=0), "memory was freed")):
        with pytest.raises(mscclgo.InvalidError, match=re.escape(why)):
            _memory.of(tensor)
