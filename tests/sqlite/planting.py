"""Rows as no ulak writes them, planted by a plain sqlite3 client, and what must become of them.

STRICT tables bound what can be planted: an integer of 64 bits, any float but NaN, any bytes, and text that
need not be UTF-8.
"""

from __future__ import annotations

import contextlib
import json
import logging
import math
import sqlite3
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from enum import Enum, auto
from pathlib import Path
from typing import TypeAlias

from tests.support.pools import AT_ONCE
from ulak import Lease, Queue
from ulak.core.job import Hold
from ulak.core.store import Store

INT_MAX = 2**63 - 1
INT_MIN = -(2**63)
LEASE_S = 0.15
WORKERS = 2
MAX_ATTEMPTS = 2


class NotUtf8(bytes):
    """Bytes for a TEXT column that are no text."""


BAD_TEXT = NotUtf8(b'{"a":"\xff"}')

Planted: TypeAlias = int | float | str | bytes | None


class Fate(Enum):
    """What becomes of a ready job with such a row."""

    BURIED = auto()
    """Dead, with the reason in its history, and never run."""
    RUNS = auto()
    """What was planted does not matter to its run."""
    ENDS = auto()
    """It ends one way or the other."""
    WAITS = auto()
    """It may wait: for a worker that knows it, or for its time."""


@dataclass(frozen=True)
class Planting:
    """Columns of a row, and what becomes of a ready job that has them."""

    name: str
    columns: Mapping[str, Planted]
    fate: Fate


def _plantings() -> Iterator[Planting]:
    def of(fate: Fate, **columns: tuple[Planted, ...]) -> Iterator[Planting]:
        for column, values in columns.items():
            for value in values:
                shown = repr(value) if len(repr(value)) < 30 else f"{len(value)} bytes"  # type: ignore[arg-type]
                yield Planting(f"{column}={shown}", {column: value}, fate)

    yield from of(
        Fate.BURIED,
        payload=(b"", b"\x80\xff\x00random", b"{", b"[" * 300_000),
        codec=("pickle", "", "json\0", BAD_TEXT),
        headers=("", "{", "[1]", '{"a": 1}', "[" * 100_000, BAD_TEXT),
        backoff=("nope", "null", '{"base": -1, "cap": 3}', '{"base": 1e999, "cap": 3}', BAD_TEXT),
        attempt=(MAX_ATTEMPTS, 99, INT_MAX, -3, INT_MIN),
        max_attempts=(0, -1, INT_MIN),
        delivery=(INT_MAX, -5, INT_MIN),
        crashes=(INT_MAX, -2),
        state=(8, -1, INT_MAX, INT_MIN),
        unique_key=(BAD_TEXT,),
        idempotency_key=(BAD_TEXT,),
    )
    yield from of(
        Fate.RUNS,
        history=(b"", b"\x00\xff\x01", b"{}", b"null", b"[1, 2]"),
        priority=(INT_MIN, INT_MAX),
        cancel_requested=(7, -1),
        created_at=(math.inf, -math.inf, 1e300, -1e12),
        ended_at=(math.inf, 1e300, -1e12),
        holder=(999, -1, INT_MAX),
        lease_end=(math.inf, -math.inf),
        lease_s=(-1.0, math.inf),
        result=(b"\xff",),
        started_at=(math.inf,),
        worker=(BAD_TEXT,),
        progress=(BAD_TEXT,),
    )
    yield from of(Fate.ENDS, expires_at=(math.inf, -math.inf, 1e300, -1e12), max_attempts=(INT_MAX,))
    yield from of(
        Fate.WAITS,
        task=("no such \x00 task", BAD_TEXT),
        run_at=(math.inf, 1e300, -math.inf, -1e12),
        refused=(1, 7, INT_MIN),
    )


PLANTINGS = tuple(_plantings())

# A row in a state it did not come to by ulak's hand: a lease that nobody holds, an end without its time, ...
MOVED = (
    Planting("leased by nobody", {"state": 2, "holder": None, "lease_end": None}, Fate.RUNS),
    Planting("leased by nobody for ever", {"state": 2, "holder": None, "lease_end": math.inf}, Fate.RUNS),
    Planting("leased by a stranger for ever", {"state": 2, "holder": 999, "lease_end": 1e300}, Fate.RUNS),
    Planting("due, though never counted so", {"state": 1, "run_at": 0.0}, Fate.RUNS),
    Planting("held without a task", {"state": 3}, Fate.RUNS),
    Planting("refused, though nobody had it", {"state": 3, "refused": 1}, Fate.WAITS),
    Planting("succeeded at no time", {"state": 4, "ended_at": None}, Fate.ENDS),
    Planting("dead at no time", {"state": 5, "ended_at": None}, Fate.ENDS),
    Planting("cancelled for ever", {"state": 6, "ended_at": math.inf}, Fate.ENDS),
    Planting("in the store's own queue", {"queue": 0}, Fate.ENDS),
    Planting("in a queue that is not there", {"queue": 99}, Fate.ENDS),
    Planting("in a negative queue", {"queue": INT_MIN}, Fate.ENDS),
)

