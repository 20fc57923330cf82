from __future__ import annotations

import gc
import os
import sys
import threading
import time
import weakref
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
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
    number = np.int64
    for grid, block, shared in ((2, 3), (4, 1, 1), 64), ([number(2), 3], np.array([4, 1, 1]), number(64)):
        to[0] = 0
        module.shape[grid, block, shared](None, to, None)
        group.synchronize()
        assert to[0] == 243
    assert module.shape[number(1), np.array(256)] is not None
    module.shape[1, 1, 200 << 10](None, to, None)  # more than CUDA gives without being asked
    group.synchronize()
    assert to[0] == 111
    assert group.max_blocks(module.shape, 32, 220 << 10) > 0


def test_wrong_launches(group: mscclgo.Group, module: mscclgo.Module) -> None:
    to = np.zeros(9)
    good = [to, 1, 2, 3, 4, 5.0, 6.0, True]

    def refused(part: str, arguments: Any, grid: Any = 1, block: Any = 1) -> None:
        with pytest.raises(mscclgo.InvalidError, match=part) as caught:
            module.arguments[grid, block](None, *arguments)
        assert "launch arguments" in str(caught.value) and "\n" not in str(caught.value)

    refused("7 arguments given, and the kernel takes 8", good[:7])
    refused(r"parameter a is a char, and 256 is out of its range", [to, 256, *good[2:]])
    refused(r"parameter a is a char, and -129 is out of its range", [to, -129, *good[2:]])
    refused(r"parameter a is a char, and takes an int, not a float \(1.0\)", [to, 1.0, *good[2:]])
    refused(r"parameter to is a double\*, and a str is not a tensor", ["to", *good[1:]])
    refused(r"parameter to is a double\*, and the tensor is not contiguous", [np.zeros((9, 9))[:, 0], *good[1:]])
    refused(r"parameter d is a long, and an int32 has 4 bytes, not 8", [*good[:4], np.int32(4), *good[5:]])
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
    with pytest.raises(mscclgo.InvalidError, match="defines is a list"):
        group.compile(SOURCE, defines="A=1")


TYPED = """
#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_fp8.h>
#include <mscclgo/memory_channel.cuh>
#include <mscclgo/port_channel.cuh>
struct Pair { int a; float b; };
enum class Color : signed char { Red };
enum class Flags : uint16_t { None };
extern "C" __global__ void numbers(double* to, float f, uint32_t u, int n, uint64_t w, int8_t c, bool g, Color color, Pair pair, __half half) {
  to[0] = f; to[1] = u; to[2] = n; to[3] = w >> 32; to[4] = c; to[5] = g; to[6] = int(color); to[7] = pair.a; to[8] = pair.b;
  to[9] = float(half);
}
extern "C" __global__ void pointers(bool* same, const void* a, const float* b, uint64_t* c, const unsigned char* d, Pair* e, __half* f,
                                    int8_t* g, bool* h, const char* const* i, const __nv_bfloat16* j) {
  *same = a == b && a == c && a == d && a == e && a == f && a == g && a == h && a == i && a == j;
}
extern "C" __global__ void channels(bool* any, const mscclgo::MemoryChannelHandle* m, const mscclgo::PortChannelHandle* p, float* f, void* v) {
  *any = m || p || f || v;
}
extern "C" __global__ void unnamed(float, int) {}
extern "C" __global__ void flagged(double* to, Flags flags) { *to = double(flags); }
"""


@pytest.fixture(scope="module")
def typed(group: mscclgo.Group) -> mscclgo.Module:
    return group.compile(TYPED, "typed.cu")


