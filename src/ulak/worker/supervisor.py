"""A few child processes that are kept running: started, replaced when they die, told to end, reaped.

Parent and child share one socket, which is the child's stdin: the parent closes its half to say that nothing
more will come, the child says in lines of JSON what its parent should know.
"""

from __future__ import annotations

import contextlib
import enum
import json
import logging
import os
import selectors
import signal
import socket
import subprocess
import sys
import threading
from collections import Counter
from collections.abc import Callable, Collection, Sequence
from types import TracebackType
from typing import Any, Self

from ulak.clock import SYSTEM, Clock
from ulak.core.backoff import Backoff
from ulak.errors import ArgumentError

_log = logging.getLogger("ulak")

PARENT = "ULAK_SUPERVISOR_PID"
"""The environment's name for the process id that a child is to die with."""
CHILDREN_MAX = 1_000
LOOK_EVERY_S = 0.05
"""How soon a death is seen where the socket does not tell: a grandchild may hold its other end."""
_REPORT_BYTES_MAX = 64 * 1024
_TEXT_CHARS_MAX = 8_000
_PR_SET_PDEATHSIG = 1
_HURRY = b"!"
_HELD_BACK = (signal.SIGINT, signal.SIGTERM)


class Word(enum.StrEnum):
    """What a child may tell its parent.

    WORKS: it has begun to take jobs. LIVES: it goes round, and where its store is. SETTLED: it has settled a
    first one. LEAVES: it will end with status 0, to be replaced at once. FAILED: why it is about to end
    otherwise. GONE: likewise, and so would any other. ENDED: what it has left behind. DRAINED: likewise,
    and that it ends since nothing is left that could run. FILE: where to note how it has ended, for whoever
    takes over what it held.
    """

    WORKS = "works"
    LIVES = "lives"
    SETTLED = "settled"
    LEAVES = "leaves"
    FAILED = "failed"
    GONE = "gone"
    ENDED = "ended"
    DRAINED = "drained"
    FILE = "file"


class GivenUp(ChildProcessError):
    """No process is started any more, since they fail. status: how the last one ended.

    reason: what it had said of that, if it had.
    """

    def __init__(self, text: str, *, status: int, reason: str | None) -> None:
        super().__init__(text)
        self.status = status
        self.reason = reason


class _Place:
    """One of the children that there should be, and the process that is it now."""

    def __init__(self, number: int) -> None:
        self.number = number
        self.process: subprocess.Popen[bytes] | None = None
        self.line: socket.socket | None = None
        self.was_killed_here = False
        self.left = False
        self.forget()
        # Ends in a row before anything was settled; of these, in a row, by an exit status of its own.
        self.fruitless = 0
        self.failed = 0
        self.start_at = 0.0

    def forget(self) -> None:
        """Forget what the last process has said."""
        self.heard = b""
        self.works = self.has_settled = self.leaves = self.is_last = self.has_drained = False
        self.reason: str | None = None
        self.file: str | None = None
        self.said_at: float | None = None


