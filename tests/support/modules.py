"""Modules that a test writes and imports."""

from __future__ import annotations

import contextlib
import importlib
import sys
from collections.abc import Iterator
from pathlib import Path


@contextlib.contextmanager
def forgotten(folder: Path) -> Iterator[None]:
    """What is imported from this folder inside is imported anew next time."""
    importlib.invalidate_caches()
    try:
        yield
    finally:
        for name, module in list(sys.modules.items()):
            paths = [getattr(module, "__file__", None), *getattr(module, "__path__", [])]
            if any(path is not None and Path(path).is_relative_to(folder) for path in paths):
                del sys.modules[name]
        importlib.invalidate_caches()
