"""Threads under a scheduler of our own: exactly one of them runs, and a seed decides where it is stopped.

Each thread traces itself, opcode by opcode, in the files of ulak. Before each opcode that can touch what
threads share it passes a *point*; before each use of a lock or an event it comes to a *crossing*. A plan
drawn from the seed says at which of them it must let another one run. So a race whose window is two opcodes
wide, which the interpreter itself may never open, is met within a few runs, and again with the same seed.

Locks, events and sleeps that ulak makes are the scheduler's own (`tests.race.controlled`), so that it knows
who waits for what: a run in which everybody waits is a deadlock or a lost wake-up, and ends with that report.
A thread that blocks in C in any other way is passed over after a short real wait.
"""

from __future__ import annotations

import contextlib
import dis
import itertools
import random
import sys
import time
from _thread import allocate_lock, get_ident, start_new_thread
from collections.abc import Callable, Sequence
from pathlib import Path
from types import CodeType, FrameType
from typing import Any

import ulak

WATCHDOG_S = 10.0
"""The longest a run may take before it is given up."""

SLICE_S = 0.25
"""How often the watchdog looks; a thread that makes no step from one look to the next is blocked in C."""

POINTS_MAX = 200_000
"""The points that one thread may pass; beyond that it turns in circles."""

TOLD_MAX = 60
"""The most lines of a schedule that are shown."""

ULAK = str(Path(ulak.__file__).parent)
# They hold values and pure checks; nothing in them is shared by threads.
PURE = ("codec.py", "durations.py", "names.py", "errors.py", "failures.py", "capture.py", "testing.py")

# These move what only their own frame can see; stopping before any other opcode is worth a try.
_LOCAL = (
    *("LOAD_FAST", "STORE_FAST", "DELETE_FAST", "LOAD_CONST", "RETURN_CONST", "LOAD_GLOBAL", "LOAD_CLOSURE"),
    *("BUILD_", "MAKE_", "COPY", "SWAP", "POP_TOP", "PUSH_", "PRECALL", "KW_NAMES", "NOP", "CACHE"),
    *("RESUME", "JUMP_FORWARD", "JUMP_BACKWARD", "POP_JUMP_FORWARD_IF_N", "POP_JUMP_BACKWARD_IF_N"),
    *("POP_JUMP_IF_N", "RETURN_", "YIELD_VALUE", "SEND", "END_SEND", "IS_OP", "EXTENDED_ARG", "FORMAT_"),
    *("GET_YIELD_FROM_ITER", "MATCH_", "IMPORT_", "RERAISE", "POP_EXCEPT", "CHECK_EXC_MATCH", "RAISE_"),
)

# The memory store's gate is its attribute `open`, which whoever is inside has deleted.
_GATE = ("DELETE_ATTR", "STORE_ATTR")
POINT, CROSSING = 1, 2

Length = tuple[int, int]
"""How many points, and how many crossings."""

POINTS, CROSSINGS = 0, 1

GOLDEN = 0.6180339887498949
"""The multiples of it, less their whole part, lie evenly between 0 and 1 however many are taken."""


class Aborted(BaseException):
    """Raised in every thread of a run that is given up, so that it ends."""


class Actor:
    """One thread of a run. count: points passed. next: the count at which it must look up.

    crossings: how many it came to. crossing_stops: those at which it must let another run.
    """

    def __init__(
        self, number: int, call: Callable[[], Any], stops: Sequence[int], crossing_stops: Sequence[int]
    ) -> None:
        self.number = number
        self.call = call
        self.baton = allocate_lock()
        self.baton.acquire()
        self.count = 0
        self.crossings = 0
        self.stops = sorted(stops, reverse=True)
        self.crossing_stops = frozenset(crossing_stops)
        self.next = 0
        self.waits_for: Any = None
        self.is_over = False
        self.is_away = False
        self.answer: Any = None
        self.error: BaseException | None = None
        self.look_ahead()

    def look_ahead(self) -> None:
        """Find the next stop."""
        while self.stops and self.stops[-1] <= self.count:
            self.stops.pop()
        self.next = self.stops[-1] if self.stops else POINTS_MAX

    @property
    def is_able(self) -> bool:
        """Whether it could run now."""
        return not self.is_over and not self.is_away and self.waits_for is None


