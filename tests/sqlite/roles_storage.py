"""What the child processes of the tests of storage faults do."""

from __future__ import annotations

import contextlib
import itertools
import json
import os
import random
import signal
import sqlite3
import sys
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from tests.support.children import Parent, end_with
from tests.support.roles import LONG_S, QUEUE, die
from tests.support.waiting import WAIT_S, eventually
from ulak import Closed, Outcome, Queue
from ulak.core import flows
from ulak.core.store import Until
from ulak.storage.drive import run

# Many threads of many processes


def contend(parent: Parent, url: str, threads: int, jobs: int) -> None:
    """Enqueue, deliver and ack in several threads at once, and tell what was done."""
    with Queue(url, QUEUE, visibility_timeout=LONG_S) as q:
        q.counts()
        parent.say("ready")
        parent.wait_for("go")
        with ThreadPoolExecutor(threads) as pool:
            parts = list(pool.map(lambda _: _contend(q, jobs), range(threads)))
        parent.say("enqueued", [job_id for enqueued, _, _ in parts for job_id in enqueued])
        parent.say("acked", [job_id for _, acked, _ in parts for job_id in acked])
        parent.say("longest", max(longest for *_, longest in parts))


def _contend(q: Queue, jobs: int) -> tuple[list[int], list[int], float]:
    enqueued, acked, longest = [], [], 0.0
    for number in range(jobs):
        begun = time.monotonic()
        enqueued.append(q.enqueue(number))
        lease = q.deliver(timeout=WAIT_S)
        assert lease is not None
        assert q.ack(lease) is Outcome.OK
        acked.append(lease.id)
        longest = max(longest, time.monotonic() - begun)
    return enqueued, acked, longest


def hold_the_write_lock(parent: Parent, path: str, duration_s: float) -> None:
    """Be another program that keeps the file to itself for so long."""
    with contextlib.closing(sqlite3.connect(path, isolation_level=None, timeout=WAIT_S)) as db:
        parent.wait_for("hold")
        db.execute("BEGIN EXCLUSIVE")
        parent.say("held")
        time.sleep(duration_s)
        db.execute("ROLLBACK")
    parent.say("let go")


# Forks


def fork_often(parent: Parent, url: str, times: int) -> None:
    """Fork with an open queue, a lease and a producer, while another thread writes; use both sides."""
    q = Queue(url, QUEUE, visibility_timeout=LONG_S)
    first = q.enqueue("the parent's", priority=9)
    lease = q.deliver()
    assert lease is not None
    assert lease.id == first
    producer = q.producer()
    ends, enqueued = threading.Event(), list[int]()
    writing = threading.Thread(target=_enqueue_until, args=(q, ends, enqueued), daemon=True)
    writing.start()
    statuses = [_fork_once(parent, q, number) for number in range(times)]
    ends.set()
    writing.join(WAIT_S)
    producer.finish()
    parent.say("statuses", statuses)
    parent.say("enqueued", enqueued)
    parent.say("acked", q.ack(lease).value)
    q.close()


def _enqueue_until(q: Queue, ends: threading.Event, enqueued: list[int]) -> None:
    while not ends.is_set():
        enqueued.append(q.enqueue("the parent's"))
        # As long as a commit takes, so that forks meet both: a transaction under way, and none.
        ends.wait(0.001)


def _fork_once(parent: Parent, q: Queue, number: int) -> int:
    parent_pid = os.getpid()
    pid = os.fork()
    if pid == 0:
        end_with(parent_pid)
        _use_in_child(parent, q, number)
        # The interpreter's normal end, whether the queue was closed or not.
        sys.exit(0)
    q.enqueue("the parent's")
    _, status = os.waitpid(pid, 0)
    return status


def _use_in_child(parent: Parent, q: Queue, number: int) -> None:
    """Whatever a child does with a queue it did not open: nothing here is its parent's."""
    mine = q.enqueue(f"child {number}", priority=5)
    lease = q.deliver(timeout=WAIT_S)
    assert lease is not None
    if number % 3:
        assert q.ack(lease) is Outcome.OK
    # Else it is handed back by the close, or found to be a dead process's.
    q.mark_producer_finished()
    try:
        q.enqueue("after its only producer has finished")
    except Closed:
        parent.say("child", [mine, lease.id, number % 3 != 0])
    if number % 2:
        q.close()


