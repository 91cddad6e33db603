"""What the first system states of itself, over two hundred seeded runs each; on a server fewer."""

import random
import threading

import pytest

from tests.support.threads import Running
from tests.support.waiting import WAIT_S, eventually
from ulak import Outcome, Terminal

STEPS = 40
LEASE_S = 30


class Seed:
    """The first system in plain dicts, written from its description and not from the code under test.

    One rule is ulak's own: a delivery first reclaims what is past its deadline.
    """

    def __init__(self, max_attempts):
        self.max_attempts = max_attempts
        self.jobs = {}

    def enqueue(self, job_id, priority):
        self.jobs[job_id] = {"state": "pending", "priority": priority, "attempts": 0, "generation": 0}

    def deliver(self, now):
        self.tick(now)
        pending = [
            (-job["priority"], job_id) for job_id, job in self.jobs.items() if job["state"] == "pending"
        ]
        if not pending:
            return None
        job_id = min(pending)[1]
        self.jobs[job_id].update(state="inflight", deadline=now + LEASE_S)
        return job_id, self.jobs[job_id]["generation"]

    def settle(self, lease, *, ack):
        job = self.jobs[lease[0]]
        if job["state"] != "inflight" or job["generation"] != lease[1]:
            return Outcome.STALE
        if ack:
            job["state"] = "acked"
        else:
            self.fail(job)
        return Outcome.OK

    def fail(self, job):
        job["attempts"] += 1
        job["generation"] += 1
        job["state"] = "dead" if job["attempts"] >= self.max_attempts else "pending"

    def tick(self, now):
        return self.reclaim(lambda job: job["deadline"] <= now)

    def crash(self):
        return self.reclaim(lambda job: True)

    def reclaim(self, which):
        lost = [job for job in self.jobs.values() if job["state"] == "inflight" and which(job)]
        for job in lost:
            self.fail(job)
        return len(lost)

    def count(self, state):
        return sum(job["state"] == state for job in self.jobs.values())


class Run:
    """A random run on a queue and on the model beside it. Every answer must be the same.

    events: what happened, as (operation, id or None, outcome).
    """

    def __init__(self, seed, make, clock):
        self.rng = random.Random(seed)
        self.clock = clock
        self.model = Seed(max_attempts=self.rng.randint(1, 4))
        self.queue = make(f"run-{seed}", max_attempts=self.model.max_attempts, visibility_timeout=LEASE_S)
        self.leases = []
        self.events = []

    def steps(self, count=STEPS):
        """Do random operations, and give the caller a look after each."""
        operations = [self.enqueue, self.deliver, self.ack, self.nack, self.wait, self.tick, self.crash]
        for _ in range(count):
            (operation,) = self.rng.choices(operations, weights=[6, 8, 4, 4, 2, 2, 1])
            operation()
            yield self

    def enqueue(self):
        priority = self.rng.randint(0, 3)
        job_id = self.queue.enqueue({"priority": priority}, priority)
        self.model.enqueue(job_id, priority)
        self.events.append(("enqueue", job_id, priority))

    def deliver(self):
        lease, expected = self.queue.deliver(), self.model.deliver(self.clock.interval())
        assert (None if lease is None else lease.id) == (None if expected is None else expected[0])
        if lease is not None:
            assert lease.payload == {"priority": lease.priority}
            assert lease.attempt == self.model.jobs[lease.id]["attempts"] + 1
            self.leases.append((lease, expected))
            self.events.append(("deliver", lease.id, None))

    def settle(self, *, ack):
        if self.leases:
            lease, expected = self.rng.choice(self.leases)
            outcome = self.queue.ack(lease) if ack else self.queue.nack(lease)
            assert outcome is self.model.settle(expected, ack=ack)
            self.events.append(("ack" if ack else "nack", lease.id, outcome))

    def ack(self):
        self.settle(ack=True)

    def nack(self):
        self.settle(ack=False)

    def wait(self):
        self.clock.advance(self.rng.choice([1, LEASE_S / 2, LEASE_S]))

    def tick(self):
        assert self.queue.tick_timeouts() == self.model.tick(self.clock.interval())

    def crash(self):
        assert self.queue.crash() == self.model.crash()
        self.events.append(("crash", None, None))


@pytest.fixture
def runs(make, clock, kind):
    """All the seeded runs, not begun yet."""
    return (Run(seed, make, clock) for seed in range(kind.examples))


def test_every_answer_is_the_one_of_the_first_system(runs):
    terminals = {"acked": Terminal.ACKED, "dead": Terminal.DEAD, "pending": None, "inflight": None}
    for run in runs:
        for _ in run.steps():
            counts, model = run.queue.counts(), run.model
            assert (counts.pending, counts.leased) == (model.count("pending"), model.count("inflight"))
            assert (counts.acked, counts.dead) == (model.count("acked"), model.count("dead"))
        for job_id, job in run.model.jobs.items():
            assert run.queue.terminal_of(job_id) is terminals[job["state"]]


def test_SAFE_1_what_is_acked_is_never_delivered_again(runs):
    for run in runs:
        for _ in run.steps():
            pass
        run.crash()
        while run.queue.counts().pending:
            run.deliver()
        acked = set()
        for operation, job_id, outcome in run.events:
            assert operation != "deliver" or job_id not in acked
            if operation == "ack" and outcome is Outcome.OK:
                acked.add(job_id)


def test_SAFE_2_an_ack_succeeds_at_most_once(runs):
    for run in runs:
        for _ in run.steps():
            pass
        # Every lease ever given is tried twice more, in the end.
        for lease, _ in run.leases * 2:
            run.events.append(("ack", lease.id, run.queue.ack(lease)))
        won = [
            job_id for operation, job_id, outcome in run.events if (operation, outcome) == ("ack", Outcome.OK)
        ]
        assert len(won) == len(set(won)) == run.queue.counts().acked


