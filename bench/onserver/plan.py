"""What is measured on a server: the cases, the sides of each with their jobs, and what the figures are."""

from __future__ import annotations

from bench.kit.cases import LATENCY, RATE, Case

TIMES = dict.fromkeys(("claim", "ack", "counts"), "times")
COSTS = {"claim_us": "µs", "ack_us": "µs", "counts_us": "µs"}
SIZES = {"mib": "MiB"}
PEERS = ("pgqueuer", "procrastinate")

SETTINGS = {
    "ulak": "psycopg; commits before each call returns; leases, attempts, counts, ended rows kept",
    "ulak, bounded": "the same, with a capacity that is never reached",
    "ulak, lone": "the same as ulak, one caller",
    "raw": "yardstick: psycopg, autocommit, a table of six columns and one index; each call a commit",
    "raw, unnest": "yardstick: the same table; all jobs of a call by one statement over arrays, ids returned",
    "raw, batches": "yardstick: the same table; 100 jobs claimed by a statement, deleted by another",
    "raw, fused": "yardstick: the same; 100 acked and the next 100 claimed by one statement",
    "raw, woken": "yardstick: NOTIFY in the insert's transaction, LISTEN, claim; one process",
    "pgqueuer": "asyncpg pool, uvloop, batches of 100, its default logged tables",
    "procrastinate": "psycopg pool, uvloop, concurrency 10 (more is not faster)",
}

CASES = {
    "enqueue": Case(
        "one job a call, one caller; committed when the call returns",
        RATE,
        {"ulak": 6000, "ulak, bounded": 6000, "raw": 6000, "pgqueuer": 4000, "procrastinate": 2000},
    ),
    "enqueue-8": Case(
        "one job a call, 8 callers of one event loop",
        RATE,
        {"ulak": 24_000, "pgqueuer": 6000, "procrastinate": 4000},
    ),
    "enqueue-64": Case(
        "one job a call, 64 callers of one event loop",
        RATE,
        {"ulak": 64_000, "ulak, lone": 6000},
    ),
    "enqueue-many": Case(
        "1,000 jobs a call, one caller, ids returned",
        RATE,
        {"ulak": 200_000, "raw, unnest": 200_000, "pgqueuer": 100_000, "procrastinate": 30_000},
    ),
    "drain": Case(
        "a backlog done by one worker process, async no-op handler, concurrency 100",
        RATE,
        {
            "ulak": 100_000,
            "raw, batches": 100_000,
            "raw, fused": 100_000,
            "pgqueuer": 50_000,
            "procrastinate": 3000,
        },
    ),
    "latency": Case(
        "from the call to the handler's start, one job at a time, same process",
        LATENCY,
        {"ulak": 500, "raw, woken": 500, "pgqueuer": 300, "procrastinate": 300},
    ),
    "flat": Case(
        "cost with so many jobs waiting, over that with 1,000",
        TIMES | COSTS,
        {"ulak": 1_000_000},
    ),
    "size": Case(
        "tables and indexes of open jobs, once so many went through at a depth of 5,000",
        SIZES,
        {"ulak": 400_000},
    ),
}
