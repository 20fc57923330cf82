"""The version of the package, by which the wheel is named: version.go's, as Python writes it."""

from __future__ import annotations

__version__ = "0.1.0"
