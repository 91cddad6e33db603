"""The wait for the end of a job, driven by hand: the order of its asks, and what it does at each answer."""

from __future__ import annotations

import pytest

from tests.core.make import leased_job
from tests.core.stage import Script, Stage, call
from ulak.core import flows
from ulak.core.flows import NewSignal, Now, Sleep
from ulak.core.job import ENDED, OPEN, State
from ulak.errors import StorageUnavailable

GET = call("get", [7])
WAITS = leased_job(id=7)


def begins(stage: Stage) -> Script:
    """It stands in line at time 100, before its first look."""
    return [(Now(), 100.0), (NewSignal(), stage.signal), (call("ends", 7), stage.end), "join end", "clear"]


@pytest.mark.parametrize("timeout_s", [None, 0.0, 5.0])
@pytest.mark.parametrize("state", sorted(ENDED))
def test_a_job_that_has_ended_is_answered_at_the_first_look(state: State, timeout_s: float | None) -> None:
    stage, job = Stage(), leased_job(id=7, state=state)
    flow = flows.wait_end(7, timeout_s=timeout_s)
    assert stage.play(flow, [*begins(stage), (GET, [job]), "leave end"]) is job


def test_a_job_that_is_not_stored_is_answered_at_the_first_look() -> None:
    stage = Stage()
    assert stage.play(flows.wait_end(7, timeout_s=None), [*begins(stage), (GET, [None]), "leave end"]) is None


@pytest.mark.parametrize("state", sorted(OPEN))
def test_without_time_to_wait_an_open_job_is_answered_as_it_is(state: State) -> None:
    stage, job = Stage(), leased_job(id=7, state=state)
    script: Script = [*begins(stage), (GET, [job]), (Now(), 100.0), "leave end"]
    assert stage.play(flows.wait_end(7, timeout_s=0.0), script) is job


def test_it_sleeps_for_a_second_at_most_and_looks_again() -> None:
    stage, ended = Stage(), leased_job(id=7, state=State.DEAD)
    script: Script = [
        *begins(stage),
        (GET, [WAITS]),
        (Sleep(stage.signal, 1.0), None),
        "clear",
        (GET, [WAITS]),
        (Sleep(stage.signal, 1.0), None),
        "clear",
        (GET, [ended]),
        "leave end",
    ]
    assert stage.play(flows.wait_end(7, timeout_s=None), script) is ended


def test_when_time_is_over_it_has_looked_once_more() -> None:
    stage, last = Stage(), leased_job(id=7)
    script: Script = [
        *begins(stage),
        (GET, [WAITS]),
        (Now(), 101.5),
        (Sleep(stage.signal, 0.5), None),
        "clear",
        (GET, [last]),
        (Now(), 102.0),
        "leave end",
    ]
    assert stage.play(flows.wait_end(7, timeout_s=2.0), script) is last


def test_it_leaves_its_line_when_the_store_fails() -> None:
    stage = Stage()
    with pytest.raises(StorageUnavailable):
        stage.play(
            flows.wait_end(7, timeout_s=None), [*begins(stage), (GET, StorageUnavailable("x")), "leave end"]
        )
