"""The process group: PyTorch's calls by the library's."""

from __future__ import annotations

import functools
import weakref
from datetime import timedelta
from typing import Any, Callable, Iterable, List, NamedTuple, Optional, Sequence

import torch
import torch.distributed as dist

from torch._C._distributed_c10d import _create_work_from_future
from torch.futures import Future

import mscclgo

from ._elements import Operation, given, joined, written
from ._meet import meet
from ._work import After, Done, Messages, Side, Waiter, known, side_of

Body = Callable[[Any, After], Any]  # queues on a stream
Work = Any  # PyTorch's

_done = Done()


def create(store: Any, rank: int, size: int, timeout: timedelta) -> "ProcessGroup":
    """Makes the process group of torch.distributed. Collective."""
    return ProcessGroup(store, rank, size, timeout)


def _by_device(call: Callable[..., Any]) -> Callable[..., Any]:
    """Has a call on tensors of the host go to Gloo where the group is on GPUs."""

    @functools.wraps(call)
    def of(self: "ProcessGroup", first: Any, *more: Any, **named: Any) -> Any:
        tensor = first
        while isinstance(tensor, (list, tuple)):
            tensor = tensor[0] if tensor else more[0]
        if self._on_gpu and tensor.device.type == "cpu":
            return getattr(self._of_host(), call.__name__)(first, *more, **named)
        return call(self, first, *more, **named)

    return of


class _Message(NamedTuple):
    sends: bool
    tensor: Any
    peer: int


class _Pending:
    """Messages of host tensors, which go together when somebody waits for one of them."""

    def __init__(self) -> None:
        self.messages: List[_Message] = []
        self.future: Future[List[Any]] = Future()