def test_numbers(group: mscclgo.Group, typed: mscclgo.Module) -> None:
    """Numbers are converted to the parameters' types, and never their bits."""
    to = group.empty(10, "float64")
    pair = np.array((7, 0.5), dtype="i4,f4").tobytes()

    def launch(*arguments: Any) -> List[float]:
        typed.numbers[1, 1](None, to, *arguments)
        group.synchronize()
        return list(to.numpy())

    got = launch(2, 3, -4, 1 << 32, -5, True, 1, pair, np.float16(1.5))
    assert got == [2, 3, -4, 1, -5, 1, 1, 7, 0.5, 1.5]
    got = launch(0.1, (1 << 32) - 1, True, (1 << 64) - 1, np.int8(-128), 0, -1, bytearray(pair), np.float16(-2).tobytes())
    assert got == [np.float32(0.1), (1 << 32) - 1, 1, (1 << 32) - 1, -128, 0, -1, 7, 0.5, -2]
    got = launch(np.float32(0.1), np.uint32(9), np.int32(-9), np.uint64(1 << 63), np.bool_(True), np.bool_(True), 127, pair, np.float16(0))
    assert got == [np.float32(0.1), 9, -9, 1 << 31, 1, 1, 127, 7, 0.5, 0]
    got = launch(-(1 << 24), np.int32(9), np.uint32(8), mscclgo.Pointer(5), 127, 1, -128, np.array((1, 2), "i4,f4")[()], np.float16(0))
    assert got == [-(1 << 24), 9, 8, 0, 127, 1, -128, 1, 2, 0]
    got = launch(float("inf"), 0, 0, 0, 0, False, 0, pair, np.float16(0))
    assert got == [float("inf"), 0, 0, 0, 0, 0, 0, 7, 0.5, 0]


def test_unsigned_enum(group: mscclgo.Group, typed: mscclgo.Module) -> None:
    """An enum takes the numbers that its type has."""
    to = group.empty(1, "float64")
    typed.flagged[1, 1](None, to, 65535)
    group.synchronize()
    assert to.numpy()[0] == 65535
    for number in (-1, 65536):
        with pytest.raises(mscclgo.InvalidError, match=f"parameter flags is a Flags, and {number} is out of its range"):
            typed.flagged[1, 1](None, to, number)


