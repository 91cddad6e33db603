"""What an examination finds: a part per thing it looked at."""

from __future__ import annotations

from collections.abc import Mapping

import msgspec


class Finding(msgspec.Struct, frozen=True):
    """Something worth saying, and what to do about it. is_problem: wrong; else a note: it is only advice."""

    what: str
    fix: str
    is_problem: bool = True


class Part(msgspec.Struct, frozen=True):
    """One thing that was looked at: as a line of text, as values for a program, and what is wrong with it."""

    name: str
    text: str
    values: Mapping[str, object] = msgspec.field(default_factory=dict)
    findings: tuple[Finding, ...] = ()


def finding_of(error: Exception) -> Finding:
    """An error as a finding: its first sentence is what is wrong, the rest is what to do."""
    text = str(error.args[0]) if error.args else str(error)
    what, separator, fix = text.partition("\n")
    if not separator:
        what, separator, fix = text.rpartition("; ")
    if not separator:
        what, fix = text, "see the message"
    return Finding(what, " ".join(fix.split()))


def bytes_text(number: int) -> str:
    """A size as people read it.

    >>> bytes_text(900), bytes_text(12_345_678)
    ('900 B', '11.8 MiB')
    """
    size = float(number)
    for unit in ("B", "KiB", "MiB", "GiB"):
        if size < 1024:
            return f"{number} B" if unit == "B" else f"{size:.1f} {unit}"
        size /= 1024
    return f"{size:.1f} TiB"
