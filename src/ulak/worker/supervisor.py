"""A few child processes that are kept running: started, replaced when they die, told to end, reaped.

Parent and child share one socket, which is the child's stdin: the parent closes its half to say that nothing
more will come, the child writes a byte when it has settled its first job.
"""

from __future__ import annotations

import contextlib
import logging
import os
import selectors
import signal
import socket
import subprocess
import sys
import threading
from collections import Counter
from collections.abc import Callable, Sequence
from types import TracebackType
from typing import Self

from ulak.clock import SYSTEM, Clock
from ulak.core.backoff import Backoff
from ulak.errors import ArgumentError

_log = logging.getLogger("ulak")

PARENT = "ULAK_SUPERVISOR_PID"
"""The environment's name for the process id that a child is to die with."""
CHILDREN_MAX = 1_000
LOOK_EVERY_S = 0.05
"""How soon a death is seen where the socket does not tell: a grandchild may hold its other end."""
_REPORT_BYTES_MAX = 4096
_PR_SET_PDEATHSIG = 1


class _Place:
    """One of the children that there should be, and the process that is it now."""

    def __init__(self, number: int) -> None:
        self.number = number
        self.process: subprocess.Popen[bytes] | None = None
        self.line: socket.socket | None = None
        self.has_settled = False
        self.was_killed_here = False
        self.left = False
        # Ends in a row before anything was settled; of these, in a row, by an exit status of its own.
        self.fruitless = 0
        self.failed = 0
        self.start_at = 0.0


