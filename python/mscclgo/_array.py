"""Arrays of the library: device memory that peers may access."""

from __future__ import annotations

import math
import struct
from typing import TYPE_CHECKING, Any, Optional, Sequence, Union

from . import _memory
from ._errors import InvalidError, UnsupportedError
from ._library import Owner, call, fast, integer, integers, library, make
from ._stream import with_owner

if TYPE_CHECKING:
    from ._group import Group

_TYPESTR = {"float32": "<f4", "float16": "<f2", "float64": "<f8", "int32": "<i4", "int64": "<i8", "uint8": "|u1"}

# array_place of _fast.c: the device, the address, the elements and their type.
_PLACE = struct.Struct("=QQQi")


class Pointer(int):
    """An address for kernels, which they take for any pointer: mscclgo.Pointer(array.pointer + 16). The
    caller has what is there live until the kernels are done."""

    to: Optional[str] = None  # the type of what is there, where the package knows it


class Array(Owner):
    """Device memory of the group, which peers may access by channels. Group.empty, Group.array and
    Group.wrap make one.

    Frameworks see it as one of their tensors: torch.from_dlpack(array) with elements of any type,
    torch.as_tensor(array) and cupy.asarray(array) on a GPU, numpy.asarray(array) on an emulated
    device. The memory is freed with the object, so such a view must hold it, as these do.
    """

    def __init__(self, group: Group, shape: Union[int, Sequence[int]], dtype: Any, of: Optional[_memory.Memory] = None, owner: Any = None) -> None:
        """Allocates the memory, or wraps memory of a tensor of other code, which the array holds."""
        self.group = group
        self._owner = owner
        self.shape = integers("an extent of an array", shape, 0, (1 << 63) - 1)
        self.dtype = _name(dtype)
        self.size = math.prod(self.shape)
        self.nbytes = self.size * _memory.TYPES[self.dtype][1]
        bytes = integer("the size of an array in bytes", max(self.nbytes, 1), 1, (1 << 64) - 1)
        if of is None:
            self._handle = make(library.mscclgo_buffer_create, group._device, bytes)
        else:
            self._handle = make(library.mscclgo_buffer_wrap, group._device, of.address, bytes)
        self._finalizer = with_owner(self, library.mscclgo_buffer_destroy, self._handle)
        self._address = make(library.mscclgo_buffer_pointer, self._handle)  # 0 once it is closed
        item = _memory.TYPES[self.dtype][1]
        self._memory = _memory.Memory(self._address, self.size, self.dtype, _memory.OWN, None, True, item)
        # A call on memory of the host may have to wait, which is for the code in Python.
        self._place = b"" if of is not None and group._host_memory else _PLACE.pack(group._device, self._address, self.size, _memory.TYPES[self.dtype][0])
        group._arrays.add(self)

    def close(self) -> None:
        """Frees the memory, or lets go of the tensor that was wrapped. Kernels and peers that use it
        must be done."""
        owner = self._owner  # until the library has let go of its memory
        if self._forget():
            call(library.mscclgo_buffer_destroy, self._handle)
        del owner

    def _forget(self) -> bool:
        """Ends the use of the memory, which is freed alone or with the group. Returns whether it was in use."""
        self._address, self._place, self._owner = 0, b"", None
        return self._finalizer.detach() is not None

    @property
    def pointer(self) -> Pointer:
        """The address for kernels."""
        self._open()
        return Pointer(self._address)

    def _open(self) -> None:
        if not self._address:
            raise InvalidError("mscclgo: the array was closed, or its group; its memory is freed")

    def _mscclgo_memory(self) -> _memory.Memory:
        self._open()
        return self._memory

    def copy_from(self, source: Any) -> "Array":
        """Copies the elements of a tensor in the host's memory, such as a NumPy array, and returns
        the array. The copy is not ordered with streams: synchronize them first."""
        memory = self._host(source)
        self._open()
        call(library.mscclgo_copy_in, self._handle, 0, memory.address, self.nbytes)
        return self

    def copy_to(self, target: Any) -> None:
        """Copies the elements to a tensor in the host's memory, likewise."""
        memory = self._host(target)
        if not memory.writable:
            raise InvalidError("mscclgo: the tensor is read-only")
        self._open()
        call(library.mscclgo_copy_out, memory.address, self._handle, 0, self.nbytes)

    def _host(self, tensor: Any) -> _memory.Memory:
        memory = _memory.of(tensor)
        if memory.kind != _memory.CPU:
            raise InvalidError("mscclgo: the tensor is not in the host's memory")
        if memory.bytes != self.nbytes or memory.dtype != self.dtype:
            raise InvalidError(f"mscclgo: the tensor has {memory.elements} {memory.dtype}, and the array {self.size} {self.dtype}")
        return memory

    def numpy(self) -> Any:
        """Returns a copy of the elements as a NumPy array. Synchronize the streams first. NumPy has
        bfloat16 and the types of 8 bits where the package ml_dtypes is."""
        import numpy

        if "bfloat16" in self.dtype or "float8" in self.dtype:
            try:
                import ml_dtypes  # which has NumPy know the names
            except ImportError:
                raise UnsupportedError(f"mscclgo: NumPy has no {self.dtype} without the package ml_dtypes: pip install ml_dtypes") from None
        host = numpy.empty(self.shape, self.dtype)
        self.copy_to(host)
        return host

    def _interface(self, version: int, address: int) -> "dict[str, Any]":
        typestr = _TYPESTR.get(self.dtype)
        if typestr is None:
            raise AttributeError(f"array interfaces have no {self.dtype}")
        return {"shape": self.shape, "typestr": typestr, "data": (address, False), "strides": None, "version": version}

    @property
    def __array_interface__(self) -> "dict[str, Any]":
        self._open()
        address = self._host_address()
        if address is None:
            raise AttributeError("the host cannot access this memory; use numpy() for a copy")
        return self._interface(3, address)

    @property
    def __cuda_array_interface__(self) -> "dict[str, Any]":
        self._open()
        if self._host_address() is not None:
            raise AttributeError("this memory is not a GPU's")
        return self._interface(3, self._address)

    def __dlpack_device__(self) -> "tuple[int, int]":
        """The kind and the number of the device, for DLPack."""
        self._open()
        number = self.group._number
        return (_memory.CPU, 0) if number is None else (_memory.CUDA, number)

    def __dlpack__(
        self,
        *,
        stream: Any = None,
        max_version: "Optional[tuple[int, int]]" = None,
        dl_device: "Optional[tuple[int, int]]" = None,
        copy: Optional[bool] = None,
    ) -> Any:
        """The elements for DLPack, where they are. What takes them holds the array. No stream waits:
        calls on the array come before on the stream that is given, or have ended."""
        device = self.__dlpack_device__()
        if fast is None:
            raise BufferError("mscclgo: arrays are exported by the package's compiled part, which this Python cannot load")
        if copy:
            raise BufferError("mscclgo: an array is exported without a copy")
        if dl_device is not None and tuple(dl_device) != device:
            raise BufferError(f"mscclgo: the array is on device {device} of DLPack, not {tuple(dl_device)}")
        address = self._address if device[0] == _memory.CUDA else self._host_address()
        if address is None:
            raise BufferError("mscclgo: the host cannot access this memory; use numpy() for a copy")
        versioned = max_version is not None and max_version[0] >= 1
        code, bits = _memory.dlpack_type(self.dtype)
        return fast.export(self, address, *device, code, bits, self.shape, versioned)

    def _host_address(self) -> Optional[int]:
        try:
            return make(library.mscclgo_buffer_host_pointer, self._handle)
        except UnsupportedError:
            return None

    def __len__(self) -> int:
        if not self.shape:
            raise TypeError("len() of an array without dimensions")
        return self.shape[0]

    def __repr__(self) -> str:
        return f"mscclgo.Array(shape={self.shape}, dtype={self.dtype!r})"


def _name(dtype: Any) -> str:
    """Returns the name of a type of elements: of a name, NumPy's or PyTorch's."""
    name = dtype if isinstance(dtype, str) else getattr(dtype, "name", None) or getattr(dtype, "__name__", None) or str(dtype)
    name = name.rpartition(".")[2]
    if name not in _memory.TYPES:
        raise InvalidError(f"mscclgo: {name!r} is not a type of elements: {', '.join(_memory.TYPES)} are")
    return name


class Wrapped(Owner):
    """Memory of the host, wrapped for the device as long as this object lives. It keeps the owner."""

    def __init__(self, device: int, memory: _memory.Memory, owner: Any) -> None:
        self.owner = owner
        self._handle = make(library.mscclgo_buffer_wrap_host, device, memory.address, memory.bytes)
        self._finalizer = with_owner(self, library.mscclgo_buffer_destroy, self._handle)
        self.address = make(library.mscclgo_buffer_pointer, self._handle)
