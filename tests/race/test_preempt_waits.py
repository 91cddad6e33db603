"""Those who wait, under controlled preemption: no wake-up is lost, however the threads meet.

No time passes in a run, and a waiter that nobody wakes sleeps for ever: then all threads wait, and the
scheduler reports a deadlock. So what a second look would hide a second later is found here.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import pytest

from tests.contract.steps import Q
from tests.race.controlled import controlled
from tests.race.preempt import Plan
from tests.race.races import seeds
from ulak import Closed, Lease, Outcome, Queue, QueueFull
from ulak.core import flows
from ulak.core.job import ENDED, Done, State
from ulak.core.store import Until
from ulak.storage.drive import run
from ulak.testing import ManualClock

LENGTH = (600, 40)
SEEDS = seeds(60)

_numbers = itertools.count(1)

Call = Callable[[], Any]
Check = Callable[[Sequence[Any]], None]


class Bench:
    """A queue on a clock that nobody moves but a thread of the race."""

    def __init__(self, capacity: int | None = None) -> None:
        self.clock = ManualClock()
        self.queue = Queue("memory://", Q, clock=self.clock, capacity=capacity)

    def lease(self, payload: bytes = b"there first", **options: Any) -> Lease:
        """A job that is leased."""
        self.queue.enqueue(payload, 9, **options)
        return taken(self.queue)

    def open_is(self, jobs: int) -> Check:
        """All are answered, and so many jobs are open."""

        def check(answers: Sequence[Any]) -> None:
            assert self.queue.counts().open == jobs, answers

        return check


def or_refused(call: Call) -> Call:
    """The call's answer, or the class of what it raised."""

    def told() -> Any:
        try:
            return call()
        except (Closed, QueueFull) as error:
            return type(error)

    return told


def in_order(*calls: Call) -> Call:
    """Make the calls one after the other."""

    def make() -> list[Any]:
        return [call() for call in calls]

    return make


@dataclass(frozen=True)
class Case:
    """What the threads do, and what must hold when all have ended."""

    threads: Sequence[Call]
    check: Check


# Room


def room_by(make_room: Callable[[Queue, Lease], Any]) -> Callable[[], Case]:
    """One waits for the room that another makes."""

    def case() -> Case:
        bench = Bench(capacity=1)
        lease = bench.lease(max_attempts=1)
        waits = partial(bench.queue.enqueue, b"waits")
        is_more = make_room in (_raise_capacity, _unbound)
        return Case([waits, partial(make_room, bench.queue, lease)], bench.open_is(1 + is_more))

    return case


def _raise_capacity(queue: Queue, _: Lease) -> None:
    queue.configure(capacity=2)


def _unbound(queue: Queue, _: Lease) -> None:
    queue.configure(capacity=None)


def _delete(queue: Queue, lease: Lease) -> None:
    queue.delete(lease.id, force=True)


def _release_and_cancel(queue: Queue, lease: Lease) -> None:
    queue.release(lease)
    queue.cancel(lease.id)


def two_wait_for_one_batch() -> Case:
    bench = Bench(capacity=2)
    leases = [bench.lease(), bench.lease()]
    waits = partial(bench.queue.enqueue, b"waits")
    return Case([waits, waits, partial(bench.queue.ack_many, leases)], bench.open_is(2))


def one_waits_behind_a_batch() -> Case:
    bench = Bench(capacity=3)
    leases = [bench.lease() for _ in range(3)]
    batch, single = partial(bench.queue.enqueue_many, [b"x", b"y"]), partial(bench.queue.enqueue, b"z")
    acks = in_order(*(partial(bench.queue.ack, lease) for lease in leases))
    return Case([batch, single, acks], bench.open_is(3))


def a_newcomer_tries_while_one_waits() -> Case:
    bench = Bench(capacity=1)
    queue, lease = bench.queue, bench.lease()

    def try_it() -> None:
        if queue.try_enqueue(b"tries", 9):
            taken = queue.deliver()
            assert taken is not None
            queue.ack(taken)

    return Case([partial(queue.enqueue, b"waits"), partial(queue.ack, lease), try_it], bench.open_is(1))


