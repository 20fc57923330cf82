"""Models trained by the backend mscclgo and by Gloo: the losses must be the same to the last bit. The arguments are
ways to divide a model among the ranks."""

from __future__ import annotations

import datetime
import sys
from typing import Any, List

import torch
import torch.distributed as dist
from torch import nn

import mscclgo.torch  # noqa: F401

WIDTH = 32


class Block(nn.Module):
    """A layer of a transformer."""

    def __init__(self) -> None:
        super().__init__()
        self.q, self.norm = nn.Linear(WIDTH, WIDTH), nn.LayerNorm(WIDTH)
        self.up, self.down = nn.Linear(WIDTH, 2 * WIDTH), nn.Linear(2 * WIDTH, WIDTH)

    def forward(self, x: Any) -> Any:
        q = self.q(self.norm(x))
        attended = torch.softmax(q @ q.transpose(-1, -2) / 6, -1) @ q
        return x + self.down(nn.functional.gelu(self.up(attended)))


def model() -> Any:
    torch.manual_seed(0)
    return nn.Sequential(*[Block() for _ in range(3)])


def batch(number: int) -> Any:
    return torch.randn(4, 8, WIDTH, generator=torch.Generator().manual_seed(number))


def train(of: Any, rank: int) -> List[float]:
    """Returns the losses of some steps. A rank has its own batches."""
    optimizer, losses = torch.optim.SGD(of.parameters(), lr=0.1), []
    for step in range(4):
        x = batch(17 * step + rank)
        loss = (of(x) - x.flip(-1)).pow(2).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses


def mesh(group: Any) -> Any:
    return torch.distributed.device_mesh.DeviceMesh.from_group(group, "cpu")


def ddp(group: Any) -> List[float]:
    return train(nn.parallel.DistributedDataParallel(model(), process_group=group), dist.get_rank())


def fsdp(group: Any) -> List[float]:
    try:
        from torch.distributed.fsdp import fully_shard
    except ImportError:  # before 2.6
        from torch.distributed._composable.fsdp import fully_shard
    sharded = model()
    for block in sharded:
        fully_shard(block, mesh=mesh(group))
    fully_shard(sharded, mesh=mesh(group))
    return train(sharded, dist.get_rank())


def tensor_parallel(group: Any) -> List[float]:
    from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

    parallel = model()
    for block in parallel:
        parallelize_module(block, mesh(group), {"up": ColwiseParallel(), "down": RowwiseParallel()})
    return train(parallel, 0)


def pipeline(group: Any) -> List[float]:
    from torch.distributed.pipelining import PipelineStage, ScheduleGPipe

    rank, ranks, layers = dist.get_rank(), dist.get_world_size(), model()
    mine = [layers[0], nn.Identity(), layers[1:]][0 if rank == 0 else 2 if rank == ranks - 1 else 1]
    schedule = ScheduleGPipe(PipelineStage(mine, rank, ranks, torch.device("cpu"), group=group), 2, loss_fn=lambda a, b: (a - b).pow(2).mean())
    losses: List[Any] = []
    if rank == 0:
        schedule.step(batch(3))
    elif rank < ranks - 1:
        schedule.step()
    else:
        schedule.step(target=batch(3).flip(-1), losses=losses)
    return [loss.item() for loss in losses]


def compiled(group: Any) -> List[float]:
    import torch.distributed._functional_collectives as functional

    def step(x: Any) -> Any:
        y = functional.all_reduce(x * 2, "sum", group)
        z = functional.all_gather_tensor(y + 1, 0, group)
        return functional.reduce_scatter_tensor(z, "sum", 0, group).sum() + z.sum()

    x = torch.arange(6.0) + dist.get_rank()
    return [step(x).item(), torch.compile(step, fullgraph=True, backend="aot_eager")(x).item()]


def main() -> None:
    dist.init_process_group("mscclgo", timeout=datetime.timedelta(seconds=60))
    groups = [dist.group.WORLD, dist.new_group(backend="gloo")]
    for name in sys.argv[1:]:
        ours, others = (globals()[name](group) for group in groups)
        assert ours == others, f"{name}: {ours} and not {others}"
        print(f"{name}: {ours}")
    dist.destroy_process_group()


main()
