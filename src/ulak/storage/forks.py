"""What a fork does to open stores: the parent's go on as they were, the child's are opened anew when used.

No connection may be used on both sides. Inside a process SQLite's library counts its locks in memory, so a
child that kept, or merely leaked, connections would take new ones for locked that are not. So a fork waits
until no transaction runs; then the child closes what it inherited, which touches none of the parent's locks,
since record locks belong to a process. A server would take the child's words for the parent's.
"""

from __future__ import annotations

import os
import threading
import weakref
from typing import Protocol


class Forked(Protocol):
    """A store, as a fork sees it."""

    def before_fork(self) -> bool:
        """Have nobody inside the library; whether that came about in time."""

    def after_fork_in_parent(self) -> None:
        """Go on."""

    def after_fork_in_child(self, *, stopped: bool) -> None:
        """Begin anew. stopped: nobody was inside the library."""


opening = threading.RLock()
"""Held while a store opens or closes, and while a process forks: what a fork catches half open, its child
could neither use nor close."""

_stores: weakref.WeakSet[Forked] = weakref.WeakSet()
_stopped: list[Forked] = []


def watch(store: Forked) -> None:
    """Tell this store of forks."""
    _stores.add(store)


def _before() -> None:
    opening.acquire()
    _stopped.extend(store for store in list(_stores) if store.before_fork())


def _in_parent() -> None:
    while _stopped:
        _stopped.pop().after_fork_in_parent()
    opening.release()


def _in_child() -> None:
    global opening  # noqa: PLW0603 - one a process
    opening = threading.RLock()
    for store in list(_stores):
        store.after_fork_in_child(stopped=store in _stopped)
    _stopped.clear()


os.register_at_fork(before=_before, after_in_parent=_in_parent, after_in_child=_in_child)