def test_SAFE_3_a_crash_loses_nothing_that_was_in_flight(runs):
    for run in runs:
        for _ in run.steps():
            pass
        before, flying = run.queue.counts(), {info.id: info for info in run.queue.jobs(state="leased")}
        assert run.queue.crash() == len(flying)
        for job_id, info in flying.items():
            after = run.queue.get(job_id)
            assert after.state == ("dead" if info.attempt == info.max_attempts else "ready")
            assert after.payload == info.payload
        assert run.queue.counts().total == before.total
        assert run.queue.counts().leased == 0


def test_SAFE_4_the_states_sum_to_all_ever_enqueued(runs):
    for run in runs:
        enqueued = 0
        for _ in run.steps():
            enqueued = sum(operation == "enqueue" for operation, _, _ in run.events)
            counts = run.queue.counts()
            assert counts.pending + counts.leased + counts.acked + counts.dead == enqueued == counts.total


def test_SAFE_5_priority_then_fifo(make, kind):
    for seed in range(kind.examples):
        rng = random.Random(seed)
        queue = make(f"order-{seed}")
        priorities = [rng.randint(0, 3) for _ in range(rng.randint(0, 12))]
        for number, priority in enumerate(priorities):
            queue.enqueue(number, priority)
        expected = sorted(range(len(priorities)), key=lambda number: (-priorities[number], number))
        assert [queue.deliver().payload for _ in priorities] == expected
        assert queue.deliver() is None


def test_LIVE_1_under_endless_failure_every_job_ends(make, clock, kind):
    for seed in range(kind.examples):
        rng = random.Random(seed)
        max_attempts, jobs = rng.randint(1, 5), rng.randint(1, 8)
        queue = make(f"live-{seed}", max_attempts=max_attempts, visibility_timeout=LEASE_S)
        ids = [queue.enqueue("poison", rng.randint(0, 3)) for _ in range(jobs)]
        deliveries = 0
        while (lease := queue.deliver()) is not None:
            deliveries += 1
            failure = rng.choice(["nack", "time-out", "crash"])
            if failure == "nack":
                queue.nack(lease)
            elif failure == "crash":
                queue.crash()
            else:
                clock.advance(LEASE_S)
        queue.tick_timeouts()
        assert deliveries == jobs * max_attempts
        assert {queue.terminal_of(job_id) for job_id in ids} == {Terminal.DEAD}


def test_under_random_failure_every_job_ends_acked_or_dead(runs):
    for run in runs:
        for _ in run.steps():
            pass
        run.crash()
        while run.queue.counts().open:
            run.leases.clear()
            run.deliver()
            run.settle(ack=run.rng.random() < 0.3)
        counts = run.queue.counts()
        assert (counts.open, counts.acked + counts.dead) == (0, counts.total)


@pytest.mark.parametrize("point", range(9))
def test_a_crash_at_any_point_loses_nothing(make, point):
    # Eight steps on four jobs; the crash comes after `point` of them.
    queue = make()
    ids = queue.enqueue_many(["a", "b", "c", "d"])
    leases = []
    for step in ["deliver", "deliver", "ack", "deliver", "ack", "deliver", "ack", "ack"][:point]:
        if step == "deliver":
            leases.append(queue.deliver())
        else:
            assert queue.ack(leases.pop(0)) is Outcome.OK
    assert queue.crash() == len(leases)
    while (lease := queue.deliver()) is not None:
        assert queue.ack(lease) is Outcome.OK
    assert [queue.terminal_of(job_id) for job_id in ids] == [Terminal.ACKED] * 4


def test_threads_ack_each_job_once(make):
    queue = make()
    ids = queue.enqueue_many([str(number) for number in range(500)])
    start = threading.Barrier(8, timeout=WAIT_S)

    def work():
        mine = []
        start.wait()
        while (lease := queue.deliver()) is not None:
            assert queue.ack(lease) is Outcome.OK
            mine.append(lease.id)
        return mine

    workers = [Running(work) for _ in range(8)]
    acked = [job_id for worker in workers for job_id in worker.result()]
    assert sorted(acked) == ids
    assert queue.counts().acked == 500


def test_threads_that_do_everything_at_once_keep_the_books(make, clock):
    # Producers, consumers that ack, nack or abandon, a sweeper and a crasher, all at the same time.
    queue = make(max_attempts=3)
    start = threading.Barrier(6, timeout=WAIT_S)
    ended = threading.Event()

    def produce():
        start.wait()
        for number in range(200):
            queue.enqueue(number, number % 4)

    def consume(seed):
        rng, won = random.Random(seed), []
        start.wait()
        while not ended.is_set():
            lease = queue.deliver()
            if lease is not None and rng.random() < 0.6 and queue.ack(lease) is Outcome.OK:
                won.append(lease.id)
            elif lease is not None and rng.random() < 0.5:
                queue.nack(lease)
        return won

    def sweep():
        start.wait()
        while not ended.is_set():
            clock.advance(1)
            queue.tick_timeouts()
            queue.crash()

    producers = [Running(produce) for _ in range(2)]
    consumers = [Running(lambda seed=seed: consume(seed)) for seed in range(3)]
    sweeper = Running(sweep)
    for producer in producers:
        producer.result()
    eventually(lambda: queue.counts().open == 0)
    ended.set()
    sweeper.result()
    won = [job_id for consumer in consumers for job_id in consumer.result()]
    counts = queue.counts()
    assert len(won) == len(set(won)) == counts.acked
    assert (counts.acked + counts.dead, counts.total) == (400, 400)