def test_numbers_refused(group: mscclgo.Group, typed: mscclgo.Module) -> None:
    """One wrong number at a time."""
    to = group.array(np.full(10, 99.0))
    right = [to, 2.0, 3, -4, 5, 6, True, 1, bytes(8), np.float16(1)]
    names = ["to is a double*", "f is a float", "u is a uint32_t", "n is an int", "w is a uint64_t", "c is an int8_t", "g is a bool"]
    names += ["color is a Color", "pair is a Pair", "half is a __half"]
    for at, argument, says in (
        (1, (1 << 24) + 1, "no such number is exactly 16777217: pass float(n), which is rounded"),
        (1, (1 << 127) + 1, "no such number is exactly 170141183460469231731687303715884105729: pass"),
        (1, 1e300, "1e+300 is out of its range"),
        (1, 10**10000, "a number of 33220 bits is out of its range"),
        (1, True, "takes a float, not a bool (True)"),
        (1, np.float64(1), "a float64 has 8 bytes, not 4"),
        (1, np.int32(1), "takes a float, not an int32"),
        (1, "1", "takes a float, not a str"),
        (1, None, "takes a float, not a NoneType"),
        (1, np.ones(1, "float32"), "takes a float, not a ndarray"),
        (1, bytes(4), "takes a float, not a bytes"),
        (2, -3, "-3 is out of its range"),
        (2, 1 << 32, "4294967296 is out of its range"),
        (2, np.int32(-3), "-3 is out of its range"),
        (2, 1.0, "takes an int, not a float (1.0)"),
        (2, to, "takes an int, not an Array"),
        (3, 1.5, "takes an int, not a float (1.5)"),
        (3, 1 << 31, "2147483648 is out of its range"),
        (3, -(1 << 31) - 1, "-2147483649 is out of its range"),
        (3, np.uint32(1 << 31), "2147483648 is out of its range"),
        (3, np.float32(1), "takes an int, not a float32"),
        (3, np.int64(1), "an int64 has 8 bytes, not 4"),
        (3, np.array(1), "takes an int, not a ndarray"),
        (3, bytes(4), "takes an int, not a bytes"),
        (4, -1, "-1 is out of its range"),
        (4, 1 << 64, "18446744073709551616 is out of its range"),
        (4, 10**10000, "a number of 33220 bits is out of its range"),
        (4, to, "takes an int, not an Array"),
        (4, None, "takes an int"),
        (5, 128, "128 is out of its range"),
        (6, 2, "takes a bool, not an int (2)"),
        (6, -(10**10000), "takes a bool, not an int (a number of 33220 bits)"),
        (6, 1.0, "takes a bool, not a float (1.0)"),
        (6, np.uint8(1), "takes a bool, not a uint8"),
        (7, 256, "256 is out of its range"),
        (7, 128, "128 is out of its range"),
        (7, -129, "-129 is out of its range"),
        (7, 1.0, "takes an int"),
        (8, bytes(7), "a bytes has 7 bytes, not 8"),
        (8, 1, "takes an object of this package that stands for it, or its 8 bytes, not an int (1)"),
        (8, to, "not an Array"),
        (8, group, "a Group has 704 bytes, not 8"),
        (8, None, "not a NoneType"),
        (9, 1, "takes a scalar of NumPy of type float16, or its 2 bytes, not an int (1)"),
        (9, 1.5, "takes a scalar of NumPy of type float16"),
        (9, np.uint16(1), "takes a scalar of NumPy of type float16"),
        (9, np.float32(1), "takes a scalar of NumPy of type float16"),
    ):
        arguments: List[Any] = right[:at] + [argument] + right[at + 1 :]
        with pytest.raises(mscclgo.InvalidError) as caught:
            typed.numbers[1, 1](None, *arguments)
        text = str(caught.value)
        assert text.startswith(f"mscclgo: launch numbers: parameter {names[at]}, and ") and says in text and "\n" not in text and text.count("launch") == 1
    with pytest.raises(mscclgo.InvalidError, match="launch unnamed: parameter 2 is an int, and takes an int, not a float"):
        typed.unnamed[1, 1](None, 1.0, 1.0)
    group.synchronize()
    assert to.numpy()[0] == 99  # none has run


def test_pointers(group: mscclgo.Group, typed: mscclgo.Module) -> None:
    """Tensors of the elements that a parameter points to, addresses, and null."""
    same = group.empty(1, "uint8")

    def launch(*arguments: Any) -> bool:
        typed.pointers[1, 1](None, same, *arguments)
        group.synchronize()
        return bool(same.numpy()[0])

    # One memory in all types.
    array = group.empty(16, "float32")
    host = np.asarray(array)
    views = [host, host, host.view("int64"), host, host, host.view("float16"), host.view("uint8"), host.view("bool"), host, array.pointer]
    assert launch(*views)
    views = [host.view("complex64"), array, host.view("uint64"), array, array, array.pointer, host.view("int8"), host.view("uint8"), array, array.pointer]
    assert launch(*views)
    assert launch(*(10 * [mscclgo.Pointer(array.pointer)])) and launch(*(10 * [None]))
    assert not launch(*(9 * [array.pointer]), mscclgo.Pointer(array.pointer + 16))

    sixteen = group.empty(4, "bfloat16")
    assert not launch(sixteen, None, group.empty(4, "int64"), sixteen, sixteen, group.empty(4, "float16"), None, None, sixteen, sixteen)


