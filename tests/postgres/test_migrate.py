"""Migrations before a deploy and after it, who may do what, and what is told of both.

A made-up second migration, in a folder of its own, has both halves: it adds a column, and takes an index
away.
"""

from __future__ import annotations

import contextlib
import json
import shutil
import subprocess
import sys
from pathlib import Path
from urllib.parse import quote

import pytest

from tests.postgres.roles import look, schema_of
from tests.support.postgres import conninfo, execute
from tests.support.roles import QUEUE
from tests.support.waiting import eventually
from ulak import Outcome, Queue, SchemaError, StorageUnavailable
from ulak.cli import main
from ulak.storage.postgres import halves

BEFORE = """-- Which machine a worker is on. Nothing else is said of it.
ALTER TABLE workers ADD COLUMN machine text;
CREATE TABLE machines (name text PRIMARY KEY);
"""
AFTER = """-- Nobody looks for these any more.
DROP INDEX ended_otherwise;
"""


@pytest.fixture
def second(tmp_path, monkeypatch):
    """Lets this process's ulak be one that knows a second migration, while inside."""
    folder = tmp_path / "migrations"
    folder.mkdir()
    for file in halves.FOLDER.iterdir():
        shutil.copy(str(file), folder)
    (folder / "0002.before.sql").write_text(BEFORE)
    (folder / "0002.after.sql").write_text(AFTER)

    @contextlib.contextmanager
    def newer(of: Path = folder):
        with monkeypatch.context() as patch:
            patch.setattr(halves, "FOLDER", of)
            yield of

    return newer


@pytest.fixture
def run(url, capfd):
    """Runs a command on the store: its status, what it printed, and its errors."""

    def run(*argv, url=url):
        status = main([*argv, "--url", url])
        said = capfd.readouterr()
        return status, said.out, said.err

    return run


def told(run, *argv):
    """What `ulak migrate` says with --json."""
    status, out, err = run("migrate", *argv, "--json")
    assert (status, err) == (0, "")
    return json.loads(out)


def problems(run, **options):
    """What `ulak doctor` finds wrong: each with its remedy. A server for tests is not durable."""
    _, out, _ = run("doctor", "--json", **options)
    found = [(one["what"], one["fix"]) for one in json.loads(out)["findings"] if one["level"] == "problem"]
    return [one for one in found if "fsync" not in one[0]]


def numbers(steps):
    return [step["number"] for step in steps]


def made(url):
    """What of the made-up migration shows in the store."""
    rows = look(
        url,
        "SELECT column_name FROM information_schema.columns WHERE table_schema = '{0}' "
        "AND column_name = 'machine' UNION ALL SELECT indexname FROM pg_indexes "
        "WHERE schemaname = '{0}' AND indexname = 'ended_otherwise'",
    )
    return {name for (name,) in rows}


OLD, BETWEEN, NEW = {"ended_otherwise"}, {"machine", "ended_otherwise"}, {"machine"}


def psql(url, text, user="ulak"):
    """Run what was printed, as an administrator does."""
    import psycopg

    with psycopg.connect(as_user(conninfo(url), user), autocommit=True) as db:
        db.execute(text.encode())


def as_user(url, user):
    return url.replace("ulak@", f"{user}@", 1)


def test_a_plan_says_what_is_to_be_done_and_changes_nothing(url, run):
    plan = told(run, "--plan")
    assert (plan["version"], numbers(plan["before"]), plan["after"], plan["done"]) == (0, [1], [], [])
    assert look(url, "SELECT count(*) FROM pg_namespace WHERE nspname = '{0}'") == [(0,)]
    status, out, _ = run("migrate", "--plan")
    assert status == 0
    assert "before the deploy: ulak migrate\n    0001  The first schema\n" in out


def test_a_store_is_made_and_then_nothing_is_to_be_done(url, run):
    assert numbers(told(run)["done"]) == [1]
    again = told(run)
    assert (again["version"], again["before"], again["after"], again["done"]) == (1, [], [], [])
    assert run("migrate")[1].endswith("  nothing is to be done\n")
    with Queue(url, QUEUE) as q:
        assert q.enqueue("first") == 1