def a_newcomer_comes_while_one_waits() -> Case:
    """Whoever waited when the newcomer came is served first."""
    queue = Bench(capacity=1).queue
    queue.enqueue(b"there first")
    lease = taken(queue)
    line = queue._edge.store.line(Until.ROOM, Q)

    def come() -> tuple[int, int]:
        return len(line), queue.enqueue(b"comes")

    def make_room() -> None:
        queue.ack(lease)
        next_one = queue.deliver(None)
        assert next_one is not None
        queue.ack(next_one)

    def check(answers: Sequence[Any]) -> None:
        waited, newcomer = answers[1]
        assert not waited or answers[0] < newcomer

    return Case([partial(queue.enqueue, b"waits"), come, make_room], check)


def one_waits_no_longer() -> Case:
    bench = Bench(capacity=2)
    one, other = bench.lease(), bench.lease()
    queue = bench.queue
    waits = [or_refused(partial(queue.enqueue, b"short", timeout=5)), partial(queue.enqueue, b"long")]
    acks = in_order(partial(queue.ack, one), partial(queue.ack, other))

    def check(answers: Sequence[Any]) -> None:
        assert queue.counts().open == 2 - (answers[0] is QueueFull)

    return Case([*waits, acks, partial(bench.clock.advance, 5.0)], check)


def all_producers_finish_while_two_wait() -> Case:
    bench = Bench(capacity=1)
    bench.lease()
    waits = or_refused(partial(bench.queue.enqueue, b"waits"))

    def check(answers: Sequence[Any]) -> None:
        assert answers[:2] == [Closed, Closed]

    return Case([waits, waits, bench.queue.mark_producer_finished], check)


def the_first_in_line_closes() -> Case:
    stays, closes = two_handles(capacity=1)
    stays.enqueue(b"there first")
    lease = taken(stays)

    def come_and_go() -> None:
        stays.cancel(closes.enqueue(b"closes"))

    def check(_: Sequence[Any]) -> None:
        assert stays.counts().open == 1
        stays.close()

    waits = partial(stays.enqueue, b"stays")
    return Case([or_refused(come_and_go), waits, partial(stays.ack, lease), closes.close], check)


ROOM: dict[str, Callable[[], Case]] = {
    "an ack": room_by(Queue.ack),
    "a last nack": room_by(Queue.nack),
    "a delete": room_by(_delete),
    "a cancel": room_by(_release_and_cancel),
    "more capacity": room_by(_raise_capacity),
    "no bound": room_by(_unbound),
    "two wait for one batch": two_wait_for_one_batch,
    "one waits behind a batch": one_waits_behind_a_batch,
    "a newcomer tries while one waits": a_newcomer_tries_while_one_waits,
    "a newcomer comes while one waits": a_newcomer_comes_while_one_waits,
    "one waits no longer": one_waits_no_longer,
    "all producers finish while two wait": all_producers_finish_while_two_wait,
    "the first in line closes": the_first_in_line_closes,
}

# Work


def work_by(bring: Callable[[Queue, Lease], Any]) -> Callable[[], Case]:
    """One waits for the job that another brings."""

    def case() -> Case:
        bench = Bench()
        lease = bench.lease(max_attempts=1 if bring is _redrive else 5)

        def check(answers: Sequence[Any]) -> None:
            assert answers[0] is not None

        return Case([partial(bench.queue.deliver, None), partial(bring, bench.queue, lease)], check)

    return case


def _enqueue(queue: Queue, _: Lease) -> None:
    queue.enqueue(b"new")


def _redrive(queue: Queue, lease: Lease) -> None:
    queue.nack(lease)
    queue.redrive(lease.id)


def _pause_and_resume(queue: Queue, lease: Lease) -> None:
    queue.pause()
    queue.release(lease)
    queue.resume()


def two_wait_for_two(bring: Callable[[Queue], Any], *more: Callable[[Queue], Any]) -> Callable[[], Case]:
    """Two wait for the two jobs that one or two bring."""

    def case() -> Case:
        queue = Bench().queue
        waits = partial(queue.deliver, None)

        def check(answers: Sequence[Any]) -> None:
            assert sorted(lease.id for lease in answers[:2]) == [1, 2]

        return Case([waits, waits, *(partial(call, queue) for call in (bring, *more))], check)

    return case


