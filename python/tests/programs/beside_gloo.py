"""Each call of torch.distributed by the backend mscclgo and by Gloo, whose results must be the same."""

from __future__ import annotations

import datetime
from typing import Any, Callable, List

import torch
import torch.distributed as dist

import mscclgo.torch

RANK = SIZE = 0
OURS: Any = None
GLOO: Any = None
DEVICE = torch.device("cpu")

TYPES = [torch.float32, torch.float64, torch.float16, torch.bfloat16, torch.int32, torch.int64, torch.uint8, torch.int8, torch.int16, torch.bool, torch.complex64]
OPS = ["SUM", "PRODUCT", "MIN", "MAX", "AVG"]
done = 0


def make(rank: int, shape: Any, dtype: Any, seed: int = 0) -> Any:
    """A rank's tensor: small numbers, so that sums and products are exact."""
    generator = torch.Generator().manual_seed(1000 * rank + seed)
    values = torch.randint(0, 3, shape if isinstance(shape, tuple) else (shape,), generator=generator)
    if dtype.is_complex:
        return torch.complex(values.float(), (values * 2 % 3).float()).to(dtype)
    return values.to(dtype)


def on(tensor: Any, group: Any) -> Any:
    return tensor.clone().to(DEVICE) if group is OURS else tensor.clone()


def same(what: str, body: Callable[[Any], List[Any]], want: Any = None) -> None:
    """Compares what a call leaves by both backends; body makes it in a group."""
    global done
    got = body(OURS)
    expected = body(GLOO) if want is None else want
    for i, (a, b) in enumerate(zip(got, expected)):
        assert torch.equal(a.cpu(), b), f"{what}: tensor {i} on rank {RANK}: {a.flatten()[:8]} and not {b.flatten()[:8]}"
    assert len(got) == len(expected), what
    done += 1


def sizes() -> List[Any]:
    return [1, 7, (3, 5), 1000, (0,), (1 << 17) + 3]


def reductions() -> None:
    some = {torch.float32: OPS, torch.bool: ["SUM", "PRODUCT"], torch.int8: ["SUM", "MAX"]}  # each other kernel takes seconds to compile
    for dtype in TYPES:
        for name in some.get(dtype, ["SUM"]):
            op = getattr(dist.ReduceOp, name)
            for shape in sizes() if dtype == torch.float32 else [9]:
                x = make(RANK, shape, dtype)
                every = [make(r, shape, dtype) for r in range(SIZE)]
                if name == "AVG" or dtype.is_complex or dtype in (torch.bool, torch.int16):
                    want = expected(every, name, dtype)
                    if want is None:
                        continue
                else:
                    want = None

                def all_reduce(group: Any) -> List[Any]:
                    y = on(x, group)
                    dist.all_reduce(y, op, group)
                    return [y]

                same(f"all_reduce of {dtype} {name} {shape}", all_reduce, None if want is None else [want])
                if dtype != torch.float32:
                    continue

                def reduce(group: Any) -> List[Any]:
                    y = on(x, group)
                    dist.reduce(y, SIZE - 1, op, group)
                    return [y] if RANK == SIZE - 1 else []

                same(f"reduce of {dtype} {name} {shape}", reduce, None if want is None else [want] if RANK == SIZE - 1 else [])


def expected(every: List[Any], name: str, dtype: Any) -> Any:
    """What Gloo has not."""
    if dtype == torch.bool:
        if name == "AVG":
            return None
        joined = torch.stack(every)
        return joined.any(0) if name in ("SUM", "MAX") else joined.all(0)
    if dtype.is_complex and name not in ("SUM",):
        return None
    if name == "AVG":
        return sum(e.double() for e in every).div(SIZE).to(dtype) if dtype in (torch.float32, torch.float64) and SIZE == 2 else None
    joined = torch.stack(every)
    return {"SUM": lambda: joined.sum(0), "PRODUCT": lambda: joined.prod(0), "MIN": lambda: joined.amin(0), "MAX": lambda: joined.amax(0)}[name]().to(dtype)


