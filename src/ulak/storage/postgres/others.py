"""Who else holds leases in a store, and who of them is gone; this process's own place among them."""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable
from typing import Any, Protocol

from ulak.clock import MACHINE
from ulak.storage.postgres.asks import Execute, Scene, Step
from ulak.storage.postgres.place import Place
from ulak.storage.postgres.presence import Presence, class_of

LOOK_S = 0.15
"""How often a process looks whether the others still live."""

GONE_AFTER_S = 0.3
"""A process is gone when its lock is found free twice, so far apart."""

_LOOK = """
WITH present AS (
    SELECT objid::bigint AS id FROM pg_locks
    WHERE locktype = 'advisory' AND classid = %(class)s::bigint::oid AND objsubid = 2 AND granted
    AND database = (SELECT oid FROM pg_database WHERE datname = current_database())
)
SELECT h.id, p.id IS NULL AND h.server_started_at = pg_postmaster_start_time(),
    h.absent_since IS NOT NULL,
    coalesce(extract(epoch FROM clock_timestamp()) - h.absent_since >= %(after)s, false),
    extract(epoch FROM statement_timestamp())::float8
FROM holders h LEFT JOIN present p ON p.id = h.id
"""
# Who has signed since that look is there, whatever it has seen.
_NOTE = """
UPDATE holders SET absent_since = CASE WHEN id = ANY(%(absent)s::int[])
    THEN extract(epoch FROM clock_timestamp()) END
WHERE id = ANY(%(changed)s::int[]) AND since_at < %(looked_at)s::float8
"""
_DROP = """
WITH leaving AS (
    SELECT id FROM holders WHERE id = ANY(%(ids)s::int[]) AND (absent_since IS NOT NULL OR NOT %(are_gone)s)
), dropped AS (
    DELETE FROM holders h WHERE id = ANY(ARRAY(SELECT id FROM leaving))
    AND NOT EXISTS (SELECT 1 FROM jobs j WHERE j.holder = h.id AND j.state = 2)
)
DELETE FROM workers WHERE holder = ANY(ARRAY(SELECT id::bigint FROM leaving))
"""


class File(Protocol):
    """What this needs of a store."""

    place: Place
    uid: str

    def scene(self, number: int) -> Scene:
        """What a step may know now."""

    @property
    def is_watched(self) -> bool:
        """Whether the process comes back by itself when its presence is lost."""

    def watch_presence(self) -> None:
        """Come back by itself when the presence is lost."""


class Others:
    """The processes that hold leases in a store, by the numbers that leases name them with.

    any: there are others. Plans ask for what they need; see `ulak.storage.postgres.engine`.
    """

    def __init__(
        self,
        store: File,
        run: Callable[..., Any],
        block: Callable[[Callable[[], Any]], Any],
    ) -> None:
        self.any = False
        self._run, self._block = run, block
        self._store = store
        self._presence = Presence(store.place, lambda: store.uid, lambda: store.scene(0).now)
        self._looked_at = 0.0
        self._gone: frozenset[int] = frozenset()

    @property
    def presence(self) -> Presence:
        """This process's own."""
        return self._presence

    @property
    def own(self) -> int | None:
        """This process's number; None until it takes its first lease."""
        return self._presence.own

    def join(self) -> Generator[Any, Any, None]:
        """Be present, before a lease is taken."""
        if self._presence.own is None or not self._presence.is_held:
            yield self._block(self._take)
        elif not self._store.is_watched:
            self._store.watch_presence()

    def _take(self) -> None:
        self._presence.take()
        self._store.watch_presence()

    def gone(self) -> Generator[Any, Any, frozenset[int]]:
        """Those who are gone; looks not more often than that tells anything new."""
        now = MACHINE.interval()
        if now - self._looked_at >= LOOK_S:
            self._looked_at = now
            if self._presence.own is not None and not self._presence.is_held:
                yield self._block(self._presence.take_again)
            rows = yield self._run(self._look, repeats=True)
            self._gone = frozenset(holder for holder, is_absent, is_over in rows if is_absent and is_over)
            self.any = any(holder != self.own for holder, *_ in rows)
            if self.own is not None and all(holder != self.own for holder, *_ in rows):
                self._presence.sign_again()
        return self._gone

    def _look(self, _: Scene) -> Step[list[tuple[int, bool, bool]]]:
        """Who is absent now, was at the last look, and has been for long; notes who was not before."""
        unsigned = class_of(self._store.uid) % 2**32
        rows = yield Execute(_LOOK, {"class": unsigned, "after": GONE_AFTER_S}, alone=True)
        changed = [row[0] for row in rows if bool(row[1]) is not row[2]]
        if changed:
            absent = [holder for holder, is_absent, *_ in rows if is_absent]
            yield Execute(_NOTE, {"absent": absent, "changed": changed, "looked_at": rows[0][4]})
        return [(row[0], bool(row[1]), row[3]) for row in rows]

    def forget_gone(self) -> Generator[Any, Any, None]:
        """Take out who is gone and holds no lease any more."""
        gone = yield from self.gone()
        if gone:
            yield self._run(lambda _: _drop(gone, are_gone=True))

    def leave(self) -> Generator[Any, Any, None]:
        """Take this process out, unless it still holds leases: then others must find it gone."""
        own = self.own
        if own is not None:
            yield self._run(lambda _: _drop([own], are_gone=False))

    def drop(self) -> None:
        """End the presence."""
        self._presence.drop()

    def after_fork_in_child(self) -> None:
        """In a forked child, which is nobody yet."""
        self._presence.after_fork_in_child()


def _drop(holders: Iterable[int], *, are_gone: bool) -> Step[None]:
    """are_gone: they were taken for that, and are not if they have signed again since."""
    yield Execute(_DROP, {"ids": sorted(holders), "are_gone": are_gone}, alone=True)
