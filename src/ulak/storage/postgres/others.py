"""Who else holds leases in a store, and who of them is gone; this process's own place among them."""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable, Sequence
from typing import Any, Protocol

import msgspec

from ulak.clock import MACHINE
from ulak.storage.postgres.asks import Execute, Scene, Step
from ulak.storage.postgres.place import Place
from ulak.storage.postgres.presence import Presence, class_of

LOOK_S = 0.15
"""How often a process looks whether the others still live; less often where many do."""

ALIKE = 16
"""So many processes each look that often: what one has seen serves all, and costs a look at all locks."""

KEPT_S = 86_400.0
"""So long a process is known that can be seen neither to live nor to be gone."""

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
    extract(epoch FROM statement_timestamp())::float8,
    h.server_started_at = pg_postmaster_start_time(),
    h.since_at < extract(epoch FROM clock_timestamp()) - %(kept)s::float8
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
# Who signed on a server that was started anew since, or behind a proxy, is nobody's to condemn: one who lives
# signs again when it finds itself struck out.
_CLEAN = """
WITH dropped AS (
    DELETE FROM holders h WHERE server_started_at < pg_postmaster_start_time()
    AND since_at < extract(epoch FROM clock_timestamp()) - %(kept)s::float8
    AND NOT EXISTS (SELECT 1 FROM jobs j WHERE j.holder = h.id AND j.state = 2)
    AND NOT EXISTS (SELECT 1 FROM workers w WHERE w.holder = h.id
        AND w.seen_at >= extract(epoch FROM clock_timestamp()) - %(kept)s::float8) RETURNING id
)
DELETE FROM workers WHERE holder = ANY(ARRAY(SELECT id::bigint FROM dropped))
"""


class Seen(msgspec.Struct, frozen=True, gc=False):
    """One process as a look finds it.

    is_telling: its lock tells whether it lives. is_old: it is in no use, as far as a lock could tell.
    """

    holder: int
    is_absent: bool
    was_absent: bool
    is_over: bool
    looked_at: float
    is_telling: bool
    is_old: bool


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

    any: there are others who can be found gone. look_s: how often to look at them. Plans ask for what they
    need; see `ulak.storage.postgres.engine`.
    """

    def __init__(
        self,
        store: File,
        run: Callable[..., Any],
        block: Callable[[Callable[[], Any]], Any],
    ) -> None:
        self.any = False
        self.look_s = LOOK_S
        self._run, self._block = run, block
        self._store = store
        self._presence = Presence(store.place, lambda: store.uid, lambda: store.scene(0).now)
        self._looked_at = 0.0
        self._gone: frozenset[int] = frozenset()
        self._has_old = False

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
        if now - self._looked_at >= self.look_s:
            self._looked_at = now
            if self._presence.own is not None and not self._presence.is_held:
                yield self._block(self._presence.take_again)
            # Who signs only now may not be found yet.
            signed = self._presence.own if self._presence.is_held else None
            self._note((yield self._run(self._look, repeats=True)), signed)
        return self._gone

    def _note(self, found: Sequence[Seen], signed: int | None) -> None:
        telling = [seen for seen in found if seen.is_telling]
        self._gone = frozenset(seen.holder for seen in found if seen.is_absent and seen.is_over)
        self._has_old = any(seen.is_old and not seen.is_telling for seen in found)
        self.any = any(seen.holder != self.own for seen in telling)
        self.look_s = LOOK_S * max(1.0, len(telling) / ALIKE)
        if signed is not None and all(seen.holder != signed for seen in found):
            self._presence.sign_again()

    def _look(self, _: Scene) -> Step[list[Seen]]:
        """Who is absent now, was at the last look, and has been for long; notes who was not before."""
        unsigned = class_of(self._store.uid) % 2**32
        params = {"class": unsigned, "after": GONE_AFTER_S, "kept": KEPT_S}
        rows = yield Execute(_LOOK, params, alone=True)
        found = [Seen(row[0], bool(row[1]), *row[2:]) for row in rows]
        changed = [seen.holder for seen in found if seen.is_absent is not seen.was_absent]
        if changed:
            absent = [seen.holder for seen in found if seen.is_absent]
            yield Execute(_NOTE, {"absent": absent, "changed": changed, "looked_at": found[0].looked_at})
        return found

    def forget_gone(self) -> Generator[Any, Any, None]:
        """Take out who is gone and holds no lease any more, and who has long been of no use."""
        gone = yield from self.gone()
        if gone:
            yield self._run(lambda _: _drop(gone, are_gone=True))
        if self._has_old:
            yield self._run(lambda _: _clean())

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


def _clean() -> Step[None]:
    yield Execute(_CLEAN, {"kept": KEPT_S}, alone=True)
