"""Files that are not this version's: refused in one clear sentence, with not a byte of them changed."""

from __future__ import annotations

import contextlib
import gzip
import shutil
import sqlite3
from collections.abc import Callable
from operator import attrgetter
from pathlib import Path

import pytest

from tests.cli.command import ulak
from ulak import Queue, SchemaError, UlakError
from ulak.storage.sqlite import schema

OURS = schema.APPLICATION_ID
NEWER = schema.VERSION + 1


def make_store(path: Path) -> None:
    with Queue(f"sqlite:///{path}", "mail") as q:
        q.enqueue("kept")


def execute(path: Path, *statements: str) -> None:
    with contextlib.closing(sqlite3.connect(path, isolation_level=None)) as db:
        for statement in statements:
            db.execute(statement)


def newer(path: Path) -> None:
    make_store(path)
    execute(path, f"PRAGMA user_version = {NEWER}")


def much_newer(path: Path) -> None:
    make_store(path)
    execute(path, f"PRAGMA user_version = {2**31 - 1}", "DROP TABLE jobs")


def without_a_number(path: Path) -> None:
    make_store(path)
    execute(path, "PRAGMA user_version = 0")


def with_a_negative_number(path: Path) -> None:
    make_store(path)
    execute(path, "PRAGMA user_version = -3")


def another_programs(path: Path) -> None:
    execute(path, "CREATE TABLE jobs (id INTEGER)", "INSERT INTO jobs VALUES (7)")


def another_programs_in_wal(path: Path) -> None:
    execute(path, "PRAGMA journal_mode = WAL", "CREATE TABLE jobs (id INTEGER)")


def another_programs_with_a_log(path: Path) -> None:
    """Its writer was killed, or has it open: not all it has is in the file yet."""
    other = path.with_name("open.db")
    with contextlib.closing(sqlite3.connect(other, isolation_level=None)) as db:
        db.execute("PRAGMA journal_mode = WAL")
        db.execute("CREATE TABLE jobs (id INTEGER)")
        for suffix in ("", "-wal"):
            shutil.copy(f"{other}{suffix}", f"{path}{suffix}")
    other.unlink()


def another_programs_by_its_mark(path: Path) -> None:
    execute(path, "PRAGMA application_id = 42", "VACUUM")


def another_programs_by_its_number(path: Path) -> None:
    execute(path, "PRAGMA user_version = 1", "VACUUM")


def text(path: Path) -> None:
    path.write_text("no database at all\n" * 400)


def short_text(path: Path) -> None:
    path.write_bytes(b"\0\0")


def compressed(path: Path) -> None:
    make_store(path)
    path.write_bytes(gzip.compress(path.read_bytes()))


def cut_in_its_head(path: Path) -> None:
    make_store(path)
    path.write_bytes(path.read_bytes()[:60])


def overwritten_after_its_head(path: Path) -> None:
    make_store(path)
    whole = path.read_bytes()
    path.write_bytes(whole[:100] + b"\xa5" * (len(whole) - 100))


REFUSED: dict[Callable[[Path], None], str] = {
    newer: "newer than",
    much_newer: "newer than",
    without_a_number: "schema",
    with_a_negative_number: "schema",
    another_programs: "not one of ulak",
    another_programs_in_wal: "not one of ulak",
    another_programs_with_a_log: "not one of ulak",
    another_programs_by_its_mark: "not one of ulak",
    another_programs_by_its_number: "not one of ulak",
    text: "no SQLite database",
    short_text: "no SQLite database",
    compressed: "no SQLite database",
    cut_in_its_head: "no whole SQLite database",
    overwritten_after_its_head: "no whole SQLite database",
}


NAME = attrgetter("__name__")


def all_bytes(directory: Path) -> dict[str, bytes]:
    """Every file there with its bytes, but for a log's index: it is made of the log, and notes who reads."""
    files = [file for file in directory.rglob("*") if file.is_file() and not file.name.endswith("-shm")]
    return {str(file): file.read_bytes() for file in files}


@pytest.mark.parametrize("make_file", REFUSED, ids=NAME)
@pytest.mark.parametrize("options", ["", "?journal=wal", "?journal=truncate", "?durability=relaxed"])
def test_T16_a_file_of_another_version_or_program_is_refused_and_not_touched(path, make_file, options):
    make_file(path)
    shutil.rmtree(path.with_name(f"{path.name}-workers"), ignore_errors=True)
    before = all_bytes(path.parent)
    for _ in range(2):
        with pytest.raises(SchemaError) as refused, Queue(f"sqlite:///{path}{options}", "mail") as q:
            q.enqueue("payload")
        first, *_ = str(refused.value).split("\n")
        assert str(path) in first
        assert REFUSED[make_file] in first
        assert all_bytes(path.parent) == before


@pytest.mark.parametrize("make_file", [newer, without_a_number, another_programs, text], ids=NAME)
@pytest.mark.parametrize("command", ["counts", "ls", "doctor"])
def test_T16_the_command_says_so_in_one_line_and_touches_nothing(path, make_file, command):
    make_file(path)
    shutil.rmtree(path.with_name(f"{path.name}-workers"), ignore_errors=True)
    before = all_bytes(path.parent)
    done = ulak(command, "--url", f"sqlite:///{path}")
    assert done.returncode != 0
    assert "Traceback" not in done.stderr + done.stdout
    told = " ".join((done.stderr + done.stdout).split())
    assert REFUSED[make_file] in told or "holds no store" in told
    assert all_bytes(path.parent) == before