class Plan:
    """Who begins, and where threads are stopped: drawn from the seed.

    lengths: about how many points and crossings each thread passes. Of six plans, four stop one thread once,
    at a place that lies evenly over all seeds: the thread that begins or any, at a point or a crossing. One
    stops two or three times, and one all the time. waiting: rather at crossings, since waiters are raced.
    """

    def __init__(self, seed: int, lengths: Sequence[Length], *, waiting: bool = False) -> None:
        self.seed = seed
        self.draws = draws = random.Random(seed)
        self.first = draws.randrange(len(lengths))
        self.stops: tuple[list[list[int]], list[list[int]]] = ([[] for _ in lengths], [[] for _ in lengths])
        self._lengths = lengths
        everybody = range(len(lengths))
        match seed % 6:
            case 0 | 1 as which:
                self._stop_once(which, everybody if waiting else [self.first], seed * GOLDEN)
            case 2:
                self._stop_once(CROSSINGS if waiting else POINTS, everybody, seed * GOLDEN)
            case 3:
                self._stop_once(CROSSINGS, everybody, seed * GOLDEN)
            case 4:
                for number in [self.first, *draws.choices(everybody, k=draws.choice((1, 2)))]:
                    which = CROSSINGS if waiting else draws.choice((POINTS, CROSSINGS))
                    self._stop_once(which, [number], draws.random())
            case _:
                which, gap = (
                    (CROSSINGS, draws.choice((2, 4))) if waiting else (POINTS, draws.choice((3, 12, 40)))
                )
                for number in everybody:
                    self._stop_often(which, number, gap)

    def _stop_once(self, which: int, threads: Sequence[int], part: float) -> None:
        """Stop one of these threads: where, of all their ways laid end to end, such a part is over."""
        left = part % 1.0 * sum(self._lengths[number][which] for number in threads)
        for number in threads:
            length = self._lengths[number][which]
            if left < length:
                self.stops[which][number].append(1 + int(left))
                return
            left -= length

    def _stop_often(self, which: int, number: int, gap: int) -> None:
        """Stop a thread again and again, every so many places at the latest."""
        stops = 2 + 4 * self._lengths[number][which] // gap
        gaps = (self.draws.randint(1, gap) for _ in range(stops))
        self.stops[which][number].extend(itertools.accumulate(gaps))


