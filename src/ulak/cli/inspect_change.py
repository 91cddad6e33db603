"""`ulak retry`, `ulak pause`, `ulak resume`: the commands that change something, and say what."""

from __future__ import annotations

import argparse
import sys
from collections import Counter
from collections.abc import Mapping, Sequence

import msgspec

from ulak.cli.inspect_jobs import scanned
from ulak.cli.inspect_open import NOT_FOUND, finding, opened, settings_of
from ulak.cli.inspect_table import many, print_json
from ulak.cli.output import say
from ulak.core.job import ENDED, State
from ulak.core.store import Change, Changed, Filter, Redrive, Refusal, Store
from ulak.errors import ConfigError

DONE, NOT_DONE = 0, 1

_IDS_SHOWN = 10
_REDRIVABLE = (State.DEAD, State.CANCELLED, State.EXPIRED, State.HELD)

_NONE = "there is no such job to run again"
_LEFT = {
    Refusal.NOT_FOUND: "not stored here",
    Refusal.LEASED: "running now",
    Refusal.STATE: "neither dead, cancelled, expired nor held",
    Refusal.FULL: "no room in the queue: again when there is",
    Refusal.UNIQUE: "another open job has the unique key",
}


class Wish(msgspec.Struct, frozen=True):
    """Which jobs a retry is for: ids (of one queue, if it is given), or all that match."""

    which: tuple[int, ...] | Filter
    queue: str | None = None


class Forecast(msgspec.Struct, frozen=True):
    """What a retry would do, as it looks now: `Changed` before the fact.

    A unique key that is taken shows only when it is done. room: the most that can come back, per queue that
    has less room than ended jobs to bring back; held ones have theirs.
    """

    jobs: int
    refused: Mapping[Refusal, tuple[int, ...]]
    room: Mapping[str, int]


def run_retry(args: argparse.Namespace) -> int:
    """Bring jobs back if --yes is given, else say how many it would be.

    0 all are back, or there was nothing to bring back; 1 it was not confirmed, or some were refused; 3 none
    of the ids is known.
    """
    return finding(_retry, args)


def _retry(args: argparse.Namespace) -> int:
    wish = wish_of(args)
    with opened(args) as edge:
        store = edge.store
        if wish.queue is not None:
            settings_of(store, wish.queue)
        forecast = foretell(store, wish)
        if not args.yes:
            return _tell_forecast(forecast, as_json=args.json)
        changed = redrive(store, wish)
    return _tell_changed(changed, as_json=args.json)


def wish_of(args: argparse.Namespace) -> Wish:
    """The jobs that the options name. Raises ConfigError unless they name ids or a state, and not both."""
    filtered = args.state is not None or args.task is not None
    if args.ids and filtered:
        raise ConfigError("give ids, or --state and --task, not both\n  see ulak retry --help")
    if args.ids:
        return Wish(tuple(dict.fromkeys(args.ids)), args.queue)
    if args.state is None:
        raise ConfigError("say which jobs: ids, or --state dead\n  see ulak retry --help")
    return Wish(Filter(queue=args.queue, states=args.state, task=args.task), args.queue)


def foretell(store: Store, wish: Wish) -> Forecast:
    """What `redrive` would do now; changes nothing."""
    refused: dict[Refusal, list[int]] = {}
    wanted: Counter[tuple[str, State]] = Counter()
    if isinstance(wish.which, Filter):
        wanted = _matching(store, wish.which)
    else:
        for job_id, job in zip(wish.which, store.get(wish.which), strict=True):
            if job is None or wish.queue not in (None, job.queue):
                refused.setdefault(Refusal.NOT_FOUND, []).append(job_id)
            elif job.state not in _REDRIVABLE:
                refused.setdefault(Refusal.STATE, []).append(job_id)
            else:
                wanted[job.queue, job.state] += 1
    ended: Counter[str] = Counter()
    for (queue, state), jobs in wanted.items():
        if jobs and state in ENDED:
            ended[queue] += jobs
    return Forecast(
        wanted.total(),
        {reason: tuple(ids) for reason, ids in refused.items()},
        _too_little_room(store, ended),
    )


def _matching(store: Store, which: Filter) -> Counter[tuple[str, State]]:
    """How many jobs match, per queue and state: by their counts, or by a scan if a task is asked for."""
    if which.task is not None:
        return Counter((job.queue, job.state) for job in scanned(store, which))
    counts = store.counts([which.queue] if which.queue is not None else list(store.queues()))
    return Counter(
        {
            (queue, state): getattr(counted, state.value)
            for queue, counted in counts.items()
            for state in _REDRIVABLE
            if which.admits(state)
        }
    )


