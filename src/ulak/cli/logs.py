"""What the logger "ulak" says, on stderr: for people, or as JSON or logfmt, one line a record."""

from __future__ import annotations

import json
import logging
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from typing import TYPE_CHECKING, TypeAlias

from ulak.cli.output import encodable, visible

if TYPE_CHECKING:
    from ulak.cli.spout import Spout

FORMATS = ("console", "json", "logfmt")
LEFT_OPEN = "left_open"
"""What a record has that tells how many jobs a pool leaves open, which a command says itself."""

_EXTRAS = ("job_id", "queue", "task", "attempt")

Naming: TypeAlias = Callable[[str], None]


def level_of(verbose: int) -> int:
    """The lowest level that is shown: WARNING, with -v INFO, with -vv DEBUG."""
    return (logging.WARNING, logging.INFO, logging.DEBUG)[min(verbose, 2)]


@contextmanager
def shown(log_format: str, level: int, *, spout: Spout | None = None) -> Iterator[Naming]:
    """While inside, show records of `level` and above. Call what it gives to name who says them.

    spout: takes the lines in the place of stderr.
    """
    logger = logging.getLogger("ulak")
    handler = _Stderr(level) if spout is None else _Spouting(level, spout)
    handler.setFormatter(formatter := _FORMATTERS[log_format]())
    before = logger.level
    logger.setLevel(level)
    logger.addHandler(handler)
    try:
        yield formatter.named
    finally:
        logger.removeHandler(handler)
        logger.setLevel(before)


class _Stderr(logging.Handler):
    """Writes to whatever `sys.stderr` is at the moment: a live line takes its place for a while."""

    def emit(self, record: logging.LogRecord) -> None:
        stream = sys.stderr
        if stream is None or hasattr(record, LEFT_OPEN):
            return
        try:
            stream.write(encodable(self.format(record), stream.encoding or "utf-8") + "\n")
        except (OSError, ValueError):
            # Nobody reads it any more, and there is no other place to say so. The work goes on.
            return


class _Spouting(logging.Handler):
    def __init__(self, level: int, spout: Spout) -> None:
        super().__init__(level)
        self._spout = spout

    def emit(self, record: logging.LogRecord) -> None:
        if hasattr(record, LEFT_OPEN):
            return
        if lost := self._spout.lost():
            text = f"{lost:,} lines before this one are lost, since nobody took them"
            told = {"name": "ulak", "levelno": logging.WARNING, "levelname": "WARNING", "msg": text}
            self._spout.say(self.format(logging.makeLogRecord(told)))
        self._spout.say(self.format(record))


class _Formatter(logging.Formatter):
    worker: str | None = None

    def named(self, worker: str) -> None:
        """Say with each record from here on whose it is."""
        self.worker = worker

    def fields(self, record: logging.LogRecord) -> dict[str, object]:
        """What a record says, by name, in order."""
        fields: dict[str, object] = {
            "at": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds"),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
        }
        if self.worker is not None:
            fields["worker"] = self.worker
        named = {name: getattr(record, name, None) for name in _EXTRAS}
        fields.update((name, value) for name, value in named.items() if value is not None)
        if record.exc_info:
            fields["traceback"] = self.formatException(record.exc_info)
        return fields


class _Console(_Formatter):
    def format(self, record: logging.LogRecord) -> str:
        fields = self.fields(record)
        whose = f" [{self.worker}]" if self.worker is not None else ""
        lines = [f"{fields['level']} {fields['logger']}{whose}: {fields['message']}"]
        lines.extend(str(fields.get("traceback", "")).splitlines())
        return "\n".join(visible(line) for line in lines)


class _Json(_Formatter):
    def format(self, record: logging.LogRecord) -> str:
        # Escapes of JSON for everything outside ASCII; DEL alone is left, which JSON may hold as it is.
        return json.dumps(self.fields(record)).replace("\x7f", "\\u007f")


class _Logfmt(_Formatter):
    def format(self, record: logging.LogRecord) -> str:
        return " ".join(f"{name}={_logfmt_value(value)}" for name, value in self.fields(record).items())


def _logfmt_value(value: object) -> str:
    text = visible(str(value).replace("\\", "\\\\").replace("\n", "\\n"))
    if text and not any(character in text for character in ' ="\\'):
        return text
    return '"' + text.replace('"', '\\"') + '"'


_FORMATTERS = {"console": _Console, "json": _Json, "logfmt": _Logfmt}
