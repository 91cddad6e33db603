"""What a store answers without changing anything, as steps of one statement each."""

from __future__ import annotations

from collections.abc import Sequence

from ulak.core.job import Counts, Job
from ulak.core.store import Filter, Settings, WorkerInfo
from ulak.storage.postgres.asks import Scene, Step


def get(scene: Scene, ids: Sequence[int]) -> Step[list[Job | None]]:
    """Records by id; None where the id is unknown."""
    raise NotImplementedError


def scan(scene: Scene, which: Filter, *, after: int = 0, limit: int = 100) -> Step[list[Job]]:
    """Matching jobs with id > `after`, by id."""
    raise NotImplementedError


def over(scene: Scene, ids: Sequence[int]) -> Step[list[int]]:
    """Those of these jobs that have ended or are not stored."""
    raise NotImplementedError


def counts(scene: Scene, queues: Sequence[str]) -> Step[dict[str, Counts]]:
    """One snapshot of states and totals."""
    raise NotImplementedError


def queues(scene: Scene) -> Step[dict[str, Settings]]:
    """All queues and their settings."""
    raise NotImplementedError


def schedules(scene: Scene) -> Step[dict[str, float]]:
    """Each schedule's last tick."""
    raise NotImplementedError


def workers(scene: Scene) -> Step[list[WorkerInfo]]:
    """The workers that are there, by name."""
    raise NotImplementedError
