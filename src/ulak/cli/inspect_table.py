"""Rows for people on a terminal, and for `awk` and `grep` in a pipe."""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from datetime import UTC, datetime
from typing import NamedTuple, TextIO

from ulak.cli.output import say, visible
from ulak.durations import format_duration

_GAP = 2
_CUT_MIN = 12
_LINES_AT_ONCE = 50

NOTHING = "-"
"""What stands where there is no value, so that each line has the same number of columns."""


class Column(NamedTuple):
    """A column. right: flush right, as numbers are. cut: on a terminal, cut off rather than folded."""

    name: str
    right: bool = False
    cut: bool = False


def print_table(columns: Sequence[Column], rows: Sequence[Sequence[str]], *, to: TextIO | None) -> None:
    """Print rows under the names of their columns: fitted to a terminal, else whole, a line each."""
    if to is None:
        return
    cells = [[visible(cell) or NOTHING for cell in row] for row in rows]
    lines = _fitted(columns, cells) if to.isatty() else _plain(columns, cells)
    # A part at a time, so that a reader who has seen enough is noticed.
    for start in range(0, len(lines), _LINES_AT_ONCE):
        say("\n".join(lines[start : start + _LINES_AT_ONCE]), to=to)


def _plain(columns: Sequence[Column], rows: Sequence[Sequence[str]]) -> list[str]:
    # A name is one word, that whatever splits at blanks finds as many in the first line as in the others.
    table = [[column.name.replace(" ", "_") for column in columns], *rows]
    widths = [max(map(len, cells)) for cells in zip(*table, strict=True)]
    lines = (
        "  ".join(
            cell.rjust(width) if column.right else cell.ljust(width)
            for column, cell, width in zip(columns, row, widths, strict=True)
        )
        for row in table
    )
    return [line.rstrip() for line in lines]


def _fitted(columns: Sequence[Column], rows: Sequence[Sequence[str]]) -> list[str]:
    """Lines of a table; where a terminal is too narrow for it, a line a cell, so that no word is broken."""
    import io

    from rich.cells import cell_len
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    # Into a text first: it goes out by `say`, which knows what the stream can encode.
    page = io.StringIO()
    console = Console(file=page, force_terminal=True, highlight=False, legacy_windows=False)
    widths = [max(map(cell_len, cells)) for cells in zip([one.name for one in columns], *rows, strict=True)]
    others = sum(width + _GAP for column, width in zip(columns, widths, strict=True) if not column.cut)
    words = [max(map(_longest, cells)) for cells in zip([one.name for one in columns], *rows, strict=True)]
    least = [
        min(width, _CUT_MIN) if column.cut else word
        for column, width, word in zip(columns, widths, words, strict=True)
    ]
    if rows and sum(least) + _GAP * (len(columns) - 1) > console.width:
        return _apart(columns, rows)
    room = max(_CUT_MIN, console.width - others)
    style = "" if os.environ.get("NO_COLOR") else "bold"
    table = Table(box=None, pad_edge=False, padding=(0, _GAP, 0, 0), header_style=style)
    for column, word in zip(columns, words, strict=True):
        table.add_column(
            Text(column.name),
            justify="right" if column.right else "left",
            no_wrap=column.cut,
            overflow="ellipsis" if column.cut else "fold",
            min_width=None if column.cut else word,
            max_width=room if column.cut else None,
        )
    for row in rows:
        table.add_row(*map(Text, row))
    console.print(table)
    return [line.rstrip() for line in page.getvalue().splitlines()]


def _longest(cell: str) -> int:
    from rich.cells import cell_len

    return max(map(cell_len, cell.split()), default=0)


def _apart(columns: Sequence[Column], rows: Sequence[Sequence[str]]) -> list[str]:
    width = max(len(column.name) for column in columns) + _GAP
    lines: list[str] = []
    for row in rows:
        lines += [f"{column.name:<{width}}{cell}" for column, cell in zip(columns, row, strict=True)]
        lines.append("")
    return lines[:-1]


def print_json(value: object, *, to: TextIO | None) -> None:
    """Print one JSON object on one line."""
    say(json_text(value), to=to)


def json_text(value: object) -> str:
    """JSON on one line, in ASCII: control characters are escaped as JSON has it."""
    # DEL alone is left by the encoder, and JSON may hold it as it is.
    return json.dumps(value).replace("\x7f", "\\u007f")


def age(duration_s: float | None) -> str:
    """A duration in one word, for a cell; nothing if there is none.

    >>> age(185.0)
    '3m05s'
    """
    return "" if duration_s is None else format_duration(max(0.0, duration_s)).replace(" ", "")


def clock_time(at: float) -> str:
    """An instant for people, in UTC, to a millisecond."""
    return f"{datetime.fromtimestamp(at, UTC):%Y-%m-%d %H:%M:%S.%f}"[:-3] + "Z"


def iso_time(at: float | None) -> str | None:
    """An instant for programs, in UTC; None if there is none."""
    return None if at is None else datetime.fromtimestamp(at, UTC).isoformat()


def many(number: int, noun: str) -> str:
    """So many of something.

    >>> many(1, "job"), many(2, "job")
    ('1 job', '2 jobs')
    """
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"