def _enqueue_twice(queue: Queue) -> None:
    queue.enqueue(b"x")
    queue.enqueue(b"x")


def a_waiter_takes_two_of_three() -> Case:
    queue = Bench().queue

    def check(answers: Sequence[Any]) -> None:
        assert all(answers[:2])

    waits = partial(queue.deliver_many, 2, None)
    return Case([waits, waits, partial(queue.enqueue_many, [b"x"] * 3), partial(queue.enqueue, b"y")], check)


def the_end_of_all_work(*acks: Callable[[Queue, Lease], Any]) -> Case:
    """Two wait; the last producer finishes, and the last job too, if there is one."""
    bench = Bench()
    producer = bench.queue.producer()
    ends: list[Call] = [producer.finish, *(partial(ack, bench.queue, bench.lease()) for ack in acks)]

    def check(answers: Sequence[Any]) -> None:
        assert answers[:2] == [None, None]
        assert bench.queue.counts().open == 0

    waits = partial(bench.queue.deliver, None)
    return Case([waits, waits, *ends], check)


def _ack_many(queue: Queue, lease: Lease) -> None:
    queue.ack_many([lease])


def the_end_by(last: Callable[[Queue, int], Any]) -> Callable[[], Case]:
    """One waits, all producers have finished; then the last waiting job goes, or is set aside."""

    def case() -> Case:
        queue = Bench().queue
        job_id = queue.enqueue(b"later", delay=60)
        queue.mark_producer_finished()

        def check(answers: Sequence[Any]) -> None:
            assert answers[0] is None

        return Case([partial(queue.deliver, None), partial(last, queue, job_id)], check)

    return case


def one_of_two_who_wait_closes() -> Case:
    stays, closes = two_handles()

    def check(answers: Sequence[Any]) -> None:
        # What the other took came back with its close.
        assert answers[1].id == 1
        stays.close()

    waits = [or_refused(partial(queue.deliver, None)) for queue in (closes, stays)]
    return Case([*waits, partial(stays.enqueue, b"x"), closes.close], check)


WORK: dict[str, Callable[[], Case]] = {
    "an enqueue": work_by(_enqueue),
    "a nack": work_by(Queue.nack),
    "a release": work_by(Queue.release),
    "a redrive": work_by(_redrive),
    "a resume": work_by(_pause_and_resume),
    "two wait for a batch": two_wait_for_two(lambda queue: queue.enqueue_many([b"x"] * 2)),
    "two wait for one after the other": two_wait_for_two(_enqueue_twice),
    "two wait for two": two_wait_for_two(*[lambda queue: queue.enqueue(b"x")] * 2),
    "a waiter takes two of three": a_waiter_takes_two_of_three,
    "the last producer finishes": the_end_of_all_work,
    "the last job and the last producer finish": partial(the_end_of_all_work, Queue.ack),
    "the last batch and the last producer finish": partial(the_end_of_all_work, _ack_many),
    "the last job is cancelled": the_end_by(Queue.cancel),
    "the last job is deleted": the_end_by(Queue.delete),
    "the queue of the last job is paused": the_end_by(lambda queue, _: queue.pause()),
    "one of two who wait closes": one_of_two_who_wait_closes,
}

# The end of a job


def end_by(finish: Callable[[Queue, Lease], Any]) -> Callable[[], Case]:
    """Two wait for the end of one job, which another brings."""

    def case() -> Case:
        bench = Bench()
        queue, lease = bench.queue, bench.lease(max_attempts=1)
        waits = partial(await_end, queue, lease.id)

        def check(answers: Sequence[Any]) -> None:
            is_gone = finish is _delete
            assert answers[:2] == [None, None] if is_gone else all(job.state in ENDED for job in answers[:2])
            assert len(queue._edge.store.ends(lease.id)) == 0

        return Case([waits, waits, partial(finish, queue, lease)], check)

    return case


def await_end(queue: Queue, job_id: int) -> Any:
    return run(queue._edge, flows.wait_end(job_id, timeout_s=None))


def _ack_with_a_result(queue: Queue, lease: Lease) -> None:
    queue._edge.store.settle([(lease, Done(b"1"))])