def _too_little_room(store: Store, wanted: Mapping[str, int]) -> dict[str, int]:
    if not wanted:
        return {}
    settings, counts = store.queues(), store.counts(list(wanted))
    room: dict[str, int] = {}
    for queue, jobs in wanted.items():
        capacity = settings[queue].capacity
        if capacity is not None and capacity - counts[queue].open < jobs:
            room[queue] = max(0, capacity - counts[queue].open)
    return room


def redrive(store: Store, wish: Wish) -> Changed:
    """Bring the jobs back; those that cannot come are refused with the reason."""
    return store.amend(wish.which, Redrive(), queue=wish.queue)


def _tell_forecast(forecast: Forecast, *, as_json: bool) -> int:
    if as_json:
        print_json(
            {
                "done": [],
                "would_change": forecast.jobs,
                "refused": _by_reason(forecast.refused),
                "room": dict(forecast.room),
            },
            to=sys.stdout,
        )
    else:
        say(f"{many(forecast.jobs, 'job')} would run again" if forecast.jobs else _NONE, to=sys.stdout)
        for queue, room in forecast.room.items():
            say(f"  queue {queue} has room for {room} only; the others would stay", to=sys.stdout)
        _say_refused(forecast.refused)
    if _none_known(forecast.refused, forecast.jobs):
        return NOT_FOUND
    if forecast.jobs:
        say("nothing was done yet: give --yes to do it", to=sys.stderr)
        return NOT_DONE
    return NOT_DONE if forecast.refused else DONE


def _tell_changed(changed: Changed, *, as_json: bool) -> int:
    if as_json:
        print_json({"done": list(changed.done), "refused": _by_reason(changed.refused)}, to=sys.stdout)
    else:
        jobs = len(changed.done)
        waits = f"{many(jobs, 'job')} {'waits' if jobs == 1 else 'wait'} to run again"
        say(f"{waits}{_few(changed.done)}" if jobs else _NONE, to=sys.stdout)
        _say_refused(changed.refused)
        if jobs:
            how = f"ulak show {changed.done[0]}" if jobs == 1 else "ulak counts"
            say(
                f"a worker takes {'it' if jobs == 1 else 'them'} from here; {how} tells how it goes",
                to=sys.stderr,
            )
    if _none_known(changed.refused, len(changed.done)):
        return NOT_FOUND
    return NOT_DONE if changed.refused else DONE


def _none_known(refused: Mapping[Refusal, Sequence[int]], jobs: int) -> bool:
    return not jobs and set(refused) == {Refusal.NOT_FOUND}


def _by_reason(refused: Mapping[Refusal, Sequence[int]]) -> dict[str, list[int]]:
    return {reason.value: list(ids) for reason, ids in refused.items()}


def _say_refused(refused: Mapping[Refusal, Sequence[int]]) -> None:
    for reason, ids in refused.items():
        say(f"  {many(len(ids), 'job')} left alone, {_LEFT[reason]}{_few(ids)}", to=sys.stdout)


def _few(ids: Sequence[int]) -> str:
    """The ids, as far as a line has room."""
    if not ids:
        return ""
    more = f" and {len(ids) - _IDS_SHOWN} more" if len(ids) > _IDS_SHOWN else ""
    return f": {', '.join(map(str, ids[:_IDS_SHOWN]))}{more}"


def run_pause(args: argparse.Namespace, *, paused: bool) -> int:
    """Pause a queue, or resume it; 0, also if it was so already."""
    return finding(lambda _: _pause(args, paused=paused), args)


def _pause(args: argparse.Namespace, *, paused: bool) -> int:
    queue: str = args.queue
    with opened(args) as edge:
        was = settings_of(edge.store, queue).paused
        edge.store.configure(queue, Change(paused=paused))
        counts = edge.store.counts([queue])[queue]
    if args.json:
        answer = {"queue": queue, "paused": paused, "changed": was != paused}
        print_json(answer | {"pending": counts.pending, "leased": counts.leased}, to=sys.stdout)
        return DONE
    so = "paused" if paused else "active"
    already = " already" if was == paused else ""
    waiting = f"{many(counts.pending, 'job')} {'waits' if counts.pending == 1 else 'wait'}"
    running = f"{many(counts.leased, 'job')} {'runs' if counts.leased == 1 else 'run'}"
    say(f"queue {queue} is {so}{already}: {waiting}, {running}", to=sys.stdout)
    if paused:
        say(f"enqueuing goes on; ulak resume {queue} delivers again", to=sys.stderr)
    return DONE
