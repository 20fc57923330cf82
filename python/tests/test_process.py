"""What concerns the process: the environment, signals, forks, versions, the start of ranks."""

from __future__ import annotations

import ctypes
import inspect
import os
import re
import signal
import sys
from importlib import metadata
from pathlib import Path
from typing import Any, List, Optional

import pytest
from conftest import python

import mscclgo
from mscclgo import _library

EXAMPLES = Path(__file__).parent.parent / "examples"
DEMO = Path(mscclgo.__file__).parent / "demo.py"


def right(ranks: int) -> List[str]:
    return [f"rank {r} of {ranks}: all 10000 sums are right" for r in range(ranks)]


def test_demo() -> None:
    """The demo, which is short, runs as four ranks or as many as asked for."""
    assert len(DEMO.read_text().splitlines()) <= 45
    for arguments, ranks in ((), 4), (("-n", "3"), 3):
        done = python("-m", "mscclgo", "demo", *arguments)
        assert done.returncode == 0, done.stderr
        assert sorted(done.stdout.splitlines()) == right(ranks)


def test_demo_copied(tmp_path: Path) -> None:
    """A copy of the demo, at the place that its help names, runs as a program of one's own."""
    done = python("-m", "mscclgo", "demo", "-h", COLUMNS="1000")
    assert f"The program is {DEMO}," in done.stdout, done
    copy = tmp_path / "allreduce.py"
    copy.write_text(DEMO.read_text())
    done = python("-m", "mscclgo", "run", "-n", "2", str(copy))
    assert done.returncode == 0, done.stderr
    assert sorted(done.stdout.splitlines()) == right(2)


def test_demo_fails(tmp_path: Path) -> None:
    """The demo tells that it lacks NumPy, and has the status of its ranks."""
    (tmp_path / "sitecustomize.py").write_text("import sys\nsys.modules['numpy'] = None\n")
    done = python("-m", "mscclgo", "demo", PYTHONPATH=str(tmp_path))
    assert (done.returncode, done.stderr) == (1, "the demo needs NumPy: pip install numpy\n")
    done = python("-m", "mscclgo", "demo", "-n", "2", MSCCLGO_TRANSPORTS="none")
    assert done.returncode == 1, done
    assert "MSCCLGO_TRANSPORTS" in done.stderr
    assert python("-m", "mscclgo", "demo", "-n", "0").returncode == 2


def test_calls() -> None:
    """The example that times calls tells of each."""
    done = python("-m", "mscclgo", "run", "-n", "2", str(EXAMPLES / "calls.py"))
    assert done.returncode == 0, done.stderr
    for name in ("kernel", "m.send(array, next), m.recv(array, before)", "prepared(stream)", "all_reduce(array", "on the device"):
        assert re.search(r"[\d.]+ .*" + re.escape(name), done.stdout), done.stdout
    assert "beyond a launch" in done.stdout


def test_run_fails() -> None:
    """A rank that raises fails the others, and the launcher."""
    program = (
        "import sys, mscclgo\n"
        "group = mscclgo.init()\n"
        "if group.rank == 1: raise ValueError('rank one has had enough')\n"
        "try: group.barrier()\n"
        "except mscclgo.Error as error: print(error); sys.exit(0)\n"
    )
    path = Path(os.environ.get("TMPDIR", "/tmp")) / f"mscclgo-test-{os.getpid()}.py"
    path.write_text(program)
    try:
        done = python("-m", "mscclgo", "run", "-n", "2", str(path))
    finally:
        path.unlink()
    assert done.returncode == 1
    assert "ValueError: rank one has had enough" in done.stderr
    assert "(rank 1): remote failure: exited with code 1" in done.stderr


def test_no_group() -> None:
    done = python("-c", "import mscclgo; mscclgo.init()")
    assert "InvalidError" in done.stderr and "no launcher has set RANK" in done.stderr
    assert 'start the program with "mscclgo run -n 4 PROGRAM", "python -m mscclgo run -n 4 PROGRAM.py"' in done.stderr
    done = python("-c", "import mscclgo; mscclgo.all_reduce(1)")
    assert "there is no group; call mscclgo.init() first" in done.stderr


