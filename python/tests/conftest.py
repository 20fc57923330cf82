"""Groups for tests: of one rank, and of several that are threads of this process. Other processes of Python."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from typing import Any, Callable, Dict, Iterator, List, Optional

import pytest

if os.environ.get("MSCCLGO_TEST_WITHOUT_FAST"):  # scripts/test-python runs the tests of calls once more so
    sys.modules["mscclgo._fast"] = None  # type: ignore[assignment]

import mscclgo


@pytest.fixture(scope="session")
def group() -> Iterator[mscclgo.Group]:
    with mscclgo.Rendezvous() as rendezvous:
        one = mscclgo.connect(rendezvous.id, 0, 1, device="emu")
    with one:
        yield one


def run_ranks(ranks: int, rank: Callable[[int, str], Any]) -> List[Any]:
    """Calls rank(number, id) for each rank of a group, on threads, and returns what it returns on each."""
    results: List[Any] = [None] * ranks
    errors: List[Optional[BaseException]] = [None] * ranks

    def run(number: int, id: str) -> None:
        try:
            results[number] = rank(number, id)
        except BaseException as error:
            errors[number] = error

    with mscclgo.Rendezvous() as rendezvous:
        threads = [threading.Thread(target=run, args=(n, rendezvous.id)) for n in range(ranks)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    for error in errors:
        if error is not None:
            raise error
    return results


@pytest.fixture
def together() -> Callable[[int, Callable[[mscclgo.Group], Any]], List[Any]]:
    """Runs a function on the ranks of a group, and returns what it returns on each."""

    return lambda ranks, body: mscclgo.local(ranks, body, device="emu")


def variables(**more: str) -> Dict[str, str]:
    """Returns the variables of a process that is in no group, and these."""
    group = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "MSCCLGO_ID")
    return {**{k: v for k, v in os.environ.items() if k not in group}, "MSCCLGO_DEVICE": "emu", **more}


def python(*arguments: str, timeout: float = 120, **more: str) -> "subprocess.CompletedProcess[str]":
    """Runs Python with these variables more."""
    return subprocess.run([sys.executable, *arguments], env=variables(**more), capture_output=True, text=True, timeout=timeout)