class ProcessGroup(dist.ProcessGroup):  # type: ignore[misc]
    """A process group on an mscclgo.Group, which is its attribute group."""

    def __init__(self, store: Any, rank: int, size: int, timeout: timedelta) -> None:
        super().__init__(rank, size)
        self._store, self._timeout = store, timeout
        self.group, rendezvous = meet(store, rank, size, timeout)
        self._on_gpu = not self.group.device.startswith("emu")
        self._device = torch.device(self.group.device if self._on_gpu else "cpu")
        self._side: Optional[Side] = side_of(self._device) if self._on_gpu else None
        self._stream: Any = None if self._on_gpu else self.group.new_stream()
        self._together: Optional[List[_Message]] = None  # messages that coalesce
        self._pending: Optional[_Pending] = None  # messages of host tensors that nobody has waited for
        self._gloo: Any = None
        self._calls = 0
        self._name = self._description = ""
        self._waiter: Any = None if self._on_gpu else Waiter(self.group)
        self._close = weakref.finalize(self, _close, self.group, rendezvous, self._waiter)

    # What PyTorch asks of a backend

    def getBackendName(self) -> str:
        return "mscclgo"

    def name(self) -> str:
        return "mscclgo"

    # C++ has these two of a backend that is registered, and there is none.
    group_name = property(lambda self: self._name)
    group_desc = property(lambda self: self._description)

    def _set_group_name(self, name: str) -> None:
        self._name = name

    def _set_group_desc(self, description: str) -> None:
        self._description = description

    @property
    def _device_types(self) -> List[torch.device]:
        return [torch.device(self._device.type)]

    def _get_backend(self, device: Any) -> Any:
        return self

    get_backend = _get_backend
    supports_splitting = False
    supports_coalescing = True
    supports_time_estimate = False
    supports_tensor_alloc = False

    def _set_default_timeout(self, timeout: timedelta) -> None:
        self._timeout = timeout

    def _set_sequence_number_for_group(self) -> None:
        pass

    def _get_sequence_number_for_group(self) -> int:
        return self._calls

    def abort(self) -> None:
        """Fails the group: calls of all ranks end."""
        self.group.abort("the process group was aborted")

    def shutdown(self) -> None:
        """Leaves the group."""
        self._close()

    def _of_host(self) -> Any:
        if self._gloo is None:
            self._gloo = dist.ProcessGroupGloo(dist.PrefixStore("host", self._store), self.rank(), self.size(), self._timeout)
        return self._gloo

    # Calls

    def _run(self, body: Body, tensors: Sequence[Any], opts: Any = None) -> Work:
        """Queues a call, whose results are tensors."""
        self._calls += 1
        result: List[Any] = list(tensors)
        after: After = []
        try:
            if self._side is None:
                self._launch_pending()
                body(self._stream, after)
                future: Future[List[Any]] = Future()
                self._waiter.add(self._stream.record(), after, future, result)
                return _create_work_from_future(future)
            if opts is not None and not getattr(opts, "asyncOp", True):  # the caller waits, so there is nothing beside it
                self._side.before_current()
                _queue(body, after)
                return _done
            with self._side as stream:
                _queue(body, after)
                for tensor in result:
                    tensor.record_stream(stream)
                future = Future(devices=[self._device])
                future.set_result(result)
            return _create_work_from_future(future)
        except mscclgo.Error as error:
            raise known(error) from error

    def now(self, call: Callable[[mscclgo.Group], Any], tensors: Sequence[Any]) -> None:
        """Makes a call of the group on the current stream; on the host the tensors are there when it returns."""
        self._calls += 1
        if self._on_gpu != tensors[0].is_cuda:
            raise ValueError(f"mscclgo: the tensor is on {tensors[0].device}, and the group's device is {self.group.device}")
        try:
            if self._side is None:
                self._launch_pending()
            else:
                self._side.before_current()
            call(self.group)
        except mscclgo.Error as error:
            raise known(error) from error

    def _reduce(self, call: Callable[..., Any], output: Any, input: Any, op: Any, stream: Any, after: After, to: bool = True) -> None:
        """Makes a call that reduces. to is whether this rank has the result."""
        how = Operation(op)
        if how.factor is not None:
            input = input * how.factor
        x, name = how.of(input, after, out=False)
        y, _ = (x, name) if output is input and x.data_ptr() == output.data_ptr() else how.of(output, after, out=to)
        call(y, x, name, stream)

    @_by_device
    def allreduce(self, tensors: List[Any], opts: Any = None) -> Work:
        (tensor,) = tensors

        def body(stream: Any, after: After) -> None:
            self._all_reduce(tensor, opts, stream, after)

        return self._run(body, tensors, opts)

    def _all_reduce(self, tensor: Any, opts: Any, stream: Any, after: After) -> None:
        def call(y: Any, x: Any, op: str, on: Any) -> None:
            self.group.all_reduce(x, y, op, on)

        self._reduce(call, tensor, tensor, _op(opts), stream, after)

    @_by_device
    def allreduce_coalesced(self, tensors: List[Any], opts: Any = None) -> Work:
        def body(stream: Any, after: After) -> None:
            for tensor in tensors:
                self._all_reduce(tensor, opts, stream, after)

        return self._run(body, tensors, opts)

    @_by_device
    def reduce(self, tensors: List[Any], opts: Any = None) -> Work:
        (tensor,) = tensors
        return self._run(lambda stream, after: self._reduce_to(opts.rootRank, tensor, tensor, opts, stream, after), tensors, opts)

    def _reduce_to(self, root: int, output: Any, input: Any, opts: Any, stream: Any, after: After) -> None:
        def call(y: Any, x: Any, op: str, on: Any) -> None:
            self.group.reduce(x, y, op, root, on)

        self._reduce(call, output, input, _op(opts), stream, after, self.rank() == root)

    @_by_device
    def broadcast(self, tensors: List[Any], opts: Any = None) -> Work:
        (tensor,) = tensors

        def body(stream: Any, after: After) -> None:
            here = given(tensor) if self.rank() == opts.rootRank else written(tensor, after)
            self.group.broadcast(here, opts.rootRank, stream)

        return self._run(body, tensors, opts)

    @_by_device
    def _allgather_base(self, output: Any, input: Any, opts: Any = None) -> Work:
        return self._run(lambda stream, after: self.group.all_gather(written(output, after), given(input), stream), [output, input], opts)

    all_gather_single = _allgather_base

    @_by_device
    def allgather_into_tensor_coalesced(self, outputs: List[Any], inputs: List[Any], opts: Any = None) -> Work:
        def body(stream: Any, after: After) -> None:
            for output, input in zip(outputs, inputs):
                self.group.all_gather(written(output, after), given(input), stream)

        return self._run(body, [*outputs, *inputs], opts)

    @_by_device
    def allgather(self, outputs: List[List[Any]], inputs: List[Any], opts: Any = None) -> Work:
        (parts,), (input,) = outputs, inputs
        return self._run(lambda stream, after: self._all_gather(parts, input, stream, after), [*parts, input], opts)

    def _all_gather(self, parts: List[Any], input: Any, stream: Any, after: After) -> None:
        if _alike([*parts, input]):
            self.group.all_gather(joined(parts, after), given(input), stream)
        else:
            self._exchange(self._to_each([input] * self.size()) + self._from_each(parts), stream, after)

    @_by_device
    def allgather_coalesced(self, outputs: List[List[Any]], inputs: List[Any], opts: Any = None) -> Work:
        def body(stream: Any, after: After) -> None:
            for i, input in enumerate(inputs):
                self._all_gather(outputs[i], input, stream, after)

        return self._run(body, [*(t for parts in outputs for t in parts), *inputs], opts)

    @_by_device
    def _reduce_scatter_base(self, output: Any, input: Any, opts: Any = None) -> Work:
        return self._run(lambda stream, after: self._reduce_scatter(output, input, opts, stream, after), [output, input], opts)

    reduce_scatter_single = _reduce_scatter_base

    def _reduce_scatter(self, output: Any, input: Any, opts: Any, stream: Any, after: After) -> None:
        self._reduce(self.group.reduce_scatter, output, input, _op(opts), stream, after)

    @_by_device
    def reduce_scatter_tensor_coalesced(self, outputs: List[Any], inputs: List[Any], opts: Any = None) -> Work:
        def body(stream: Any, after: After) -> None:
            for output, input in zip(outputs, inputs):
                self._reduce_scatter(output, input, opts, stream, after)

        return self._run(body, [*outputs, *inputs], opts)

    @_by_device
    def reduce_scatter(self, outputs: List[Any], inputs: List[List[Any]], opts: Any = None) -> Work:
        (output,), (parts,) = outputs, inputs

        def body(stream: Any, after: After) -> None:
            if _alike([output, *parts]):
                flat = torch.cat([p.reshape(-1) for p in parts])
                self._reduce_scatter(output, flat, opts, stream, after)
                return
            for root, part in enumerate(parts):
                self._reduce_to(root, output if self.rank() == root else part, part, opts, stream, after)

        return self._run(body, [output, *parts], opts)

    @_by_device
    def alltoall_base(self, output: Any, input: Any, output_splits: Sequence[int], input_splits: Sequence[int], opts: Any = None) -> Work:
        def body(stream: Any, after: After) -> None:
            y, x = written(output, after), given(input)
            if not output_splits and not input_splits:
                self.group.all_to_all(y, x, stream)
                return
            sends, receives = _counts(input, x, input_splits, self.size()), _counts(output, y, output_splits, self.size())
            self.group.all_to_all_v(y, x, sends, receives, stream)

        return self._run(body, [output, input], opts)

    all_to_all_single = alltoall_base

    @_by_device
    def alltoall(self, outputs: List[Any], inputs: List[Any], opts: Any = None) -> Work:
        messages = self._to_each(inputs) + self._from_each(outputs)
        return self._run(lambda s, after: self._exchange(messages, s, after), [*outputs, *inputs], opts)

    @_by_device
    def gather(self, outputs: List[List[Any]], inputs: List[Any], opts: Any = None) -> Work:
        (input,) = inputs
        parts = outputs[0] if self.rank() == opts.rootRank else []
        messages = [_Message(True, input, opts.rootRank), *self._from_each(parts)]
        return self._run(lambda s, after: self._exchange(messages, s, after), [*parts, input], opts)

    @_by_device
    def scatter(self, outputs: List[Any], inputs: List[List[Any]], opts: Any = None) -> Work:
        (output,) = outputs
        parts = inputs[0] if self.rank() == opts.rootRank else []
        messages = [*self._to_each(parts), _Message(False, output, opts.rootRank)]
        return self._run(lambda s, after: self._exchange(messages, s, after), [output, *parts], opts)

    def barrier(self, opts: Any = None) -> Work:
        try:
            if self._on_gpu:
                torch.cuda.current_stream(self._device).synchronize()
            else:
                self._launch_pending()
                self._stream.synchronize()
            self.group.barrier(self._timeout.total_seconds())
        except mscclgo.Error as error:
            raise known(error) from error
        return _done

    # Messages

    def _exchange(self, messages: Iterable[_Message], stream: Any, after: After) -> None:
        """Queues messages that go together."""
        with self.group.messages(stream) as together:
            for m in messages:
                if m.sends:
                    together.send(given(m.tensor), m.peer)
                else:
                    together.recv(written(m.tensor, after), m.peer)

    def _to_each(self, tensors: List[Any]) -> List[_Message]:
        return [_Message(True, tensor, rank) for rank, tensor in enumerate(tensors)]

    def _from_each(self, tensors: List[Any]) -> List[_Message]:
        return [_Message(False, tensor, rank) for rank, tensor in enumerate(tensors)]

    @_by_device
    def send(self, tensors: List[Any], peer: int, tag: int = 0) -> Optional[Work]:
        return self._message(_Message(True, tensors[0], peer))

    @_by_device
    def recv(self, tensors: List[Any], peer: int, tag: int = 0) -> Optional[Work]:
        return self._message(_Message(False, tensors[0], peer))

    @_by_device
    def recv_anysource(self, tensors: List[Any], tag: int = 0) -> Work:
        raise NotImplementedError("mscclgo: a receive names the rank that sends")

    def _message(self, message: _Message) -> Optional[Work]:
        if self._together is not None:
            self._together.append(message)
            return None
        if self._on_gpu:
            return self._messages([message])
        # Ranks may each begin to send before they begin to receive, so messages of the host go when somebody waits.
        if self._pending is None:
            self._pending = _Pending()
        pending = self._pending
        pending.messages.append(message)
        return Messages(lambda: self._launch_pending(pending), pending.future)

    def _messages(self, messages: List[_Message]) -> Work:
        return self._run(lambda s, after: self._exchange(messages, s, after), [m.tensor for m in messages])

    def _launch_pending(self, only: Optional[_Pending] = None) -> None:
        """Launches the messages that wait for that, if there are any, or if they are the only ones that are meant."""
        pending = self._pending
        if pending is None or only not in (None, pending):
            return
        self._pending = None
        after: After = []
        try:
            self._exchange(pending.messages, self._stream, after)
        except mscclgo.Error as error:
            pending.future.set_exception(known(error))
            return
        self._waiter.add(self._stream.record(), after, pending.future, [m.tensor for m in pending.messages])

    def _start_coalescing(self, device: Any = None) -> None:
        self._together = []

    def _end_coalescing(self, device: Any = None) -> Work:
        messages, self._together = self._together, None
        return self._messages(messages) if messages else _done


