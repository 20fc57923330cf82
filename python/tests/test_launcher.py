"""python -m mscclgo run, the launcher of a Python program's ranks."""

from __future__ import annotations

import os
import re
import resource
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import List

import pytest
from conftest import python, variables


def script(folder: Path, text: str) -> str:
    """Returns a program that begins by importing what most need."""
    path = folder / "program.py"
    path.write_text("import os, signal, sys, time\nrank = int(os.environ['RANK'])\n" + text)
    return str(path)


def run(ranks: int, *program: str, **more: str) -> "subprocess.CompletedProcess[str]":
    return python("-m", "mscclgo", "run", "-n", str(ranks), *program, **more)


def after(statement: str) -> List[str]:
    """Returns arguments of Python by which it runs a statement, and then anew with the arguments behind these."""
    return ["-c", f"import os, resource, signal, sys\n{statement}\nos.execv(sys.executable, [sys.executable, *sys.argv[1:]])"]


# Jobs of a shell that run in the background ignore these.
HEED = "for s in signal.SIGINT, signal.SIGHUP: signal.signal(s, signal.SIG_DFL)"


def test_ranks(tmp_path: Path) -> None:
    """Ranks have the variables of a group, an empty input, the arguments and the limit of open files;
    what they print comes in whole lines, and where they print it."""
    program = script(
        tmp_path,
        "import resource\n"
        "assert sys.stdin.read() == '' and sys.argv[1:] == ['-n', 'b c']\n"
        "names = 'RANK', 'WORLD_SIZE', 'LOCAL_RANK', 'LOCAL_WORLD_SIZE', 'MORE'\n"
        "print(*(os.environ[n] for n in names), *resource.getrlimit(resource.RLIMIT_NOFILE), sep=',', end='')\n"
        "print('error of', rank, file=sys.stderr)\n",
    )
    most = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    limited = after(f"resource.setrlimit(resource.RLIMIT_NOFILE, (99, {most}))")
    done = python(*limited, "-m", "mscclgo", "run", "-n", "2", program, "-n", "b c", MORE="more")
    assert done.returncode == 0, done
    assert sorted(done.stdout.splitlines()) == [f"{r},2,{r},2,more,99,{most}" for r in range(2)]
    assert sorted(done.stderr.splitlines()) == ["error of 0", "error of 1"]


@pytest.mark.parametrize("given", [["--", "x"], ["x", "--", "-n", "--"], ["--"], ["-h"], []])
@pytest.mark.parametrize("options", [["-n", "1"], ["-n1"], ["-n", "1", "--"]])
def test_arguments(options: List[str], given: List[str], tmp_path: Path) -> None:
    """What follows the program is the program's, as it is."""
    program = script(tmp_path, "print(sys.argv[1:])\n")
    done = python("-m", "mscclgo", "run", *options, program, *given)
    assert (done.returncode, done.stdout) == (0, f"{given}\n"), done


@pytest.mark.parametrize("ranks", [-1, 0, 32769, 1000000, 1 << 32 | 1, 1 << 70])
def test_number_of_ranks(ranks: int, tmp_path: Path) -> None:
    done = run(ranks, script(tmp_path, "print('it runs')\n"))
    assert (done.returncode, done.stdout) == (2, ""), done
    assert str(ranks) in done.stderr and "Traceback" not in done.stderr


# How rank 1 of 3 ends while the others sleep, the status of the launcher, and what it says.
ENDS = {
    "status": ("sys.exit(3)", 3, "(rank 1): remote failure: exited with code 3; of the others, 0,2 were ended by SIGTERM"),
    "exception": ("raise ValueError('enough')", 1, "exited with code 1; of the others, 0,2 were ended by SIGTERM"),
    "signal": ("os.kill(os.getpid(), signal.SIGSEGV)", 139, "(rank 1): remote failure: was ended by SIGSEGV"),
}


@pytest.mark.parametrize("name", ENDS)
def test_status(name: str, tmp_path: Path) -> None:
    """The status is the first failing rank's. The launcher names that rank and tells how all ended."""
    end, status, text = ENDS[name]
    done = run(3, script(tmp_path, f"if rank == 1: {end}\ntime.sleep(60)\n"))
    assert done.returncode == status and text in done.stderr, done


def test_missing_program() -> None:
    done = run(2, "/nonexistent.py")
    assert done.returncode == 2 and "/nonexistent.py" in done.stderr, done  # Python's own status


def test_ignored_children(tmp_path: Path) -> None:
    """A launcher that was started with SIGCHLD ignored learns how ranks end."""
    ignoring = after("signal.signal(signal.SIGCHLD, signal.SIG_IGN)")
    done = python(*ignoring, "-m", "mscclgo", "run", "-n", "2", script(tmp_path, "sys.exit(4)\n"))
    assert done.returncode == 4, done


def running(process: int) -> bool:
    """Reports whether a process exists and is not a zombie."""
    try:
        return Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except (FileNotFoundError, ProcessLookupError):  # the latter if it ends between open and read
        return False


# A signal to the launcher, and its status.
SIGNALS = {
    "SIGKILL": -signal.SIGKILL,
    "SIGTERM": 128 + signal.SIGTERM,
    "SIGINT": 128 + signal.SIGINT,
    "SIGHUP": 128 + signal.SIGHUP,
}


