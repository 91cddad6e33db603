"""What Prometheus is told: figures that add up, durations, and what becomes of a store that is away."""

from __future__ import annotations

import os
import re
import sys
import threading
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st
from prometheus_client import CollectorRegistry, generate_latest

import ulak
from tests.contract.conftest import StorageKind
from tests.support.pools import AT_ONCE
from tests.support.waiting import WAIT_S, eventually
from tests.tasks.conftest import MakeApp
from ulak import App, Lease, MissingExtra, Outcome, QueueFull, events
from ulak.core.job import Cause
from ulak.testing import ManualClock

EXAMPLES = int(os.environ.get("ULAK_EXAMPLES", "40"))
SAMPLE = re.compile(r"^(\w+)(?:\{(.*)\})? (\S+)$", re.MULTILINE)

Figures = dict[tuple[str, str], float]


def scrape(registry: CollectorRegistry) -> Figures:
    """What Prometheus reads: each value by its name and labels."""
    text = generate_latest(registry).decode()
    return {(name, labels): float(value) for name, labels, value in SAMPLE.findall(text)}


def figures_of(app: App) -> Callable[[], Figures]:
    registry = CollectorRegistry()
    ulak.metrics_of(app, registry)
    return lambda: scrape(registry)


def of_queue(figures: Figures, queue: str) -> Callable[[str], float]:
    return lambda name: figures[f"ulak_{name}", f'queue="{queue}"']


def in_state(figures: Figures, queue: str, state: str) -> float:
    return figures["ulak_queue_jobs", f'queue="{queue}",state="{state}"']


# Identities

KINDS_OF_ACT = (
    *("enqueue", "enqueue", "deliver", "deliver", "ack", "ack", "nack", "nack", "release"),
    *("cancel", "delete", "redrive", "expire", "reclaim", "late_ack"),
)
ACTS = st.lists(st.tuples(st.sampled_from(KINDS_OF_ACT), st.integers(0, 5)), min_size=1, max_size=40)


class Life:
    """A queue of which anything is asked, and what came of it."""

    def __init__(self, url: str) -> None:
        self.clock = ManualClock()
        self.app = App(url, queues={"mail": 4}, clock=self.clock, max_attempts=2, visibility_timeout=10)
        self.q = self.app.queue("mail")
        self.leases: list[Lease] = []
        self.ended: list[Lease] = []
        self.seen = dict.fromkeys(("enqueued", "acked", "full", "stale"), 0)

    def do(self, act: str, number: int) -> None:
        jobs = self.q.jobs()
        if act in ("enqueue", "expire"):
            stored = self.q.try_enqueue("x", number, expires=5 if act == "expire" else None)
            self.seen["enqueued" if stored else "full"] += 1
            self.clock.advance(6 if act == "expire" else 0)
        elif act == "deliver":
            self.leases += [lease for lease in [self.q.deliver()] if lease is not None]
        elif act == "reclaim":
            self.clock.advance(11)
            self.q.tick_timeouts()
        elif act in ("cancel", "delete", "redrive") and jobs:
            getattr(self.q, act)([jobs[number % len(jobs)].id])
        elif act in ("ack", "nack", "release") and self.leases:
            self.settle(act, self.leases.pop(number % len(self.leases)))
        elif act == "late_ack" and self.ended:
            self.settle("ack", self.ended[number % len(self.ended)])

    def settle(self, act: str, lease: Lease) -> None:
        outcome = getattr(self.q, act)(lease)
        self.ended.append(lease)
        self.seen["stale"] += outcome is Outcome.STALE
        self.seen["acked"] += act == "ack" and outcome is Outcome.OK


@settings(max_examples=EXAMPLES, deadline=None, suppress_health_check=list(HealthCheck))
@given(acts=ACTS)
@example(acts=[("enqueue", 0), ("deliver", 0), ("cancel", 0), ("nack", 0), ("redrive", 0), ("delete", 0)])
def test_the_figures_add_up_after_whatever_was_done_and_no_counter_goes_down(
    kind: StorageKind, acts: list[tuple[str, int]]
) -> None:
    life = Life(kind.url())
    figures = figures_of(life.app)
    with life.app:
        before = figures()
        for act, number in acts:
            life.do(act, number)
            after = figures()
            check(after, life)
            for key, value in before.items():
                assert not key[0].endswith("_total") or after[key] >= value, key
            before = after


