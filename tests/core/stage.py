"""Drives flows by hand: every ask and every step out of line is pinned, in order.

A script is what must happen, in order: `(ask, answer)` for what a flow asks and gets; a text for what it did
on its own in between, such as "join room" or "clear". An answer that is an exception is thrown in; one that
is a function is called, for what happens meanwhile.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, TypeAlias

from ulak.core.flows import Ask, Call, Flow
from ulak.core.store import Signal, Until

Script: TypeAlias = Sequence[tuple[Ask, Any] | str]


class Stage:
    """What a flow finds: this process's view of a queue, a signal, lines. All note what is done to them.

    others: how many stand in each line already.
    """

    def __init__(self, *, finished: bool = False, others: int = 0) -> None:
        self.noted: list[str] = []
        self.finished = finished
        self.closed = False
        self.rejected = 0
        self.stale = 0
        self.blocked_s: list[float] = []
        self.signal = Bell(self)
        self.lines = {until: FakeLine(self, until.value, others) for until in Until}
        self.end = FakeLine(self, "end", others)

    def count_rejected(self) -> None:
        self.rejected += 1
        self.noted.append("count rejected")

    def count_stale(self, stale: int) -> None:
        self.stale += stale

    def count_blocked(self, blocked_s: float) -> None:
        self.blocked_s.append(blocked_s)

    def finish(self) -> None:
        """The last producer finishes, while the flow waits."""
        self.finished = True

    def others_leave(self) -> None:
        """All who stood in a line before the flow step out of it, while the flow waits."""
        for line in self.lines.values():
            line.others = 0

    def play(self, flow: Flow[Any], script: Script) -> Any:
        """Answer the flow's asks by the script; its result. What it raises comes out."""
        result = self._play(flow, list(script))
        assert self.noted == [], "the flow did more than the script says"
        return result

    def _play(self, flow: Flow[Any], script: list[tuple[Ask, Any] | str]) -> Any:
        step, reply = flow.send, None
        while True:
            try:
                asked: Ask | None = step(reply)
                result = None
            except StopIteration as stop:
                asked, result = None, stop.value
            except BaseException:
                self._check_notes(script)
                assert script == [], f"the flow raised before the script ended: {script}"
                raise
            self._check_notes(script)
            if asked is None:
                assert script == [], "the flow ended before the script did"
                return result
            assert script != [], f"the flow goes on: {asked}"
            item = script.pop(0)
            assert not isinstance(item, str), item
            expected, answer = item
            assert asked == expected, f"asked {asked}, but the script says {expected}"
            step, reply = flow.send, answer() if callable(answer) else answer
            if isinstance(answer, BaseException):
                step = flow.throw

    def _check_notes(self, script: list[tuple[Ask, Any] | str]) -> None:
        """What the flow did since its last ask is what the script says next."""
        expected = []
        while script and isinstance(script[0], str):
            expected.append(script.pop(0))
        done, self.noted = self.noted, []
        assert done == expected, f"did {done}, but the script says {expected}"


class Bell:
    """A signal that only notes."""

    def __init__(self, stage: Stage) -> None:
        self._stage = stage

    def set(self) -> None:
        self._stage.noted.append("set")

    def clear(self) -> None:
        self._stage.noted.append("clear")

    def is_set(self) -> bool:
        return False


class FakeLine:
    """A line of waiters that only notes; `others` stand in it before the flow.

    Asking whether one is first is noted with its answer, for it may not come before "clear": a wake-up
    between the two would be forgotten without a look.
    """

    def __init__(self, stage: Stage, name: str, others: int) -> None:
        self._stage = stage
        self._name = name
        self._joined = False
        self.others = others

    def __len__(self) -> int:
        return self.others + self._joined

    def join(self, signal: Signal) -> None:
        assert signal is self._stage.signal
        assert not self._joined
        self._joined = True
        self._stage.noted.append(f"join {self._name}")

    def leave(self, signal: Signal) -> None:
        assert signal is self._stage.signal
        assert self._joined
        self._joined = False
        self._stage.noted.append(f"leave {self._name}")

    def is_first(self, signal: Signal) -> bool:
        assert signal is self._stage.signal
        assert self._joined
        self._stage.noted.append(f"{'not ' if self.others else ''}first in {self._name}")
        return self.others == 0

    def ring(self, wakeups: int) -> None:
        raise AssertionError("a flow rings nobody")


def call(name: str, *args: Any, **kwargs: Any) -> Call:
    return Call(name, args, kwargs)