def stand_in_line_in_a_fork(parent: Parent, url: str) -> None:
    """In a child of a process whose queue is open: who waits for more room stands before who needs less."""
    q = Queue(url, QUEUE, visibility_timeout=LONG_S, capacity=2)
    q.enqueue("first", priority=9)
    parent.say("status", _in_a_fork(_stand_in_line, q))
    parent.say("stored", [job.payload for job in q.jobs()])
    q.close()


def _stand_in_line(q: Queue) -> None:
    lease = q.deliver()
    assert lease is not None
    with ThreadPoolExecutor(2) as pool:
        large = pool.submit(q.enqueue_many, ["large", "large"])
        room = q._edge.store.line(Until.ROOM, QUEUE)
        eventually(lambda: len(room) == 1)
        small = pool.submit(q.enqueue, "small")
        eventually(lambda: len(room) == 2 or small.done())
        q.ack(lease)
        large.result(WAIT_S)
        for _ in range(2):
            q.ack(q.deliver(timeout=WAIT_S))
        small.result(WAIT_S)


def wait_for_an_end_in_a_fork(parent: Parent, url: str) -> None:
    """A job is waited for in a process and in its forked child; each has lines of its own, and is woken."""
    q = Queue(url, QUEUE, visibility_timeout=LONG_S)
    q.enqueue("awaited")
    lease = q.deliver()
    assert lease is not None
    with ThreadPoolExecutor(1) as pool:
        mine = pool.submit(_end_of, q, lease.id)
        eventually(lambda: len(q._edge.store.ends(lease.id)) == 1)
        reader, writer = os.pipe()
        parent_pid, pid = os.getpid(), os.fork()
        if pid == 0:
            with contextlib.suppress(BaseException):
                end_with(parent_pid)
                _wait_in_a_fork(q, lease.id, writer)
                os._exit(0)
            os._exit(1)
        assert os.read(reader, 1) == b"w"
        parent.say("acked", q.ack(lease).value)
        parent.say("status", os.waitpid(pid, 0)[1])
        parent.say("mine", mine.result(WAIT_S))
    q.close()


def _end_of(q: Queue, job_id: int) -> str:
    job = run(q._edge, flows.wait_end(job_id, timeout_s=None))
    return "none" if job is None else job.state.value


def _wait_in_a_fork(q: Queue, job_id: int, writer: int) -> None:
    store = q._edge.store
    assert len(store.ends(job_id)) == 0, "the parent's waiter stands in the child's line"
    # It stands in line before it has a connection of its own.
    store.line(Until.READY, QUEUE).join(threading.Event())
    assert q.counts().leased == 1
    eventually(lambda: any(thread.name == "ulak-watch" for thread in threading.enumerate()))
    with ThreadPoolExecutor(1) as pool:
        ended = pool.submit(_end_of, q, job_id)
        eventually(lambda: len(store.ends(job_id)) == 1)
        os.write(writer, b"w")
        assert ended.result(WAIT_S) == "succeeded"


# Kills


def die_in_a_write_loop(parent: Parent, url: str, times: int, seed: int) -> None:
    """Kill a writer again and again in the midst of its writes; tell what it was told, and what is there."""
    rng = random.Random(seed)
    for number in range(times):
        returned = _killed_writer(url, number, rng.randint(0, 12))
        with Queue(url, QUEUE, visibility_timeout=LONG_S) as q:
            there = [job.payload for job in q.jobs(after=0, limit=100_000)]
            parent.say("life", [number, returned, [at for life, at in there if life == number]])


def _killed_writer(url: str, number: int, writes: int) -> list[int]:
    """Fork a writer, kill it once so many writes have returned; which had."""
    reader, writer = os.pipe()
    pid = os.fork()
    if pid == 0:
        with contextlib.suppress(BaseException):
            os.close(reader)
            _write_for_ever(url, number, writer)
        os._exit(1)
    os.close(writer)
    returned = []
    with os.fdopen(reader) as lines:
        if writes:
            returned = [json.loads(line) for line in itertools.islice(lines, writes)]
        os.kill(pid, signal.SIGKILL)
        # What it wrote before the kill, though not read yet; a line that was cut off was never said.
        returned += [json.loads(line) for line in lines if line.endswith("\n")]
    _, status = os.waitpid(pid, 0)
    assert status == signal.SIGKILL, status
    return returned