def check(figures: Figures, life: Life) -> None:
    told = of_queue(figures, "mail")
    assert told("attempts_processed_total") == told("jobs_succeeded_total") + told("attempts_failed_total")
    assert told("attempts_failed_total") == (
        told("retries_total") + told("jobs_dead_lettered_total") + told("attempts_cut_total")
    )
    still_open = sum(in_state(figures, "mail", state) for state in ("ready", "scheduled", "leased", "held"))
    ended = ("succeeded", "dead_lettered", "cancelled", "expired", "deleted")
    assert told("jobs_enqueued_total") + told("jobs_redriven_total") == (
        sum(told(f"jobs_{how}_total") for how in ended) + still_open
    )
    kept = sum(in_state(figures, "mail", state) for state in ("succeeded", "dead", "cancelled", "expired"))
    assert told("jobs_enqueued_total") == (
        still_open + kept + told("jobs_pruned_total") + told("jobs_deleted_total")
    )
    assert still_open <= told("queue_capacity_jobs") == 4
    # As whoever asked for it has seen it.
    assert told("jobs_enqueued_total") == life.seen["enqueued"]
    assert told("jobs_succeeded_total") == life.seen["acked"]
    assert told("acks_stale_total") == life.seen["stale"]
    assert told("queue_full_total") == life.seen["full"]


# What is told


def test_totals_are_those_of_the_store_whoever_asks_and_whenever_it_began(make_app: MakeApp) -> None:
    first, second = make_app(queues=["mail"]), make_app(queues=["mail"])
    lease_of = first.queue("mail")
    lease_of.enqueue_many(["a", "b", "c"])
    lease = lease_of.deliver()
    assert lease is not None
    lease_of.ack(lease)
    told = of_queue(figures_of(second)(), "mail")
    assert (told("jobs_enqueued_total"), told("jobs_succeeded_total")) == (3, 1)
    assert told("queue_paused") == 0
    second.queue("mail").pause()
    assert of_queue(figures_of(first)(), "mail")("queue_paused") == 1


def test_the_age_of_the_first_ready_job_grows_and_is_zero_without_one(
    timed: MakeApp, clock: ManualClock
) -> None:
    app = timed(queues=["mail"])
    figures, q = figures_of(app), app.queue("mail")
    q.pause()
    assert of_queue(figures(), "mail")("queue_oldest_ready_seconds") == 0
    job_id = q.enqueue("a")
    clock.advance(40)
    assert of_queue(figures(), "mail")("queue_oldest_ready_seconds") == 40
    q.cancel([job_id])
    assert of_queue(figures(), "mail")("queue_oldest_ready_seconds") == 0


def test_workers_are_told_of_by_queue_while_they_live(make_app: MakeApp) -> None:
    app = make_app(queues=["mail", "idle"])

    app.task(name="nothing")(print)
    figures = figures_of(app)
    with app.workers(3, queues=["mail"]):
        eventually(lambda: of_queue(figures(), "mail")("workers") == 3)
        assert of_queue(figures(), "mail")("worker_last_poll_timestamp_seconds") > 1e9
        assert of_queue(figures(), "idle")("workers") == 0
    assert of_queue(figures(), "mail")("workers") == 0


def test_durations_are_counted_of_what_ran_here(make_app: MakeApp) -> None:
    app = make_app()

    @app.task(name="work", aliases=["labour"], max_attempts=2, backoff=AT_ONCE)
    def work(how: str) -> None:
        if how == "fail":
            raise ValueError

    figures = figures_of(app)
    work.enqueue("go")
    work.enqueue("fail")
    with app.workers(1) as pool:
        assert pool.drain(WAIT_S).drained
    counts = {
        name: figures()[f"ulak_job_{name}_seconds_count", 'queue="default",task="work"'] for name in NAMES
    }
    assert counts == {"wait": 2, "run": 3, "latency": 2}


NAMES = ("wait", "run", "latency")


def delivery(**changes: Any) -> dict[str, Any]:
    told = {"job_id": 1, "queue": "mail", "task": "send", "attempt": 1, "max_attempts": 3, "delivery": 1}
    return {**told, "worker": "w1", "enqueued_at": 100.0, "started_at": 107.0, **changes}


def told_of(*heard: events.Event) -> dict[tuple[str, str], float]:
    """The sums of durations after these events, by kind and task."""
    app = App()

    @app.task(name="send", aliases=["post"])
    def send() -> None: ...

    figures = figures_of(app)
    for event in heard:
        app._events.tell(event)
    found = figures().items()
    sums = {
        (name.removeprefix("ulak_job_"), labels): value
        for (name, labels), value in found
        if name.startswith("ulak_job_") and name.endswith("_seconds_sum")
    }
    app.close()
    return {
        (name.removesuffix("_seconds_sum"), labels.partition("task=")[2].strip('"')): value
        for (name, labels), value in sums.items()
    }


