"""A life of a queue: enqueues, deliveries, settlements, operators' acts, drawn by a seed and written down."""

from __future__ import annotations

import itertools
import random
from collections.abc import Callable

from tests.faults.chronicle import Chronicle, Shown, Turn
from ulak import Lease, NewJob, Outcome, Queue
from ulak.core.job import State

MAX_ATTEMPTS = 2
LEASE_S = 3600.0
LATER_S = 86400.0

Now = Callable[[], int]


class Story:
    """One teller: a thread's operations on a queue it may share.

    name: tells its jobs from those of others. now: the moment of the tape.
    """

    def __init__(self, q: Queue, name: str, chronicle: Chronicle, now: Now, draw: random.Random) -> None:
        self.q = q
        self.chronicle = chronicle
        self._labels = (f"{name}-{n}" for n in itertools.count())
        self._now = now
        self._draw = draw
        self._leases: list[Lease] = []
        self._dead: list[str] = []
        self._acts: dict[Callable[[], None], int] = {
            self.enqueue: 30,
            self.enqueue_many: 4,
            self.deliver: 30,
            self.deliver_many: 4,
            self.ack: 16,
            self.ack_many: 4,
            self.nack: 10,
            self.extend: 6,
            self.release: 4,
            self.redrive: 5,
            self.cancel: 3,
        }

    def go_on(self, steps: int) -> None:
        """Do so many things."""
        for _ in range(steps):
            (act,) = self._draw.choices(list(self._acts), list(self._acts.values()))
            act()

    def leave(self) -> list[Lease]:
        """Hand out the leases that are held."""
        leases, self._leases = self._leases, []
        return leases

    def take_over(self, leases: list[Lease]) -> None:
        """Hold leases of another teller of the same queue."""
        self._leases += leases

    def give_up(self) -> None:
        """Release every lease, one by one: a close would do it too, but untold."""
        while self._leases:
            self.release()

    def enqueue(self) -> None:
        label = next(self._labels)
        begun = self._now()
        job_id = self.q.enqueue(label, priority=self._draw.randrange(3))
        self.chronicle.name(label, job_id)
        self._tell(begun, Turn.TAKEN, {label: Shown(State.READY, 0, 0)})

    def enqueue_many(self) -> None:
        labels = [next(self._labels) for _ in range(self._draw.randint(2, 6))]
        begun = self._now()
        ids = self.q.enqueue_many([NewJob(label, priority=1) for label in labels])
        for label, job_id in zip(labels, ids, strict=True):
            self.chronicle.name(label, job_id)
        self._tell(begun, Turn.TAKEN, dict.fromkeys(labels, Shown(State.READY, 0, 0)))

    def deliver(self) -> None:
        begun = self._now()
        lease = self.q.deliver()
        self._took(begun, [lease] if lease else [])

    def deliver_many(self) -> None:
        begun = self._now()
        self._took(begun, self.q.deliver_many(3))

    def _took(self, begun: int, leases: list[Lease]) -> None:
        self._leases += leases
        changes = {str(lease.payload): Shown(State.LEASED, lease.attempt, lease.delivery) for lease in leases}
        self._tell(begun, Turn.TAKEN, changes, is_synced=False)

    def ack(self) -> None:
        if self._leases:
            lease = self._pick()
            begun = self._now()
            assert self.q.ack(lease) is Outcome.OK
            self._settled(begun, lease, State.SUCCEEDED)

    def ack_many(self) -> None:
        leases, self._leases = self._leases[:3], self._leases[3:]
        if leases:
            begun = self._now()
            assert set(self.q.ack_many(leases)) == {Outcome.OK}
            changes = {
                str(lease.payload): Shown(State.SUCCEEDED, lease.attempt, lease.delivery) for lease in leases
            }
            self._tell(begun, Turn.SETTLED, changes)

    def nack(self) -> None:
        if self._leases:
            lease = self._pick()
            delay = self._draw.choice((None, None, LATER_S))
            begun = self._now()
            assert self.q.nack(lease, delay=delay, error="it broke") is Outcome.OK
            if lease.attempt == MAX_ATTEMPTS:
                self._dead.append(str(lease.payload))
                self._settled(begun, lease, State.DEAD)
            else:
                self._settled(begun, lease, State.READY if delay is None else State.SCHEDULED)

    def extend(self) -> None:
        if self._leases:
            assert self.q.extend(self._draw.choice(self._leases), LEASE_S) is Outcome.OK

    def release(self) -> None:
        if self._leases:
            lease = self._pick()
            begun = self._now()
            assert self.q.release(lease) is Outcome.OK
            self._settled(begun, lease, State.READY, spent=0)

    def redrive(self) -> None:
        if self._dead:
            label = self._dead.pop()
            delivery = self.chronicle.now(label).delivery
            begun = self._now()
            assert self.q.redrive(self.chronicle.id_of(label)).done
            self._tell(begun, Turn.ACTED_ON, {label: Shown(State.READY, 0, delivery)})

    def cancel(self) -> None:
        """Cancel a job that waits for its time: nobody else can take it meanwhile."""
        label = next(self._labels)
        begun = self._now()
        job_id = self.q.enqueue(label, delay=LATER_S)
        self.chronicle.name(label, job_id)
        self._tell(begun, Turn.TAKEN, {label: Shown(State.SCHEDULED, 0, 0)})
        begun = self._now()
        assert self.q.cancel(job_id).done
        self._tell(begun, Turn.ACTED_ON, {label: Shown(State.CANCELLED, 0, 0)})

    def _pick(self) -> Lease:
        return self._leases.pop(self._draw.randrange(len(self._leases)))

    def _settled(self, begun: int, lease: Lease, state: State, spent: int = 1) -> None:
        shown = Shown(state, lease.attempt - 1 + spent, lease.delivery)
        self._tell(begun, Turn.SETTLED, {str(lease.payload): shown})

    def _tell(self, begun: int, turn: Turn, changes: dict[str, Shown], *, is_synced: bool = True) -> None:
        self.chronicle.tell(begun, self._now(), turn, changes, is_synced=is_synced)


def make_queue(url: str) -> Queue:
    """The queue that stories are told of."""
    return Queue(url, name="mail", max_attempts=MAX_ATTEMPTS, visibility_timeout=LEASE_S)