def moves() -> None:
    for dtype in [*TYPES, torch.complex128]:
        for shape in sizes() if dtype in (torch.float32, torch.int8) else [6]:
            x = make(RANK, shape, dtype)
            every = [make(r, shape, dtype) for r in range(SIZE)]
            count = x.numel()

            def broadcast(group: Any) -> List[Any]:
                y = on(x, group)
                dist.broadcast(y, SIZE - 1, group)
                return [y]

            same(f"broadcast {dtype} {shape}", broadcast, [every[SIZE - 1]])

            def all_gather(group: Any) -> List[Any]:
                parts = [torch.empty_like(on(x, group)) for _ in range(SIZE)]
                dist.all_gather(parts, on(x, group), group)
                return parts

            same(f"all_gather {dtype} {shape}", all_gather, every)

            def into(group: Any) -> List[Any]:
                y = torch.empty(SIZE * count, dtype=dtype, device=DEVICE)
                dist.all_gather_into_tensor(y, on(x, group).reshape(-1), group)
                return [y]

            same(f"all_gather_into_tensor {dtype} {shape}", into, [torch.cat([e.reshape(-1) for e in every])])

            def gather(group: Any) -> List[Any]:
                parts = [torch.empty_like(on(x, group)) for _ in range(SIZE)] if RANK == 0 else None
                dist.gather(on(x, group), parts, 0, group)
                return parts or []

            same(f"gather {dtype} {shape}", gather, every if RANK == 0 else [])

            def scatter(group: Any) -> List[Any]:
                y = torch.empty_like(on(x, group))
                parts = [on(make(100 + r, shape, dtype), group) for r in range(SIZE)] if RANK == 0 else None
                dist.scatter(y, parts, 0, group)
                return [y]

            same(f"scatter {dtype} {shape}", scatter, [make(100 + RANK, shape, dtype)])

            def single(group: Any) -> List[Any]:
                x = on(torch.cat([make(10 * RANK + r, shape, dtype).reshape(-1) for r in range(SIZE)]), group)
                y = torch.empty_like(x)
                dist.all_to_all_single(y, x, group=group)
                return [y]

            same(f"all_to_all_single {dtype} {shape}", single, [torch.cat([make(10 * r + RANK, shape, dtype).reshape(-1) for r in range(SIZE)])])

            def all_to_all(group: Any) -> List[Any]:
                outs = [torch.empty(RANK + r + 1, dtype=dtype, device=DEVICE) for r in range(SIZE)]
                dist.all_to_all(outs, [on(make(10 * RANK + r, RANK + r + 1, dtype), group) for r in range(SIZE)], group)
                return outs

            same(f"all_to_all {dtype}", all_to_all, [make(10 * r + RANK, RANK + r + 1, dtype) for r in range(SIZE)])

            def splits(group: Any) -> List[Any]:
                sends, receives = [RANK + r for r in range(SIZE)], [RANK + r for r in range(SIZE)]
                x = on(torch.cat([make(10 * RANK + r, (RANK + r, 2), dtype) for r in range(SIZE)]), group)
                y = torch.empty((sum(receives), 2), dtype=dtype, device=DEVICE)
                dist.all_to_all_single(y, x, receives, sends, group)
                return [y]

            same(f"all_to_all_single with splits {dtype}", splits, [torch.cat([make(10 * r + RANK, (RANK + r, 2), dtype) for r in range(SIZE)])])


def scattered() -> None:
    for dtype in (torch.float32, torch.bfloat16):
        for shape in (1, 5, 4099):
            parts = [make(10 * RANK + r, shape, dtype) for r in range(SIZE)]
            want = sum(make(10 * r + RANK, shape, dtype).double() for r in range(SIZE)).to(dtype)

            def listed(group: Any) -> List[Any]:
                y = torch.empty(shape, dtype=dtype, device=DEVICE)
                dist.reduce_scatter(y, [on(p, group) for p in parts], group=group)
                return [y]

            same(f"reduce_scatter {dtype}", listed, [want])

            def tensor(group: Any) -> List[Any]:
                y = torch.empty(shape, dtype=dtype, device=DEVICE)
                dist.reduce_scatter_tensor(y, on(torch.cat(parts), group), group=group)
                return [y]

            same(f"reduce_scatter_tensor {dtype}", tensor, [want])


def strided() -> None:
    """Tensors that are not contiguous."""
    base = make(RANK, (6, 8), torch.float32)

    def all_reduce(group: Any) -> List[Any]:
        y = on(base, group).t()
        dist.all_reduce(y, group=group)
        return [y]

    same("all_reduce of a transposed tensor", all_reduce, [sum(make(r, (6, 8), torch.float32) for r in range(SIZE)).t()])

    def gathered(group: Any) -> List[Any]:
        y = torch.zeros(SIZE, 8, 2, device=DEVICE)[:, :, 0]
        dist.all_gather(list(y), on(base, group)[2], group)
        return [y]

    same("all_gather to columns", gathered, [torch.stack([make(r, (6, 8), torch.float32)[2] for r in range(SIZE)])])


