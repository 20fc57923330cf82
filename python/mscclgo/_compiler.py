"""Where NVIDIA's compiler library is in packages of Python, and the images of kernels that are in this one."""

from __future__ import annotations

import os
import sys
from typing import Optional, Sequence

# The variable that names NVRTC for the library where it finds none in the usual places.
VARIABLE = "MSCCLGO_NVRTC_FALLBACK"

# The variable that names the folder of images.
IMAGES = "MSCCLGO_IMAGES"

# The files of the packages of NVRTC, on which PyTorch depends, by CUDA's major version.
_FILES = {
    "13": ("nvidia/cu13/lib/libnvrtc.so.13", "nvidia/cuda_nvrtc/lib/libnvrtc.so.13"),
    "12": ("nvidia/cuda_nvrtc/lib/libnvrtc.so.12",),
}


def packaged(folders: Sequence[str], version: str) -> Optional[str]:
    """Returns NVRTC of a package in these folders: of PyTorch's version of CUDA, if it is there. The
    working directory, which is "" among them, has no packages."""
    for major in sorted(_FILES, key=lambda major: (major != version, -int(major))):
        for folder in folders:
            for file in _FILES[major]:
                path = os.path.join(folder, file)
                if os.path.isabs(path) and os.path.exists(path):
                    return path
    return None


def find() -> None:
    """Tells the library of the images of this package, and of a package's NVRTC, which it takes where it
    finds no other."""
    os.environ.setdefault(IMAGES, os.path.join(os.path.dirname(os.path.abspath(__file__)), "images"))
    if VARIABLE in os.environ:
        return
    torch = sys.modules.get("torch")
    cuda = getattr(getattr(torch, "version", None), "cuda", None) or ""
    path = packaged(sys.path, str(cuda).partition(".")[0])
    if path is not None:
        os.environ[VARIABLE] = path
