"""What hurt users of other queues, with what lies in the database: schemas, backlogs, old snapshots.

Scenarios T16, V1, V2 and Z4; a test's name carries the id of its scenario.
"""

from __future__ import annotations

import contextlib
import itertools
import math
import subprocess
import sys
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from tests.postgres.roles import IN_THIS_DATABASE, look, schema_of, sessions
from tests.support.children import child
from tests.support.postgres import conninfo, execute
from tests.support.roles import LONG_S, QUEUE, work_till_drained
from tests.support.waiting import WAIT_S, eventually
from ulak import ConfigError, Lease, Outcome, Queue, SchemaError
from ulak.storage.postgres import link, schema
from ulak.storage.postgres.attempt import Attempt
from ulak.storage.postgres.place import place_of

# Schemas of another version, or of somebody else


def everything(url: str) -> list[tuple]:
    """What there is in the store's schema, and in its one row."""
    which = f"relnamespace = '{schema_of(url)}'::regnamespace"
    return sorted(execute(url, f"SELECT relname::text, relkind::text FROM pg_class WHERE {which}"))


def newer(url: str) -> None:
    """A store that a later version has made."""
    with Queue(url, QUEUE) as q:
        q.enqueue("kept")
    look(url, "UPDATE {0}.store SET version = 99")


def strangers(url: str) -> None:
    """A schema that holds something else."""
    look(url, "CREATE SCHEMA {0}")
    look(url, "CREATE TABLE {0}.jobs (id int)")


def strangers_store(url: str) -> None:
    """A schema in which something else is called as the store's own table."""
    look(url, "CREATE SCHEMA {0}")
    look(url, "CREATE TABLE {0}.store (id int, version text)")


def without_data(url: str) -> None:
    """A store that was restored without what was in it."""
    with Queue(url, QUEUE) as q:
        q.enqueue("lost")
    look(url, "TRUNCATE {0}.store")


REFUSED = {
    newer: "has schema 99, which is newer",
    strangers: "holds no store",
    strangers_store: "holds no store",
    without_data: "says nothing of itself",
}


@pytest.mark.parametrize("make_schema", REFUSED, ids=lambda make: make.__name__)
def test_T16_a_schema_of_another_version_or_owner_is_refused_and_not_touched(url, make_schema):
    make_schema(url)
    before = everything(url)
    for _ in range(2):
        with pytest.raises(SchemaError, match=REFUSED[make_schema]), Queue(url, QUEUE) as q:
            q.enqueue("payload")
    assert everything(url) == before


@pytest.mark.parametrize("make_schema", REFUSED, ids=lambda make: make.__name__)
def test_T16_the_command_says_so_in_few_lines(url, make_schema):
    make_schema(url)
    done = subprocess.run(
        [sys.executable, "-m", "ulak", "counts", "--url", url], capture_output=True, text=True, check=False
    )
    assert done.returncode != 0
    assert "Traceback" not in done.stderr
    assert REFUSED[make_schema] in " ".join(done.stderr.split())
    assert len(done.stderr.splitlines()) <= 6


def test_T16_a_table_that_was_taken_away_is_told_in_ulaks_words(make, url):
    q = make()
    q.enqueue("payload")
    look(url, "DROP TABLE {0}.keys")
    with pytest.raises(SchemaError, match="no store of this version"):
        q.enqueue("payload", idempotency_key="key")
    assert q.deliver().payload == "payload"


def test_T16_an_empty_schema_that_somebody_has_made_becomes_a_store(url):
    look(url, "CREATE SCHEMA {0}")
    with Queue(url, QUEUE) as q:
        assert q.enqueue("payload") == 1


def test_T16_of_two_that_find_no_store_one_makes_it_and_the_other_uses_it(url):
    place = place_of(url)

    def work(session, make):
        return Attempt(make(place), session.begin, is_proxied=True).work()

    with contextlib.closing(link.Session(place)) as first, contextlib.closing(link.Session(place)) as second:
        for session in (first, second):
            assert session.drive(work(session, schema.begun)) is None
        with ThreadPoolExecutor(1) as thread:
            making = work(first, schema.begin)
            ask = next(making)
            while "pg_advisory_xact_lock" not in ask.text:
                ask = making.send(first.execute(ask))
            reply = first.execute(ask)
            used = thread.submit(second.drive, work(second, schema.begin))
            waits = f"locktype = 'advisory' AND NOT granted AND {IN_THIS_DATABASE}"
            eventually(lambda: look(url, f"SELECT 1 FROM pg_locks WHERE {waits}"))
            made = first.drive(resumed(making, reply))
            assert used.result(WAIT_S)[:2] == made[:2]
    with Queue(url, QUEUE) as q:
        assert q.enqueue("payload") == 1


def resumed(work, reply):
    """Work that goes on with this reply."""
    try:
        ask = work.send(reply)
        while True:
            ask = work.send((yield ask))
    except StopIteration as stop:
        return stop.value


