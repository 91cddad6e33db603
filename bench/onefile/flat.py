"""Whether a call costs the same at any depth: its cost at many waiting jobs, as a multiple of that at few."""

from __future__ import annotations

import statistics
import time

from bench.inmemory.loops import PAYLOAD_BYTES
from ulak import Queue
from ulak.core.job import Done, Draft, Hold
from ulak.core.store import Change

FEW = 1000
ASIDE = 10_000  # held, and paused, jobs that stand before all others
REPEATS = 300
STEP = 1000  # jobs a call while filling
PLAIN = frozenset({None})
CALLER = {"worker": "bench", "lease_s": 3600.0, "tasks": PLAIN}


def flat(jobs, folder):
    """The figures of a queue with `jobs` waiting jobs, each over what it was with 1,000."""
    with Queue(f"sqlite:///{folder / 'jobs.db'}") as q:
        store = q._open().edge.store
        fill(q, FEW)
        few = costs(store, ["default"])
        fill(q, jobs)
        many = costs(store, ["default"])
        hold(store)
        held = costs(store, ["default"])
        store.declare("other", q._settings)
        store.add("other", drafts(ASIDE, None))
        store.configure("other", Change(paused=True))
        paused = costs(store, ["other", "default"])
    return {
        "claim": many["claim"] / few["claim"],
        "ack": many["ack"] / few["ack"],
        "counts": many["counts"] / few["counts"],
        "claim_held": held["claim"] / few["claim"],
        "ack_held": held["ack"] / few["ack"],
        "claim_paused": paused["claim"] / few["claim"],
        "claim_us": many["claim"] * 1e6,
        "ack_us": many["ack"] * 1e6,
        "counts_us": many["counts"] * 1e6,
    }


def fill(q, until):
    """Put in jobs until so many wait."""
    for _ in range((until - q.counts().ready) // STEP):
        q.enqueue_many([b"." * PAYLOAD_BYTES for _ in range(STEP)])


def drafts(count, task, priority=0):
    return [
        Draft(payload=b"." * PAYLOAD_BYTES, codec="bytes", priority=priority, task=task) for _ in range(count)
    ]


def hold(store):
    """Set jobs aside that stand before all others: they are of a task that nobody here knows."""
    store.add("default", drafts(ASIDE, "unknown", priority=9))
    for _ in range(ASIDE // STEP):
        leases = store.claim(["default"], STEP, **CALLER)
        store.settle([(lease, Hold()) for lease in leases])
    held = store.counts(["default"])["default"].held
    if held != ASIDE:
        raise SystemExit(f"{ASIDE:,} jobs were to be held; {held:,} are")


def costs(store, queues):
    """Median seconds of a claim, of an ack, and of counts."""
    took = {"claim": [], "ack": [], "counts": []}

    def timed(name, call, *args, **options):
        start = time.perf_counter()
        answer = call(*args, **options)
        took[name].append(time.perf_counter() - start)
        return answer

    for _ in range(REPEATS):
        (lease,) = timed("claim", store.claim, queues, 1, **CALLER)
        timed("ack", store.settle, [(lease, Done())])
        timed("counts", store.counts, queues)
    return {name: statistics.median(seconds) for name, seconds in took.items()}
