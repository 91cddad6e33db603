"""What the callers of a store asked and were told, as lines that several processes may write.

Each call is two lines: what was asked, written before the store is called, and what was told, written after
it answered. A call without an answer, or with the answer "unknown", may have taken effect at any time after
it was asked, once or never. `tests.support.judge` judges a history from outside, the same for every store.
"""

from __future__ import annotations

import threading
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import TypeAlias

import msgspec


class Put(msgspec.Struct, frozen=True, omit_defaults=True):
    """A job that an `add` asked for.

    mark: names the payload; a caller uses one mark for one job, also when it repeats the call.
    """

    mark: str
    max_attempts: int = 5
    delay_s: float = 0.0
    run_at: float | None = None
    may_expire: bool = False
    unique_key: str | None = None
    idempotency_key: str | None = None


class End(msgspec.Struct, frozen=True, omit_defaults=True):
    """A verdict on one delivery. how: done, retry, hold, dead, cancelled."""

    id: int
    delivery: int
    how: str
    cause: str
    delay_s: float = 0.0
    refund: bool = False
    crashed: bool = False


class Handed(msgspec.Struct, frozen=True):
    """A delivery that was handed out."""

    id: int
    delivery: int
    attempt: int
    max_attempts: int
    lease_s: float
    mark: str


class Asked(msgspec.Struct, frozen=True, omit_defaults=True, tag="asked"):
    """A call. n: its number among the calls of `who`; t: seconds on a clock that all writers share.

    op: add, claim, settle, turn, extend, amend, get, counts. leases: id and delivery of each, for extend.
    act, ids: of an operator's act; ids is None where a filter chose. mark: the new payload of an edit.
    """

    who: str
    n: int
    t: float
    op: str
    queue: str = ""
    puts: tuple[Put, ...] = ()
    ends: tuple[End, ...] = ()
    leases: tuple[tuple[int, int], ...] = ()
    limit: int = 0
    lease_s: float = 0.0
    act: str = ""
    ids: tuple[int, ...] | None = None
    mark: str = ""


class Told(msgspec.Struct, frozen=True, omit_defaults=True, tag="told"):
    """The answer to a call: ok, full, refused (certainly without effect), unknown.

    ids: for each put its id, and whether it is a duplicate's. settled: a state or "stale" for each end.
    extended: likewise, for each lease. done: which jobs an act changed. seen: jobs and their states.
    store_at: the store's calendar clock when the call took effect, if the writer can know it.
    room: open jobs and capacity just after the call, if the writer can know them.
    """

    who: str
    n: int
    t: float
    answer: str = "ok"
    ids: tuple[tuple[int, bool], ...] = ()
    settled: tuple[str, ...] = ()
    handed: tuple[Handed, ...] = ()
    extended: tuple[str, ...] = ()
    done: tuple[int, ...] = ()
    seen: tuple[tuple[int, str | None], ...] = ()
    counts: dict[str, dict[str, int]] | None = None
    store_at: float | None = None
    room: tuple[int, int | None] | None = None


class Happened(msgspec.Struct, frozen=True, omit_defaults=True, tag="happened"):
    """Something that is no call. what: "calendar back" is known to the judge, others are for readers."""

    who: str
    t: float
    what: str


class Ran(msgspec.Struct, frozen=True):
    """One ended delivery, as a job's record remembers it."""

    delivery: int
    attempt: int
    cause: str
    started_at: float
    ended_at: float


class Stored(msgspec.Struct, frozen=True, tag="stored"):
    """A job's record as it is in the end."""

    id: int
    queue: str
    mark: str
    state: str
    delivery: int
    attempt: int
    max_attempts: int
    created_at: float
    ran: tuple[Ran, ...]


class Counted(msgspec.Struct, frozen=True, tag="counted"):
    """A queue's numbers, of states and totals, as they are in the end."""

    queue: str
    numbers: dict[str, int]


Line: TypeAlias = Asked | Told | Happened | Stored | Counted

_encoder = msgspec.json.Encoder()
_decoder = msgspec.json.Decoder(Line)


class History:
    """Collects lines, from any thread; with a path, each is in that file before its writer goes on.

    So a killed process leaves what it was told, and for its last calls what it asked.
    """

    def __init__(self, path: Path | None = None) -> None:
        self.lines: list[Line] = []
        self._numbers: dict[str, int] = {}
        self._lock = threading.Lock()
        # Unbuffered: a line is one write, which outlives this process.
        self._file = None if path is None else path.open("ab", buffering=0)

    def add(self, line: Line) -> None:
        """Write a line."""
        if self._file is None:
            self.lines.append(line)
        else:
            self._file.write(_encoder.encode(line) + b"\n")

    def number(self, who: str) -> int:
        """The next call's number of this caller; `who` is the name of one thread of one process."""
        with self._lock:
            number = self._numbers[who] = self._numbers.get(who, 0) + 1
        return number

    def close(self) -> None:
        """Close the file."""
        if self._file is not None:
            self._file.close()


def encoded(lines: Iterable[Line]) -> bytes:
    """The lines as JSON, one each."""
    return _encoder.encode_lines(list(lines))


def decoded(text: bytes) -> Iterator[Line]:
    """The lines of a file; one that was cut off by a kill is left out."""
    for line in text.splitlines(keepends=True):
        if line.endswith(b"\n"):
            yield _decoder.decode(line)


def merged(paths: Iterable[Path]) -> list[Line]:
    """All lines of several files."""
    return [line for path in paths for line in decoded(path.read_bytes())]