@pytest.mark.parametrize("name", SIGNALS)
def test_launcher_ends(name: str, tmp_path: Path) -> None:
    """However the launcher is ended, no rank is left, nor what a rank has started."""
    program = script(
        tmp_path,
        "import subprocess\n"
        "child = subprocess.Popen(['sleep', '60'])\n"
        "print(os.getpid(), child.pid, flush=True)\n"
        "time.sleep(60)\n",
    )
    command = [sys.executable, *after(HEED), "-m", "mscclgo", "run", "-n", "3", program]
    with subprocess.Popen(command, env=variables(), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as launcher:
        assert launcher.stdout is not None and launcher.stderr is not None
        processes = [int(word) for _ in range(3) for word in launcher.stdout.readline().split()]
        assert len(processes) == 6 and all(running(p) for p in processes)
        start = time.monotonic()
        launcher.send_signal(getattr(signal, name))
        while any(running(p) for p in processes) and time.monotonic() - start < 30:
            time.sleep(0.01)
        took = time.monotonic() - start
        assert not any(running(p) for p in processes)
        assert launcher.wait(30) == SIGNALS[name], launcher.stderr.read()
        assert took < 4, f"the ranks were there for {took:.1f} s"  # of the 5 s that SIGTERM gives ranks to end


def test_signals_reach_ranks(tmp_path: Path) -> None:
    """A rank gets what the launcher gets, also a signal that does not end it."""
    program = script(
        tmp_path,
        "def got(number, _):\n"
        "  print(rank, number, flush=True)\n"
        "  if number == signal.SIGTERM: sys.exit(7)\n"
        "for s in signal.SIGUSR1, signal.SIGTERM: signal.signal(s, got)\n"
        "print(rank, 'ready', flush=True)\n"
        "while True: time.sleep(60)\n",
    )
    command = [sys.executable, "-m", "mscclgo", "run", "-n", "2", program]
    with subprocess.Popen(command, env=variables(), stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True) as launcher:
        stdout = launcher.stdout
        assert stdout is not None

        def lines() -> List[str]:
            return sorted(stdout.readline() for _ in range(2))

        assert lines() == ["0 ready\n", "1 ready\n"]
        for number in (signal.SIGUSR1, signal.SIGUSR1, signal.SIGTERM):
            launcher.send_signal(number)
            assert lines() == [f"{r} {int(number)}\n" for r in range(2)]
        assert launcher.wait(30) == 7


# Rank 1 sends itself a signal before it joins, when the others are there, which then tell what they hear and when.
LOST = (
    "from pathlib import Path\n"
    "folder = Path(sys.argv[1])\n"
    "signal.signal(signal.SIGTERM, signal.SIG_IGN if rank != 1 else signal.SIG_DFL)\n"  # the launcher's, to the others
    "import mscclgo\n"
    "(folder / str(rank)).touch()\n"
    "while len(list(folder.iterdir())) < 3: time.sleep(0.01)\n"
    "if rank == 1: os.kill(os.getpid(), getattr(signal, sys.argv[2]))\n"
    "start = time.monotonic()\n"
    "try: mscclgo.init()\n"
    "except mscclgo.Error as error: print(f'{time.monotonic() - start:.1f} s: peer {error.peer}: {error}')\n"
    "sys.exit(5)\n"
)


def lost(tmp_path: Path, name: str, **more: str) -> "tuple[subprocess.CompletedProcess[str], List[float]]":
    """Has rank 1 of 3 send itself a signal, and returns after how long each other rank was told."""
    (tmp_path / "met").mkdir()
    done = run(3, script(tmp_path, LOST), str(tmp_path / "met"), name, **more)
    lines = done.stdout.splitlines()
    assert len(lines) == 2 and all(" s: peer 1: " in line for line in lines), done
    return done, [float(line.split()[0]) for line in lines]


def test_rank_killed_early(tmp_path: Path) -> None:
    """A rank that is killed before it joins is told to the others at once, and named at the end."""
    done, took = lost(tmp_path, "SIGKILL")
    assert done.stdout.count("rank 1 was ended by SIGKILL before all ranks had come") == 2, done
    assert max(took) < 4, done
    assert done.returncode == 137
    assert "(rank 1): remote failure: was ended by SIGKILL; of the others, 0,2 exited with code 5" in done.stderr


def test_rank_stopped_early(tmp_path: Path) -> None:
    """A rank that is stopped before it joins is told to the others after the heartbeat time-out, and named at the end."""
    done, took = lost(tmp_path, "SIGSTOP", MSCCLGO_HEARTBEAT_TIMEOUT="1s")
    assert done.stdout.count("rank 1, without which the group cannot form, is stopped (process ") == 2, done
    assert 0.5 < min(took) and max(took) < 4, done
    assert done.returncode == 5
    assert "(rank 1): remote failure: it is stopped (process " in done.stderr


def test_last_rank_stopped(tmp_path: Path) -> None:
    """The launcher says so when it waits for a stopped rank alone, which goes on then."""
    program = script(
        tmp_path,
        "if rank == 1:\n"
        "  if os.fork() == 0: time.sleep(60); os.kill(os.getppid(), signal.SIGCONT); os._exit(0)\n"
        "  os.kill(os.getpid(), signal.SIGSTOP)\n",
    )
    command = [sys.executable, "-m", "mscclgo", "run", "-n", "2", program]
    with subprocess.Popen(command, env=variables(), stderr=subprocess.PIPE, text=True) as launcher:
        assert launcher.stderr is not None
        told = next((line for line in launcher.stderr if "a rank is stopped, and no other runs" in line), "")
        process = re.search(r"rank=1 process=(\d+)", told)
        assert process, told
        os.kill(int(process[1]), signal.SIGCONT)
        assert launcher.wait(30) == 0
