"""Jobs that go on in their threads though their timeout is over: which they are, and what ends them."""

from __future__ import annotations

import logging

import pytest

from tests.support.pools import AT_ONCE, Gate, causes
from tests.support.waiting import WAIT_S, eventually
from tests.tasks.conftest import MakeApp
from ulak import Context, State
from ulak.testing import ManualClock


@pytest.fixture(autouse=True)
def quiet(caplog) -> None:
    caplog.set_level(logging.CRITICAL, "ulak")


def test_the_end_of_a_pool_fails_the_attempts_whose_time_is_over_and_hands_back_the_others(
    timed: MakeApp, clock: ManualClock
) -> None:
    app = timed(visibility_timeout=3600)
    with Gate() as gate:
        stand = gate.handler("def")
        late, in_time, endless = (
            app.task(name=f"stand{timeout}", timeout=timeout, max_attempts=1)(lambda: stand(None)).enqueue()
            for timeout in (1, 3600, None)
        )
        with app.workers(3) as pool:
            gate.entered(3)
            clock.advance(2.0)
            assert pool.shutdown(0).released == 2
        assert [job.status() for job in (late, in_time, endless)] == [State.DEAD, State.READY, State.READY]
        assert [job.info().attempt for job in (in_time, endless)] == [0, 0]
        assert causes(late.info()) == ["timeout"]
        error = late.info().history[0].error
        assert error is not None
        assert (error.type, error.text) == (
            "TimeoutError",
            "its task's timeout was over, and its worker ended before it did",
        )


def test_a_thread_that_was_left_behind_changes_nothing_when_it_returns(
    timed: MakeApp, clock: ManualClock
) -> None:
    app = timed(visibility_timeout=3600, backoff=AT_ONCE)
    with Gate() as gate:
        stand = gate.handler("def")

        @app.task(timeout=1, max_attempts=2)
        def stands_once(ctx: Context) -> int:
            if ctx.attempt == 1:
                stand(None)
            return ctx.attempt

        job = stands_once.enqueue()
        with app.workers(1) as pool:
            gate.entered()
            clock.advance(2.0)
            assert pool.shutdown(0).released == 0
        with app.workers(1) as successor:
            eventually(lambda: job.status() is State.SUCCEEDED, clock=clock)
            gate.open()
            eventually(lambda: pool.size == 0, clock=clock)
            successor.shutdown(0)
    assert (job.result(0), causes(job.info())) == (2, ["timeout", "ack"])


def test_a_pool_knows_the_jobs_that_go_on_after_two_looks(timed: MakeApp, clock: ManualClock) -> None:
    app = timed(visibility_timeout=3600)
    with Gate() as gate:
        stand = gate.handler("def")

        @app.task(timeout=1, max_attempts=1)
        def overrun() -> None:
            stand(None)

        @app.task
        def endless() -> None:
            stand(None)

        job = overrun.enqueue()
        endless.enqueue()
        with app.workers(2) as pool:
            gate.entered(2)
            assert pool.late == []
            eventually(lambda: pool.late, clock=clock)
            assert [lease.id for lease in pool.late] == [job.id]
            gate.open()
            assert job.wait(WAIT_S) is State.DEAD
            eventually(lambda: pool.late == [])
            pool.shutdown(0)