def test_environment_set_in_python() -> None:
    """Variables that the program sets itself count."""
    program = (
        "import os, mscclgo\n"
        "with mscclgo.Rendezvous() as r:\n"
        "  os.environ.update(MSCCLGO_ID=r.id, RANK='0', WORLD_SIZE='1', LOCAL_RANK='0', LOCAL_WORLD_SIZE='1')\n"
        "  print(mscclgo.init())\n"
    )
    done = python("-c", program)
    assert done.stdout == "mscclgo.Group(rank=0, size=1, device='emu:0')\n", done.stderr


ALONE = (
    "import os, sys, signal, time, mscclgo\n"
    "r = mscclgo.Rendezvous()\n"
    "group = mscclgo.connect(r.id, 0, 1)\n"
)


def test_left_open() -> None:
    """When Python ends, what was made of a group that is not closed lives until that is closed, as work may use it."""
    program = ALONE + (
        "import numpy\n"
        "module, stream, array = group.compile('extern \"C\" __global__ void k(float* to) {}'), group.stream(), group.empty(4)\n"
        "with stream.capture() as capture: module.k[1, 1](None, array)\n"
        "made = [module, array, capture.graph, stream.record(), group.prepare('all_reduce', group.share(array))]\n"
        "module.k[1, 1](stream, numpy.zeros(4, 'float32'))\n"
        "made += stream._kept[-1:]\n"
        "class Group(type(group)):\n"
        "  def close(self): print([(type(one).__name__, one._finalizer.alive) for one in made]); super().close()\n"
        "group.__class__ = Group\n"
    )
    done = python("-c", program)
    names = ("Module", "Array", "Graph", "Event", "Prepared", "Wrapped")
    assert (done.returncode, done.stdout) == (0, f"{[(name, True) for name in names]}\n"), done.stderr


def test_left_open_groups() -> None:
    """When Python ends, groups are closed in one order on all ranks, and parts with theirs."""
    program = ALONE + (
        "class Group(type(group)):\n"
        "  def close(self): super().close(); print(groups.index(self), parts[groups.index(self)].closed)\n"
        "groups = [group] + [mscclgo.connect(r.id, 0, 1) for _ in range(4)]\n"
        "parts = [group.split(0) for group in groups]\n"
        "for group in groups + parts: group.__class__ = Group\n"
    )
    done = python("-c", program)
    assert (done.returncode, done.stdout) == (0, "".join(f"{n} True\n" for n in (4, 3, 2, 1, 0))), done.stderr


def test_interrupt() -> None:
    """Ctrl-C ends a wait for a stream."""
    program = ALONE + (
        "kernel = group.compile('extern \"C\" __global__ void k(volatile int* to) { while (!*to) __nanosleep(100); }').k\n"
        "import faulthandler, numpy, threading\n"
        "signal.signal(signal.SIGINT, signal.default_int_handler)\n"  # a shell's background jobs ignore it
        "faulthandler.dump_traceback_later(100, exit=True)\n"
        "flag = numpy.zeros(1, 'int32')\n"
        "kernel[1, 1](group.stream(), flag)\n"
        "try:\n"
        "  try:\n"
        "    threading.Timer(0.5, lambda: os.kill(os.getpid(), signal.SIGINT)).start()\n"
        "    group.synchronize()\n"
        "  except KeyboardInterrupt: print('interrupted')\n"
        "  try: group.synchronize(timeout=0.3)\n"
        "  except TimeoutError: print('timeout')\n"
        "finally: flag[0] = 1\n"  # else the kernel keeps the process
        "group.synchronize(); group.close()\n"
    )
    done = python("-c", program)
    assert done.stdout == "interrupted\ntimeout\n", done.stderr


# What waits for a rank that never comes, or for work, and what it prints after Ctrl-C.
INTERRUPTED = {
    "barrier": ("groups[0].barrier()", "KeyboardInterrupt"),
    "all_gather_bytes": ("groups[0].all_gather_bytes(b'x')", "KeyboardInterrupt"),
    "close": ("groups[0].close()", "groups[0].closed"),
    "connect": ("mscclgo.connect(r.id, 0, 2)", ""),
    "event": ("event.synchronize()", ""),
}


