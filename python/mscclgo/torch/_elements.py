"""Tensors as the library takes them: contiguous, and of types that it knows."""

from __future__ import annotations

from typing import Any, List, Optional, Tuple

import torch
import torch.distributed as dist

from ._work import After

REDUCED = {torch.float32, torch.float16, torch.bfloat16, torch.float64, torch.int32, torch.int64, torch.uint8}
for _name in ("float8_e4m3fn", "float8_e5m2"):
    if hasattr(torch, _name):
        REDUCED.add(getattr(torch, _name))

_Kind = dist.ReduceOp.RedOpType
_NAMES = {_Kind.SUM: "sum", _Kind.AVG: "avg", _Kind.PRODUCT: "prod", _Kind.MIN: "min", _Kind.MAX: "max", _Kind.PREMUL_SUM: "sum"}
_OF_BOOL = {"sum": "max", "prod": "min", "max": "max", "min": "min"}  # as PyTorch's NCCL backend has them
_WIDER = {torch.int8: torch.int32, torch.int16: torch.int32}


def moved(tensor: Any) -> Any:
    """Returns a contiguous tensor as elements that may be moved."""
    if tensor.dtype in REDUCED:
        return tensor
    if tensor.is_complex():
        tensor = torch.view_as_real(tensor)
    return tensor.reshape(-1).view(torch.uint8)


def given(tensor: Any) -> Any:
    """Returns an input as elements that may be moved."""
    return moved(tensor.resolve_conj().resolve_neg().contiguous())


def written(tensor: Any, after: After) -> Any:
    """Returns an output as elements that may be moved. after gets what puts these in their place."""
    if tensor.is_contiguous():
        return moved(tensor)
    flat = tensor.contiguous()
    after.append(lambda: tensor.copy_(flat))
    return moved(flat)


def joined(tensors: List[Any], after: After) -> Any:
    """Returns one output for outputs of one size: their own memory if they follow each other there. Else after gets what
    puts its elements in their places."""
    first = tensors[0]
    step = first.numel() * first.element_size()
    if all(t.is_contiguous() and t.data_ptr() == first.data_ptr() + i * step for i, t in enumerate(tensors)):
        if first.storage_offset() + len(tensors) * first.numel() <= first.untyped_storage().nbytes() // first.element_size():
            return moved(first.as_strided((len(tensors) * first.numel(),), (1,)))
    flat = torch.empty(len(tensors) * first.numel(), dtype=first.dtype, device=first.device)

    def scatter() -> None:
        for tensor, part in zip(tensors, flat.chunk(len(tensors))):
            tensor.copy_(part.view(tensor.shape))

    after.append(scatter)
    return moved(flat)


class Operation:
    """What a reduction does, of PyTorch's ReduceOp."""

    def __init__(self, op: Any) -> None:
        kind = getattr(op, "op", op)
        if kind not in _NAMES:
            raise ValueError(f"mscclgo: tensors are not reduced by {kind.name}; SUM, AVG, PRODUCT, MIN, MAX and PREMUL_SUM are there")
        self.name = _NAMES[kind]
        self.factor: Optional[Any] = op.__getstate__()[1] if kind == _Kind.PREMUL_SUM else None

    def of(self, tensor: Any, after: After, out: bool) -> Tuple[Any, str]:
        """Returns a tensor as elements that may be reduced, and the operation's name for them. after gets what puts the
        results of an output in their place."""
        name, as_given = self.name, tensor
        if tensor.dtype == torch.bool:
            if name not in _OF_BOOL:
                raise ValueError("mscclgo: bools have no average")
            name, tensor = _OF_BOOL[name], tensor.view(torch.uint8)
        elif tensor.is_complex():
            if name not in ("sum", "avg"):
                raise ValueError(f"mscclgo: complex numbers are not reduced by {name}")
            tensor = torch.view_as_real(tensor.resolve_conj())
        elif tensor.dtype in _WIDER:
            tensor = tensor.to(_WIDER[tensor.dtype])
        elif tensor.dtype not in REDUCED:
            raise ValueError(f"mscclgo: elements of {tensor.dtype} are not reduced")
        tensor = tensor.contiguous()
        if out and tensor.data_ptr() != as_given.data_ptr():
            back = tensor
            after.append(lambda: as_given.copy_(torch.view_as_complex(back) if as_given.is_complex() else back))
        return tensor, name
