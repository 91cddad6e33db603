"""Raw yardsticks: what a good programmer writes with psycopg alone, committed before a call returns, no more.

No capacity, no retries, no counts. They say how much of a library's time goes into what it does beyond that.
"""

from __future__ import annotations

import asyncio
import functools
import time

import psycopg

from bench.onserver import loops

TAKEN = 100

SCHEMA = """
CREATE TABLE jobs (
    id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY, queue integer NOT NULL DEFAULT 1,
    state smallint NOT NULL DEFAULT 0, priority bigint NOT NULL DEFAULT 0, delivery bigint NOT NULL DEFAULT 0,
    payload bytea NOT NULL
);
CREATE INDEX jobs_ready ON jobs (queue, priority DESC, id) WHERE state = 0;
"""
INSERT = "INSERT INTO jobs (payload) VALUES (%b) RETURNING id"
INSERT_MANY = (
    "INSERT INTO jobs (payload) SELECT u.payload FROM unnest(%b::bytea[]) WITH ORDINALITY AS u (payload, n) "
    "ORDER BY u.n RETURNING id"
)
PICKED = (
    "picked AS MATERIALIZED (SELECT id FROM jobs WHERE queue = 1 AND state = 0 ORDER BY priority DESC, id "
    "LIMIT %b::integer FOR UPDATE SKIP LOCKED)"
)
CLAIMED = (
    "UPDATE jobs SET state = 2, delivery = delivery + 1 FROM picked WHERE jobs.id = picked.id "
    "RETURNING jobs.id, jobs.delivery, jobs.payload"
)
CLAIM = f"WITH {PICKED} {CLAIMED}"
ACK = (
    "DELETE FROM jobs USING unnest(%b::bigint[], %b::bigint[]) AS a (id, delivery) "
    "WHERE jobs.id = a.id AND jobs.delivery = a.delivery AND jobs.state = 2"
)
FUSED = f"WITH acked AS ({ACK}), {PICKED} {CLAIMED}"


def connected(url):
    """An autocommitting connection to a database with the table, where each commit is on the disk."""
    connection = psycopg.connect(url, autocommit=True, cursor_factory=psycopg.Cursor)
    connection.prepare_threshold = 0
    (mode,) = connection.execute("SHOW synchronous_commit").fetchone()
    if mode != "on":
        raise SystemExit(f"synchronous_commit is {mode}, not on")
    connection.execute("SET client_min_messages = warning")
    connection.execute(SCHEMA, prepare=False)
    return connection


def filled(loop, jobs, url):
    """Run a loop that puts jobs in: loop(cursor, jobs) -> (how many there are now, figures)."""
    with connected(url) as connection, connection.cursor(binary=True) as cursor:
        expected, found = loop(cursor, jobs)
        loops.check(counted(connection), expected)
    return found


def counted(connection):
    return connection.execute("SELECT count(*) FROM jobs").fetchone()[0]


def lone(jobs, url):
    def loop(cursor, jobs):
        return loops.one_by_one(lambda payload: cursor.execute(INSERT, (payload,)).fetchone()[0], jobs)

    return filled(loop, jobs, url)


def many(jobs, url):
    return filled(lambda cursor, jobs: loops.batched(functools.partial(put_many, cursor), jobs), jobs, url)


def put_many(cursor, payloads):
    return [row[0] for row in cursor.execute(INSERT_MANY, (payloads,)).fetchall()]


def drained(turn, jobs, url):
    """Call turn(cursor, what was claimed) until nothing is left; it acks that, and claims more."""
    with connected(url) as connection, connection.cursor(binary=True) as cursor:
        for batch in loops.batches(jobs):
            put_many(cursor, batch)
        connection.execute("VACUUM ANALYZE jobs")
        start = time.perf_counter()
        claimed = turn(cursor, [])
        done = 0
        while claimed:
            done += len(claimed)
            claimed = turn(cursor, claimed)
        took = time.perf_counter() - start
        loops.check(done, jobs)
        loops.check(counted(connection), 0)
    return {"rate": jobs / took}


def in_batches(cursor, claimed):
    if claimed:
        cursor.execute(ACK, columns(claimed))
    return sorted(cursor.execute(CLAIM, (TAKEN,)).fetchall())


def fused(cursor, claimed):
    return sorted(cursor.execute(FUSED, (*columns(claimed), TAKEN)).fetchall())


def columns(claimed):
    return [row[0] for row in claimed], [row[1] for row in claimed]


def latency(jobs, url):
    connected(url).close()
    return asyncio.run(woken(jobs, url))


async def woken(jobs, url):
    """A worker that sleeps in LISTEN and claims when it is told; acks after, as a worker does."""
    producer = await psycopg.AsyncConnection.connect(url, autocommit=True)
    worker = await psycopg.AsyncConnection.connect(url, autocommit=True)
    listener = await psycopg.AsyncConnection.connect(url, autocommit=True)
    timer = loops.Latency()

    async def work():
        await listener.execute("LISTEN jobs")
        async with worker.cursor(binary=True) as cursor:
            async for _ in listener.notifies():
                await cursor.execute(CLAIM, (1,))
                for row in await cursor.fetchall():
                    await timer.handler(row[2])
                    await cursor.execute(ACK, ([row[0]], [row[1]]))

    async with producer.cursor(binary=True) as cursor:

        async def put(payload):
            await cursor.execute(PUT_AND_TELL, (payload,))

        working = asyncio.create_task(work())
        await asyncio.sleep(0.2)
        found = await timer.measure(put, jobs)
        working.cancel()
    for connection in (producer, worker, listener):
        await connection.close()
    return found


PUT_AND_TELL = f"WITH put AS ({INSERT}) SELECT id, pg_notify('jobs', '') FROM put"

RAW = {"enqueue": lone}
UNNEST = {"enqueue-many": many}
BATCHES = {"drain": functools.partial(drained, in_batches)}
FUSED_TURNS = {"drain": functools.partial(drained, fused)}
WOKEN = {"latency": latency}