@pytest.mark.parametrize("name", INTERRUPTED)
def test_interrupted(name: str) -> None:
    """Ctrl-C ends a wait for other ranks, and fails the group if that would miss this rank."""
    call, fails = INTERRUPTED[name]
    program = (
        "import faulthandler, os, signal, threading, time, mscclgo, numpy\n"
        "faulthandler.dump_traceback_later(100, exit=True)\n"
        "signal.signal(signal.SIGINT, signal.default_int_handler)\n"
        "r, groups = mscclgo.Rendezvous(), [None, None]\n"
        "def join(rank): groups[rank] = mscclgo.connect(r.id, rank, 2)\n"
    )
    if name != "connect":
        program += (
            "threads = [threading.Thread(target=join, args=(n,)) for n in range(2)]\n"
            "for t in threads: t.start()\n"
            "for t in threads: t.join()\n"
        )
    if name == "event":
        program += (
            "kernel = groups[0].compile('extern \"C\" __global__ void k(volatile int* to) { while (!*to) __nanosleep(100); }').k\n"
            "flag = numpy.zeros(1, 'int32')\n"
            "kernel[1, 1](groups[0].stream(), flag)\n"
            "event = groups[0].stream().record()\n"
        )
    program += (
        "start = time.monotonic()\n"
        "threading.Timer(0.5, lambda: os.kill(os.getpid(), signal.SIGINT)).start()\n"
        f"try: {call}\n"
        "except KeyboardInterrupt: print('interrupted', time.monotonic() - start < 10)\n"
    )
    if fails == "KeyboardInterrupt":
        program += "try: groups[1].barrier()\nexcept mscclgo.Error as error: print('KeyboardInterrupt' in str(error))\n"
    elif fails:
        program += f"print({fails})\n"
    if name == "event":
        program += (
            "try: event.synchronize(timeout=0.3)\n"
            "except TimeoutError: print(True)\n"
            "flag[0] = 1\n"
            "event.synchronize()\n"
        )
    done = python("-c", program)
    want = "interrupted True\n" + ("True\n" if name != "connect" else "")
    assert (done.returncode, done.stdout) == (0, want), done.stderr


def test_signals() -> None:
    """The library leaves Python's handlers, and its own faults to faulthandler."""
    program = ALONE + (
        "print([str(signal.getsignal(s)) for s in (signal.SIGPIPE, signal.SIGTERM)])\n"
        "import faulthandler, ctypes; faulthandler.enable(); sys.stdout.flush()\n"
        "ctypes.string_at(8)\n"
    )
    done = python("-c", program)
    assert done.returncode == -signal.SIGSEGV, done
    assert "Segmentation fault" in done.stderr
    assert "SIG_IGN" in done.stdout or "1" in done.stdout


def test_fork() -> None:
    """A child has no socket of the library, and is refused."""
    program = (
        "import os\n"
        "def sockets(): return sum('socket:' in os.path.realpath('/proc/self/fd/' + f) for f in os.listdir('/proc/self/fd'))\n"
        "before = sockets()\n" + ALONE + "assert sockets() > before\n"
        "child = os.fork()\n"
        "if child == 0:\n"
        "  if sockets() != before: os._exit(1)\n"
        "  try: group.barrier()\n"
        "  except mscclgo.InvalidError as error: print(error, flush=True)\n"
        "  os._exit(0)\n"
        "assert os.waitpid(child, 0)[1] == 0\n"
        "group.barrier(); group.close()\n"
    )
    done = python("-c", program)
    assert done.returncode == 0, done.stderr
    assert "fork" in done.stdout and "spawn" in done.stdout


