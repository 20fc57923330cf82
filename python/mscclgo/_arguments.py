"""The arguments of kernels: what each parameter takes, and its bytes."""

from __future__ import annotations

import struct
from types import MethodType
from typing import TYPE_CHECKING, Any, Callable, Dict, FrozenSet, List, NoReturn, Optional

from ._array import Array, Pointer
from ._channels import HANDLES, SETS, PeerMemory, Pipes, _Channels
from ._errors import InvalidError, a_kind, article
from ._memory import BITS, is_scalar
from ._library import KIND_BOOL, KIND_ENUM, KIND_FLOAT, KIND_INT, KIND_POINTER, KIND_STRUCT, KIND_UINT, ParameterType

if TYPE_CHECKING:
    from ._group import Group

# The codes of package struct, by size.
_SIGNED = {1: "b", 2: "h", 4: "i", 8: "q"}
_UNSIGNED = {1: "B", 2: "H", 4: "I", 8: "Q"}
_FLOATS = {2: "e", 4: "f", 8: "d"}

# The types of elements that CUDA's structs stand for, by their names.
_STRUCTS = {
    "__half": "float16",
    "half": "float16",
    "__nv_bfloat16": "bfloat16",
    "nv_bfloat16": "bfloat16",
    "__nv_fp8_e4m3": "float8_e4m3fn",
    "__nv_fp8_e5m2": "float8_e5m2",
}

# What _fast takes of a parameter without asking its packer; see _fast_kernel.c.
_ASK, _QUICK_SIGNED, _QUICK_UNSIGNED, _QUICK_FLOAT, _QUICK_BOOL, _QUICK_POINTER, _QUICK_STRUCT = range(7)
_CHANNEL_BITS = {"MemoryChannelHandle": 29, "PortChannelHandle": 30}
_READ_ONLY_BIT = 28

# Pointers to these take elements of any type: they are bytes.
_BYTES = ("char", "unsigned char", "uint8_t")


