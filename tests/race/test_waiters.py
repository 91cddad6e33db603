"""Those who wait for room or for work: who is served first, and that nobody is forgotten."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from functools import partial
from typing import Any

import pytest

from tests.contract.conftest import StorageKind
from tests.contract.steps import LEASE_S, Q, act, draft, put_one
from tests.race.threads import PATIENCE_S, Running, WatchedClock
from tests.support.waiting import eventually
from ulak import Queue
from ulak.core import flows
from ulak.core.flows import Do, Flow, Handling, NewSignal, Sleep
from ulak.core.job import Duplicate, Lease
from ulak.core.store import Cancel, Change, Settings, Store, Until
from ulak.errors import Closed, QueueFull
from ulak.local import LocalQueue
from ulak.storage.drive import Edge
from ulak.testing import ManualClock

WAITERS = 6


@pytest.fixture
def queue(kind: StorageKind, watched: WatchedClock) -> Iterator[Queue]:
    """A queue of capacity 1 on a clock that knows who sleeps."""
    with Queue(kind.url(), capacity=1, clock=watched) as made:
        yield made


def next_one(queue: Queue) -> Lease:
    """The next job, which must come."""
    lease = Running(partial(queue.deliver, PATIENCE_S)).result()
    assert lease is not None
    return lease


# Room


def test_waiters_for_room_are_served_first_come_first_served(queue: Queue, watched: WatchedClock) -> None:
    queue.enqueue("there first")
    room = queue._edge.store.line(Until.ROOM, queue.name)
    waiting = []
    for number in range(WAITERS):
        waiting.append(Running(partial(queue.enqueue, number)))
        # Not until all sleep: a store may wake those who came before, and then they count for this one.
        eventually(lambda: len(room) == len(waiting))
    watched.until_asleep()
    served = []
    for one in waiting:
        lease = next_one(queue)
        queue.ack(lease)
        served.append(one.result())
    assert served == sorted(served)
    assert [info.id for info in queue.jobs("ready")] == served[-1:]


def test_a_waiter_for_room_is_given_that_of_a_job_whose_time_runs_out(
    queue: Queue, watched: WatchedClock
) -> None:
    # Nobody else looks at the queue: no worker, no pruner, no other producer.
    queue.enqueue("too late", delay=60, expires=5)
    waiting = Running(partial(queue.enqueue, "waits"))
    watched.until_asleep()
    watched.advance(5)
    try:
        assert waiting.result() == 2
    finally:
        queue.cancel(1)


class Stepped:
    """A flow taken up to where it sleeps, and on from there when the test says so."""

    def __init__(self, edge: Edge, flow: Flow[Any]) -> None:
        self._edge = edge
        self._flow = flow
        self._reply: Any = None
        self.signal: threading.Event | None = None
        self.answer: Any = None
        self.go()

    def go(self) -> None:
        """On to the next sleep, or to the end."""
        try:
            while True:
                ask = self._flow.send(self._reply)
                match ask:
                    case NewSignal():
                        self._reply = threading.Event()
                    case Sleep(signal, _):
                        assert isinstance(signal, threading.Event)
                        self.signal, self._reply = signal, None
                        return
                    case Do(call):
                        self._reply = call()
                    case _:
                        self._reply = self._edge.answer(ask)
        except StopIteration as stop:
            self.answer = stop.value

    @property
    def is_woken(self) -> bool:
        return self.signal is not None and self.signal.is_set()


class Line:
    """Producers of one full queue, taken step by step."""

    def __init__(self, store: Store, clock: ManualClock, capacity: int = 1) -> None:
        self.store = store
        self.edge = Edge(store, clock)
        self.local = LocalQueue(store, Q)
        store.declare(Q, Settings(capacity=capacity))
        self.ids = [put_one(store) for _ in range(capacity)]

    def enqueue(
        self,
        number: int = 1,
        *,
        handler: Handling = Handling.NOTHING,
        timeout_s: float | None = None,
        **options: Any,
    ) -> Stepped:
        drafts = [draft(**options)] * number
        flow = flows.enqueue(self.local, Q, drafts, timeout_s=timeout_s, handler=handler)
        return Stepped(self.edge, flow)

    def make_room(self) -> None:
        act(self.store, Cancel(), self.ids.pop())


def test_a_newcomer_does_not_overtake_a_waiter_who_was_woken_but_has_not_run_yet(
    store: Store, clock: ManualClock
) -> None:
    line = Line(store, clock)
    first = line.enqueue()
    line.make_room()
    assert first.is_woken
    newcomer = line.enqueue()
    assert newcomer.answer is None, "the newcomer took the room of the first in line"
    first.go()
    assert first.answer is not None


def test_a_large_batch_at_the_head_of_the_line_is_not_overtaken_by_small_ones(
    store: Store, clock: ManualClock
) -> None:
    line = Line(store, clock, capacity=3)
    batch, small = line.enqueue(3), line.enqueue()
    for _ in range(3):
        assert batch.answer is None
        assert not small.is_woken
        line.make_room()
        batch.go()
    assert batch.answer is not None
    assert small.is_woken


def test_one_who_leaves_the_line_wakes_the_next(store: Store, clock: ManualClock) -> None:
    line = Line(store, clock)
    first, second = line.enqueue(timeout_s=5.0), line.enqueue()
    clock.advance(5.0)
    with pytest.raises(QueueFull):
        first.go()
    assert second.is_woken


def test_a_duplicate_does_not_wait_behind_those_who_wait_for_room(store: Store, clock: ManualClock) -> None:
    line = Line(store, clock)
    store.configure(Q, Change(capacity=2))
    job_id = put_one(store, unique_key="ada")
    waiting = line.enqueue()
    again = line.enqueue(unique_key="ada")
    assert (again.answer, waiting.answer) == ([Duplicate(job_id)], None)


def test_a_handlers_duplicate_is_no_deadlock_when_others_wait_for_room(
    store: Store, clock: ManualClock
) -> None:
    line = Line(store, clock)
    store.configure(Q, Change(capacity=2))
    job_id = put_one(store, unique_key="ada")
    waiting = line.enqueue()
    again = line.enqueue(handler=Handling.THIS_QUEUE, unique_key="ada")
    assert (again.answer, waiting.answer) == ([Duplicate(job_id)], None)


def test_the_end_of_all_producers_wakes_those_too_who_stand_behind_a_handler(
    store: Store, clock: ManualClock
) -> None:
    # The handler's own enqueue is not refused by a drain, so it stays at the head of the line.
    line = Line(store, clock)
    handler = line.enqueue(handler=Handling.THIS_QUEUE, timeout_s=60.0)
    behind = line.enqueue()
    line.local.finish(registered=False)
    handler.go()
    assert handler.answer is None
    assert behind.is_woken
    with pytest.raises(Closed):
        behind.go()


def test_the_end_of_all_producers_wakes_every_waiting_enqueue_with_closed(
    queue: Queue, watched: WatchedClock
) -> None:
    producer = queue.producer()
    queue.enqueue("there first")
    waiting = [Running(partial(queue.enqueue, number)) for number in range(WAITERS)]
    watched.until_asleep(WAITERS)
    producer.finish()
    for one in waiting:
        with pytest.raises(Closed):
            one.result()
    assert queue.counts().total == 1


def test_closing_a_handle_wakes_its_waiting_calls_with_closed_and_no_others(
    kind: StorageKind, watched: WatchedClock
) -> None:
    url = kind.url()
    with Queue(url, capacity=1, clock=watched) as other:
        closing = Queue(url, capacity=1, clock=watched)
        job_id = closing.enqueue("there first")
        other.deliver()
        waiting: list[Running[Any]] = [
            Running(partial(closing.enqueue, "waits")),
            Running(partial(closing.deliver, None)),
        ]
        watched.until_asleep(2)
        others = Running(partial(other.enqueue, "waits too"))
        watched.until_asleep()
        closing.close()
        try:
            for one in waiting:
                with pytest.raises(Closed):
                    one.result()
        finally:
            other.delete(job_id, force=True)
        assert others.result() == job_id + 1


# Work


def test_waiters_for_work_are_all_woken_by_a_batch(queue: Queue, watched: WatchedClock) -> None:
    queue.configure(capacity=None)
    waiting = [Running(partial(queue.deliver, None)) for _ in range(WAITERS)]
    watched.until_asleep(WAITERS)
    ids = queue.enqueue_many(range(WAITERS))
    leases = [one.result() for one in waiting]
    assert sorted(lease.id for lease in leases if lease is not None) == ids


def test_waiters_for_work_are_woken_when_a_delayed_job_is_due(queue: Queue, watched: WatchedClock) -> None:
    waiting = Running(partial(queue.deliver, None))
    watched.until_asleep()
    job_id = queue.enqueue("later", delay=5)
    watched.until_asleep()
    watched.advance(5)
    lease = waiting.result()
    assert lease is not None
    assert lease.id == job_id


def test_waiters_for_work_are_woken_when_somebody_elses_lease_ends(
    queue: Queue, watched: WatchedClock
) -> None:
    queue.enqueue("left behind")
    queue.deliver()
    waiting = Running(partial(queue.deliver, None))
    watched.until_asleep()
    watched.advance(LEASE_S)
    lease = waiting.result()
    assert lease is not None
    assert lease.redelivered


def test_waiters_for_work_all_leave_with_the_end_of_the_last_job(queue: Queue, watched: WatchedClock) -> None:
    with queue.producer():
        queue.enqueue("the last")
    lease = next_one(queue)
    waiting = [Running(partial(queue.deliver, None)) for _ in range(WAITERS)]
    watched.until_asleep(WAITERS)
    queue.ack(lease)
    assert [one.result() for one in waiting] == [None] * WAITERS


def test_waiters_for_work_all_leave_when_the_last_producer_finishes_an_empty_queue(
    queue: Queue, watched: WatchedClock
) -> None:
    producer = queue.producer()
    waiting = [Running(partial(queue.deliver, None)) for _ in range(WAITERS)]
    watched.until_asleep(WAITERS)
    producer.finish()
    assert [one.result() for one in waiting] == [None] * WAITERS


class ArrivesMeanwhile:
    """A store where another job arrives right after the first claim that found one."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._has_arrived = False

    def __getattr__(self, name: str) -> Any:
        return getattr(self._store, name)

    def claim(self, queues: Sequence[str], limit: int, **options: Any) -> list[Lease]:
        leases = self._store.claim(queues, limit, **options)
        if leases and not self._has_arrived:
            self._has_arrived = True
            put_one(self._store)
        return leases


