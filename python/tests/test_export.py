"""Arrays as tensors of other packages, by DLPack, and tensors of other packages as arrays."""

from __future__ import annotations

import gc
import weakref
from typing import Any, Optional, Tuple

import numpy as np
import pytest

import mscclgo
from mscclgo import _memory


class Exporter:
    """Offers an array by DLPack alone, of the version that is asked for."""

    def __init__(self, array: mscclgo.Array, version: Optional[Tuple[int, int]]) -> None:
        self.array, self.version = array, version

    def __dlpack_device__(self) -> Tuple[int, int]:
        return self.array.__dlpack_device__()

    def __dlpack__(self, **how: Any) -> Any:
        how["max_version"] = self.version
        return self.array.__dlpack__(**how)


VERSIONS = [None, (0, 8), (1, 0), (2, 7)]


@pytest.mark.parametrize("version", VERSIONS)
def test_shares(group: mscclgo.Group, version: Optional[Tuple[int, int]]) -> None:
    array = group.array(np.arange(12, dtype=np.float32).reshape(3, 4))
    view = np.from_dlpack(Exporter(array, version))
    np.testing.assert_array_equal(view, array.numpy())
    array.copy_from(np.full((3, 4), 7, np.float32))
    np.testing.assert_array_equal(view, np.full((3, 4), 7, np.float32))


@pytest.mark.parametrize("shape", [(), (0,), (2, 0, 3), (1, 5, 1)])
def test_shapes(group: mscclgo.Group, shape: Tuple[int, ...]) -> None:
    view = np.from_dlpack(group.empty(shape, "int64"))
    assert view.shape == shape and view.dtype == np.int64


@pytest.mark.parametrize("dtype", list(_memory.TYPES))
def test_types(group: mscclgo.Group, dtype: str) -> None:
    array = group.empty((3, 5), dtype)
    memory = _memory.of(Exporter(array, None))
    assert (memory.dtype, memory.elements, memory.bytes) == (dtype, 15, array.nbytes)
    assert memory.address == array._host_address()


def test_bools(group: mscclgo.Group) -> None:
    """Tensors of bools are for pointers to bool, and are named as such, however they come."""

    class ByDLPack:
        def __init__(self, array: Any) -> None:
            self.__dlpack__, self.__dlpack_device__ = array.__dlpack__, array.__dlpack_device__

    class ByInterface:
        __cuda_array_interface__ = {"shape": (3,), "typestr": "|b1", "data": (1 << 40, False), "version": 3}

    host = np.zeros(3, "bool")
    for tensor in (host, ByDLPack(host), ByInterface()):
        memory = _memory.of(tensor)
        assert (memory.dtype, memory.bytes) == ("bool", 3)
    group.compile('extern "C" __global__ void k(bool* to) { to[1] = true; }').k[1, 1](None, ByDLPack(host))
    group.synchronize()
    assert list(host) == [False, True, False]
    with pytest.raises(mscclgo.InvalidError, match="elements of bool, and the collectives take"):
        group.all_reduce(ByDLPack(host))


@pytest.mark.parametrize("version", VERSIONS)
def test_holds(group: mscclgo.Group, version: Optional[Tuple[int, int]]) -> None:
    array = group.array(np.arange(1000, dtype=np.int32))
    gone = weakref.ref(array)
    view = np.from_dlpack(Exporter(array, version))
    del array
    gc.collect()
    assert gone() is not None and view[999] == 999
    del view
    gc.collect()
    assert gone() is None


@pytest.mark.parametrize("version", VERSIONS)
def test_capsule_unused(group: mscclgo.Group, version: Optional[Tuple[int, int]]) -> None:
    array = group.empty(10, "float64")
    gone = weakref.ref(array)
    capsule = array.__dlpack__(max_version=version)
    del array
    gc.collect()
    assert gone() is not None
    del capsule
    gc.collect()
    assert gone() is None


def test_wrap(together: Any) -> None:
    """Prepares a collective on the rows of arrays, which others hold as tensors."""

    def body(group: mscclgo.Group) -> None:
        rows = np.asarray(group.array(np.arange(12, dtype=np.float32).reshape(3, 4) + 100 * group.rank))
        row = group.wrap(rows[1])
        assert row.shape == (4,) and row.dtype == "float32"
        assert row.pointer == group.wrap(rows).pointer + 16
        prepared = group.prepare("all_reduce", group.share(row))
        prepared()
        group.synchronize(timeout=60)
        before = np.arange(12, dtype=np.float32).reshape(3, 4)
        np.testing.assert_array_equal(rows[0], before[0] + 100 * group.rank)
        np.testing.assert_array_equal(rows[1], 2 * before[1] + 100)
        np.testing.assert_array_equal(row.numpy(), rows[1])

    together(2, body)


def test_wrap_holds(group: mscclgo.Group) -> None:
    array = group.array(np.arange(10, dtype=np.int64))
    gone = weakref.ref(array)
    wrapped = group.wrap(np.asarray(array)[2:])
    del array
    gc.collect()
    assert gone() is not None and wrapped.numpy()[7] == 9
    wrapped.close()
    gc.collect()
    assert gone() is None


def test_wrap_refusals(group: mscclgo.Group) -> None:
    array = group.empty((4, 4), "float32")
    view = np.asarray(array)
    frozen = view.view()
    frozen.flags.writeable = False
    for tensor, what in [
        (array, "is an Array"),
        (view[:0], "no elements"),
        (view[:, 1], "not contiguous"),
        (frozen, "read-only"),
        (view.view(np.int16), "int16"),
        (np.zeros(4, np.float32), "allocation|emu"),
        ([1, 2], "not a tensor"),
    ]:
        with pytest.raises(mscclgo.InvalidError, match=what):
            group.wrap(tensor)


def test_refusals(group: mscclgo.Group) -> None:
    array = group.empty(10, "float32")
    with pytest.raises(BufferError, match="without a copy"):
        array.__dlpack__(copy=True)
    with pytest.raises(BufferError, match="not \\(2, 0\\)"):
        array.__dlpack__(dl_device=(2, 0))
    array.__dlpack__(dl_device=(1, 0), copy=False, stream=None)
    array.close()
    with pytest.raises(mscclgo.InvalidError, match="closed"):
        array.__dlpack__()
