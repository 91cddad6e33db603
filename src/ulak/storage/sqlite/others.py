"""Who else holds leases in a file, and who of them is gone; this process's own place among them."""

from __future__ import annotations

import contextlib
import os
import sqlite3
from collections.abc import Callable, Mapping
from typing import Protocol, TypeVar, cast

from ulak.clock import MACHINE
from ulak.errors import StorageBusy
from ulak.storage.sqlite.ledger import Ledger
from ulak.storage.sqlite.presence import Presence

LOOK_S = 0.15
"""How often a process looks whether the others still live."""

GONE_AFTER_S = 0.3
"""A process is gone when its lock is found free twice, so far apart."""

R = TypeVar("R")
Known = list[tuple[int, str, float | None]]


class File(Protocol):
    """What this needs of a store."""

    def step(self, step: Callable[[Ledger], R]) -> R:
        """Run a step in a transaction, which need not be on the disk when it returns."""

    def look(self, look: Callable[[sqlite3.Connection], R]) -> R:
        """Run a look that changes nothing."""


class Others:
    """The processes that hold leases in a file, by the numbers that leases name them with.

    own: this process's number; None until it takes its first lease. any: there are others.
    """

    def __init__(self, file: File, presence: Presence) -> None:
        self.own: int | None = None
        self.any = False
        self._file = file
        self._presence = presence
        self._looked_at = 0.0
        self._gone: dict[int, str] = {}

    def join(self) -> None:
        """Be present, before the first lease is taken."""
        if self.own is None:
            self._presence.take()
            self.own = self._file.step(self.number_in)

    def number_in(self, ledger: Ledger) -> int:
        """This process's number; a new one, if somebody took it for gone while it held no lease."""
        token = self._presence.token
        found = ledger.db.execute("SELECT id FROM holders WHERE token = ?", (token,)).fetchone()
        if found is None:
            found = ledger.db.execute(
                "INSERT INTO holders (token, pid, since_at) VALUES (?, ?, ?) RETURNING id",
                (token, os.getpid(), ledger.now_at),
            ).fetchone()
        self.own = cast("int", found[0])
        return self.own

    def gone(self) -> Mapping[int, str]:
        """Those who are gone, with their tokens; looks not more often than that tells anything new."""
        now = MACHINE.interval()
        if now - self._looked_at >= LOOK_S:
            self._looked_at = now
            if self.own is not None:
                # Somebody may have removed its file, and then this process looks gone.
                self._presence.take()
            known = self._file.look(_known)
            absent = {holder for holder, token, _ in known if not self._presence.is_present(token)}
            if any((holder in absent) is (since is None) for holder, _, since in known):
                # Who only looks is not kept from it by a writer; the next look tries again.
                with contextlib.suppress(StorageBusy):
                    self._file.step(lambda ledger: _note_absent(ledger, absent, now))
            self._gone = {
                holder: token
                for holder, token, since in known
                if holder in absent and since is not None and now - since >= GONE_AFTER_S
            }
            self.any = any(holder != self.own for holder, _, _ in known)
        return self._gone

    def ends_of_gone(self) -> Mapping[int, str]:
        """Those who are gone, with how they have ended, as far as their parents have noted it."""
        return {holder: self._presence.end_of(token) for holder, token in self.gone().items()}

    def forget_gone(self) -> None:
        """Take out who is gone and holds no lease any more."""
        if gone := dict(self.gone()):
            for token in self._file.step(lambda ledger: _drop(ledger, gone)):
                self._presence.forget(token)

    def leave(self) -> None:
        """Take this process out, unless it still holds leases: then others must find it gone."""
        if self.own is not None:
            mine = {self.own: self._presence.token}
            self._file.step(lambda ledger: _drop(ledger, mine))
            self.own = None


def _known(db: sqlite3.Connection) -> Known:
    return db.execute("SELECT id, token, absent_since FROM holders").fetchall()


def _note_absent(ledger: Ledger, absent: set[int], now: float) -> None:
    """Store who was found absent, so that the second look may be another process's."""
    for holder, _, since in _known(ledger.db):
        if (holder in absent) is (since is None):
            ledger.db.execute(
                "UPDATE holders SET absent_since = ? WHERE id = ?",
                (now if holder in absent else None, holder),
            )


def _drop(ledger: Ledger, holders: Mapping[int, str]) -> list[str]:
    dropped = []
    for holder, token in holders.items():
        done = ledger.db.execute(
            "DELETE FROM holders WHERE id = ? AND token = ? AND NOT EXISTS "
            "(SELECT 1 FROM jobs WHERE state = 2 AND holder = holders.id)",
            (holder, token),
        ).rowcount
        ledger.db.execute("DELETE FROM workers WHERE holder = ?", (holder,))
        if done:
            dropped.append(token)
    return dropped