def _cancel_and_nack(queue: Queue, lease: Lease) -> None:
    queue.cancel(lease.id)
    queue.nack(lease)


def two_wait_for_one_each() -> Case:
    bench = Bench()
    queue, leases = bench.queue, [bench.lease(), bench.lease()]
    waits = [partial(await_end, queue, lease.id) for lease in leases]

    def check(answers: Sequence[Any]) -> None:
        assert [job.id for job in answers[:2]] == [lease.id for lease in leases]

    return Case([*waits, *(partial(queue.ack, lease) for lease in leases)], check)


def one_leaves_when_another_comes() -> Case:
    """The last waiter's step out and another's step in meet: the line is not dropped with somebody in it."""
    bench = Bench()
    queue, lease = bench.queue, bench.lease()
    leaves = partial(run, queue._edge, flows.wait_end(lease.id, timeout_s=0.0))

    def check(answers: Sequence[Any]) -> None:
        assert answers[1].state is State.SUCCEEDED
        assert len(queue._edge.store.ends(lease.id)) == 0

    return Case([leaves, partial(await_end, queue, lease.id), partial(queue.ack, lease)], check)


END: dict[str, Callable[[], Case]] = {
    "an ack": end_by(Queue.ack),
    "an ack of many": end_by(_ack_many),
    "an ack with a result": end_by(_ack_with_a_result),
    "a last nack": end_by(Queue.nack),
    "a delete": end_by(_delete),
    "a cancel": end_by(_release_and_cancel),
    "a cancel while it runs": end_by(_cancel_and_nack),
    "two wait for one each": two_wait_for_one_each,
    "one leaves when another comes": one_leaves_when_another_comes,
}

# All of it


def a_small_crowd() -> Case:
    """Two producers of two jobs each and two consumers, on a queue that has room for one."""
    queue = Bench(capacity=1).queue
    producers = [queue.producer() for _ in range(2)]

    def produce(number: int) -> None:
        with producers[number]:
            for _ in range(2):
                queue.enqueue(b"x", number)

    def consume() -> int:
        done = 0
        while (lease := queue.deliver(None)) is not None:
            done += queue.ack(lease) is Outcome.OK
        return done

    def check(answers: Sequence[Any]) -> None:
        assert answers[2] + answers[3] == 4
        counts = queue.counts()
        assert (counts.open, counts.acked, counts.total) == (0, 4, 4)

    return Case([partial(produce, 0), partial(produce, 1), consume, consume], check)


def two_handles(capacity: int | None = None) -> tuple[Queue, Queue]:
    """Two handles on one queue."""
    clock = ManualClock()
    url = f"memory://preempted-waits-{next(_numbers)}"
    stays, closes = (Queue(url, Q, clock=clock, capacity=capacity) for _ in range(2))
    stays.counts()
    return stays, closes


def taken(queue: Queue) -> Lease:
    """The next job."""
    lease = queue.deliver()
    assert lease is not None
    return lease


def race(make: Callable[[], Case]) -> None:
    """Run a case under every seed. What its threads pass under the first tells where to stop them."""
    with controlled() as world:
        case = make()
        lengths = world.run(case.threads, Plan(0, [LENGTH] * len(case.threads), waiting=True)).lengths
        for seed in SEEDS:
            case = make()
            run = world.run(case.threads, Plan(seed, lengths, waiting=True))
            run.check()
            try:
                case.check(run.answers)
            except AssertionError as error:
                error.add_note(run.told())
                raise


@pytest.mark.parametrize("make", ROOM.values(), ids=ROOM)
def test_who_waits_for_room_is_woken(make: Callable[[], Case]) -> None:
    race(make)


@pytest.mark.parametrize("make", WORK.values(), ids=WORK)
def test_who_waits_for_work_is_woken(make: Callable[[], Case]) -> None:
    race(make)


@pytest.mark.parametrize("make", END.values(), ids=END)
def test_who_waits_for_the_end_of_a_job_is_woken(make: Callable[[], Case]) -> None:
    race(make)


def test_a_small_crowd_does_all_its_work_and_leaves() -> None:
    race(a_small_crowd)
