"""The version of the package, by which the wheel is named: that of version.go, as Python writes it."""

from __future__ import annotations

__version__ = "0.1.0"
