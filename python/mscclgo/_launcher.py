"""Starts the ranks of a group on this machine, by the library's launcher."""

from __future__ import annotations

import ctypes
import os
import resource
import signal
import sys
from typing import List

from . import set_log
from ._errors import Error
from ._library import failure, integer, library

# What a person or a batch system sends to a job.
_FORWARDED = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT, signal.SIGUSR1, signal.SIGUSR2)


def run(ranks: int, program: List[str]) -> int:
    """Runs a Python program, as Python's arguments name it, as the ranks of a group, and returns
    the status to exit with. From the first call on the process is a launcher: signals go to the ranks."""
    command = [os.fsencode(argument) for argument in (sys.executable, *program)]
    code = ctypes.c_int(2)
    set_log(lambda level, text: print(text, file=sys.stderr, flush=True))
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)  # inherited as ignored, it would hide how ranks end
    _allow_files()
    signals = _caught()
    try:
        failed = library.mscclgo_run(
            integer("the number of ranks", ranks), (ctypes.c_char_p * (len(command) + 1))(*command), signals, ctypes.byref(code)
        )
        if failed:
            raise failure(failed)
    except Error as error:
        print(f"python -m mscclgo: {error}", file=sys.stderr)
    return code.value


def _allow_files() -> None:
    """Lets the process open as many files as it may, of which each rank takes some: all but one, as Go's
    runtime does, so that Go gives the ranks the limit of before."""
    now, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    if now < most - 1:
        resource.setrlimit(resource.RLIMIT_NOFILE, (most - 1, most))


def _caught() -> int:
    """Returns a descriptor from which the numbers of signals that come from now on are read. They
    are written to it as they come: Python calls handlers of its own only between two calls of C."""
    read, write = os.pipe()
    os.set_blocking(write, False)
    signal.set_wakeup_fd(write, warn_on_full_buffer=False)
    for number in _FORWARDED:
        if signal.getsignal(number) != signal.SIG_IGN:  # as under nohup
            signal.signal(number, lambda *_: None)
    return read