def test_T16_many_that_open_a_new_store_at_once_make_one(url):
    with contextlib.ExitStack() as stack:
        workers = [stack.enter_context(child(work_till_drained, url)) for _ in range(4)]
        for worker in workers:
            worker.hear("ready")
            worker.tell("go")
        assert [worker.hear("ran") for worker in workers] == [[]] * 4


_apart = itertools.count(1)


def _separate(url: str) -> Queue:
    # Another URL of the same store, so that nothing is shared within this process.
    return Queue(f"{url}&application_name=apart{next(_apart)}", QUEUE)


def test_T16_two_schemas_of_one_database_are_two_stores(url):
    other = f"{url}_other"
    with Queue(url, QUEUE) as q, Queue(other, QUEUE) as r:
        assert (q.enqueue("here"), r.enqueue("there")) == (1, 1)
        assert (q.deliver().payload, r.deliver().payload) == ("here", "there")
        assert (q.deliver(), r.deliver()) == (None, None)
        # Each has its one holder, whose number is the same.
        assert q.tick_timeouts() == r.tick_timeouts() == 0
    look(url, f"DROP SCHEMA {schema_of(other)} CASCADE")


@pytest.mark.parametrize(
    "name",
    [
        '"',
        "'",
        "a;b",
        "a b",
        "A",
        "pg_catalog",
        "public",
        "1a",
        "",
        "%s",
        "{0}",
        "é",
        "a" * 64,
        "a%00b",
        "a%22b",
    ],
)
def test_Z4_a_hostile_schema_is_refused_before_anything_is_asked(name):
    url = f"postgresql://ulak@/nowhere?host=/nonexistent&schema={name}"
    with pytest.raises(ConfigError, match="schema="), Queue(url, QUEUE) as q:
        q.counts()


# Backlogs


WAITING = {
    "ready": "state = 0",
    "ready, in another queue": "state = 0, queue = queue + 1",
    "scheduled": "state = 1, run_at = 9e9",
    "that expire later": "expires_at = 9e9",
    "held": "state = 3, task = 'unknown'",
    "held, in another queue": "state = 3, task = 'unknown', queue = queue + 1",
}


def fill(url: str, jobs: int, which: str) -> None:
    """Add so many jobs as nobody enqueues them: by one statement. The queue is there, and empty."""
    columns = "id, queue, state, priority, max_attempts, created_at, run_at, codec, payload"
    given = "SELECT nextval('{0}.job_ids'), id, 0, n % 7, 5, 1, 1, 'json', '7' FROM {0}.queues"
    given += f", generate_series(1, {jobs}) AS n WHERE name = '{QUEUE}'"
    look(url, f"INSERT INTO {{0}}.jobs ({columns}) {given}")
    look(url, f"UPDATE {{0}}.jobs SET {WAITING[which]}")
    look(
        url,
        "INSERT INTO {0}.tallies (queue, shard, entered, scheduled, held) SELECT queue, NULL, count(*), "
        "count(*) FILTER (WHERE state = 1), count(*) FILTER (WHERE state = 3) FROM {0}.jobs GROUP BY queue",
    )
    # What has ended, too: a table that is all but empty is walked, and rightly.
    columns = "id, queue, priority, attempt, delivery, max_attempts, crashes, created_at, run_at, ended_at, "
    columns += "state, cancel_requested, codec, payload"
    given = "SELECT nextval('{0}.job_ids'), id, 0, 1, 1, 5, 0, 1, 1, 9e9 + n, 4, false, 'json', '7' "
    given += f"FROM {{0}}.queues, generate_series(1, {jobs // 2}) AS n WHERE name = '{QUEUE}'"
    look(url, f"INSERT INTO {{0}}.ended ({columns}) {given}")
    for table in ("jobs", "ended"):
        execute(url, f"VACUUM ANALYZE {schema_of(url)}.{table}")


READ = (
    "SELECT coalesce(sum(seq_tup_read + coalesce(idx_tup_fetch, 0)), 0)::bigint FROM pg_stat_user_tables "
    "WHERE schemaname = '{0}' AND relname IN ('jobs', 'ended')"
)


def rows_read(url: str, waiting: int, which: str) -> dict[str, int]:
    """How many rows of jobs each call makes the server read with so many waiting."""
    with Queue(url, "another") as other, Queue(url, QUEUE, capacity=10_000_000) as q:
        q.counts()
        other.counts()
    fill(url, waiting, which)
    read = {}
    for name, call in CALLS.items():
        before = look(url, READ)[0][0]
        with Queue(url, QUEUE, visibility_timeout=LONG_S) as q:
            call(q)
        # What a session has counted is known once it has ended.
        eventually(lambda: not sessions(url))
        read[name] = look(url, READ)[0][0] - before
    return read


