"""The settings of `ulak.config` as the options of commands take them, and `ulak config`, which shows them."""

from __future__ import annotations

import argparse
import copy
import os
import sys
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple, cast

from ulak.cli.options import Parser, add_verbose, current_folder, spelled
from ulak.config import SETTINGS, Value, settings_of
from ulak.errors import ConfigError

_DEFAULT = "default"

_DESCRIPTION = """
What is set here and by whom: by an option, by ULAK_* in the environment, by [tool.ulak] in the pyproject.toml
of this directory, or by default; the first of these counts. It takes the options that are settings, and shows
what comes of them. A name that is no setting is an error.
"""


def here() -> dict[str, Value]:
    """What is set for this process. Raises ConfigError."""
    return settings_of(os.environ, current_folder())


def fill(parser: Parser, command: str) -> None:
    """Have what is set stand where this command's options are not given. Raises ConfigError.

    `sources` of the arguments: who has set which, by the name of the argument.
    """
    sources: dict[str, str] = {}
    for name, value in here().items():
        if SETTINGS[name] == command:
            action = parser.option(f"--{name}")
            parser.set_defaults(**{action.dest: _read(action, value)})
            sources[action.dest] = value.source
    parser.set_defaults(sources=sources)


def _read(action: argparse.Action, value: Value) -> object:
    """The value as the option would have it."""
    reader = cast("Callable[[str], object]", action.type or str)
    what = f"{action.option_strings[-1].strip('-')}, set by {value.source}"
    try:
        found = reader(value.text)
    except argparse.ArgumentTypeError as error:
        raise ConfigError(f"{what}: {error}") from None
    if action.choices is not None and found not in action.choices:
        raise ConfigError(f"{what}: {value.text[:40]!r} is none of {', '.join(map(str, action.choices))}")
    return found


# ulak config


def add(commands: Any) -> None:  # noqa: ANN401 - argparse has no public name for it
    """Add the command to the command line."""
    from ulak.cli import doctor, work

    apart = _Apart()
    doctor.add(apart)
    work.add(apart)
    own = {name: apart.parsers[command or "doctor"].option(f"--{name}") for name, command in SETTINGS.items()}
    parser: Parser = commands.add_parser("config", help="what is set, and by whom", description=_DESCRIPTION)
    parser.add_argument("--json", action="store_true", help="print the result as one JSON object")
    add_verbose(parser, dest="more_verbose")
    for option in own.values():
        parser.adopt(_only_checked(option))
    parser.set_defaults(run=lambda args: run(args, own))


class _Apart:
    """Where a command can be added that is not called."""

    def __init__(self) -> None:
        self.parsers: dict[str, Parser] = {}

    def add_parser(self, name: str, **_: object) -> Parser:
        self.parsers[name] = Parser(add_help=False)
        return self.parsers[name]


def _only_checked(option: argparse.Action) -> argparse.Action:
    """The same option, whose value is left as it is written, and is not there unless it is given."""
    reader = cast("Callable[[str], object]", option.type or str)

    def read(text: str) -> str:
        reader(text)
        return text

    same = copy.copy(option)
    same.type = read
    same.default = argparse.SUPPRESS
    return same


class Setting(NamedTuple):
    """A setting, as an option would be given, and who set it. text: None where nothing is set."""

    name: str
    text: str | None
    source: str


def run(args: argparse.Namespace, own: Mapping[str, argparse.Action]) -> int:
    """Print the settings; 0. own: the option of each."""
    from ulak.cli.inspect_table import Column, print_json, print_table

    settings = shown(args, own, here())
    if args.json:
        answer = {one.name: {"value": one.text, "from": one.source} for one in settings}
        print_json({"settings": answer}, to=sys.stdout)
        return 0
    rows = [[one.name, one.text or "", one.source] for one in settings]
    print_table((Column("setting"), Column("value", cut=True), Column("from")), rows, to=sys.stdout)
    return 0


def shown(
    args: argparse.Namespace, own: Mapping[str, argparse.Action], given: Mapping[str, Value]
) -> list[Setting]:
    """Each setting, without secrets. Raises ConfigError for what its option would not take."""
    from ulak.local import check_url, masked

    found = []
    for name, option in own.items():
        if option.dest in args:
            setting = Setting(name, getattr(args, option.dest), f"--{name}")
        elif name in given:
            _read(option, given[name])
            setting = Setting(name, *given[name])
        else:
            setting = Setting(name, _text_of(option.default), _DEFAULT)
        if name == "url" and setting.text is not None:
            setting = setting._replace(text=masked(check_url(setting.text)))
        found.append(setting)
    return found


def _text_of(default: object) -> str | None:
    if default is None:
        return None
    return spelled(default) if isinstance(default, float) else str(default)
