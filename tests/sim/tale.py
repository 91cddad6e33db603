"""Histories told by hand, to see what the judge makes of them."""

from __future__ import annotations

from typing import Any

from tests.support.history import Verdict, judge
from tests.support.history.lines import Asked, Counted, End, Handed, Happened, Line, Put, Ran, Stored, Told

LEASE_S = 10.0
STATES = ("ready", "scheduled", "leased", "held", "acked", "dead", "cancelled", "expired")
TOTALS = (
    "enqueued",
    "redriven",
    "processed",
    "succeeded",
    "failed",
    "retries",
    "dead_lettered",
    "cut",
    "cancelled_ever",
    "expired_ever",
    "deleted",
    "reclaimed",
    "pruned",
)
UNKNOWN = "unknown"


def numbers(**given: int) -> dict[str, int]:
    """A queue's numbers, 0 but for these."""
    return dict.fromkeys((*STATES, *TOTALS), 0) | given


class Tale:
    """Calls one after the other, each a second long, unless told otherwise."""

    def __init__(self) -> None:
        self.lines: list[Line] = []
        self.now = 0.0
        self._calls = 0

    def call(self, op: str, *, until: float | None = None, answer: str = "ok", **said: Any) -> None:
        """One call. What an answer holds is named told_...; until: when it was answered."""
        told = {name[5:]: said.pop(name) for name in list(said) if name.startswith("told_")}
        who, t = said.pop("who", "ada"), said.pop("t", self.now)
        self._calls += 1
        said.setdefault("queue", "q")
        self.lines.append(Asked(who=who, n=self._calls, t=t, op=op, **said))
        if answer != "killed":
            until = t + 1.0 if until is None else until
            told = told if answer == "ok" else {}
            self.lines.append(Told(who=who, n=self._calls, t=until, answer=answer, **told))
        self.now = max(self.now, t) + 2.0

    def put(self, job: int = 1, *, known_as: int | None = None, answer: str = "ok", **said: Any) -> None:
        """A job is enqueued. known_as: it was called a duplicate of this one."""
        options = {name: said.pop(name) for name in list(said) if name in Put.__struct_fields__}
        put = Put(**{"mark": f"m{job}", "max_attempts": 3} | options)
        told_ids = ((job if known_as is None else known_as, known_as is not None),)
        self.call(said.pop("op", "add"), puts=(put,), answer=answer, told_ids=told_ids, **said)

    def hand(self, job: int = 1, delivery: int = 1, *, attempt: int | None = None, **said: Any) -> None:
        """A job is handed out."""
        attempt = delivery if attempt is None else attempt
        mark, most = said.pop("mark", f"m{job}"), said.pop("max_attempts", 3)
        handed = Handed(job, delivery, attempt, most, said.pop("lease_s", LEASE_S), mark)
        self.call("claim", limit=1, told_handed=(handed,), **said)

    def end(self, job: int = 1, delivery: int = 1, cause: str = "ack", **said: Any) -> None:
        """A delivery is settled. state: what the caller was told."""
        how = said.pop("how", {"ack": "done", "unknown task": "hold"}.get(cause, "retry"))
        state = said.pop("state", {"done": "succeeded", "hold": "held"}.get(how, "ready"))
        options = {name: said.pop(name) for name in list(said) if name in End.__struct_fields__}
        end = End(job, delivery, how, cause, **options)
        self.call("settle", ends=(end,), told_settled=(state,), **said)

    def extend(self, job: int = 1, delivery: int = 1, told: str = "ok", **said: Any) -> None:
        """A lease is extended."""
        said.setdefault("lease_s", LEASE_S)
        self.call("extend", leases=((job, delivery),), told_extended=(told,), **said)

    def act(self, act: str, job: int = 1, **said: Any) -> None:
        """An operator changes a job."""
        self.call("amend", act=act, ids=(job,), told_done=(job,), **said)

    def see(self, job: int, state: str | None, **said: Any) -> None:
        """Somebody looks at a job."""
        self.call("get", told_seen=((job, state),), **said)

    def count(self, **given: int) -> None:
        """Somebody looks at the queue's numbers."""
        self.call("counts", told_counts={"q": numbers(**given)})

    def stored(
        self, job: int = 1, state: str = "succeeded", delivery: int = 1, *, attempt: int = 1, **said: Any
    ) -> None:
        """What is stored of a job in the end."""
        mark, ran = said.pop("mark", f"m{job}"), said.pop("ran", ())
        self.lines.append(Stored(job, "q", mark, state, delivery, attempt, 3, 0.0, ran))

    def counted(self, **given: int) -> None:
        """The queue's numbers in the end."""
        self.lines.append(Counted("q", numbers(**given)))

    def turn_back(self) -> None:
        """The calendar clock is set back."""
        self.lines.append(Happened("clock", self.now, "calendar back"))
        self.now += 1.0

    def judged(self, **options: Any) -> Verdict:
        """What the judge makes of it."""
        return judge(self.lines, **options)


def told(*names: str) -> Tale:
    """A tale of these calls, by name: put, hand, end, stored."""
    tale = Tale()
    for name in names:
        getattr(tale, name)()
    return tale


def ran(delivery: int, started_at: float, ended_at: float) -> Ran:
    """One ended delivery, as a record remembers it."""
    return Ran(delivery, delivery, "nack", started_at, ended_at)