def test_programs_of_both_versions_work_between_the_halves(url, run, second):
    with Queue(url, QUEUE) as older:
        older.enqueue("of the older")
        with second():
            plan = told(run, "--plan")
            assert (numbers(plan["before"]), numbers(plan["after"])) == ([2], [2])
            done = told(run)
            assert (numbers(done["done"]), done["before"], numbers(done["after"])) == ([2], [], [2])
            assert made(url) == BETWEEN
            with Queue(f"{url}&application_name=newer", QUEUE) as newer:
                lease = newer.deliver()
                assert (lease.payload, newer.ack(lease)) == ("of the older", Outcome.OK)
        # Those of the older version go on, and may still be started.
        older.enqueue("again")
        with Queue(f"{url}&application_name=older", QUEUE) as another:
            assert another.deliver().payload == "again"


def test_what_comes_after_the_deploy_is_done_by_the_command_alone_and_shuts_the_older_out(url, run, second):
    with Queue(url, QUEUE) as q:
        q.enqueue("kept")
    with second():
        with Queue(url, QUEUE) as q:
            assert q.counts().ready == 1
        assert made(url) == BETWEEN
        assert numbers(told(run, "--after")["done"]) == [2]
        assert made(url) == NEW
        assert told(run, "--after")["done"] == []
        with Queue(url, QUEUE) as q:
            assert q.deliver().payload == "kept"
    with pytest.raises(SchemaError, match="has schema 2, which is newer than 1"):
        Queue(url, QUEUE).counts()


def test_what_comes_after_is_not_done_before_what_comes_before(url, run, second):
    run("migrate")
    with second():
        status, _, err = run("migrate", "--after")
        assert status == 69
        assert "ulak migrate, without --after" in err
    assert made(url) == OLD


def test_a_new_store_gets_both_halves_at_once(url, run, second):
    with second():
        assert numbers(told(run)["done"]) == [1, 2]
        assert made(url) == NEW
        assert told(run)["after"] == []


def test_a_half_that_fails_leaves_nothing_behind(url, run, second):
    run("migrate")
    with second() as folder:
        (folder / "0002.before.sql").write_text(f"{BEFORE}ALTER TABLE nobodys ADD COLUMN x int;")
        status, _, err = run("migrate")
        assert (status, err.count("Traceback")) == (69, 0)
    assert made(url) == OLD
    with Queue(url, QUEUE) as q:
        assert q.enqueue("works on") == 1


@pytest.mark.parametrize("has_store", [False, True])
def test_the_printed_sql_does_what_the_command_does(url, run, second, has_store):
    if has_store:
        run("migrate")
    with second():
        for half in ((), ("--after",)):
            status, out, _ = run("migrate", "--sql", *half)
            assert status == 0
            psql(url, out)
        plan = told(run, "--plan")
        assert (plan["version"], plan["before"], plan["after"]) == (2, [], [])
        assert run("migrate", "--sql")[1].endswith("-- nothing is to be done\n")
        assert made(url) == NEW
        with Queue(url, QUEUE) as q:
            assert q.enqueue("payload") == 1


def test_sql_is_printed_and_nothing_else_is_done(url, run):
    assert run("migrate", "--sql")[0] == 0
    assert look(url, "SELECT count(*) FROM pg_namespace WHERE nspname = '{0}'") == [(0,)]


def test_doctor_says_which_half_waits(run, second):
    run("migrate")
    with second():
        ((_, fix),) = problems(run)
        assert fix.startswith("ulak migrate brings it up to date")
        run("migrate")
        assert problems(run) == []
        assert "runs: ulak migrate --after" in " ".join(run("doctor")[1].split())
        run("migrate", "--after")
        assert "ulak migrate" not in run("doctor")[1]


def test_a_schema_of_somebody_elses_is_not_migrated(url, run):
    look(url, "CREATE SCHEMA {0}")
    look(url, "CREATE TABLE {0}.jobs (id int)")
    for options in ((), ("--plan",), ("--sql",)):
        status, out, err = run("migrate", *options)
        assert (status, out) == (69, "")
        assert "holds no store" in err


# Grants


def in_sql(name):
    quoted = name.replace('"', '""')
    return f'"{quoted}"'


@pytest.fixture
def role(url):
    """A user of the server who may do nothing yet."""
    name = f'{schema_of(url)} "o\'brien"'
    quoted = in_sql(name)
    execute(url, f"DROP ROLE IF EXISTS {quoted}")
    execute(url, f"CREATE ROLE {quoted} LOGIN")
    yield name
    look(url, f"DROP OWNED BY {quoted}")
    execute(url, f"DROP ROLE {quoted}")