def test_pointers_refused(group: mscclgo.Group, typed: mscclgo.Module) -> None:
    """What is no address, and tensors of other elements."""
    array, closed = group.empty(16, "float32"), group.empty(16, "float32")
    closed.close()
    names = ["a is a const void*", "b is a const float*", "c is a uint64_t*", "d is a const unsigned char*", "e is a Pair*", "f is a __half*"]
    names += ["g is an int8_t*", "h is a bool*", "i is a const char* const*", "j is a const __nv_bfloat16*"]
    for at, argument, says in (
        (0, 12345, "takes a tensor, channels, None, or mscclgo.Pointer(address), not an int (12345)"),
        (0, 0, "takes a tensor"),
        (0, mscclgo.Pointer(-1), "-1 is out of its range"),
        (0, mscclgo.Pointer(1 << 64), "18446744073709551616 is out of its range"),
        (0, True, "not a bool (True)"),
        (0, 1.5, "not a float (1.5)"),
        (0, np.uint64(12345), "not a uint64"),
        (0, np.float64(1), "not a float64"),
        (0, bytes(8), "not a bytes"),
        (0, np.zeros(1, "i4,f4")[0], "not a void"),
        (0, group, "a Group is not a tensor"),
        (0, "text", "a str is not a tensor"),
        (0, closed, "the array was closed"),
        (0, np.ones((4, 4))[:, 0], "not contiguous"),
        (1, np.ones(4), "the tensor has elements of float64"),
        (1, np.ones(4, "int32"), "the tensor has elements of int32"),
        (1, group.empty(4, "float64"), "the tensor has elements of float64"),
        (1, group.empty(4, "uint8"), "the tensor has elements of uint8"),
        (1, closed, "the array was closed"),
        (2, np.ones(4, "uint32"), "the tensor has elements of uint32"),
        (2, array, "the tensor has elements of float32"),
        (5, group.empty(4, "bfloat16"), "the tensor has elements of bfloat16"),
        (6, array, "the tensor has elements of float32"),
        (7, np.ones(4, "int32"), "the tensor has elements of int32"),
        (8, 1, "not an int (1)"),
        (9, np.ones(4, "float16"), "the tensor has elements of float16"),
    ):
        arguments: List[Any] = 10 * [None]
        arguments[at] = argument
        with pytest.raises(mscclgo.InvalidError) as caught:
            typed.pointers[1, 1](None, None, *arguments)
        text = str(caught.value)
        assert text.startswith(f"mscclgo: launch pointers: parameter {names[at]}, and ") and says in text and "\n" not in text and text.count("launch") == 1


def test_read_only(group: mscclgo.Group) -> None:
    """Read-only tensors are for pointers to const alone, where no typedef may have it."""
    kernel = group.compile(
        """
        #include <cuda_fp16.h>
        typedef const float scalar;
        typedef const float* where;
        struct Pair { int a; float b; };
        extern "C" __global__ void k(bool* same, const float* a, const volatile int* b, const void* c, float* const* const d, const half* e, scalar* f,
                                     where g, const Pair* h, const char* __restrict__ i, float* j, volatile int* k, void* l, const float** m, half* n,
                                     Pair* o, char* __restrict__ p, uint32_t* const q) { *same = (void*)a == c; }
        """
    ).k
    same, array = np.zeros(1, "bool"), np.asarray(group.empty(4))
    array.flags.writeable = False
    integers, halves, shorts = array.view("int32"), array.view("float16"), array.view("int16")
    right = [array, integers, array, array, halves, array, array, shorts, array]
    kernel[1, 1](None, same, *right, *(8 * [None]))
    group.synchronize()
    assert same[0]
    wrong = "float*", array, "volatile int*", integers, "void*", shorts, "const float**", array, "half*", halves, "Pair*", array, "char*", array, "uint32_t*", integers
    for at, (type, tensor) in enumerate(zip(wrong[::2], wrong[1::2])):
        arguments: List[Any] = 8 * [None]
        arguments[at] = tensor
        with pytest.raises(mscclgo.InvalidError) as caught:
            kernel[1, 1](None, same, *right, *arguments)
        assert str(caught.value).endswith(f"is a {type}, and the tensor is read-only, which only a pointer to const takes")


