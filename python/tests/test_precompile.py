"""Kernels of collectives that are compiled beforehand."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from conftest import variables

import mscclgo

# Needs no compiler.
PROGRAM = """
import numpy, mscclgo
with mscclgo.Rendezvous() as place, mscclgo.connect(place.id, 0, 1, device="emu") as group:
    x = group.array(numpy.arange(100, dtype="float64"))
    y = group.empty(100, "float64")
    group.all_gather(y, x)
    group.reduce(x, x, op="avg")
    group.synchronize()
    assert (y.numpy() == numpy.arange(100)).all() and (x.numpy() == numpy.arange(100)).all()
    try:
        group.broadcast(x)
        raise SystemExit("a compiler was found")
    except mscclgo.UnsupportedError:
        pass
"""


def test_precompile(tmp_path: Path) -> None:
    cache = str(tmp_path / "cache")
    env = {**variables(), "MSCCLGO_CACHE": cache, "MSCCLGO_IMAGES": ""}
    start = [sys.executable, "-m", "mscclgo", "precompile", "emu", "--collectives", "all_gather,reduce", "--types", "float64", "--operations", "avg", "--ranks", "1"]
    subprocess.run(start, env=env, check=True)
    assert os.listdir(cache)
    subprocess.run([sys.executable, "-c", PROGRAM], env={**env, "CXX": "/nowhere/g++"}, check=True)


def test_refuses() -> None:
    wrong: Any = 5
    for arguments, text in (
        (dict(collectives="all-gather"), "'all-gather' is not a collective"),
        (dict(types="f32"), "'f32' is not a type"),
        (dict(operations="mean"), "'mean' is not an operation"),
        (dict(architectures="tpu", collectives=["scatter"]), 'unknown architecture "tpu"'),
        (dict(architectures="emu", ranks=[0]), "no group of 0 ranks"),
        (dict(architectures=wrong), "the architectures are names, not an int"),
        (dict(types=[wrong]), "the types are names, not of type int"),
        (dict(ranks=4), "the ranks are several numbers, not an int"),
        (dict(ranks=["4"]), "a number of ranks"),
    ):
        with pytest.raises(mscclgo.InvalidError, match=text):
            mscclgo.precompile(**arguments)  # type: ignore[arg-type]