def asynchronous() -> None:
    tensors = [on(make(RANK, 50 + i, torch.float32, i), OURS) for i in range(20)]
    works = [dist.all_reduce(t, async_op=True) for t in tensors]
    futures = [works[i].get_future() for i in range(3)]
    for work in works:
        work.wait()
        assert work.is_completed()
    for i, t in enumerate(tensors):
        assert torch.equal(t.cpu(), sum(make(r, 50 + i, torch.float32, i) for r in range(SIZE)))
    assert futures[0].wait()[0] is not None and torch.equal(futures[1].wait()[0], tensors[1])
    premul = on(make(RANK, 9, torch.float32), OURS)
    dist.all_reduce(premul, dist._make_nccl_premul_sum(2.0))
    assert torch.equal(premul.cpu(), 2 * sum(make(r, 9, torch.float32) for r in range(SIZE)))


def messages() -> None:
    right, left = (RANK + 1) % SIZE, (RANK - 1) % SIZE
    for count in (1, 3 << 20):
        x, y = on(make(RANK, count, torch.float32), OURS), torch.empty(count, device=DEVICE)
        for work in dist.batch_isend_irecv([dist.P2POp(dist.isend, x, right), dist.P2POp(dist.irecv, y, left)]):
            work.wait()
        assert torch.equal(y.cpu(), make(left, count, torch.float32))
        y.zero_()
        if DEVICE.type == "cpu":
            send, receive = dist.isend(x, right), dist.irecv(y, left)
            receive.wait()
            send.wait()
            assert torch.equal(y.cpu(), make(left, count, torch.float32))
    t = torch.full((3,), float(RANK), device=DEVICE)
    if RANK == 0:
        dist.send(t, 1)
        dist.recv(t, 1)
    elif RANK == 1:
        got = torch.empty_like(t)
        dist.recv(got, 0)
        dist.send(got + 1, 0)
    assert RANK or bool((t == 1).all())


def coalesced() -> None:
    tensors = [on(make(RANK, 10 + i, torch.float32), OURS) for i in range(4)]
    with dist._coalescing_manager():
        for t in tensors:
            dist.all_reduce(t)
    for i, t in enumerate(tensors):
        assert torch.equal(t.cpu(), sum(make(r, 10 + i, torch.float32) for r in range(SIZE)))


def groups() -> None:
    """Sub-groups: of some ranks, of one, and a mesh."""
    some = dist.new_group([0, 1])
    t = torch.full((4,), RANK + 1.0, device=DEVICE)
    if RANK < 2:
        dist.all_reduce(t, group=some)
        assert bool((t == 3).all())
        objects: List[Any] = [None, None]
        dist.all_gather_object(objects, {"rank": RANK}, group=some)
        assert objects == [{"rank": 0}, {"rank": 1}]
    alone = [dist.new_group([r]) for r in range(SIZE)][RANK]
    dist.all_reduce(t, group=alone)
    told = [RANK if RANK == 1 else None]
    dist.broadcast_object_list(told, 1)
    assert told == [1]
    gathered: Any = [None] * SIZE if RANK == 0 else None
    dist.gather_object(RANK * "x", gathered, 0)
    assert RANK or gathered == [r * "x" for r in range(SIZE)]
    out: List[Any] = [None]
    dist.scatter_object_list(out, list(range(SIZE)) if RANK == 0 else None, 0)
    assert out == [RANK]


def wrong() -> None:
    for call, says in (
        (lambda: dist.all_reduce(torch.ones(3, device=DEVICE), dist.ReduceOp.BAND), "BAND"),
        (lambda: dist.all_reduce(torch.ones(3, dtype=torch.bool, device=DEVICE), dist.ReduceOp.AVG), "average"),
        (lambda: dist.all_to_all_single(torch.ones(4, device=DEVICE), torch.ones(4, device=DEVICE), [1] * SIZE, [9] * SIZE), "splits"),
        (lambda: dist.all_gather_into_tensor(torch.ones(3 * SIZE, device=DEVICE), torch.ones(2, device=DEVICE)), "elements"),
    ):
        try:
            call()
        except (ValueError, RuntimeError) as error:
            assert says in str(error), error
        else:
            raise AssertionError(f"no error with {says}")


def main() -> None:
    global RANK, SIZE, OURS, GLOO
    dist.init_process_group("mscclgo", timeout=datetime.timedelta(seconds=60))
    RANK, SIZE = dist.get_rank(), dist.get_world_size()
    OURS, GLOO = dist.group.WORLD, dist.new_group(backend="gloo")
    assert dist.get_backend() == "mscclgo" and OURS.name() == "mscclgo"
    for part in (reductions, moves, scattered, strided, asynchronous, messages, coalesced, groups, wrong):
        try:
            part()
        except BaseException as error:
            raise AssertionError(f"{part.__name__}: {error}") from error
        dist.barrier()
    dist.destroy_process_group()
    print(f"{done} results are as Gloo's")


main()