def test_typedefs(group: mscclgo.Group) -> None:
    """What pointers point to by names of the program's own."""
    kernel = group.compile(
        """
        #include <cuda_bf16.h>
        #include <cuda_fp16.h>
        #include <mscclgo/memory_channel.cuh>
        typedef const float scalar;
        using counter = volatile uint64_t;
        using sixteen = nv_bfloat16;
        typedef unsigned char raw;
        typedef struct { int x; } pair;
        using channel = mscclgo::MemoryChannelHandle;
        namespace odd { using half = float; using uint8_t = double; }
        extern "C" __global__ void named(bool* same, scalar* a, counter* b, sixteen* c, raw* d, pair* e, const channel* f, odd::half* g,
                                         odd::uint8_t* h) { *same = (void*)a == (void*)g; }
        """
    ).named
    same = group.empty(1, "uint8")
    array, channels = group.empty(4), group.memory_channels(group.empty(4))
    right: List[Any] = [array, group.empty(4, "int64"), group.empty(4, "bfloat16"), array, array, channels, array, group.empty(4, "float64")]
    kernel[1, 1](None, same, *right)
    group.synchronize()
    assert same.numpy()[0]
    ports, doubles = group.port_channels(array), group.empty(4, "float64")
    for at, says in ((0, "a is a scalar*"), (1, "b is a counter*"), (2, "c is a sixteen*"), (6, "g is a half*")):
        with pytest.raises(mscclgo.InvalidError) as caught:
            kernel[1, 1](None, same, *right[:at], doubles, *right[at + 1 :])
        assert f"parameter {says}, and the tensor has elements of float64" in str(caught.value)
    with pytest.raises(mscclgo.InvalidError, match=r"h is a uint8_t\*, and the tensor has elements of float32"):
        kernel[1, 1](None, same, *right[:7], array)
    for at, given, says in ((0, channels, "MemoryChannelHandle"), (5, ports, "PortChannelHandle")):
        with pytest.raises(mscclgo.InvalidError, match=f"the channels' handles are of the type {says}"):
            kernel[1, 1](None, same, *right[:at], given, *right[at + 1 :])


def test_channels_as_arguments(group: mscclgo.Group, typed: mscclgo.Module) -> None:
    """Channels are for pointers to their handles."""
    array = group.empty(4)
    memory, ports = group.memory_channels(array), group.port_channels(array)
    kernel, stream = typed.channels[1, 1], group.new_stream()
    any = np.zeros(1, "bool")
    for right in ((memory, None), (memory[0, 0], ports[0]), (memory.pointer, ports), (None, ports.pointer)):
        any[0] = False
        kernel(stream, any, *right, None, None)
        stream.synchronize()
        assert any[0]
    kernel(stream, any, None, None, None, memory)
    kernel(stream, any, None, None, None, ports[0])
    kernel(stream, any, mscclgo.Pointer(ports[0]), None, mscclgo.Pointer(memory.pointer), None)
    for wrong, says in (
        ((ports, None, None), r"m is a const MemoryChannelHandle\*, and the channels' handles are of the type PortChannelHandle"),
        ((ports[0], None, None), r"m is a const MemoryChannelHandle\*, and the channels' handles are of the type PortChannelHandle"),
        ((None, memory[0], None), r"p is a const PortChannelHandle\*, and the channels' handles are of the type MemoryChannelHandle"),
        ((None, None, memory), r"f is a float\*, and the channels' handles are of the type MemoryChannelHandle"),
        ((None, None, ports[0, 0]), r"f is a float\*, and the channels' handles are of the type PortChannelHandle"),
    ):
        with pytest.raises(mscclgo.InvalidError, match="^mscclgo: launch channels: parameter " + says + "$"):
            kernel(stream, any, *wrong, None)
    stream.synchronize()
    memory.close()
    with pytest.raises(mscclgo.InvalidError, match="^mscclgo: launch channels: parameter m is a const MemoryChannelHandle.*destroyed"):
        kernel(stream, any, memory, None, None, None)


