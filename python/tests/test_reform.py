"""Ranks that go on as another group, after a failure or not."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from typing import Any, Callable, List

import numpy as np
import pytest
from conftest import variables

import mscclgo
from mscclgo import _waiting

RANKS = 3

SOURCE = """
#include <mscclgo/group.cuh>
#include <mscclgo/memory_channel.cuh>

extern "C" __global__ void who(mscclgo::GroupHandle g, int* to) { to[0] = 100 * g.size + g.rank; }

// Copies this rank's part to all ranks, and waits for theirs.
extern "C" __global__ void gather(mscclgo::MemoryChannelHandle* channels, int ranks, int rank, uint64_t part) {
  for (int r = 0; r < ranks; r++) {
    channels[r].put(rank * part, rank * part, part, threadIdx.x, blockDim.x);
    __syncthreads();
    if (threadIdx.x == 0) channels[r].signal();
  }
  if (threadIdx.x == 0)
    for (int r = 0; r < ranks; r++) channels[r].wait();
}
"""


class Rank:
    """What a rank has, through all groups."""

    def __init__(self, group: mscclgo.Group) -> None:
        self.group = group
        self.stream = group.new_stream()
        self.data = group.array(np.zeros(1000, "int32"))
        self.words = group.array(np.zeros(RANKS + 1, "int64"))
        self.channels = group.memory_channels(self.data)
        self.ports = group.port_channels(self.words, on_stream=True)
        self.peers = group.share(self.data)
        self.summed = group.prepare("all_reduce", self.peers)
        self.who = group.array(np.zeros(1, "int32"))
        self.module = group.compile(SOURCE)

    def carry(self) -> List[bool]:
        """Takes all to the group that follows. New ranks make theirs in this order."""
        return [self.channels.reform(), self.ports.reform(), self.peers.reform(), self.summed.reform()]

    def tell(self) -> None:
        """Queues a word for the next rank, and waits for the previous rank's word."""
        rank, size = self.group.rank, self.group.size
        self.ports.on_stream((rank + 1) % size, stream=self.stream).put_with_signal(0, 8, 8, flush=True)
        self.ports.on_stream((rank - 1) % size, stream=self.stream).wait()

    def works(self, rank: int, size: int, tells: Any = None) -> None:
        """All is right in a group of so many ranks, and by a graph of tell if it is given."""
        group = self.group
        assert (group.rank, group.size) == (rank, size)
        group.check()
        values = np.arange(1000, dtype="int32")

        self.data.copy_from(values + rank)
        for _ in range(2):  # the second is _fast's
            self.data.copy_from(values + rank)
            group.barrier(60)
            group.all_reduce(self.data, stream=self.stream)
            group.synchronize(self.stream)
            np.testing.assert_array_equal(self.data.numpy(), size * values + sum(range(size)))

        self.words.copy_from(np.array([0, 500 + rank] + [0] * (RANKS - 1)))
        group.barrier(60)
        self.tell() if tells is None else tells.launch(self.stream)
        group.synchronize(self.stream)
        assert self.words.numpy()[0] == 500 + (rank - 1) % size

        self.data.copy_from(np.full(1000, rank + 1, "int32"))
        group.barrier(60)
        self.module.gather[1, 32](self.stream, self.channels, size, rank, 400)
        self.module.who[1, 1](self.stream, group, self.who)
        group.synchronize(self.stream)
        assert [int(n) for n in self.data.numpy()[: 100 * size : 100]] == list(range(1, size + 1))
        assert self.who.numpy()[0] == 100 * size + rank
        group.barrier(60)

        again = group.prepare("all_reduce", self.peers)
        for summed in (self.summed, again):
            self.data.copy_from(values - rank)
            group.barrier(60)
            summed(self.stream)
            group.synchronize(self.stream)
            np.testing.assert_array_equal(self.data.numpy(), size * values - sum(range(size)))
        again.close()

        x, y = group.array(np.full(10, rank, "int32")), group.empty(10, "int32")
        for _ in range(2):
            with group.messages(self.stream) as m:
                m.send(x, (rank + 1) % size)
                m.recv(y, (rank - 1) % size)
        with pytest.raises(mscclgo.InvalidError):
            group.send(x, size, self.stream)  # as many ranks as the group has now
        group.synchronize(self.stream)
        assert list(y.numpy()) == [(rank - 1) % size] * 10
        group.barrier(60)


