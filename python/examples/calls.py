# How long calls take the host, and the device in a graph: python -m mscclgo run -n 2 calls.py
# With PyTorch and GPUs, tensors and the current stream are PyTorch's.
import time

import numpy

import mscclgo

try:
    import torch

    on_gpu = torch.cuda.is_available()
except ImportError:
    on_gpu = False

CALLS, ROUNDS, COUNT = 200, 5, 512

with mscclgo.init() as group:
    stream = group.new_stream()
    data, output = group.array(numpy.ones(COUNT, "float16")), group.empty(COUNT, "float16")
    prepared = group.prepare("all_reduce", group.share(output), group.share(data), overlap=True)
    kernel = group.compile('extern "C" __global__ void nothing(void*, void*, unsigned long long) {}').nothing
    next, before = (group.rank + 1) % group.size, (group.rank - 1) % group.size

    def messages(to, of, on=None):
        with group.messages(on) as m:
            m.send(of, next)
            m.recv(to, before)

    calls = {
        "kernel[1, 32](stream, array, array, n)": lambda: kernel[1, 32](stream, data, output, COUNT),
        "prepared(stream)": lambda: prepared(stream),
        "all_reduce(array, array, stream)": lambda: group.all_reduce(data, output, stream=stream),
        "m.send(array, next), m.recv(array, before)": lambda: messages(output, data, stream),
    }
    if on_gpu:
        torch.cuda.set_device(group.device)
        tensor, result = torch.ones(COUNT, device="cuda"), torch.empty(COUNT, device="cuda")
        calls["all_reduce(tensor, tensor)"] = lambda: group.all_reduce(tensor, result)
        calls["m.send(tensor, next), m.recv(tensor, before)"] = lambda: messages(result, tensor)
        calls["tensor.add_(1), PyTorch's own"] = lambda: tensor.add_(1)
    for name, call in calls.items():
        best = float("inf")
        for _ in range(ROUNDS + 1):  # the first one prepares
            group.barrier()
            start = time.perf_counter()
            for _ in range(CALLS):
                call()
            best = min(best, time.perf_counter() - start)
            group.synchronize(stream)
            group.synchronize()
        if group.rank == 0:
            print(f"{best / CALLS * 1e6:8.2f} us  {name}")
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
        print(f"{end_mark.elapsed(start_mark) / 400 * 1e3:8.2f} us  prepared, on the device, in a graph")
    group.barrier()
