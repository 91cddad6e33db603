"""Runs jobs in processes of their own: one job at a time in each, and a process lost is one attempt lost."""

from __future__ import annotations

import asyncio
import itertools
import logging
import os
import threading

from ulak.clock import SYSTEM
from ulak.context import Context
from ulak.core import rules
from ulak.core.backoff import Backoff
from ulak.core.job import Cause, Failure, Lease
from ulak.core.rules import LOST
from ulak.errors import ConfigError
from ulak.worker.execute import Ending, Failed
from ulak.worker.nursery import REAP_S, Child, Closed, Errand, Nursery, Why
from ulak.worker.pulse import Pulse
from ulak.worker.tasks import Runnable, TaskHandler
from ulak.worker.wire import Broken, Ended, Garbled, Progress, Ready, Start, run_of

_log = logging.getLogger("ulak")

RESTARTS = Backoff(base=0.2, cap=5.0)
"""How long no process is started after one that could not start; the jobs wait, unspent."""

LEAVE_S = 3.0
"""How long processes may take to end in order when the pool ends; they run no job then."""

FAREWELL_S = 1.0
"""How long the end of a process may come after that of its pipe."""

TRIES_MAX = 3
"""How many processes in a row may die while they have no job, before the job at hand is told of it."""


class _Halted(Exception):
    """The pool ends, and what runs is handed back."""


class _NotStarted(Exception):
    """No process could be started; the text says why. delay_s: until one is tried again."""

    def __init__(self, reason: str, delay_s: float) -> None:
        super().__init__(reason)
        self.delay_s = delay_s


