"""How a command line is read: exact names, typed values, and errors that name the nearest right one."""

from __future__ import annotations

import argparse
import itertools
import math
import re
from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, NamedTuple, NoReturn

from ulak.cli.output import written
from ulak.durations import parse_duration
from ulak.errors import ArgumentError, ConfigError

if TYPE_CHECKING:
    from pathlib import Path

    from _typeshed import SupportsWrite

_WORD_CHARS_MAX = 40
_HOST_CHARS_MAX = 255
_LOOPBACK = "127.0.0.1"
_SIZE = re.compile(r"([0-9]+(?:\.[0-9]+)?)\s*([KMG])(?:i?B)?", re.IGNORECASE)
_UNITS_BYTES = {"K": 2**10, "M": 2**20, "G": 2**30}
_SIZE_MAX = 2**50


class Parser(argparse.ArgumentParser):
    """A parser whose errors are `ConfigError`s of two lines. Options are not abbreviated: a script that says
    `--work` would break with the next option that starts so.
    """

    def __init__(self, **kwargs: object) -> None:
        super().__init__(allow_abbrev=False, **kwargs)  # type: ignore[arg-type]
        self.set_defaults(parser=self)

    def read(self, arguments: Sequence[str]) -> argparse.Namespace | None:
        """The parsed arguments; None after --help and --version, which have been printed then.

        Raises ConfigError.
        """
        # Left to argparse, the value of an unknown option would be taken for a command.
        for argument in itertools.takewhile(lambda word: word.startswith("-"), arguments):
            if argument.startswith("--") and argument.partition("=")[0] not in self._option_string_actions:
                self.refuse(argument)
        try:
            args, unknown = self.parse_known_args(arguments)
        except SystemExit:
            return None
        if unknown:
            chosen: Parser = args.parser
            chosen.refuse(unknown[0])
        args.verbose += args.more_verbose
        args.argv = list(arguments)
        return args

    def below(self, command: str) -> Parser:
        """The parser of one of its commands."""
        (commands,) = (one.choices for one in self._actions if isinstance(one.choices, dict))
        parser: Parser = commands[command]
        return parser

    def option(self, name: str) -> argparse.Action:
        """One of its options, by its name with the hyphens."""
        return self._option_string_actions[name]

    def adopt(self, option: argparse.Action) -> None:
        """Have this option of another parser too."""
        self._add_action(option)

    def refuse(self, argument: str) -> NoReturn:
        """Raise ConfigError for an argument that this command does not have."""
        name = argument.partition("=")[0]
        if not name.startswith("-"):
            self.error(f"unexpected argument {_quoted(argument)}")
        hint = _nearest(name, self._option_string_actions)
        if not hint and self._subparsers is not None:
            hint = "; the options of a command come after it"
        self.error(f"unknown option {_quoted(name)}{hint}")

    def error(self, message: str) -> NoReturn:
        """Raise ConfigError with the message and where to read on."""
        raise ConfigError(f"{message.removeprefix('argument ')}\n  see {self.prog} --help")

    def _print_message(self, message: str, file: SupportsWrite[str] | None = None) -> None:
        # As it is, but for swallowing errors: who asked for help is told that it could not be written.
        if file is not None:
            with written(file):
                file.write(message)

    def _check_value(self, action: argparse.Action, value: object) -> None:
        choices = action.choices
        if choices is not None and value not in choices:
            what = "value" if action.option_strings else "command"
            of = f"{action.option_strings[0]}: " if action.option_strings else ""
            hint = _nearest(str(value), choices) or f"; there is {', '.join(choices)}"
            self.error(f"{of}unknown {what} {_quoted(str(value))}{hint}")


def add_verbose(parser: argparse.ArgumentParser, *, dest: str = "verbose") -> None:
    """`-v`, which may stand before the command and after it; together they count."""
    parser.add_argument("-v", "--verbose", action="count", default=0, dest=dest, help="say more; -vv all")


def current_folder() -> Path:
    """The current directory. Raises ConfigError where it was removed, as a deploy may do."""
    from pathlib import Path

    try:
        return Path.cwd()
    except FileNotFoundError:
        text = "the current directory was removed, so no module can be found in it\n  go to one that is there"
        raise ConfigError(text) from None


def whole(least: int, most: int) -> Callable[[str], int]:
    """Reads an int from `least` to `most`."""

    def read(text: str) -> int:
        try:
            value = int(text)
        except ValueError:
            value = least - 1
        if not least <= value <= most:
            raise argparse.ArgumentTypeError(
                f"{_quoted(text)} is not a whole number from {least:,} to {most:,}"
            )
        return value

    return read


