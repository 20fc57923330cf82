"""Operators of PyTorch, torch.ops.mscclgo, which torch.compile traces through. A group is the name of a process group of
the backend mscclgo, ProcessGroup.group_name. They run on the current stream.

    torch.ops.mscclgo.all_reduce(x, "sum", name)
    torch.ops.mscclgo.all_reduce_(x, "sum", name)          # in place
    torch.ops.mscclgo.all_gather(x, name)                  # along the first dimension
    torch.ops.mscclgo.reduce_scatter(x, "sum", name)       # likewise
    torch.ops.mscclgo.all_to_all(x, name)                  # likewise
"""

from __future__ import annotations

from typing import Any, Callable, List, Tuple

import torch
from torch.distributed.distributed_c10d import _resolve_process_group
from torch.library import Library

from ._process_group import ProcessGroup

_library = Library("mscclgo", "DEF")


def _group(name: str) -> ProcessGroup:
    group = _resolve_process_group(name)
    if not isinstance(group, ProcessGroup):
        raise ValueError(f"mscclgo: the group {name} is not of the backend mscclgo")
    return group


def _size(name: str) -> int:
    return int(_resolve_process_group(name).size())


def _define(schema: str, run: Callable[..., Any], fake: Callable[..., Any]) -> None:
    name = schema.partition("(")[0]
    _library.define(schema)
    _library.impl(name, run, "CompositeExplicitAutograd")
    torch.library.register_fake(f"mscclgo::{name}", fake)


def _all_reduce_(x: Any, op: str, group: str) -> None:
    _group(group).now(lambda of: of.all_reduce(x, op=op), [x])
    if not x.is_inference():
        torch.autograd.graph.increment_version(x)  # so that autograd refuses what it has kept of x


def _all_reduce(x: Any, op: str, group: str) -> Any:
    x = x.contiguous()
    y = torch.empty_like(x)
    _group(group).now(lambda of: of.all_reduce(x, y, op), [x, y])
    return y


def _parts(x: Any, ranks: int) -> Tuple[int, List[int]]:
    """Returns the rows of a rank's part, and the shape of a row."""
    if x.dim() == 0 or x.shape[0] % ranks:
        raise ValueError(f"mscclgo: a tensor of shape {tuple(x.shape)} is not divided among {ranks} ranks along its first dimension")
    return x.shape[0] // ranks, list(x.shape[1:])


def _all_gather(x: Any, group: str) -> Any:
    x = x.contiguous()
    y = _all_gather_fake(x, group)
    _group(group).now(lambda of: of.all_gather(y, x), [x, y])
    return y


def _all_gather_fake(x: Any, group: str) -> Any:
    if x.dim() == 0:
        raise ValueError("mscclgo: a tensor without dimensions is not gathered along its first")
    return x.new_empty([x.shape[0] * _size(group), *x.shape[1:]])


def _reduce_scatter(x: Any, op: str, group: str) -> Any:
    x = x.contiguous()
    y = _reduce_scatter_fake(x, op, group)
    _group(group).now(lambda of: of.reduce_scatter(y, x, op), [x, y])
    return y


def _reduce_scatter_fake(x: Any, op: str, group: str) -> Any:
    rows, row = _parts(x, _size(group))
    return x.new_empty([rows, *row])


def _all_to_all(x: Any, group: str) -> Any:
    _parts(x, _size(group))
    x = x.contiguous()
    y = torch.empty_like(x)
    _group(group).now(lambda of: of.all_to_all(y, x), [x, y])
    return y


_define("all_reduce_(Tensor(a!) x, str op, str group) -> ()", _all_reduce_, lambda x, op, group: None)
_define(
    "all_reduce(Tensor x, str op, str group) -> Tensor",
    _all_reduce,
    lambda x, op, group: torch.empty_like(x, memory_format=torch.contiguous_format),
)
_define("all_gather(Tensor x, str group) -> Tensor", _all_gather, _all_gather_fake)
_define("reduce_scatter(Tensor x, str op, str group) -> Tensor", _reduce_scatter, _reduce_scatter_fake)
_define(
    "all_to_all(Tensor x, str group) -> Tensor", _all_to_all, lambda x, group: torch.empty_like(x, memory_format=torch.contiguous_format)
)
