"""The proxies that other tests put before a server, tried with a plain client."""

from __future__ import annotations

import asyncio
import contextlib
import threading
import time

import pytest

from tests.support import postgres
from tests.support.pooler import Pooler
from tests.support.postgres import conninfo, execute, fresh_database
from tests.support.proxy import FaultProxy, Way
from tests.support.waiting import eventually

psycopg = pytest.importorskip("psycopg") if postgres.unreachable() is None else None

COMMITTED = "SELECT count(*) FROM pg_class WHERE relname = 'kept'"


@pytest.fixture(scope="module")
def url() -> str:
    postgres.need()
    return fresh_database()


@pytest.fixture
def proxy(url):
    with FaultProxy(url) as proxy:
        yield proxy


def connect(url, **options):
    return psycopg.connect(conninfo(url), autocommit=True, **options)


def one(connection, statement):
    return connection.execute(statement).fetchone()[0]


# Faults


def test_a_proxy_passes_everything_on(proxy):
    with connect(proxy.url()) as connection:
        assert one(connection, "SELECT repeat('x', 1000000)") == "x" * 1_000_000
        assert proxy.connections == 1
        assert proxy.passed[Way.TO_CLIENT] > 1_000_000
    eventually(lambda: proxy.connections == 0)


def test_a_proxy_leads_to_any_database_of_its_server(proxy):
    other = fresh_database()
    name = execute(other, "SELECT current_database()")
    assert execute(f"{proxy.url(other)}", "SELECT current_database()") == name
    assert "schema=jobs" in proxy.url(f"{other}&schema=jobs")


def test_a_proxy_serves_an_event_loop_of_the_same_thread(proxy):
    async def ask():
        async with await psycopg.AsyncConnection.connect(proxy.url()) as connection:
            cursor = await connection.execute("SELECT 1")
            return await cursor.fetchone()

    assert asyncio.run(ask()) == (1,)


def test_a_cut_ends_every_connection(proxy):
    with connect(proxy.url()) as first, connect(proxy.url()) as second:
        proxy.cut()
        for connection in (first, second):
            with pytest.raises(psycopg.OperationalError):
                connection.execute("SELECT 1")
    assert proxy.cuts == 2
    assert execute(proxy.url(), "SELECT 1") == [(1,)]


@pytest.mark.parametrize("count", [0, 1, 7, 100, 5000])
def test_a_cut_after_so_many_bytes_lets_just_them_through(proxy, count):
    with connect(proxy.url()) as connection:
        before = proxy.passed[Way.TO_CLIENT]
        proxy.cut_after(count, Way.TO_CLIENT)
        with pytest.raises(psycopg.OperationalError):
            connection.execute("SELECT repeat('x', 100000)")
        assert proxy.passed[Way.TO_CLIENT] - before == count
    assert execute(proxy.url(), "SELECT 1") == [(1,)]


def test_what_is_cut_on_its_way_to_the_server_is_not_done(proxy, url):
    with connect(proxy.url()) as connection:
        proxy.cut_after(10, Way.TO_SERVER)
        with pytest.raises(psycopg.OperationalError):
            connection.execute("CREATE TABLE kept ()")
    assert execute(url, COMMITTED) == [(0,)]


def test_a_lost_reply_is_that_of_something_done(proxy, url):
    with psycopg.connect(proxy.url()) as connection:
        connection.execute("CREATE TABLE kept ()")
        proxy.lose_reply(b"COMMIT")
        with pytest.raises(psycopg.OperationalError):
            connection.commit()
    assert execute(url, COMMITTED) == [(1,)]
    execute(url, "DROP TABLE kept")


def test_a_black_hole_answers_nothing_and_ends_nothing(proxy):
    with connect(proxy.url()) as connection:
        proxy.swallow()

        def ask():
            with contextlib.suppress(psycopg.OperationalError):
                connection.execute("SELECT 1")

        asked = threading.Thread(target=ask, daemon=True)
        asked.start()
        asked.join(0.1)
        assert asked.is_alive()
        with pytest.raises(psycopg.OperationalError, match="timeout"):
            connect(proxy.url(), connect_timeout=2)
        proxy.cut()
        asked.join(5)
        assert not asked.is_alive()
    proxy.heal()
    assert execute(proxy.url(), "SELECT 1") == [(1,)]


def test_a_half_close_ends_one_way(proxy):
    with connect(proxy.url()) as connection:
        proxy.half_close(Way.TO_CLIENT)
        with pytest.raises(psycopg.OperationalError):
            connection.execute("SELECT 1")