class Run:
    """What came of a run. wrong: why it was given up, if it was."""

    def __init__(
        self, seed: int, threads: Sequence[Actor], wrong: str | None, story: Sequence[tuple[Any, ...]]
    ) -> None:
        self.seed = seed
        self.wrong = wrong
        self.answers = [thread.answer for thread in threads]
        self.errors = [thread.error for thread in threads]
        self.lengths: list[Length] = [(thread.count, thread.crossings) for thread in threads]
        self._story = story

    def told(self) -> str:
        """The seed and the schedule, for whoever must find out; a long one without its middle."""
        switches = [_line(*entry) for entry in self._story]
        if len(switches) > TOLD_MAX:
            switches[TOLD_MAX // 2 : -TOLD_MAX // 2] = ["..."]
        return "\n  ".join([f"seed {self.seed}", *switches, *([self.wrong] if self.wrong else [])])

    def check(self) -> None:
        """Raise what a thread raised, or that the run was given up; with the schedule."""
        assert self.wrong is None, self.told()
        for error in self.errors:
            if error is not None:
                error.add_note(self.told())
                raise error


class World:
    """The scheduler. also: further files to stop in, beside ulak's."""

    def __init__(self, *also: str) -> None:
        self._also = frozenset(also)
        # By the code's identity, since to hash code is slow; the code is kept, so that none takes its place.
        self._points: dict[int, bytes | None] = {}
        self._known: list[CodeType] = []
        self._threads: list[Actor] = []
        self._by_ident: dict[int, Actor] = {}
        self._current: Actor | None = None
        self._draws = random.Random()
        self._done = allocate_lock()
        self._story: list[tuple[Any, ...]] = []
        self.wrong: str | None = None
        self.moment: Callable[[], int] = itertools.count(1).__next__

    # For whoever makes a run

    def run(self, calls: Sequence[Callable[[], Any]], plan: Plan, *, watchdog_s: float = WATCHDOG_S) -> Run:
        """Make all calls, each in a thread of its own, as the plan says. Ends in time, whatever they do."""
        self._threads = [Actor(n, call, plan.stops[0][n], plan.stops[1][n]) for n, call in enumerate(calls)]
        self._draws = plan.draws
        self._done = allocate_lock()
        self._done.acquire()
        self._story = []
        self.wrong = None
        for thread in self._threads:
            start_new_thread(self._main, (thread,))
        self._hand_to(self._threads[plan.first], "begins")
        self._watch(watchdog_s)
        return Run(plan.seed, self._threads, self.wrong, self._story)

    def _watch(self, watchdog_s: float) -> None:
        give_up_at = time.monotonic() + watchdog_s
        before: tuple[Actor | None, int] = (None, 0)
        while not self._done.acquire(timeout=SLICE_S):
            now = self._current, self._current.count if self._current is not None else 0
            if time.monotonic() > give_up_at:
                if self.wrong is not None:
                    return  # what does not end even so is left behind
                self._give_up(f"no end after {watchdog_s:g} s")
                give_up_at += 4 * SLICE_S
            if now == before:
                self._pass_over(now[0])
            before = now

    # For locks, events and sleeps

    def me(self) -> Actor | None:
        """The controlled thread that runs, if the caller is one."""
        return self._by_ident.get(get_ident())

    def cross(self, what: str) -> None:
        """A lock or an event is about to be used."""
        me = self.me()
        if me is not None and self.wrong is None:
            me.crossings += 1
            if me.crossings in me.crossing_stops:
                self._yield(me, f"is stopped before it {what}")

    def block(self, what: Any) -> None:
        """Let others run until `what` is free; the caller looks again then. Raises Aborted in a deadlock."""
        me = self.me()
        if me is None:
            raise RuntimeError(f"{what!r} is not free, and nobody runs who could change that")
        if self.wrong is not None:
            raise Aborted
        me.waits_for = what
        if not self._let_another(me, f"waits for {what!r}"):
            raise Aborted

    def free(self, what: Any) -> None:
        """Whoever waits for it may look again."""
        for thread in self._threads:
            if thread.waits_for is what:
                thread.waits_for = None

    def pause(self) -> None:
        """Let another run, if one can."""
        me = self.me()
        if me is not None:
            me.count += 1
            self._check_end(me)
            self._yield(me, "pauses")

    # Inside the threads

    def _main(self, me: Actor) -> None:
        self._by_ident[get_ident()] = me
        me.baton.acquire()
        if self.wrong is None:
            sys.settrace(self._tracer(me))
            try:
                me.answer = me.call()
            except BaseException as error:  # noqa: BLE001 - it belongs to whoever made the run
                me.error = error
            finally:
                sys.settrace(None)
        self._end(me)

    def _tracer(self, me: Actor) -> Callable[..., Any]:
        """What `sys.settrace` takes, for one thread. It runs before every opcode, so it is short."""
        points_of, learn, look_up, cross = self._points, self._learn, self._look_up, self.cross

        def enter(frame: FrameType, _event: str, _arg: Any) -> Any:
            code = frame.f_code
            key = id(code)
            points = points_of[key] if key in points_of else learn(code)
            if points is None:
                return None
            frame.f_trace_lines = False
            frame.f_trace_opcodes = True

            def step(frame: FrameType, event: str, _arg: Any) -> Any:
                if (mark := points[frame.f_lasti]) and event == "opcode":
                    me.count += 1
                    if me.count >= me.next:
                        look_up(me, frame)
                    if mark == CROSSING:
                        cross("passes a gate")
                return step

            return step

        return enter

    def _learn(self, code: CodeType) -> bytes | None:
        """Where the code has points, by the offset of the opcode; None for code that is not looked at."""
        folder, _, name = code.co_filename.rpartition("/")
        is_ours = code.co_filename.startswith(ULAK) and not (folder == ULAK and name in PURE)
        points = None
        if is_ours or code.co_filename in self._also:
            marks = bytearray(len(code.co_code))
            for instruction in dis.get_instructions(code):
                if instruction.opname in _GATE and instruction.argval == "open":
                    marks[instruction.offset] = CROSSING
                elif not instruction.opname.startswith(_LOCAL):
                    marks[instruction.offset] = POINT
            points = bytes(marks)
        self._known.append(code)
        self._points[id(code)] = points
        return points

    def _look_up(self, me: Actor, frame: FrameType) -> None:
        """It is time to stop, or something has happened meanwhile."""
        self._check_end(me)
        if me is not self._current:
            self._come_back(me)
            return
        me.look_ahead()
        self._yield(me, (frame.f_code, frame.f_lineno))

    def _check_end(self, me: Actor) -> None:
        if self.wrong is None and me.count >= POINTS_MAX:
            self._give_up(f"thread {me.number} turns in circles")
        if self.wrong is not None:
            raise Aborted

    def _end(self, me: Actor) -> None:
        me.is_over = True
        del self._by_ident[get_ident()]
        if all(thread.is_over for thread in self._threads):
            with contextlib.suppress(RuntimeError):  # two came to the end at once: one had been passed over
                self._done.release()
        elif me is self._current or self._current is None:
            self._let_another(me, "ends", park=False)

    # Who runs

    def _let_another(self, me: Actor, why: Any, *, park: bool = True) -> bool:
        """Let any other run that can; False if none can, and then the run is given up."""
        able = [thread for thread in self._threads if thread.is_able and thread is not me]
        if not able and any(thread.is_away for thread in self._threads):
            self._current = None
            if park:
                self._park(me)
            return True
        if not able:
            waiting = [thread for thread in self._threads if not thread.is_over]
            self._give_up(f"deadlock: {'; '.join(map(_who_waits, waiting))}")
            if park:
                return False
            able = waiting
        other = self._draws.choice(able)
        if park:
            self._switch(me, other, why)
        else:
            self._hand_to(other, why, me)
        return True

    def _yield(self, me: Actor, why: Any) -> None:
        """Let another run, if one can."""
        others = [thread for thread in self._threads if thread.is_able and thread is not me]
        if others:
            self._switch(me, self._draws.choice(others), why)

    def _switch(self, me: Actor, other: Actor, why: Any) -> None:
        self._hand_to(other, why, me)
        self._park(me)

    def _park(self, me: Actor) -> None:
        me.baton.acquire()
        if self.wrong is not None:
            raise Aborted

    def _hand_to(self, other: Actor, why: Any, me: Actor | None = None) -> None:
        teller = other if me is None else me
        self._story.append((teller, teller.count, why, other))
        self._current = other
        other.baton.release()

    def _pass_over(self, stuck: Actor | None) -> None:
        """The thread is blocked in C, by something that we do not know; let another run."""
        able = [thread for thread in self._threads if thread.is_able and thread is not stuck]
        if able:
            if stuck is not None:
                stuck.is_away = True
                stuck.next = -1
            self._hand_to(self._draws.choice(able), "is blocked in C", stuck)

    def _come_back(self, me: Actor) -> None:
        """Somebody runs, or nobody: then it is our turn."""
        me.is_away = False
        me.look_ahead()
        if self._current is None or self._current.is_over:
            self._current = me
        else:
            self._park(me)

    def _give_up(self, why: str) -> None:
        """From here on, every thread that goes on or is woken is aborted."""
        self.wrong = why
        for thread in self._threads:
            thread.next = -1
            thread.waits_for = None


def _who_waits(thread: Actor) -> str:
    return f"thread {thread.number} waits for {thread.waits_for!r}"


def _line(thread: Actor, count: int, why: Any, other: Actor) -> str:
    if isinstance(why, tuple):
        code, line = why
        why = f"is stopped in {Path(code.co_filename).name}:{line} {code.co_name}"
    then = "" if other is thread else f"; on with {other.number}"
    return f"thread {thread.number} {why} at its point {count}{then}"
