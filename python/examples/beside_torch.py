# The device times of collectives in PyTorch's CUDA graphs, prepared and on tensors, beside
# torch.distributed's: torchrun --standalone --nproc-per-node=2 beside_torch.py [CALLS]
# They are measured as mscclgo bench -iters CALLS measures (docs/PERFORMANCE.md, "Method"), with 100
# calls in a graph by default: one that other code captures takes a few microseconds more, whatever
# is in it. All-reduces also stand beside those on PyTorch's symmetric memory.
import os
import statistics
import sys

# Symmetric memory makes NVLink multicast objects where it can, though the all-reduces below
# use none, and machines that are shared are better without.
os.environ["TORCH_SYMM_MEM_DISABLE_MULTICAST"] = "1"

import torch
import torch.distributed as dist

import mscclgo

try:
    import torch.distributed._symmetric_memory as symm_mem

    # Older versions lack some of these.
    symm_mem.empty, torch.ops.symm_mem.one_shot_all_reduce, torch.ops.symm_mem.two_shot_all_reduce_
except (ImportError, AttributeError):
    symm_mem = None

CALLS = int(sys.argv[1]) if len(sys.argv) > 1 else 100
REPLAYS, ROUNDS = 7, 3
SIZES = (1 << 10, 64 << 10, 1 << 20, 16 << 20)

local = int(os.environ["LOCAL_RANK"])
torch.cuda.set_device(local)
dist.init_process_group("nccl", device_id=torch.device("cuda", local))
group = mscclgo.init(device=f"cuda:{local}")
rank, size = group.rank, group.size
stream = torch.cuda.Stream()


def exchange(output, input):
    to, before = (rank + 1) % size, (rank - 1) % size
    for request in dist.batch_isend_irecv([dist.P2POp(dist.isend, input, to), dist.P2POp(dist.irecv, output, before)]):
        request.wait()


# By name: the parts of the size that the output and the input have, whether this library's
# method takes the input first, and torch.distributed's call.
COLLECTIVES = {
    "all_reduce": (1, 1, True, lambda output, input: dist.all_reduce(output)),
    "all_gather": (1, size, False, dist.all_gather_into_tensor),
    "reduce_scatter": (size, 1, False, dist.reduce_scatter_tensor),
    "all_to_all": (1, 1, False, dist.all_to_all_single),
    "send_receive": (1, 1, False, exchange),
    "broadcast": (1, 1, False, lambda output, input: dist.broadcast(output, 0)),
}


def captured(call):
    """Returns a graph of CALLS calls."""
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, stream=stream):
        for _ in range(CALLS):
            call()
    return graph


def timed(graph):
    """Returns the microseconds of a call, one of each replay."""
    marks = [torch.cuda.Event(enable_timing=True) for _ in range(REPLAYS + 1)]
    torch.cuda.synchronize()
    group.barrier()
    with torch.cuda.stream(stream):
        graph.replay()
        for mark in marks:
            mark.record(stream)
            graph.replay()
    torch.cuda.synchronize()
    return [marks[i].elapsed_time(marks[i + 1]) * 1e3 / CALLS for i in range(REPLAYS)]


def symmetric(source, want):
    """Returns the two ways of all-reduces on symmetric memory, once they have given what is
    wanted: of bfloat16, as they have no float16, which the small whole numbers fit too."""
    tensor = symm_mem.empty(source.numel(), dtype=torch.bfloat16, device=source.device)
    symm_mem.rendezvous(tensor, dist.group.WORLD)
    ops, world = torch.ops.symm_mem, dist.group.WORLD.group_name
    ways = [lambda: ops.one_shot_all_reduce(tensor, "sum", world), lambda: ops.two_shot_all_reduce_(tensor, "sum", world)]
    for way in ways:
        tensor.copy_(source)
        assert torch.equal(way().half(), want), f"rank {rank}: an all-reduce on symmetric memory is wrong"
    tensor.zero_()  # stays so
    return ways


def measure(name, bytes):
    """Returns the times of the three ways, once they have given the same, and of the two on
    symmetric memory."""
    less_output, less_input, input_first, theirs = COLLECTIVES[name]
    count = bytes // 2
    torch.manual_seed(rank + bytes)
    arrays = [group.empty(count // less_output, "float16"), group.empty(count // less_input, "float16")]
    output, input = (torch.as_tensor(array, device="cuda") for array in arrays)
    source = torch.randint(0, 8, input.shape, device="cuda").half()
    input.copy_(source)
    ours, other = torch.full_like(output, -1), torch.full_like(output, -1)
    torch.cuda.synchronize()
    output_memory, input_memory = (group.share(array) for array in arrays)
    if name == "broadcast":  # in place
        for buffer in (output, ours, other):
            buffer.copy_(source)
        prepared = group.prepare(name, output_memory, overlap=True)
        tensors = lambda: group.broadcast(ours)
    else:
        prepared = group.prepare(name, output_memory, input_memory, overlap=True)
        method = getattr(group, name)
        tensors = (lambda: method(source, ours)) if input_first else (lambda: method(ours, source))
    if name == "all_reduce":  # theirs is in place
        other.copy_(source)
    ways = [prepared, tensors, lambda: theirs(other, source)]
    with torch.cuda.stream(stream):
        for way in ways:
            way()
    torch.cuda.synchronize()
    for what, result in (("prepared", output), ("on tensors", ours)):
        wrong = int((result != other).sum())
        assert wrong == 0, f"rank {rank}: {name} of {bytes} bytes, {what}: {wrong} elements differ from torch.distributed's"
    want = other.clone()
    if name == "all_reduce":
        other.zero_()  # stays so
        ways += symmetric(source, want) if symm_mem else []
    torch.cuda.synchronize()
    group.barrier()
    graphs = [captured(way) for way in ways]
    rows = [[] for _ in ways]
    for _ in range(ROUNDS):
        for row, graph in zip(rows, graphs):
            row += timed(graph)
    for what, result in (("prepared", output), ("on tensors", ours)):
        assert torch.equal(result, want), f"rank {rank}: {name} of {bytes} bytes, {what}: wrong after the timing"
    slowest = torch.tensor(rows, device="cuda")
    dist.all_reduce(slowest, op=dist.ReduceOp.MAX)
    return [statistics.median(row) for row in slowest.tolist()]


if rank == 0:
    print(f"{'collective':16} {'size':>8} {'prepared':>9} {'tensors':>9} {'NCCL':>9} us  prepared/NCCL  symmetric memory")
    if not symm_mem:
        print("symmetric memory is left out, as this PyTorch has none")
for name in COLLECTIVES:
    for bytes in SIZES:
        prepared, tensors, nccl, *shots = measure(name, bytes)
        if rank == 0:
            row = f"{name:16} {bytes:>8} {prepared:9.2f} {tensors:9.2f} {nccl:9.2f}     {prepared / nccl:8.2f}"
            if shots:
                best, way = min(zip(shots, ("one shot", "two shots")))
                row += f"   {best:9.2f} us, {way}"
            print(row, flush=True)
group.barrier()
group.close()
dist.destroy_process_group()
