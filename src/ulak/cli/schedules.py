"""`ulak schedules module:app`: when an App's schedules run next, and when they last did."""

from __future__ import annotations

import argparse
import itertools
import sys
from collections.abc import Callable, Iterable, Mapping
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, NamedTuple, TextIO

from ulak.cli.options import add_verbose
from ulak.cli.output import say, visible

if TYPE_CHECKING:
    from ulak.app import App
    from ulak.schedules import Schedule

RUNS = 5

_DESCRIPTION = """
When the schedules of an App run next: five times each, in the local time of the zone and in UTC. Before that
the last tick, where its store can be looked at: the last that was fired or passed over, or the one after
which the schedule began. APP is hello:app, shop.jobs:app or hello.py:app; hello alone takes its only App.
"""


class Outlook(NamedTuple):
    """A schedule, its last tick that is stored, and the next ones."""

    schedule: Schedule
    last_at: float | None
    next_at: tuple[float, ...]


def add(commands: Any) -> None:  # noqa: ANN401 - argparse has no public name for it
    """Add the command to the command line."""
    parser = commands.add_parser(
        "schedules", help="when an App's schedules run next", description=_DESCRIPTION
    )
    parser.add_argument("app", metavar="APP", help="the App, as in hello:app")
    url = "its store, in place of the App's own; ULAK_URL does not count here"
    parser.add_argument("-u", "--url", help=url)
    parser.add_argument("--json", action="store_true", help="print the result as one JSON object")
    add_verbose(parser, dest="more_verbose")
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Print the schedules; 0."""
    from ulak.cli.inspect_table import print_json
    from ulak.cli.target import load_app
    from ulak.clock import SYSTEM

    app = load_app(args.app)
    if args.url is not None:
        app.url = args.url
    last_ticks, unknown = _last_ticks(app, args.app if args.url is None else "--url")
    outlooks = outlooks_of(app.schedules, last_ticks, SYSTEM.calendar())
    if args.json:
        print_json(as_json(outlooks), to=sys.stdout)
    elif outlooks:
        print_outlooks(outlooks, to=sys.stdout)
    if not outlooks:
        say(visible(f"{args.app} has no schedules"), to=sys.stderr)
    elif unknown is not None:
        say(visible(f"last ticks are not known: {unknown}"), to=sys.stderr)
    return 0


def _last_ticks(app: App, source: str) -> tuple[Mapping[str, float], str | None]:
    """What is stored, or why nothing can be seen of it. No store is made by looking."""
    from ulak.cli.inspect_open import Missing, Target, opened_at
    from ulak.errors import UlakError

    if app.url.startswith("memory:"):
        return {}, "a memory:// store lives inside its process"
    try:
        with opened_at(Target(app.url, source)) as edge:
            return edge.store.schedules(), None
    except (Missing, UlakError) as error:
        return {}, str(error).splitlines()[0]


def outlooks_of(
    schedules: Iterable[Schedule], last_ticks: Mapping[str, float], now_at: float
) -> list[Outlook]:
    """The schedules, in the order of their declaration."""
    from ulak.core.schedule import record_of

    return [
        Outlook(
            schedule=schedule,
            last_at=record_of(schedule.name, schedule.rule, last_ticks, now_at)[1],
            next_at=tuple(itertools.islice(schedule.rule.after(now_at), RUNS)),
        )
        for schedule in schedules
    ]


def print_outlooks(outlooks: list[Outlook], *, to: TextIO | None) -> None:
    """Print a line a run; on a terminal, what holds for all runs of a schedule comes in a table before."""
    from ulak.cli.inspect_table import Column, print_table

    names = ("schedule", "run", "local", "utc")
    facts = ("zone", "task", "queue", "catch_up", "rule")
    about = [[one.schedule.name, *_facts(one.schedule)] for one in outlooks]
    if to is not None and to.isatty():
        print_table((Column("schedule"), *map(Column, facts)), about, to=to)
        to.write("\n")
        rows = [row for one in outlooks for row in _runs(one, _for_people)]
        print_table((*map(Column, names),), rows, to=to)
    else:
        rows = [[*row, *_facts(one.schedule)] for one in outlooks for row in _runs(one, _for_programs)]
        print_table((*map(Column, (*names, *facts)),), rows, to=to)


def _facts(schedule: Schedule) -> list[str]:
    return [
        str(schedule.rule.zone),
        schedule.task,
        schedule.queue,
        schedule.catch_up.value,
        rule_text(schedule),
    ]


def rule_text(schedule: Schedule) -> str:
    """The rule as it was declared."""
    from ulak.core.cron import Cron

    rule = schedule.rule
    return rule.expression if isinstance(rule, Cron) else f"every {rule.period_s:g} s"


def _runs(outlook: Outlook, form: Callable[[datetime], str]) -> list[list[str]]:
    zone = outlook.schedule.rule.zone
    last = [] if outlook.last_at is None else [("last", outlook.last_at)]
    return [
        [
            outlook.schedule.name,
            name,
            form(datetime.fromtimestamp(at, zone)),
            form(datetime.fromtimestamp(at, UTC)),
        ]
        for name, at in (*last, *((f"{n}", at) for n, at in enumerate(outlook.next_at, 1)))
    ]


def _for_people(at: datetime) -> str:
    # With the day, which half of all cron expressions are about.
    return f"{at:%a} {at.isoformat(' ')}".replace("+00:00", "Z")


def _for_programs(at: datetime) -> str:
    return at.isoformat().replace("+00:00", "Z")


def as_json(outlooks: list[Outlook]) -> dict[str, object]:
    """The same for a program; `last` is null where no tick is known."""
    return {"schedules": [_schedule_json(one) for one in outlooks]}


def _schedule_json(outlook: Outlook) -> dict[str, object]:
    schedule = outlook.schedule

    def shown(at: float) -> dict[str, str]:
        zones = {"local": schedule.rule.zone, "utc": UTC}
        return {name: datetime.fromtimestamp(at, zone).isoformat() for name, zone in zones.items()}

    return {
        "name": schedule.name,
        "task": schedule.task,
        "queue": schedule.queue,
        "rule": rule_text(schedule),
        "tz": str(schedule.rule.zone),
        "catch_up": schedule.catch_up.value,
        "last": None if outlook.last_at is None else shown(outlook.last_at),
        "next": [shown(at) for at in outlook.next_at],
    }
