"""Schedules on every storage: each tick is fired once, by whichever worker is first, whatever the clock does.

Workers are played by hand: each is one scheduler's duty, run when the test says so.
"""

from __future__ import annotations

import json
import logging
import threading
from collections import Counter
from collections.abc import Callable, Generator, Iterator
from datetime import UTC, datetime, timedelta
from typing import Any
from zoneinfo import ZoneInfo

import pytest

from tests.contract import conftest
from tests.contract.conftest import clock, kind  # noqa: F401 - fixtures
from tests.support.stores import Refusing
from ulak import App
from ulak.core.flows import Call, Flow
from ulak.core.job import Done, Draft, Job
from ulak.core.schedule import CAUGHT_UP_MAX, Rule
from ulak.core.store import Change, Filter, Settings, Store
from ulak.errors import ArgumentError, StorageUnavailable
from ulak.schedules import (
    RETRY_S,
    ROUND_MAX,
    SCHEDULE_HEADER,
    TICK_HEADER,
    Schedule,
    Scheduler,
    Schedules,
    cron,
    every,
    moment,
)
from ulak.storage.drive import Edge, run
from ulak.task import Task
from ulak.testing import ManualClock

Q = "mail"
DAY_S = 86_400.0
BERLIN = ZoneInfo("Europe/Berlin")


def send(*args: int, **kwargs: int) -> None:
    """The task's function; it never runs here."""


def task(name: str = "mail.send") -> Task[..., None]:
    """A task, of an App whose store is never opened."""
    return App(queues=[Q]).task(name=name)(send)


def schedules(rule: Rule | None = None, *, catch_up: str = "once", **using: Any) -> Schedules:
    """One schedule, a minute long unless it has another rule."""
    made = Schedules()
    made.add(task(), rule or every(60), catch_up=catch_up, using=using)
    return made


class Workers:
    """Workers of one store that do nothing but their schedules' duty."""

    def __init__(self, edge: Edge, manual: ManualClock) -> None:
        self.edge = edge
        self.store = edge.store
        self.clock = manual

    def worker(self, made: Schedules) -> Callable[[], float | None]:
        """One more worker; calling it is one round of its duty."""
        scheduler = self.scheduler(made)
        return lambda: run(self.edge, scheduler.duty())

    def scheduler(self, made: Schedules) -> Scheduler:
        return Scheduler(tuple(made), self.clock.calendar)

    def until(self, at: datetime, *rounds: Callable[[], float | None], step_s: float = 1.0) -> None:
        """Let time pass, the workers taking turns."""
        n = 0
        while self.clock.calendar() < at.timestamp():
            self.clock.advance(step_s)
            rounds[n % len(rounds)]()
            n += 1

    def jobs(self) -> list[Job]:
        return self.store.scan(Filter(), limit=10_000)

    def fired(self) -> list[str]:
        """The ticks of all jobs there ever were, in the order in which they were fired."""
        return [str((job.headers or {})[TICK_HEADER]) for job in self.jobs()]

    def end_all(self) -> None:
        """Every job is done at once."""
        for lease in self.store.claim([Q], 1000, worker="w", lease_s=30.0):
            self.store.settle([(lease, Done())])


store_of_kind = conftest.store


@pytest.fixture
def workers(store_of_kind: Store, clock: ManualClock) -> Workers:  # noqa: F811
    store_of_kind.declare(Q, Settings())
    return Workers(Edge(store_of_kind, clock), clock)


def utc(text: str) -> datetime:
    return datetime.fromisoformat(text).replace(tzinfo=UTC)


# Each tick once


def test_s9_three_schedulers_of_a_job_that_ends_at_once_make_one_job_a_tick(workers: Workers) -> None:
    rounds = [workers.worker(schedules(every(5))) for _ in range(3)]
    rounds[0]()
    start = workers.clock.calendar()
    for n in range(50 * 5 * 5 + 1):
        workers.clock.advance(0.2)
        rounds[n % 3]()
        workers.end_all()
    assert workers.fired() == [moment(start + 5 * n) for n in range(1, 51)]


