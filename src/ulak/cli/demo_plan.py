"""What a demo is asked to do, and what came of it: plain values."""

from __future__ import annotations

from dataclasses import dataclass

from ulak.metrics import Histogram


@dataclass(frozen=True, slots=True)
class Plan:
    """The settings of one run. rate: enqueues per second (0: as fast as there is room). keep_dead: how many
    dead letters are kept (None: all). processes: how many there are beside the producer's, with `workers`
    threads each (None: the workers are the producer's own threads). crash_rate: the chance that a started
    attempt kills its process.
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
    processes: int | None = None
    crash_rate: float = 0.0


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
class Fleet:
    """What became of the processes of a run, and of the jobs that met them.

    started: processes that were started. kills: those that a SIGKILL ended, other_ends: those that ended
    otherwise before their time. left: open jobs of an earlier run, which took left_s to finish (None:
    they are not finished).
    dead_by_crash: dead letters whose last attempt ended with its process; of the first 10,000.
    The others are lifetime totals of the queue, less what they were at the start.
    """

    started: int
    kills: int
    other_ends: int
    left: int
    left_s: float | None
    dead_by_crash: int
    redriven: int
    cut: int
    cancelled: int
    expired: int
    deleted: int


@dataclass(frozen=True, slots=True)
class Result:
    """What came of a run. Counts are those since its start, in one snapshot after the last worker had left.

    stopped: a signal ended it early; only then jobs may be left open. open, dead_kept: beyond those that were
    stored before it. predicted: (succeeded, dead-lettered) as the seed foretells them; None for a stopped
    run, and where earlier jobs were open. peak_open: the most open jobs seen after an enqueue.
    blocked_s: how long the producer slept for want of room, of the producing_s that it took.
    elapsed_s: from the first enqueue call to the last settle, or to the stop; of a fleet, from the start of
    its first process to the end of its last. peak_rss_bytes: of this process; None where it cannot be known.
    fleet: None if there was but one process. Of a fleet `open` counts all jobs, and latency, which its
    processes take into their graves, is None.
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
    latency: Latency | None
    predicted: tuple[int, int] | None
    peak_open: int
    producing_s: float
    blocked_s: float
    elapsed_s: float
    peak_rss_bytes: int | None
    fleet: Fleet | None = None

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
        """The three sums that every run keeps. What only an operator's hand can bring about is shown if it is
        there.
        """
        succeeded, dead = ("succeeded", self.succeeded), ("dead-lettered", self.dead_lettered)
        retries, open_ = ("retries", self.retries), ("open", self.open)
        before, cut, others = [("enqueued", self.enqueued)], [], []
        if (fleet := self.fleet) is not None:
            before = [("left", fleet.left)] * bool(fleet.left) + before + _present(redriven=fleet.redriven)
            cut = [("cut", fleet.cut)]
            others = _present(cancelled=fleet.cancelled, expired=fleet.expired, deleted=fleet.deleted)
        names, values = zip(*before, strict=True)
        return (
            Identity(("processed", self.processed), (succeeded, ("failed", self.failed))),
            Identity(("failed", self.failed), (retries, dead, *cut)),
            Identity((" + ".join(names), sum(values)), (succeeded, dead, *others, open_)),
        )

    @property
    def holds(self) -> bool:
        """Whether the books balance."""
        return all(identity.holds for identity in self.identities)

    @property
    def passes(self) -> bool:
        """Whether every check holds. What a fleet leaves open it has lost, unless it was stopped."""
        is_done = self.fleet is None or self.stopped or self.open == 0
        return self.holds and is_done and self.as_predicted is not False


def _present(**counts: int) -> list[tuple[str, int]]:
    return [(name, count) for name, count in counts.items() if count]
