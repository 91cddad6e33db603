"""What is measured of tasks, and what is to be reached."""

from __future__ import annotations

from bench.kit.cases import RATE, Case
from bench.kit.targets import at_least

PEERS = ("huey",)

SETTINGS = {
    "ulak": "a task of an App on memory://, defaults: arguments checked and encoded, results kept",
    "bare pool": "the pool below it: a plain handler, the payload as it is",
    "huey": "a task on MemoryHuey, polling every ms, results off; at most once, no leases, no capacity",
}

CASES = {
    "T1": Case(
        "one producer, one worker, a task of one argument that does nothing, from enqueue to settled",
        RATE,
        {"ulak": 100_000, "bare pool": 400_000, "huey": 50_000},
    ),
}

TARGETS = [at_least("T1", 0.15, "bare pool"), at_least("T1", 3.0, "huey")]