def test_a_waiter_that_has_its_job_passes_a_later_wake_up_on(store: Store, clock: ManualClock) -> None:
    edge, local = Edge(ArrivesMeanwhile(store), clock), LocalQueue(store, Q)

    def waiter() -> Stepped:
        return Stepped(edge, flows.deliver(local, Q, 1, worker="w", lease_s=LEASE_S, timeout_s=None))

    first, second = waiter(), waiter()
    put_one(store)
    assert (first.is_woken, second.is_woken) == (True, False)
    first.go()
    assert len(first.answer) == 1
    assert second.is_woken
    second.go()
    assert len(second.answer) == 1


# Both, with a crowd


def test_a_crowd_on_one_queue_finishes_every_job_and_everybody_leaves(kind: StorageKind) -> None:
    with Queue(kind.url(), capacity=4, visibility_timeout=0.002, max_attempts=50) as queue:
        producers = [queue.producer() for _ in range(4)]
        acked: list[int] = []

        def produce(number: int) -> list[int]:
            with producers[number]:
                return [queue.enqueue(number, number, timeout=PATIENCE_S) for _ in range(50)]

        def consume(number: int) -> None:
            for _ in range(5_000):
                lease = queue.deliver(PATIENCE_S)
                if lease is None:
                    return
                match (lease.id + number) % 5:
                    case 0 if lease.attempt < 5:
                        queue.nack(lease)
                    case 1:
                        queue.extend(lease, 0.002)
                        acked.extend([lease.id] * bool(queue.ack(lease)))
                    case _:
                        acked.extend([lease.id] * bool(queue.ack(lease)))
                        acked.extend([lease.id] * bool(queue.ack(lease)))
            raise AssertionError("deliveries have no end")

        making = [Running(partial(produce, number)) for number in range(4)]
        working = [Running(partial(consume, number)) for number in range(4)]
        ids = [job_id for one in making for job_id in one.result()]
        for one in working:
            one.result()
        assert sorted(acked) == sorted(ids)
        now = queue.counts()
        assert (now.open, now.acked, now.total) == (0, len(ids), len(ids))
        assert now.totals.processed == now.totals.succeeded + now.totals.failed
        assert now.totals.failed == now.totals.retries