class Supervisor:
    """Keeps `count` processes of one command running. A context manager; leaving it kills and reaps them.

    command: a program and its arguments. backoff: how long a place stays empty after its process has ended
    without having settled anything: `base` after the first such end, doubled after each further one, at most
    `cap`. A process that had settled a job is replaced at once, and the backoff starts anew.
    failures_max: so many processes of one place in a row that end by an exit status of their own (not a
    signal) before they settle anything make `tend` raise ChildProcessError; None: never.

    Not thread-safe. Call it from one thread, which has to outlive the children: Linux ties them to that.
    """

    def __init__(
        self,
        command: Sequence[str],
        count: int,
        *,
        backoff: Backoff = Backoff(base=0.1, cap=10.0),  # noqa: B008 - frozen
        failures_max: int | None = None,
        clock: Clock = SYSTEM,
    ) -> None:
        if not 1 <= count <= CHILDREN_MAX:
            raise ArgumentError(f"count is the number of processes: an int from 1 to {CHILDREN_MAX:,}")
        self._command = list(command)
        self._backoff = backoff
        self._failures_max = failures_max
        self._clock = clock
        self._places = [_Place(number) for number in range(1, count + 1)]
        self._selector = selectors.DefaultSelector()
        self._finished = False
        self._stopping = False
        # How processes ended that were not told to: exit status, or minus the signal -> how many.
        self.ends: Counter[int] = Counter()
        self.started = 0

    @property
    def killed(self) -> int:
        """How many processes a SIGKILL has ended that did not come from here."""
        return self.ends[-signal.SIGKILL]

    @property
    def size(self) -> int:
        """How many processes run now."""
        return sum(place.process is not None for place in self._places)

    @property
    def pids(self) -> list[int]:
        """The process ids of those that run now."""
        return [place.process.pid for place in self._places if place.process is not None]

    @property
    def is_over(self) -> bool:
        """Whether every child has left of itself, after `finish`."""
        return all(place.left for place in self._places)

    def tend(self, timeout_s: float) -> None:
        """Start what is due, then take in reports and deaths; returns within `timeout_s`, or earlier.

        To be called again and again. Raises OSError if the command cannot be started, and
        ChildProcessError as `failures_max` says.
        """
        if not self._stopping:
            self._start_due()
        for key, _ in self._selector.select(max(0.0, min(timeout_s, LOOK_EVERY_S, self._next_start_s()))):
            self._hear(key.data)
        for place in self._places:
            if place.process is not None and place.process.poll() is not None:
                self._ended(place, place.process.returncode)

    def finish(self) -> None:
        """Close every child's stdin; also of those that start later. Who then ends with 0 is not replaced."""
        self._finished = True
        for place in self._places:
            _say_finished(place)

    def stop(self, grace_s: float) -> None:
        """Send SIGTERM to all, after `grace_s` SIGKILL to those that are left, and reap them."""
        self._stopping = True
        for place in self._places:
            if place.process is not None:
                place.process.terminate()
        until = self._clock.interval() + grace_s
        while self.size and (left_s := until - self._clock.interval()) > 0:
            self.tend(left_s)
        for place in self._places:
            if place.process is not None:
                place.was_killed_here = place.process.poll() is None
                place.process.kill()
                self._ended(place, place.process.wait())

    def _start_due(self) -> None:
        now = self._clock.interval()
        for place in self._places:
            if place.process is None and not place.left and place.start_at <= now:
                self._start(place)

    def _next_start_s(self) -> float:
        if self._stopping:
            return LOOK_EVERY_S
        waiting = [place.start_at for place in self._places if place.process is None and not place.left]
        return min(waiting) - self._clock.interval() if waiting else LOOK_EVERY_S

    def _start(self, place: _Place) -> None:
        mine, theirs = socket.socketpair()
        try:
            with theirs:
                place.process = subprocess.Popen(  # noqa: S603 - the command is the caller's own
                    self._command,
                    stdin=theirs.fileno(),
                    env={**os.environ, PARENT: str(os.getpid())},
                    # In a group of its own a Ctrl-C reaches the parent alone, which then stops its children.
                    process_group=0,
                )
        except BaseException:
            mine.close()
            raise
        self.started += 1
        mine.settimeout(0)
        place.line, place.has_settled, place.was_killed_here = mine, False, False
        self._selector.register(mine, selectors.EVENT_READ, place)
        if self._finished:
            _say_finished(place)

    def _hear(self, place: _Place) -> None:
        """Take in what a child has written. Its silence for ever is no sign of its death: `poll` is."""
        assert place.line is not None
        try:
            report = place.line.recv(_REPORT_BYTES_MAX)
        except BlockingIOError:
            return
        except OSError:
            report = b""
        if report:
            place.has_settled = True
        elif place.line in self._selector.get_map():
            # It would be readable for ever.
            self._selector.unregister(place.line)

    def _ended(self, place: _Place, status: int) -> None:
        """Note that the process of a place is gone, and when the next one starts."""
        assert place.process is not None
        assert place.line is not None
        self._hear(place)  # what it wrote last
        if place.line in self._selector.get_map():
            self._selector.unregister(place.line)
        place.line.close()
        pid, place.process, place.line = place.process.pid, None, None
        if status == 0 and self._finished:
            place.left = True
        elif not place.was_killed_here and not (self._stopping and status in (0, -signal.SIGTERM)):
            self.ends[status] += 1
            self._replace(place, pid, status)

    def _replace(self, place: _Place, pid: int, status: int) -> None:
        place.fruitless = 0 if place.has_settled else place.fruitless + 1
        place.failed = place.failed + 1 if place.fruitless and status >= 0 else 0
        delay_s = self._backoff.delay_s(place.fruitless, 1.0) if place.fruitless else 0.0
        place.start_at = self._clock.interval() + delay_s
        if self._stopping:
            return
        if self._failures_max is not None and place.failed >= self._failures_max:
            raise ChildProcessError(
                f"{place.failed} processes in a row ended {_said(status)} before they had settled a job; "
                "what they wrote to stderr says why"
            )
        _log.warning(
            "process %d (pid %d) ended %s; the next one starts %s",
            place.number,
            pid,
            _said(status),
            f"in {delay_s:g} s" if delay_s else "at once",
            extra={"child_status": status},
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop(0.0)
        self._selector.close()


def _say_finished(place: _Place) -> None:
    if place.line is not None:
        with contextlib.suppress(OSError):  # it has just died
            place.line.shutdown(socket.SHUT_WR)


def _said(status: int) -> str:
    if status >= 0:
        return f"with status {status}"
    try:
        return f"by {signal.Signals(-status).name}"
    except ValueError:
        return f"by signal {-status}"


class Tie:
    """The other end, to be made first thing in a child: it dies with its parent, even by a SIGKILL.

    on_finished: called, in a thread of its own, once the parent has closed this process's stdin. stdin is
    empty from here on.
    """

    def __init__(self, on_finished: Callable[[], None]) -> None:
        self._parent = int(os.environ.pop(PARENT, os.getppid()))
        self._on_finished = on_finished
        self._has_reported = False
        # Not inherited: a handler's own children must neither read from the line nor keep it open.
        self._line = os.dup(0)
        nowhere = os.open(os.devnull, os.O_RDONLY)
        os.dup2(nowhere, 0)
        os.close(nowhere)
        self._is_tied = _die_with_parent()
        self._die_if_left()
        threading.Thread(target=self._listen, name="ulak-parent", daemon=True).start()

    def report_settled(self) -> None:
        """Tell the parent that this process has settled a job. The first call alone does something."""
        if not self._has_reported:
            self._has_reported = True
            with contextlib.suppress(OSError):  # the parent is dead, and so is this process in a moment
                os.write(self._line, b".")

    def _listen(self) -> None:
        with contextlib.suppress(OSError):
            while os.read(self._line, _REPORT_BYTES_MAX):
                pass
        # A parent that was killed has closed it too.
        self._die_if_left()
        self._on_finished()
        while not self._is_tied:
            SYSTEM.wait(threading.Event(), LOOK_EVERY_S)
            self._die_if_left()

    def _die_if_left(self) -> None:
        if os.getppid() != self._parent:
            os.kill(os.getpid(), signal.SIGKILL)


def _die_with_parent() -> bool:
    """Have the kernel kill this process when its parent ends; False where it cannot."""
    if sys.platform != "linux":
        return False
    import ctypes

    return bool(ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0) == 0)