OLDER: dict[int, tuple[str, ...]] = {
    1: ("DROP TABLE history",),
    2: (
        "DROP INDEX jobs_ended",
        "CREATE INDEX jobs_ended ON jobs (queue, state, ended_at, id) WHERE state IN (4, 5, 6, 7)",
    ),
}
"""By version: what undoes the step from it to the next."""


def make_older(path: Path, version: int) -> None:
    """A store as that version has left it."""
    make_store(path)
    undone = [
        statement for number in range(schema.VERSION - 1, version - 1, -1) for statement in OLDER[number]
    ]
    execute(path, *undone, f"PRAGMA user_version = {version}", "PRAGMA wal_checkpoint(TRUNCATE)")


def tables(path: Path) -> set[tuple[str, str]]:
    with contextlib.closing(sqlite3.connect(path)) as db:
        return set(db.execute("SELECT name, sql FROM sqlite_schema"))


@pytest.mark.parametrize("version", range(1, schema.VERSION))
@pytest.mark.parametrize("options", ["", "?journal=truncate"])
def test_T16_an_older_file_is_brought_up_to_date_with_its_jobs(path, version, options):
    make_store(path)
    expected = tables(path)
    path.unlink()
    make_older(path, version)
    assert tables(path) != expected
    with Queue(f"sqlite:///{path}{options}", "mail") as q:
        assert [job.payload for job in q.jobs()] == ["kept"]
        q.enqueue("new")
    assert tables(path) == expected
    with contextlib.closing(sqlite3.connect(path)) as db:
        assert db.execute("PRAGMA user_version").fetchone() == (schema.VERSION,)
    with Queue(f"sqlite:///{path}", "mail") as q:
        assert [job.payload for job in q.jobs()] == ["kept", "new"]


def test_T16_what_one_process_has_open_another_may_bring_up_to_date(path):
    make_older(path, 1)
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(schema, "VERSION", 1)
        earlier = Queue(f"sqlite:///{path}", "mail").__enter__()
        assert earlier.counts().ready == 1
    with Queue(f"sqlite:///{path}?durability=relaxed", "mail") as later:
        later.enqueue("later")
        earlier.enqueue("earlier")
        assert later.counts().ready == earlier.counts().ready == 3
    earlier.close()


def test_T16_who_only_looks_changes_no_older_file_and_names_who_does(path):
    make_older(path, 1)
    shutil.rmtree(path.with_name(f"{path.name}-workers"), ignore_errors=True)
    before = all_bytes(path.parent)
    done = ulak("counts", "--url", f"sqlite:///{path}")
    assert done.returncode != 0
    assert f"has schema 1, and this ulak works with {schema.VERSION}" in done.stderr
    assert "ulak work" in done.stderr
    assert all_bytes(path.parent) == before


def test_T16_an_older_file_stays_whole_where_it_cannot_be_brought_up_to_date(path, monkeypatch):
    make_older(path, 1)
    before = tables(path)
    real = schema.statements
    with monkeypatch.context() as patched:
        patched.setattr(schema, "statements", lambda number: [*real(number), "no SQL"])
        with pytest.raises(UlakError), Queue(f"sqlite:///{path}", "mail"):
            pass
    assert tables(path) == before
    with Queue(f"sqlite:///{path}", "mail") as q:
        assert [job.payload for job in q.jobs()] == ["kept"]


def test_T16_an_empty_file_becomes_a_store(path):
    path.touch()
    make_store(path)
    with Queue(f"sqlite:///{path}", "mail") as q:
        assert q.counts().ready == 1


def test_T16_a_creation_that_was_cut_short_is_begun_anew(path, monkeypatch):
    class CutShortError(Exception):
        pass

    def cut_short(number: int) -> list[str]:
        raise CutShortError

    with monkeypatch.context() as patched:
        patched.setattr(schema, "statements", cut_short)
        with pytest.raises(CutShortError):
            make_store(path)
    make_store(path)
    with Queue(f"sqlite:///{path}", "mail") as q:
        assert q.counts().ready == 1


def test_T16_a_table_that_was_taken_away_is_told_in_ulaks_words(path):
    make_store(path)
    execute(path, "DROP TABLE keys")
    with Queue(f"sqlite:///{path}", "mail") as q:
        assert q.counts().ready == 1
        with pytest.raises(UlakError, match="keys"):
            q.enqueue("payload", idempotency_key="key")


class _OvertakenInBetween(sqlite3.Connection):
    """Another process makes the store just after the first statement of this connection."""

    overtake: Callable[[], None] | None = None

    def execute(self, sql, *values):
        cursor = super().execute(sql, *values)
        if "application_id" in sql and (overtake := self.overtake) is not None:
            self.overtake = None
            row = cursor.fetchone()
            overtake()
            return super().execute("SELECT ?", row)
        return cursor


def test_T16_a_store_that_another_process_is_making_is_not_a_strangers_file(path):
    with contextlib.closing(sqlite3.connect(path)) as empty:
        empty.execute("PRAGMA journal_mode = WAL")
    with contextlib.closing(sqlite3.connect(path, factory=_OvertakenInBetween)) as db:

        def make():
            with Queue(f"sqlite:///{path}"):
                pass

        db.overtake = make
        assert schema.check_current(db, str(path)) == 0
        assert db.overtake is None
        assert not db.in_transaction
        assert schema.check_current(db, str(path)) == schema.VERSION
