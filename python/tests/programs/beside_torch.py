# Run by torchrun: the collectives beside torch.distributed's, on the same tensors.
import os

import torch
import torch.distributed as dist

import mscclgo

rank, size, gpus = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"]), torch.cuda.device_count()
torch.cuda.set_device(int(os.environ["LOCAL_RANK"]) % gpus)
# NCCL wants a GPU for each rank.
dist.init_process_group("nccl" if gpus >= int(os.environ["LOCAL_WORLD_SIZE"]) else "gloo")
group = mscclgo.init(device=f"cuda:{torch.cuda.current_device()}")
assert (group.rank, group.size) == (rank, size)


def fresh(count, dtype):
    return torch.randint(0, 8, (count,), device="cuda").to(dtype)


def all_to_all(output, input):
    if dist.get_backend() == "nccl":
        dist.all_to_all_single(output, input)
        return
    everyone = [torch.empty_like(input) for _ in range(size)]
    dist.all_gather(everyone, input)
    output.copy_(torch.cat([t.chunk(size)[rank] for t in everyone]))


def reduce_scatter(output, input):
    total = input.clone()
    dist.all_reduce(total)
    output.copy_(total.chunk(size)[rank])


def all_gather(output, input):
    dist.all_gather(list(output.chunk(size)), input)


def shift(output, input):
    everyone = torch.empty(size * input.numel(), dtype=input.dtype, device=input.device)
    all_gather(everyone, input)
    output.copy_(everyone.chunk(size)[(rank - 1) % size])


torch.manual_seed(rank)
checked = 0
for dtype in (torch.float32, torch.float16, torch.bfloat16):
    for count in (size, 1000 * size, (1 << 20) + 4 * size):
        whole, part = fresh(count, dtype), fresh(count // size, dtype)

        def same(name, ours, run):
            global checked
            want = torch.full_like(ours, 77)
            if dist.get_backend() == "nccl":
                run(want, lambda t: t)
            else:
                host = want.cpu()
                run(host, lambda t: t.cpu())
                want = host.cuda()
            assert torch.equal(ours, want), f"rank {rank}: {name} of {count} {dtype}: {(ours != want).sum()} elements differ"
            checked += 1

        out = torch.full_like(whole, -1)
        mscclgo.all_reduce(whole, out)
        same("all_reduce", out, lambda to, on: dist.all_reduce(to.copy_(on(whole))))
        out = torch.full_like(whole, -1)[: part.numel() * size]
        mscclgo.all_gather(out, part)
        same("all_gather", out, lambda to, on: all_gather(to, on(part)))
        out = torch.full_like(part, -1)
        mscclgo.reduce_scatter(out, whole)
        same("reduce_scatter", out, lambda to, on: reduce_scatter(to, on(whole)))
        out = torch.full_like(whole, -1)
        mscclgo.all_to_all(out, whole)
        same("all_to_all", out, lambda to, on: all_to_all(to, on(whole)))
        out = whole.clone()
        mscclgo.broadcast(out, root=1)
        same("broadcast", out, lambda to, on: dist.broadcast(to.copy_(on(whole)), 1))
        out = torch.full_like(part, -1)
        mscclgo.send_receive(out, part)
        same("send_receive", out, lambda to, on: shift(to, on(part)))

# All of them in one graph, which PyTorch captures in its default mode: a call that the driver
# considers unsafe, on any thread of the process, would end the capture.
whole, part = fresh(1000 * size, torch.float32), fresh(1000, torch.float32)
calls = (
    (mscclgo.all_reduce, whole, torch.empty_like(whole)),
    (mscclgo.all_gather, torch.empty_like(whole), part),
    (mscclgo.reduce_scatter, torch.empty_like(part), whole),
    (mscclgo.all_to_all, torch.empty_like(whole), whole),
    (mscclgo.broadcast, part.clone(), 1),
    (mscclgo.send_receive, torch.empty_like(part), part),
)
results = [b if call is mscclgo.all_reduce else a for call, a, b in calls]


def all_six():
    for call, *arguments in calls:
        call(*arguments)


warm = torch.cuda.Stream()
with torch.cuda.stream(warm):
    all_six()
torch.cuda.synchronize()
wanted = [result.clone() for result in results]
group.barrier()
graph = torch.cuda.CUDAGraph()
with torch.cuda.graph(graph):
    all_six()
for i, result in enumerate(results):
    if calls[i][0] is not mscclgo.broadcast or rank != 1:  # that is in place, of rank 1
        result.fill_(-1)
torch.cuda.synchronize()
group.barrier()
for _ in range(3):
    graph.replay()
torch.cuda.synchronize()
for (call, *_), result, want in zip(calls, results, wanted):
    assert torch.equal(result, want), f"rank {rank}: {call.__name__} in a graph: {(result != want).sum()} elements differ"
    checked += 1

group.barrier()
print(f"rank {rank}: {checked} results are as torch.distributed's", flush=True)
group.close()
dist.destroy_process_group()