def test_s9_schedulers_that_look_at_the_same_moment_make_one_job_a_tick(workers: Workers) -> None:
    rounds = [workers.worker(schedules(every(5))) for _ in range(3)]
    meet = threading.Barrier(4, timeout=20)

    def work(one_round: Callable[[], float | None]) -> None:
        for _ in range(51):
            meet.wait()
            one_round()
            meet.wait()

    threads = [threading.Thread(target=work, args=(one_round,)) for one_round in rounds]
    for thread in threads:
        thread.start()
    for n in range(51):
        workers.clock.advance(5.0 if n else 0.0)
        meet.wait()
        meet.wait()
        workers.end_all()
    for thread in threads:
        thread.join(20)
    assert Counter(workers.fired()) == {moment(workers.clock.calendar() - 5 * n): 1 for n in range(50)}


def stopped_before(flow: Flow[Any], operation: str, edge: Edge) -> Call:
    """Run a flow until it asks for this operation."""
    reply = None
    while True:
        wanted = flow.send(reply)
        assert isinstance(wanted, Call)
        if wanted.name == operation:
            return wanted
        reply = edge.answer(wanted)


def go_on(flow: Generator[Any, Any, Any], wanted: Call, edge: Edge) -> None:
    """Run a stopped flow to its end."""
    try:
        while True:
            wanted = flow.send(edge.answer(wanted))
    except StopIteration:
        pass


def test_s9_a_scheduler_that_was_suspended_before_it_fires_has_lost_the_tick(workers: Workers) -> None:
    other = workers.worker(schedules())
    other()
    suspended = workers.scheduler(schedules())
    run(workers.edge, suspended.duty())
    workers.clock.advance(60)
    duty = suspended.duty()
    wanted = stopped_before(duty, "fire", workers.edge)
    for _ in range(5):
        other()
        workers.end_all()
        workers.clock.advance(60)
    go_on(duty, wanted, workers.edge)
    start = workers.clock.calendar() - 300
    assert workers.fired() == [moment(start + 60 * n) for n in range(5)]


def test_a_job_knows_its_schedule_and_tick_and_has_the_arguments(workers: Workers) -> None:
    made = Schedules()
    using = {"priority": 7, "headers": {"by": "me"}}
    made.add(task(), every(60), args=(1,), kwargs={"b": 2}, using=using, name="x")
    one = workers.worker(made)
    one()
    workers.clock.advance(60)
    one()
    (job,) = workers.jobs()
    assert json.loads(job.payload) == {"*args": [1], "**kwargs": {"b": 2}}
    assert (job.task, job.priority, job.queue) == ("mail.send", 7, Q)
    assert job.headers == {"by": "me", SCHEDULE_HEADER: "x", TICK_HEADER: "2026-01-01T00:01:00+00:00"}


def test_a_tick_whose_unique_key_is_taken_counts_as_fired(workers: Workers) -> None:
    one = workers.worker(schedules(unique_key="only one"))
    one()
    for _ in range(3):
        workers.clock.advance(60)
        one()
    assert workers.fired() == ["2026-01-01T00:01:00+00:00"]
    assert workers.store.schedules() == {"mail.send": workers.clock.calendar()}
    workers.end_all()
    workers.clock.advance(60)
    one()
    assert len(workers.fired()) == 2


# When it looks


def test_nothing_is_asked_of_the_store_before_a_tick_is_due(workers: Workers) -> None:
    scheduler = workers.scheduler(schedules())
    run(workers.edge, scheduler.duty())
    workers.clock.advance(59.5)
    with pytest.raises(StopIteration) as ended:
        next(scheduler.duty())
    assert ended.value.value == pytest.approx(0.5)
    workers.clock.advance(0.5)
    assert isinstance(next(scheduler.duty()), Call)


def test_it_looks_at_the_clock_at_least_each_second_since_that_may_be_set(workers: Workers) -> None:
    assert workers.worker(schedules())() == 1.0


def test_without_schedules_there_is_nothing_to_look_at(workers: Workers) -> None:
    assert workers.worker(Schedules())() is None


# The first sight


def test_a_new_schedule_fires_nothing_that_came_before_it(workers: Workers) -> None:
    one = workers.worker(schedules(cron("0 9 * * *"), catch_up="all"))
    one()
    assert workers.fired() == []
    assert workers.store.schedules() == {"mail.send": utc("2025-12-31T09:00").timestamp()}