def test_other_library() -> None:
    done = python("-c", "import mscclgo", MSCCLGO_LIBRARY="/nonexistent/libmscclgo.so")
    assert "UnsupportedError" in done.stderr and "MSCCLGO_LIBRARY" in done.stderr
    done = python("-c", "import mscclgo", MSCCLGO_LIBRARY="libc.so.6")
    assert "UnsupportedError" in done.stderr and "is not libmscclgo.so" in done.stderr


def test_other_version(monkeypatch: Any) -> None:
    monkeypatch.setattr(_library, "VERSION", (0, 9, 0))
    with pytest.raises(mscclgo.UnsupportedError, match="install both in one version: .*pip install --force-reinstall"):
        _library.check(ctypes.CDLL(_library.library._name), "the library")


def test_log() -> None:
    program = (
        "import mscclgo, socket, threading\n"
        "came = threading.Event()\n"
        "def log(level, text): print(level, text); came.set()\n"
        "mscclgo.set_log(log)\n"
        "s = socket.socket(); s.bind(('127.0.0.1', 0)); port = s.getsockname()[1]; s.close()\n"
        "with mscclgo.Rendezvous(f'127.0.0.1:{port}') as r:\n"
        "  c = socket.create_connection(('127.0.0.1', port)); c.sendall(b'x' * 4096)\n"
        "  assert came.wait(60)\n"
        "  mscclgo.set_log(None)\n"
    )
    done = python("-c", program)
    assert done.returncode == 0, done.stderr
    assert "refused" in done.stdout


def header() -> str:
    for folder in (Path(mscclgo.include()), Path(__file__).parent.parent.parent / "capi"):
        if (folder / "mscclgo.h").exists():
            return (folder / "mscclgo.h").read_text()
    raise FileNotFoundError("mscclgo.h")


def letter(parameter: str) -> str:
    """The letter in FUNCTIONS of a parameter of C."""
    kind = parameter.rpartition(" ")[0]
    name = parameter.rpartition(" ")[2]
    if kind == "const char*" and not name.startswith("*"):
        return "s"
    numbers = dict(int="i", int64_t="l", uint64_t="L", uint32_t="I", size_t="z")
    numbers |= dict(mscclgo_type="i", mscclgo_operation="i", mscclgo_collective="i")
    return numbers.get(kind, "p")


def test_prototypes() -> None:
    """The functions are declared here as in the header."""
    found = re.findall(r"^MSCCLGO_API mscclgo_status mscclgo_(\w+)\((.*?)\);", header(), re.S | re.M)
    want = {name: "".join(letter(p.strip()) for p in re.sub(r"\s+", " ", text).split(",")) for name, text in found}
    assert _library.FUNCTIONS == want


def test_structs() -> None:
    """The structs have the fields of the header, in their order."""
    text = re.sub(r"//.*", "", header())
    for name, struct in dict(
        group_options=_library.GroupOptions,
        group_config=_library.GroupConfig,
        device_info=_library.DeviceInfo,
        compile_options=_library.CompileOptions,
        parameter=_library.Parameter,
        parameter_type=_library.ParameterType,
        launch_config=_library.LaunchConfig,
        channel_options=_library.ChannelOptions,
        pipe_options=_library.PipeOptions,
        trigger=_library.Trigger,
    ).items():
        body = re.search(r"typedef struct \{([^}]*)\} mscclgo_%s;" % name, text)
        assert body is not None
        fields = [re.sub(r"\[.*", "", f).split()[-1].lstrip("*") for part in body[1].split(";") if part.strip() for f in part.split(",")]
        assert [f[0] for f in struct._fields_] == fields
    message = re.search(r"typedef struct \{([^}]*)\} mscclgo_message;", text)
    assert message is not None
    codes = {"void*": "Q", "mscclgo_stream": "Q", "uint64_t": "Q", "int": "i", "mscclgo_type": "i", "mscclgo_direction": "i"}
    fields = [part.split()[0] for part in message[1].split(";") if part.strip()]
    assert _library.MESSAGE.format == "=" + "".join(codes[field] for field in fields) + "4x"
    assert f"#define MSCCLGO_WHY_BYTES {_library.WHY_BYTES}\n" in text
    handles = {
        "fifo_handle": _library.FIFO_HANDLE_BYTES,
        "group_handle": _library.GROUP_HANDLE_BYTES,
        "peer_memory_handle": _library.PEER_MEMORY_HANDLE_BYTES,
        "pipe_set": _library.PIPE_SET_BYTES,
    }
    for name, bytes in handles.items():
        words = re.search(r"uint64_t \w+\[(\d+)\];\s*\} mscclgo_%s;" % name, text)
        assert words is not None and 8 * int(words[1]) == bytes


