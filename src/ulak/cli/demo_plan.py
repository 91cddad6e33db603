"""What a demo is asked to do, and what came of it: plain values."""

from __future__ import annotations

from dataclasses import dataclass

from ulak.metrics import Histogram


@dataclass(frozen=True, slots=True)
class Plan:
    """The settings of one run. rate: enqueues per second (0: as fast as there is room). keep_dead: how many
    dead letters are kept (None: all).
    """

    jobs: int
    workers: int
    capacity: int
    max_attempts: int
    base_s: float
    cap_s: float
    fail_rate: float
    rate: float
    seed: int
    priorities: int
    keep_dead: int | None
    url: str


@dataclass(frozen=True, slots=True)
class Snapshot:
    """How far a run is. blocked_s, producing_s: as in `Result`, so far."""

    elapsed_s: float = 0.0
    ended: int = 0
    open: int = 0
    retrying: int = 0
    blocked_s: float = 0.0
    producing_s: float = 0.0


@dataclass(frozen=True, slots=True)
class Latency:
    """How long jobs took. `due` is the moment at which a job's enqueue call began; at a given rate, when it
    should have begun, so that a producer who is held up does not hide the time from view.

    due_to_settled, accepted_to_settled: until the settle that ended the job, as done or dead, had returned;
    every retry and backoff is inside. accepted: the enqueue call had returned.
    due_to_start: until a handler was first called with it.
    """

    due_to_settled: Histogram
    accepted_to_settled: Histogram
    due_to_start: Histogram


@dataclass(frozen=True, slots=True)
class Identity:
    """One sum of the books: `total` is to be what `parts` add up to."""

    total: tuple[str, int]
    parts: tuple[tuple[str, int], ...]

    @property
    def holds(self) -> bool:
        """Whether it adds up."""
        return self.total[1] == sum(value for _, value in self.parts)


@dataclass(frozen=True, slots=True)
class DeadLetter:
    """A job that is dead: how many attempts it had, and what its last one raised."""

    id: int
    attempts: int
    error: str


@dataclass(frozen=True, slots=True)
class Result:
    """What came of a run. Counts are those since its start, in one snapshot after the last worker had left.

    stopped: a signal ended it early; only then jobs may be left open. open, dead_kept: beyond those that were
    stored before it. predicted: (succeeded, dead-lettered) as the seed foretells them; None for a stopped
    run, and where earlier jobs were open. peak_open: the most open jobs seen after an enqueue.
    blocked_s: how long the producer slept for want of room, of the producing_s that it took.
    elapsed_s: from the first enqueue call to the last settle, or to the stop. peak_rss_bytes: None where it
    cannot be known.
    """

    plan: Plan
    stopped: bool
    enqueued: int
    processed: int
    succeeded: int
    failed: int
    retries: int
    dead_lettered: int
    reclaimed: int
    stale: int
    rejected: int
    open: int
    dead_kept: int
    dead_letters: tuple[DeadLetter, ...]
    latency: Latency
    predicted: tuple[int, int] | None
    peak_open: int
    producing_s: float
    blocked_s: float
    elapsed_s: float
    peak_rss_bytes: int | None

    @property
    def dead_pruned(self) -> int:
        """Dead letters that retention has removed."""
        return self.dead_lettered - self.dead_kept

    @property
    def as_predicted(self) -> bool | None:
        """Whether the run ended as its seed foretold; None where nothing is foretold."""
        return None if self.predicted is None else self.predicted == (self.succeeded, self.dead_lettered)

    @property
    def identities(self) -> tuple[Identity, ...]:
        """The three sums that every run keeps."""
        succeeded, dead = ("succeeded", self.succeeded), ("dead-lettered", self.dead_lettered)
        return (
            Identity(("processed", self.processed), (succeeded, ("failed", self.failed))),
            Identity(("failed", self.failed), (("retries", self.retries), dead)),
            Identity(("enqueued", self.enqueued), (succeeded, dead, ("open", self.open))),
        )

    @property
    def holds(self) -> bool:
        """Whether the books balance."""
        return all(identity.holds for identity in self.identities)

    @property
    def passes(self) -> bool:
        """Whether every check holds."""
        return self.holds and self.as_predicted is not False
