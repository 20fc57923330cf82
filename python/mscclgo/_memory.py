"""What a tensor of any kind is: where its elements are, of which type, and how many."""

from __future__ import annotations

import ctypes
import math
import operator
import sys
from typing import Any, Dict, NamedTuple, Optional, Set, Tuple

from . import _header
from ._errors import InvalidError, a_kind
from ._library import fast

# The types of elements: the number in the library, and the bytes of an element.
TYPES = {
    "float32": (_header.F32, 4),
    "float16": (_header.F16, 2),
    "bfloat16": (_header.BF16, 2),
    "float64": (_header.F64, 8),
    "int32": (_header.I32, 4),
    "int64": (_header.I64, 8),
    "uint8": (_header.U8, 1),
    "float8_e4m3fn": (_header.F8E4M3, 1),
    "float8_e5m2": (_header.F8E5M2, 1),
}

# Of the types that kernels take, the bits of _fast.h; it has bit 31 for all others.
BITS = {name: number for name, (number, _) in TYPES.items()}
BITS.update(bool=9, int8=10, int16=11, uint16=12, uint32=13, uint64=14)

CPU, CUDA, CUDA_HOST, CUDA_MANAGED = 1, 2, 3, 13  # of DLPack
OWN = 0  # of this package


class Memory(NamedTuple):
    """The elements of a tensor, which are contiguous."""

    address: int
    elements: int
    dtype: str
    kind: int  # CPU, CUDA or OWN
    number: Optional[int]  # of the device, where it is known
    writable: bool
    item: int  # bytes of an element

    @property
    def bytes(self) -> int:
        return self.elements * self.item


def of(tensor: Any) -> Memory:
    """Returns the memory of a tensor: of this package, NumPy, PyTorch, or any by DLPack or
    __cuda_array_interface__.

    Raises InvalidError for a tensor that is not contiguous or was freed, and for what is no
    tensor.
    """
    own = getattr(tensor, "_mscclgo_memory", None)
    if own is not None:
        memory: Memory = own()
        return memory
    torch = sys.modules.get("torch")
    if torch is not None and isinstance(tensor, torch.Tensor):
        return _of_torch(tensor)
    try:
        interface = getattr(tensor, "__cuda_array_interface__", None)
    except Exception as error:  # a property that refuses, such as a tensor's that has gradients
        raise _no_memory(error) from error
    if interface is not None:
        if fast is not None and type(tensor) not in _met:
            _met.add(type(tensor))
            fast.learn(type(tensor), None)
        return _of_interface(interface, CUDA, None)
    masked = sys.modules.get("numpy.ma")
    if masked is not None and isinstance(tensor, masked.MaskedArray):
        raise InvalidError("mscclgo: the tensor has a mask; pass its data, or filled(...)")
    try:
        interface = getattr(tensor, "__array_interface__", None)
    except Exception as error:
        raise _no_memory(error) from error
    if interface is not None:
        if is_scalar(tensor):  # its interface is of a copy, which is gone
            raise InvalidError(f"mscclgo: {a_kind(tensor)} is a number and not a tensor; put it into an array")
        return _of_interface(interface, CPU, getattr(getattr(tensor, "dtype", None), "name", None))
    if hasattr(tensor, "__dlpack__"):
        return _of_dlpack(tensor)
    raise InvalidError(f"mscclgo: {a_kind(tensor)} is not a tensor: it has neither __dlpack__ nor __cuda_array_interface__")


def _no_memory(error: Exception) -> InvalidError:
    return InvalidError(f"mscclgo: the tensor does not give its memory: {error}")


def _not_contiguous() -> InvalidError:
    return InvalidError("mscclgo: the tensor is not contiguous; pass a contiguous copy")


# By PyTorch's types and devices, whose attributes take longer to ask.
_torch_names: Dict[Any, str] = {}
_torch_kinds: Dict[Any, Tuple[int, Optional[int]]] = {}


def _of_torch(tensor: Any) -> Memory:
    device, dtype = tensor.device, tensor.dtype
    kind = _torch_kinds.get(device)
    if fast is not None and type(tensor) not in _met:
        _meet(type(tensor))
    if kind is None:
        if device.type not in ("cpu", "cuda"):
            raise InvalidError(f"mscclgo: the tensor is on {device}, and this package knows cpu and cuda")
        kind = _torch_kinds[device] = (CUDA if device.type == "cuda" else CPU, device.index)
    name = _torch_names.get(dtype)
    if name is None:
        name = _torch_names[dtype] = str(dtype).partition(".")[2]
    if tensor.is_conj():  # only PyTorch's own kernels take these for what they stand for
        raise InvalidError("mscclgo: the tensor's elements are yet to be conjugated; pass tensor.resolve_conj()")
    if tensor.is_neg():
        raise InvalidError("mscclgo: the tensor's elements are yet to be negated; pass tensor.resolve_neg()")
    if not tensor.is_contiguous():
        raise _not_contiguous()
    address, count = tensor.data_ptr(), tensor.numel()
    # A view's address is its offset, where there is no memory.
    if count and (not address or (tensor.storage_offset() and not tensor.untyped_storage().data_ptr())):
        raise InvalidError("mscclgo: the tensor's memory was freed, or it has none")
    return Memory(address, count, name, kind[0], kind[1], True, tensor.element_size())


# The types of tensors that _fast was told of, if it can take them.
_met: Set[type] = set()


def _meet(of: type) -> None:
    """Tells _fast of a type of PyTorch's tensors. Subclasses of other code may mean something else by
    their elements."""
    import torch

    _met.add(of)
    exchange = getattr(of, "__dlpack_c_exchange_api__", None)  # from PyTorch 2.10 on
    if exchange is not None and of in (torch.Tensor, torch.nn.Parameter):
        fast.learn(of, exchange)