@pytest.mark.parametrize("catch_up", ["once", "all"])
def test_a_worker_that_is_restarted_before_the_first_tick_does_not_lose_it(
    workers: Workers, catch_up: str
) -> None:
    made = schedules(cron("0 9 * * *"), catch_up=catch_up)
    workers.worker(made)()
    workers.clock.set_calendar(utc("2026-01-01T09:30"))
    workers.worker(made)()
    assert workers.fired() == ["2026-01-01T09:00:00+00:00"]


def test_a_worker_that_has_read_nothing_yet_does_not_undo_the_start_of_another(workers: Workers) -> None:
    workers.clock.advance(59.9)
    late = workers.scheduler(schedules())
    duty = late.duty()
    # It has seen that nobody has stored anything ...
    wanted = stopped_before(duty, "schedules", workers.edge)
    read = workers.edge.answer(wanted)
    # ... when another comes, and the first tick.
    workers.worker(schedules())()
    workers.clock.advance(0.2)
    go_on(duty, duty.send(read), workers.edge)
    assert workers.fired() == ["2026-01-01T00:01:00+00:00"]


# Missed ticks


@pytest.mark.parametrize("missed", [1, 10])
@pytest.mark.parametrize("catch_up", ["skip", "once", "all"])
def test_c5_ticks_of_a_time_without_workers_are_treated_as_the_schedule_says(
    workers: Workers, catch_up: str, missed: int
) -> None:
    made = schedules(every(300), catch_up=catch_up)
    workers.worker(made)()
    workers.clock.advance(300 * missed + 61)
    again = workers.worker(made)
    for _ in range(3):
        again()
    ticks = [moment(workers.clock.calendar() - 61 - 300 * n) for n in range(missed - 1, -1, -1)]
    assert workers.fired() == {"skip": [], "once": ticks[-1:], "all": ticks}[catch_up]
    # The schedule goes on as ever.
    workers.clock.advance(300 - 61)
    again()
    assert workers.fired()[-1] == moment(workers.clock.calendar())


def test_c5_a_skipped_tick_is_passed_over_for_all_workers_to_come(workers: Workers) -> None:
    workers.worker(schedules(every(300), catch_up="skip"))()
    workers.clock.advance(361)
    workers.worker(schedules(every(300), catch_up="skip"))()
    workers.worker(schedules(every(300), catch_up="all"))()
    assert workers.fired() == []


def test_many_missed_ticks_are_fired_a_round_at_a_time(workers: Workers) -> None:
    made = schedules(catch_up="all")
    one = workers.worker(made)
    one()
    workers.clock.advance(60 * 250)
    assert [one(), len(workers.fired())] == [0.0, ROUND_MAX]
    assert [one(), len(workers.fired())] == [0.0, 2 * ROUND_MAX]
    assert [one(), len(workers.fired())] == [1.0, 250]
    assert workers.fired() == [moment(utc("2026-01-01T00:00").timestamp() + 60 * n) for n in range(1, 251)]


# The clock


def test_c1_a_daily_and_an_hourly_job_run_once_a_tick_across_both_changes(workers: Workers) -> None:
    made = Schedules()
    made.add(task(), cron("30 2 * * *", "Europe/Berlin"), name="daily")
    made.add(task(), cron("0 * * * *", "Europe/Berlin"), name="hourly")
    one = workers.worker(made)
    hours: dict[str, int] = {}
    for day in ("2026-03-29", "2026-10-25"):
        start = datetime.fromisoformat(day).replace(tzinfo=BERLIN)
        workers.clock.set_calendar(start - timedelta(seconds=300))
        one()
        seen = len(workers.jobs())
        workers.until(start + timedelta(days=1) - timedelta(seconds=300), one, step_s=300)
        told = [job.headers or {} for job in workers.jobs()[seen:]]
        daily = [headers[TICK_HEADER] for headers in told if headers[SCHEDULE_HEADER] == "daily"]
        hours[day] = len(told) - len(daily)
        assert (
            daily
            == {
                "2026-03-29": ["2026-03-29T01:00:00+00:00"],
                "2026-10-25": ["2026-10-25T00:30:00+00:00"],
            }[day]
        )
    assert hours == {"2026-03-29": 23, "2026-10-25": 25}