class Packer:
    """Packs the argument of one parameter of a kernel.

    code is what package struct names its value by. pack converts an argument to such a value, or raises
    InvalidError, and adds what must live until the kernel is done to the list that it is given. An
    argument whose type is plain is such a value as it is, if struct packs it.
    """

    def __init__(self, group: Group, kernel: str, number: int, described: ParameterType, to: str) -> None:
        self._group = group
        self._to = to  # the name of what a pointer points to
        self._size = size = described.bytes
        self._type = described.type.decode("utf-8", "replace")
        name = described.name.decode("utf-8", "replace") or str(number)
        is_what = f"is {article(self._type)}" if self._type else f"has {size} bytes"
        self._refusal = f"mscclgo: launch {kernel}: parameter {name} {is_what}, and "

        kind = described.kind
        self.plain: Any = None
        self._types = 0  # of a pointer
        self._how: Callable[[Packer, Any, List[Any]], Any]
        if kind in (KIND_INT, KIND_UINT, KIND_ENUM) and size in _SIGNED:
            self._how = Packer._integer
            self.code = _SIGNED[size] if kind == KIND_INT else _UNSIGNED[size]
            self._least = 0 if kind == KIND_UINT else -(1 << (8 * size - 1))
            self._most = (1 << (8 * size - (kind == KIND_INT))) - 1
            if kind != KIND_ENUM:  # of which negative numbers are packed as others
                self.plain = int
        elif kind == KIND_FLOAT and size in _FLOATS:
            self.code, self._how, self.plain = _FLOATS[size], Packer._float, float
        elif kind == KIND_BOOL and size == 1:
            self.code, self._how, self.plain = "?", Packer._bool, bool
        elif kind == KIND_POINTER and size == 8:
            self.code, self._how = "Q", Packer._pointer
            self._elements = _elements(described, to)
            self._may_write = _may_write(self._type, to)
            self._types = self._quick_types()
        else:
            self.code, self._how = f"{size}s", Packer._struct if kind == KIND_STRUCT else Packer._unknown

    def _quick_types(self) -> int:
        """The elements and the channels' handles that a pointer takes, and whether read-only ones too, for _fast:
        a set of bits."""
        elements, read_only = self._elements, 0 if self._may_write else 1 << _READ_ONLY_BIT
        if elements is not None:
            return sum(1 << bit for name, bit in BITS.items() if name in elements) | read_only
        handles = sum(1 << bit for name, bit in _CHANNEL_BITS.items() if self._to not in HANDLES or self._to == name)
        return (1 << 32) - 1 & ~sum(1 << bit for bit in (*_CHANNEL_BITS.values(), _READ_ONLY_BIT)) | handles | read_only

    def quick(self, offset: int) -> Any:
        """Returns what _fast.Kernel takes of the parameter at a place of the block."""
        quick: Dict[Any, int] = {
            Packer._integer: (_QUICK_SIGNED if self.code in _SIGNED.values() else _QUICK_UNSIGNED) if self.plain else _ASK,
            Packer._float: _QUICK_FLOAT if self._size in (4, 8) else _ASK,
            Packer._bool: _QUICK_BOOL,
            Packer._pointer: _QUICK_POINTER,
            Packer._struct: _QUICK_STRUCT,
        }
        return offset, self._size, quick.get(self._how, _ASK), self._types, self._whole_bytes

    def _whole_bytes(self, argument: Any, held: List[Any]) -> bytes:
        """Returns an argument as it is in the block, or raises as pack does."""
        return struct.pack("=" + self.code, self.pack(argument, held))

    @property
    def pack(self) -> Callable[[Any, List[Any]], Any]:
        return MethodType(self._how, self)

    def _refuse(self, why: str) -> NoReturn:
        raise InvalidError(self._refusal + why)

    def _refuse_kind(self, argument: Any, takes: str) -> NoReturn:
        what = f" ({_value(argument)})" if isinstance(argument, (int, float)) else ""
        self._refuse(f"takes {takes}, not {a_kind(argument)}{what}")

    def _refuse_range(self, argument: Any) -> NoReturn:
        self._refuse(f"{_value(argument)} is out of its range")

    def _refuse_size(self, argument: Any, size: int) -> NoReturn:
        self._refuse(f"{a_kind(argument)} has {size} bytes, not {self._size}")

    def _integer(self, argument: Any, held: List[Any]) -> int:
        if isinstance(argument, int):
            number = int(argument)
        elif is_scalar(argument):
            kind, size = argument.dtype.kind, argument.dtype.itemsize
            if kind not in "biu":
                self._refuse_kind(argument, "an int")
            if kind != "b" and size != self._size:
                self._refuse_size(argument, size)
            number = int(argument)
        else:
            self._refuse_kind(argument, "an int")
        if not self._least <= number <= self._most:
            self._refuse_range(number)
        return number if self.plain else number % (1 << (8 * self._size))

    def _float(self, argument: Any, held: List[Any]) -> float:
        if is_scalar(argument):  # a float64 of NumPy is a float of Python too
            if argument.dtype.kind != "f":
                self._refuse_kind(argument, "a float")
            if argument.dtype.itemsize != self._size:
                self._refuse_size(argument, argument.dtype.itemsize)
            return float(argument)
        if isinstance(argument, bool) or not isinstance(argument, (int, float)):
            self._refuse_kind(argument, "a float")
        try:
            number = float(argument)
            (packed,) = struct.unpack("=" + self.code, struct.pack("=" + self.code, number))
        except OverflowError:
            self._refuse_range(argument)
        if isinstance(argument, int) and packed != argument:
            self._refuse(f"no such number is exactly {_value(argument)}: pass float(n), which is rounded")
        return number

    def _bool(self, argument: Any, held: List[Any]) -> bool:
        if isinstance(argument, int) and argument in (0, 1) or is_scalar(argument) and argument.dtype.kind == "b":
            return bool(argument)
        self._refuse_kind(argument, "a bool")

    def _pointer(self, argument: Any, held: List[Any]) -> int:
        elements = self._elements
        if type(argument) is Array and (elements is None or argument.dtype in elements) and argument.group._device == self._group._device:
            address = argument._address
            if address:  # it is not closed
                held.append(argument)
                return address
        if argument is None:
            return 0
        if isinstance(argument, Pointer):
            if not 0 <= argument < 1 << 64:
                self._refuse_range(argument)
            self._check_handle(argument.to)
            return argument
        if isinstance(argument, (int, float, bytes, bytearray)) or is_scalar(argument):
            self._refuse_kind(argument, "a tensor, channels, None, or mscclgo.Pointer(address)")
        if isinstance(argument, _Channels):
            self._check_handle(argument._struct)
            return self._address(argument, held)
        try:
            address, memory = self._group.address(argument, held, written=False)
        except InvalidError as error:
            self._refuse(_text(error))
        if elements is not None and memory.dtype not in elements:
            self._refuse(f"the tensor has elements of {memory.dtype}")
        if self._may_write and not memory.writable:
            self._refuse("the tensor is read-only, which only a pointer to const takes")
        return address

    def _address(self, channels: _Channels, held: List[Any]) -> int:
        try:
            address = channels.pointer
        except InvalidError as error:
            self._refuse(_text(error))
        held.append(channels)
        return address

    def _check_handle(self, handle: Optional[str]) -> None:
        """Refuses an address of handles of channels where the parameter points to something else."""
        if handle and (self._elements is not None or self._to in HANDLES and self._to != handle):
            self._refuse(f"the channels' handles are of the type {handle}")

    def _struct(self, argument: Any, held: List[Any]) -> bytes:
        packed = self._bytes(argument, held)
        if packed is None:
            element = _STRUCTS.get(self._type)
            if not is_scalar(argument) or element not in (None, argument.dtype.name):
                what = f"a scalar of NumPy of type {element}, or" if element else "an object of this package that stands for it, or"
                self._refuse_kind(argument, f"{what} its {self._size} bytes")
            packed = bytes(argument.tobytes())
        return self._whole(argument, packed)

    def _bytes(self, argument: Any, held: List[Any]) -> Optional[bytes]:
        """Returns the bytes of an argument that stands for a struct, or None if it does not."""
        if isinstance(argument, (bytes, bytearray)):
            return bytes(argument)
        if not hasattr(argument, "handle_bytes"):
            return None
        if isinstance(argument, _Channels):
            kind = self._type.rpartition("::")[2]
            if kind in SETS and kind != argument._set:
                self._refuse(f"the channels are a mscclgo::{argument._set}")
        if isinstance(argument, (PeerMemory, Pipes, _Channels)):  # a group or a proxy lives as long
            held.append(argument)
        try:
            return bytes(argument.handle_bytes())
        except InvalidError as error:
            self._refuse(_text(error))

    def _whole(self, argument: Any, packed: bytes) -> bytes:
        if len(packed) != self._size:
            self._refuse_size(argument, len(packed))
        return packed

    def _unknown(self, argument: Any, held: List[Any]) -> bytes:
        """Of a parameter of which only the size is known."""
        size = self._size
        packed = None if isinstance(argument, _Channels) and size == 8 else self._bytes(argument, held)
        if packed is None and is_scalar(argument):
            packed = bytes(argument.tobytes())
        if packed is not None:
            return self._whole(argument, packed)
        try:
            if isinstance(argument, bool):
                return self._whole(argument, struct.pack("=?", argument))
            if isinstance(argument, int):
                if size not in _SIGNED:
                    self._refuse(f"takes no int ({_value(argument)})")
                return struct.pack("=" + (_SIGNED if argument < 0 else _UNSIGNED)[size], argument)
            if isinstance(argument, float):
                if size not in (4, 8):
                    self._refuse(f"takes no float ({argument})")
                return struct.pack("=" + _FLOATS[size], argument)
        except (struct.error, OverflowError):
            self._refuse_range(argument)
        if isinstance(argument, _Channels):
            return self._whole(argument, struct.pack("=Q", self._address(argument, held)))
        if argument is None:
            return self._whole(argument, bytes(8))
        try:
            address = self._group.address(argument, held, written=False)[0]
        except InvalidError as error:
            self._refuse(_text(error))
        return self._whole(argument, struct.pack("=Q", address))


