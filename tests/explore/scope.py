"""How much of the queue an exploration covers: how many jobs and workers, and what may happen to them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Scope:
    """The bounds of an exploration. Everything in them may happen at every moment, in every order.

    priorities, uniques, start_delays, expires_s, tasks: of the jobs, in order of their enqueue, repeated
    (None: has none; tasks only where there are strangers).
    puts: how many jobs one enqueue may bring.
    delays: what a nack may ask for, beside the job's own policy. draws: of the jitter, where jobs have a
    policy of base 1 s and cap 2 s (empty: no policy, so failed jobs retry at once).
    extends: how often one delivery may be extended. refunds: how often one job may be given back
    (released, snoozed, or by its worker's shutdown). grasp: how many leases one worker may have.
    strangers: how many of the workers know no task, but only jobs without one. refuses: the others may find
    that a payload does not fit its task, which counts among the refunds.
    reapers: how many look for lost leases. clocked: they see only leases whose end has passed, instead of
    any at any moment. crash_reclaims: they may also know that the worker is gone. sweeps: a reaper may also
    look and settle in one go, as `tick_timeouts()` and `crash()` do.
    redrives: how often one job may be brought back. producers: how many are registered at the start (None:
    no producer ever is); with them, workers leave once all have finished and nothing is open.
    retention: how many ended jobs of each state are kept.
    short: plain calls may go by the store's short way. general: they may go the general way at once.
    exact: two stores are the same state only if all that they hide is the same too.
    """

    name: str
    jobs: int
    workers: int
    max_attempts: int
    priorities: tuple[int, ...] = (0, 1, 0)
    uniques: tuple[str | None, ...] = (None,)
    tasks: tuple[str | None, ...] = ("t", "u", None)
    capacity: int | None = None
    delays: tuple[float, ...] = ()
    draws: tuple[float, ...] = ()
    start_delays: tuple[float, ...] = (0.0,)
    extends: int = 0
    refunds: int = 0
    snoozes: bool = False
    grasp: int = 1
    strangers: int = 0
    refuses: bool = False
    reapers: int = 1
    clocked: bool = False
    crash_reclaims: bool = False
    sweeps: bool = False
    crashes: bool = True
    lost_replies: bool = True
    cancels: bool = False
    redrives: int = 0
    deletes: bool = False
    reprioritises: bool = False
    pauses: bool = False
    producers: int | None = None
    spawns: bool = False
    expires_s: tuple[float | None, ...] = (None,)
    idempotent: bool = False
    promotes: bool = False
    rejects: bool = False
    turns: bool = False
    shutdowns: bool = False
    short: bool = False
    general: bool = True
    puts: int = 1
    retention: int | None = None
    exact: bool = False


def _by_name(*scopes: Scope) -> dict[str, Scope]:
    return {scope.name: scope for scope in scopes}


# No crash, no reclaim, no lost answer: what is left is the order of things.
ORDERLY: dict[str, Any] = {"lost_replies": False, "crashes": False, "reapers": 0}

SMALL = _by_name(
    Scope("lease", 1, 2, 2, extends=1, reapers=2, crash_reclaims=True),
    Scope("pair", 2, 2, 2),
    Scope("order", 3, 1, 1, start_delays=(1.0, 0.0, 0.0), promotes=True),
    Scope("retry", 1, 1, 3, delays=(1.0,), draws=(0.0, 1.0), crash_reclaims=True, rejects=True),
    Scope("refund", 2, 1, 1, refunds=1, snoozes=True, shutdowns=True),
    Scope("capacity 1", 3, 1, 2, capacity=1),
    Scope("capacity 2", 3, 1, 1, capacity=2, cancels=True, lost_replies=False, crashes=False),
    Scope("keys", 2, 1, 1, capacity=1, uniques=("a",), idempotent=True, redrives=1),
    Scope("hold", 3, 2, 1, (0, 0, 1), strangers=1, **ORDERLY),
    Scope("hold, cancel", 2, 2, 1, strangers=1, cancels=True, **ORDERLY),
    Scope("hold, redrive", 2, 2, 2, strangers=1, redrives=1, capacity=2, uniques=("a", None), **ORDERLY),
    Scope("refuse", 2, 2, 1, (0, 1), strangers=1, tasks=("t",), refuses=True, refunds=1, **ORDERLY),
    Scope("refuse, redrive", 1, 2, 2, strangers=1, refuses=True, refunds=1, redrives=1, crashes=False),
    Scope("refuse, cancel", 2, 2, 1, (0,), strangers=1, refuses=True, refunds=1, cancels=True, **ORDERLY),
    Scope("refuse, expiry", 1, 2, 1, strangers=1, refuses=True, refunds=1, expires_s=(1.0,), **ORDERLY),
    Scope("close", 3, 2, 1, producers=1, spawns=True, lost_replies=False, crashes=False),
    Scope("leave", 1, 2, 1, producers=2, strangers=1, pauses=True, lost_replies=False),
    Scope("expiry", 2, 1, 2, expires_s=(2.0,), delays=(1.0,), capacity=2, crashes=False, lost_replies=False),
    Scope("operators", 1, 1, 2, cancels=True, redrives=1, deletes=True, reprioritises=True, pauses=True),
    Scope("reprioritise", 2, 1, 1, reprioritises=True, deletes=True, crashes=False, lost_replies=False),
    Scope("again", 1, 1, 2, start_delays=(1.0,), delays=(2.0,), redrives=1, cancels=True, pauses=True),
    Scope("crash again", 1, 1, 2, crash_reclaims=True, draws=(1.0,), redrives=1, rejects=True),
    Scope("clock", 1, 2, 2, clocked=True, extends=1, sweeps=True),
    Scope("batch", 2, 1, 2, grasp=2, turns=True, retention=1, lost_replies=False),
    Scope("between", 3, 2, 2, (0,), short=True, general=False, exact=True, **ORDERLY),
    Scope("short", 2, 2, 1, short=True, cancels=True, lost_replies=False, crashes=False),
    Scope("short, unsure", 1, 1, 2, short=True, exact=True),
    Scope("short, again", 1, 1, 1, short=True, refunds=1, cancels=True, redrives=1, crashes=False),
    Scope("short, order", 4, 1, 1, (1, 0, 0, 1), short=True, refunds=1, **ORDERLY),
    Scope("short, order, 2", 4, 1, 1, (1, 0, 0, 1), short=True, puts=2, refunds=1, **ORDERLY),
    Scope("short, clock", 2, 1, 1, short=True, general=False, clocked=True, grasp=2, exact=True, **ORDERLY),
    Scope(
        "short, due", 2, 1, 1, priorities=(1, 0), short=True, start_delays=(1.0, 0.0), pauses=True, **ORDERLY
    ),
    Scope("short, held", 2, 2, 1, (1, 0), short=True, strangers=1, tasks=("t", None), **ORDERLY),
    Scope("short, expiry", 2, 1, 1, short=True, expires_s=(1.0, None), lost_replies=False),
    Scope("short, retry", 2, 2, 2, short=True, delays=(1.0,), cancels=True, **ORDERLY),
    Scope("short, late", 2, 1, 2, short=True, delays=(1.0,), expires_s=(2.0, None), cancels=True, **ORDERLY),
    Scope("short, close", 2, 1, 1, short=True, producers=1, capacity=1, lost_replies=False),
    Scope(
        "short, batch", 2, 1, 1, short=True, grasp=2, puts=2, capacity=2, refunds=1, cancels=True, **ORDERLY
    ),
    Scope("short, kept", 3, 1, 1, short=True, grasp=2, puts=2, capacity=2, retention=1, **ORDERLY),
    Scope("short, hidden", 2, 1, 1, short=True, exact=True, **ORDERLY),
    Scope("hidden", 2, 1, 1, lost_replies=False, cancels=True, exact=True),
)
"""Small enough for every run of the tests; together they allow everything that can be allowed."""


CI = _by_name(
    Scope("3 jobs, 2 workers, 2 attempts", 3, 2, 2, extends=1),
    Scope("2 jobs, 3 workers, 2 attempts", 2, 3, 2, extends=1, reapers=2),
    Scope("2 jobs, 2 workers, 3 attempts", 2, 2, 3, extends=1, crash_reclaims=True),
)
"""The core of the queue in full: leases, extensions, lost answers, crashes, and two-step reclaims."""

FULL = _by_name(
    *CI.values(),
    Scope("3 jobs, 3 workers, 2 attempts", 3, 3, 2, extends=1),
    Scope("3 jobs, 2 workers, 3 attempts", 3, 2, 3, extends=1),
    Scope("4 jobs", 4, 2, 2),
    Scope("2 reapers", 3, 2, 2, extends=1, reapers=2),
    Scope("2 extensions", 2, 2, 2, extends=2, reapers=2, crash_reclaims=True, draws=(0.0, 1.0)),
    Scope("bounded", 3, 2, 2, capacity=2, cancels=True, delays=(1.0,)),
    Scope("redriven", 2, 2, 2, cancels=True, redrives=1),
    Scope("given back", 2, 2, 2, refunds=1, snoozes=True, delays=(2.0,), shutdowns=True),
    Scope("held", 3, 3, 2, strangers=1, lost_replies=False),
    Scope("refused", 2, 3, 2, strangers=1, refuses=True, refunds=1, redrives=1, lost_replies=False),
    Scope("closed", 3, 2, 2, producers=2, spawns=True, strangers=1, pauses=True, lost_replies=False),
    Scope("expired", 3, 2, 2, expires_s=(2.0,), delays=(1.0,), capacity=2, lost_replies=False),
    Scope("operated", 2, 1, 2, cancels=True, redrives=1, deletes=True, reprioritises=True, pauses=True),
    Scope("keyed", 3, 2, 2, capacity=2, uniques=("a", "a", None), idempotent=True, lost_replies=False),
    Scope("clocked", 2, 2, 2, clocked=True, extends=1, sweeps=True, reapers=2),
    Scope("batched", 3, 2, 2, grasp=2, turns=True, retention=1, lost_replies=False),
    Scope("short", 3, 2, 2, short=True, lost_replies=False),
    Scope(
        "short, 2 hands", 3, 1, 2, short=True, grasp=2, puts=2, capacity=2, cancels=True, lost_replies=False
    ),
    Scope("short, clocked", 2, 2, 2, short=True, clocked=True, extends=1, lost_replies=False),
    Scope("short, hidden", 2, 2, 2, short=True, general=False, lost_replies=False, exact=True),
    Scope("hidden", 2, 2, 2, cancels=True, lost_replies=False, exact=True),
)
"""At least three million states: larger cores, and every option beside two workers."""