def test_undescribed(group: mscclgo.Group) -> None:
    """Where the compiler does not tell the parameters, only sizes are compared."""
    module = group.compile(SOURCE, "test.cu", flags=["-g0"])
    to = group.array(np.zeros(9))
    module.arguments[1, 1](None, to, -1, np.int16(-2), 3, 1 << 40, 0.5, np.float64(0.25), True)
    group.synchronize()
    np.testing.assert_array_equal(to.numpy()[:8], [-1, -2, 3, 1 << 40, 0.5, 0.25, 1, 1])
    module.arguments[1, 1](None, np.zeros(9), 255, bytes(2), 3, np.int64(4), np.float32(5), 6.0, 1)
    module.shape[1, 1, 64](None, group.empty(1), group.port_channels(to))
    right: List[Any] = [to, 1, 2, 3, 4, 5.0, 6.0, True]
    for at, argument, says in (
        (0, np.int32(1), "1 has 8 bytes, and an int32 has 4 bytes, not 8"),
        (0, "to", "1 has 8 bytes, and a str is not a tensor"),
        (1, 256, "2 has 1 bytes, and 256 is out of its range"),
        (2, 1.0, "3 has 2 bytes, and takes no float"),
        (3, None, "4 has 4 bytes, and a NoneType has 8 bytes, not 4"),
        (3, to, "4 has 4 bytes, and an Array has 8 bytes, not 4"),
        (4, True, "5 has 8 bytes, and a bool has 1 bytes, not 8"),
        (5, 1e300, "6 has 4 bytes, and 1e\\+300 is out of its range"),
    ):
        with pytest.raises(mscclgo.InvalidError, match="launch arguments: parameter " + says):
            module.arguments[1, 1](None, *right[:at], argument, *right[at + 1 :])
    group.synchronize()


def test_launches_of_threads(group: mscclgo.Group, typed: mscclgo.Module) -> None:
    """Threads launch one kernel with arguments of their own."""
    pair = bytes(8)

    def launches(thread: int) -> None:
        to, stream = group.empty(10, "float64"), group.new_stream()
        for i in range(50):
            typed.numbers[1, 1](stream, to, i, i, -i, thread << 32, thread, True, 0, pair, np.float16(thread))
            stream.synchronize()
            assert list(to.numpy()[:5]) == [i, i, -i, thread, thread]

    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        with ThreadPoolExecutor(4) as threads:
            list(threads.map(launches, range(4)))
    finally:
        sys.setswitchinterval(interval)


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
        array, stream, host = group.empty(1 << 20, "int32"), group.new_stream(), np.ones(1 << 16, "float32")
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


SETS = """
#include <mscclgo/memory_channel.cuh>
#include <mscclgo/port_channel.cuh>
extern "C" __global__ void exchange(mscclgo::MemoryChannelSet channels, uint64_t bytes, uint32_t which) {
  uint32_t peer = 1 - channels.rank;
  auto& channel = channels.to(peer, which);
  channel.put(bytes * channels.rank, bytes * channels.rank, bytes, threadIdx.x, blockDim.x);
  __syncthreads();
  if (threadIdx.x > 0) return;
  channel.signal();
  channel.wait();
}
extern "C" __global__ void ports(mscclgo::PortChannelSet channels, uint64_t bytes) {
  auto& channel = channels.to(1 - channels.rank, 1);
  channel.putWithSignal(bytes * channels.rank, bytes * channels.rank, bytes);
  channel.wait();
}
"""


