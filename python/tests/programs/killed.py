"""A rank is killed while the others reduce: they are told of it, and make a group without it. The arguments are two ports."""

from __future__ import annotations

import datetime
import os
import signal
import sys
import time

import torch
import torch.distributed as dist

import mscclgo.torch  # noqa: F401

RANK, SIZE = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])


def init(port: str, rank: int, size: int) -> None:
    store = dist.TCPStore("127.0.0.1", int(port), size, is_master=rank == 0, timeout=datetime.timedelta(seconds=30), use_libuv=False)
    dist.init_process_group("mscclgo", store=store, rank=rank, world_size=size, timeout=datetime.timedelta(seconds=30))


init(sys.argv[1], RANK, SIZE)
x = torch.ones(1000)
for _ in range(5):
    dist.all_reduce(x)
if RANK == 1:
    os.kill(os.getpid(), signal.SIGKILL)
start = time.monotonic()
try:
    while True:
        dist.all_reduce(x)
except dist.DistBackendError as error:
    took, text = time.monotonic() - start, str(error)
assert "rank 1" in text, text
try:
    dist.all_reduce(x)
    raise AssertionError("a failed group went on")
except dist.DistBackendError:
    pass
dist.destroy_process_group()
init(sys.argv[2], RANK // 2, SIZE - 1)
x = torch.ones(1000)
dist.all_reduce(x)
assert bool((x == SIZE - 1).all())
if RANK == 0:
    dist.destroy_process_group()  # the other ends without it
print(f"told after {took:.1f} s: {text}")
