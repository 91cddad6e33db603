"""Public bug reports of other queues, played on `ulak work`; the id of each is in its test's name."""

from __future__ import annotations

import contextlib
import signal
import textwrap
from pathlib import Path
from typing import Any

import pytest

from tests.cli.working import HELLO, Caller, Work
from tests.support.doors import Door
from tests.support.pools import AT_ONCE, causes
from tests.support.waiting import WAIT_S
from ulak import Job, JobFailed

POISON = HELLO + textwrap.dedent("""
    @app.task(max_attempts=3)
    def poison() -> None:
        os._exit(137)
    """)


def swallow_poison(folder: Path, caller: Caller) -> Job[Any]:
    """One job whose every run kills the process that it is in."""
    (folder / "hello.py").write_text(POISON)
    task = caller.app.task(name="hello.poison", max_attempts=3, backoff=AT_ONCE)(lambda: None)
    return task.enqueue()


def test_X1_X2_a_job_that_kills_its_process_is_dead_in_the_end_and_no_other_is_hurt(
    work: Work, folder: Path, caller: Caller, gate: Door
) -> None:
    standing = [caller.stand.enqueue(gate.place) for _ in range(3)]
    poison = swallow_poison(folder, caller)
    worker = work("hello:app", "--executor", "process", "--concurrency", "4")
    guests = [gate.guest() for _ in standing]
    with pytest.raises(JobFailed, match="dead after 3 of 3 attempts: WorkerLost: its process ended with"):
        poison.result(WAIT_S)
    assert causes(poison.info()) == ["lost"] * 3
    for guest in guests:
        guest.let_go("unharmed")
    assert [job.result(WAIT_S) for job in standing] == ["unharmed"] * 3
    assert {(job.info().attempt, job.info().delivery) for job in standing} == {(1, 1)}
    worker.signal(signal.SIGTERM)
    assert worker.ended() == 0


def test_X2_jobs_that_share_a_process_with_one_that_kills_it_finish_in_the_end(
    work: Work, folder: Path, caller: Caller, gate: Door
) -> None:
    """Threads are not apart: each crash costs them an attempt. They have more of these than the poison."""
    standing = [caller.stand.using(backoff=AT_ONCE).enqueue(gate.place) for _ in range(3)]
    poison = swallow_poison(folder, caller)
    worker = work("hello:app", "--processes", "1", "--concurrency", "4", ready=False)
    with pytest.raises(JobFailed, match="dead after 3 of 3 attempts"):
        poison.result(WAIT_S)
    assert (causes(poison.info()), poison.info().crashes) == (["lost"] * 3, 3)
    alive = 0
    while alive < len(standing):
        # Of those that a crash has taken, the line is cut, perhaps before they said a word.
        with contextlib.suppress(OSError, ValueError):
            gate.guest().let_go("home")
            alive += 1
    assert [job.result(WAIT_S) for job in standing] == ["home"] * 3
    assert max(job.info().attempt for job in standing) <= 4
    worker.signal(signal.SIGTERM)
    assert worker.ended() == 0
