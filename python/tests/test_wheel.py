"""The wheel, as scripts/wheel makes it: on which machines it runs, what is in it, and that it needs no compiler."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from importlib import metadata
from pathlib import Path

import pytest
from conftest import variables

import mscclgo
from mscclgo import _library

PACKAGE = Path(mscclgo.__file__).parent
WHEEL = os.environ.get("MSCCLGO_TEST_WHEEL")  # the file, of scripts/test-python


def test_platform() -> None:
    """The tag is one that indexes take, and all that is compiled needs no later C library than it says."""
    tag = re.search(r"Tag: py3-none-manylinux_2_(\d+)_(x86_64|aarch64)\n", metadata.distribution("mscclgo").read_text("WHEEL") or "")
    assert tag
    compiled = [*PACKAGE.glob("*.so"), *PACKAGE.glob("images/*")]
    assert len(compiled) > 10
    for path in compiled:
        data = path.read_bytes()
        versions = [(int(major), int(minor)) for major, minor in re.findall(rb"GLIBC_(\d+)\.(\d+)", data)]
        assert max(versions, default=(2, 0)) <= (2, int(tag[1])), path
        assert b"GLIBCXX_" not in data, path
        if path.suffix == ".so":  # sections with the folder of who compiled it
            assert not re.search(rb"\0\.debug_\w+\0\.debug_", data), path


@pytest.mark.skipif(WHEEL is None, reason="only the installed package is here, not the wheel")
def test_size() -> None:
    assert os.path.getsize(WHEEL or "") <= 12_000_000


def test_contents() -> None:
    """The wheel lists what is linked into its library, and has the texts of the licences."""
    distribution = metadata.distribution("mscclgo")
    files = [str(file) for file in distribution.files or []]
    sbom = next(name for name in files if name.endswith(".dist-info/sboms/mscclgo.spdx.json"))
    packages = {p["name"]: p for p in json.loads(Path(str(distribution.locate_file(sbom))).read_text())["packages"]}
    assert packages["mscclgo"]["versionInfo"] == mscclgo.__version__.replace(".dev0", "-dev")
    for name, license in ("go", "BSD-3-Clause"), ("golang.org/x/sys", "BSD-3-Clause"), ("github.com/NVIDIA/go-nvml", "Apache-2.0"):
        assert packages[name]["licenseDeclared"] == license
        assert any(file.endswith("/linked/" + name.replace("/", "-")) for file in files)
    assert distribution.metadata["Description"] and distribution.metadata.get_all("Project-URL")


def test_demo_without_a_compiler(tmp_path: Path) -> None:
    """Where there is neither a compiler nor a folder to write to, the images of the wheel are enough."""
    env = {**variables(), "PATH": str(tmp_path), "HOME": "/proc/nowhere", "TMPDIR": "/proc/nowhere"}
    for name in "MSCCLGO_CACHE", "XDG_CACHE_HOME", "CXX", "MSCCLGO_IMAGES":
        env.pop(name, None)
    done = subprocess.run([sys.executable, "-m", "mscclgo", "demo"], env=env, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    assert sorted(done.stdout.splitlines()) == [f"rank {r} of 4: all 10000 sums are right" for r in range(4)]


def test_remedies(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A library that cannot be loaded is told with what mends it."""
    monkeypatch.delenv("MSCCLGO_LIBRARY", raising=False)
    path = str(tmp_path / "libmscclgo.so")
    assert "pip install --force-reinstall" in _library.remedy(path, "cannot open shared object file", "x86_64")
    Path(path).write_bytes(b"\x7fELF" + bytes(14) + b"\xb7\x00")
    assert "it is for aarch64, and this machine is x86_64: pip install" in _library.remedy(path, "cannot open shared object file", "x86_64")
    assert "glibc 2.28 or later" in _library.remedy(path, "version `GLIBC_2.17' not found", "aarch64")
    monkeypatch.setenv("MSCCLGO_LIBRARY", path)
    assert _library.remedy(path, "invalid ELF header", "aarch64") == "MSCCLGO_LIBRARY names it"


def test_command(tmp_path: Path) -> None:
    """The command needs neither Go nor a compiler: the program mscclgo, and python -m mscclgo."""
    program = os.path.join(os.path.dirname(sys.executable), "mscclgo")
    env = {**variables(), "PATH": str(tmp_path), "CXX": "/nowhere/g++", "MSCCLGO_CACHE": str(tmp_path / "cache")}
    for start in [program], [sys.executable, "-m", "mscclgo"]:
        done = subprocess.run([*start, "--version"], env=env, capture_output=True, text=True, timeout=60)
        assert done.stdout.startswith("mscclgo v" + mscclgo.__version__.replace(".dev0", "-dev") + " "), done.stderr
    done = subprocess.run([program, "bench", "-n", "2", "-e", "4K", "-d", "f32", "all-reduce"], env=env, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0 and "# all-reduce, 2 ranks" in done.stdout, done.stderr
    done = subprocess.run([program, "bensh"], env=env, capture_output=True, text=True, timeout=60)
    assert done.returncode == 2 and 'there is no command "bensh"' in done.stderr
