"""What Prometheus is told: totals and states as the store has them, durations as this process sees them."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Mapping, Sequence

from prometheus_client import REGISTRY, CollectorRegistry, Histogram
from prometheus_client.core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
    InfoMetricFamily,
)
from prometheus_client.metrics_core import Metric

from ulak import __version__, events
from ulak import metrics as durations
from ulak.app import App
from ulak.core.job import Counts, State
from ulak.core.store import Filter, Settings, Store, WorkerInfo
from ulak.errors import UlakError
from ulak.events import Event
from ulak.local import LocalStore
from ulak.taskqueue import LIVE_S

# Field of `Totals` -> name without "_total", help.
TOTALS = {
    "enqueued": ("ulak_jobs_enqueued", "Jobs stored"),
    "redriven": ("ulak_jobs_redriven", "Ended jobs that were brought back"),
    "processed": ("ulak_attempts_processed", "Attempts that ended in success or failure"),
    "succeeded": ("ulak_jobs_succeeded", "Jobs acknowledged"),
    "failed": ("ulak_attempts_failed", "Attempts that failed, ended leases too"),
    "retries": ("ulak_retries", "Failed attempts after which the job is tried again"),
    "dead_lettered": ("ulak_jobs_dead_lettered", "Failed attempts after which the job is dead"),
    "cut": ("ulak_attempts_cut", "Failed attempts after which the job ended cancelled or expired"),
    "cancelled": ("ulak_jobs_cancelled", "Jobs cancelled"),
    "expired": ("ulak_jobs_expired", "Jobs that ended since their time was over"),
    "deleted": ("ulak_jobs_deleted", "Jobs deleted while they were open"),
    "pruned": ("ulak_jobs_pruned", "Ended jobs that were removed"),
    "reclaimed": ("ulak_leases_expired", "Leases that ended without a verdict"),
}
# Of this process alone.
REFUSED = {
    "stale": ("ulak_acks_stale", "Verdicts that came after the lease had ended"),
    "rejected": ("ulak_queue_full", "Enqueues that found no room"),
}
BLOCKED = ("ulak_enqueue_blocked_seconds", "How long enqueues waited for room, found or not")
GAUGES = {
    "capacity": ("ulak_queue_capacity_jobs", "The most open jobs; absent where there is no bound"),
    "paused": ("ulak_queue_paused", "1 if nothing is delivered from the queue"),
    "oldest": ("ulak_queue_oldest_ready_seconds", "Since the enqueue of the first ready job; 0 without one"),
    "running": ("ulak_jobs_running", "Jobs that a worker has"),
    "workers": ("ulak_workers", "Jobs that the workers which live can run at the same time"),
    "poll": ("ulak_worker_last_poll_timestamp_seconds", "When a worker of the queue was last heard of"),
}
JOBS = ("ulak_queue_jobs", "Jobs stored, by state")
STORE_UP = ("ulak_store_up", "1 if the store answered this scrape, else its other figures are absent")
BUILD = ("ulak_build", "What runs here")
WAIT = ("ulak_job_wait_seconds", "From the enqueue to the first start, a delay included")
RUN = ("ulak_job_run_seconds", "How long an attempt ran")
LATENCY = ("ulak_job_latency_seconds", "From the enqueue to the end of the job")

BUCKETS_S = (
    *(0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5),
    *(1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 300.0, 900.0, 3600.0),
)


class StoreFigures:
    """A collector of what a store has, read at each scrape; one that is away gives `ulak_store_up 0`.

    opened: answers with the store, opened. url: where that is; of it only the scheme is told.
    counts_refused: whether it tells also what was refused in this process.
    """

    def __init__(
        self, opened: Callable[[], LocalStore], url: Callable[[], str], *, counts_refused: bool
    ) -> None:
        self._opened = opened
        self._url = url
        self._counts_refused = counts_refused

    def describe(self) -> Iterable[Metric]:
        """The same without a figure; opens nothing."""
        return [*self._blank().values(), *self._blocked({}), GaugeMetricFamily(*STORE_UP), self._build()]

    def collect(self) -> Iterable[Metric]:
        """All figures."""
        found: Iterable[Metric] = ()
        try:
            found = self._read(self._opened())
        except UlakError:
            is_up = 0
        else:
            is_up = 1
        return [*found, GaugeMetricFamily(*STORE_UP, value=is_up), self._build()]

    def _blank(self) -> dict[str, CounterMetricFamily | GaugeMetricFamily]:
        counters = TOTALS | REFUSED if self._counts_refused else TOTALS
        blank: dict[str, CounterMetricFamily | GaugeMetricFamily] = {
            key: CounterMetricFamily(*told, labels=["queue"]) for key, told in counters.items()
        }
        blank |= {key: GaugeMetricFamily(*told, labels=["queue"]) for key, told in GAUGES.items()}
        blank["jobs"] = GaugeMetricFamily(*JOBS, labels=["queue", "state"])
        return blank

    def _build(self) -> InfoMetricFamily:
        has_gil = getattr(sys, "_is_gil_enabled", lambda: True)()
        python = ".".join(map(str, sys.version_info[:3]))
        told = {
            "version": __version__,
            "backend": self._url().partition(":")[0],
            "python": python,
            "gil": str(int(has_gil)),
        }
        return InfoMetricFamily(*BUILD, value=told)

    def _read(self, local: LocalStore) -> Iterable[Metric]:
        store, now_at = local.edge.store, local.edge.clock.calendar()
        families, blocked = self._blank(), dict[str, durations.Histogram]()
        queues, workers = store.queues(), store.workers()
        for name, counts in store.counts(list(queues)).items():
            told = figures_of(counts, queues[name]) | _presence(name, workers, now_at)
            if counts.ready:
                told["oldest"] = _oldest_ready_s(store, name, now_at)
            if self._counts_refused:
                refused = local.queue(name)
                told |= {"stale": refused.stale, "rejected": refused.rejected}
                blocked[name] = refused.blocked or durations.Histogram()
            for key, value in told.items():
                families[key].add_metric([name], value)
            for state in State:
                stored = getattr(counts, "acked" if state is State.SUCCEEDED else state.value)
                families["jobs"].add_metric([name, state.value], stored)
        return [*families.values(), *self._blocked(blocked)]

    def _blocked(self, by_queue: Mapping[str, durations.Histogram]) -> Iterable[Metric]:
        if not self._counts_refused:
            return
        family = HistogramMetricFamily(*BLOCKED, labels=["queue"])
        for queue, blocked in by_queue.items():
            buckets = [(str(bound_s), float(blocked.count_to(bound_s))) for bound_s in BUCKETS_S]
            family.add_metric([queue], [*buckets, ("+Inf", float(blocked.count))], blocked.sum_s)
        yield family


def figures_of(counts: Counts, settings: Settings) -> dict[str, float]:
    """What is told of one queue from one snapshot."""
    told: dict[str, float] = {name: getattr(counts.totals, name) for name in TOTALS}
    told |= {"paused": settings.paused, "running": counts.leased, "oldest": 0.0}
    if settings.capacity is not None:
        told["capacity"] = settings.capacity
    return told


def _presence(queue: str, workers: Sequence[WorkerInfo], now_at: float) -> dict[str, float]:
    serving = [worker for worker in workers if queue in worker.info.get("queues", "").split(",")]
    live = [_size(worker.info) for worker in serving if worker.seen_at >= now_at - LIVE_S]
    told: dict[str, float] = {"workers": sum(live)}
    if serving:
        told["poll"] = max(worker.seen_at for worker in serving)
    return told


def _size(info: Mapping[str, str]) -> int:
    size = info.get("size", "")
    return int(size) if size.isdecimal() else 0


def _oldest_ready_s(store: Store, queue: str, now_at: float) -> float:
    first = store.scan(Filter(queue=queue, states=State.READY), limit=1)
    return max(0.0, now_at - first[0].created_at) if first else 0.0


class Durations:
    """Counts how long jobs of an App wait and run, from what it tells of this process."""

    def __init__(self, app: App) -> None:
        self._app = app
        self._wait, self._run, self._latency = (
            Histogram(*told, labelnames=("queue", "task"), buckets=BUCKETS_S, registry=None)
            for told in (WAIT, RUN, LATENCY)
        )

    def collect(self) -> Iterable[Metric]:
        """All figures."""
        return [*self._wait.collect(), *self._run.collect(), *self._latency.collect()]

    def describe(self) -> Iterable[Metric]:
        """The same without a figure."""
        return [*self._wait.describe(), *self._run.describe(), *self._latency.describe()]

    def hear(self, event: Event) -> None:
        """Count what an event tells of."""
        match event:
            case events.Started(delivery=1):
                self._observe(self._wait, event, event.started_at - event.enqueued_at)
            case events.Retried():
                self._observe_run(event, event.run_s)
            case events.Succeeded() | events.Died() | events.Cancelled() | events.Expired():
                self._observe_run(event, event.run_s)
                # Who settles in a lost worker's place does not know when that was lost.
                if event.run_s:
                    age_s = event.started_at - event.enqueued_at + event.run_s
                    self._observe(self._latency, event, age_s)
            case _:
                pass

    def _observe_run(self, event: Event, run_s: float) -> None:
        if run_s:
            self._observe(self._run, event, run_s)

    def _observe(self, histogram: Histogram, event: Event, duration_s: float) -> None:
        # A calendar that was set back must not take anything from the sum.
        histogram.labels(event.queue, self._label_of(event.task)).observe(max(0.0, duration_s))

    def _label_of(self, name: str | None) -> str:
        """The task's name; empty for a job of none, and for tasks that this App does not know."""
        if name is None or name in self._app.tasks:
            return name or ""
        return next((task.name for task in self._app.tasks.values() if name in task.aliases), "")


class AppMetrics:
    """A collector of all that is told of an App; registered when it is made."""

    def __init__(self, app: App, registry: CollectorRegistry | None) -> None:
        self._app = app
        self._registry = REGISTRY if registry is None else registry
        opened = app._opened  # noqa: SLF001 - nobody else needs it
        self._figures = StoreFigures(opened, lambda: app.url, counts_refused=True)
        self._durations = Durations(app)
        self._registry.register(self)
        app.on(self._durations.hear)

    def describe(self) -> Iterable[Metric]:
        """The same without a figure; opens nothing."""
        return [*self._figures.describe(), *self._durations.describe()]

    def collect(self) -> Iterable[Metric]:
        """All figures."""
        return [*self._figures.collect(), *self._durations.collect()]

    def close(self) -> None:
        """Tell nothing any more."""
        self._app.off(self._durations.hear)
        self._registry.unregister(self)