@pytest.mark.parametrize("kind", ["memory", "ports"])
def test_channel_sets(together: Any, kind: str) -> None:
    """Kernels take channels by value, by rank and number, and a wrong index is told of."""

    def body(group: mscclgo.Group) -> None:
        data = group.array(np.full(64, group.rank + 1, np.float32))
        module = group.compile(SETS, "sets.cu")
        if kind == "ports":
            channels: Any = group.port_channels(data, per_peer=2)
            module.ports[1, 1](None, channels, 128)
        else:
            channels = group.memory_channels(data, per_peer=2)
            module.exchange[1, 32](None, channels, 128, 1)
        group.synchronize(timeout=60)
        np.testing.assert_array_equal(data.numpy(), np.repeat(np.array([1, 2], np.float32), 32))
        other = module.exchange if kind == "ports" else module.ports
        with pytest.raises(mscclgo.InvalidError, match="the channels are a mscclgo::(Memory|Port)ChannelSet"):
            other[1, 32](None, channels, *(128, 1)[: 2 if kind == "ports" else 1])
        group.barrier(60)

    together(2, body)


def test_channel_set_index(group: mscclgo.Group) -> None:
    channels = group.memory_channels(group.empty(64), per_peer=2)
    with mscclgo.Rendezvous() as rendezvous, mscclgo.connect(rendezvous.id, 0, 1, device="emu") as own:
        mine = own.memory_channels(own.empty(64), per_peer=2)
        kernel = own.compile(
            """
#include <mscclgo/memory_channel.cuh>
extern "C" __global__ void k(mscclgo::MemoryChannelSet channels, uint64_t* to) { *to = channels.to(0, 2).remoteSize; }
"""
        ).k
        kernel[1, 1](None, mine, own.empty(1, "int64"))
        with pytest.raises(mscclgo.Error, match="channel 2 to peer 0 of a set, which has 2 to each of 1 peers"):
            own.synchronize(timeout=60)
    channels.close()
    with pytest.raises(mscclgo.InvalidError):
        channels.handle_bytes()


PIPES = """
#include <mscclgo/pipe.cuh>
extern "C" __global__ void shift(mscclgo::PipeSet pipes, const char* from, char* to, uint64_t bytes) {
  if (blockIdx.x == 0)
    pipes.to(0).send(from, bytes);
  else
    pipes.from(0).recv(to, bytes);
}
"""


@pytest.mark.parametrize("way", ["threads", "ports", "buffer", "shared", "lazy"])
def test_pipes(together: Any, way: str) -> None:
    """Around a ring, through few slots, by threads or a proxy, straight into a buffer, through borrowed slots, and
    connected later."""

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
            shared=way == "shared",
            lazy=way == "lazy",
        )
        assert (group.pipe_pool().bytes > 0) == (way == "shared")
        pipes.open((me + 1) % size, (me - 1) % size)
        kernel[2, 64](None, pipes, data, room, data.nbytes)
        group.synchronize()
        np.testing.assert_array_equal(room.numpy(), np.arange(count) * ((me - 1) % size + 1))
        pool = group.pipe_pool()
        assert (pool.bytes, pool.taken > 0, pool.lots > 0, pool.lent) == ((64 << 20, True, True, 0) if way in ("shared", "lazy") else (0, False, False, 0))
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
    pipes = group.pipes([], [], ports=True)
    with pytest.raises(mscclgo.InvalidError, match="rank 0.*there are no pipes to or from it"):
        pipes.open(0)
    pipes.close()
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
    """Kernels push triggers of their own. A function gets them, each thread's in the order of its pushes."""
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


@pytest.mark.parametrize("closes", [True, False])
def test_stuck_handler(closes: bool) -> None:
    """A group closes though a handler has not returned, and tells of that once, in one line."""
    come, go = threading.Event(), threading.Event()

    def handler(trigger: mscclgo.Trigger) -> None:
        come.set()
        go.wait(60)

    def run(number: int, id: str) -> None:
        group = mscclgo.connect(id, number, 1, device="emu")
        try:
            proxy = group.proxy(handler)
            group.compile(TRIGGERS, "triggers.cu").report[1, 1](None, proxy, 200)
            assert come.wait(60)
            with pytest.raises(mscclgo.TimeoutError, match="the handler.* has not returned") as caught:
                (proxy if closes else group).close()
            assert "\n" not in str(caught.value) and "close that first" not in str(caught.value)
            group.close()
        finally:
            go.set()

    run_ranks(1, run)


