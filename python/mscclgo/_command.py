"""The command mscclgo, which is in the library: bench, doctor, ps, top and the like."""

from __future__ import annotations

import os
import sys
from typing import NoReturn, Sequence

from . import _compiler


def execute(words: Sequence[str]) -> NoReturn:
    """Becomes the command, with these arguments."""
    _compiler.find()
    sys.stdout.flush()
    os.execv(os.path.join(os.path.dirname(os.path.abspath(__file__)), "command"), ["mscclgo", *words])


def main() -> int:
    """Is the program mscclgo of the package: the command, and the demo."""
    if sys.argv[1:2] != ["demo"]:
        execute(sys.argv[1:])
    from . import __main__

    return __main__.main()