@pytest.mark.parametrize(
    ("catch_up", "most"), [("skip", 1), ("once", 1), ("all", CAUGHT_UP_MAX)], ids=["skip", "once", "all"]
)
def test_c3_a_clock_that_jumps_ten_years_ahead_catches_up_with_few(
    workers: Workers, catch_up: str, most: int, caplog: pytest.LogCaptureFixture
) -> None:
    one = workers.worker(schedules(cron("* * * * *"), catch_up=catch_up))
    one()
    workers.clock.set_calendar(utc("2036-01-01T00:00:30"))
    with caplog.at_level(logging.WARNING, "ulak"):
        for _ in range(15):
            one()
    assert len(workers.fired()) == most
    assert workers.fired()[-1] == "2036-01-01T00:00:00+00:00"
    assert len(caplog.records) == (catch_up == "all")


@pytest.mark.parametrize("catch_up", ["skip", "once", "all"])
def test_c3_a_clock_that_is_set_back_a_day_fires_within_one_period_and_nothing_twice_when_it_returns(
    workers: Workers, catch_up: str, caplog: pytest.LogCaptureFixture
) -> None:
    one = workers.worker(schedules(cron("* * * * *"), catch_up=catch_up))
    one()
    workers.until(utc("2026-01-01T01:00"), one, step_s=30)
    before = workers.fired()
    assert len(before) == 60
    workers.clock.set_calendar(utc("2025-12-31T01:00:20"))
    with caplog.at_level(logging.WARNING, "ulak"):
        workers.until(utc("2025-12-31T01:10:20"), one, step_s=10)
    assert "the clock was set back" in caplog.text
    assert len(caplog.records) == 1
    assert workers.fired()[60:] == [f"2025-12-31T01:{minute:02}:00+00:00" for minute in range(1, 11)]
    # Another worker, that knows nothing of it, sees it alike.
    workers.worker(schedules(cron("* * * * *"), catch_up=catch_up))()
    assert len(workers.fired()) == 70
    workers.clock.set_calendar(utc("2026-01-01T01:00:40"))
    workers.until(utc("2026-01-01T01:02:40"), one, step_s=10)
    assert workers.fired()[70:] == ["2026-01-01T01:01:00+00:00", "2026-01-01T01:02:00+00:00"]


def test_c3_after_a_jump_ahead_and_back_the_schedule_goes_on_and_catches_up_as_ever(workers: Workers) -> None:
    made = schedules(cron("* * * * *"), catch_up="all")
    one = workers.worker(made)
    one()
    workers.clock.set_calendar(utc("2036-01-01T00:00:30"))
    for _ in range(12):
        one()
    there = len(workers.fired())
    workers.clock.set_calendar(utc("2026-01-01T00:10:30"))
    one()
    workers.until(utc("2026-01-01T00:12:00"), one)
    assert workers.fired()[there:] == ["2026-01-01T00:11:00+00:00", "2026-01-01T00:12:00+00:00"]
    # All workers are down for a while.
    workers.clock.advance(180)
    workers.worker(made)()
    assert len(workers.fired()) == there + 5


def test_a_clock_that_is_corrected_by_seconds_repeats_nothing(workers: Workers) -> None:
    one = workers.worker(schedules(every(1)))
    one()
    workers.until(utc("2026-01-01T00:01"), one)
    workers.clock.set_calendar(utc("2026-01-01T00:00:55"))
    workers.until(utc("2026-01-01T00:01:05"), one)
    assert max(Counter(workers.fired()).values()) == 1
    assert len(workers.fired()) == 65


# No room


def full(workers: Workers) -> int:
    """Fill the queue, which has room for one."""
    workers.store.configure(Q, Change(capacity=1))
    (job_id,) = workers.store.add(Q, [Draft(b"", "bytes", headers={TICK_HEADER: "the one in the way"})])
    return job_id


