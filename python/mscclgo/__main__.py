"""python -m mscclgo demo runs an all-reduce by a kernel of its own, and checks every element;
python -m mscclgo run -n 4 program.py runs a Python program as the ranks of a group. Both start
the ranks on this machine."""

from __future__ import annotations

import argparse
import importlib.util
import os
import subprocess
import sys
import threading
import time
from typing import IO, List

from . import Rendezvous


def copy_lines(source: IO[bytes], target: IO[bytes], lock: threading.Lock) -> None:
    """Copies whole lines, so that those of several ranks do not mix."""
    for line in source:
        with lock:
            target.write(line if line.endswith(b"\n") else line + b"\n")
            target.flush()


def run(ranks: int, program: List[str]) -> int:
    """Runs a Python program, as Python's arguments name it, as the ranks of a group, and returns
    the status of the first that failed, or 0. When one fails, the others get a while to notice,
    and are then ended."""
    with Rendezvous() as rendezvous:
        processes: List["subprocess.Popen[bytes]"] = []
        copies: List[threading.Thread] = []
        lock = threading.Lock()
        for rank in range(ranks):
            environment = dict(os.environ, MSCCLGO_ID=rendezvous.id, RANK=str(rank), WORLD_SIZE=str(ranks))
            environment.update(LOCAL_RANK=str(rank), LOCAL_WORLD_SIZE=str(ranks))
            process = subprocess.Popen(
                [sys.executable, *program], env=environment, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE
            )
            processes.append(process)
            for source, target in ((process.stdout, sys.stdout.buffer), (process.stderr, sys.stderr.buffer)):
                copies.append(threading.Thread(target=copy_lines, args=(source, target, lock), daemon=True))
                copies[-1].start()
        failed, deadline = 0, float("inf")
        try:
            while any(p.poll() is None for p in processes):
                if not failed:
                    failed = next((p.returncode for p in processes if p.returncode), 0)
                    deadline = time.monotonic() + 10 if failed else deadline
                if time.monotonic() > deadline:
                    for p in processes:
                        p.terminate()
                time.sleep(0.02)
        except KeyboardInterrupt:
            failed = 130
        finally:
            for p in processes:
                if p.poll() is None:
                    p.kill()
                p.wait()
            for copy in copies:
                copy.join(5)  # a process that a rank has left behind may hold its end
        failed = failed or next((p.returncode for p in processes if p.returncode), 0)
        return failed if failed >= 0 else 128 - failed


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m mscclgo", description=__doc__)
    commands = parser.add_subparsers(dest="command", required=True)
    demo = os.path.join(os.path.dirname(os.path.abspath(__file__)), "demo.py")
    about = f"The program is {demo}, which is short: copy it to begin with. It needs NumPy."
    command = commands.add_parser("demo", help="run an all-reduce by a kernel of its own, and check it", description=about)
    command.add_argument("-n", type=int, default=4, help="the number of ranks, 4 if not given")
    command = commands.add_parser("run", help="run a Python program as the ranks of a group")
    command.add_argument("-n", type=int, default=4, help="the number of ranks, 4 if not given")
    command.add_argument("program", help="a Python program")
    command.add_argument("arguments", nargs=argparse.REMAINDER)
    options = parser.parse_args()
    if options.n < 1:
        parser.error("there must be at least one rank")
    if options.command == "run":
        return run(options.n, [options.program, *options.arguments])
    if importlib.util.find_spec("numpy") is None:
        parser.exit(1, "the demo needs NumPy: pip install numpy\n")
    return run(options.n, ["-m", "mscclgo.demo"])  # by its name, so that it imports this package


if __name__ == "__main__":
    sys.exit(main())
