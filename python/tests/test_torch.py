"""Tensors, streams and graphs of PyTorch, on GPUs. Ranks share a GPU where there are too few."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any, Callable, List

import pytest
from conftest import run_ranks

import mscclgo

torch = pytest.importorskip("torch", reason="PyTorch is not installed")
if not torch.cuda.is_available():
    pytest.skip("PyTorch sees no GPU", allow_module_level=True)

PROGRAMS = Path(__file__).parent / "programs"


def ranks(count: int, body: Callable[[mscclgo.Group], Any]) -> List[Any]:
    """Runs a function as each rank, on threads of their own with a current stream of their own."""

    def rank(number: int, id: str) -> Any:
        gpu = number % torch.cuda.device_count()
        with torch.cuda.device(gpu), torch.cuda.stream(torch.cuda.Stream(gpu)):
            with mscclgo.connect(id, number, count, device=f"cuda:{gpu}") as group:
                result = body(group)
                group.barrier(60)
                return result

    return run_ranks(count, rank)


def settle(group: mscclgo.Group) -> None:
    """Waits until no rank's kernels run: where ranks share a GPU, loading one of PyTorch's kernels
    waits for all that run, and those may wait for a peer."""
    group.synchronize()
    group.barrier()


def values(rank: int, count: int, dtype: Any) -> Any:
    return ((torch.arange(count, device="cuda") * 5 + rank) % 7 + 1).to(dtype)


@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16", "float64", "int32", "int64", "uint8"])
def test_all_reduce(dtype: str) -> None:
    """Out of place and in place, at sizes of packets, of memory channels and of many pieces, on a
    view that begins inside its storage."""

    def body(group: mscclgo.Group) -> None:
        of = getattr(torch, dtype)
        for count in (1, 1000, 1 << 18, 3 << 20):
            storage = values(group.rank, count + 16, of)
            tensor, output = storage[16:], torch.full((count,), 99, device="cuda", dtype=of)
            want = sum(values(r, count + 16, of)[16:] for r in range(2))
            settle(group)
            group.all_reduce(tensor, output)
            group.all_reduce(tensor)
            settle(group)
            assert torch.equal(output, want), f"{count} elements"
            assert torch.equal(tensor, want), f"{count} elements in place"
            assert torch.equal(storage[:16], values(group.rank, 16, of)), "before the view"

    ranks(2, body)


def test_current_stream() -> None:
    """Calls go to PyTorch's current stream, behind what it has queued and before what follows."""

    def body(group: mscclgo.Group) -> None:
        tensor = torch.zeros(1 << 20, device="cuda")
        tensor.add_(1)
        tensor.add_(-1)  # its kernels are loaded
        other = torch.cuda.Stream()
        for stream in (torch.cuda.current_stream(), other):
            tensor.zero_()
            torch.cuda.current_stream().synchronize()
            group.all_reduce(tensor)  # prepared
            settle(group)
            with torch.cuda.stream(stream):
                for step in range(20):
                    tensor.add_(group.rank + step)
                    group.all_reduce(tensor)
                stream.synchronize()
            want = 0.0
            for step in range(20):
                want = 2 * want + 1 + 2 * step
            settle(group)
            assert bool((tensor == want).all()), f"{tensor[0]} and not {want}"

    ranks(2, body)


def test_graph() -> None:
    """A graph that PyTorch captures, with kernels of its own between collectives."""

    def body(group: mscclgo.Group) -> None:
        tensor, result = torch.ones(5000, device="cuda"), torch.zeros(5000, device="cuda")
        gathered = torch.zeros(10000, device="cuda")
        stream = torch.cuda.Stream()

        def step() -> None:
            group.all_reduce(tensor, result)
            result.mul_(0.5)
            tensor.copy_(result)
            tensor.add_(1)
            group.all_gather(gathered, tensor)

        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):
            step()
            stream.synchronize()
            settle(group)
            graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(graph, stream=stream, capture_error_mode="thread_local"):
                step()
            stream.synchronize()
            settle(group)
            for _ in range(50):
                graph.replay()
            stream.synchronize()
        settle(group)
        # Each step adds one to a mean of equal tensors.
        assert bool((tensor == 52).all()), tensor[:4]
        assert bool((gathered == 52).all()), gathered[:4]

    ranks(2, body)


def test_own_graph_keeps_tensors() -> None:
    """A graph of this package keeps PyTorch's tensors: their memory is not given to others."""

    def body(group: mscclgo.Group) -> None:
        stream = group.new_stream()
        x, y = torch.ones(1 << 16, device="cuda"), torch.zeros(1 << 16, device="cuda")
        others = [torch.full_like(x, 5) for _ in range(8)]
        assert bool((others[0] == 5).all())  # its kernels are loaded
        others.clear()
        settle(group)
        group.all_reduce(x, y, stream=stream)
        group.synchronize(stream)
        there = {x.data_ptr(), y.data_ptr()}
        with stream.capture() as capture:
            group.all_reduce(x, y, stream=stream)
        del x, y
        others = [torch.full((1 << 16,), 5.0, device="cuda") for _ in range(8)]
        assert not there & {t.data_ptr() for t in others}
        settle(group)
        capture.graph.launch(stream)
        group.synchronize(stream)
        settle(group)
        assert all(bool((t == 5).all()) for t in others)

    ranks(2, body)


def test_prepared_shared_with_torch() -> None:
    """An array that peers reach is a tensor of PyTorch too."""

    def body(group: mscclgo.Group) -> None:
        array = group.empty(4096, "float16")
        tensor = torch.as_tensor(array, device="cuda")
        assert tensor.data_ptr() == array.__cuda_array_interface__["data"][0]
        tensor.fill_(group.rank + 1)
        reduce = group.prepare("all_reduce", group.share(array))
        torch.cuda.current_stream().synchronize()
        settle(group)
        reduce()
        settle(group)
        assert bool((tensor == 3).all())

    ranks(2, body)


