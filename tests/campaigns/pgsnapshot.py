"""A PostgreSQL store is worked beside an old snapshot of somebody else's: `pgsnapshot [JOBS]`.

The server may clear away nothing of what jobs leave behind meanwhile, and a claim that begins where the first
of them was passes it all. So many jobs are taken by the hundred and acknowledged, on two stores in turn: one
with nothing in the way, one beside a repeatable-read transaction that was begun before. What is compared is
the median of the last tenth. Then a job is handed back to a place long passed, and must be the next one. At
last a control: where no marks are set of where claims begin, they must be seen to become slow.
"""

from __future__ import annotations

import argparse
import contextlib
import sys
import time
from collections.abc import Iterator
from statistics import median

from tests.support.postgres import conninfo, fresh_database, fresh_url
from ulak import Outcome, Queue

JOBS = 150_000
PART_MIN = 0.4
_TAKEN, _ENQUEUED = 100, 10_000
FREE, BESIDE, UNMARKED = "with nothing in the way", "beside a snapshot", "beside a snapshot, without marks"


@contextlib.contextmanager
def snapshot(url: str) -> Iterator[None]:
    """Keep a snapshot of now open."""
    import psycopg

    with psycopg.connect(conninfo(url)) as old:
        old.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ")
        old.execute("SELECT count(*) FROM pg_class")
        yield
        old.execute("SELECT 1")


def turned(q: Queue) -> float:
    """How long it takes to work a hundred jobs."""
    start = time.perf_counter()
    leases = q.deliver_many(_TAKEN)
    assert q.ack_many(leases) == [Outcome.OK] * _TAKEN
    return time.perf_counter() - start


def returned(q: Queue) -> bool:
    """Whether a job that comes back to a place long passed is the next one."""
    first, second = q.enqueue_many([b"first", b"second"])
    lease = q.deliver()
    assert lease is not None
    answers = [lease.id == first, q.nack(lease, delay=0) is Outcome.OK]
    again = q.deliver_many(2)
    answers.append([one.id for one in again] == [first, second])
    return all([*answers, *(q.ack(one) is Outcome.OK for one in again)])


def run(urls: dict[str, str], jobs: int, *, marks: bool) -> tuple[dict[str, list[float]], list[str]]:
    """How long each hundred jobs took on each store, and what is wrong."""
    took: dict[str, list[float]] = {name: [] for name in urls}
    with contextlib.ExitStack() as stack:
        stack.enter_context(snapshot(list(urls.values())[-1]))
        queues = {
            name: stack.enter_context(Queue(url, "jobs", max_attempts=10)) for name, url in urls.items()
        }
        for q in queues.values():
            for start in range(0, jobs, _ENQUEUED):
                q.enqueue_many([b"x"] * min(_ENQUEUED, jobs - start))
            if not marks:
                q._open().edge.store.marks.note = lambda ended: None  # type: ignore[attr-defined]
        for _ in range(jobs // _TAKEN):
            for name, q in queues.items():
                took[name].append(turned(q))
        problems = [
            f"{name}: a job that was handed back was not the next one"
            for name, q in queues.items()
            if not returned(q)
        ]
    return took, problems


def main() -> int:
    parser = argparse.ArgumentParser(prog="pgsnapshot", description=__doc__)
    parser.add_argument("jobs", nargs="?", type=int, default=JOBS)
    jobs = parser.parse_args().jobs
    both = {FREE: f"{fresh_database()}&schema=free", BESIDE: fresh_url()}
    took, problems = run(both, jobs, marks=True)
    control, more = run({UNMARKED: fresh_url()}, jobs, marks=False)
    took, problems = took | control, problems + more
    tenth = max(1, jobs // _TAKEN // 10)
    last = {name: _TAKEN / median(found[-tenth:]) for name, found in took.items()}
    for name, found in took.items():
        first = _TAKEN / median(found[:tenth])
        print(f"{name}: {first:,.0f} jobs/s in the first tenth, {last[name]:,.0f} in the last")
    parts = {name: last[name] / last[FREE] for name in (BESIDE, UNMARKED)}
    print(f"{parts[BESIDE]:.2f} of the rate is left after {jobs:,} jobs; without marks {parts[UNMARKED]:.2f}")
    if parts[BESIDE] < PART_MIN:
        problems.append(f"less than {PART_MIN} of the rate is left beside a snapshot")
    if parts[UNMARKED] >= PART_MIN:
        problems.append("the control passed: without marks claims were not seen to become slow")
    print("\n".join(problems))
    print(f"{3 * jobs} passed, {len(problems)} failed")
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
