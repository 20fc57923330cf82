"""What groups are told beyond the arguments of init and connect."""

from __future__ import annotations

import pathlib
from typing import Any

import numpy as np
import pytest
from conftest import run_ranks

import mscclgo
from mscclgo import Config


def test_collectives() -> None:
    """Collectives with few blocks and a tuning of their own, of a group and of its parts."""
    config = Config(max_blocks=2, collective_scratch=1 << 16, tuning="* allreduce * * direct 4 64", transports=("cudaipc", "shm"))

    def rank(number: int, id: str) -> Any:
        with mscclgo.connect(id, number, 2, device="emu", config=config) as group:
            x = group.array(np.full(3, number + 1, "int32"))
            group.all_reduce(x)
            part = group.split(0)
            assert part is not None
            part.all_reduce(x)
            part.synchronize()
            other = group.split(0, config=Config(max_blocks=3 + number))
            assert other is not None
            with pytest.raises(mscclgo.InvalidError, match="a bound of [34] blocks"):
                other.all_reduce(x)
            with pytest.raises(mscclgo.InvalidError, match="leave them 0"):
                group.split(0, config=config)
            group.barrier(60)
            return x.numpy().tolist()

    assert run_ranks(2, rank) == [[6, 6, 6], [6, 6, 6]]


def test_trace(tmp_path: pathlib.Path) -> None:
    """A file of ASCII alone, and one that is not, as Python's strings have names."""
    for name in ("trace.json", "tracé\udcff.json"):
        with mscclgo.Rendezvous() as rendezvous:
            config = Config(trace=tmp_path / name, trace_events=16, find_deadlocks=True, transports="shm")
            mscclgo.connect(rendezvous.id, 0, 1, device="emu", config=config).close()
        assert (tmp_path / name).stat().st_size > 0


def test_hosts() -> None:
    """Ranks of one process on several hosts, which pipes by ports join, with a pool for few."""

    def rank(number: int, id: str) -> Any:
        config = Config(host=f"host {number}", transports="cudaipc,ethernet", pipe_pool=1 << 20)
        with mscclgo.connect(id, number, 2, device="emu", config=config) as group:
            with pytest.raises(mscclgo.UnsupportedError):
                group.handle_bytes()
            pipes = group.pipes([1 - number], [1 - number], slot_bytes=1024, shared=True)
            x = group.array(np.full(3, number + 1, "int32"))
            group.all_reduce(x)
            pool = group.pipe_pool().bytes
            group.synchronize()
            pipes.close()
            return x.numpy().tolist(), pool

    assert run_ranks(2, rank) == [([3, 3, 3], 1 << 20)] * 2


def test_refused() -> None:
    wrong: Any
    for wrong, says in (
        (Config(max_blocks=-1), "config: max_blocks is -1"),
        (Config(max_blocks=1 << 40), "config: max_blocks is 1099511627776"),
        (Config(max_blocks=1.5), "config: max_blocks is an int, not a float"),  # type: ignore[arg-type]
        (Config(collective_scratch=-1), "config: collective_scratch is -1"),
        (Config(collective_scratch=1 << 63), "is more than"),
        (Config(pipe_pool=-1), "config: pipe_pool is -1"),
        (Config(pipe_pool=1 << 60), "a pool of pipes of 1152921504606846976 bytes"),
        (Config(host="x" * 256), "256 bytes"),
        (Config(transports="pigeons"), '"pigeons", which is none of'),
        (Config(transports=3), "transports are names"),  # type: ignore[arg-type]
        (Config(transports=[3]), "transports are names"),  # type: ignore[list-item]
        (Config(tuning="# mine\nnonsense"), "line 2"),
        (Config(tuning=b"x"), "tuning is a text"),  # type: ignore[arg-type]
        (Config(trace="a\0b"), "trace is a text"),
        (Config(trace="x", trace_events=1), "TraceEvents is 1"),
        ({"max_blocks": 3}, r"a dict is given, and mscclgo.Config\(...\) is needed"),
    ):
        with mscclgo.Rendezvous() as rendezvous, pytest.raises(mscclgo.InvalidError, match=says):
            with mscclgo.connect(rendezvous.id, 0, 1, device="emu", config=wrong) as group:
                group.all_reduce(group.empty(1))
