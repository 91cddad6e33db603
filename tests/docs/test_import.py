"""What `import ulak` loads, and that all its names are there."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

import ulak

LOOK = """
import sys, ulak
before = set(sys.modules)
print(sorted(name for name in before if name.startswith("ulak.") or name in ("asyncio", "msgspec")))
ulak.Queue
before = set(sys.modules)
print(sorted({"ulak.app", "ulak.storage.sqlite.store", "ulak.cli", "rich", "sqlite3", "cronsim"} & before))
print(ulak.App.__module__, "ulak.app" in sys.modules)
"""


def test_an_import_loads_nothing_and_a_queue_no_tasks_and_no_stores_that_nobody_asked_for() -> None:
    done = subprocess.run([sys.executable, "-c", LOOK], capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n[]\nulak.app True\n"


def test_every_public_name_is_there_and_listed() -> None:
    assert [name for name in ulak.__all__ if not hasattr(ulak, name)] == []
    assert set(ulak.__all__) <= set(dir(ulak))
    # What is found later is what the type checkers see at once.
    assert ulak._MODULES.keys() == set(ulak.__all__)
    seen = ast.parse(Path(ulak.__file__).read_text())
    checked = [
        node for node in ast.walk(seen) if isinstance(node, ast.ImportFrom) and node.module != "typing"
    ]
    assert {name.name: node.module for node in checked for name in node.names} == ulak._MODULES
    assert not hasattr(ulak, "Appp")
