"""Names the wheel: it holds a library of one platform, and is of no version of Python."""

import os
import shutil

from setuptools import setup
from setuptools.command.bdist_wheel import bdist_wheel
from setuptools.dist import Distribution


class PlatformDistribution(Distribution):
    def has_ext_modules(self) -> bool:
        return True


class PlatformWheel(bdist_wheel):
    def get_tag(self) -> "tuple[str, str, str]":
        return "py3", "none", os.environ.get("MSCCLGO_PLATFORM") or super().get_tag()[2]

    def write_wheelfile(self, wheelfile_base: str, *arguments: str) -> None:
        super().write_wheelfile(wheelfile_base, *arguments)
        sboms = os.path.join(wheelfile_base, "sboms")  # PEP 770
        os.makedirs(sboms)
        shutil.copy("mscclgo.spdx.json", sboms)


setup(distclass=PlatformDistribution, cmdclass={"bdist_wheel": PlatformWheel})
