"""What is measured: the cases, the sides of each with their number of jobs, and what the figures are."""

from __future__ import annotations

from bench.kit.cases import LATENCY, RATE, Case

PEERS = ("huey", "dramatiq", "taskiq", "taskiq, in place", "celery")

# How each side is set up; see its module.
SETTINGS = {
    "ulak": "memory://, defaults: leases of 30 s, 5 attempts, retention on, at least once",
    "ulak, priority 0": "the same; batches of payloads, where the others are of NewJobs with priorities",
    "ulak, one loop": "AsyncQueue: producer and handlers on one event loop; else the producer is a thread",
    "heap": "raw yardstick: heap, dict, one lock; leases of 30 s",
    "deques": "raw yardstick: a deque per priority, dict, one lock; leases of 30 s",
    "lockless": "raw yardstick: the same by single calls into C, no lock",
    "pool": "raw yardstick: deques, capacity, ack, nack, counters, one lock, two conditions, threads",
    "condition": "raw yardstick: one thread waits on a Condition for what another hands it",
    "huey": "MemoryHuey, polling every ms, results off; at most once, no leases, no capacity",
    "dramatiq": "StubBroker with its default middleware; text payload in JSON, no priorities, no capacity",
    "taskiq": "InMemoryBroker without casting, an asyncio task for each job, 1,000 at most; no priorities",
    "taskiq, in place": "the same with await_inplace: a job runs inside the call that sends it",
    "celery": "memory://, solo pool, polling every 0.1 ms, results off; text payload, no priorities",
}


# Rates count whole cycles: a job put in, taken and finished.
CASES = {
    "W1": Case(
        "single calls, one thread, at most one job waiting",
        RATE,
        {"ulak": 400_000, "heap": 400_000, "deques": 400_000, "lockless": 400_000, "huey": 100_000},
    ),
    "W2": Case(
        "single calls, one thread, everything put in before the first is taken",
        RATE,
        {"ulak": 400_000, "heap": 400_000, "deques": 400_000, "lockless": 400_000, "huey": 400_000},
    ),
    "W3": Case(
        "single calls, four threads, each with its own cycles",
        RATE,
        {"ulak": 400_000, "heap": 400_000, "deques": 400_000, "lockless": 400_000},
    ),
    "W3-capacity": Case(
        "the same, with a capacity of 1,000 (the yardstick has none)",
        RATE,
        {"ulak": 400_000, "heap": 400_000},
    ),
    "W4": Case(
        "batches of 100, at most one waiting (the heap: single calls)",
        RATE,
        {"ulak": 800_000, "ulak, priority 0": 800_000, "heap": 400_000},
    ),
    "W4-prefilled": Case(
        "batches of 100, everything put in first (the heap: single calls)",
        RATE,
        {"ulak": 400_000, "ulak, priority 0": 400_000, "heap": 400_000},
    ),
    "W5-1": Case(
        "one producer, capacity 1,000, one worker, a handler that does nothing",
        RATE,
        {"ulak": 400_000, "pool": 400_000, "huey": 100_000, "dramatiq": 20_000, "celery": 5_000},
    ),
    "W5-4": Case(
        "one producer, capacity 1,000, four workers, a handler that does nothing",
        RATE,
        {"ulak": 400_000, "pool": 400_000, "huey": 100_000, "dramatiq": 20_000, "celery": 5_000},
    ),
    "W6": Case(
        "one producer, capacity 1,000, an async handler that does nothing",
        RATE,
        {"ulak": 200_000, "ulak, one loop": 200_000, "taskiq": 40_000, "taskiq, in place": 40_000},
    ),
    "W7": Case(
        "from the call to the handler's start, the next job once the one before is done",
        LATENCY,
        {
            "ulak": 3000,
            "condition": 3000,
            "huey": 2000,
            "dramatiq": 2000,
            "celery": 2000,
            "taskiq": 2000,
            "taskiq, in place": 2000,
        },
    ),
    "W7-asleep": Case(
        "the same, 1 to 2 ms after the one before",
        LATENCY,
        {"ulak": 2000, "condition": 2000, "huey": 2000, "dramatiq": 2000},
    ),
    "W8-job": Case(
        "memory of a waiting job, its payload of 100 bytes included",
        {"bytes": "bytes"},
        {"ulak": 400_000, "heap": 400_000, "deques": 400_000, "huey": 400_000, "dramatiq": 400_000},
    ),
    "W8-kept": Case(
        "memory not given back after 1,000,000 jobs",
        {"mb": "MB"},
        {"ulak": 1_000_000, "heap": 1_000_000},
    ),
}
