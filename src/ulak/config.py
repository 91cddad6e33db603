"""What is set beside the command line: by `ULAK_*` in the environment, or by `[tool.ulak]` in pyproject.toml.

A setting has one name: the option `--max-jobs` is `ULAK_MAX_JOBS` and `max-jobs`. The option comes first,
then the environment, then the file, then the default. Nothing but the command line reads these: an App is
what its module says.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import NamedTuple

from ulak.errors import ConfigError

FILE = "pyproject.toml"
PREFIX = "ULAK_"

_WORK = (
    *("concurrency", "queues", "processes", "executor", "grace", "max-jobs", "max-rss", "health"),
    "log-format",
)
SETTINGS: Mapping[str, str] = {"url": "", "late": "doctor", **dict.fromkeys(_WORK, "work")}
"""Every setting, and the command whose option it is; `url` is that of all which look into a store."""

_BYTES_MAX = 1024 * 1024
# What is no nearer may be somebody's own variable, and is left alone.
_NEAR = 0.8


class Value(NamedTuple):
    """A setting as it was written, and where."""

    text: str
    source: str


def settings_of(environment: Mapping[str, str], folder: Path) -> dict[str, Value]:
    """What is set in the environment and in this folder's pyproject.toml, by name; the environment wins.

    Raises ConfigError for a name that is no setting, with the nearest one, and for an unreadable file.
    """
    return {**_of_file(folder / FILE), **_of_environment(environment)}


def variable_of(name: str) -> str:
    """What a setting is called in the environment.

    >>> variable_of("max-jobs")
    'ULAK_MAX_JOBS'
    """
    return PREFIX + name.replace("-", "_").upper()


def _of_environment(environment: Mapping[str, str]) -> dict[str, Value]:
    names = {variable_of(name): name for name in SETTINGS}
    found = {}
    for variable, text in environment.items():
        if not variable.startswith(PREFIX):
            continue
        if variable in names:
            # An empty one is none, as a shell has it that never set it.
            if text:
                found[names[variable]] = Value(text, variable)
        elif near := _nearest(variable, names):
            raise ConfigError(f"{variable[:64]} is no setting; did you mean {near}?")
    return found


def _of_file(file: Path) -> dict[str, Value]:
    source = f"[tool.ulak] in {file.name}"
    found = {}
    for name, value in _table_of(file).items():
        if name not in SETTINGS:
            near = _nearest(name, SETTINGS, 0.5)
            hint = f"did you mean {near}?" if near else f"there is {', '.join(SETTINGS)}"
            raise ConfigError(f"{source} has {name[:64]!r}, which is no setting; {hint}")
        if name == "queues" and isinstance(value, int | float):
            raise ConfigError(f"queues of {source} is no text or list of texts, but a number")
        found[name] = Value(_text_of(value, f"{name} of {source}"), source)
    return found


def _table_of(file: Path) -> Mapping[str, object]:
    try:
        with file.open("rb") as opened:
            raw = opened.read(_BYTES_MAX)
    except (FileNotFoundError, NotADirectoryError):
        return {}
    except OSError as error:
        raise ConfigError(f"{file.name} cannot be read: {error.strerror}") from error
    if b"ulak" not in raw:
        return {}
    import tomllib

    try:
        tool = tomllib.loads(raw.decode("utf-8")).get("tool")
    except ValueError as error:
        raise ConfigError(f"{file.name} cannot be read: {error}") from error
    table = tool.get("ulak", {}) if isinstance(tool, dict) else {}
    if not isinstance(table, dict):
        raise ConfigError(f"[tool.ulak] in {file.name} is no table")
    return table


def _text_of(value: object, where: str) -> str:
    """A value of the file as an option would be given."""
    match value:
        case bool():
            pass
        case str() | int() | float():
            return str(value)
        case list() if all(isinstance(one, str) for one in value):
            return ",".join(value)
        case _:
            pass
    raise ConfigError(f"{where} is no text, number or list of texts")


def _nearest(name: str, known: Iterable[str], least: float = _NEAR) -> str:
    import difflib

    near = difflib.get_close_matches(name, list(known), 1, least)
    return near[0] if near else ""
