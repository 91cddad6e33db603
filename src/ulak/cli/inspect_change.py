"""`ulak retry`, `cancel`, `rm`, `reprioritise`: the commands that change jobs, and say which."""

from __future__ import annotations

import argparse
import sys
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import msgspec

from ulak.cli.inspect_choice import OPEN, Choice, choice_of, chosen, is_given, stored
from ulak.cli.inspect_counts import leases_of
from ulak.cli.inspect_open import NOT_FOUND, finding, opened, settings_of
from ulak.cli.inspect_table import many, print_json
from ulak.cli.output import say
from ulak.core.job import ENDED, State
from ulak.core.store import Act, Cancel, Changed, Delete, Redrive, Refusal, Reprioritise, Store
from ulak.errors import ConfigError

DONE, NOT_DONE = 0, 1

_IDS_SHOWN = 10
_REDRIVABLE = (State.DEAD, State.CANCELLED, State.EXPIRED, State.HELD)

_LEFT = {
    Refusal.NOT_FOUND: "not stored here",
    Refusal.LEASED: "running now",
    Refusal.FULL: "no room in the queue: again when there is",
    Refusal.UNIQUE: "another open job has the unique key",
}


class Deed(NamedTuple):
    """Something that is done to jobs, and how it is told of.

    states: in which of them it can be done. needs_state: whether other filters alone are not enough.
    would, one, several: after "1 job" or "2 jobs". purpose: after "there is no such job". wrong: what those
    are that are in another state.
    """

    command: str
    act: Act
    states: tuple[State, ...]
    would: str
    one: str
    several: str
    purpose: str
    wrong: str = ""
    needs_state: bool = False

    @property
    def admits_leased(self) -> bool:
        """Whether it can be asked of jobs that run."""
        return State.LEASED in self.states

    @property
    def spares_leased(self) -> bool:
        """Whether a running job is refused because it runs, and not since it is in a wrong state."""
        return isinstance(self.act, Delete | Reprioritise) and self.states != (State.DEAD,)

    @property
    def brings_back(self) -> bool:
        """Whether it makes ended jobs open again, which takes room."""
        return isinstance(self.act, Redrive)


RETRY = Deed(
    "retry",
    Redrive(),
    _REDRIVABLE,
    would="would run again",
    one="waits to run again",
    several="wait to run again",
    purpose="to run again",
    wrong="neither dead, cancelled, expired nor held",
    needs_state=True,
)
CANCEL = Deed(
    "cancel",
    Cancel(),
    OPEN,
    would="would be cancelled",
    one="is cancelled",
    several="are cancelled",
    purpose="to cancel",
    wrong="ended already",
)
RM = Deed(
    "rm",
    Delete(),
    tuple(state for state in State if state is not State.LEASED),
    would="would be removed for good",
    one="is removed for good",
    several="are removed for good",
    purpose="to remove",
    wrong="not readable",
    needs_state=True,
)


def reprioritise(priority: int) -> Deed:
    """To give jobs this priority."""
    return Deed(
        "reprioritise",
        Reprioritise(priority),
        (State.READY, State.SCHEDULED, State.HELD),
        would=f"would get priority {priority}",
        one=f"has priority {priority}",
        several=f"have priority {priority}",
        purpose="to give another priority",
        wrong="ended already",
    )


class Wish(msgspec.Struct, frozen=True):
    """Which jobs it is for: ids (of one queue, if it is given), or all that are chosen."""

    which: tuple[int, ...] | Choice
    queue: str | None = None


class Forecast(msgspec.Struct, frozen=True):
    """What would be done, as it looks now: `Changed` before the fact.

    A unique key that is taken shows only when it is done. running: those that run now, and can only be asked.
    room: the most that can come back, per queue that has less room than ended jobs to bring back; held ones
    have theirs.
    """

    jobs: int
    refused: Mapping[Refusal, tuple[int, ...]]
    running: int
    room: Mapping[str, int]


def run(args: argparse.Namespace, deed: Deed) -> int:
    """Do it if --yes is given, else say to how many jobs it would be done.

    0 it is done to all, or there was nothing to do; 1 it was not confirmed, or some were refused; 3 none of
    the ids is known.
    """
    return finding(lambda _: _run(args, deed), args)


