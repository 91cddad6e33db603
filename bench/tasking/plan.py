"""What is measured of tasks: the cases, the sides of each with their number of jobs."""

from __future__ import annotations

from bench.kit.cases import LATENCY, RATE, Case

PEERS = ("huey", "huey, one thread", "dramatiq", "taskiq", "celery")
OURS = ("ulak", "ulak, async")
DISTRIBUTIONS = ("huey", "dramatiq", "dramatiq-sqlite", "taskiq", "celery", "SQLAlchemy")
PEAK = {"peak_mb": "MB"}
KILLED = {
    "at_work": "kills",
    "again": "again",
    "once": "once",
    "problems": "wrong",
}

# How each side is set up; see its module. Concurrency is the case's, and the same for all.
SETTINGS = {
    "ulak": "`def` tasks, defaults: at least once, leases, 5 attempts, ended jobs kept; no prefetch",
    "  in memory": "App.workers(N), threads; a figure is taken when the last job is settled",
    "  on a file": "`ulak work` --concurrency N: WAL, FULL; fsync before each enqueue and settle returns",
    "ulak, async": "the same with `async def` tasks, which run on one event loop",
    "bare pool": "the pool below it: a plain handler, the payload as it is",
    "raw pool, raw": "yardsticks: a pool in plain Python; SQL by hand, 100 jobs a FULL commit, acks delete",
    "huey": "results off, polls every ms without backoff, N threads; no prefetch, but at most once: no acks",
    "  in memory ": "MemoryHuey, its consumer in the process; no leases, no capacity",
    "  on a file ": "SqliteHuey, huey_consumer -k thread --no-periodic: WAL, FULL",
    "dramatiq": "default middleware, no results, N threads; acks late",
    "  in memory  ": "StubBroker, which hands on all it has: no prefetch can be set",
    "  on a file  ": "dramatiq-sqlite, of others: WAL, NORMAL; one process, prefetch N, sleeps 0.1 s",
    "taskiq": "InMemoryBroker, no casting, no queue: N are sent, then waited for; no broker for a file here",
    "celery": "acks_late, prefetch multiplier 1, results ignored, no events, gossip or mingle; N threads",
    "  in memory   ": "memory://, in the process, polls every 0.1 ms",
    "  on a file   ": "sqla+sqlite://, -P threads, polls every ms: WAL (set here), FULL; acks keep nothing",
}

IN_MEMORY = {"ulak": 100_000, "ulak, async": 60_000, "huey": 30_000, "dramatiq": 10_000}
ON_FILE = {"ulak": 20_000, "ulak, async": 40_000, "huey": 8000, "dramatiq": 1500, "celery": 600}
KILLS = {"ulak": 10_000, "ulak, async": 20_000}  # a kill for each 1,000

CASES = {
    "T1": Case(
        "in memory, one producer, one worker, a task that does nothing, from enqueue to settled",
        RATE,
        {"ulak": 100_000, "bare pool": 400_000, "huey": 50_000, "raw pool": 400_000},
    ),
    "memory-100": Case(
        "in memory, in one process: one producer, concurrency 100, from enqueue to settled",
        RATE,
        IN_MEMORY | {"taskiq": 30_000, "celery": 4000},
    ),
    "memory-8": Case(
        "the same, concurrency 8",
        RATE,
        IN_MEMORY | {"taskiq": 30_000, "celery": 4000},
    ),
    "memory-idle": Case(
        "in memory, concurrency 8: from enqueue to the task's start, 1 to 2 ms after the one before",
        LATENCY,
        {
            "ulak": 1000,
            "ulak, async": 1000,
            "huey": 600,
            "huey, one thread": 600,
            "dramatiq": 1000,
            "taskiq": 1000,
            "celery": 600,
        },
    ),
    "memory-peak": Case(
        "in memory, concurrency 100: the most memory the process has had resident, with all its jobs",
        PEAK,
        dict.fromkeys(("ulak", "ulak, async", "huey", "dramatiq", "taskiq", "celery"), 5000),
    ),
    "sqlite-100": Case(
        "on a file, a backlog done by the side's own command, one process, concurrency 100; its peak memory",
        RATE | PEAK,
        ON_FILE | {"raw": 100_000},
    ),
    "sqlite-8": Case("the same, concurrency 8", RATE | PEAK, ON_FILE),
    "sqlite-idle": Case(
        "on a file, concurrency 8: from enqueue to the task's start in the command, 2 to 4 ms after the last",
        LATENCY,
        {
            "ulak": 400,
            "ulak, async": 400,
            "huey": 400,
            "huey, one thread": 400,
            "dramatiq": 30,
            "celery": 200,
        },
    ),
    "sqlite-far": Case(
        "the same, 200 to 300 ms after the last",
        LATENCY,
        {"ulak": 20, "ulak, async": 20, "huey": 20, "huey, one thread": 20},
    ),
    "kills-100": Case(
        "on a file, concurrency 100, `ulak work` killed (SIGKILL) whenever it works; judged by history",
        KILLED,
        KILLS,
    ),
    "kills-8": Case("the same, concurrency 8", KILLED, KILLS),
}
ONCE = ("kills-100", "kills-8")
"""Cases that are no figures of speed: one round is enough."""
