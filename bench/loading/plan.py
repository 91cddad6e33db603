"""The load that every store is put under, and what is asked of it."""

from __future__ import annotations

from dataclasses import dataclass

OPTIONS = ("--capacity", "64", "--workers", "4", "--max-attempts", "5", "--base", "10ms", "--cap", "1s")
FAIL_RATE = ("--fail-rate", "0.1")
RATES = (100, 200, 500, 1_000, 2_000, 3_000, 5_000, 7_500, 10_000, 15_000, 20_000, 30_000, 50_000)
"""Tried upwards, to find the highest that a store sustains."""
PROBE_S, LOAD_S = 2, 5
QUICK_S = 0.2
ROUNDS, QUICK_ROUNDS = 5, 1


@dataclass(frozen=True, slots=True)
class Load:
    """rate: None for the highest that it sustains. producers: threads that enqueue."""

    rate: int | None
    producers: int
    settings: str


STORES = {
    "memory": Load(20_000, 1, "memory://, one producer"),
    "sqlite": Load(None, 8, "one file, fsync before each call returns; 8 threads enqueue"),
    "postgres": Load(None, 8, "a server here, commits before each call returns; 8 threads enqueue"),
}
