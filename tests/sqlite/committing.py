"""What the processes do that commit against checkpoints, and who reads beside them."""

from __future__ import annotations

import contextlib
import random
import sqlite3
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from tests.support.children import Parent
from tests.support.history import History, Pen, Recorded
from tests.support.stores import stand_before
from ulak import Queue
from ulak.storage.sqlite import link

QUEUE = "mail"
LEASE_S = 3600.0
MAX_ATTEMPTS = 20
_LARGE_BYTES = 9_000
_READ_S = 0.3


def open_recorded(url: str, history: str) -> Queue:
    """A queue whose every call is noted in a file of its own before it is made, and once it is answered."""
    q = Queue(url, QUEUE, visibility_timeout=LEASE_S, max_attempts=MAX_ATTEMPTS)
    pen = Pen(History(Path(history)), time.monotonic)
    name = Path(history).stem
    stand_before(q, lambda store: Recorded(store, pen, lambda: f"{name}/{threading.current_thread().name}"))
    return q


def commit(parent: Parent, url: str, history: str, commits: int, pages: int) -> None:
    """Make so many commits as fast as it goes. pages: how many written ones ask for a checkpoint."""
    link.CHECKPOINT_PAGES = pages
    seed = Path(history).stem
    checkpoints = _count(link.Link, "checkpoint")
    rng = random.Random(seed)
    with open_recorded(url, history) as q:
        q.counts()
        parent.say("ready")
        parent.wait_for("go")
        made = 0
        while made < commits:
            made += _act(q, rng, f"{seed}-{made}")
        parent.say("made", [made, len(checkpoints)])


def _count(owner: Any, name: str) -> list[None]:
    """Note each call of a method in the list returned."""
    calls, original = list[None](), getattr(owner, name)

    def counted(self: Any, *args: Any, **kwargs: Any) -> Any:
        calls.append(None)
        return original(self, *args, **kwargs)

    setattr(owner, name, counted)
    return calls


def _act(q: Queue, rng: random.Random, mark: str) -> int:
    """One of what writers do; how many commits it made."""
    match rng.randrange(8):
        case 0 | 1:
            q.enqueue(mark)
        case 2:
            q.enqueue_many([f"{mark}-{n}" for n in range(rng.randint(2, 20))])
        case 3:
            q.enqueue(mark.encode() + rng.randbytes(rng.randint(0, _LARGE_BYTES)), priority=rng.randint(0, 3))
        case 4 | 5:
            return _finish(q, rng.randint(1, 12))
        case 6:
            return _hand_back(q, q.nack)
        case _:
            return _hand_back(q, q.release)
    return 1


def _finish(q: Queue, limit: int) -> int:
    leases = q.deliver_many(limit)
    if leases:
        q.ack_many(leases)
    return 1 + bool(leases)


def _hand_back(q: Queue, settle: Callable[[Any], object]) -> int:
    lease = q.deliver()
    if lease is not None:
        settle(lease)
    return 1 + (lease is not None)


def read_on(parent: Parent, path: str, seed: int) -> None:
    """Keep one snapshot after the other, each for less than a second, until told."""
    ends = threading.Event()
    reading = threading.Thread(target=_read, args=(path, seed, ends), daemon=True)
    reading.start()
    parent.wait_for("leave")
    ends.set()
    reading.join()
    parent.say("left")


def _read(path: str, seed: int, ends: threading.Event) -> None:
    rng = random.Random(seed)
    with contextlib.closing(sqlite3.connect(path, isolation_level=None, timeout=10)) as db:
        while not ends.is_set():
            db.execute("BEGIN")
            db.execute("SELECT count(*), max(delivery) FROM jobs").fetchone()
            ends.wait(rng.uniform(0.0, _READ_S))
            db.execute("COMMIT")
            ends.wait(rng.uniform(0.0, _READ_S))
