"""Where claims begin: ids below which no job is ready, so that what lies dead there is not passed each time.

While somebody keeps an old snapshot open, the server clears away nothing of what jobs leave behind, and a
claim that begins at the head passes all of it. So where much lies dead, this process looks now and then, and
keeps for each queue and priority an id below which no new job is ready, and none can come: ids are given in
order, and whoever may have been given an earlier one has ended. Jobs that come back have an index of their
own, by when they came: those that are ready below a mark are taken one by one before what lies past it. While
very many have come back, claims of that queue begin at its head.

So do looks for the first job that has come back, the lease that ends first, the job that is due first, and
the one that ended first: what was there before lies dead at the head of an index. While as much lies dead,
this process keeps for each where the first one was, and begins there. One that comes before it all the same,
since its transaction was long in committing it, is found once that is forgotten.
"""

from __future__ import annotations

import contextlib
import math
import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, TypeAlias

import psycopg

from ulak.clock import MACHINE
from ulak.errors import UlakError
from ulak.storage.helper import Helper
from ulak.storage.postgres.asks import Execute, Scene
from ulak.storage.postgres.link import Session
from ulak.storage.postgres.records import from_bound
from ulak.storage.stored import INT_MAX

Span: TypeAlias = tuple[int, int, int | None, int | None]
"""The priorities from one to another, then one more from an id on."""

DEAD_MIN = 20_000
"""So many dead rows must lie in the table of open jobs."""

EVERY, PAUSE_S = 500, 0.1
"""After so many of this process's jobs have ended it looks again, but not sooner than that."""

FRESH_S = 2.0
"""So long after a look its marks hold: after a failover, ids may be given again."""

LIFE_S = 10.0
"""So long after marks were first set they are forgotten, and found anew."""

LATE_S = 1.0
"""Nothing is taken to be the first that is not so old: others may be committing what comes before it."""

BACKS_MAX = 200
"""So many jobs of a queue that have come back are taken one by one."""

LEASES, DUE, BACK = "leases", "due", "back"
"""What there is a first one of; and of each state in which jobs end, by its name."""

PRIORITIES_MAX, QUEUES_MAX = 16, 64

INT_MIN = -INT_MAX - 1
_WHOLE: Span = (INT_MIN, INT_MAX, None, None)
# First the last id that was given, then who may have been given one that is not stored yet: who stores jobs
# has this lock before ids, until the end of its transaction.
_LAST = Execute(
    "SELECT coalesce(pg_sequence_last_value('job_ids'::regclass), 0)::bigint, "
    "pg_stat_get_dead_tuples('jobs'::regclass)::bigint"
)
_STORING = Execute(
    "SELECT coalesce(array_agg(virtualtransaction), '{}') FROM pg_locks WHERE locktype = 'relation' "
    "AND database = (SELECT oid FROM pg_database WHERE datname = current_database()) "
    "AND relation = 'jobs'::regclass AND mode = 'RowExclusiveLock' AND pid IS DISTINCT FROM pg_backend_pid()"
)
_FIRST = (
    "SELECT id FROM jobs WHERE queue = (SELECT id FROM queues WHERE name = %s::text) AND state = 0 "
    "AND priority = %s::bigint AND id >= %s::bigint ORDER BY priority DESC, id LIMIT 1"
)

# Parts of a claim.

BACK_ONES = f"FROM jobs WHERE queue = {{queue}} AND state = 0 AND back_at >= {from_bound('back_since')}"
"""Ready jobs of a queue that have come back, or have become ready later than they were stored."""

