"""Starts the processes that run jobs, and watches them: who is dead, whose time is over, who is to stop."""

from __future__ import annotations

import contextlib
import enum
import json
import logging
import math
import os
import signal
import socket
import subprocess
import sys
import threading
from queue import SimpleQueue

from ulak.clock import Clock
from ulak.context import Context
from ulak.worker.supervisor import how_ended
from ulak.worker.wire import FromChild, Pipe, Stop

_log = logging.getLogger("ulak")

LOOK_S = 0.5
"""How soon it is seen that a job is to stop, or that a process is dead whose own children live on."""

START_MAX_S = 120.0
"""How long a process may take to import its App."""

REAP_S = 5.0
"""How long a killed process may take to be gone; the disk may hold it up."""

# Nothing of the package may be imported before the path is the parent's, where another copy may lie.
_BOOT = """\
import json, socket, sys
end = socket.socket(fileno=int(sys.argv[1]))
size = int.from_bytes(end.recv(4, socket.MSG_WAITALL), "big")
sys.path[:] = json.loads(end.recv(size, socket.MSG_WAITALL))
from ulak.worker.child import main
main(end, int(sys.argv[2]))
"""


class Why(enum.Enum):
    """Why a process was killed from here."""

    TOO_LATE = "its time was over"
    ASKED = "it did not stop when it was asked to"
    HALTED = "the pool has ended"
    GARBLED = "it said what nobody understands"
    SILENT = "it had closed its pipe"
    SLOW = "it took too long to start"
    LEFT = "nobody waits for it"


class Errand:
    """One job, in the hands of a process. number: names it to that.

    timeout_s, kill_after_s: the task's. kill_at: when the process is killed, by the interval clock.
    """

    def __init__(
        self, number: int, context: Context, *, timeout_s: float | None, kill_after_s: float | None
    ) -> None:
        self.number = number
        self.context = context
        self.kill_at = math.inf
        self.why = Why.TOO_LATE
        self.is_begun = self.is_told = False
        self._timeout_s = timeout_s
        self._kill_after_s = kill_after_s

    def begin(self, now: float) -> None:
        """The process has it."""
        if self._timeout_s is not None:
            self.kill_at = now + self._timeout_s + self.grace_s
        self.is_begun = True

    @property
    def grace_s(self) -> float:
        """How long a job may take to end, once its time is over."""
        return GRACE_S if self._kill_after_s is None else self._kill_after_s

    def told(self, now: float) -> None:
        """The process knows that somebody asks for its end."""
        self.is_told = True
        if self._kill_after_s is not None and now + self._kill_after_s < self.kill_at:
            self.kill_at, self.why = now + self._kill_after_s, Why.ASKED


GRACE_S = 1.0
"""How long after its time-out a process is killed, where its task does not say."""


class Child:
    """A process, and what it does now. errand: set and cleared by whoever has borrowed it."""

    def __init__(self, process: subprocess.Popen[bytes], pipe: Pipe[FromChild], *, start_by: float) -> None:
        self.pid = process.pid
        self.pipe = pipe
        self.is_ready = False
        self.killed: Why | None = None
        self._process = process
        self._start_by = start_by
        self._errand: Errand | None = None
        # Over calls that do not wait, so that whoever looks does nothing to another errand than it looked at.
        self._lock = threading.Lock()
        self._is_closed = False

    @property
    def is_alive(self) -> bool:
        """Whether the process runs."""
        return self._process.poll() is None

    @property
    def is_busy(self) -> bool:
        """Whether somebody waits for what it does."""
        return not self.is_ready or self._errand is not None

    def take(self, errand: Errand) -> None:
        """From here on it runs this."""
        with self._lock:
            self._errand = errand

    def drop(self) -> bool:
        """It has run what it ran; whether it can be used again."""
        with self._lock:
            self._errand = None
            return self.killed is None

    def look(self, now: float) -> float:
        """Do what is due; in how many seconds to look again."""
        if not self.is_alive:
            # Who waits at the pipe would not hear of it if a process of its own held the other end.
            with self._lock:
                if not self._is_closed:
                    self.pipe.cut()
            return math.inf
        if not self.is_ready and now >= self._start_by:
            self.kill(Why.SLOW)
        if (errand := self._errand) is None or not errand.is_begun:
            return math.inf
        if errand.context.cancelled and not errand.is_told:
            self._tell(errand, now)
        if now >= errand.kill_at:
            self.kill(errand.why, errand)
        return errand.kill_at - now

    def _tell(self, errand: Errand, now: float) -> None:
        with self._lock:
            is_current = self._errand is errand and not self._is_closed
            if is_current and self.pipe.send_at_once(Stop(errand.number)):
                errand.told(now)

    def kill(self, why: Why, errand: Errand | None = None) -> None:
        """Kill it, with what it has started; errand: only if it still runs this one."""
        with self._lock:
            if (errand is None or errand is self._errand) and self.is_alive:
                self.killed = self.killed or why
                # A group of its own, so a program that its job waits for goes too.
                with contextlib.suppress(ProcessLookupError, PermissionError):
                    os.killpg(self.pid, signal.SIGKILL)
                self._process.kill()

    def ended(self, within_s: float) -> bool:
        """Wait for its end; whether it came."""
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(within_s)
        return not self.is_alive

    @property
    def end(self) -> str:
        """How it ended, after that."""
        status = self._process.poll()
        return "without a trace" if status is None else how_ended(status)

    def close(self) -> None:
        """Let go of a process that has ended."""
        with self._lock:
            self._is_closed = True
            # Under whoever still waits there, too.
            self.pipe.cut()
            self.pipe.close()