def at_once(*ranks: Callable[[], Any]) -> None:
    """Calls each on a thread, and raises the first error."""
    errors: List[BaseException] = []

    def run(rank: Callable[[], Any]) -> None:
        try:
            rank()
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=run, args=(rank,)) for rank in ranks]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if errors:
        raise errors[0]


def test_survivors() -> None:
    """Rank 2 fails, and leaves; the others go on without it, in another group of theirs, and with a new one."""
    rendezvous = [mscclgo.Rendezvous() for _ in range(5)]
    ids = [r.id for r in rendezvous]
    step = threading.Barrier(RANKS, timeout=100)

    def rank(me: int) -> None:
        with mscclgo.connect(ids[0], me, RANKS, device="emu") as group:
            r = Rank(group)
            r.works(me, RANKS)
            part, pipes, proxy = group.split(0), group.pipes([], []), group.proxy(print)
            assert part is not None
            with pytest.raises(mscclgo.InvalidError):
                r.channels.reform()  # of the group that it is of
            if me != 2:
                r.ports.on_stream(2, stream=r.stream).wait()  # which ends when the group fails
            step.wait()
            if me == 2:
                group.abort("the disk is full")
                group.close()
                step.wait()
                group = mscclgo.connect(ids[4], 2, RANKS, device="emu")
                Rank(group).works(2, RANKS)
                group.close()
                return
            with pytest.raises(mscclgo.AbortedError, match="the disk is full"):
                group.synchronize(r.stream)

            # What is wrong changes nothing.
            with pytest.raises(mscclgo.InvalidError, match="outside a world of 2"):
                group.reform(ids[1], 2, 2)
            with pytest.raises(mscclgo.InvalidError, match="a part"):
                part.reform(ids[1], me, 2)
            with pytest.raises(mscclgo.TimeoutError):
                group.reform(ids[1], me, RANKS, 0.3)
            assert group.size == RANKS and not part.closed
            proxy.handle_bytes()

            before = r.data.numpy().copy()
            group.reform(ids[2], me, 2)
            np.testing.assert_array_equal(r.data.numpy(), before)
            assert part.closed
            for gone in (proxy.handle_bytes, pipes.handle_bytes):
                with pytest.raises(mscclgo.InvalidError, match="destroyed"):
                    gone()
            # Not before they are carried.
            with pytest.raises(mscclgo.InvalidError, match="re-form memory channels too"):
                r.module.gather[1, 32](r.stream, r.channels, 2, me, 400)
            with pytest.raises(mscclgo.InvalidError, match="re-form port channels too"):
                r.tell()
            with pytest.raises(mscclgo.InvalidError, match="re-form peer memory too"):
                r.peers.handle_bytes()
            with pytest.raises(mscclgo.InvalidError, match="re-form a prepared call too"):
                r.summed(r.stream)
            assert r.carry() == [False] * 4
            r.works(me, 2)
            with r.stream.capture() as capture:
                r.tell()
            handle = group.handle_bytes()
            with r.stream.capture() as sums:
                r.summed(r.stream)
                group.all_reduce(r.data, stream=r.stream)

            group.reform(ids[3], me, 2)
            with pytest.raises(mscclgo.InvalidError, match="capture it again"):
                sums.graph.launch(r.stream)
            assert group.reform_collectives()
            with pytest.raises(mscclgo.InvalidError, match="capture it again"):
                sums.graph.launch(r.stream)
            assert r.carry() == [True] * 4
            assert group.handle_bytes() == handle
            r.data.copy_from(np.arange(1000, dtype="int32") + me)
            group.barrier(60)
            sums.graph.launch(r.stream)
            group.synchronize(r.stream)
            np.testing.assert_array_equal(r.data.numpy(), 2 * (2 * np.arange(1000, dtype="int32") + 1))
            r.works(me, 2, capture.graph)

            step.wait()
            group.reform(ids[4], me, RANKS)
            assert r.carry() == [False] * 4
            r.works(me, RANKS)
            assert not group.reform_collectives()
            with pytest.raises(mscclgo.InvalidError, match="capture it again"):
                sums.graph.launch(r.stream)
            group.close()
        with pytest.raises(mscclgo.InvalidError, match="destroyed"):
            group.reform(ids[4], me, RANKS)

    at_once(*(lambda me=me: rank(me) for me in range(RANKS)))  # type: ignore[misc]
    for r in rendezvous:
        r.close()


PUSH = '''
#include <mscclgo/fifo.cuh>
extern "C" __global__ void push(mscclgo::FifoHandle fifo) { fifo.push(mscclgo::Trigger::user(200, 1, 2, 3)); }
'''


