"""The run of a demo: one producer, a bounded queue, a pool of workers, failures by the seed, then a drain."""

from __future__ import annotations

import contextlib
import logging
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from queue import Empty, SimpleQueue
from typing import TypeAlias

from ulak import Backoff, Closed, Counts, JobInfo, Keep, Pool, Queue, Retention
from ulak.cli.demo_meter import Meter, Payload, RoomClock
from ulak.cli.demo_plan import DeadLetter, Plan, Result, Snapshot
from ulak.clock import SYSTEM
from ulak.failures import predict
from ulak.local import Producer

WATCH_EVERY_S = 0.1
END_LOOK_EVERY_S = 0.005
DEAD_LETTERS_SHOWN = 5
ENDED_KEPT = 1_000
"""How many succeeded jobs stay stored. Nobody looks at them, and so a long run needs little memory."""
KEPT_S = 90 * 86_400.0
"""How long ended jobs stay stored: longer than any demo."""

Note: TypeAlias = int | None
"""What wakes the thread that watches over a run: a signal's number, or None once the producer has ended."""


class Run:
    """One demo. `inbox` is where signals ask for a stop.

    Raises ConfigError and ArgumentError for a plan that cannot be, before anything starts.
    """

    def __init__(self, plan: Plan, inbox: SimpleQueue[Note], *, log_level: int = logging.WARNING) -> None:
        self._plan = plan
        self._inbox = inbox
        self._clock = RoomClock()
        self._meter = Meter(plan, log_level=log_level)
        self._stopping = threading.Event()
        self._before = Counts()
        self._started_at = 0.0
        self._producing_s = 0.0
        self._peak_open = 0
        self._first_id: int | None = None
        self._producer_died_of: BaseException | None = None
        self._queue = Queue(plan.url, "demo", max_attempts=plan.max_attempts, clock=self._clock)

    def go(self, watch: Callable[[Snapshot], None]) -> Result:
        """Run it to its end, or until a signal's number comes into the inbox.

        watch: is shown how far it is, ten times a second; what it raises stops the run at once.
        """
        plan, queue = self._plan, self._queue
        with queue, self._meter.listening():
            pool = queue.workers(self._meter.handle, count=plan.workers)
            producer = queue.producer()
            set_up(queue, plan)
            self._before, self._started_at = queue.counts(), SYSTEM.interval()
            thread = threading.Thread(target=self._produce, args=(producer,), name="ulak-demo-producer")
            try:
                self._meter.is_measuring = not self._before.open
                pool.start()
                stopped = self._finish_left(watch)
                if not stopped:
                    thread.start()
                    stopped = self._attend(pool, watch)
                self._stop(producer, pool, thread)
                watch(self._snapshot())
            except BaseException:
                self._stop(producer, pool, thread)
                raise
            if self._producer_died_of is not None:
                raise self._producer_died_of
            return self._result(pool, stopped=stopped)

    def _produce(self, producer: Producer) -> None:
        """Enqueue every job, in the producer's thread."""
        self._clock.measure_this_thread()
        try:
            for ordinal in range(1, self._plan.jobs + 1):
                self._enqueue(ordinal)
        except Closed:
            pass  # the run is being stopped
        except BaseException as error:  # noqa: BLE001 - the thread that watches over the run raises it
            self._producer_died_of = error
        self._producing_s = SYSTEM.interval() - self._started_at
        producer.finish()
        self._inbox.put(None)

    def _enqueue(self, ordinal: int) -> None:
        due_at = SYSTEM.interval()
        if self._plan.rate:
            scheduled_at = self._started_at + (ordinal - 1) / self._plan.rate
            if scheduled_at > due_at:
                SYSTEM.wait(self._stopping, scheduled_at - due_at)
            due_at = scheduled_at
        payload: Payload = {"ordinal": ordinal, "due_at": due_at}
        job_id = self._queue.enqueue(payload, ordinal % self._plan.priorities)
        self._first_id = self._first_id or job_id
        self._meter.accepted(ordinal)
        self._peak_open = max(self._peak_open, self._queue.counts().open)

    def _finish_left(self, watch: Callable[[Snapshot], None]) -> bool:
        """Wait until what an earlier run has left open is done (False), or a signal came (True)."""
        while self._before.open and self._queue.counts().open:
            watch(self._snapshot())
            with contextlib.suppress(Empty):
                self._inbox.get(timeout=WATCH_EVERY_S)
                return True
        self._meter.is_measuring = True
        self._started_at = SYSTEM.interval()
        return False

    def _attend(self, pool: Pool, watch: Callable[[Snapshot], None]) -> bool:
        """Wait until the workers have left, since all is done (False), or a signal came (True)."""
        look_every_s, watch_at = WATCH_EVERY_S, 0.0
        while pool.size:
            if SYSTEM.interval() >= watch_at:
                watch(self._snapshot())
                watch_at = SYSTEM.interval() + WATCH_EVERY_S
            try:
                note = self._inbox.get(timeout=look_every_s)
            except Empty:
                continue
            if note is not None:
                return True
            look_every_s = END_LOOK_EVERY_S
        return False

    def _stop(self, producer: Producer, pool: Pool, thread: threading.Thread) -> None:
        """Bring producer and workers to their end. An enqueue that waits for room raises Closed."""
        self._stopping.set()
        self._meter.is_ending = True
        producer.finish()
        with contextlib.suppress(Closed):  # it never started
            pool.shutdown()
        if thread.ident is not None:
            thread.join()

    def _snapshot(self) -> Snapshot:
        counts = self._queue.counts()
        elapsed_s = SYSTEM.interval() - self._started_at
        return Snapshot(
            elapsed_s=elapsed_s,
            ended=ended(counts) - ended(self._before),
            open=counts.open,
            retrying=counts.scheduled,
            blocked_s=self._clock.slept_s,
            producing_s=self._producing_s or elapsed_s,
        )

    def _result(self, pool: Pool, *, stopped: bool) -> Result:
        plan, metrics, counts, before = self._plan, pool.metrics(), self._queue.counts(), self._before
        dead = self._queue.jobs("dead", after=(self._first_id or 1) - 1, limit=DEAD_LETTERS_SHOWN)
        is_foretold = not stopped and before.open == 0
        ended_at = SYSTEM.interval() if stopped else self._meter.last_settled_at
        return Result(
            plan=plan,
            stopped=stopped,
            enqueued=metrics.enqueued,
            processed=metrics.processed,
            succeeded=metrics.succeeded,
            failed=metrics.failed,
            retries=metrics.retries,
            dead_lettered=metrics.dead_lettered,
            reclaimed=metrics.reclaimed,
            stale=metrics.stale,
            rejected=metrics.rejected,
            open=counts.open - before.open,
            # Where earlier ones were pruned meanwhile, this is the least that can have been kept.
            dead_kept=max(0, counts.dead - before.dead),
            dead_letters=tuple(dead_letter(job) for job in dead),
            latency=self._meter.latency(),
            predicted=predict(plan.seed, plan.jobs, plan.max_attempts, plan.fail_rate)
            if is_foretold
            else None,
            peak_open=self._peak_open,
            producing_s=self._producing_s,
            blocked_s=self._clock.slept_s,
            elapsed_s=max(0.0, ended_at - self._started_at),
            peak_rss_bytes=peak_rss_bytes(),
        )


