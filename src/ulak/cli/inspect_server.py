"""What `ulak doctor` finds on a PostgreSQL server: what is in force there, and what stands in the way."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from typing import Any

import psycopg

from ulak.cli.inspect_parts import Finding, Part, bytes_text, finding_of
from ulak.errors import UlakError
from ulak.storage.postgres.asks import Execute
from ulak.storage.postgres.attempt import Attempt
from ulak.storage.postgres.faults import explained
from ulak.storage.postgres.grants import missing as missing_grants
from ulak.storage.postgres.halves import Half, newest
from ulak.storage.postgres.link import Session
from ulak.storage.postgres.place import Place
from ulak.storage.postgres.schema import found_in

OLD_S = 60.0
"""A transaction that has been open for so long keeps what jobs leave behind from being cleared away."""

DEAD_ROWS_MAX = 100_000
SKEW_MAX_S = 1.0
SESSIONS_SHARE_MAX = 0.8

Rows = Callable[[str], list[tuple[Any, ...]]]


def examine(place: Place) -> list[Part]:
    """All that can be said of the server and the schema; it stops at what makes the rest meaningless."""
    try:
        session = Session(place)
    except UlakError as error:
        return [Part("server", "cannot be reached", {}, (finding_of(error),))]
    try:
        return list(_checks(session, place))
    finally:
        session.close()


def _checks(session: Session, place: Place) -> Iterator[Part]:
    def rows(text: str) -> list[tuple[Any, ...]]:
        # Behind a proxy nothing is set for longer than a transaction.
        work = Attempt(_one(text), session.begin, is_proxied=session.is_proxied).work()
        return session.drive(work)

    checks: dict[str, Callable[[], Part]] = {
        "server": lambda: server_part(rows, session),
        "durability": lambda: durability_part(rows),
        "grants": lambda: grants_part(session, place),
        "schema": lambda: schema_part(session, place),
        "clock": lambda: clock_part(rows),
        "sessions": lambda: sessions_part(rows),
        "transaction": lambda: transactions_part(rows),
        "table": lambda: table_part(rows),
    }
    for name, check in checks.items():
        try:
            part = check()
        except UlakError as error:
            part = Part(name, "cannot be read", {}, (finding_of(error),))
        except psycopg.Error as error:
            part = Part(name, "cannot be read", {}, (finding_of(explained(error, str(place))),))
        yield part
        if name in ("grants", "schema") and any(found.is_problem for found in part.findings):
            return


def _one(text: str) -> Any:  # noqa: ANN401 - a step
    return (yield Execute(text, alone=True))


def server_part(rows: Rows, session: Session) -> Part:
    """Which server, and whether a proxy stands between."""
    ((version, isolation),) = rows(
        "SELECT current_setting('server_version'), coalesce((SELECT reset_val FROM pg_settings "
        "WHERE name = 'default_transaction_isolation'), '')"
    )
    values = {"version": version, "proxy": session.is_proxied, "default_isolation": isolation}
    text = f"PostgreSQL {version}; transactions of ulak are READ COMMITTED, whatever the default"
    if not session.is_proxied:
        return Part("server", text, values)
    found = Finding(
        "a proxy hands out the server's sessions, so a killed worker is found by its leases' ends alone, and "
        "jobs of other processes by polling",
        "name the server itself in the URL of workers, or a port of the proxy that pools whole sessions",
        is_problem=False,
    )
    return Part("server", f"{text}; behind a proxy", values, (found,))


def durability_part(rows: Rows) -> Part:
    """What a commit waits for."""
    ((commit, fsync, full),) = rows(
        "SELECT current_setting('synchronous_commit'), current_setting('fsync'), "
        "current_setting('full_page_writes')"
    )
    values = {"synchronous_commit": commit, "fsync": fsync, "full_page_writes": full}
    findings = []
    if commit == "off":
        findings.append(
            Finding(
                "synchronous_commit is off: what was told as stored just before a crash of the server may be "
                "lost",
                "set it to on for the user or database of ulak, unless that is meant",
                is_problem=False,
            )
        )
    if "off" in (fsync, full):
        findings.append(
            Finding(
                f"fsync is {fsync} and full_page_writes {full}: a crash of the machine may destroy the "
                "database",
                "set both to on in the server's configuration",
            )
        )
    return Part("durability", f"synchronous_commit {commit}, fsync {fsync}", values, tuple(findings))


def schema_part(session: Session, place: Place) -> Part:
    """Whether the store is there, and of which version."""
    found = session.drive(Attempt(found_in(place), session.begin, is_proxied=True).work())
    last = newest()
    values = {"schema": place.schema, "version": found.prepared, "known": last}
    if not found.is_there:
        finding = Finding(
            f"there is no store in schema {place.schema!r}",
            "ulak migrate makes it, or whoever enqueues first; or correct the URL's schema=",
        )
        return Part("schema", finding.what, values, (finding,))
    if found.is_behind:
        finding = Finding(
            f"schema {place.schema!r} has version {found.prepared}, and this ulak works with {last}",
            "ulak migrate brings it up to date; a worker of this version does so too when it starts",
        )
        return Part("schema", finding.what, values, (finding,))
    text = f"{place.schema!r}, version {found.prepared}"
    if not (after := found.pending(Half.AFTER)):
        return Part("schema", f"{text}, as this ulak has it", values)
    finding = Finding(
        f"the half of migration {after[0].number} that comes after the deploy has not been done",
        "once no program of an older version runs: ulak migrate --after",
        is_problem=False,
    )
    return Part("schema", text, values, (finding,))


def grants_part(session: Session, place: Place) -> Part:
    """Whether this user may do what programs of ulak do."""
    work = Attempt(missing_grants(place.schema), session.begin, is_proxied=session.is_proxied).work()
    missing = list(session.drive(work))
    if not missing:
        return Part("grants", "this user may do what workers do", {"missing": missing})
    found = Finding(
        f"this user lacks {', '.join(missing[:4])}{f' and {len(missing) - 4} more' if missing[4:] else ''}",
        "have the schema's owner run what ulak migrate --grants ROLE prints, or connect as the owner",
    )
    return Part("grants", "something is missing", {"missing": missing}, (found,))


def clock_part(rows: Rows) -> Part:
    """How far the server's clock, which leases and due times are on, is from this machine's."""
    before = time.time()
    ((there,),) = rows("SELECT extract(epoch FROM clock_timestamp())::float8")
    ahead_s = there - (before + time.time()) / 2
    values = {"ahead_s": round(ahead_s, 3)}
    text = f"the server's is {abs(ahead_s):.1f} s {'ahead of' if ahead_s > 0 else 'behind'} this machine's"
    if abs(ahead_s) <= SKEW_MAX_S:
        return Part("clock", "the server's and this machine's agree", values)
    found = Finding(
        f"{text}; due times that programs here work out are off by that",
        "have both take the time from the same source",
        is_problem=False,
    )
    return Part("clock", text, values, (found,))


def sessions_part(rows: Rows) -> Part:
    """How many sessions the server has, and may have."""
    ((used, most, ours),) = rows(
        "SELECT (SELECT count(*) FROM pg_stat_activity WHERE backend_type = 'client backend'), "
        "current_setting('max_connections')::int, (SELECT count(*) FROM pg_stat_activity "
        "WHERE datname = current_database() AND application_name = 'ulak')"
    )
    values = {"used": used, "max": most, "ulak": ours}
    text = f"{used} of {most} in use, {ours} of them ulak's in this database"
    if used <= most * SESSIONS_SHARE_MAX:
        return Part("sessions", text, values)
    found = Finding(
        f"{used} of the server's {most} connections are in use; when none is left, calls fail",
        "raise max_connections, or find out who holds them: select * from pg_stat_activity",
        is_problem=False,
    )
    return Part("sessions", text, values, (found,))


def transactions_part(rows: Rows) -> Part:
    """The oldest transaction that is open, by anybody, in this database."""
    found = rows(
        "SELECT pid, coalesce(application_name, ''), "
        "extract(epoch FROM clock_timestamp() - xact_start)::float8 "
        "FROM pg_stat_activity WHERE datname = current_database() AND xact_start IS NOT NULL "
        "AND pid <> pg_backend_pid() AND backend_type = 'client backend' ORDER BY xact_start LIMIT 1"
    )
    if not found:
        return Part("transaction", "none is open but this one", {"oldest_s": None})
    ((pid, name, age_s),) = found
    values = {"oldest_s": round(age_s, 1), "pid": pid}
    text = f"the oldest has been open for {age_s:.0f} s (process {pid}{f', {name}' if name else ''})"
    if age_s < OLD_S:
        return Part("transaction", text, values)
    finding = Finding(
        f"a transaction has been open for {age_s:.0f} s (process {pid}): what jobs leave behind cannot be "
        "cleared away meanwhile, and claims become slow",
        f"end it where it was begun, or: select pg_terminate_backend({pid})",
        is_problem=False,
    )
    return Part("transaction", text, values, (finding,))


def table_part(rows: Rows) -> Part:
    """What vacuum has left undone in the table of open jobs."""
    ((dead, live, size, vacuumed_s),) = rows(
        "SELECT coalesce(n_dead_tup, 0), coalesce(n_live_tup, 0), pg_total_relation_size('jobs'), "
        "extract(epoch FROM clock_timestamp() - greatest(last_vacuum, last_autovacuum))::float8 "
        "FROM pg_stat_user_tables WHERE relid = 'jobs'::regclass"
    )
    values = {"dead_rows": dead, "live_rows": live, "bytes": size, "vacuumed_s": vacuumed_s}
    text = f"jobs: {bytes_text(size)}, {live:,} rows, {dead:,} dead ones"
    if dead <= max(DEAD_ROWS_MAX, live):
        return Part("table", text, values)
    found = Finding(
        f"{dead:,} dead rows lie in the table of open jobs, and each claim passes them",
        "vacuum jobs, in the store's schema; see that autovacuum is on and that nothing keeps it waiting",
        is_problem=False,
    )
    return Part("table", text, values, (found,))