class Supervisor:
    """Keeps `count` processes of one command running. A context manager; leaving it kills and reaps them.

    command: a program and its arguments. backoff: how long a place stays empty after its process has ended
    without having settled anything: `base` after the first such end, doubled after each further one, at most
    `cap`. A process that had settled a job is replaced at once, and the backoff starts anew.
    failures_max: so many processes of one place in a row that end by an exit status of their own (not a
    signal) before they work or settle anything make `tend` raise GivenUp; None: never. passing: statuses that
    do not count for that, since what they tell of passes.
    hear: is told what children say beside SETTLED, LEAVES, FAILED, GONE and FILE.

    Children start with SIGINT and SIGTERM held back, until they make a `Tie`.
    Not thread-safe. Call it from one thread, which has to outlive the children: Linux ties them to that.
    """

    def __init__(
        self,
        command: Sequence[str],
        count: int,
        *,
        backoff: Backoff = Backoff(base=0.1, cap=10.0),  # noqa: B008 - frozen
        failures_max: int | None = None,
        passing: Collection[int] = (),
        hear: Callable[[Word, Any], object] = lambda _word, _value: None,
        clock: Clock = SYSTEM,
    ) -> None:
        if not 1 <= count <= CHILDREN_MAX:
            raise ArgumentError(f"count is the number of processes: an int from 1 to {CHILDREN_MAX:,}")
        self._command = list(command)
        self._backoff = backoff
        self._failures_max = failures_max
        self._passing = passing
        self._tell = hear
        self._clock = clock
        self._places = [_Place(number) for number in range(1, count + 1)]
        self._selector = selectors.DefaultSelector()
        self._finished = self._tells_finish = False
        self._stopping = False
        # How processes ended that were not told to: exit status, or minus the signal -> how many.
        self.ends: Counter[int] = Counter()
        # How many took jobs and ended otherwise than with 0, also by `stop`: they may have held some.
        self.cut = 0
        self.started = 0
        self.has_worked = False
        self.tended_at = clock.interval()

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
    def is_stopping(self) -> bool:
        """Whether all were told to end."""
        return self._stopping

    @property
    def silent_s(self) -> dict[int, float]:
        """How long ago each process that works last said that it does, or that it lives, in seconds.

        Of use where they say so again and again. Unlike all else, to be called from any thread.
        """
        now = self._clock.interval()
        said = [(place.number, place.said_at) for place in self._places]
        return {number: now - said_at for number, said_at in said if said_at is not None}

    @property
    def is_over(self) -> bool:
        """Whether every child has left of itself, after `finish`."""
        return all(place.left for place in self._places)

    def tend(self, timeout_s: float) -> None:
        """Start what is due, then take in reports and deaths; returns within `timeout_s`, or earlier.

        To be called again and again. Raises OSError if the first cannot be started, and GivenUp as
        `failures_max` says, or if a process could say why it failed before any has worked, or why all will.
        """
        self.tended_at = self._clock.interval()
        if not self._stopping:
            self._start_due()
        for key, _ in self._selector.select(max(0.0, min(timeout_s, LOOK_EVERY_S, self._next_start_s()))):
            self._hear(key.data)
        for place in self._places:
            if place.process is not None and place.process.poll() is not None:
                self._ended(place, place.process.returncode)

    def finish(self, *, tell: bool = True) -> None:
        """Close every child's stdin; also of those that start later. Who then ends with 0 is not replaced.

        tell: if False, they know of themselves when it is enough, and say DRAINED; their stdin stays open.
        """
        self._finished, self._tells_finish = True, tell
        for place in self._places:
            self._say_finished(place)

    def terminate(self) -> None:
        """Send SIGTERM to all, and start no more."""
        self._stopping = True
        for place in self._places:
            if place.process is not None:
                place.process.terminate()

    def hurry(self) -> None:
        """Tell all, after `terminate`, that it has to be now; before a `finish` that tells."""
        for place in self._places:
            if place.line is not None:
                with contextlib.suppress(OSError):  # it has just died
                    place.line.send(_HURRY)

    def stop(self, grace_s: float) -> None:
        """As `terminate`; after `grace_s` SIGKILL to those that are left, and reap them."""
        self.terminate()
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
                try:
                    self._start(place)
                except OSError as error:
                    if not self.has_worked:
                        raise
                    self._put_off(place, error)

    def _put_off(self, place: _Place, error: OSError) -> None:
        """Try again later: memory is short, or an environment is made anew, and the others work on."""
        place.fruitless += 1
        place.failed += 1
        if self._failures_max is not None and place.failed >= self._failures_max:
            text = f"{place.failed} times in a row no process could be started: {error}"
            raise GivenUp(text, status=1, reason=None) from error
        delay_s = self._backoff.delay_s(place.fruitless, 1.0)
        place.start_at = self._clock.interval() + delay_s
        text = "process %d cannot be started: %s; the next try comes in %g s"
        _log.warning(text, place.number, error, delay_s)

    def _next_start_s(self) -> float:
        if self._stopping:
            return LOOK_EVERY_S
        waiting = [place.start_at for place in self._places if place.process is None and not place.left]
        return min(waiting) - self._clock.interval() if waiting else LOOK_EVERY_S

    def _start(self, place: _Place) -> None:
        mine, theirs = socket.socketpair()
        # It inherits the mask, so that one stopped in the first moments of its life ends as all others do.
        mask = signal.pthread_sigmask(signal.SIG_BLOCK, _HELD_BACK)
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
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, mask)
        self.started += 1
        mine.settimeout(0)
        place.line, place.was_killed_here = mine, False
        place.forget()
        self._selector.register(mine, selectors.EVENT_READ, place)
        self._say_finished(place)

    def _say_finished(self, place: _Place) -> None:
        if self._finished and self._tells_finish and place.line is not None:
            with contextlib.suppress(OSError):  # it has just died
                place.line.shutdown(socket.SHUT_WR)

    def _hear(self, place: _Place) -> None:
        """Take in what a child has written. Its silence for ever is no sign of its death: `poll` is."""
        assert place.line is not None
        while len(place.heard) < _REPORT_BYTES_MAX:
            try:
                read = place.line.recv(_REPORT_BYTES_MAX)
            except BlockingIOError:
                return
            except OSError:
                read = b""
            if not read:
                break
            *lines, place.heard = (place.heard + read).split(b"\n")
            for line in lines:
                self._take_in(place, line)
        if place.line in self._selector.get_map():
            # It would be readable for ever.
            self._selector.unregister(place.line)

    def _take_in(self, place: _Place, line: bytes) -> None:
        try:
            name, value = json.loads(line)
            word = Word(name)
        except (ValueError, TypeError):
            _log.warning("process %d said what nobody understands", place.number)
            return
        match word:
            case Word.SETTLED:
                place.has_settled = True
            case Word.LEAVES:
                place.leaves = True
            case Word.FILE:
                place.file = str(value)
            case Word.FAILED | Word.GONE:
                place.reason, place.is_last = str(value), word is Word.GONE
            case Word.WORKS:
                place.works = self.has_worked = True
                place.said_at = self._clock.interval()
                self._tell(word, value)
            case Word.LIVES:
                place.said_at = self._clock.interval()
                self._tell(word, value)
            case Word.ENDED | Word.DRAINED:
                place.has_drained = word is Word.DRAINED
                self._tell(word, value)

    def _ended(self, place: _Place, status: int) -> None:
        """Note that the process of a place is gone, and when the next one starts."""
        assert place.process is not None
        assert place.line is not None
        self._hear(place)  # what it wrote last
        if place.line in self._selector.get_map():
            self._selector.unregister(place.line)
        place.line.close()
        pid, place.process, place.line, place.said_at = place.process.pid, None, None, None
        if place.file is not None and status != 0:
            _note(place.file, how_ended(status))
        self.cut += place.works and status != 0
        if place.leaves and status == 0:
            _log.info("process %d (pid %d) has left; the next one starts at once", place.number, pid)
            place.fruitless = place.failed = 0
            place.start_at = self._clock.interval()
        elif status == 0 and self._finished and (self._tells_finish or place.has_drained):
            place.left = True
        elif not place.was_killed_here and not (self._stopping and status in (0, -signal.SIGTERM)):
            self.ends[status] += 1
            self._replace(place, pid, status)

    def _replace(self, place: _Place, pid: int, status: int) -> None:
        place.fruitless = 0 if place.has_settled else place.fruitless + 1
        has_failed = status >= 0 and status not in self._passing and not (place.works or place.has_settled)
        place.failed = place.failed + 1 if has_failed else 0
        delay_s = self._backoff.delay_s(place.fruitless, 1.0) if place.fruitless else 0.0
        place.start_at = self._clock.interval() + delay_s
        if self._stopping:
            return
        if place.reason is not None and (place.is_last or not self.has_worked):
            raise GivenUp("no process could start", status=status, reason=place.reason)
        if self._failures_max is not None and place.failed >= self._failures_max:
            raise GivenUp(
                f"{place.failed} processes in a row ended {how_ended(status)} before they had settled a "
                "job; what they wrote to stderr says why",
                status=status,
                reason=place.reason,
            )
        _log.warning(
            "process %d (pid %d) ended %s%s; the next one starts %s",
            place.number,
            pid,
            how_ended(status),
            "" if place.reason is None else f": {place.reason.partition(chr(10))[0]}",
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


def _note(file: str, text: str) -> None:
    """Write how a process has ended into a file of its own, if that is still there; it is for people."""
    with contextlib.suppress(OSError):
        fd = os.open(file, os.O_WRONLY | os.O_CLOEXEC | os.O_NOFOLLOW)
        try:
            os.write(fd, text.encode())
        finally:
            os.close(fd)


def how_ended(status: int) -> str:
    """The end of a process as text: "with status 3", "by SIGKILL"."""
    if status >= 0:
        return f"with status {status}"
    try:
        return f"by {signal.Signals(-status).name}"
    except ValueError:
        return f"by signal {-status}"


class Tie:
    """The other end, to be made first thing in a child: it dies with its parent, even by a SIGKILL.

    on_finished: called, in a thread of its own, once the parent has closed this process's stdin. on_hurry:
    called there once the parent says that this process has to end now. stdin is empty from here on. SIGINT
    and SIGTERM, held back since the process began, come from here on: have handlers for them.
    """

    def __init__(
        self,
        on_finished: Callable[[], object] = lambda: None,
        on_hurry: Callable[[], object] = lambda: None,
    ) -> None:
        self._parent = int(os.environ.pop(PARENT, os.getppid()))
        self._on_finished, self._on_hurry = on_finished, on_hurry
        self._lock = threading.Lock()
        self._has_settled = False
        # Not inherited: a handler's own children must neither read from the line nor keep it open.
        self._line = os.dup(0)
        nowhere = os.open(os.devnull, os.O_RDONLY)
        os.dup2(nowhere, 0)
        os.close(nowhere)
        self._is_tied = die_with_parent()
        self._die_if_left()
        threading.Thread(target=self._listen, name="ulak-parent", daemon=True).start()
        signal.pthread_sigmask(signal.SIG_UNBLOCK, _HELD_BACK)

    def report_settled(self) -> None:
        """Tell the parent that this process has settled a job. The first call alone does something."""
        if not self._has_settled:
            self._has_settled = True
            self.report(Word.SETTLED)

    def report(self, word: Word, value: object = None) -> None:
        """Tell the parent something, with a value that JSON can carry; a text is cut to a few lines."""
        if isinstance(value, str):
            value = value[:_TEXT_CHARS_MAX]
        line = json.dumps([word, value]).encode() + b"\n"
        with self._lock, contextlib.suppress(OSError):  # the parent is dead, and so is this in a moment
            while line:
                line = line[os.write(self._line, line) :]

    def _listen(self) -> None:
        with contextlib.suppress(OSError):
            while os.read(self._line, _REPORT_BYTES_MAX):
                self._on_hurry()
        # A parent that was killed has closed it too.
        self._die_if_left()
        self._on_finished()
        while not self._is_tied:
            SYSTEM.wait(threading.Event(), LOOK_EVERY_S)
            self._die_if_left()

    def _die_if_left(self) -> None:
        if os.getppid() != self._parent:
            os.kill(os.getpid(), signal.SIGKILL)


def die_with_parent() -> bool:
    """Have the kernel kill this process when its parent ends; False where it cannot."""
    if sys.platform != "linux":
        return False
    import ctypes

    return bool(ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0) == 0)