def test_fails_again() -> None:
    """Rank 1's handler does not return, so that its call fails, and rank 0's call with it. The next is right."""
    rendezvous = [mscclgo.Rendezvous() for _ in range(3)]
    ids = [r.id for r in rendezvous]
    step = threading.Barrier(2, timeout=100)
    entered, returns = threading.Event(), threading.Event()

    def handle(_: mscclgo.Trigger) -> None:
        entered.set()
        returns.wait(60)

    def rank(me: int) -> None:
        group = mscclgo.connect(ids[0], me, 2, device="emu")
        x = group.array(np.full(100, me + 1, "int32"))
        group.all_reduce(x)
        part, proxy = group.split(0), group.proxy(handle)
        assert part is not None
        group.synchronize()
        if me == 1:
            group.compile(PUSH).push[1, 1](None, proxy)
            group.synchronize()
            assert entered.wait(60)
        group.barrier()
        with pytest.raises(mscclgo.Error, match="of kind 200 is served" if me == 1 else "rank 1"):
            group.reform(ids[1], me, 2)
        assert part.closed
        with pytest.raises(mscclgo.InvalidError, match="destroyed"):
            proxy.handle_bytes()
        with pytest.raises(mscclgo.Error):
            group.barrier()
        step.wait()
        returns.set()
        group.reform(ids[2], me, 2)
        group.all_reduce(x)
        group.synchronize()
        np.testing.assert_array_equal(x.numpy(), 6)
        group.close()

    at_once(lambda: rank(0), lambda: rank(1))
    for r in rendezvous:
        r.close()


def test_elastic() -> None:
    """The server decides: a rank fails and leaves, the others are the next generation, and then it is back."""
    with mscclgo.Elastic(least=2, most=RANKS, settle=1) as server:
        step = threading.Barrier(RANKS, timeout=100)

        def rank() -> None:
            with mscclgo.Member(server.id, device="emu") as member:
                assert member.generation == 0 and not member.newcomers
                group = member.connect()
                r = Rank(group)
                r.works(group.rank, RANKS)
                step.wait()
                if group.rank == 1:
                    group.abort("the disk is full")
                    group.close()
                    member.close()
                    step.wait()
                    with mscclgo.Member(server.id, device="emu") as again:
                        with again.connect() as group:
                            Rank(group).works(group.rank, RANKS)
                            assert again.generation == 3
                    return
                with pytest.raises(mscclgo.AbortedError, match="the disk is full"):
                    group.barrier()
                member.reform(group)
                assert member.generation == 2
                r.carry()
                r.works(group.rank, 2)
                step.wait()
                while b"1" not in group.all_gather_bytes(b"%d" % member.newcomers):
                    pass
                member.reform(group)
                assert member.generation == 3
                r.carry()
                r.works(group.rank, RANKS)
                group.close()

        at_once(*[rank] * RANKS)


def test_wrong(group: mscclgo.Group) -> None:
    with pytest.raises(mscclgo.InvalidError, match="from 3 to 2 ranks"):
        mscclgo.Elastic(least=3, most=2)
    with pytest.raises(mscclgo.InvalidError, match="settle"):
        mscclgo.Elastic(settle="long")  # type: ignore[arg-type]
    with pytest.raises(mscclgo.InvalidError):
        mscclgo.Member("nonsense")
    with pytest.raises(mscclgo.InvalidError, match="the id is a str"):
        group.reform(5, 0, 1)  # type: ignore[arg-type]
    with pytest.raises(mscclgo.InvalidError, match="size is an int"):
        group.reform("", 0, "1")  # type: ignore[arg-type]
    with pytest.raises(mscclgo.InvalidError):
        group.reform("nonsense", 0, 1)
    with mscclgo.Elastic(least=2, settle=0.05) as server, mscclgo.Member(server.id, device="emu") as member:
        with pytest.raises(mscclgo.InvalidError, match="is a mscclgo.Group"):
            member.reform("group")  # type: ignore[arg-type]
        with pytest.raises(mscclgo.TimeoutError, match="no generation formed"):
            member.connect(0.2)
        with pytest.raises(mscclgo.TimeoutError, match="no generation formed"):
            member.reform(group, 0.2)
    group.barrier()


def test_forgotten_server() -> None:
    with pytest.warns(ResourceWarning, match="Elastic was not closed"):
        mscclgo.Elastic()