class Closed(Exception):
    """No process is started any more."""


class _Wish:
    """One process, please."""

    def __init__(self) -> None:
        self.granted = threading.Event()
        self.child: Child | None = None
        self.error: BaseException | None = None


class Nursery:
    """Starts processes and watches them, all from one thread that outlives them: Linux ties them to that.

    label: what they run, as the system's list of processes shows it. folder: where they run.
    """

    def __init__(self, label: str, folder: str, clock: Clock) -> None:
        self._label = label
        self._folder = folder
        self._clock = clock
        self._lock = threading.Lock()
        self._children: dict[Child, None] = {}
        self._wishes: SimpleQueue[_Wish] = SimpleQueue()
        self._signal = threading.Event()
        self._wake_at = math.inf
        self._is_over = False
        self._thread = threading.Thread(target=self._main, name=f"ulak-{label}-processes", daemon=True)

    def open(self) -> None:
        """Start the thread."""
        self._thread.start()

    @property
    def children(self) -> list[Child]:
        """The processes that nobody has let go of."""
        with self._lock:
            return list(self._children)

    def bear(self) -> Child:
        """Start a process. Raises OSError where the system does not, Closed after the end."""
        wish = _Wish()
        with self._lock:
            if self._is_over:
                raise Closed
            self._wishes.put(wish)
        self._signal.set()
        wish.granted.wait()
        if wish.error is not None:
            raise wish.error
        assert wish.child is not None
        return wish.child

    def forget(self, child: Child) -> None:
        """Let go of a process, which is killed if it has not ended."""
        child.kill(Why.LEFT)
        if not child.ended(REAP_S):
            _log.warning("process %d of %s does not die; it is left behind", child.pid, self._label)
        child.close()
        with self._lock:
            self._children.pop(child, None)

    def look_by(self, at: float) -> None:
        """Look again at this moment, at the latest."""
        if at < self._wake_at:
            self._signal.set()

    def close(self) -> None:
        """End the thread, once no process is left; idempotent."""
        with self._lock:
            self._is_over = True
        self._signal.set()
        if self._thread.is_alive():
            self._thread.join(REAP_S)

    # The thread

    def _main(self) -> None:
        while not self._is_over:
            try:
                self._signal.clear()
                # Whatever comes up while it looks, it looks again.
                self._wake_at = math.inf
                while not self._wishes.empty():
                    self._grant(self._wishes.get_nowait())
                now = self._clock.interval()
                wait_s = min(LOOK_S, *(child.look(now) for child in self.children), math.inf)
                self._wake_at = now + wait_s
                self._clock.wait(self._signal, max(0.0, wait_s))
            except BaseException:  # noqa: BLE001 - whatever struck this thread, all the processes hang on it
                _log.exception(
                    "the thread that watches the processes of %s was struck, and goes on", self._label
                )
        while not self._wishes.empty():
            wish = self._wishes.get_nowait()
            wish.error = Closed()
            wish.granted.set()

    def _grant(self, wish: _Wish) -> None:
        try:
            wish.child = self._start()
        except BaseException as error:  # noqa: BLE001 - it belongs to whoever wished
            wish.error = error
        wish.granted.set()

    def _start(self) -> Child:
        mine, theirs = socket.socketpair()
        try:
            with theirs:
                process = subprocess.Popen(  # noqa: S603 - this very interpreter
                    [
                        sys.executable,
                        # As this process; -P, since nothing may be imported from the folder by chance.
                        *subprocess._args_from_interpreter_flags(),  # type: ignore[attr-defined]  # noqa: SLF001
                        "-P",
                        "-c",
                        _BOOT,
                        str(theirs.fileno()),
                        str(os.getpid()),
                        self._label,
                    ],
                    stdin=subprocess.DEVNULL,
                    pass_fds=[theirs.fileno()],
                    cwd=self._folder,
                    # In a group of its own a Ctrl-C reaches the parent alone, which decides what it means.
                    process_group=0,
                )
            path = json.dumps([str(entry) for entry in sys.path]).encode()
            with contextlib.suppress(OSError):  # it is dead already, and who waits for it will hear
                mine.sendall(len(path).to_bytes(4, "big") + path)
        except BaseException:
            mine.close()
            raise
        child = Child(process, Pipe(mine, FromChild), start_by=self._clock.interval() + START_MAX_S)
        with self._lock:
            self._children[child] = None
        return child
