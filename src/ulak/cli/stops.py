"""Ctrl-C, SIGTERM and a closed terminal for a command that has something to finish: a wish, then an order."""

from __future__ import annotations

import atexit
import os
import signal
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from queue import Empty, SimpleQueue
from types import FrameType, TracebackType
from typing import Any, NamedTuple, Self, TypeVar

from ulak.clock import SYSTEM

SIGNALS = (signal.SIGINT, signal.SIGTERM)
HANGUPS = (signal.SIGHUP,) if hasattr(signal, "SIGHUP") else ()
"""A terminal was closed. Ignored under `nohup`, and not by who holds back the others."""

_SHOW_CURSOR = b"\x1b[?25h\n"


LOOK_EVERY_S = 0.2

T = TypeVar("T")


def next_note(inbox: SimpleQueue[T]) -> T:
    """What comes next into the inbox of the main thread.

    A signal that comes just before a thread falls asleep, or that the system gives to another thread, wakes
    nobody: its handler runs when the main thread runs next, so that looks by itself.
    """
    while True:
        try:
            return inbox.get(timeout=LOOK_EVERY_S)
        except Empty:
            continue


def let_come() -> None:
    """Have the signals come that were held back while the process began."""
    if hasattr(signal, "pthread_sigmask"):
        signal.pthread_sigmask(signal.SIG_UNBLOCK, SIGNALS)


class Hurry(NamedTuple):
    """A second signal, where there is something that can still be done in a moment."""

    number: int


class Stopped(KeyboardInterrupt):
    """The first signal, where there is nothing to finish yet."""


class Stops:
    """While inside, the first SIGINT, SIGTERM or SIGHUP is remembered as `number` and put into each inbox;
    the next one ends the process at once, with the status that a shell gives it.

    in_a_hurry: if given, the second one is remembered as `hurry`, and put into these; the third one ends it.
    has_parent: it is that one's business when it is enough, and a second signal does nothing here: who ends
    a service may signal all of its processes, and the parent passes its own one on. Else signals that were
    held back before come now.
    stays: it goes on when the block is left, since the process ends then, and what else runs at its end must
    not be struck.
    Signals that were ignored stay ignored (`nohup`). Outside the main thread, which gets all signals, it does
    nothing.
    """

    def __init__(
        self,
        *inboxes: SimpleQueue[Any],
        in_a_hurry: Sequence[SimpleQueue[Any]] = (),
        has_parent: bool = False,
        stays: bool = False,
    ) -> None:
        self.number: int | None = None
        self.hurry: Hurry | None = None
        self._in_a_hurry = in_a_hurry
        self._has_parent = has_parent
        self._stays = stays
        self._breaks_off = False
        # A handler runs between any two steps of the main thread, even where that holds a lock, so it may do
        # only what is safe there: SimpleQueue.put is, Event.set and every lock of ours are not.
        self._inboxes = inboxes
        self._before: dict[int, Callable[[int, FrameType | None], Any] | int | None] = {}

    @property
    def status(self) -> int | None:
        """The exit status of a process that a signal has stopped; None if none came."""
        return None if self.number is None else 128 + self.number

    @contextmanager
    def breaking_off(self) -> Iterator[None]:
        """While inside, the first signal is also raised here, as `Stopped`; one that came before is at once.

        Whatever becomes of it on its way through somebody else's code, `Stopped` is what leaves the block.
        """
        self._breaks_off = True
        try:
            with _swallowed_in_silence():
                if self.number is None:
                    yield
        except BaseException:
            if self.number is None:
                raise
        finally:
            self._breaks_off = False
        if self.number is not None:
            raise Stopped

    def __enter__(self) -> Self:
        if threading.current_thread() is threading.main_thread():
            for number in SIGNALS + HANGUPS:
                if signal.getsignal(number) is not signal.SIG_IGN:
                    self._before[number] = signal.signal(number, self._on)
            if self._stays:
                atexit.register(self._ignore)
            if not self._has_parent:
                let_come()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._stays:
            return
        for number, before in self._before.items():
            signal.signal(number, before)

    def _ignore(self) -> None:
        """Last of the exit functions: what Python does after them takes the handlers away."""
        for number in self._before:
            signal.signal(number, signal.SIG_IGN)

    def _on(self, number: int, _: FrameType | None) -> None:
        if self.number is not None:
            if not self._has_parent:
                self._on_another(number)
            return
        self.number = number
        for inbox in self._inboxes:
            inbox.put(number)
        if self._breaks_off:
            raise Stopped

    def _on_another(self, number: int) -> None:
        if self.hurry is not None or not self._in_a_hurry:
            _show_cursor()
            _end(128 + number)
        self.hurry = Hurry(number)
        for inbox in self._in_a_hurry:
            inbox.put(self.hurry)


@contextmanager
def _swallowed_in_silence() -> Iterator[None]:
    """While inside, a `Stopped` that is raised where nothing can be, as in `__del__`, prints nothing."""
    before = sys.unraisablehook

    def hook(unraisable: Any) -> None:  # noqa: ANN401 - its class has no public name
        if unraisable.exc_type is not Stopped:
            before(unraisable)

    sys.unraisablehook = hook
    try:
        yield
    finally:
        if sys.unraisablehook is hook:
            sys.unraisablehook = before


class Deadline:
    """Ends the process so long after a signal, whatever still runs in it.

    inbox: where `Stops` puts the signal; what waits for it is a thread that nothing else holds up. status:
    asked for then.
    """

    def __init__(self, after_s: float, status: Callable[[], int]) -> None:
        self.inbox: SimpleQueue[object] = SimpleQueue()
        self._after_s = after_s
        self._status = status
        threading.Thread(target=self._wait, name="ulak-deadline", daemon=True).start()

    def _wait(self) -> None:
        self.inbox.get()
        end_in(self._after_s, self._status)


def end_in(after_s: float, status: Callable[[], int]) -> None:
    """Wait so long, then end the process without waiting for anything."""
    try:
        SYSTEM.wait(threading.Event(), after_s)
    finally:
        _end(status())


def _show_cursor() -> None:
    """Give a terminal its cursor back, which a command may have hidden."""
    for stream in (sys.stdout, sys.stderr):
        if stream is not None and stream.isatty():
            os.write(stream.fileno(), _SHOW_CURSOR)


def _end(status: int) -> None:
    """End the process without waiting for anything."""
    os._exit(status)
