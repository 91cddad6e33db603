"""What went wrong, in a few lines and as an exit status."""

from __future__ import annotations

from ulak.cli.output import Unwritten, visible
from ulak.errors import (
    ArgumentError,
    ConfigError,
    QueueFull,
    ResultTimeout,
    SchemaError,
    StorageBusy,
    StorageUnavailable,
    UlakError,
)

FAILED = 1
USAGE = 2
UNAVAILABLE = 69  # EX_UNAVAILABLE of sysexits.h
UNWRITTEN = 74  # EX_IOERR
TRY_AGAIN = 75  # EX_TEMPFAIL

ERROR_LINES_MAX = 6
ERROR_CHARS_MAX = 2_000
"""The longest line of an error: what somebody gave as a name may be of any length."""

NO_MEMORY = """this process has no memory left
  the machine has none, or a limit is reached: ulimit -v, or a container's"""
_NO_THREADS = "can't start new thread"
_NO_MORE = (
    "the system gives no more\n  it has no memory, or a limit is reached: ulimit -u or -v, or a container's"
)


def explained(error: Exception, *, verbose: bool) -> str:
    """What went wrong, in at most six lines; verbose: after them that say where."""
    lines: list[str] = []
    if verbose:
        import traceback

        lines.extend("".join(traceback.format_exception(error)).splitlines())
    match error:
        case UlakError():
            text = f"error {error.code}: {str(error).removesuffix(f' [{error.code}]')}"
        case OSError():
            text = f"error: {error}"
        case MemoryError():
            text = f"error: {NO_MEMORY}"
        case RuntimeError() if str(error) == _NO_THREADS:
            text = f"error: {error}: {_NO_MORE}"
        case _:
            text = f"error: {type(error).__name__}: {error}\n  this is a bug in ulak; -v shows where"
    lines.extend(map(_cut, text.splitlines()[:ERROR_LINES_MAX]))
    return "\n".join(map(visible, lines))


def _cut(line: str) -> str:
    return line if len(line) <= ERROR_CHARS_MAX else f"{line[: ERROR_CHARS_MAX - 1]}…"


def status_of(error: Exception) -> int:
    """With which status a command ends that this has stopped."""
    match error:
        case ConfigError() | ArgumentError():
            return USAGE
        case StorageUnavailable() | SchemaError():
            return UNAVAILABLE
        case StorageBusy() | QueueFull() | ResultTimeout():
            return TRY_AGAIN
        case Unwritten():
            return UNWRITTEN
        case _:
            return FAILED
