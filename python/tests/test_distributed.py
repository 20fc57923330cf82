"""The backend of torch.distributed, on emulated devices, beside Gloo. PyTorch 2.4 or later is needed; on GPUs test_torch.py
has the same of NCCL."""

from __future__ import annotations

import re
import socket
import subprocess
import sys
from pathlib import Path
from typing import List

import pytest
from conftest import variables

torch = pytest.importorskip("torch", reason="PyTorch is not installed")
VERSION = tuple(int(n) for n in torch.__version__.split(".")[:2])
if VERSION < (2, 4):
    pytest.skip(f"PyTorch {torch.__version__} is older than 2.4", allow_module_level=True)

PROGRAMS = Path(__file__).parent / "programs"


def run(ranks: int, program: str, *arguments: str) -> str:
    """Runs a program as ranks, and returns what they print."""
    command = [sys.executable, "-m", "mscclgo", "run", "-n", str(ranks), str(PROGRAMS / program), *arguments]
    environment = variables(USE_LIBUV="0", OMP_NUM_THREADS="1")  # PyTorch of Debian has no libuv
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.mark.parametrize("ranks", [2, 3])
def test_beside_gloo(ranks: int) -> None:
    """Each call, type and operation; strided and empty tensors; works, messages, sub-groups and wrong use."""
    assert len(re.findall(r"^\d+ results are as Gloo's$", run(ranks, "beside_gloo.py"), re.MULTILINE)) == ranks


def test_models() -> None:
    """Losses are the same as by Gloo, to the last bit. Before PyTorch 2.7 no backend has FSDP2 on the host."""
    ways = ["ddp", "tensor_parallel", "pipeline", "compiled"] + ["fsdp"] * (VERSION >= (2, 7))
    told = run(2, "models.py", *ways)
    assert all(len(re.findall(rf"^{way}: \[", told, re.MULTILINE)) == 2 for way in ways), told


def test_operators() -> None:
    """torch.ops.mscclgo under torch.compile, and the all-reduce of vLLM and SGLang."""
    assert run(2, "operators.py").count("all right") == 2


def ports(count: int) -> List[str]:
    sockets = [socket.create_server(("127.0.0.1", 0)) for _ in range(count)]
    numbers = [str(s.getsockname()[1]) for s in sockets]
    for s in sockets:
        s.close()
    return numbers


def test_killed() -> None:
    """The others raise at once, name the rank, and go on without it."""
    command = [sys.executable, str(PROGRAMS / "killed.py"), *ports(2)]
    ranks = [
        subprocess.Popen(command, env=variables(RANK=str(r), WORLD_SIZE="3", OMP_NUM_THREADS="1"), stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
        for r in range(3)
    ]
    told = [rank.communicate(timeout=120)[0] for rank in ranks]
    for r in (0, 2):
        assert ranks[r].returncode == 0, told[r]
        # The end of a connection tells them, and not a time-out of 5 s.
        assert float(re.findall(r"told after ([\d.]+) s", told[r])[0]) < 4, told[r]
