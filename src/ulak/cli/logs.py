"""What the logger "ulak" says, on stderr: for people, or as JSON or logfmt, one line a record."""

from __future__ import annotations

import json
import logging
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime

from ulak.cli.output import encodable, visible

FORMATS = ("console", "json", "logfmt")
_EXTRAS = ("job_id", "queue", "task", "attempt")


def level_of(verbose: int) -> int:
    """The lowest level that is shown: WARNING, with -v INFO, with -vv DEBUG."""
    return (logging.WARNING, logging.INFO, logging.DEBUG)[min(verbose, 2)]


@contextmanager
def shown(log_format: str, level: int) -> Iterator[None]:
    """While inside, show records of `level` and above."""
    logger = logging.getLogger("ulak")
    handler = _Stderr(level)
    handler.setFormatter(_FORMATTERS[log_format]())
    before = logger.level
    logger.setLevel(level)
    logger.addHandler(handler)
    try:
        yield
    finally:
        logger.removeHandler(handler)
        logger.setLevel(before)


class _Stderr(logging.Handler):
    """Writes to whatever `sys.stderr` is at the moment: a live line takes its place for a while."""

    def emit(self, record: logging.LogRecord) -> None:
        stream = sys.stderr
        if stream is None:
            return
        try:
            stream.write(encodable(self.format(record), stream.encoding or "utf-8") + "\n")
        except (OSError, ValueError):
            # Nobody reads it any more, and there is no other place to say so. The work goes on.
            return


class _Formatter(logging.Formatter):
    def fields(self, record: logging.LogRecord) -> dict[str, object]:
        """What a record says, by name, in order."""
        fields: dict[str, object] = {
            "at": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds"),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
        }
        named = {name: getattr(record, name, None) for name in _EXTRAS}
        fields.update((name, value) for name, value in named.items() if value is not None)
        if record.exc_info:
            fields["traceback"] = self.formatException(record.exc_info)
        return fields


class _Console(_Formatter):
    def format(self, record: logging.LogRecord) -> str:
        fields = self.fields(record)
        lines = [f"{fields['level']} {fields['logger']}: {fields['message']}"]
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