BACKS = (
    "backs AS MATERIALIZED (SELECT asked.id AS queue, found.id, found.priority FROM asked "
    f"CROSS JOIN LATERAL (SELECT id, priority {BACK_ONES.format(queue='asked.id')} "
    f"ORDER BY back_at LIMIT {BACKS_MAX + 1}) AS found)"
)
_ARE_MANY = f"(SELECT count(*) FROM backs WHERE backs.queue = asked.id) > {BACKS_MAX}"
WALKED = (
    "walked AS MATERIALIZED (SELECT asked.id, span.lo, span.hi, span.at, span.since FROM asked "
    "JOIN unnest(%(w_queue)s::text[], %(w_whole)s::boolean[], %(w_lo)s::bigint[], %(w_hi)s::bigint[], "
    "%(w_at)s::bigint[], %(w_since)s::bigint[]) WITH ORDINALITY "
    "AS span (queue, whole, lo, hi, at, since, nth) "
    f"ON span.queue = asked.name AND span.whole = ({_ARE_MANY}) ORDER BY asked.place, span.nth)"
)
_BEST = "ORDER BY priority DESC, id LIMIT %(limit)s::bigint FOR UPDATE SKIP LOCKED"
_IN = "SELECT id FROM jobs WHERE queue = walked.id AND state = 0"
# What has come back below a mark comes before what lies past it. Each row is locked when it is taken only, so
# that nobody finds less than there is.
PICKED = (
    "picked AS MATERIALIZED (SELECT found.id FROM gate, walked CROSS JOIN LATERAL ("
    f"SELECT id FROM ({_IN} AND priority <= walked.hi AND priority >= walked.lo {_BEST}) AS between_marks "
    "UNION ALL SELECT one.id FROM (SELECT backs.id FROM backs WHERE backs.queue = walked.id "
    "AND backs.priority = walked.at AND backs.id < walked.since ORDER BY backs.id) AS below_a_mark "
    "CROSS JOIN LATERAL (SELECT id FROM jobs WHERE id = below_a_mark.id AND state + 0 = 0 "
    "AND priority = walked.at LIMIT 1 FOR UPDATE SKIP LOCKED) AS one "
    f"UNION ALL SELECT id FROM ({_IN} AND priority = walked.at AND id >= walked.since {_BEST}) AS past_a_mark"
    ") AS found WHERE gate.is_clear LIMIT %(limit)s::bigint)"
)