def test_delay_and_drip_only_take_time(proxy):
    with connect(proxy.url()) as connection:
        proxy.delay_s = 0.05
        start = time.monotonic()
        assert one(connection, "SELECT 1") == 1
        assert time.monotonic() - start >= 0.1
        proxy.delay_s, proxy.drip_s = 0.0, 0.0005
        assert one(connection, "SELECT repeat('x', 100)") == "x" * 100


def test_refused_connections_are_an_error_at_once(proxy):
    proxy.refuses = True
    with pytest.raises(psycopg.OperationalError):
        connect(proxy.url())
    proxy.heal()
    assert execute(proxy.url(), "SELECT 1") == [(1,)]


# Sessions by the transaction


@pytest.fixture
def pooler(url):
    with Pooler(url, size=1) as pooler:
        yield pooler


def test_many_clients_share_one_session_by_the_transaction(pooler):
    with connect(pooler.url()) as first, connect(pooler.url()) as second:
        backends = {one(c, "SELECT pg_backend_pid()") for c in (first, second, first, second)}
        assert len(backends) == pooler.sessions == 1
        assert first.info.backend_pid not in backends
        assert first.info.backend_pid != second.info.backend_pid


def test_an_open_transaction_keeps_the_session(pooler):
    with psycopg.connect(pooler.url()) as first, connect(pooler.url()) as second:
        first.execute("CREATE TEMPORARY TABLE mine ON COMMIT DROP AS SELECT 1 AS x")
        answers = []
        asks = threading.Thread(target=lambda: answers.append(one(second, "SELECT 2")))
        asks.start()
        assert one(first, "SELECT x FROM mine") == 1
        assert not answers
        first.rollback()
        asks.join(5)
        assert answers == [2]


def test_what_a_session_remembers_is_the_next_ones(pooler):
    with connect(pooler.url()) as first, connect(pooler.url()) as second:
        first.execute("SET lock_timeout TO '7s'")
        assert one(second, "SHOW lock_timeout") == "7s"
        assert one(first, "SELECT pg_try_advisory_lock(1)") is True
        assert (
            one(
                second, "SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' AND pid = pg_backend_pid()"
            )
            == 1
        )
        first.execute("SELECT 1 + %s", (1,), prepare=True)
        with pytest.raises(psycopg.errors.DuplicatePreparedStatement):
            second.execute("SELECT 2 + %s", (1,), prepare=True)
        # As with pgbouncer, the client goes on after an error.
        assert one(second, "SELECT 3") == 3


def test_pipelines_and_copies_pass_through(pooler):
    with connect(pooler.url()) as connection:
        with connection.pipeline():
            cursors = [connection.execute("SELECT %s::int", (number,)) for number in range(20)]
        assert [cursor.fetchone()[0] for cursor in cursors] == list(range(20))
        with connection.transaction(), connection.cursor() as cursor:
            cursor.execute("CREATE TEMPORARY TABLE t (x int) ON COMMIT DROP")
            with cursor.copy("COPY t FROM STDIN") as copy:
                for number in range(1000):
                    copy.write_row((number,))
            assert cursor.execute("SELECT sum(x) FROM t").fetchone() == (499500,)
        assert pooler.sessions == 1


def test_a_client_that_leaves_amid_a_transaction_takes_the_session_along(pooler):
    with psycopg.connect(pooler.url()) as first:
        first.execute("SELECT pg_advisory_xact_lock(5)")
        first.close()
    with connect(pooler.url()) as second:
        eventually(lambda: one(second, "SELECT pg_try_advisory_xact_lock(5)"))


def test_a_lost_session_ends_its_client_and_no_other(pooler, url):
    with psycopg.connect(pooler.url()) as first, connect(pooler.url()) as second:
        backend = one(first, "SELECT pg_backend_pid()")
        execute(url, f"SELECT pg_terminate_backend({backend})")
        with pytest.raises(psycopg.OperationalError):
            first.execute("SELECT 1")
        assert one(second, "SELECT 1") == 1


def test_settings_in_the_startup_packet_are_refused(pooler):
    with pytest.raises(psycopg.OperationalError, match="unsupported startup parameter: options"):
        connect(pooler.url(), options="-c search_path=ulak")
    with connect(pooler.url(), application_name="ulak") as connection:
        assert one(connection, "SELECT 1") == 1


def test_a_statement_can_be_cancelled(pooler):
    with connect(pooler.url()) as connection:
        # `cancel` would keep the interpreter to itself, which the proxy's thread needs too.
        asked = threading.Timer(0.2, connection.cancel_safe)
        asked.start()
        with pytest.raises(psycopg.errors.QueryCanceled):
            connection.execute("SELECT pg_sleep(20)")
        asked.join()
