"""The all-reduce of vLLM and SGLang by this package: their class CustomAllreduce, with its methods.

vLLM finds register as a plugin (vllm.general_plugins), and uses it where the variable VLLM_PLUGINS allows it. For SGLang
call register before its workers begin.
"""

from __future__ import annotations

import importlib
from contextlib import contextmanager
from typing import Any, Iterator, List, Optional, Union

import torch
import torch.distributed as dist

import mscclgo

from ._elements import REDUCED
from ._meet import device as own_device
from ._meet import open_rendezvous

_PLACES = (
    "vllm.distributed.device_communicators.custom_all_reduce",
    "sglang.srt.distributed.device_communicators.custom_all_reduce",
)


class CustomAllreduce:
    """All-reduces of the ranks of a process group of any backend, which must reach objects of the host, such as Gloo.

    Where disabled is true, and where should_custom_ar says so, the engine takes another way. Calls of any size and in any
    memory may be captured once a call of that size was made; nothing needs to be registered."""

    def __init__(
        self, group: Any, device: Union[int, str, torch.device, None] = None, max_size: Optional[int] = None, **_options: Any
    ) -> None:
        rank, size = dist.get_rank(group), dist.get_world_size(group)
        self.group, self.max_size, self.world_size, self.rank = group, max_size, size, rank
        self.disabled = size == 1
        self._group: Optional[mscclgo.Group] = None
        if self.disabled:
            return
        where = torch.device(f"cuda:{device}" if isinstance(device, int) else device or own_device().replace("emu", "cpu"))
        self._rendezvous = open_rendezvous(size) if rank == 0 else None
        told: List[Any] = [self._rendezvous.id if self._rendezvous is not None else None]
        dist.broadcast_object_list(told, dist.get_global_rank(group, 0), group=group)
        self._group = mscclgo.connect(told[0], rank, size, device=str(where) if where.type == "cuda" else "emu")

    def should_custom_ar(self, inp: Any) -> bool:
        """Reports whether a tensor may be reduced here."""
        if self.disabled or inp.dtype not in REDUCED or not inp.is_contiguous():
            return False
        return self.max_size is None or inp.numel() * inp.element_size() <= self.max_size

    should_custom_allreduce = should_custom_ar

    def all_reduce(self, inp: Any, *, out: Any = None, registered: bool = False) -> Any:
        """Returns the sum of the ranks' tensors, in out if that is given."""
        out = torch.empty_like(inp) if out is None else out
        if self._group is None:
            out.copy_(inp)
        else:
            self._group.all_reduce(inp, out)
        return out

    def custom_all_reduce(self, input: Any) -> Optional[Any]:
        """Returns the sum of the ranks' tensors, or None for a tensor that should not be reduced here."""
        return self.all_reduce(input) if self.should_custom_ar(input) else None

    @contextmanager
    def capture(self) -> Iterator[None]:
        """A context for captures of graphs, which need nothing."""
        yield

    def register_graph_buffers(self) -> None:
        """Does nothing: calls in graphs may use any memory."""

    def close(self) -> None:
        """Leaves the group of the ranks."""
        group, self._group, self.disabled = self._group, None, True
        if group is not None:
            group.close()
            if self._rendezvous is not None:
                self._rendezvous.close()

    def __del__(self) -> None:
        if getattr(self, "_group", None) is not None:
            self.close()


def register() -> None:
    """Has vLLM and SGLang, where they are, use this class for theirs."""
    for place in _PLACES:
        try:
            importlib.import_module(place).CustomAllreduce = CustomAllreduce  # type: ignore[attr-defined]
        except ImportError:
            pass
