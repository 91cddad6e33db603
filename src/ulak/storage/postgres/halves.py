"""The numbered migrations of the schema: files, in halves: what comes before a deploy, and what after it.

`NNNN.before.sql` is done before programs of the new version start. It only adds, so that programs of the
version before work on. `NNNN.after.sql` takes away what only they used; it is done once none of them runs.
"""

from __future__ import annotations

import re
from enum import Enum
from importlib import resources
from importlib.resources.abc import Traversable

import msgspec

FOLDER: Traversable = resources.files(__package__) / "migrations"
_NAME = re.compile(r"(\d{4})\.(before|after)\.sql")


class Half(Enum):
    """When it is done."""

    BEFORE = "before"
    AFTER = "after"


class Part(msgspec.Struct, frozen=True):
    """One half of one migration. text: its statements."""

    number: int
    half: Half
    text: str


def newest() -> int:
    """The newest schema this version knows: the number of its last migration."""
    return max(int(name[1]) for name in _names())


def parts(above: int, half: Half) -> list[Part]:
    """These halves of the migrations after that number, in order."""
    found = [name for name in _names() if int(name[1]) > above and name[2] == half.value]
    return [
        Part(int(name[1]), half, (FOLDER / name[0]).read_text(encoding="utf-8"))
        for name in sorted(found, key=lambda name: name[0])
    ]


def _names() -> list[re.Match[str]]:
    return [name for file in FOLDER.iterdir() if (name := _NAME.fullmatch(file.name))]