def test_a_tick_that_finds_no_room_is_tried_each_second_until_it_does(workers: Workers) -> None:
    one = workers.worker(schedules())
    one()
    full(workers)
    workers.clock.advance(60)
    for _ in range(30):
        assert one() == RETRY_S
        workers.clock.advance(1)
    workers.end_all()
    one()
    assert workers.fired()[1:] == ["2026-01-01T00:01:00+00:00"]


@pytest.mark.parametrize("catch_up", ["skip", "once"])
def test_a_tick_that_found_no_room_is_given_up_when_the_next_one_comes_and_that_is_said_once(
    workers: Workers, catch_up: str, caplog: pytest.LogCaptureFixture
) -> None:
    one = workers.worker(schedules(every(300), catch_up=catch_up))
    one()
    full(workers)
    with caplog.at_level(logging.INFO, "ulak"):
        workers.until(utc("2026-01-01T00:12"), one)
        workers.end_all()
        workers.until(utc("2026-01-01T00:20"), one)
    assert workers.fired()[1:] == ["2026-01-01T00:10:00+00:00"]
    given_up = "is given up: queue mail was full until the next tick came"
    # The second one was fired, two minutes late; the third finds that in its way.
    assert [record.getMessage() for record in caplog.records if record.levelno == logging.WARNING] == [
        f"schedule mail.send: tick 2026-01-01T00:05:00+00:00 {given_up}",
        f"schedule mail.send: tick 2026-01-01T00:15:00+00:00 {given_up}",
    ]
    assert len(caplog.records) <= 4


def test_where_all_are_caught_up_with_ticks_wait_for_room_in_order(workers: Workers) -> None:
    one = workers.worker(schedules(catch_up="all"))
    one()
    full(workers)
    workers.until(utc("2026-01-01T00:04"), one)
    workers.store.configure(Q, Change(capacity=3))
    workers.clock.advance(1)
    one()
    assert workers.fired()[1:] == ["2026-01-01T00:01:00+00:00", "2026-01-01T00:02:00+00:00"]
    workers.end_all()
    workers.clock.advance(1)
    one()
    assert workers.fired()[3:] == ["2026-01-01T00:03:00+00:00", "2026-01-01T00:04:00+00:00"]


def test_a_tick_without_room_that_another_worker_fires_is_not_given_up(
    workers: Workers, caplog: pytest.LogCaptureFixture
) -> None:
    one, other = (workers.worker(schedules()) for _ in range(2))
    one()
    full(workers)
    workers.clock.advance(60)
    one()
    workers.end_all()
    other()
    workers.end_all()
    workers.clock.advance(60)
    one()
    assert workers.fired()[1:] == ["2026-01-01T00:01:00+00:00", "2026-01-01T00:02:00+00:00"]
    assert caplog.records == []


# A store that fails


def test_a_schedule_that_cannot_be_fired_leaves_the_others_be_and_is_tried_again(workers: Workers) -> None:
    broken = True

    def decide(name: str, args: tuple[Any, ...]) -> BaseException | None:
        return StorageUnavailable("away") if broken and name == "fire" and args[0] == "first" else None

    made = Schedules()
    for name in ("first", "second"):
        made.add(task(), every(60), name=name)
    workers.worker(made)()
    scheduler = workers.scheduler(made)
    edge = Edge(Refusing(workers.store, decide), workers.clock)  # type: ignore[arg-type]
    workers.clock.advance(60)
    with pytest.raises(StorageUnavailable):
        run(edge, scheduler.duty())
    assert [job.headers and job.headers[SCHEDULE_HEADER] for job in workers.jobs()] == ["second"]
    broken = False
    workers.clock.advance(1)
    run(edge, scheduler.duty())
    assert [job.headers and job.headers[SCHEDULE_HEADER] for job in workers.jobs()] == ["second", "first"]


def test_a_fire_whose_answer_was_lost_is_not_done_again(workers: Workers) -> None:
    one = workers.worker(schedules())
    one()
    workers.clock.advance(60)
    scheduler = workers.scheduler(schedules())
    duty = scheduler.duty()
    wanted = stopped_before(duty, "fire", workers.edge)
    workers.edge.answer(wanted)
    with pytest.raises(StorageUnavailable):
        duty.throw(StorageUnavailable("no answer"))
    workers.clock.advance(1)
    run(workers.edge, scheduler.duty())
    assert len(workers.fired()) == 1