def test_a_wait_is_that_for_the_first_start_and_a_latency_ends_with_the_job() -> None:
    assert told_of(events.Started(**delivery())) == {("wait", "send"): 7}
    assert told_of(events.Started(**delivery(delivery=2))) == {}
    assert told_of(events.Succeeded(**delivery(), run_s=2.0)) == {("run", "send"): 2, ("latency", "send"): 9}
    retried = events.Retried(**delivery(), run_s=2.0, cause=Cause.ERROR, delay_s=5.0)
    assert told_of(retried) == {("run", "send"): 2}


def test_how_long_enqueues_waited_for_room_is_told_of_those_that_had_to(
    timed: MakeApp, clock: ManualClock
) -> None:
    app = timed(queues={"mail": 1, "other": None})
    figures = figures_of(app)
    q = app.queue("mail")
    name = "ulak_enqueue_blocked_seconds"
    q.enqueue("first")
    with pytest.raises(QueueFull):
        q.enqueue("refused", timeout=0)
    assert figures()[f"{name}_count", 'queue="mail"'] == 0
    blocked = threading.Thread(target=q.enqueue, args=("second",))
    blocked.start()
    eventually(lambda: clock.sleepers > 0)
    clock.advance(0.75)
    lease = q.deliver()
    assert lease is not None
    q.ack(lease)
    blocked.join(WAIT_S)
    told = figures()
    assert told[f"{name}_count", 'queue="mail"'] == 1
    assert told[f"{name}_sum", 'queue="mail"'] == pytest.approx(0.75)
    bounds = ("0.001", "0.5", "1.0", "+Inf")
    assert [told[f"{name}_bucket", f'le="{bound}",queue="mail"'] for bound in bounds] == [0, 0, 1, 1]


def test_what_is_told_in_a_lost_workers_place_has_no_duration() -> None:
    assert told_of(events.Died(**delivery(), run_s=0.0, cause=Cause.LOST)) == {}


def test_a_clock_that_was_set_back_takes_nothing_from_a_sum() -> None:
    assert told_of(events.Started(**delivery(started_at=50.0))) == {("wait", "send"): 0}


def test_a_task_is_told_by_its_name_and_strangers_by_none() -> None:
    """Else whoever stores jobs of ever new names would make ever new series."""
    tasks = ["send", "post", "stranger", None]
    told = told_of(*(events.Started(**delivery(task=task)) for task in tasks))
    assert told == {("wait", "send"): 14, ("wait", ""): 14}


# Around it


def test_a_store_that_is_away_is_told_of_and_the_rest_goes_on(tmp_path: Any) -> None:
    app = App(f"sqlite:///{tmp_path}/jobs.db")
    figures = figures_of(app)
    assert figures()["ulak_store_up", ""] == 1
    app.close()
    (tmp_path / "jobs.db").write_text("no database" * 100)
    away = figures()
    assert away["ulak_store_up", ""] == 0
    assert not [name for name, _ in away if name.startswith("ulak_queue")]
    assert [name for name, _ in away if name == "ulak_build_info"]


def test_to_register_opens_nothing_and_is_possible_once(tmp_path: Any) -> None:
    app = App(f"sqlite:///{tmp_path}/jobs.db")
    registry = CollectorRegistry()
    told = ulak.metrics_of(app, registry)
    assert list(tmp_path.iterdir()) == []
    with pytest.raises(ValueError, match="Duplicated"):
        ulak.metrics_of(app, registry)
    told.close()
    assert scrape(registry) == {}
    assert not app._events.is_heard


def test_nothing_of_a_url_is_told_but_its_scheme() -> None:
    app = App("memory://hunter2")
    registry = CollectorRegistry()
    ulak.metrics_of(app, registry)
    with app:
        text = generate_latest(registry).decode()
    assert 'backend="memory"' in text
    assert "hunter2" not in text


def test_without_the_library_the_error_says_how_to_install_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(sys.modules, "ulak.telemetry.prometheus", raising=False)
    monkeypatch.setitem(sys.modules, "prometheus_client", None)
    with pytest.raises(MissingExtra, match=r"pip install 'ulak\[web\]'"):
        ulak.metrics_of(App())
