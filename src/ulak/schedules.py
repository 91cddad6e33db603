"""Schedules of an App: every worker may fire their ticks, no worker has to lead, and each is fired once.

What is due is a pure question (`core.schedule`); the store's `fire` lets one worker win each tick.
"""

from __future__ import annotations

import difflib
import itertools
import logging
import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import nullcontext
from datetime import UTC, datetime, tzinfo
from typing import Any, Literal, Protocol, TypeAlias
from zoneinfo import ZoneInfo, available_timezones

import msgspec

from ulak.core.cron import Cron
from ulak.core.flows import CALENDAR_SLEEP_MAX_S, Flow, ask, least
from ulak.core.job import Draft, Duplicate, Full
from ulak.core.schedule import CatchUp, Every, Plan, Rule, latest, plan, record_of
from ulak.core.store import Settings, Store
from ulak.durations import Duration
from ulak.errors import ArgumentError
from ulak.events import Enqueued, Events
from ulak.home import Sending, Sent
from ulak.names import check_task_name

_log = logging.getLogger("ulak")

ROUND_MAX = 100
"""The most ticks of one schedule that one round fires, so that it does not keep the other duties waiting."""

RETRY_S = 1.0
"""How soon a tick that found no room is tried again."""

OPTIONS = ("delay", "expires", "priority", "queue", "unique_key", "max_attempts", "backoff", "headers")
"""What a schedule may say of its jobs: not what would be another's, or the same, at each tick."""

TZ_CHARS_MAX = 80

SCHEDULE_HEADER = "ulak-schedule"
TICK_HEADER = "ulak-tick"
"""Headers of a tick's job: which schedule it is of, and which instant, in UTC as in RFC 3339."""


CatchUpName: TypeAlias = Literal["skip", "once", "all"]
"""What becomes of ticks that were missed, as in `CatchUp`."""


