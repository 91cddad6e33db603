"""What operators, schedules and retention do, as steps."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from ulak.core.job import Draft, Duplicate, Full, State
from ulak.core.store import Act, Change, Changed, Filter, Fired, Settings
from ulak.storage.postgres.asks import Scene, Step


def amend(
    scene: Scene,
    which: Sequence[int] | Filter,
    act: Act,
    *,
    queue: str | None = None,
    states: frozenset[State] | None = None,
    force: bool = False,
) -> Step[Changed]:
    """An operator's act on each of these jobs, in order of priority, then id; unknown ids last."""
    raise NotImplementedError


def declare(scene: Scene, queue: str, settings: Settings) -> Step[Settings]:
    """Make the queue unless it is there."""
    raise NotImplementedError


def configure(scene: Scene, queue: str, change: Change) -> Step[Settings]:
    """Change a queue's settings."""
    raise NotImplementedError


def fire(
    scene: Scene, schedule: str, tick_at: float, queue: str, draft: Draft | None = None
) -> Step[int | Duplicate | Fired | Full]:
    """Insert the job, if there is one, and move the schedule's last tick, in one step."""
    raise NotImplementedError


def beat(scene: Scene, worker: str, info: Mapping[str, str]) -> Step[None]:
    """Say that a worker is there."""
    raise NotImplementedError


def depart(scene: Scene, worker: str) -> Step[None]:
    """Say that a worker has gone for good."""
    raise NotImplementedError


def prune(scene: Scene, *, limit: int = 1000) -> Step[Mapping[State, int]]:
    """End what has expired, forget what retention does not keep, fold differences in."""
    raise NotImplementedError


def fold(scene: Scene) -> Step[None]:
    """Add the differences that callers' transactions have left to this process's tallies."""
    raise NotImplementedError
