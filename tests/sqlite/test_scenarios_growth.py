"""What hurt users of other queues as their file grew: its size, the cost of a call, floods, wrong gauges.

A test's name carries the id of its scenario. ULAK_GROWTH=full runs those of size in the size their scenario
names; the suite's own sizes show the same in a few seconds.
"""

from __future__ import annotations

import contextlib
import json
import os
import sqlite3
import tempfile
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Self

import pytest

from tests.cli.command import ulak
from tests.faults.place import FAST
from tests.sqlite.roles_storage import live_and_die
from tests.support.children import child
from tests.support.roles import LONG_S, QUEUE, hold, work_till_drained
from tests.support.waiting import eventually
from ulak import Outcome, Queue
from ulak.clock import MACHINE
from ulak.core.store import DURABLE_RETENTION, Keep, Retention
from ulak.storage.sqlite.due import PROMOTE_MAX

IS_FULL = os.environ.get("ULAK_GROWTH", "") == "full"
DEPTH = 10
ENQUEUED = 100_000 if IS_FULL else 4_000
KEPT = DURABLE_RETENTION.succeeded.count if IS_FULL else 500
KEPT_BYTES = 400
"""What one small ended job takes in its table and indexes, at most."""
FEW, MANY = 1_000, 1_000_000
DUE = 500_000 if IS_FULL else 4 * PROMOTE_MAX
LIVES = 40
STATES = ("ready", "scheduled", "leased", "held", "acked", "dead", "cancelled", "expired")
WEEKS_S = 3 * 7 * 86_400.0


@pytest.fixture
def fast_path() -> Iterator[Path]:
    """A file in memory, where that is possible: what is measured here is not the disk."""
    with tempfile.TemporaryDirectory(prefix="ulak-", dir=FAST) as name:
        yield Path(name) / "jobs.db"


@contextlib.contextmanager
def plain(path: Path) -> Iterator[sqlite3.Connection]:
    """A client that knows nothing of ulak."""
    with contextlib.closing(sqlite3.connect(path, isolation_level=None, timeout=10)) as db:
        yield db


def recount(path: Path) -> dict[str, int]:
    """How many jobs are in each state, by their rows alone."""
    with plain(path) as db:
        found = dict(db.execute("SELECT state, count(*) FROM jobs GROUP BY state").fetchall())
    return {name: found.get(number, 0) for number, name in enumerate(STATES)}


# The file's size


def size_of(path: Path) -> int:
    """The file with its log, in bytes."""
    return sum(file.stat().st_size for file in (path, path.with_name(f"{path.name}-wal")) if file.exists())