def _run(args: argparse.Namespace, deed: Deed) -> int:
    wish = wish_of(args, deed)
    with opened(args) as edge:
        store, now_at = edge.store, edge.clock.calendar()
        if wish.queue is not None:
            settings_of(store, wish.queue)
        if not args.yes:
            return tell_forecast(foretell(store, wish, deed, now_at), deed, as_json=args.json)
        changed = carry_out(store, wish, deed, now_at)
        asked = still_running(store, changed) if deed.admits_leased else ()
    return tell_changed(changed, deed, asked, as_json=args.json)


def wish_of(args: argparse.Namespace, deed: Deed) -> Wish:
    """The jobs that the options name. Raises ConfigError unless they name ids or filters, and not both."""
    help_line = f"see ulak {deed.command} --help"
    if args.ids and is_given(args):
        raise ConfigError(f"give ids, or --state and other filters, not both\n  {help_line}")
    if args.ids:
        return Wish(tuple(dict.fromkeys(args.ids)), args.queue)
    if args.state is None and (deed.needs_state or not (is_given(args) or args.queue)):
        example = "dead" if State.DEAD in deed.states else "ready"
        raise ConfigError(f"say which jobs: ids, or --state {example}\n  {help_line}")
    return Wish(choice_of(args, args.state or deed.states), args.queue)


def foretell(store: Store, wish: Wish, deed: Deed, now_at: float) -> Forecast:
    """What `carry_out` would do now; changes nothing."""
    refused: dict[Refusal, list[int]] = {}
    wanted: Counter[tuple[str, State]] = Counter()
    if isinstance(wish.which, Choice):
        wanted = _matching(store, wish.which, now_at)
    else:
        for job_id, job in stored(store, wish.which):
            if job is None or wish.queue not in (None, job.queue):
                refused.setdefault(Refusal.NOT_FOUND, []).append(job_id)
            elif job.state in deed.states:
                wanted[job.queue, job.state] += 1
            else:
                is_leased = job.state is State.LEASED and deed.spares_leased
                refused.setdefault(Refusal.LEASED if is_leased else Refusal.STATE, []).append(job_id)
    ended: Counter[str] = Counter()
    for (queue, state), jobs in wanted.items():
        if jobs and state in ENDED and deed.brings_back:
            ended[queue] += jobs
    return Forecast(
        wanted.total(),
        {reason: tuple(ids) for reason, ids in refused.items()},
        sum(jobs for (_, state), jobs in wanted.items() if state is State.LEASED),
        too_little_room(store, ended),
    )


def _matching(store: Store, choice: Choice, now_at: float) -> Counter[tuple[str, State]]:
    """How many jobs match, per queue and state: by their counts, or one by one if more than that is asked."""
    which = choice.which
    if not choice.is_plain or which.task is not None:
        return Counter((job.queue, job.state) for job in chosen(store, choice, now_at))
    counts = store.counts([which.queue] if which.queue is not None else list(store.queues()))
    return Counter(
        {
            (queue, state): getattr(counted, "acked" if state is State.SUCCEEDED else state.value)
            for queue, counted in counts.items()
            for state in State
            if which.admits(state)
        }
    )


def too_little_room(store: Store, wanted: Mapping[str, int]) -> dict[str, int]:
    """How many jobs fit, for each queue that has less room than is wanted."""
    if not wanted:
        return {}
    settings, counts = store.queues(), store.counts(list(wanted))
    room: dict[str, int] = {}
    for queue, jobs in wanted.items():
        capacity = settings[queue].capacity
        if capacity is not None and capacity - counts[queue].open < jobs:
            room[queue] = max(0, capacity - counts[queue].open)
    return room


def carry_out(store: Store, wish: Wish, deed: Deed, now_at: float) -> Changed:
    """Do it; those to which it cannot be done are refused with the reason."""
    choice = wish.which
    if not isinstance(choice, Choice):
        return store.amend(choice, deed.act, queue=wish.queue)
    if choice.is_plain:
        return store.amend(choice.which, deed.act)
    ids = [job.id for job in chosen(store, choice, now_at)]
    # Since that look a dead job may have been brought back, say, and must not be removed.
    return store.amend(ids, deed.act, states=frozenset(filter(choice.which.admits, State)))