def test_interrupted(monkeypatch: pytest.MonkeyPatch) -> None:
    """After Ctrl-C another thread goes on: the new group fails, and may be re-formed again."""
    with mscclgo.Rendezvous() as first, mscclgo.Rendezvous() as second, mscclgo.Rendezvous() as third:
        group = mscclgo.connect(first.id, 0, 1, device="emu")
        join, calls = _waiting.Waiting.join, iter([True])

        def interrupt(*arguments: Any) -> None:
            join(*arguments)
            if next(calls, False):
                raise KeyboardInterrupt

        monkeypatch.setattr(_waiting.Waiting, "join", interrupt)
        with pytest.raises(KeyboardInterrupt):
            group.reform(second.id, 0, 1)
        end = time.monotonic() + 30
        with pytest.raises(mscclgo.AbortedError, match="KeyboardInterrupt"):
            while time.monotonic() < end:
                group.check()
                time.sleep(0.01)
        group.reform(third.id, 0, 1)
        group.barrier()
        group.close()


@pytest.mark.parametrize("moment", ["waits", "has met", "re-forms"])
def test_interrupted_member(moment: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """After Ctrl-C a member has left the server, also if the group was just made. It may come again."""
    join, calls, others = _waiting.Waiting.join, [], []  # type: ignore[var-annotated]

    def interrupt(body: Callable[[], Any], after: float = 0.5) -> None:
        """Calls what waits for at most so many seconds, and is interrupted then."""

        def first(call: _waiting.Waiting, timeout: float = after) -> None:
            join(call, timeout)
            if not calls:
                calls.append(call)
                raise KeyboardInterrupt

        calls.clear()
        with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
            patch.setattr(_waiting.Waiting, "join", first)
            body()

    with mscclgo.Rendezvous() as rendezvous:
        group = mscclgo.connect(rendezvous.id, 0, 1, device="emu")
    with mscclgo.Elastic(least=2, most=2, settle=0.05) as server, mscclgo.Member(server.id, device="emu") as other:

        def connect(member: mscclgo.Member, timeout: float = 60) -> mscclgo.Group:
            """Also where the server learns late that one has left."""
            while True:
                try:
                    return member.connect(timeout)
                except mscclgo.RemoteError:
                    pass

        def come() -> threading.Thread:
            thread = threading.Thread(target=lambda: others.append(connect(other)))
            thread.start()
            return thread

        def body() -> None:
            with mscclgo.Member(server.id, device="emu") as member:
                member.reform(group) if moment == "re-forms" else member.connect()

        if moment == "has met":
            there = come()
            interrupt(body, 60)
            there.join()
            with pytest.raises(mscclgo.Error, match="KeyboardInterrupt"):
                others[0].barrier(20)
            others.pop().close()
        else:
            interrupt(body)
            with pytest.raises(mscclgo.TimeoutError, match="no generation formed"):
                other.connect(0.5)
        assert calls[0]._has_ended

        with mscclgo.Member(server.id, device="emu") as member:
            interrupt(member.connect)
            there = come()
            again = connect(member)
            there.join()
            closing = threading.Thread(target=others[0].close)
            closing.start()
            again.close()
            closing.join()
    group.barrier()
    group.close()


PROGRAM = """
import sys
import numpy as np
import mscclgo

member = mscclgo.Member(sys.argv[1])
group = member.connect()
data = group.array(np.zeros(1000, "int32"))
values, last = np.arange(1000, dtype="int32"), 0
while group.size == 3 or last == 3:
    try:
        data.copy_from(values + group.rank)
        group.all_reduce(data)
        group.synchronize()
    except mscclgo.Error as error:
        print("lost", error, flush=True)
        member.reform(group)
        continue
    assert (data.numpy() == group.size * values + sum(range(group.size))).all()
    if group.size != last:
        print(group.size, "ranks are right", flush=True)
    last = group.size
group.close()
"""


def test_killed() -> None:
    """A process is killed, and the others go on."""
    with mscclgo.Elastic(least=2, most=3, settle=2) as server:
        start = [sys.executable, "-c", PROGRAM, server.id]
        ranks = [subprocess.Popen(start, env=variables(), stdout=subprocess.PIPE, text=True) for _ in range(3)]
        try:
            for rank in ranks:
                assert rank.stdout is not None and rank.stdout.readline() == "3 ranks are right\n"
            os.kill(ranks[1].pid, signal.SIGKILL)
            for rank in (ranks[0], ranks[2]):
                out, _ = rank.communicate(timeout=100)
                assert rank.returncode == 0 and out.startswith("lost") and out.endswith("2 ranks are right\n"), out
        finally:
            for rank in ranks:
                rank.kill()
                rank.wait()
                assert rank.stdout is not None
                rank.stdout.close()