def test_M3_a_file_that_always_holds_little_stays_as_small_as_what_it_holds(fast_path):
    keep = Keep(KEPT, 7 * 86_400.0)
    retention = None if IS_FULL else Retention(succeeded=keep)
    url = f"sqlite:///{fast_path}?durability=relaxed"
    with Queue(url, QUEUE, retention=retention, visibility_timeout=LONG_S) as q:
        q.enqueue_many([b"x" * 20] * DEPTH)
        sizes = []
        for _ in range(2):
            for _ in range(ENQUEUED // DEPTH):
                q.enqueue_many([b"x" * 20] * DEPTH)
                q.ack_many(q.deliver_many(DEPTH))
            sizes.append(size_of(fast_path))
        assert q.counts().acked == min(KEPT, 2 * ENQUEUED)
        assert q.counts().pruned == 2 * ENQUEUED - q.counts().acked
    # The second half took no more than the first had left behind.
    assert sizes[1] <= 1.1 * sizes[0]
    assert fast_path.stat().st_size <= 200_000 + KEPT * KEPT_BYTES
    assert not fast_path.with_name(f"{fast_path.name}-wal").exists()


# The cost of a call


class Meter:
    """Counts the library's own instructions, and notes what it is asked for."""

    def __init__(self, q: Queue) -> None:
        self.steps = 0
        self.statements: list[str] = []
        link: Any = q._open().edge.store.link  # type: ignore[attr-defined]
        self._connections: list[sqlite3.Connection] = [link.writer, link.reader]

    def __enter__(self) -> Self:
        for db in self._connections:
            db.set_progress_handler(self._count, 1)
            db.set_trace_callback(self.statements.append)
        return self

    def _count(self) -> None:
        self.steps += 1

    def __exit__(self, *_: object) -> None:
        for db in self._connections:
            db.set_progress_handler(None, 1)
            db.set_trace_callback(None)


def fill(path: Path, jobs: int) -> None:
    """Add so many ready jobs as nobody enqueues them: by one statement. The queue is there, and empty."""
    with plain(path) as db:
        db.execute("BEGIN")
        (last,) = db.execute("SELECT last_id FROM queues WHERE id = 0").fetchone()
        db.execute(
            "WITH RECURSIVE n (id) AS (VALUES (?) UNION ALL SELECT id + 1 FROM n WHERE id < ?) "
            "INSERT INTO jobs (id, queue, state, priority, max_attempts, created_at, run_at, codec, payload) "
            "SELECT id, (SELECT id FROM queues WHERE name = ?), 0, id % 7, 5, 1.0, 1.0, 'json', x'37' FROM n",
            (last + 1, last + jobs, QUEUE),
        )
        db.execute("UPDATE queues SET last_id = ? WHERE id = 0", (last + jobs,))
        db.execute("UPDATE queues SET entered = entered + ? WHERE name = ?", (jobs, QUEUE))
        db.execute("COMMIT")


def fill_ended(path: Path, jobs: int) -> None:
    """Add so many finished jobs likewise."""
    fill(path, jobs)
    with plain(path) as db:
        a_minute_ago = MACHINE.calendar() - 60
        db.execute("UPDATE jobs SET state = 4, ended_at = ? + id * 1e-6, delivery = 1", (a_minute_ago,))
        # `left` is a word of SQL.
        db.execute('UPDATE queues SET "left" = "left" + ?, succeeded = ? WHERE name = ?', (jobs, jobs, QUEUE))


def calls_of(q: Queue) -> dict[str, Callable[[], object]]:
    """What programs call all the time, each ready to be called once more."""
    leases = q.deliver_many(4)
    return {
        "enqueue": lambda: q.enqueue("payload"),
        "enqueue by a key": lambda: q.enqueue("payload", unique_key="one", idempotency_key="one"),
        "claim": lambda: q.deliver_many(1),
        "claim 100": lambda: q.deliver_many(100),
        "ack": lambda: q.ack(leases.pop()),
        "nack": lambda: q.nack(leases.pop()),
        "nack with a delay": lambda: q.nack(leases.pop(), delay=60),
        "extend": lambda: q.extend(leases[0], 60),
        "release": lambda: q.release(leases.pop()),
        "counts": q.counts,
        "tick": q.tick_timeouts,
        "terminal_of": lambda: q.terminal_of(1),
        "jobs": lambda: q.jobs(limit=10),
    }


def costs(path: Path, waiting: int) -> tuple[dict[str, int], dict[str, list[str]]]:
    """What each call costs with so many jobs waiting: instructions, and the statements it came to."""
    with Queue(f"sqlite:///{path}?durability=relaxed", QUEUE, visibility_timeout=LONG_S) as q:
        q.counts()
        fill(path, waiting)
        steps, statements = {}, {}
        for name, call in calls_of(q).items():
            with Meter(q) as meter:
                call()
            steps[name], statements[name] = meter.steps, meter.statements
        return steps, statements


def test_V2_no_call_costs_more_with_a_million_waiting_than_with_a_thousand(fast_path):
    few, _ = costs(fast_path.with_name("few.db"), FEW)
    many, _ = costs(fast_path, MANY)
    assert {name: steps for name, steps in many.items() if steps > 1.1 * few[name] + 20} == {}
    assert min(few.values()) > 5


def test_V2_no_call_sorts_or_scans_what_waits(fast_path):
    _, statements = costs(fast_path, FEW)
    wrong = []
    with plain(fast_path) as db:
        for name, texts in statements.items():
            for text in texts:
                if text.startswith(("SELECT", "UPDATE", "DELETE")):
                    plan = [step for *_, step in db.execute(f"EXPLAIN QUERY PLAN {text}")]
                    wrong += [f"{name}: {step}: {text}" for step in plan if _is_slow(step, text)]
    assert wrong == []
    assert any("state = 0" in text for text in statements["claim"])


def _is_slow(step: str, text: str) -> bool:
    # A walk by rowid that stops at its limit is how jobs are listed, page by page.
    is_page = "LIMIT" in text and "ORDER BY id LIMIT" in text
    return "TEMP B-TREE" in step or (step.startswith("SCAN jobs") and not is_page)


def cost_of_finishing(path: Path, kept: int) -> tuple[int, int]:
    """What an ack and an upkeep cost where so many finished jobs are kept, and no more may be."""
    retention = Retention(succeeded=Keep(kept, 1e6))
    url = f"sqlite:///{path}?durability=relaxed"
    with Queue(url, QUEUE, retention=retention, visibility_timeout=LONG_S) as q:
        q.counts()
        fill_ended(path, kept)
        q.enqueue("payload")
        lease = q.deliver()
        with Meter(q) as acking:
            assert q.ack(lease) is Outcome.OK
        assert (q.counts().acked, q.counts().pruned) == (kept, 1)
        with Meter(q) as pruning:
            q.prune()
        return acking.steps, pruning.steps


def test_M3_finishing_a_job_costs_no_more_when_much_is_kept(fast_path):
    few = cost_of_finishing(fast_path.with_name("few.db"), 1_000)
    many = cost_of_finishing(fast_path, 100_000)
    assert many[0] <= 1.1 * few[0] + 20
    assert many[1] <= 1.1 * few[1] + 20
    assert few[0] > 20


# A flood


def schedule(path: Path, jobs: int) -> None:
    """Make all jobs that wait due in one and the same second, and not counted as ready yet."""
    with plain(path) as db:
        db.execute("UPDATE jobs SET state = 1, run_at = ? WHERE state = 0", (MACHINE.calendar() - 1.0,))
        db.execute("UPDATE queues SET scheduled = scheduled + ? WHERE name = ?", (jobs, QUEUE))


def test_V3_a_flood_that_is_due_at_once_is_taken_up_in_batches_beside_what_is_ready(fast_path):
    url = f"sqlite:///{fast_path}?durability=relaxed"
    with Queue(url, QUEUE, visibility_timeout=LONG_S) as q:
        q.counts()
        fill(fast_path, DUE)
        schedule(fast_path, DUE)
        ready = [q.enqueue("ready", priority=100) for _ in range(20)]
        taken: list[int] = []
        for number in range(DUE // PROMOTE_MAX):
            with Meter(q) as meter:
                lease = q.deliver()
            assert lease is not None
            assert lease.id == ready[number]
            assert q.ack(lease) is Outcome.OK
            promoted = DUE - q.counts().scheduled
            assert promoted <= (number + 1) * PROMOTE_MAX
            # A bound on how long others wait for the write lock, whatever this machine's speed.
            assert meter.steps < 200 * PROMOTE_MAX
            if number == 3:
                break
        while leases := q.deliver_many(5_000):
            taken += [lease.id for lease in leases if lease.id not in ready]
            q.ack_many(leases)
        assert len(taken) == len(set(taken)) == DUE
        assert q.counts().open == 0


def test_V3_processes_that_share_a_flood_run_each_of_its_jobs_once(fast_path):
    url = f"sqlite:///{fast_path}?durability=relaxed"
    jobs = PROMOTE_MAX + 1_000
    with Queue(url, QUEUE, visibility_timeout=LONG_S) as q:
        q.counts()
        fill(fast_path, jobs)
        schedule(fast_path, jobs)
        with child(work_till_drained, url) as one, child(work_till_drained, url) as other:
            for worker in (one, other):
                worker.hear("ready")
            for worker in (one, other):
                worker.tell("go")
            ran = [len(worker.hear("ran", 60.0)) for worker in (one, other)]
        assert sum(ran) == jobs
        assert q.counts().totals.processed == q.counts().acked == jobs


# Gauges


def test_O1_counts_equal_a_recount_whatever_was_done_and_wherever_its_process_was_killed(url, path):
    with child(live_and_die, url, 11, LIVES) as living:
        for _ in range(LIVES):
            living.hear("killed")
            with Queue(url, QUEUE) as q:
                counts, totals = q.counts(), q.counts().totals
            assert {name: getattr(counts, name) for name in STATES} == recount(path)
            assert totals.processed == totals.succeeded + totals.failed
            assert totals.failed == totals.retries + totals.dead_lettered + totals.cut
            ended = totals.succeeded + totals.dead_lettered + totals.cancelled + totals.expired
            assert totals.enqueued + totals.redriven == ended + totals.deleted + counts.open
            living.tell("go")
        assert living.ended() == 0
    # It was no idle run.
    seen = Counter({name: getattr(totals, name) for name in totals.__struct_fields__})
    assert all(seen[name] > 0 for name in ("succeeded", "retries", "dead_lettered", "cancelled", "redriven"))


def test_O2_stuck_jobs_are_seen_by_their_age(url, path):
    with Queue(url, QUEUE, visibility_timeout=LONG_S) as q:
        forgotten, running, _ = [q.enqueue("payload", priority) for priority in (0, 9, 0)]
        q.deliver()
        long_ago = MACHINE.calendar() - WEEKS_S
        with plain(path) as db:
            db.execute("UPDATE jobs SET created_at = ? WHERE id = ?", (long_ago, forgotten))
            db.execute("UPDATE jobs SET started_at = ?, lease_end = 0 WHERE id = ?", (long_ago, running))
        told = json.loads(ulak("counts", "--url", url, "--json").stdout)["queues"][QUEUE]
        assert (told["ready"], told["leased"], told["leases_over"]) == (2, 1, 1)
        assert WEEKS_S <= told["oldest_ready_s"] < WEEKS_S + 600
        assert WEEKS_S <= told["oldest_leased_s"] < WEEKS_S + 600
        doctor = ulak("doctor", "--url", url, "--json")
        assert doctor.returncode == 1
        assert any(
            f"the lease of job {running} " in found["what"] for found in json.loads(doctor.stdout)["findings"]
        )


def test_O2_what_a_dead_process_left_is_told_while_nobody_takes_it_over(url):
    with Queue(url, QUEUE) as q:
        q.enqueue("payload")
        with child(hold, url, LONG_S, 1, None) as holder:
            holder.hear("held")
            holder.kill()
    found: list[dict[str, str]] = []

    def is_told() -> bool:
        doctor = ulak("doctor", "--url", url, "--json")
        found[:] = json.loads(doctor.stdout)["findings"]
        return any("leased by processes that are gone" in one["what"] for one in found)

    eventually(is_told)
    assert all(one["fix"] for one in found)
