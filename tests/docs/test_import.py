"""What `import ulak` loads, and that all its names are there."""

from __future__ import annotations

import subprocess
import sys

import ulak

LOOK = """
import sys, ulak
before = set(sys.modules)
print(sorted({"ulak.app", "ulak.storage.sqlite.store", "ulak.cli", "rich", "sqlite3", "cronsim"} & before))
print(ulak.App.__module__, "ulak.app" in sys.modules)
"""


def test_an_import_loads_no_tasks_and_no_stores_that_nobody_asked_for() -> None:
    done = subprocess.run([sys.executable, "-c", LOOK], capture_output=True, text=True, check=True)
    assert done.stdout == "[]\nulak.app True\n"


def test_every_public_name_is_there_and_listed() -> None:
    assert [name for name in ulak.__all__ if not hasattr(ulak, name)] == []
    assert set(ulak.__all__) <= set(dir(ulak))
    assert not hasattr(ulak, "Appp")
