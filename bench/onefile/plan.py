"""What is measured: the cases, the sides of each with their number of jobs, and what the figures are."""

from __future__ import annotations

from bench.kit.cases import LATENCY, RATE, Case

# Of ulak alone: how many times its p50 its p99 is, and what its p50 leaves beyond the two fsyncs it may have.
OWN_LATENCY = {"p99_of_p50": "p99/p50", "beyond_us": "µs more"}
TIMES = dict.fromkeys(("claim", "ack", "counts", "claim_held", "ack_held", "claim_paused"), "times")
COSTS = {"claim_us": "µs", "ack_us": "µs", "counts_us": "µs"}

PEERS = ("huey", "huey, one thread", "persist-queue", "litequeue", "honker", "flexiq")

# How each side is set up, its durability first; see its module. Each checks its own pragmas where it can.
SETTINGS = {
    "ulak": "WAL, FULL: fsync before each call returns but a lone claim's; leases, attempts, rows kept",
    "raw": "yardstick: WAL, FULL, ulak's table; each call, or 100 (8) jobs a call, a commit; acks delete",
    "raw, lean": "yardstick: WAL, FULL, a table of four columns and one index; 100 jobs a commit",
    "raw, kept": "yardstick: the same; acks keep the row, as ulak's do",
    "raw group": "yardstick: WAL, FULL, ulak's table; threads share a commit, the first leads",
    "fsync": "yardstick: a page of 4 KiB written into space that is there, fdatasync",
    "huey": "SqliteHuey: WAL, FULL, a commit a call; polls every ms; at most once, no leases",
    "huey, one thread": "the same, put in one by one by one thread: it has no bulk call",
    "persist-queue": "SQLiteAckQueue: WAL, FULL, a commit a call; by hand, no workers, no leases in time",
    "litequeue": "WAL, NORMAL, a commit a call by hand, no bulk; 0.9 (for Python 3.11) sorts all each pop",
    "honker": "WAL, NORMAL; 100 (8) jobs a call by hand, its own loop for latency; text payload",
    "flexiq": "WAL, NORMAL; Rust; polls every ms, 100 jobs a poll",
}


CASES = {
    "enqueue": Case(
        "one job a call, one thread; stored when the call returns",
        RATE,
        {
            "ulak": 10_000,
            "raw": 10_000,
            "huey": 8000,
            "persist-queue": 8000,
            "litequeue": 20_000,
            "honker": 20_000,
            "flexiq": 10_000,
        },
    ),
    "enqueue-8": Case(
        "one job a call, 8 threads; stored when the call returns",
        RATE,
        {"ulak": 24_000, "raw group": 24_000, "huey": 8000, "huey, one thread": 8000},
    ),
    "enqueue-64": Case(
        "one job a call, 64 threads; stored when the call returns",
        RATE,
        {"ulak": 64_000, "raw group": 64_000, "huey": 6400, "huey, one thread": 8000},
    ),
    "enqueue-many": Case(
        "100 jobs a call, one thread (huey: one)",
        RATE,
        {
            "ulak": 200_000,
            "raw": 200_000,
            "raw, lean": 200_000,
            "huey, one thread": 8000,
            "honker": 100_000,
            "flexiq": 50_000,
        },
    ),
    "drain-100": Case(
        "a backlog done by one worker process, no-op handler, concurrency 100 (ulak: async; honker: batches)",
        RATE,
        {
            "ulak": 100_000,
            "raw": 100_000,
            "raw, kept": 100_000,
            "huey": 20_000,
            "persist-queue": 6000,
            "litequeue": 3000,
            "honker": 100_000,
            "flexiq": 4000,
        },
    ),
    "drain-8": Case(
        "the same, concurrency 8 (ulak: threads; honker and raw: batches of 8)",
        RATE,
        {
            "ulak": 100_000,
            "raw": 40_000,
            "raw, kept": 40_000,
            "huey": 20_000,
            "honker": 20_000,
            "flexiq": 4000,
        },
    ),
    "latency": Case(
        "from the call to the handler's start, same process, 2 to 4 ms after the one before",
        LATENCY | OWN_LATENCY,
        {"ulak": 1000, "fsync": 2000, "huey": 1000, "honker": 600, "flexiq": 400},
    ),
    "flat": Case(
        "cost with so many jobs waiting, over that with 1,000; then with 10,000 held, or paused, ahead",
        TIMES | COSTS,
        {"ulak": 1_000_000},
    ),
}