def _may_write(type: str, to: str) -> bool:
    """Whether a pointer of a type in the source is one to what is not const. to is the name of the pointee without
    const, and of no typedef: where the type's name is another, or no pointer's, const may be in a
    typedef, and the answer is no."""
    pointee = type[:-1].replace("volatile ", "").replace(" volatile", "")
    known = pointee in (to, "void") or _STRUCTS.get(pointee) == _STRUCTS.get(to, to)
    return type.endswith("*") and known and not pointee.endswith(" const")


def _elements(described: ParameterType, name: str) -> Optional[FrozenSet[str]]:
    """Returns the types of elements that a pointer to what has a name takes, or None for any. The signs of integers do
    not matter, since few frameworks have unsigned ones."""
    kind, size = described.pointee, described.pointee_bytes
    if kind == KIND_BOOL:
        return frozenset(("bool", "uint8"))
    if kind in (KIND_INT, KIND_UINT) and name not in _BYTES:
        return frozenset((f"int{8 * size}", f"uint{8 * size}"))
    if kind == KIND_FLOAT:
        return frozenset((f"float{8 * size}",))
    if name in _STRUCTS:
        return frozenset((_STRUCTS[name],))
    return None


def _value(number: Any) -> str:
    """Returns a number for an error. Python prints no int of thousands of digits."""
    return f"a number of {number.bit_length()} bits" if isinstance(number, int) and number.bit_length() > 128 else str(number)


def _text(error: Exception) -> str:
    """Returns the text of an error of this package, for one that has it at its end."""
    text = str(error)
    return text[len("mscclgo: ") :] if text.startswith("mscclgo: ") else text
