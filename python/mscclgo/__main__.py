"""python -m mscclgo demo runs an all-reduce by a kernel of its own, and checks every element;
python -m mscclgo run -n 4 program.py runs a Python program as the ranks of a group. Both start
the ranks on this machine. python -m mscclgo precompile sm_90 compiles the kernels of collectives into the cache.
Other commands are mscclgo's: python -m mscclgo help lists them."""

from __future__ import annotations

import argparse
import importlib.util
import os
import sys
from typing import List, Tuple

from ._command import execute
from ._errors import Error
from ._launcher import run
from ._precompile import precompile


def _split(given: List[str]) -> Tuple[List[str], List[str]]:
    """Divides what follows the program of run from the rest: argparse would take a -- out of it."""
    if given[:1] != ["run"]:
        return given, []
    program = 1
    while program < len(given) and given[program].startswith("-"):
        if given[program] == "--":
            program += 1
            break
        program += 2 if given[program] == "-n" else 1
    return given[: program + 1], given[program + 1 :]


def main() -> int:
    if sys.argv[1:] and sys.argv[1] not in ("demo", "run", "precompile", "-h", "--help"):
        execute(sys.argv[1:])
    parser = argparse.ArgumentParser(prog="python -m mscclgo", description=__doc__)
    commands = parser.add_subparsers(dest="command", required=True)
    demo = os.path.join(os.path.dirname(os.path.abspath(__file__)), "demo.py")
    about = f"The program is {demo}, which is short: copy it to begin with. It needs NumPy."
    command = commands.add_parser("demo", help="run an all-reduce by a kernel of its own, and check it", description=about)
    command.add_argument("-n", type=int, default=4, help="the number of ranks, 4 if not given")
    command = commands.add_parser("run", help="run a Python program as the ranks of a group")
    command.add_argument("-n", type=int, default=4, help="the number of ranks, 4 if not given")
    command.add_argument("program", help="a Python program")
    command.add_argument("arguments", nargs="*", default=[], help="its arguments, as they are")
    command = commands.add_parser("precompile", help="compile the kernels of collectives into the cache")
    command.add_argument("architectures", nargs="*", metavar="architecture", help="sm_90 and the like, or emu; by default for the GPUs here")
    command.add_argument("--collectives", default="", help="names with commas between, such as all_reduce; all if not given")
    command.add_argument("--types", default="float32,float16,bfloat16", help="types of reductions")
    command.add_argument("--operations", default="sum", help="operations of reductions")
    command.add_argument("--ranks", type=int, nargs="+", default=[4, 8], help="sizes of groups: up to 4, 5 to 72, and more have kernels each; 4 8 if not given")
    command.add_argument("--several-hosts", action="store_true", help="also what groups on several hosts need")
    ours, arguments = _split(sys.argv[1:])
    options = parser.parse_args(ours)
    if options.command == "precompile":
        try:
            precompile(options.architectures, options.collectives, options.types, options.operations, options.ranks, options.several_hosts)
        except Error as error:
            parser.exit(1, f"{error}\n")
        return 0
    if options.command == "run":
        return run(options.n, [options.program, *arguments])
    if importlib.util.find_spec("numpy") is None:
        parser.exit(1, "the demo needs NumPy: pip install numpy\n")
    return run(options.n, ["-m", "mscclgo.demo"])  # by its name, so that it imports this package


if __name__ == "__main__":
    sys.exit(main())
