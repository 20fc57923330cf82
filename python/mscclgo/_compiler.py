"""Where NVIDIA's compiler library is, which kernels for GPUs are compiled by."""

from __future__ import annotations

import os
import shutil
import sys
from typing import Optional, Sequence

# The files of the packages nvidia-cuda-nvrtc, on which PyTorch depends.
_FILES = (
    "nvidia/cu13/lib/libnvrtc.so.13",
    "nvidia/cuda_nvrtc/lib/libnvrtc.so.13",
    "nvidia/cuda_nvrtc/lib/libnvrtc.so.12",
)
_SET = ("MSCCLGO_NVRTC", "CUDA_HOME", "CUDA_PATH")
_TOOLKIT = "/usr/local/cuda"


def packaged(folders: Sequence[str]) -> Optional[str]:
    """Returns NVRTC of the packages in these folders, if it is there."""
    for folder in folders:
        for file in _FILES:
            path = os.path.join(folder or ".", file)
            if os.path.exists(path):
                return path
    return None


def find() -> None:
    """Tells the library of Python's own NVRTC, by MSCCLGO_NVRTC, where no toolkit is installed or named."""
    if any(os.environ.get(name) for name in _SET) or shutil.which("nvcc") or os.path.exists(_TOOLKIT):
        return
    path = packaged(sys.path)
    if path is not None:
        os.environ["MSCCLGO_NVRTC"] = path
