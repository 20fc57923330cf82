"""Kernels of collectives that are compiled before they are called."""

from __future__ import annotations

import ctypes
from typing import Sequence, Union

from . import _compiler
from ._errors import InvalidError, a_kind
from ._library import PrecompileOptions, call, integer, library, text
from ._memory import TYPES
from ._prepared import COLLECTIVES, operation
from ._waiting import wait

Names = Union[str, Sequence[str]]

# The library's names of the types, by their numbers.
_TYPE_NAMES = ("f32", "f16", "bf16", "f64", "i32", "i64", "u8", "f8e4m3", "f8e5m2")


def precompile(
    architectures: Names = (),
    collectives: Names = (),
    types: Names = ("float32", "float16", "bfloat16"),
    operations: Names = "sum",
    ranks: Sequence[int] = (4, 8),
    several_hosts: bool = False,
) -> None:
    """Compiles the kernels of collectives into the cache, where the first call of each finds them: it does not wait for
    the compiler then, which takes seconds on a GPU, and a machine needs none. For an image of a container or a folder
    that many machines read, set the variable MSCCLGO_CACHE to it; with another compiler than here a call compiles anew. It
    needs no GPU and no group, and takes minutes.

    - architectures are "sm_90" and the like; by default the architectures of the GPUs of this machine.
    - collectives are names as Group.prepare takes them; all if there are none. Messages come with "send_receive".
    - types and operations are for reductions.
    - ranks are sizes of groups: up to 4, 5 to 72, and more ranks have kernels each.
    - several_hosts adds what groups on several hosts need.

    Several names are a sequence, or a text that has them separated by commas. After Ctrl-C another thread goes on."""
    kinds, elements = _names("collectives", collectives), _names("types", types)
    for name in kinds:
        if name not in COLLECTIVES:
            raise InvalidError(f"mscclgo: precompile: {name!r} is not a collective: {', '.join(COLLECTIVES)} are")
    for name in elements:
        if name not in TYPES:
            raise InvalidError(f"mscclgo: precompile: {name!r} is not a type of elements: {', '.join(TYPES)} are")
    reductions = _names("operations", operations)
    for name in reductions:
        operation("precompile", name)
    if isinstance(ranks, (int, str)):
        raise InvalidError(f"mscclgo: precompile: the ranks are several numbers, not {a_kind(ranks)}")
    options = PrecompileOptions(
        architectures=text("precompile: the architectures", ",".join(_names("architectures", architectures))),
        collectives=",".join(kinds).replace("_", "-").encode(),
        types=",".join(_TYPE_NAMES[TYPES[name][0]] for name in elements).encode(),
        operations=",".join(reductions).encode(),
        ranks=",".join(str(integer("precompile: a number of ranks", n)) for n in ranks).encode(),
        several_hosts=bool(several_hosts),
    )
    _compiler.find()
    wait(lambda: call(library.mscclgo_precompile, ctypes.addressof(options)), lambda error, waiting: None)


def _names(what: str, names: Names) -> "list[str]":
    """Returns the names of a sequence, or of a text."""
    if isinstance(names, str):
        names = names.split(",")
    try:
        all = list(names)
    except TypeError:
        raise InvalidError(f"mscclgo: precompile: the {what} are names, not {a_kind(names)}") from None
    for name in all:
        if not isinstance(name, str):
            raise InvalidError(f"mscclgo: precompile: the {what} are names, not of type {type(name).__name__}")
    return [name.strip() for name in all if name.strip()]