@pytest.mark.parametrize("closes", [True, False])
def test_handler_ends(closes: bool) -> None:
    """A handler that waits learns that its proxy closes, or that the group has failed."""
    come, told = threading.Event(), threading.Event()
    proxies: List[mscclgo.Proxy] = []

    def handler(trigger: mscclgo.Trigger) -> None:
        assert not proxies[0].ends() and not proxies[0].ends(0.01)
        come.set()
        while not proxies[0].ends(0.2):
            pass
        assert proxies[0].ends(None)
        told.set()
        raise RuntimeError("what it waits for has not come")

    def run(number: int, id: str) -> None:
        group = mscclgo.connect(id, number, 1, device="emu")
        proxies.append(group.proxy(handler))
        with pytest.raises(mscclgo.InvalidError, match="none runs"):
            proxies[0].ends()
        group.compile(TRIGGERS, "triggers.cu").report[1, 1](None, proxies[0], 200)
        assert come.wait(60)
        if not closes:
            group.abort("the program gives up")
            assert told.wait(60)
        with pytest.raises(mscclgo.Error) as caught:
            proxies[0].close()
        assert told.is_set() and "has not returned" not in str(caught.value)
        with pytest.raises(mscclgo.InvalidError, match="none runs"):
            proxies[0].ends()
        group.close()

    run_ranks(1, run)


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


def test_dropped_stream(group: mscclgo.Group) -> None:
    """What the work of a stream uses lives until that is done, also if nobody has the stream any more."""
    kernel = group.compile(
        'extern "C" __global__ void k(volatile int* flags, int* to, int n) {\n'
        "  while (!flags[0]) __nanosleep(100);\n"
        "  for (int i = 0; i < n; i++) to[i] = 5;\n"
        "}\n"
    ).k
    flags = group.array(np.zeros(1, "int32"))
    stream, to = group.new_stream(), np.zeros(1 << 13, "int32")
    there = weakref.ref(to)
    kernel[1, 1](stream, flags, to, to.size)
    last = stream.record()
    del stream, to
    gc.collect()
    others = [np.zeros(1 << 13, "int32") for _ in range(8)]
    assert there() is not None
    flags.copy_from(np.ones(1, "int32"))
    last.synchronize(60)
    assert not any(other.any() for other in others)
    end = time.monotonic() + 60
    while there() is not None and time.monotonic() < end:
        group.new_stream()
    assert there() is None


@pytest.mark.skipif("MSCCLGO_TEST_BUNDLE" not in os.environ, reason="scripts/test-python makes the file of kernels")
def test_load(group: mscclgo.Group) -> None:
    """A kernel from a file, by a text and by a path, has the parameters of its source."""
    file = os.environ["MSCCLGO_TEST_BUNDLE"]
    for where in (file, Path(file)):
        kernel = group.load(where).scale
        source, result = group.array(np.arange(1000, dtype=np.float32)), group.empty(1000)
        kernel[4, 256](None, result, source, 2.5, 1000)
        group.synchronize(timeout=60)
        np.testing.assert_array_equal(result.numpy(), np.arange(1000, dtype=np.float32) * 2.5)
        with pytest.raises(mscclgo.InvalidError, match="parameter by is a float"):
            kernel[4, 256](None, result, source, "2.5", 1000)


def test_load_refusals(group: mscclgo.Group, tmp_path: Path) -> None:
    (tmp_path / "short").write_bytes(b"no bundle")
    for file, error, what in [
        (tmp_path / "none", mscclgo.SystemError, "no such file"),
        (tmp_path / "short", mscclgo.InvalidError, "not a bundle"),
        (tmp_path, mscclgo.InvalidError, "regular file"),
        (7, mscclgo.InvalidError, "the file"),
    ]:
        with pytest.raises(error, match=what):
            group.load(file)