class _Calls(Protocol):
    """Calls of a task with the same options."""

    @property
    def queue(self) -> str:
        """The queue of the jobs."""

    def _draft(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Draft:
        """A job with these arguments. Raises ArgumentError if the task cannot be called so."""


class Schedulable(_Calls, Protocol):
    """A task, as far as a schedule needs it."""

    name: str

    @property
    def using(self) -> Callable[..., _Calls]:
        """Gives it other options for its jobs. Raises ArgumentError."""


class Schedule(msgspec.Struct, frozen=True):
    """Ticks, and the job that each of them enqueues."""

    name: str
    task: str
    queue: str
    rule: Rule
    catch_up: CatchUp
    draft: Draft

    def draft_of(self, tick_at: float) -> Draft:
        """The job of one tick, which says of which."""
        told = {SCHEDULE_HEADER: self.name, TICK_HEADER: moment(tick_at)}
        return msgspec.structs.replace(self.draft, headers={**(self.draft.headers or {}), **told})


class Schedules:
    """The schedules of an App, in the order in which they were declared."""

    def __init__(self) -> None:
        self._by_name: dict[str, Schedule] = {}

    def add(
        self,
        task: Schedulable,
        rule: Rule,
        *,
        catch_up: str = "once",
        args: Sequence[Any] = (),
        kwargs: Mapping[str, Any] | None = None,
        using: Mapping[str, Any] | None = None,
        name: str | None = None,
    ) -> Schedule:
        """One more. using: options of its jobs, by name, as `Task.using` takes them.

        Raises ArgumentError if its name is taken, or its task cannot be called with these arguments.
        """
        name = check_task_name(task.name if name is None else name, "a schedule")
        if name in self._by_name:
            raise ArgumentError(
                f"there is a schedule {name!r} already\n  give this one a name of its own: name="
            )
        _check_type(args, Sequence, f"schedule {name!r}: args is a tuple of arguments")
        _check_type(kwargs or {}, Mapping, f"schedule {name!r}: kwargs is a dict of arguments")
        _check_type(using or {}, Mapping, f"schedule {name!r}: using is a dict of options")
        for option in using or {}:
            if option not in OPTIONS:
                raise ArgumentError(
                    f"schedule {name!r}: using has {str(option)[:40]!r}; there is {', '.join(OPTIONS)}"
                )
        calls = task.using(**using) if using else task
        draft = calls._draft(tuple(args), dict(kwargs or {}))  # noqa: SLF001 - for this, and for nobody else
        made = Schedule(name, task.name, calls.queue, rule, check_catch_up(catch_up), draft)
        self._by_name[name] = made
        return made

    def __iter__(self) -> Iterator[Schedule]:
        return iter(tuple(self._by_name.values()))

    def __len__(self) -> int:
        return len(self._by_name)


def cron(expression: str, tz: str = "UTC") -> Cron:
    """The rule of a cron expression in a named zone. Raises ArgumentError for either."""
    return Cron(expression, zone_of(tz))


def every(period: Duration) -> Every:
    """The rule of a period, in seconds. Raises ArgumentError."""
    return Every(period)


def _check_type(value: object, kind: type, what: str) -> None:
    if not isinstance(value, kind) or isinstance(value, str | bytes):
        raise ArgumentError(f"{what}, got {type(value).__name__}")


def check_catch_up(value: object) -> CatchUp:
    """What to do with missed ticks; else ArgumentError."""
    if isinstance(value, str) and value in frozenset(CatchUp):
        return CatchUp(value)
    shown = repr(value[:40]) if isinstance(value, str) else type(value).__name__
    raise ArgumentError(f'catch_up must be "skip", "once" or "all", got {shown}')


def zone_of(tz: object) -> tzinfo:
    """The time zone of a name; else ArgumentError, with the nearest name."""
    if type(tz) is not str:
        raise ArgumentError(f'tz must be a name such as "Europe/Istanbul", got {type(tz).__name__}')
    # Also where the machine has no time zones.
    if tz == "UTC":
        return UTC
    try:
        return ZoneInfo(tz[:TZ_CHARS_MAX])
    except (LookupError, ValueError, OSError):
        raise ArgumentError(_unknown_zone(tz[:TZ_CHARS_MAX])) from None


def _unknown_zone(tz: str) -> str:
    known = available_timezones()
    if not known:
        return f"no time zone {tz!r}: this machine knows none but UTC\n  pip install tzdata"
    # People write the city alone, or in small letters.
    names = {zone.rpartition("/")[2].casefold(): zone for zone in sorted(known)}
    names |= {zone.casefold(): zone for zone in known}
    near = difflib.get_close_matches(tz.casefold().replace(" ", "_"), names, 1)
    hint = f"; did you mean {names[near[0]]!r}?" if near else '; write it as in "Europe/Istanbul"'
    return f"there is no time zone {tz!r}{hint}"


def moment(at: float) -> str:
    """An instant as people and programs read it, in UTC."""
    return datetime.fromtimestamp(at, UTC).isoformat()


class _Watch:
    """What one worker remembers of a schedule. Nothing that is decided rests on it."""

    def __init__(self, schedule: Schedule) -> None:
        self.schedule = schedule
        self.look_at = -math.inf
        # The tick that found no room, until it does or another one has come.
        self.tried_at: float | None = None
        # The last tick before which some were missed, and the last record that was told of.
        self.missed_before: float | None = None
        self.record = schedule.name


class Scheduler:
    """Fires the ticks of schedules, as a duty of a worker pool.

    schedules: those that are declared later are fired too. calendar: the calendar clock that all workers of
    the store share. settings: of a queue that only such a schedule has. told: who hears of each job. sending:
    what goes on around an enqueue now, if anything does.
    """

    def __init__(
        self,
        schedules: Iterable[Schedule],
        calendar: Callable[[], float],
        settings: Settings = Settings(),  # noqa: B008 - frozen
        told: Events | None = None,
        sending: Callable[[], Sending | None] = lambda: None,
    ) -> None:
        self._sending = sending
        self._schedules = schedules
        self._watches = list(map(_Watch, schedules))
        self._calendar = calendar
        self._settings = settings
        self._told = told or Events()
        self._seen_at = -math.inf

    def duty(self) -> Flow[float | None]:
        """Fire what is due; in how many seconds to look again (None: there are no schedules).

        What fails for one schedule is raised after the others had their turn, and tried again.
        """
        for schedule in itertools.islice(self._schedules, len(self._watches), None):
            yield from ask(Store.declare, schedule.queue, self._settings)
            self._watches.append(_Watch(schedule))
        if not self._watches:
            return None
        before_at = self._calendar()
        if before_at < self._seen_at:
            # The clock was set back: what was planned for later may be due much earlier.
            for watch in self._watches:
                watch.look_at = before_at
        self._seen_at = before_at
        due = [watch for watch in self._watches if watch.look_at <= before_at]
        if due:
            yield from self._attend(due, before_at)
        look_at = min(watch.look_at for watch in self._watches)
        return least(CALENDAR_SLEEP_MAX_S, max(0.0, look_at - self._calendar()))

    def _attend(self, due: Sequence[_Watch], before_at: float) -> Flow[None]:
        last_ticks = yield from ask(Store.schedules)
        # Read after what is stored: no tick there is of a later instant, unless the clock was set back.
        now_at = self._calendar()
        failed: Exception | None = None
        for watch in due:
            try:
                yield from self._look(watch, last_ticks, before_at, now_at)
            except Exception as error:  # noqa: BLE001 - the other schedules must not wait for this one
                failed = failed or error
        if failed is not None:
            raise failed

    def _look(
        self, watch: _Watch, last_ticks: Mapping[str, float], before_at: float, now_at: float
    ) -> Flow[None]:
        """Fire what is due of one schedule. before_at: an instant at which `last_ticks` was not read yet."""
        schedule = watch.schedule
        record, last_at = record_of(schedule.name, schedule.rule, last_ticks, now_at)
        if record not in (watch.record, schedule.name):
            watch.record = record
            _log.warning(
                "schedule %s: the clock was set back behind its last tick, to %s; until it is there again, "
                "ticks are fired anew, as %s",
                schedule.name,
                moment(now_at),
                record,
            )
        if last_at is None:
            # Ticks until an instant at which nobody had stored anything are nobody's.
            last_at = latest(schedule.rule, min(before_at, now_at))
            yield from ask(Store.fire, record, last_at, schedule.queue, None)
        todo = plan(schedule.rule, schedule.catch_up, last_at, now_at, tried_at=watch.tried_at)
        _tell_missed(watch, todo)
        if todo.pass_over is not None:
            yield from ask(Store.fire, record, todo.pass_over, schedule.queue, None)
        for tick_at in todo.fire[:ROUND_MAX]:
            if (yield from self._fire(schedule, record, tick_at)):
                watch.tried_at, watch.look_at = tick_at, now_at + RETRY_S
                return
        watch.tried_at = None
        following = schedule.rule.next_after(now_at)
        watch.look_at = now_at if len(todo.fire) > ROUND_MAX else math.inf if following is None else following

    def _fire(self, schedule: Schedule, record: str, tick_at: float) -> Flow[bool]:
        """Fire one tick; whether its queue is full."""
        drafts, sending = [schedule.draft_of(tick_at)], self._sending()
        sends = (
            nullcontext(Sent(drafts)) if sending is None else sending(schedule.task, schedule.queue, drafts)
        )
        with sends as sent:
            answer = yield from ask(Store.fire, record, tick_at, schedule.queue, sent.drafts[0])
            if isinstance(answer, int):
                sent.ids = [answer]
        if isinstance(answer, Full):
            return True
        _log.debug("schedule %s: tick %s: %s", schedule.name, moment(tick_at), answer)
        if isinstance(answer, int):
            existed = isinstance(answer, Duplicate)
            self._told.tell(Enqueued(answer, schedule.queue, schedule.task, existed))
        return False


def _tell_missed(watch: _Watch, todo: Plan) -> None:
    """Say once of ticks that they will not be fired."""
    next_at = todo.fire[0] if todo.fire else todo.pass_over
    if todo.missed_from is None or next_at == watch.missed_before:
        return
    watch.missed_before = next_at
    name, catch_up = watch.schedule.name, watch.schedule.catch_up
    since = moment(todo.missed_from)
    if todo.missed_from == watch.tried_at:
        _log.warning(
            "schedule %s: tick %s is given up: queue %s was full until the next tick came",
            name,
            since,
            watch.schedule.queue,
        )
    elif catch_up is CatchUp.ALL:
        assert next_at is not None
        _log.warning(
            "schedule %s: too many ticks were missed; those from %s to before %s are skipped",
            name,
            since,
            moment(next_at),
        )
    else:
        _log.info("schedule %s: ticks since %s were missed; catch_up is %s", name, since, catch_up.value)
