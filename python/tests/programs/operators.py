"""The operators of mscclgo.torch, traced by torch.compile, and the class that vLLM and SGLang call."""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist

import mscclgo.torch
from mscclgo.torch.custom_all_reduce import CustomAllreduce


def operators(rank: int, ranks: int, name: str) -> None:
    def step(x: Any) -> Any:
        y = torch.ops.mscclgo.all_reduce(x, "sum", name)
        z = torch.ops.mscclgo.all_gather(y + 1, name)
        w = torch.ops.mscclgo.reduce_scatter(z, "max", name)
        v = torch.ops.mscclgo.all_to_all(z * (rank + 1), name)
        return y, z, w, v

    x = torch.arange(8.0).view(4, 2) + rank
    y, z, w, v = step(x)
    total = sum(torch.arange(8.0).view(4, 2) + r for r in range(ranks))
    assert torch.equal(y, total) and torch.equal(z, torch.cat([total + 1] * ranks)) and torch.equal(w, total + 1)
    assert torch.equal(v, torch.cat([(total + 1) * (r + 1) for r in range(ranks)]))
    traced = torch.compile(step, fullgraph=True, backend="aot_eager")(x)
    assert all(torch.equal(a, b) for a, b in zip(traced, (y, z, w, v)))

    def in_place(x: Any) -> Any:
        y = x * 2
        torch.ops.mscclgo.all_reduce_(y, "sum", name)
        return y + 1

    assert torch.equal(torch.compile(in_place, fullgraph=True, backend="aot_eager")(x), 2 * total + 1)
    leaf = torch.ones(3, requires_grad=True)
    squared = (leaf * 1.0).exp()
    before = squared._version
    with torch.no_grad():
        torch.ops.mscclgo.all_reduce_(squared, "sum", name)
    assert squared._version == before + 1
    with torch.library._scoped_library("unused", "FRAGMENT"):
        torch.library.opcheck(torch.ops.mscclgo.all_reduce.default, (x, "sum", name), test_utils=("test_schema", "test_faketensor"))
    for wrong, says in ((lambda: torch.ops.mscclgo.reduce_scatter(torch.ones(2 * ranks + 1), "sum", name), "is not divided"), (lambda: torch.ops.mscclgo.all_reduce(x, "xor", name), "xor")):
        try:
            wrong()
        except (ValueError, RuntimeError) as error:
            assert says in str(error), error
        else:
            raise AssertionError(f"no error with {says}")


def engine(rank: int, ranks: int) -> None:
    """The calls of an engine, in its order."""
    communicator = CustomAllreduce(group=dist.new_group(backend="gloo"), device=torch.device("cpu"), max_size=1 << 20)
    assert not communicator.disabled and communicator.world_size == ranks
    x = torch.full((64, 8), rank + 1.0, dtype=torch.bfloat16)
    assert communicator.should_custom_ar(x) and not communicator.should_custom_ar(x.t()) and not communicator.should_custom_ar(x.bool())
    with communicator.capture():
        out = communicator.custom_all_reduce(x)
        communicator.register_graph_buffers()
    assert out is not None and bool((out == sum(range(1, ranks + 1))).all()) and bool((x == rank + 1).all())
    assert communicator.custom_all_reduce(torch.zeros(1 << 20)) is None
    communicator.close()
    alone = CustomAllreduce(group=[dist.new_group([r], backend="gloo") for r in range(ranks)][rank])
    assert alone.disabled


def main() -> None:
    dist.init_process_group("mscclgo")
    rank, ranks = dist.get_rank(), dist.get_world_size()
    operators(rank, ranks, dist.group.WORLD.group_name)
    engine(rank, ranks)
    dist.destroy_process_group()
    print("all right")


main()