def _write_for_ever(url: str, number: int, writer: int) -> None:
    with Queue(url, QUEUE, visibility_timeout=LONG_S) as q:
        for at in itertools.count():
            q.enqueue([number, at])
            os.write(writer, b"%d\n" % at)


def die_while_acking(parent: Parent, url: str) -> None:
    """Have a forked child ack this process's lease, killed at each statement in turn; look, and repeat."""
    with Queue(url, QUEUE, visibility_timeout=LONG_S) as q:
        for number in itertools.count(1):
            q.enqueue(number)
            lease = q.deliver()
            assert lease is not None
            status = _in_a_fork(_ack_and_die, q, lease, number)
            assert status in (0, signal.SIGKILL), status
            known = q.acked_by(lease)
            parent.say("looked", [status, known, q.ack(lease).value, q.acked_by(lease), q.deliver() is None])
            if status == 0:
                return


def _in_a_fork(call: Callable[..., None], *arguments: Any) -> int:
    parent_pid = os.getpid()
    pid = os.fork()
    if pid == 0:
        with contextlib.suppress(BaseException):
            end_with(parent_pid)
            call(*arguments)
            os._exit(0)
        os._exit(1)
    return os.waitpid(pid, 0)[1]


def _ack_and_die(q: Queue, lease: Any, number: int) -> None:
    q.counts()
    reached = itertools.count(1)

    def on_statement(_: str) -> None:
        if next(reached) == number:
            die()

    writer: sqlite3.Connection = q._open().edge.store.link.writer  # type: ignore[attr-defined]
    writer.set_trace_callback(on_statement)
    q.ack(lease)


# Counting


def live_and_die(parent: Parent, url: str, seed: int, lives: int) -> None:
    """Do whatever can be done with a queue in one process after the other, each killed somewhere."""
    for number in range(lives):
        _in_a_fork(_live, url, random.Random(seed + number))
        parent.say("killed")
        parent.wait_for("go")


def _live(url: str, rng: random.Random) -> None:
    q = Queue(url, QUEUE, visibility_timeout=rng.choice((0.001, LONG_S)), max_attempts=2)
    q.counts()
    left = itertools.count()
    last = rng.randint(20, 400)

    def on_statement(_: str) -> None:
        if next(left) == last:
            die()

    store: Any = q._open().edge.store
    store.link.writer.set_trace_callback(on_statement)
    acts = _acts(q, rng)
    while True:
        rng.choice(acts)()


def _acts(q: Queue, rng: random.Random) -> list[Callable[[], Any]]:
    def with_lease(settle: Callable[[Any], Any]) -> Callable[[], Any]:
        def act() -> None:
            lease = q.deliver()
            if lease is not None:
                settle(lease)

        return act

    def some() -> list[int]:
        return [job.id for job in rng.sample(q.jobs(limit=1000), k=min(2, len(q.jobs(limit=1000))))]

    return [
        lambda: q.enqueue("x", rng.randint(0, 2)),
        lambda: q.enqueue("later", delay=rng.choice((0.001, LONG_S))),
        lambda: q.enqueue("expires", expires=0.001),
        lambda: q.enqueue("keyed", unique_key=str(rng.randint(0, 2)), idempotency_key=str(rng.random())),
        lambda: q.enqueue_many(["a", "b", "c"]),
        with_lease(q.ack),
        with_lease(q.ack),
        with_lease(q.nack),
        with_lease(lambda lease: q.nack(lease, delay=0.001)),
        with_lease(q.release),
        with_lease(lambda lease: None),
        q.tick_timeouts,
        lambda: q.crash() if rng.random() < 0.2 else 0,
        lambda: q.cancel(some()),
        lambda: q.redrive(some()),
        lambda: q.delete(some(), force=rng.random() < 0.5),
        q.prune,
    ]
