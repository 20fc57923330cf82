"""Modules and kernels."""

from __future__ import annotations

import ctypes
import struct
import sys
import weakref
from typing import TYPE_CHECKING, Any, Dict, List, Sequence, Union

from ._array import Array
from ._channels import PeerMemory, Pipes, Pointer, _Channels
from ._errors import InvalidError
from ._library import CompileOptions, LaunchConfig, Parameter, call, library, make
from ._stream import destroy

if TYPE_CHECKING:
    from ._group import Group

Extent = Union[int, Sequence[int]]


def _texts(texts: Sequence[str]) -> Any:
    return (ctypes.c_char_p * (len(texts) + 1))(*[text.encode() for text in texts], None)


class Module:
    """Compiled device code. Its kernels are attributes: module.all_reduce, module["all_reduce"]."""

    def __init__(
        self,
        group: Group,
        source: str,
        name: str,
        defines: Sequence[str],
        include_dirs: Sequence[str],
        flags: Sequence[str],
        check: bool,
    ) -> None:
        if isinstance(defines, str) or isinstance(include_dirs, str) or isinstance(flags, str):
            raise InvalidError("mscclgo: defines, include_dirs and flags are lists of texts")
        if "\0" in source:
            raise InvalidError("mscclgo: the source has a zero byte")
        self._group = group
        options = CompileOptions(_texts(defines), _texts(include_dirs), _texts(flags), check)
        handle = make(library.mscclgo_module_compile, group._device, name.encode(), source.encode(), ctypes.addressof(options))
        self._handle = handle
        self._finalizer = weakref.finalize(self, destroy, library.mscclgo_module_destroy, handle)

    def __getitem__(self, name: str) -> "Kernel":
        return Kernel(self, name)

    def __getattr__(self, name: str) -> "Kernel":
        if name.startswith("_"):
            raise AttributeError(name)
        try:
            kernel = Kernel(self, name)
        except InvalidError as error:
            raise AttributeError(str(error)) from error
        self.__dict__[name] = kernel
        return kernel


class Kernel:
    """An entry point of a module. kernel[grid, block](stream, argument, ...) launches it, and
    kernel[grid, block, shared] with bytes of dynamic shared memory.

    grid is the number of blocks and block that of their threads: an int, or up to three. The
    arguments are those of the kernel, in their order:

    - for a pointer: a tensor, channels, channels[i, rank], or None;
    - for a number: an int, a float or a bool, or a scalar of NumPy of the parameter's size. A float
      is for a parameter of float or double, and an int for all others;
    - for mscclgo::GroupHandle a Group, for mscclgo::PeerMemory a PeerMemory, for mscclgo::PipeSet
      Pipes, for mscclgo::FifoHandle a Proxy;
    - for any other parameter by value: bytes of its size.
    """

    def __init__(self, module: Module, name: str) -> None:
        self.name = name
        self._module = module
        self._handle = make(library.mscclgo_module_kernel, module._handle, name.encode())
        count = ctypes.c_size_t()
        call(library.mscclgo_kernel_parameters, self._handle, None, 0, ctypes.addressof(count))
        places = (Parameter * max(count.value, 1))()
        call(library.mscclgo_kernel_parameters, self._handle, places, count.value, ctypes.addressof(count))
        # The gap before each parameter, and its size.
        ends = [0] + [p.offset + p.bytes for p in places[: count.value]]
        self._layout = [(b"\0" * (p.offset - end), p.bytes) for p, end in zip(places, ends)][: count.value]
        self._bytes = ends[-1]
        self._launches: Dict[Any, Launch] = {}  # by shape

    def __getitem__(self, shape: Any) -> "Launch":
        try:
            known = self._launches.get(shape)
        except TypeError:  # a list of extents
            return self._launch(shape)
        if known is None:
            known = self._launch(shape)
            if len(self._launches) < _SHAPES:
                self._launches[shape] = known
        return known

    def _launch(self, shape: Any) -> "Launch":
        if not isinstance(shape, tuple) or not 2 <= len(shape) <= 3:
            raise InvalidError(f"mscclgo: launch {self.name}: write {self.name}[grid, block](stream, ...)")
        config = LaunchConfig()
        for target, extent, what in ((config.grid, shape[0], "grid"), (config.block, shape[1], "block")):
            each = (extent,) if isinstance(extent, int) else tuple(extent)
            if not 1 <= len(each) <= 3 or any(not 0 < n < 1 << 31 for n in each):
                raise InvalidError(f"mscclgo: launch {self.name}: a {what} of {extent} makes no sense")
            target[: len(each)] = each
        shared = shape[2] if len(shape) == 3 else 0
        if not 0 <= shared < 1 << 31:
            raise InvalidError(f"mscclgo: launch {self.name}: {shared} bytes of shared memory make no sense")
        config.dynamic_shared_bytes = shared
        return Launch(self, config)