def any_int(text: str) -> int:
    """Reads an int of any size."""
    try:
        return int(text)
    except ValueError:
        raise argparse.ArgumentTypeError(f"{_quoted(text)} is not a whole number") from None


def share(text: str) -> float:
    """Reads a part of a whole: 0 to 1, or 0% to 100%."""
    percent = text.endswith("%")
    value = _number(text.removesuffix("%")) / (100 if percent else 1)
    if not 0 <= value <= 1:
        raise argparse.ArgumentTypeError(f"{_quoted(text)} is not a share; write 0.2 or 20%, at most 100%")
    return value


def per_second(text: str) -> float:
    """Reads a rate: a finite number from 0."""
    value = _number(text)
    if not 0 <= value < math.inf:
        raise argparse.ArgumentTypeError(f"{_quoted(text)} is not a number per second, such as 500 or 0.5")
    return value


def valid_text(text: str) -> str:
    """Reads a text that a store can hold; an argument that is no valid UTF-8 is none."""
    try:
        text.encode()
    except UnicodeEncodeError:
        raise argparse.ArgumentTypeError(f"{_quoted(text)} is no valid text") from None
    return text


def duration(text: str) -> float:
    """Reads a duration such as 20ms, in seconds."""
    try:
        return parse_duration(text)
    except ArgumentError as error:
        raise argparse.ArgumentTypeError(str(error.args[0])) from None


def size(text: str) -> int:
    """Reads a number of bytes such as 512M.

    >>> size("512M"), size("1.5g"), size("64KiB")
    (536870912, 1610612736, 65536)
    """
    match = _SIZE.fullmatch(text.strip()) if len(text) <= _WORD_CHARS_MAX else None
    bytes_ = float(match[1]) * _UNITS_BYTES[match[2].upper()] if match else 0.0
    if not 1 <= bytes_ <= _SIZE_MAX:
        raise argparse.ArgumentTypeError(
            f"cannot read {_quoted(text)} as a size; write a number with K, M or G, such as 512M or 1.5G"
        )
    return int(bytes_)


class Address(NamedTuple):
    """Where to listen, or to ask."""

    host: str
    port: int

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


def address(text: str) -> Address:
    """Reads `HOST:PORT`; without a host it is this machine alone.

    >>> str(address(":9100")), str(address("9100")), str(address("[::1]:9100"))
    ('127.0.0.1:9100', '127.0.0.1:9100', '[::1]:9100')
    """
    host, _, port = text.rpartition(":")
    if not (port.isascii() and port.isdecimal()) or int(port) > 65_535 or len(host) > _HOST_CHARS_MAX:
        raise argparse.ArgumentTypeError(
            f"cannot read {_quoted(text)} as an address; write :9100 or 0.0.0.0:9100"
        )
    return Address(host.removeprefix("[").removesuffix("]") or _LOOPBACK, int(port))


def spelled_size(size_bytes: float) -> str:
    """A number of bytes in a few characters, in the largest unit that keeps it above 1.

    >>> spelled_size(512 * 2**20), spelled_size(1.5 * 2**30), spelled_size(10)
    ('512M', '1.5G', '10B')
    """
    for unit in ("G", "M", "K"):
        if size_bytes >= _UNITS_BYTES[unit]:
            return f"{size_bytes / _UNITS_BYTES[unit]:.4g}{unit}"
    return f"{size_bytes:.0f}B"


def spelled(duration_s: float) -> str:
    """A duration as a command line takes it, exact to a nanosecond.

    >>> spelled(0.05), spelled(3600.0)
    ('0.05s', '3600s')
    """
    return f"{duration_s:.9f}".rstrip("0").rstrip(".") + "s"


def _number(text: str) -> float:
    """The number, or NaN, which is in no range."""
    try:
        return float(text)
    except ValueError:
        return math.nan


def _nearest(name: str, known: Iterable[str]) -> str:
    """A hint at the nearest known name; empty if none is near."""
    import difflib

    near = difflib.get_close_matches(name, list(known), 1)
    return f"; did you mean {near[0]}?" if near else ""


def _quoted(text: str) -> str:
    return repr(text if len(text) <= _WORD_CHARS_MAX else f"{text[: _WORD_CHARS_MAX - 1]}…")