def _close(group: mscclgo.Group, rendezvous: Optional[mscclgo.Rendezvous], waiter: Optional[Waiter]) -> None:
    try:
        if waiter is not None:
            waiter.end()
        group.close()
    except mscclgo.Error:
        pass  # of peers that have failed, which calls have told
    finally:
        if rendezvous is not None:
            rendezvous.close()


def _queue(body: Body, after: After) -> None:
    """Queues a call on the current stream."""
    body(None, after)
    for put in after:
        put()


def _op(opts: Any) -> Any:
    return dist.ReduceOp.SUM if opts is None else opts.reduceOp


def _alike(tensors: List[Any]) -> bool:
    """Reports whether tensors have as many elements."""
    return all(t.numel() == tensors[0].numel() for t in tensors)


def _counts(tensor: Any, flat: Any, splits: Sequence[int], ranks: int) -> List[int]:
    """Returns the elements for each rank, of rows for each."""
    rows = tensor.shape[0]
    if not splits:
        if rows % ranks:
            raise ValueError(f"mscclgo: all_to_all: {rows} rows are no multiple of {ranks} ranks")
        splits = [rows // ranks] * ranks
    if len(splits) != ranks or sum(splits) != rows:
        raise ValueError(f"mscclgo: all_to_all: the splits are {list(splits)}, of {rows} rows for {ranks} ranks")
    return [s * (flat.numel() // max(rows, 1)) for s in splits]