def settle(q: Queue, verdict: Callable[[Lease], object], jobs: int = 1) -> None:
    for lease in q.deliver_many(jobs):
        verdict(lease)


CALLS: dict[str, Callable[[Queue], object]] = {
    "enqueue": lambda q: q.enqueue("payload", -5),
    "enqueue by a key": lambda q: q.enqueue("payload", unique_key="one", idempotency_key="one"),
    "claim and ack": lambda q: settle(q, q.ack),
    "claim and ack 100": lambda q: q.ack_many(q.deliver_many(100)),
    "claim and nack": lambda q: settle(q, q.nack),
    "claim and delay": lambda q: settle(q, lambda lease: q.nack(lease, delay=60)),
    "claim and release": lambda q: settle(q, q.release),
    "claim for tasks": lambda q: q._open().edge.store.claim(
        [QUEUE], 5, worker="w", lease_s=LONG_S, tasks=frozenset({"known", None})
    ),
    "horizon": lambda q: q._open().edge.store.horizon([QUEUE]),
    "counts": lambda q: q.counts(),
    "tick": lambda q: q.tick_timeouts(),
    "jobs": lambda q: q.jobs(limit=10),
    "prune": lambda q: q.prune(),
}


@pytest.mark.parametrize("which", WAITING)
def test_V2_no_call_reads_more_rows_with_fifty_thousand_waiting_than_with_a_thousand(url, which):
    few = rows_read(f"{url}_few", 1_000, which)
    many = rows_read(url, 50_000, which)
    assert {name: rows for name, rows in many.items() if rows > allowed(name, few[name], which)} == {}
    assert sum(few.values()) > 0
    look(url, f"DROP SCHEMA {schema_of(url)}_few CASCADE")


def allowed(call: str, few: int, which: str) -> float:
    """How many rows a call may read where it read so few with a thousand waiting.

    A page of the jobs of one queue walks by those of another: that is an operator's to wait for.
    """
    return math.inf if call == "jobs" and "another" in which else 1.5 * few + 50


def plans(asked: list[tuple[str, object]], url: str) -> Iterator[tuple[str, dict[str, Any]]]:
    """The parts of the plans of these statements, as they are for known values and for any."""
    import psycopg

    with psycopg.connect(conninfo(url), autocommit=True) as db:
        db.execute(f"SET search_path TO {schema_of(url)}")
        link.adapt(db)
        for mode in ("force_custom_plan", "force_generic_plan"):
            db.execute(f"SET plan_cache_mode TO {mode}")
            for text, params in asked:
                (plan,) = db.execute(f"EXPLAIN (FORMAT JSON) {text}", params, prepare=True).fetchone()
                parts = [plan[0]["Plan"]]
                while parts:
                    part = parts.pop()
                    parts += part.get("Plans", [])
                    yield f"{mode}: {text}", part


@pytest.mark.parametrize("which", WAITING)
def test_V2_no_statement_sorts_or_scans_what_waits(url, monkeypatch, which):
    asked, execute_ = [], link.Session.execute

    def noting(self, ask):
        if ask.text.startswith(("SELECT", "WITH", "UPDATE", "INSERT", "DELETE")):
            asked.append((ask.text, ask.params))
        return execute_(self, ask)

    with Queue(url, QUEUE, capacity=10_000_000, visibility_timeout=LONG_S) as q:
        q.counts()
        fill(url, 50_000, which)
        monkeypatch.setattr(link.Session, "execute", noting)
        for call in CALLS.values():
            call(q)
        monkeypatch.undo()
    wrong = set()
    for text, part in plans(asked, url):
        is_scan = part["Node Type"] == "Seq Scan" and part.get("Relation Name") in {"jobs", "ended"}
        is_sort = part["Node Type"] == "Sort" and part["Plan Rows"] > 1_000
        if is_scan or is_sort:
            wrong.add(f"{part['Node Type']}, {part['Plan Rows']} rows: {text}")
    assert sorted(wrong) == []
    assert any("SKIP LOCKED" in text for text, _ in asked)


# Old snapshots


def test_V1_work_goes_on_while_a_snapshot_is_held_and_falls_back_to_where_it_was(url):
    import psycopg

    with Queue(url, QUEUE) as q, psycopg.connect(conninfo(url)) as old:
        old.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ")
        old.execute("SELECT count(*) FROM pg_class")
        q.enqueue_many(range(6_000))
        with child(work_till_drained, url) as first, child(work_till_drained, url) as second:
            for worker in (first, second):
                worker.hear("ready")
                worker.tell("go")
            ran = [worker.hear("ran", within_s=60.0) for worker in (first, second)]
        assert sum(map(len, ran)) == 6_000
        job_id = q.enqueue("last")
        lease = q.deliver()
        assert (lease.id, q.ack(lease)) == (job_id, Outcome.OK)
        assert len(old.execute("SELECT 1").fetchall()) == 1