class Launch:
    """A kernel with a grid; see Kernel."""

    def __init__(self, kernel: Kernel, config: LaunchConfig) -> None:
        self._kernel = kernel
        self._config = config
        self._address = ctypes.addressof(config)

    def __call__(self, stream: Any, *arguments: Any) -> None:
        """Queues the kernel on a stream; None is the current one."""
        kernel = self._kernel
        group = kernel._module._group
        on = group.stream(stream)
        layout = kernel._layout
        if len(arguments) != len(layout):
            raise InvalidError(f"mscclgo: launch {kernel.name}: {len(arguments)} arguments given, and the kernel takes {len(layout)}")
        block: List[bytes] = []
        held: List[Any] = [kernel._module]
        for i, argument in enumerate(arguments):
            gap, size = layout[i]
            try:
                packed = _pack(group, held, argument, size)
            except (InvalidError, struct.error, OverflowError) as error:
                text = str(error)
                text = text[len("mscclgo: ") :] if text.startswith("mscclgo: ") else text
                raise InvalidError(f"mscclgo: launch {kernel.name}: argument {i + 1} of {len(arguments)}: {text}") from error
            if len(packed) != size:
                raise InvalidError(
                    f"mscclgo: launch {kernel.name}: argument {i + 1} of {len(arguments)}: the parameter has {size} bytes, and a "
                    f"{type(argument).__name__} has {len(packed)}"
                )
            if gap:
                block.append(gap)
            block.append(packed)
        call(library.mscclgo_kernel_launch, kernel._handle, on._handle, self._address, b"".join(block), kernel._bytes)
        on.keep(held)


# The shapes that a kernel remembers: programs use few.
_SHAPES = 64

# By size, of negative integers and others.
_INTEGERS = {size: (struct.Struct("=" + code).pack, struct.Struct("=" + code.upper()).pack) for size, code in ((1, "b"), (2, "h"), (4, "i"), (8, "q"))}
_FLOATS = {4: struct.Struct("=f").pack, 8: struct.Struct("=d").pack}
_pointer = struct.Struct("=Q").pack


def _pack(group: Group, held: List[Any], argument: Any, size: int) -> bytes:
    """Returns the bytes of an argument for a parameter of so many; see Group.address."""
    kind = type(argument)
    torch = sys.modules.get("torch")
    if kind is Array or torch is not None and isinstance(argument, torch.Tensor):
        return _pointer(group.address(argument, held, written=False)[0])
    if argument is None:
        return b"\0" * 8
    if isinstance(argument, Pointer):
        return _pointer(argument)
    if isinstance(argument, bool):
        return struct.pack("=?", argument)
    if isinstance(argument, int):
        if size not in _INTEGERS:
            raise InvalidError(f"the parameter has {size} bytes, and is no integer")
        signed, unsigned = _INTEGERS[size]
        try:
            return signed(argument) if argument < 0 else unsigned(argument)
        except struct.error:
            raise InvalidError(f"the parameter has {size} bytes, and {argument} does not fit") from None
    # A float64 of NumPy is a float of Python too, and would become a float where that is asked for.
    if kind is float:
        if size not in _FLOATS:
            raise InvalidError(f"the parameter has {size} bytes, and a float is for float or double")
        return _FLOATS[size](argument)
    if isinstance(argument, (bytes, bytearray)):
        return bytes(argument)
    if isinstance(argument, _Channels):
        held.append(argument)
        return _pointer(argument.pointer)
    if isinstance(argument, (PeerMemory, Pipes)):
        held.append(argument)
        return argument.handle_bytes()
    if hasattr(argument, "handle_bytes"):  # a group or a proxy, which lives as long
        return bytes(argument.handle_bytes())
    if hasattr(argument, "tobytes") and getattr(argument, "shape", None) == () and hasattr(argument, "item"):
        if not hasattr(argument, "__setitem__"):
            return bytes(argument.tobytes())  # a scalar of NumPy
    return _pointer(group.address(argument, held, written=False)[0])