_KINDS = {"f": "float", "i": "int", "u": "uint", "b": "bool", "c": "complex"}


def is_scalar(argument: Any) -> bool:
    """Whether an argument is a scalar of NumPy, which are of a type and a size."""
    return (
        hasattr(argument, "tobytes")
        and hasattr(argument, "dtype")
        and getattr(argument, "shape", None) == ()
        and hasattr(argument, "item")
        and (not hasattr(argument, "__setitem__") or type(argument).__name__ in ("void", "record"))
    )


def _of_interface(interface: Any, kind: int, name: Optional[str]) -> Memory:
    """Of the dictionary of NumPy's or CUDA's array interface, which may be of any code."""
    try:
        return _read_interface(interface, kind, name)
    except InvalidError:
        raise
    except Exception as error:
        raise InvalidError(f"mscclgo: the tensor's array interface is wrong: {type(error).__name__}: {error}") from error


def _read_interface(interface: Any, kind: int, name: Optional[str]) -> Memory:
    typestr, shape = interface["typestr"], tuple(operator.index(n) for n in interface["shape"])
    if interface.get("mask") is not None:
        raise InvalidError("mscclgo: the tensor has a mask")
    if typestr[1] in "OUMmt":
        raise InvalidError(f"mscclgo: the tensor has elements of {name or typestr}, which are no numbers")
    item = int(typestr[2:])
    if typestr[0] == ">" and item > 1:
        raise InvalidError("mscclgo: the tensor's elements are in the other byte order")
    if name is None:
        name = _sized(_KINDS.get(typestr[1], typestr[1]), 8 * item)
    if not _contiguous(shape, interface.get("strides"), item):
        raise _not_contiguous()
    if interface.get("data") is None:
        raise InvalidError("mscclgo: the tensor does not tell where its elements are")
    if not isinstance(interface["data"], tuple):  # such as bytes of an image
        raise InvalidError("mscclgo: the tensor does not tell where its elements are; pass a copy, as of numpy.array")
    address, read_only = interface["data"]
    return Memory(operator.index(address), math.prod(shape), name, kind, None, not read_only, item)


def _sized(name: str, bits: int) -> str:
    """Returns the name of a type of elements of so many bits, which bool's name does not tell."""
    return name if name == "bool" and bits == 8 else f"{name}{bits}"


def _contiguous(shape: Tuple[int, ...], strides: Optional[Tuple[int, ...]], item: int) -> bool:
    if strides is None or math.prod(shape) == 0:
        return True
    expected = item
    for n, stride in zip(reversed(shape), reversed(strides)):
        if n != 1 and stride != expected:
            return False
        expected *= n
    return True


class _Tensor(ctypes.Structure):  # DLTensor
    _fields_ = [
        ("data", ctypes.c_void_p),
        ("device_type", ctypes.c_int32),
        ("device_id", ctypes.c_int32),
        ("ndim", ctypes.c_int32),
        ("code", ctypes.c_uint8),
        ("bits", ctypes.c_uint8),
        ("lanes", ctypes.c_uint16),
        ("shape", ctypes.POINTER(ctypes.c_int64)),
        ("strides", ctypes.POINTER(ctypes.c_int64)),
        ("byte_offset", ctypes.c_uint64),
    ]


_CODES = {0: "int", 1: "uint", 2: "float", 4: "bfloat", 5: "complex", 6: "bool"}
_EIGHT_BITS = {10: "float8_e4m3fn", 12: "float8_e5m2"}


def dlpack_type(dtype: str) -> Tuple[int, int]:
    """Returns the code and the bits of a type of elements in DLPack."""
    bits = 8 * TYPES[dtype][1]
    for names, name in ((_EIGHT_BITS, dtype), (_CODES, dtype.rstrip("0123456789"))):
        for code, of in names.items():
            if of == name:
                return code, bits
    raise KeyError(dtype)


_pointer = ctypes.pythonapi.PyCapsule_GetPointer
_pointer.restype = ctypes.c_void_p
_pointer.argtypes = [ctypes.py_object, ctypes.c_char_p]


def _of_dlpack(tensor: Any) -> Memory:
    try:
        kind, number = tensor.__dlpack_device__()
        # The work is put behind the work of the stream which the caller names: no stream waits.
        capsule = tensor.__dlpack__(stream=-1) if kind in (CUDA, CUDA_MANAGED) else tensor.__dlpack__()
        # The capsule's destructor gives the tensor back, when this function returns: the caller
        # holds the object. One that was used has another name.
        t = _Tensor.from_address(_pointer(capsule, b"dltensor"))
    except Exception as error:
        raise _no_memory(error) from error
    if t.lanes != 1 or t.bits % 8:
        raise InvalidError("mscclgo: the tensor's elements are vectors, or parts of a byte")
    shape = tuple(t.shape[i] for i in range(t.ndim))
    item = t.bits // 8
    if t.strides and not _contiguous(shape, tuple(t.strides[i] * item for i in range(t.ndim)), item):
        raise _not_contiguous()
    name = _EIGHT_BITS.get(t.code) or _sized(_CODES.get(t.code, "type %d of " % t.code), t.bits)
    if kind in (CUDA, CUDA_MANAGED):
        return Memory((t.data or 0) + t.byte_offset, math.prod(shape), name, CUDA, number, True, item)
    if kind in (CPU, CUDA_HOST):
        return Memory((t.data or 0) + t.byte_offset, math.prod(shape), name, CPU, None, True, item)
    raise InvalidError(f"mscclgo: the tensor is on a device of DLPack's type {kind}, and this package knows CPUs and CUDA")
