"""`Jobs.advance`: the test's clock, and what workers do by time alone."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest

from ulak import App
from ulak.testing import Jobs


@pytest.mark.parametrize("duration", ["30s", 30, timedelta(seconds=30)])
def test_time_passes_only_by_advance(app: App, jobs: Jobs, duration: str | float | timedelta) -> None:
    @app.task
    def later() -> None: ...

    later.using(delay=30).enqueue()
    jobs.advance("29s")
    assert jobs.drain() == 0
    jobs.advance(duration)
    assert jobs.counts("default").ready == 1
    assert jobs.drain() == 1


def test_advance_runs_nothing_itself(app: App, jobs: Jobs) -> None:
    @app.task
    def later() -> None:
        raise AssertionError

    later.using(delay=30).enqueue()
    jobs.advance("1h")
    assert jobs.enqueued(later)[0].attempt == 0


def test_a_lease_that_ends_is_reclaimed(app: App, jobs: Jobs) -> None:
    @app.task
    def note() -> None: ...

    note.enqueue()
    lease = app.queue("default").deliver()
    assert lease is not None
    jobs.advance("30s")
    assert app.queue("default").counts().leased == 0
    jobs.advance("10s")
    assert jobs.drain() == 1


def test_schedules_fire_at_each_of_their_ticks(app: App, jobs: Jobs) -> None:
    @app.every(30)
    def tick() -> None: ...

    @app.cron("0 9 * * *", tz="Europe/Istanbul")
    def daily() -> None: ...

    jobs.advance("1d")
    assert len(jobs.enqueued(tick)) == 2880
    (job,) = jobs.enqueued(daily)
    assert job.created_at.hour == 6
    assert jobs.drain() == 2881


def test_ticks_from_before_the_test_are_nobodys() -> None:
    app = App()

    @app.every(3600)
    def tick() -> None: ...

    with Jobs(at=datetime(2026, 1, 1, 0, 59, 59, tzinfo=UTC)) as jobs:
        assert jobs.drain() == 0
        jobs.advance(1)
        assert jobs.drain() == 1


def test_a_tick_that_finds_no_room_comes_once_there_is_some(app: App, jobs: Jobs) -> None:
    @app.every(60)
    @app.task(queue="mail")
    def tick() -> None: ...

    jobs.advance("5m")
    assert jobs.counts("mail").ready == 2
    jobs.drain()
    jobs.advance("1s")
    assert jobs.counts("mail").ready == 1
