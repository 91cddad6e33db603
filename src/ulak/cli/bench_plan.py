"""What a benchmark is asked to do, and what came of one run of it: plain values."""

from __future__ import annotations

from dataclasses import dataclass, field

PERCENTILES = {"p50": 50.0, "p90": 90.0, "p99": 99.0, "p99.9": 99.9, "max": 100.0}
"""The percentiles that are told of everything."""


@dataclass(frozen=True, slots=True)
class Plan:
    """The settings of a benchmark.

    rate: arrivals per second, all producers together; 0: saturated, so each enqueue follows the one before.
    is_poisson: arrivals at random, as from many callers who know nothing of each other; else at equal gaps.
    jobs: counted ones; `warm_up` come before them. duration_s: only of a saturated run that ends by time;
    `jobs` is then the most it may do. capacity: None is unbounded. processes: with `workers` workers each
    (None: the workers are in the producers' process).
    """

    url: str
    rate: float
    is_poisson: bool
    jobs: int
    warm_up: int
    duration_s: float | None
    capacity: int | None
    fail_rate: float
    max_attempts: int
    base_s: float
    cap_s: float
    workers: int
    executor: str
    processes: int | None
    producers: int
    payload_bytes: int
    priorities: int
    repeat: int
    seed: int

    @property
    def jobs_all(self) -> int:
        """How many jobs a run does, those to warm up included."""
        return self.jobs + self.warm_up


@dataclass(frozen=True, slots=True)
class Latency:
    """Durations of one kind, in seconds: percentile by name, and the curve from p0 on.

    curve: (percentile, duration), denser the nearer to 100.
    """

    count: int
    at: dict[str, float]
    curve: list[tuple[float, float]] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class Slice:
    """A part of a run's time. at_s: its start, since the run's. due: so many jobs were; p50_s, p99_s: how
    long from then until their first attempt was settled. open: in its middle.
    """

    at_s: float
    due: int
    p50_s: float
    p99_s: float
    open: int


@dataclass(frozen=True, slots=True)
class Figures:
    """What one run has measured, of the jobs that count.

    jobs_per_s: until the last of them had ended. latency: by the names of `bench_figures.MEASURES`, and
    "blocked", which is each call's time asleep for room. blocked_share: of the producers' time, likewise.
    lag_p99_s: by how much the generator itself was late. behind_s: how late the last calls were. Both are 0
    where there is no schedule. peak_open: of all jobs. memory_bytes: the most of it, beyond what there was
    before. cpu_s: of all processes of the run; cpu_a_job_s: likewise, over all its jobs. others_cpus: how
    many processors worked for others meanwhile. None is what cannot be known. lost: processes that ended
    before their time. is_as_drawn: all ended as the seed has drawn it.
    """

    jobs: int
    jobs_per_s: float
    elapsed_s: float
    due_span_s: float
    latency: dict[str, Latency]
    blocked_s: float
    blocked_share: float
    lag_p99_s: float
    behind_s: float
    peak_open: int
    slices: list[Slice]
    succeeded: int = 0
    dead_lettered: int = 0
    memory_bytes: int | None = None
    cpu_s: float = 0.0
    cpu_a_job_s: float = 0.0
    others_cpus: float | None = None
    lost: int = 0
    is_as_drawn: bool = True
