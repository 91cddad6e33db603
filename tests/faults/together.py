"""I/O faults under calls that share a commit: what one caller hears must be true of its own call alone."""

from __future__ import annotations

import asyncio
import tempfile
from pathlib import Path
from typing import Any

from tests.faults.losses import DATABASE, check_file
from tests.faults.place import FAST
from tests.faults.strikes import Fault, Striker
from tests.faults.troubles import PAGES, hasty
from ulak import AsyncQueue, JobInfo, Outcome, StorageBusy, StorageFull, StorageUnavailable
from ulak.core.job import State

CALLS = 3


def strike_together(journal: str, fault: Fault, nth: int, *, persistent: bool) -> tuple[bool, list[str]]:
    """Enqueue and ack several jobs at once while a fault strikes; whether it did, and what is wrong."""
    with tempfile.TemporaryDirectory(prefix="ulak-faults-", dir=FAST) as name:
        live = Path(name).resolve() / "live"
        live.mkdir()
        with hasty(max(PAGES)), Striker(live) as striker:
            problems = asyncio.run(
                _trial(f"sqlite:///{live / DATABASE}?journal={journal}", striker, fault, nth, persistent)
            )
        return striker.struck > 0, problems + check_file(live / DATABASE)


async def _trial(url: str, striker: Striker, fault: Fault, nth: int, persistent: bool) -> list[str]:
    async with AsyncQueue(url, name="mail") as q:
        await q.enqueue_many([f"old-{n}" for n in range(CALLS)])
        leases = await q.deliver_many(CALLS)
        striker.arm(fault, nth, persistent=persistent)
        answers = await asyncio.gather(
            *(call for n, lease in enumerate(leases) for call in (q.enqueue(f"new-{n}"), q.ack(lease))),
            return_exceptions=True,
        )
        striker.disarm()
        jobs = await q.jobs()
        problems = [
            problem
            for n, lease in enumerate(leases)
            for problem in (
                _of_enqueue(f"new-{n}", answers[2 * n], jobs),
                _of_ack(lease.id, answers[2 * n + 1], jobs),
            )
            if problem
        ]
        again = await q.enqueue("the newest")
        if [job.payload for job in await q.jobs("ready", after=again - 1)] != ["the newest"]:
            problems.append("a job enqueued when the fault was over is not there")
        return problems


def _of_enqueue(payload: str, answer: Any, jobs: list[JobInfo]) -> str:
    ids = [job.id for job in jobs if job.payload == payload]
    match answer:
        case int():
            is_right = ids == [answer]
        case StorageFull() | StorageBusy():
            is_right = not ids
        case StorageUnavailable():
            is_right = len(ids) <= 1
        case _:
            is_right = False
    return "" if is_right else f"enqueue of {payload!r} answered {answer!r}, and stored are {ids}"


def _of_ack(job_id: int, answer: Any, jobs: list[JobInfo]) -> str:
    states = [job.state for job in jobs if job.id == job_id]
    match answer:
        case Outcome.OK:
            is_right = states == [State.SUCCEEDED]
        case StorageFull() | StorageBusy():
            is_right = states == [State.LEASED]
        case StorageUnavailable():
            is_right = states in ([State.LEASED], [State.SUCCEEDED])
        case _:
            is_right = False
    return "" if is_right else f"ack of job {job_id} answered {answer!r}, and it is {states}"
