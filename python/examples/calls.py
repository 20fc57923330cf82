# How long calls take the host, beyond a launch, and the device in a graph: python -m mscclgo run -n 2 calls.py
# With PyTorch and GPUs, tensors and the current stream are PyTorch's, and so is the launch. With
# "distributed" as an argument, rank 0 also times PyTorch's all_reduce by NCCL, in a group of itself.
import os
import sys
import time

import numpy

import mscclgo

try:
    import torch

    on_gpu = torch.cuda.is_available()
except ImportError:
    on_gpu = False

# Few calls at a time, so that the queue is never full and other programs disturb few of the rounds, of
# which the fastest counts.
CALLS, ROUNDS, COUNT = 100, 60 if on_gpu else 5, 512

with mscclgo.init() as group:
    stream = group.new_stream()
    data, output = group.array(numpy.ones(COUNT, "float16")), group.empty(COUNT, "float16")
    nothing = group.empty(0, "float16")
    prepared = group.prepare("all_reduce", group.share(output), group.share(data), overlap=True)
    module = group.compile(
        'extern "C" __global__ void least() {}\nextern "C" __global__ void own(void*, void*, unsigned long long) {}'
    )
    least, own = module.least, module.own
    next, before = (group.rank + 1) % group.size, (group.rank - 1) % group.size

    def messages(to, of, on=None):
        with group.messages(on) as m:
            m.send(of, next)
            m.recv(to, before)

    # The first is the launch, beyond which the others are counted. What calls on tensors take more than those
    # on arrays is for looking at tensors, and without a stream for finding out the current one.
    calls = {
        "a launch of the least kernel, on a stream": lambda: least[1, 32](stream),
        "prepared(stream)": lambda: prepared(stream),
        "all_reduce(array, array, stream)": lambda: group.all_reduce(data, output, stream=stream),
        "all_reduce of 0 elements, which launches nothing": lambda: group.all_reduce(nothing, nothing, stream=stream),
        "kernel[1, 32](stream, array, array, n)": lambda: own[1, 32](stream, data, output, COUNT),
        "m.send(array, next), m.recv(array, before)": lambda: messages(output, data, stream),
    }
    if on_gpu:
        torch.cuda.set_device(group.device)
        tensor, result = (torch.ones(COUNT, device="cuda", dtype=torch.float16) for _ in range(2))
        side = torch.cuda.Stream()

        def aside(call):
            """Makes the calls on a stream of PyTorch's that is not the default one."""

            def calls():
                with torch.cuda.stream(side):
                    for _ in range(CALLS):
                        call()

            return calls

        calls = {
            "a launch of the least kernel of PyTorch": lambda: torch.cuda._sleep(0),
            **calls,
            "prepared()": prepared,
            "all_reduce(array, array)": lambda: group.all_reduce(data, output),
            "all_reduce(tensor, tensor)": lambda: group.all_reduce(tensor, result),
            "all_reduce(tensor)": lambda: group.all_reduce(tensor),
            "all_reduce(tensor, tensor), a stream of torch.cuda.stream": aside(lambda: group.all_reduce(tensor, result)),
            "kernel[1, 32](None, tensor, tensor, n)": lambda: own[1, 32](None, tensor, result, COUNT),
            "m.send(tensor, next), m.recv(tensor, before)": lambda: messages(result, tensor),
            "tensor.add_(1), PyTorch's own": lambda: tensor.add_(1),
        }
        if "distributed" in sys.argv[1:] and group.rank == 0:
            import torch.distributed

            os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=os.environ.get("NCCL_PORT", "29511"))
            torch.distributed.init_process_group("nccl", rank=0, world_size=1)
            calls["torch.distributed.all_reduce(tensor), NCCL, a rank alone"] = lambda: torch.distributed.all_reduce(tensor)
    launch = 0.0
    if group.rank == 0:
        print(" host, us  beyond a launch")
    for name, call in calls.items():
        many = getattr(call, "__name__", "") == "calls"  # it makes all of a round
        best = float("inf")
        for _ in range(ROUNDS + 1):  # the first one prepares
            if "alone" not in name:
                group.barrier()
            start = time.perf_counter()
            for _ in range(1 if many else CALLS):
                call()
            best = min(best, time.perf_counter() - start)
            group.synchronize(stream)
            group.synchronize()
            if on_gpu:
                side.synchronize()
        took = best / CALLS * 1e6
        launch = launch or took
        if group.rank == 0:
            print(f"{took:9.2f} {took - launch:+16.2f}  {name}", flush=True)
    group.barrier()
    with stream.capture() as capture:
        for _ in range(20):
            prepared(stream)
    group.barrier()
    capture.graph.launch(stream)
    start_mark = stream.record()
    for _ in range(20):
        capture.graph.launch(stream)
    end_mark = stream.record()
    group.synchronize(stream)
    if group.rank == 0:
        print(f"{end_mark.elapsed(start_mark) / 400 * 1e3:9.2f} us on the device: prepared, in a graph")
    group.barrier()