def url_of(url, role):
    return as_user(url, quote(role))


def test_a_user_with_the_printed_grants_does_all_that_programs_do_and_drops_nothing(url, run, role):
    run("migrate")
    psql(url, run("migrate", "--grants", role)[1])
    theirs = url_of(url, role)
    with Queue(theirs, QUEUE, capacity=10) as q:
        ids = q.enqueue_many(range(5))
        q.enqueue("once", unique_key="u", idempotency_key="i", expires=60)
        q.enqueue("later", delay=60)
        lease = q.deliver()
        q.extend(lease, 60)
        assert q.nack(lease, delay=0) is Outcome.OK
        assert q.ack(q.deliver()) is Outcome.OK
        assert q.cancel([ids[1]]).done
        assert q.redrive([ids[1]]).done
        assert q.delete([ids[2]]).done
        assert q.reprioritise([ids[3]], priority=9).done
        q.configure(capacity=20)
        q.pause()
        q.resume()
        assert q.counts().open == 5
        ran = []
        with q.workers(ran.append, count=2):
            eventually(lambda: len(ran) >= 4)
        # Where claims begin, too, is found out with these grants.
        q._open().edge.store._using(q._open().edge.store.marks._look)
    assert problems(run, url=theirs) == []
    for command in ("counts", "workers", "ls", "prune"):
        assert run(command, url=theirs)[0] == 0
    for text in (
        "DROP TABLE jobs",
        "DROP SCHEMA {0} CASCADE",
        "TRUNCATE jobs",
        "ALTER TABLE jobs ADD COLUMN x int",
        "CREATE TABLE {0}.mine (x int)",
        "DELETE FROM queues",
        "UPDATE store SET version = 9",
        "SELECT setval('job_ids', 1)",
    ):
        with pytest.raises(Exception, match=r"permission denied|must be owner"):
            psql(url, f"SET search_path TO {schema_of(url)}; {text.format(schema_of(url))}", quote(role))


def test_doctor_names_each_grant_that_is_missing(url, run, role):
    run("migrate")
    theirs = url_of(url, role)

    ((what, fix),) = problems(run, url=theirs)
    assert what.startswith(f"this user lacks USAGE on schema {schema_of(url)}, SELECT on store, ")
    assert "ulak migrate --grants" in fix
    psql(url, run("migrate", "--grants", role)[1])
    assert problems(run, url=theirs) == []
    look(url, f"REVOKE DELETE ON {{0}}.jobs FROM {in_sql(role)}")
    look(url, f"REVOKE USAGE ON SEQUENCE {{0}}.job_ids FROM {in_sql(role)}")
    assert [what for what, _ in problems(run, url=theirs)] == [
        "this user lacks DELETE on jobs, USAGE on job_ids"
    ]


def test_a_user_without_grants_is_told_where_they_come_from(url, run, role):
    run("migrate")
    with pytest.raises(StorageUnavailable, match=r"ulak migrate --grants") as caught:
        Queue(url_of(url, role), QUEUE).counts()
    assert len(str(caught.value).splitlines()) <= 6


def test_a_user_who_may_not_change_tables_is_told_who_is_to_migrate(url, run, second, role):
    run("migrate")
    psql(url, run("migrate", "--grants", role)[1])
    with second(), pytest.raises(StorageUnavailable, match="may not do that"):
        Queue(url_of(url, role), QUEUE).counts()


@pytest.mark.parametrize("role", ["", "a" * 64, "line\nbreak"])
def test_a_role_that_can_be_none_is_refused(run, role):
    status, out, err = run("migrate", "--grants", role)
    assert (status, out) == (2, "")
    assert "--grants takes the name of a role" in err


def test_grants_are_printed_without_a_look_at_the_server():
    done = subprocess.run(
        [
            sys.executable,
            "-m",
            "ulak",
            "migrate",
            "-u",
            "postgresql://nobody@127.0.0.1:1/db",
            "--grants",
            "web",
        ],
        capture_output=True,
        text=True,
        check=True,
    )
    assert 'GRANT USAGE ON SCHEMA "ulak" TO "web";' in done.stdout
