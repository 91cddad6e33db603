"""What the child processes of these tests do beside what `tests.support.roles` has, and looks past ulak."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tests.support.children import Parent
from tests.support.postgres import execute
from tests.support.roles import QUEUE, settle_when_told, work
from ulak import Queue, clock


def schema_of(url: str) -> str:
    """The schema of the store at a URL."""
    return url.rpartition("schema=")[2] if "schema=" in url else "ulak"


def look(url: str, statement: str) -> list[tuple[Any, ...]]:
    """Run a statement on a store as an operator does, past ulak; {0} stands for its schema."""
    return execute(url, statement.format(schema_of(url)))


def let_leases_end(url: str, by_s: float = 2 * 3600.0) -> None:
    """Have all leases end so much earlier: the server's clock is nobody's to move."""
    look(url, f"UPDATE {{0}}.jobs SET lease_end = lease_end - {by_s} WHERE state = 2")


def sessions(url: str, what: str = "true") -> list[int]:
    """The server's processes that work for others in this database, and of which this is true."""
    rows = execute(
        url,
        "SELECT pid FROM pg_stat_activity WHERE datname = current_database() AND pid <> pg_backend_pid() "
        f"AND backend_type = 'client backend' AND ({what}) ORDER BY backend_start",
    )
    return [pid for (pid,) in rows]


IN_THIS_DATABASE = "database = (SELECT oid FROM pg_database WHERE datname = current_database())"
"""Of a row of pg_locks: other tests are at work on the same server."""

LISTENS = "query LIKE 'LISTEN%' OR query LIKE 'SELECT 1%'"


def reap_in_two_steps(parent: Parent, url: str) -> None:
    """Read which leases have ended, and settle them when told."""
    with Queue(url, QUEUE) as q:
        settle_when_told(parent, q)


def be_ahead(ahead_s: float) -> None:
    """Make this process's clocks those of a machine that is so much ahead."""
    for machine in (clock.MACHINE, clock.SYSTEM):
        for name in ("interval", "calendar"):
            setattr(machine, name, _moved(getattr(machine, name), ahead_s))


def _moved(read: Callable[[], float], ahead_s: float) -> Callable[[], float]:
    return lambda: read() + ahead_s


def work_ahead(parent: Parent, url: str, lease_s: float, ahead_s: float) -> None:
    """Be a worker on a machine whose clocks are ahead."""
    be_ahead(ahead_s)
    work(parent, url, lease_s, "def")


def tick_ahead(parent: Parent, url: str, ahead_s: float) -> None:
    """Reclaim, whenever told to, on a machine whose clocks are ahead."""
    be_ahead(ahead_s)
    with Queue(url, QUEUE) as q:
        parent.say("ready")
        while parent.next_word() == "tick":
            parent.say("reclaimed", q.tick_timeouts())
