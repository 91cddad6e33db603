"""`ulak migrate` on a file, and what it refuses; tests/postgres/test_migrate.py has the rest."""

from __future__ import annotations

import contextlib
import sqlite3
from pathlib import Path

import pytest

from tests.cli.command import Run, read
from ulak import Queue
from ulak.storage.sqlite.schema import APPLICATION_ID, VERSION, statements


def make_first(path: Path, journal: str) -> None:
    """A store as the first version made it."""
    with contextlib.closing(sqlite3.connect(path, isolation_level=None)) as db:
        db.execute(f"PRAGMA journal_mode = {journal}")
        for statement in statements(1):
            db.execute(statement)
        db.execute("INSERT INTO queues (id, name) VALUES (0, '')")
        db.execute("INSERT INTO store (id, uid, epoch, boot) VALUES (1, 'sqlite-1', 1, 'none')")
        db.execute(f"PRAGMA application_id = {APPLICATION_ID}")
        db.execute("PRAGMA user_version = 1")


def journal_of(path: Path) -> str:
    with contextlib.closing(sqlite3.connect(path)) as db:
        (mode,) = db.execute("PRAGMA journal_mode").fetchone()
    return str(mode)


def test_a_file_is_made_and_then_nothing_is_to_be_done(run: Run, path: Path) -> None:
    plan = read(run, "migrate", "--plan")
    assert (plan["version"], len(plan["before"]), plan["after"]) == (0, VERSION, [])
    assert not path.exists()
    made = read(run, "migrate")
    assert (made["version"], made["before"], len(made["done"])) == (VERSION, [], VERSION)
    with Queue(f"sqlite:///{path}", "mail") as q:
        assert q.enqueue("first") == 1
    assert run("migrate").out == f"sqlite:///{path}: version {VERSION}\n  nothing is to be done\n"


@pytest.mark.parametrize("journal", ["wal", "delete"])
def test_an_older_file_is_brought_up_to_date_and_keeps_its_journal(
    run: Run, path: Path, journal: str
) -> None:
    make_first(path, journal)
    before = path.read_bytes()
    assert "ulak migrate" in run("counts").err
    plan = run("migrate", "--plan").out
    assert plan.startswith(f"sqlite:///{path}: version 1; this ulak works with {VERSION}\n")
    assert path.read_bytes() == before
    assert [step["number"] for step in read(run, "migrate")["done"]] == list(range(2, VERSION + 1))
    assert (journal_of(path) == "wal") is (journal == "wal")
    assert run("counts").status == 0


def test_nothing_comes_after_a_deploy_of_a_file(run: Run, path: Path) -> None:
    make_first(path, "wal")
    done = run("migrate", "--after")
    assert (done.status, done.err) == (0, "")
    assert read(run, "migrate", "--plan")["version"] == 1


@pytest.mark.parametrize("option", [("--sql",), ("--grants", "web")])
def test_sql_for_a_server_is_refused_of_a_file(run: Run, path: Path, option: tuple[str, ...]) -> None:
    done = run("migrate", *option)
    assert (done.status, done.out) == (2, "")
    assert f"{option[0]} is for a PostgreSQL server" in done.err
    assert len(done.err.splitlines()) == 1
    assert not path.exists()


def test_a_store_in_memory_is_refused(run: Run) -> None:
    with Queue("memory://migrated", "mail"):
        done = run("migrate", "--url", "memory://migrated")
    assert (done.status, done.out) == (2, "")
    assert "a store in memory (--url) is made anew each time" in done.err


def test_a_file_of_something_else_is_refused_and_left_alone(run: Run, path: Path) -> None:
    path.write_text("not a database, and long enough to be one that could be read as such")
    before = path.read_bytes()
    for options in ((), ("--plan",)):
        done = run("migrate", *options)
        assert (done.status, done.out) == (69, "")
        assert "Traceback" not in done.err
    assert path.read_bytes() == before