def test_documented() -> None:
    """Every exported name has a comment, and so have its methods."""
    for name in mscclgo.__all__:
        exported = getattr(mscclgo, name)
        assert inspect.getdoc(exported), name
        for method, function in vars(exported).items() if inspect.isclass(exported) else ():
            if inspect.isfunction(function) and not method.startswith("_"):
                assert inspect.getdoc(function), f"{name}.{method}"


def test_default_group() -> None:
    """Every collective of a group is there for the default group, with the same arguments."""
    functions = dict(vars(mscclgo.Group))
    collectives = [
        name
        for name, function in functions.items()
        if inspect.isfunction(function) and "stream" in inspect.signature(function).parameters and not name.startswith("_")
    ]
    assert "all_reduce" in collectives and "scatter" in collectives
    for name in set(collectives) - {"stream", "address"}:  # which are for other methods
        method = list(inspect.signature(functions[name]).parameters.values())[1:]
        assert list(inspect.signature(getattr(mscclgo, name)).parameters.values()) == method, name


def test_version() -> None:
    release = "%d.%d.%d" % _library.VERSION
    assert mscclgo.__version__ in (release, release + ".dev0")
    number = _library.library.mscclgo_version()
    assert (number >> 16, number >> 8 & 255, number & 255) == _library.VERSION


def test_wheel() -> None:
    """What is installed has the package's version and license, and the licenses of the code that its library links."""
    try:
        wheel = metadata.distribution("mscclgo")
    except metadata.PackageNotFoundError:
        pytest.skip("the package is not installed from its wheel")
    assert wheel.version == mscclgo.__version__
    assert wheel.metadata["License-Expression"] == "MIT AND Apache-2.0 AND BSD-3-Clause"
    for name, text in {
        "LICENSE": "MIT License",
        "linked/go": "The Go Authors",
        "linked/golang.org-x-sys": "The Go Authors",
        "linked/github.com-NVIDIA-go-nvml": "Apache License",
    }.items():
        assert name in (wheel.metadata.get_all("License-File") or [])
        assert text in (wheel.read_text(f"licenses/{name}") or "")


def test_packaged_compiler(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The library is told of a package's NVRTC, first of the one for PyTorch's version of CUDA."""
    from mscclgo import _compiler

    def library(path: str) -> Path:
        file = tmp_path / path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.touch()
        return file

    def found() -> Optional[str]:
        _compiler.find()
        return os.environ.pop(_compiler.VARIABLE, None)

    monkeypatch.setattr(sys, "path", [str(tmp_path / "none"), str(tmp_path / "a"), str(tmp_path / "b")])
    monkeypatch.delenv(_compiler.VARIABLE, raising=False)
    monkeypatch.delitem(sys.modules, "torch", raising=False)
    assert found() is None
    monkeypatch.chdir(tmp_path)
    library("nvidia/cu13/lib/libnvrtc.so.13")
    monkeypatch.setattr(sys, "path", ["", "."] + sys.path)
    assert found() is None
    twelve = library("a/nvidia/cuda_nvrtc/lib/libnvrtc.so.12")
    assert found() == str(twelve)
    thirteen = library("b/nvidia/cu13/lib/libnvrtc.so.13")
    assert found() == str(thirteen)
    torch = type(sys)("torch")
    torch.version = type(sys)("version")  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "torch", torch)
    for cuda, want in (("12.8", twelve), ("13.0", thirteen), (None, thirteen)):
        torch.version.cuda = cuda
        assert found() == str(want)
    monkeypatch.setenv(_compiler.VARIABLE, "mine")
    assert found() == "mine"