def set_up(queue: Queue, plan: Plan) -> None:
    """Give the queue the plan's settings, whatever an earlier run has stored."""
    kept = Keep(ENDED_KEPT, KEPT_S)
    dead = Keep(sys.maxsize if plan.keep_dead is None else plan.keep_dead, KEPT_S)
    queue.configure(
        capacity=plan.capacity,
        backoff=Backoff(plan.base_s, plan.cap_s),
        retention=Retention(succeeded=kept, dead=dead, cancelled=kept, expired=kept),
    )


def ended(counts: Counts) -> int:
    """How many jobs have ever ended in a demo, where nobody cancels any."""
    return counts.totals.succeeded + counts.totals.dead_lettered


def dead_letter(job: JobInfo) -> DeadLetter:
    """What is shown of a dead job. A process that was killed has not said what went wrong."""
    error = job.history[-1].error
    return DeadLetter(
        job.id, job.attempt, "lost with its process" if error is None else f"{error.type}: {error.text}"
    )


def peak_rss_bytes(status: Path = Path("/proc/self/status")) -> int | None:
    """The most memory this process has had resident; None where the system does not tell."""
    with contextlib.suppress(OSError, ValueError):  # no such file, or no such line in it
        # Linux counts into ru_maxrss what the process was before its exec, too, which is the size of whoever
        # started it; this is of the program alone.
        (line,) = (line for line in status.read_text("ascii").splitlines() if line.startswith("VmHWM:"))
        return int(line.split()[1]) * 1024
    try:
        import resource
    except ImportError:
        return None
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else peak * 1024