STARTS = ("ready", "scheduled", "leased", "held", "succeeded", "dead")
"""What the job was when its row was changed."""

_BODY = {"victim": True}
_KEPT = ("payload", "codec", "task", "headers", "backoff", "unique_key", "idempotency_key")
_STATES = ("ready", "scheduled", "leased", "held", "acked", "dead", "cancelled", "expired")


class Seen(logging.Handler):
    """What ulak logged that no operator should ever see."""

    def __init__(self) -> None:
        super().__init__(logging.WARNING)
        self.lines: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        text = record.getMessage()
        # A worker that dies is logged with its error.
        if record.exc_info or "waits for its store" in text:
            error = record.exc_info[1] if record.exc_info else None
            self.lines.append(f"logged: {text}{'' if error is None else f': {error!r}'}")


@contextlib.contextmanager
def listening() -> Iterator[Seen]:
    """Notes what is logged meanwhile."""
    seen, log = Seen(), logging.getLogger("ulak")
    log.addHandler(seen)
    try:
        yield seen
    finally:
        log.removeHandler(seen)


@dataclass
class Plot:
    """One file: a queue with good jobs, and the jobs whose rows are changed."""

    path: Path
    q: Queue
    plain: sqlite3.Connection
    good: list[int] = field(default_factory=list)
    planted: dict[int, tuple[str, Planting, dict[str, bytes | None]]] = field(default_factory=dict)
    ran: list[object] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)

    def add_good(self, number: int = 1) -> None:
        self.good += [self.q.enqueue("good") for _ in range(number)]

    def begin(self, start: str) -> int:
        """A job in this state, by ulak's own hand; its lease too is let go of."""
        job_id = self.q.enqueue(_BODY, priority=5, delay=0.05 if start == "scheduled" else None)
        if start == "held":
            self._hold(job_id)
        elif start == "leased":
            self.take(job_id)
        elif start == "succeeded":
            self.q.ack(self.take(job_id))
        elif start == "dead":
            for _ in range(MAX_ATTEMPTS):
                self.q.nack(self.take(job_id))
        return job_id

    def take(self, job_id: int) -> Lease:
        """The job's lease; others are as they were."""
        leases = self.q.deliver_many(100)
        for lease in leases:
            if lease.id != job_id:
                self.q.release(lease)
        return next(lease for lease in leases if lease.id == job_id)

    def _hold(self, job_id: int) -> None:
        store: Store = self.q._edge.store
        leases = store.claim([self.q.name], 100, worker="w", lease_s=5.0)
        own = [lease for lease in leases if lease.id == job_id]
        store.settle([(lease, Hold()) for lease in own])
        for lease in leases:
            if lease.id != job_id:
                self.q.release(lease)

    def plant(self, job_id: int, start: str, planting: Planting) -> None:
        """Change its row, and remember what it is to keep."""
        sets = ", ".join(
            f"{column} = CAST(? AS TEXT)" if isinstance(value, NotUtf8) else f"{column} = ?"
            for column, value in planting.columns.items()
        )
        values = [bytes(v) if isinstance(v, NotUtf8) else v for v in planting.columns.values()]
        self.plain.execute(f"UPDATE jobs SET {sets} WHERE id = ?", (*values, job_id))
        self.planted[job_id] = start, planting, self._raw(job_id)

    def _raw(self, job_id: int) -> dict[str, bytes | None]:
        columns = ", ".join(f"CAST({name} AS BLOB)" for name in _KEPT)
        row = self.plain.execute(f"SELECT {columns} FROM jobs WHERE id = ?", (job_id,)).fetchone()
        return {} if row is None else dict(zip(_KEPT, row, strict=True))

    def state(self, job_id: int) -> int | None:
        """Its number as it is stored; None if the row is gone."""
        row = self.plain.execute("SELECT state FROM jobs WHERE id = ?", (job_id,)).fetchone()
        return None if row is None else int(row[0])

    # What becomes of it

    def work(self, within_s: float) -> None:
        """Have a pool run until all is over that must be, and look at what stands there then."""
        with listening() as seen, self.q.workers(self.ran.append, count=WORKERS, backoff=AT_ONCE) as pool:
            until = time.monotonic() + within_s
            while not self._is_over() and time.monotonic() < until:
                time.sleep(0.01)
                with contextlib.suppress(Exception):
                    self.q.prune()
            if pool.size != WORKERS:
                self.problems.append(f"{WORKERS - pool.size} workers died")
        self.problems += sorted(set(seen.lines))[:3]

    def _is_over(self) -> bool:
        due = [*self.good, *(job for job, (_, planting, _) in self.planted.items() if _must_end(planting))]
        return all((state := self.state(job_id)) is None or 4 <= state <= 7 for job_id in due)

    def judge(self) -> list[str]:
        """All that is wrong with this file now."""
        self.problems += [
            f"good job {job_id} is in state {self.state(job_id)}"
            for job_id in self.good
            if self.state(job_id) != 4
        ]
        for job_id, (start, planting, raw) in self.planted.items():
            wrong = [*self._wrong_end(job_id, start, planting), *self._wrong_bytes(job_id, raw)]
            self.problems += [f"{start} job with {planting.name}: {text}" for text in wrong]
        self.q.prune()
        self.problems += self._wrong_counts()
        return self.problems

    def _wrong_end(self, job_id: int, start: str, planting: Planting) -> Iterator[str]:
        state = self.state(job_id)
        if state is None or (planting.fate is Fate.WAITS and 0 <= state <= 7):
            return
        if not 4 <= state <= 7:
            yield f"is still in state {state}"
        elif start == "ready" and planting.fate is Fate.RUNS and state != 4:
            yield f"is in state {state}, but nothing kept it from being run"
        elif start == "ready" and planting.fate is Fate.BURIED and state != 5:
            yield f"is in state {state}, not dead"
        elif state == 5 and self._ended_by_ulak(start, planting) and not self._reason(job_id):
            yield "is dead without a reason"

    def _ended_by_ulak(self, start: str, planting: Planting) -> bool:
        return start not in ("succeeded", "dead") and planting.columns.get("state") != 5

    def _reason(self, job_id: int) -> str | None:
        """Why its last delivery ended, as an operator without ulak would read it."""
        (history,) = self.plain.execute("SELECT history FROM jobs WHERE id = ?", (job_id,)).fetchone()
        try:
            last = json.loads(history)[-1]
            return str((last["error"] or {}).get("text") or last["cause"])
        except (TypeError, ValueError, LookupError):
            return None

    def _wrong_bytes(self, job_id: int, raw: Mapping[str, bytes | None]) -> Iterator[str]:
        now = self._raw(job_id)
        yield from (f"its {name} was changed" for name in now if now[name] != raw[name])

    def _wrong_counts(self) -> Iterator[str]:
        counts = self.q.counts()
        recount = dict(
            self.plain.execute(
                "SELECT state, count(*) FROM jobs WHERE queue = (SELECT id FROM queues WHERE name = ?) "
                "GROUP BY state",
                (self.q.name,),
            ).fetchall()
        )
        told = {number: getattr(counts, name) for number, name in enumerate(_STATES) if getattr(counts, name)}
        if told != recount:
            yield f"counts {told}, but a recount gives {recount}"

    def look_at_all(self) -> None:
        """Ask all that can be asked of each planted job. Raises what no caller should ever get."""
        self.q.jobs()
        for job_id in self.planted:
            self.q.get(job_id)
            self.q.terminal_of(job_id)

    def act_on_all(self) -> None:
        """Do all that an operator can do with each planted job. Raises what no caller should ever get."""
        for job_id in self.planted:
            self.q.cancel(job_id)
            self.q.reprioritise(job_id, priority=3, force=True)
            self.q.edit(job_id, "edited")
            self.q.redrive(job_id)
            self.q.delete(job_id, force=True)


def _must_end(planting: Planting) -> bool:
    return planting.fate is not Fate.WAITS


def _plain(path: Path) -> sqlite3.Connection:
    """A client that knows nothing of ulak; a handler may use it too."""
    return sqlite3.connect(path, isolation_level=None, timeout=10, check_same_thread=False)


@contextlib.contextmanager
def plot(directory: Path) -> Iterator[Plot]:
    """A new file with an open queue, and a plain client beside it."""
    path = directory / "jobs.db"
    url = f"sqlite:///{path}?durability=relaxed"
    with Queue(url, "mail", max_attempts=MAX_ATTEMPTS, visibility_timeout=LEASE_S) as q:
        q.counts()
        with contextlib.closing(_plain(path)) as plain:
            yield Plot(path, q, plain)
