"""`ulak dead ls` and `ulak dead show`: dead letters by what they died of."""

from __future__ import annotations

import argparse
import hashlib
import re
import sys
from collections import Counter
from collections.abc import Iterable, Sequence
from typing import TextIO

import msgspec

from ulak.capture import frame_of, place_of
from ulak.cli.inspect_choice import Choice, choice_of, chosen, error_text, last_failed
from ulak.cli.inspect_jobs import DEAD, as_json, page_of_jobs, print_jobs
from ulak.cli.inspect_open import Missing, finding, opened, settings_of
from ulak.cli.inspect_table import Column, age, iso_time, print_json, print_table
from ulak.cli.output import say
from ulak.core.job import Cause, Failure, Job, State
from ulak.core.store import Filter, Store

_DIGITS = 7
_NUMBERS = re.compile(r"[0-9]+")
_FORM = re.compile(rf"e[0-9a-f]{{{_DIGITS}}}")


class Group(msgspec.Struct):
    """Dead jobs that died of the same: how many, whose, when, and the last one's error."""

    fingerprint: str
    cause: Cause | None
    jobs: int = 0
    queues: Counter[str] = msgspec.field(default_factory=Counter)
    tasks: Counter[str] = msgspec.field(default_factory=Counter)
    first_at: float = 0.0
    last_at: float = 0.0
    last_id: int = 0
    error: Failure | None = None

    def take(self, job: Job) -> None:
        """Count one more."""
        at = job.created_at if job.ended_at is None else job.ended_at
        self.first_at = min(self.first_at, at) if self.jobs else at
        if not self.jobs or at >= self.last_at:
            self.last_at, self.last_id = at, job.id
            last = last_failed(job.history)
            self.error = None if last is None else last.error
        self.jobs += 1
        self.queues[job.queue] += 1
        self.tasks[job.task or ""] += 1

    @property
    def place(self) -> str:
        """Where its error was raised, if that is known."""
        return "" if self.error is None else place_of(self.error)


def fingerprint_of(job: Job) -> str:
    """Names what a job died of, in a word that no id is: the same for all that died of the same.

    That is the type of its last error and where it was raised; where nothing was raised, what it said,
    without its numbers; without any error how its last delivery ended.
    """
    last = last_failed(job.history)
    if last is not None and last.error is not None:
        frame = frame_of(last.error)
        said = "" if frame else _NUMBERS.sub("#", last.error.text.partition("\n")[0])
        parts = (last.error.type, frame, said)
    else:
        parts = ("", "", job.history[-1].cause.value if job.history else "")
    return f"e{hashlib.sha256(chr(0).join(parts).encode()).hexdigest()[:_DIGITS]}"


def is_fingerprint(word: str) -> bool:
    """Whether it has the form of one."""
    return _FORM.fullmatch(word) is not None


def run_ls(args: argparse.Namespace) -> int:
    """Print the groups; 0."""
    return finding(_ls, args)


def _ls(args: argparse.Namespace) -> int:
    with opened(args) as edge:
        if args.queue is not None:
            settings_of(edge.store, args.queue)
        now_at = edge.clock.calendar()
        groups = groups_of(chosen(edge.store, choice_of(args, [State.DEAD]), now_at))
    if args.json:
        print_json({"groups": [_group_json(group) for group in groups]}, to=sys.stdout)
        return 0
    print_groups(groups, now_at, to=sys.stdout)
    if groups:
        name = groups[0].fingerprint
        say(f"ulak dead show {name} lists its jobs", to=sys.stderr)
        say(f"ulak dead retry {name} --first 3 would try a few of them", to=sys.stderr)
    else:
        say("there is no such job", to=sys.stderr)
    return 0


def groups_of(jobs: Iterable[Job]) -> list[Group]:
    """The jobs by their fingerprints, the largest group first, of equal ones the latest."""
    groups: dict[str, Group] = {}
    for job in jobs:
        name = fingerprint_of(job)
        if name not in groups:
            groups[name] = Group(name, job.history[-1].cause if job.history else None)
        groups[name].take(job)
    return sorted(groups.values(), key=lambda group: (-group.jobs, -group.last_at, group.fingerprint))


_COLUMNS = (
    Column("fingerprint"),
    Column("jobs", right=True),
    Column("last", right=True),
    Column("task"),
    Column("place"),
    Column("error", cut=True),
)


def print_groups(groups: Sequence[Group], now_at: float, *, to: TextIO | None) -> None:
    """Print a line per group."""
    rows = [
        [
            group.fingerprint,
            str(group.jobs),
            age(now_at - group.last_at),
            _named(group.tasks),
            group.place,
            "" if group.error is None else error_text(group.error),
        ]
        for group in groups
    ]
    print_table(_COLUMNS, rows, to=to)


def _named(counted: Counter[str]) -> str:
    """The most frequent name, and how many others there are."""
    name, _ = counted.most_common(1)[0]
    return name if len(counted) == 1 else f"{name or '-'} +{len(counted) - 1}"


def _group_json(group: Group) -> dict[str, object]:
    return {
        "fingerprint": group.fingerprint,
        "jobs": group.jobs,
        "cause": None if group.cause is None else group.cause.value,
        "error": None if group.error is None else error_text(group.error),
        "place": group.place or None,
        "queues": dict(group.queues),
        "tasks": {name: jobs for name, jobs in group.tasks.items() if name},
        "first_died_at": iso_time(group.first_at),
        "last_died_at": iso_time(group.last_at),
        "last_id": group.last_id,
    }


def run_show(args: argparse.Namespace) -> int:
    """Print the jobs of a group; 0, or 3 if there are none."""
    return finding(_show, args)


def _show(args: argparse.Namespace) -> int:
    name: str = args.fingerprint
    with opened(args) as edge:
        if args.queue is not None:
            settings_of(edge.store, args.queue)
        now_at = edge.clock.calendar()
        jobs = of_group(chosen(edge.store, choice_of(args, [State.DEAD]), now_at, after=args.after), name)
        page = page_of_jobs(jobs, limit=args.limit, now_at=now_at)
    if not page.lines:
        raise Missing(f"there is no dead job of {name[:64]!r}{f' after {args.after}' if args.after else ''}")
    if args.json:
        print_json(as_json(page), to=sys.stdout)
        return 0
    print_jobs(page, DEAD, to=sys.stdout)
    if page.more:
        say(f"there are more: --after {page.lines[-1].id}", to=sys.stderr)
    return 0


def of_group(jobs: Iterable[Job], fingerprint: str) -> Iterable[Job]:
    """Those of the jobs that died of this."""
    return (job for job in jobs if fingerprint_of(job) == fingerprint)


def named_by(store: Store, targets: Sequence[str], now_at: float) -> tuple[list[int], list[str]]:
    """The ids that these targets name, in order, each once: ids, and fingerprints with their dead jobs.

    And those of them that name none.
    """
    wanted = {target for target in targets if not target.isdecimal()}
    found: dict[str, list[int]] = {name: [] for name in wanted}
    if wanted:
        for job in chosen(store, Choice(Filter(states=State.DEAD)), now_at):
            if (name := fingerprint_of(job)) in found:
                found[name].append(job.id)
    ids = dict.fromkeys(
        job_id for target in targets for job_id in (found[target] if target in found else [int(target)])
    )
    return list(ids), [name for name in wanted if not found[name]]
