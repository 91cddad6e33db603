"""Where the workers of a benchmark are: threads of this process, or processes of their own."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import logging
from array import array
from collections.abc import Callable
from pathlib import Path
from typing import Any, Protocol

from ulak import Closed, Queue
from ulak.cli.bench_plan import Plan
from ulak.cli.bench_records import Records
from ulak.cli.bench_work import pool_of
from ulak.cli.child_command import child_command
from ulak.worker.supervisor import Supervisor, Word

START_FAILURES_MAX = 2
STOP_S = 5.0


class Workers(Protocol):
    """The workers of a run."""

    def start(self) -> None:
        """Return when all of them take jobs."""

    def finish(self) -> None:
        """Say that nothing more comes."""

    def have_left(self, timeout_s: float) -> bool:
        """Wait so long until all have left, since nothing is open; whether they have."""

    def look(self, timeout_s: float) -> list[int]:
        """Look after them for so long; the process ids of those that are processes."""

    def stop(self) -> None:
        """End them at once."""

    @property
    def lost(self) -> int:
        """How many processes have ended before their time."""


class Here:
    """Workers in this process."""

    def __init__(self, plan: Plan, queue: Queue, records: Records, failures: array[int]) -> None:
        self._pool = pool_of(plan, queue, records, failures)
        self.lost = 0

    def start(self) -> None:
        """Start the pool."""
        self._pool.start()

    def finish(self) -> None:
        """Nothing to say: the pool knows the producers."""

    def have_left(self, timeout_s: float) -> bool:
        """As `Workers.have_left`."""
        return self._pool.join(timeout_s)

    def look(self, timeout_s: float) -> list[int]:
        """Wait."""
        self._pool.join(timeout_s)
        return []

    def stop(self) -> None:
        """End the pool; jobs that run are handed back."""
        with contextlib.suppress(Closed):  # it never started
            self._pool.shutdown(0)


class Fleet:
    """Workers in processes of their own. path: the records of the run."""

    def __init__(self, plan: Plan, path: Path, *, log_level: int = logging.WARNING) -> None:
        assert plan.processes is not None
        order = {"plan": dataclasses.asdict(plan), "path": str(path), "log_level": log_level}
        command = child_command("bench_child", json.dumps(order))
        self._count, self._working = plan.processes, 0
        self._supervisor = Supervisor(
            command, plan.processes, failures_max=START_FAILURES_MAX, hear=self._hear
        )

    def _hear(self, word: Word, _: Any) -> None:  # noqa: ANN401 - a JSON value
        self._working += word is Word.WORKS

    @property
    def lost(self) -> int:
        """As `Workers.lost`."""
        return self._supervisor.ends.total()

    def start(self) -> None:
        """Start the processes. Raises GivenUp if they end before they work."""
        while self._working < self._count:
            self._supervisor.tend(STOP_S)

    def finish(self) -> None:
        """Tell the processes."""
        self._supervisor.finish()

    def have_left(self, timeout_s: float) -> bool:
        """As `Workers.have_left`."""
        self._supervisor.tend(timeout_s)
        return self._supervisor.is_over

    def look(self, timeout_s: float) -> list[int]:
        """Take in what the processes say."""
        self._supervisor.tend(timeout_s)
        return self._supervisor.pids

    def stop(self) -> None:
        """End the processes, and wait for that."""
        self._supervisor.stop(STOP_S)
        self._supervisor.__exit__(None, None, None)


Watch = Callable[[str], object]
"""Is told how far a run is, in a few words."""
