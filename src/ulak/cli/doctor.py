"""`ulak doctor`: what is in force in a store and why, and what is wrong with it, each with its remedy."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, TextIO

from ulak.cli.explain import UNAVAILABLE
from ulak.cli.inspect import command
from ulak.cli.options import duration

if TYPE_CHECKING:
    from ulak.cli.inspect_open import Target
    from ulak.cli.inspect_parts import Finding, Part

_NAME_COLUMNS = 12

_DESCRIPTION = """
Says which library and which mode a store works with and why, whether it is whole, who is using it, what
waits in its queues and for whom, and what is wrong, each with its remedy. Exits with 0 if nothing is wrong,
with 1 if something is, with 69 if it cannot be used at all; a note is advice.
"""
_LATE = "5m"


def add(commands: Any) -> None:  # noqa: ANN401 - argparse has no public name for it
    """Add the command to the command line."""
    parser = command(commands, "doctor", "what is wrong with a store, and its remedy", _DESCRIPTION, run)
    help_text = "look at every page and index: takes long, and keeps the log from being reused meanwhile"
    parser.add_argument("--deep", action="store_true", help=help_text)
    help_text = f"how long a job may be due before that is a problem ({_LATE}); a fifth, if no worker lives"
    parser.add_argument("--late", metavar="TIME", type=duration, default=duration(_LATE), help=help_text)


def run(args: argparse.Namespace) -> int:
    """Examine the store and print what came of it.

    0 if nothing is wrong, 3 if it is not there, 69 if it cannot be used at all, else 1.
    """
    from ulak.cli.inspect_open import NOT_FOUND, Missing, target_of
    from ulak.cli.inspect_parts import Finding, Part
    from ulak.cli.inspect_table import print_json

    target = target_of(args)
    status = 0
    try:
        parts = _examined(target, args)
    except Missing as missing:
        status = NOT_FOUND
        parts = [Part("open", "it is not there", {}, (Finding(str(missing), _NOT_THERE),))]
    if args.json:
        print_json(as_json(parts, str(target)), to=sys.stdout)
    else:
        print_parts(parts, str(target), to=sys.stdout)
    if not status and any(part.text in _UNUSABLE for part in parts):
        return UNAVAILABLE
    return status or int(any(found.is_problem for found in findings_of(parts)))


_UNUSABLE = ("cannot be opened", "cannot be reached", "cannot be used")


_NOT_THERE = (
    "see that the path is right: a relative one belongs to the directory that the command is run in; whoever "
    "enqueues first, or ulak work module:app, makes the store"
)


def _examined(target: Target, args: argparse.Namespace) -> list[Part]:
    """All that can be said of the store. Raises Missing if it is not there."""
    from ulak.cli.doctor_queues import queue_parts
    from ulak.cli.inspect_open import opened_at, place_of
    from ulak.cli.inspect_parts import Part, finding_of
    from ulak.errors import StorageBusy, UlakError
    from ulak.local import check_library, is_on_server, server_of

    parts: list[Part] = []
    if target.url.startswith("sqlite:"):
        from ulak.cli.inspect_file import Place, examine
        from ulak.storage.sqlite.link import Options

        path, options = place_of(target)
        parts += examine(Place(path, Options(**options)), deep=args.deep)
        if parts[-1].name == "open":
            return parts
    elif is_on_server(target.url):
        check_library()
        from ulak.cli.inspect_server import examine as examine_server

        parts += examine_server(server_of(target.url))
        # Where the schema is not there, opening says so.
        if parts[-1].name in ("server", "grants") or parts[-1].values.get("version"):
            return parts
    try:
        with opened_at(target) as edge:
            parts += queue_parts(edge, late_s=args.late)
    except StorageBusy:
        raise
    except UlakError as error:
        parts.append(Part("store", "cannot be used", {}, (finding_of(error),)))
    return parts


def findings_of(parts: Sequence[Part]) -> list[Finding]:
    """All that was found, what is wrong before what is only advice."""
    found = [one for part in parts for one in part.findings]
    return sorted(found, key=lambda one: not one.is_problem)


def print_parts(parts: Sequence[Part], target: str, *, to: TextIO | None) -> None:
    """Print a line per part, then each finding with its remedy, then the sum of it."""
    import textwrap

    from ulak.cli.inspect_table import many
    from ulak.cli.output import say, visible

    def paragraph(head: str, text: str) -> None:
        indent = " " * (_NAME_COLUMNS + 2)
        wrapped = textwrap.wrap(
            visible(text), 78, initial_indent=f"{head:<{len(indent)}}", subsequent_indent=indent
        )
        say("\n".join(wrapped), to=to)

    say(f"ulak doctor   {visible(target)}", to=to)
    for part in parts:
        paragraph(f"  {part.name}", part.text)
    found = findings_of(parts)
    for one in found:
        paragraph("\nPROBLEM" if one.is_problem else "\nnote", one.what)
        paragraph("  fix", one.fix)
    problems = sum(one.is_problem for one in found)
    verdict = many(problems, "problem") if problems else "nothing is wrong"
    if notes := len(found) - problems:
        verdict += f"; {many(notes, 'note')}, which {'is' if notes == 1 else 'are'} advice"
    say(f"\n{verdict}", to=to)


def as_json(parts: Sequence[Part], target: str) -> dict[str, object]:
    """The same for a program: what each part has measured, and the findings."""
    found = findings_of(parts)
    return {
        "store": target,
        "ok": not any(one.is_problem for one in found),
        "parts": {part.name: {"text": part.text, **part.values} for part in parts},
        "findings": [
            {"level": "problem" if one.is_problem else "note", "what": one.what, "fix": one.fix}
            for one in found
        ],
    }