@pytest.mark.parametrize("dtype", ["bfloat16", "float8_e4m3fn"])
def test_dlpack(dtype: str) -> None:
    """An array of a type that CUDA's array interface lacks is a tensor by DLPack."""

    def body(group: mscclgo.Group) -> None:
        array = group.empty((64, 64), dtype)
        tensor = torch.from_dlpack(array)
        assert tensor.dtype == getattr(torch, dtype) and tensor.shape == (64, 64)
        assert tensor.data_ptr() == array.pointer
        tensor.copy_(torch.full((64, 64), float(group.rank + 1), device="cuda"))
        reduce = group.prepare("all_reduce", group.share(array))
        torch.cuda.current_stream().synchronize()
        settle(group)
        reduce()
        settle(group)
        assert bool((tensor.float() == 3).all())

    ranks(2, body)


def test_wrapped_tensor() -> None:
    """A tensor of PyTorch's allocator is an array, whose allocation peers reach."""

    def body(group: mscclgo.Group) -> None:
        storage = torch.full((1 << 16,), float(group.rank + 1), device="cuda")
        array = group.wrap(storage[256:512])
        assert array.pointer == storage.data_ptr() + 1024
        reduce = group.prepare("all_reduce", group.share(array))
        torch.cuda.current_stream().synchronize()
        settle(group)
        reduce()
        settle(group)
        assert bool((storage[256:512] == 3).all())
        assert bool((storage[:256] == group.rank + 1).all()) and bool((storage[512:] == group.rank + 1).all())
        group.barrier(60)
        array.close()

    ranks(2, body)


def test_own_kernel() -> None:
    """A kernel of the program's on tensors and the current stream."""
    source = """
#include <mscclgo/atomic.cuh>

extern "C" __global__ void scale(float* to, const float* from, float by, uint64_t count) {
  uint64_t i = blockIdx.x * uint64_t{blockDim.x} + threadIdx.x;
  if (i < count) to[i] = from[i] * by;
}
"""

    def body(group: mscclgo.Group) -> None:
        kernel = group.compile(source, "scale.cu").scale
        tensor, output = torch.arange(1000, device="cuda").float(), torch.zeros(1000, device="cuda")
        kernel[4, 256](None, output, tensor, 2.5, 1000)
        torch.cuda.current_stream().synchronize()
        assert torch.equal(output, tensor * 2.5)
        with pytest.raises(mscclgo.InvalidError, match="parameter by is a float, and takes a float, not a Tensor"):
            kernel[4, 256](None, output, tensor, tensor, 1000)
        with pytest.raises(mscclgo.InvalidError, match=r"parameter from is a const float\*, and the tensor has elements of float64"):
            kernel[4, 256](None, output, tensor.double(), 2.5, 1000)

    ranks(1, body)


def test_messages_of_temporaries() -> None:
    """Tensors that only a body holds are not freed, and their memory not used again, before the launch."""

    def body(group: mscclgo.Group) -> None:
        peer = 1 - group.rank
        group.load_messages()
        x = torch.zeros(1 << 20, device="cuda")
        first, second = torch.empty_like(x), torch.empty_like(x)
        warm = x + 1  # its kernel is loaded
        del warm
        settle(group)
        with group.messages() as m:
            m.send(x + 1, peer)
            m.send(x + 2, peer)
            m.recv(first, peer)
            m.recv(second, peer)
        settle(group)
        assert bool((first == 1).all()) and bool((second == 2).all()), f"{first[0]} and {second[0]}"

    ranks(2, body)


def test_refused() -> None:
    """Tensors that cannot be used are refused in one sentence, and the group goes on."""

    def body(group: mscclgo.Group) -> None:
        good = torch.ones(64, device="cuda")
        freed = torch.ones(64, device="cuda")
        view = freed[16:]
        freed.untyped_storage().resize_(0)
        complex = torch.ones(64, device="cuda", dtype=torch.complex64).conj()
        for tensor, part in (
            (good.view(8, 8).t(), "not contiguous"),
            (good.cpu(), "host's memory"),
            (good.to(torch.complex64), "complex64"),
            (good.bool(), "bool"),
            (freed, "freed"),
            (view, "freed"),
            (complex, "resolve_conj"),
            (complex[:1].imag, "resolve_neg"),
            (complex[0].imag, "resolve_neg"),
            (torch.sparse_coo_tensor((4, 4)).cuda(), "mscclgo:"),
        ):
            with pytest.raises(mscclgo.InvalidError, match=part) as caught:
                group.all_reduce(tensor)
            assert "\n" not in str(caught.value)
        with pytest.raises(mscclgo.InvalidError, match="63 elements a part"):
            group.all_gather(torch.ones(63, device="cuda"), good)
        group.all_reduce(good)
        group.synchronize()
        assert bool((good == 1).all())

    ranks(1, body)


@pytest.mark.parametrize("expandable", [False, True])
def test_torchrun(expandable: bool) -> None:
    """The collectives beside torch.distributed's, a process for each rank; also on memory
    that PyTorch's allocator maps as it needs it."""
    count = max(2, torch.cuda.device_count())
    environment = dict(os.environ, MSCCLGO_SECRET="of-the-test", OMP_NUM_THREADS="1")
    if expandable:
        environment["PYTORCH_CUDA_ALLOC_CONF"] = "expandable_segments:True"
    done = subprocess.run(
        [sys.executable, "-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={count}", str(PROGRAMS / "beside_torch.py")],
        env=environment,
        capture_output=True,
        text=True,
        timeout=240,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.count("60 results are as torch.distributed's") == count, done.stdout