class Marks:
    """The marks of one process. using: calls with a session of the store's."""

    def __init__(self, using: Callable[[Callable[[Session], None]], None]) -> None:
        self._using = using
        self._helper = Helper("ulak-marks")
        self._lock = threading.Lock()
        self._ended = 0
        # The priorities of jobs that this process has taken, by queue, and what claims are given.
        self._met: dict[str, set[int]] = {}
        self._known: dict[str, dict[int, int]] = {}
        self._spans: dict[str, list[Span]] = {}
        # All who were given an id up to this one have ended. Next: those who may have been given one up to
        # that, and not ended yet.
        self._bound = 0
        self._next: tuple[int, frozenset[str]] | None = None
        self._asked_at = self._since = 0.0
        self._looked_at = -math.inf
        # Where the first of something in a queue was, and since when that is kept.
        self._firsts: dict[tuple[str, str], tuple[float, float]] = {}

    def spans(self, queues: Sequence[str]) -> dict[str, Any] | None:
        """How a claim is to walk these queues, as parameters; None: each from its head."""
        spans = self._spans
        if not spans or MACHINE.interval() - self._looked_at > FRESH_S:
            return None
        return given(queues, spans) if any(queue in spans for queue in queues) else None

    def met(self, queue: str, priority: int) -> None:
        """A job of this priority was taken: others that were lie dead there."""
        found = self._met.get(queue)
        if found is None:
            if len(self._met) >= QUEUES_MAX:
                return
            found = self._met.setdefault(queue, set())
        if priority not in found and len(found) < PRIORITIES_MAX and INT_MIN < priority < INT_MAX:
            found.add(priority)

    def since(self, what: str, queues: Iterable[str], *, renews: bool) -> float:
        """Where a look for the first of these may begin; from the head: -inf.

        renews: the look will tell what it has found; when it is time to, one begins at the head.
        """
        now = MACHINE.interval()
        if not self._firsts or now - self._looked_at > FRESH_S:
            return -math.inf
        return min((self._since_of((what, queue), now, renews=renews) for queue in queues), default=-math.inf)

    def _since_of(self, key: tuple[str, str], now: float, *, renews: bool) -> float:
        first, kept_since = self._firsts.get(key, (-math.inf, now))
        if renews and now - kept_since > LIFE_S:
            # Others go on with it meanwhile.
            self._firsts[key] = first, now
            return -math.inf
        return first if now - kept_since <= 2 * LIFE_S else -math.inf

    def raise_to(self, what: str, queue: str, first: float, since: float) -> None:
        """A look that began there found that none comes before `first`."""
        now = MACHINE.interval()
        if now - self._looked_at > FRESH_S:
            return
        before = self._firsts.get((what, queue))
        if before is None and len(self._firsts) >= QUEUES_MAX:
            return
        if since == -math.inf or before is None:
            self._firsts[what, queue] = first, now
        else:
            self._firsts[what, queue] = max(first, before[0]), before[1]

    def note(self, ended: int) -> None:
        """So many jobs have ended by a call of this process."""
        with self._lock:
            self._ended += ended
            now = MACHINE.interval()
            # Who has marks renews them, however slowly it goes on.
            pause_s = PAUSE_S if self._ended >= EVERY else FRESH_S / 4 if self._spans else math.inf
            is_due = now - self._asked_at >= pause_s
            if is_due:
                self._ended, self._asked_at = 0, now
        if is_due:
            # The system may have no more threads; then it is due again later.
            with contextlib.suppress(RuntimeError):
                self._helper.ask(self.look)

    def look(self) -> None:
        """Find out anew where claims may begin."""
        try:
            self._using(self._look)
        except (UlakError, psycopg.Error):
            self._begin_anew()

    def close(self) -> None:
        """Wait for what is under way."""
        self._helper.close()

    def _begin_anew(self) -> None:
        self._bound, self._next, self._looked_at = 0, None, -math.inf
        self._firsts = {}
        self._forget()

    def _forget(self) -> None:
        self._known, self._spans = {}, {}
        self._since = MACHINE.interval()

    def _look(self, session: Session) -> None:
        if session.is_proxied:
            return
        now = MACHINE.interval()
        ((last, dead),) = session.execute(_LAST)
        if dead < DEAD_MIN or last < self._bound:
            self._begin_anew()
        if dead < DEAD_MIN:
            return
        if now - self._since > LIFE_S:
            self._forget()
        ((storing,),) = session.execute(_STORING)
        if self._next is None or not self._next[1] & set(storing):
            self._bound = self._next[0] if self._next is not None else 0
            self._next = last, frozenset(storing)
        self._looked_at = now
        if self._bound:
            for queue, met in list(self._met.items()):
                self._raise(session, queue, list(met))

    def _raise(self, session: Session, queue: str, met: Sequence[int]) -> None:
        known, marks = self._known.get(queue, {}), dict[int, int]()
        for priority in met:
            first = session.execute(Execute(_FIRST, (queue, priority, known.get(priority, 1))))
            marks[priority] = min(self._bound + 1, *(job_id for (job_id,) in first), INT_MAX)
        self._known[queue] = marks
        self._spans = {**self._spans, queue: spans_of(marks)}


def since(scene: Scene, what: str, *queues: str, renews: bool = False) -> float:
    """Where a look of this step for the first of these may begin."""
    return -math.inf if scene.marks is None else scene.marks.since(what, queues, renews=renews)


def given(queues: Sequence[str], spans: Mapping[str, Sequence[Span]]) -> dict[str, Any]:
    """The parameters of `WALKED`: each queue from its head, and as while not very many have come back."""
    rows = [(queue, True, *_WHOLE) for queue in queues]
    rows += [(queue, False, *span) for queue in queues for span in spans.get(queue, [_WHOLE])]
    names = ("w_queue", "w_whole", "w_lo", "w_hi", "w_at", "w_since")
    return dict(zip(names, map(list, zip(*rows, strict=True)), strict=True))


def spans_of(marks: Mapping[int, int]) -> list[Span]:
    """How a queue is walked by marks, which are ids by priority: the highest priority first."""
    spans: list[Span] = []
    hi = INT_MAX
    for priority in sorted(marks, reverse=True):
        spans.append((priority + 1, hi, priority, marks[priority]))
        hi = priority - 1
    return [*spans, (INT_MIN, hi, None, None)]
