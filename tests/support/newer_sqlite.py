"""A pytest plugin that runs the suites on a current SQLite: `pytest -p tests.support.newer_sqlite ...`.

It puts pysqlite3, the standard `sqlite3` module built against a newer library, in that one's place, before
anything of ulak is imported. Processes that tests start keep the machine's own library, as two programs of
one machine may. Where pysqlite3 is not installed the run is refused, since it would prove nothing.
"""

from __future__ import annotations

import importlib
import sqlite3
import sys
from types import ModuleType

import pytest

PACKAGE = "pysqlite3"


def put_in_place() -> tuple[str, ModuleType]:
    """Replace `sqlite3` for whoever imports it from now on; the old library's version, and the new module."""
    old = sqlite3.sqlite_version
    try:
        new = importlib.import_module(PACKAGE)
    except ImportError as error:
        raise pytest.UsageError(f"{__name__} needs the package {PACKAGE}: pip install {PACKAGE}") from error
    if new.sqlite_version_info <= sqlite3.sqlite_version_info:
        raise pytest.UsageError(f"{PACKAGE} has SQLite {new.sqlite_version}, which is not newer than {old}")
    sys.modules["sqlite3"] = new
    sys.modules["sqlite3.dbapi2"] = importlib.import_module(f"{PACKAGE}.dbapi2")
    return old, new


_OLD, _NEW = put_in_place()


def pytest_report_header() -> str:
    """Say which library is under test."""
    return f"sqlite3: {_NEW.sqlite_version} of {PACKAGE} in place of {_OLD}"


def pytest_collection_finish() -> None:
    """Refuse to go on if a store has the machine's library: whoever imported it came before this plugin."""
    for name, module in sorted(sys.modules.items()):
        if name.startswith("ulak.") and getattr(module, "sqlite3", _NEW) is not _NEW:
            raise pytest.UsageError(f"{name} has SQLite {_OLD}: {__name__} was loaded too late")