class Children:
    """What a pool runs for an App in processes, as `Runs` says.

    handler: what would run the tasks here; it knows what an error means for them. start: what each process
    is told first. Processes are started when they are needed, at most one for each worker, and kept.
    """

    is_async = False
    pulse: Pulse | None = None

    def __init__(self, handler: TaskHandler, start: Start) -> None:
        self.tasks = handler.tasks
        self._handler = handler
        self._start_frame = start
        self._clock = clock = handler.clock
        self._label = f"{start.modules[0].name}:{start.attribute}"
        self._nursery = Nursery(self._label, os.getcwd(), clock)  # noqa: PTH109 - a str
        self._numbers = itertools.count(1)
        self._lock = threading.Lock()
        # The last one used is used first, so that those not needed are left alone.
        self._idle: list[Child] = []
        self._is_halted = False
        # Whoever waits for the next try.
        self._pausing: set[threading.Event] = set()
        # Starts in a row that came to nothing, and until when no other is tried.
        self._failures = 0
        self._start_at = 0.0
        self._is_open = False

    def open(self, _: asyncio.AbstractEventLoop | None = None) -> None:
        """Start the first process. Raises ConfigError if it cannot run the App."""
        self._nursery.open()
        try:
            self._idle.append(self._begin())
        except _NotStarted as failed:
            self.close()
            raise ConfigError(f"executor='process' cannot run {self._label}: {failed}") from None
        except BaseException:
            self.close()
            raise
        self._is_open = True

    # One job

    def run(self, lease: Lease, context: Context) -> Ending:
        """Have a process run the job, and wait for it here."""
        try:
            return self._run(lease, context)
        except _Halted:
            return rules.give_back(Cause.SHUTDOWN)
        except _NotStarted as failed:
            # Not the job's fault; somebody else may be able to run it meanwhile.
            error = Failure("ConfigError", str(failed))
            return rules.give_back(Cause.RELEASE, delay_s=failed.delay_s, error=error)
        finally:
            context.ended = True

    async def arun(self, lease: Lease, context: Context) -> Ending:
        """The same, from an event loop."""
        return await asyncio.to_thread(self.run, lease, context)

    def _run(self, lease: Lease, context: Context) -> Ending:
        task = self._handler.by_name[lease.task or ""]
        limits = {"timeout_s": task.timeout_s, "kill_after_s": task.kill_after_s}
        text = ""
        for _ in range(TRIES_MAX):
            errand = Errand(next(self._numbers), context, **limits)
            child = self._borrow(errand)
            is_kept = False
            try:
                if not _sent(child, run_of(errand.number, lease)):
                    # It was dead already, so this job has not begun.
                    child.ended(FAREWELL_S)
                    text = (
                        f"{TRIES_MAX} processes ended before they could begin the job, the last {child.end}"
                    )
                    continue
                errand.begin(self._clock.interval())
                self._nursery.look_by(errand.kill_at)
                ending = _answer(child, errand)
                is_kept = ending is not None and child.drop()
            finally:
                self._put_back(child, is_kept=is_kept)
            return self._lost(child, errand, lease, task) if ending is None else ending
        return Failed(Cause.LOST, Failure(LOST, text))

    def _borrow(self, errand: Errand) -> Child:
        """A process that waits for a job, and gets this one. Raises _Halted, _NotStarted."""
        while True:
            with self._lock:
                self._go_on()
                child = self._idle.pop() if self._idle else None
                if child is not None:
                    child.take(errand)
            if child is None:
                child = self._begin()
                with self._lock:
                    self._idle.append(child)
                continue
            if child.is_alive:
                return child
            _log.warning("process %d of %s ended %s, while it had no job", child.pid, self._label, child.end)
            self._nursery.forget(child)

    def _put_back(self, child: Child, *, is_kept: bool) -> None:
        if not is_kept:
            self._nursery.forget(child)
            return
        with self._lock:
            self._idle.append(child)

    def _lost(self, child: Child, errand: Errand, lease: Lease, task: Runnable) -> Ending:
        """What the end of a process means for the job that it ran."""
        if child.killed is Why.HALTED:
            raise _Halted
        context = errand.context
        # It may have committed the end of its job itself, and died before it could say so.
        context.acked = True
        _log.warning(
            "process %d of %s ended %s while it ran job %d (%s)%s",
            child.pid,
            self._label,
            child.end,
            lease.id,
            task.name,
            "" if child.killed is None else f": it was killed, since {child.killed.value}",
            extra={"job_id": lease.id, "queue": lease.queue, "task": lease.task},
        )
        match child.killed:
            case Why.TOO_LATE:
                text = (
                    f"the job ran longer than the task's timeout of {task.timeout_s:g} s, "
                    f"and its process was killed {errand.grace_s:g} s later"
                )
                context.limit(lambda: True)
                return self._handler.judge(lease, context, TimeoutError(text))
            case Why.ASKED:
                text = f"its process was killed {errand.grace_s:g} s after the job was asked to end"
                return Failed(Cause.CANCEL, Failure(LOST, text))
            case None:
                text = f"its process ended {child.end}"
            case why:
                text = f"its process was killed, since {why.value}"
        return Failed(Cause.LOST, Failure(LOST, text))

    # Starting a process

    def _begin(self) -> Child:
        """A new process that has the App. Raises _Halted, _NotStarted."""
        while (left_s := self._start_at - self._clock.interval()) > 0:
            self._pause(left_s)
        with self._lock:
            self._go_on()
            seen = self._failures
        try:
            child = self._nursery.bear()
        except Closed:
            raise _Halted from None
        except OSError as error:
            raise self._failed(f"no process can be started: {error}", seen) from None
        reason = self._why_not(child)
        with self._lock:
            # Where the pool was halted before, whoever halts it has seen a process that is not ready.
            is_halted = self._is_halted
            child.is_ready = reason is None and not is_halted
        if child.is_ready:
            self._failures = 0
            return child
        self._nursery.forget(child)
        if is_halted or reason is None:
            raise _Halted
        raise self._failed(reason, seen)

    def _go_on(self) -> None:
        """Raises _Halted once the pool ends."""
        if self._is_halted:
            raise _Halted

    def _pause(self, duration_s: float) -> None:
        """Sleep so long. Raises _Halted, at once when that comes."""
        signal = threading.Event()
        with self._lock:
            self._go_on()
            self._pausing.add(signal)
        try:
            self._clock.wait(signal, duration_s)
        finally:
            with self._lock:
                self._pausing.discard(signal)

    def _why_not(self, child: Child) -> str | None:
        """Tell it what to run; None if it can, else why it cannot."""
        frame = None
        if _sent(child, self._start_frame):
            try:
                frame = child.pipe.receive()
            except Garbled:
                child.kill(Why.GARBLED)
        if isinstance(frame, Ready):
            return None
        if isinstance(frame, Broken):
            return frame.reason
        child.ended(REAP_S)
        if child.killed is not None:
            return f"its process was killed, since {child.killed.value}"
        return f"its process ended {child.end} before it had the App; what it wrote to stderr says why"

    def _failed(self, reason: str, seen: int) -> _NotStarted:
        """Note a start that came to nothing. seen: the failures before it; those of one moment are one."""
        with self._lock:
            is_first = self._failures == seen
            self._failures = seen + 1
            delay_s = RESTARTS.delay_s(self._failures, 1.0)
            if is_first:
                self._start_at = self._clock.interval() + delay_s
        if is_first and self._is_open:
            text = "no process can run %s, and jobs wait; the next try comes in %g s: %s"
            _log.warning(text, self._label, delay_s, reason)
        return _NotStarted(reason, delay_s)

    # The end

    def stop(self) -> None:
        """Kill what runs a job now; the job is handed back."""
        with self._lock:
            self._is_halted = True
            for signal in self._pausing:
                signal.set()
        for child in self._nursery.children:
            if child.is_busy:
                child.kill(Why.HALTED)

    def close(self) -> None:
        """End all processes: those without a job in order, which may take a moment; idempotent."""
        self.stop()
        children = self._nursery.children
        for child in children:
            if not child.is_busy:
                child.pipe.finish()
        until = SYSTEM.interval() + LEAVE_S
        for child in children:
            child.ended(max(0.0, until - SYSTEM.interval()))
            self._nursery.forget(child)
        self._nursery.close()


def _sent(child: Child, frame: object) -> bool:
    try:
        child.pipe.send(frame)
    except OSError:
        return False
    return True


def _answer(child: Child, errand: Errand) -> Ending | None:
    """How the errand ended; None if the process is lost."""
    while True:
        try:
            frame = child.pipe.receive()
        except Garbled:
            child.kill(Why.GARBLED)
            return None
        match frame:
            case Progress(number, text):
                if number == errand.number:
                    errand.context.progress_text = text
            case Ended():
                errand.context.acked = frame.acked
                if frame.ending is None:
                    child.kill(Why.GARBLED)
                return frame.ending
            case None:
                if not child.ended(FAREWELL_S):
                    child.kill(Why.SILENT)
                return None
            case _:
                child.kill(Why.GARBLED)
                return None
