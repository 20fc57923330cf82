"""Groups whose ranks are threads of this process, default groups, and what objects print."""

from __future__ import annotations

import pickle
import signal
import sys
import threading
import time
from typing import Any, List

import numpy
import pytest

import mscclgo

SOURCE = """
extern "C" __global__ void fill(float* data, int count) {
  for (int i = threadIdx.x; i < count; i += blockDim.x) data[i] = 1;
}
"""


def test_local() -> None:
    def body(group: mscclgo.Group) -> Any:
        assert mscclgo.default() is group
        tensor = numpy.full(1000, group.rank + 1, numpy.float32)
        mscclgo.all_reduce(tensor)
        return group.rank, float(tensor[999])

    assert mscclgo.local(3, body, device="emu") == [(0, 6.0), (1, 6.0), (2, 6.0)]
    with pytest.raises(mscclgo.InvalidError, match=r"call mscclgo.init\(\) first"):
        mscclgo.default()


def test_local_fails() -> None:
    """The rank that raises is the one that is told of; the others' waits end."""

    def body(group: mscclgo.Group) -> None:
        if group.rank == 1:
            raise LookupError("of this rank")
        group.barrier(60)

    began = time.monotonic()
    with pytest.raises(LookupError, match="of this rank"):
        mscclgo.local(3, body, device="emu")
    assert time.monotonic() - began < 30


def test_local_interrupted() -> None:
    waiting = threading.Event()

    def body(group: mscclgo.Group) -> None:
        if group.rank == 0:
            waiting.set()
            group.barrier(60)
        ended.wait(60)

    def interrupt() -> None:
        waiting.wait(60)
        signal.raise_signal(signal.SIGINT)

    ended = threading.Event()
    before = signal.signal(signal.SIGINT, signal.default_int_handler)  # which a shell's background jobs do not have
    threading.Thread(target=interrupt).start()
    try:
        with pytest.raises(KeyboardInterrupt):
            mscclgo.local(2, body, device="emu")
    finally:
        signal.signal(signal.SIGINT, before)
        ended.set()


def test_local_wrong() -> None:
    for wrong, says in ((lambda: mscclgo.local(0, print), "one rank or more, not 0"), (lambda: mscclgo.local(1, 5), "body is a function")):  # type: ignore[arg-type]
        with pytest.raises(mscclgo.InvalidError, match=says):
            wrong()


def test_connect_default() -> None:
    with mscclgo.Rendezvous() as place, mscclgo.connect(place.id, 0, 1, device="emu", default=True) as group:
        assert mscclgo.default() is group


def test_repr(group: mscclgo.Group) -> None:
    module = group.compile(SOURCE)
    channels = group.memory_channels(group.empty(8))
    prints: List[Any] = [module.fill, channels, group.new_stream()]
    assert [repr(one) for one in prints] == [
        "mscclgo.Kernel('fill', parameters=2)",
        "mscclgo.MemoryChannels(rank=0, size=1, per_peer=1)",
        f"mscclgo.Stream(rank=0, device={group.device!r})",
    ]


def test_numpy_of_narrow_types(group: mscclgo.Group, monkeypatch: pytest.MonkeyPatch) -> None:
    ml_dtypes = pytest.importorskip("ml_dtypes")
    for name in ("bfloat16", "float8_e4m3fn", "float8_e5m2"):
        given = numpy.array([0.5, -2], getattr(ml_dtypes, name))
        got = group.array(given).numpy()
        assert got.dtype == given.dtype and got.tolist() == given.tolist()
    monkeypatch.setitem(sys.modules, "ml_dtypes", None)
    with pytest.raises(mscclgo.UnsupportedError, match="pip install ml_dtypes"):
        group.empty(4, "bfloat16").numpy()


def test_public_names() -> None:
    assert str(mscclgo.InvalidError) == "<class 'mscclgo.InvalidError'>"
    assert pickle.loads(pickle.dumps(mscclgo.Config(max_blocks=8))) == mscclgo.Config(max_blocks=8)