# What is declared


def only(made: Schedules) -> Schedule:
    (schedule,) = made
    return schedule


def test_a_schedule_is_called_as_its_task_unless_it_has_a_name() -> None:
    assert only(schedules()).name == "mail.send"
    made = Schedules()
    assert made.add(task(), every(1), name="nightly").name == "nightly"
    assert len(made) == 1


def test_two_schedules_of_one_task_need_names() -> None:
    made = schedules()
    with pytest.raises(
        ArgumentError, match=r"there is a schedule 'mail.send' already\n  give this one a name"
    ):
        made.add(task(), every(1))
    made.add(task(), every(1), name="second")


@pytest.mark.parametrize("name", ["", "a b", "a@1.0", "-a", "a" * 129, 5, b"a"])
def test_a_name_that_cannot_be_is_refused(name: Any) -> None:
    with pytest.raises(ArgumentError, match="a schedule's name must match"):
        Schedules().add(task(), every(1), name=name)


@pytest.mark.parametrize(
    ("options", "told"),
    [
        ({"catch_up": "never"}, 'catch_up must be "skip", "once" or "all", got \'never\''),
        ({"catch_up": None}, "got NoneType"),
        ({"args": "Ada"}, "args is a tuple of arguments, got str"),
        ({"args": 5}, "args is a tuple of arguments, got int"),
        ({"args": iter(())}, "args is a tuple of arguments, got tuple_iterator"),
        ({"kwargs": [1]}, "kwargs is a dict of arguments, got list"),
    ],
)
def test_what_a_schedule_cannot_be_told_is_refused(options: dict[str, Any], told: str) -> None:
    made = Schedules()
    with pytest.raises(ArgumentError) as raised:
        made.add(task(), every(1), **options)
    assert told in str(raised.value)
    assert len(made) == 0


# Zones


def test_the_zone_is_utc_unless_another_is_named() -> None:
    assert str(cron("0 9 * * *").zone) == "UTC"
    assert str(cron("0 9 * * *", "Europe/Istanbul").zone) == "Europe/Istanbul"


@pytest.mark.parametrize(
    ("tz", "meant"),
    [
        ("Istanbul", "Europe/Istanbul"),
        ("europe/istanbul", "Europe/Istanbul"),
        ("Europe/Istambul", "Europe/Istanbul"),
        ("New York", "America/New_York"),
        ("Utc", "UTC"),
    ],
)
def test_an_unknown_zone_is_refused_with_the_nearest_name(tz: str, meant: str) -> None:
    with pytest.raises(ArgumentError) as raised:
        cron("0 9 * * *", tz)
    assert f"there is no time zone {tz!r}; did you mean {meant!r}?" in str(raised.value)


@pytest.mark.parametrize("tz", ["", "../etc/passwd", "Europe", "x\0y", "q" * 500, "\ud800"])
def test_what_could_never_be_a_zone_is_refused(tz: str) -> None:
    with pytest.raises(ArgumentError, match="there is no time zone"):
        cron("0 9 * * *", tz)


@pytest.mark.parametrize("tz", [None, 3, UTC])
def test_a_zone_is_given_by_its_name(tz: Any) -> None:
    with pytest.raises(ArgumentError, match="tz must be a name such as"):
        cron("0 9 * * *", tz)


@pytest.fixture
def no_zones() -> Iterator[None]:
    """A machine without time zone data."""
    import zoneinfo

    zoneinfo.reset_tzpath(())
    zoneinfo.ZoneInfo.clear_cache()
    yield
    zoneinfo.reset_tzpath()
    zoneinfo.ZoneInfo.clear_cache()


@pytest.mark.usefixtures("no_zones")
def test_without_zone_data_utc_works_and_others_say_what_to_install() -> None:
    try:
        import tzdata  # type: ignore[import-not-found]  # noqa: F401
    except ImportError:
        assert cron("0 9 * * *").next_after(0.0) == 9 * 3600
        with pytest.raises(ArgumentError, match="pip install tzdata"):
            cron("0 9 * * *", "Europe/Istanbul")
