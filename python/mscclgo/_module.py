"""Modules and kernels."""

from __future__ import annotations

import ctypes
import os
import struct
from typing import TYPE_CHECKING, Any, Dict, List, Sequence, Union

from ._arguments import Packer
from ._errors import InvalidError, a_kind
from ._library import CompileOptions, LaunchConfig, Parameter, ParameterType, Owner, address_of, direct, failure, fast, integer, integers, library, make, stored, text
from ._stream import Stream, with_owner

if TYPE_CHECKING:
    from ._group import Group

Extent = Union[int, Sequence[int]]


def _texts(what: str, given: Sequence[str]) -> Any:
    if isinstance(given, (str, bytes)) or not hasattr(given, "__iter__"):
        raise InvalidError(f"mscclgo: compile: {what} is a list of texts, not {a_kind(given)}")
    texts = [text(f"compile: a text of {what}", t) for t in given]
    return (ctypes.c_char_p * (len(texts) + 1))(*texts, None)


class Module(Owner):
    """Compiled device code. Its kernels are attributes: module.all_reduce, module["all_reduce"]."""

    def __init__(self, group: Group, handle: int) -> None:
        self._group = group
        self._handle = handle
        self._finalizer = with_owner(self, library.mscclgo_module_destroy, handle)

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


def compile(
    group: Group,
    source: str,
    name: str,
    defines: Sequence[str],
    include_dirs: Sequence[str],
    flags: Sequence[str],
    check: bool,
) -> Module:
    """Group.compile."""
    options = CompileOptions(_texts("defines", defines), _texts("include_dirs", include_dirs), _texts("flags", flags), bool(check))
    texts = text("compile: the name", name), text("compile: the source", source)
    return Module(group, make(library.mscclgo_module_compile, group._device, *texts, ctypes.addressof(options)))


def load(group: Group, file: Any) -> Module:
    """Group.load."""
    path = os.fspath(file) if hasattr(file, "__fspath__") else file
    return Module(group, make(library.mscclgo_module_load_bundle, group._device, text("load: the file", path)))


class Kernel(Owner):
    """An entry point of a module. kernel[grid, block](stream, argument, ...) launches it, and
    kernel[grid, block, shared] with bytes of dynamic shared memory.

    grid is the number of blocks, and block the number of their threads: an int, or up to three. The
    arguments are the kernel's, in their order:

    - for a pointer: a tensor, channels, channels[i, rank], a Pointer, or None. Where it points to
      numbers of C++ or CUDA, also by names of the program's own for their types, the elements of a
      tensor are such numbers; whether integers are signed does not matter. Pointers to all else,
      and to void, char, unsigned char and uint8_t, which are bytes, take elements of any type. Only
      pointers to const take tensors that are read-only;
    - for an integer: an int or a bool that is in its range;
    - for a float: a float, which is rounded, or an int that it is exactly;
    - for a bool: a bool, 0 or 1;
    - for any of these numbers: a scalar of NumPy of the parameter's kind and size. One of type
      float16, bfloat16 or float8 also for CUDA's type of that name, such as __half;
    - for mscclgo::GroupHandle a Group, for mscclgo::PeerMemory a PeerMemory, for mscclgo::PipeSet
      Pipes, for mscclgo::MemoryChannelSet or PortChannelSet channels, for mscclgo::FifoHandle a Proxy;
    - for any other parameter by value: bytes of its size.

    All else raises InvalidError, which names the parameter and its type, and nothing is queued. Where
    the compiler does not tell the parameters (with flags such as -g0), only sizes are compared.
    """

    def __init__(self, module: Module, name: str) -> None:
        self.name = name
        self._module = module
        self._handle = make(library.mscclgo_module_kernel, module._handle, text("the name of a kernel", name))
        count = stored(ctypes.c_size_t, library.mscclgo_kernel_parameters, self._handle, None, 0).value
        places = (Parameter * max(count, 1))()
        stored(ctypes.c_size_t, library.mscclgo_kernel_parameters, self._handle, places, count)
        packers, quick, format, end = [], [], "=", 0
        for i, place in enumerate(places[:count]):
            described = stored(ParameterType, library.mscclgo_kernel_parameter_type, self._handle, i)
            to = stored(ctypes.c_char_p, library.mscclgo_kernel_parameter_pointee, self._handle, i)
            packer = Packer(module._group, name, i + 1, described, (to.value or b"").decode("utf-8", "replace"))
            packers.append((packer.plain, packer.pack))
            quick.append(packer.quick(place.offset))
            format += f"{place.offset - end}x{packer.code}"
            end = place.offset + place.bytes
        self._packers = tuple(packers)
        self._pack = struct.Struct(format).pack  # makes the parameter block
        caller = module._group._quick
        # What launches it with simple arguments; None where there is no _fast.
        self._quick = None if caller is None else fast.Kernel(caller, module, _LAUNCH, self._handle, tuple(quick))
        self._launches: Dict[Any, Launch] = {}  # by shape

    def __repr__(self) -> str:
        return f"mscclgo.Kernel({self.name!r}, parameters={len(self._packers)})"

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
            each = integers(f"launch {self.name}: an extent of the {what}", extent, -(1 << 31), (1 << 31) - 1)
            if not 1 <= len(each) <= 3 or min(each) <= 0:
                raise InvalidError(f"mscclgo: launch {self.name}: a {what} of {extent} makes no sense")
            target[: len(each)] = each
        if len(shape) == 3:
            config.dynamic_shared_bytes = integer(f"launch {self.name}: the shared memory", shape[2], 0)
        return Launch(self, config)


class Launch:
    """A kernel with a grid; see Kernel."""

    def __init__(self, kernel: Kernel, config: LaunchConfig) -> None:
        self._kernel = kernel
        self._module = kernel._module
        self._config = config
        self._address = ctypes.addressof(config)

    def __call__(self, stream: Any, *arguments: Any) -> None:
        """Queues the kernel on a stream; None is the current one. On tensors of the host it returns once the kernel is done
        if no stream is given (see Group): a kernel that waits for what the program does next needs one."""
        kernel, module = self._kernel, self._module
        quick = kernel._quick
        if quick is not None:
            status = quick.launch(self._address, stream, arguments)
            if status < 0 and type(stream) is not Stream:
                status = quick.launch(self._address, module._group.stream(stream), arguments)
            if status == 0:
                return
            if status > 0:
                raise failure(status)
        on = stream if type(stream) is Stream else module._group.stream(stream)
        packers = kernel._packers
        if len(arguments) != len(packers):
            raise InvalidError(f"mscclgo: launch {kernel.name}: {len(arguments)} arguments given, and the kernel takes {len(packers)}")
        held: List[Any] = [module]
        try:
            # struct finds numbers that are out of their range.
            block = kernel._pack(*[a if type(a) is plain else pack(a, held) for a, (plain, pack) in zip(arguments, packers)])
        except (struct.error, OverflowError):
            for argument, (_, pack) in zip(arguments, packers):
                pack(argument, [])  # raises what names the parameter
            raise
        try:
            status = _launch(kernel._handle, on._handle, self._address, block, len(block))
        finally:  # also after a signal's exception, which comes once the kernel is queued
            on.keep_for(held, arguments)
        if status:
            raise failure(status)
        module._group._settle(stream, on, held)


_LAUNCH = address_of(library.mscclgo_kernel_launch)
_launch = direct(library.mscclgo_kernel_launch)

# The shapes that a kernel remembers: programs use few.
_SHAPES = 64