def still_running(store: Store, changed: Changed) -> tuple[int, ...]:
    """Those of the changed jobs that run, so that they were only asked to stop."""
    leased = {lease.id for queue in store.queues() for lease in leases_of(store, queue)}
    return tuple(job_id for job_id in changed.done if job_id in leased)


def tell_forecast(forecast: Forecast, deed: Deed, *, as_json: bool) -> int:
    """Say what would be done; the exit status."""
    if as_json:
        answer = {"done": [], "would_change": forecast.jobs, "refused": _by_reason(forecast.refused)}
        if deed.brings_back:
            answer["room"] = dict(forecast.room)
        if deed.admits_leased:
            answer["running"] = forecast.running
        print_json(answer, to=sys.stdout)
    else:
        if forecast.running:
            say(f"{many(forecast.running, 'job')} would be asked to stop", to=sys.stdout)
        if others := forecast.jobs - forecast.running:
            say(f"{many(others, 'job')} {deed.would}", to=sys.stdout)
        if not forecast.jobs:
            say(_none_of(deed), to=sys.stdout)
        for queue, room in forecast.room.items():
            say(f"  queue {queue} has room for {room} only; the others would stay", to=sys.stdout)
        _say_refused(forecast.refused, deed)
    if _none_known(forecast.refused, forecast.jobs):
        return NOT_FOUND
    if forecast.jobs:
        say("nothing was done yet: give --yes to do it", to=sys.stderr)
        return NOT_DONE
    return NOT_DONE if forecast.refused else DONE


def tell_changed(changed: Changed, deed: Deed, asked: Sequence[int], *, as_json: bool) -> int:
    """Say what was done, and what was not; the exit status. asked: those that were only asked to stop."""
    jobs = len(changed.done)
    if as_json:
        answer: dict[str, object] = {"done": list(changed.done), "refused": _by_reason(changed.refused)}
        if deed.admits_leased:
            answer["running"] = list(asked)
        print_json(answer, to=sys.stdout)
    else:
        _say_done(asked, "is asked to stop", "are asked to stop")
        only_asked = frozenset(asked)
        _say_done([one for one in changed.done if one not in only_asked], deed.one, deed.several)
        if not jobs:
            say(_none_of(deed), to=sys.stdout)
        _say_refused(changed.refused, deed)
        if jobs and deed.brings_back:
            how = f"ulak show {changed.done[0]}" if jobs == 1 else "ulak counts"
            say(
                f"a worker takes {'it' if jobs == 1 else 'them'} from here; {how} tells how it goes",
                to=sys.stderr,
            )
    if _none_known(changed.refused, jobs):
        return NOT_FOUND
    return NOT_DONE if changed.refused else DONE


def _none_of(deed: Deed) -> str:
    return f"there is no such job {deed.purpose}"


def _say_done(ids: Sequence[int], one: str, several: str) -> None:
    if ids:
        say(f"{many(len(ids), 'job')} {one if len(ids) == 1 else several}{few(ids)}", to=sys.stdout)


def _none_known(refused: Mapping[Refusal, Sequence[int]], jobs: int) -> bool:
    return not jobs and set(refused) == {Refusal.NOT_FOUND}


def _by_reason(refused: Mapping[Refusal, Sequence[int]]) -> dict[str, list[int]]:
    return {reason.value: list(ids) for reason, ids in refused.items()}


def _say_refused(refused: Mapping[Refusal, Sequence[int]], deed: Deed) -> None:
    for reason, ids in refused.items():
        why = deed.wrong if reason is Refusal.STATE else _LEFT[reason]
        say(f"  {many(len(ids), 'job')} left alone, {why}{few(ids)}", to=sys.stdout)


def few(ids: Sequence[int]) -> str:
    """The ids, as far as a line has room."""
    if not ids:
        return ""
    more = f" and {len(ids) - _IDS_SHOWN} more" if len(ids) > _IDS_SHOWN else ""
    return f": {', '.join(map(str, ids[:_IDS_SHOWN]))}{more}"
