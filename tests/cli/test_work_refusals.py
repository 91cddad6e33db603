"""Errors at first contact: what `ulak work` says of what it cannot work with, word for word.

Each says what is wrong, where that was set and what to do, with a code and an exit status of its own. What
cannot be imported is in `test_target.py`; what every command shares, in `test_main.py`.
"""

# ruff: noqa: E501 - what is said stands here as it is said

from __future__ import annotations

import sqlite3
import sys
from contextlib import closing
from pathlib import Path
from typing import NamedTuple

import pytest

from tests.cli.command import COMMAND
from tests.cli.working import HELLO, Refused
from tests.support.commands import running
from ulak import Queue
from ulak.storage.sqlite import place

HELP = "  see ulak work --help"
BY_URL = "  set by --url on the command line"
BY_APP = "  set by App(...), where hello:app is made"


class Case(NamedTuple):
    args: str
    lines: list[str]
    status: int = 2
    hello: str = HELLO


FIRST_CONTACT = {
    # The command line
    "no App": Case("", ["error U302: the following arguments are required: APP", HELP]),
    "one argument too many": Case("hello:app mail", ["error U302: unexpected argument 'mail'", HELP]),
    "an unknown option": Case(
        "hello:app --concurency 3",
        ["error U302: unknown option '--concurency'; did you mean --concurrency?", HELP],
    ),
    "an option of another program": Case(
        "hello:app --autoreload", ["error U302: unknown option '--autoreload'; did you mean --reload?", HELP]
    ),
    "an option without its value": Case(
        "hello:app --grace", ["error U302: --grace: expected one argument", HELP]
    ),
    "a bad number": Case(
        "hello:app --concurrency many",
        ["error U302: --concurrency: 'many' is not a whole number from 1 to 10,000", HELP],
    ),
    "no process": Case(
        "hello:app --processes 0",
        ["error U302: --processes: '0' is not a whole number from 1 to 1,000", HELP],
    ),
    "no job": Case(
        "hello:app --max-jobs 0",
        ["error U302: --max-jobs: '0' is not a whole number from 1 to 1,000,000,000", HELP],
    ),
    "a bad duration": Case(
        "hello:app --grace 30sec",
        [
            (
                "error U302: --grace: cannot read '30sec' as a duration; write a number with ms, s, m, h or d, "
                "such as 20ms or 1.5m"
            ),
            HELP,
        ],
    ),
    "a bad size": Case(
        "hello:app --max-rss 512",
        [
            (
                "error U302: --max-rss: cannot read '512' as a size; write a number with K, M or G, such as 512M "
                "or 1.5G"
            ),
            HELP,
        ],
    ),
    "an unknown executor": Case(
        "hello:app --executor proces",
        ["error U302: --executor: unknown value 'proces'; did you mean process?", HELP],
    ),
    "an unknown form of the log": Case(
        "hello:app --log-format jsn",
        ["error U302: --log-format: unknown value 'jsn'; did you mean json?", HELP],
    ),
    "a queue without a name": Case(
        "hello:app --queues mail,",
        ["error U302: --queues: a queue without a name; write mail,default or mail=3,default=1", HELP],
    ),
    "a queue twice": Case(
        "hello:app --queues mail,mail",
        ["error U302: --queues: queue 'mail' twice; write mail,default or mail=3,default=1", HELP],
    ),
    "a bad weight": Case(
        "hello:app --queues mail=0",
        ["error U302: --queues: '0' is not a whole number from 1 to 1,000", HELP],
    ),
    "an undeclared queue": Case(
        "hello:app --queues default,mial",
        [
            "error U110: the App has no queue 'mial'; did you mean 'mail'?",
            "  declare it: App(queues=[..., 'mial'])",
            "  set by --queues on the command line",
        ],
    ),
    # The App
    "a factory": Case(
        "hello:make",
        [
            "error U302: 'make' of hello.py is a function, not an App",
            "  functions are not called here: add a line app = make(), and name hello:app",
            "  set by 'hello:make' on the command line",
        ],
        hello="from ulak import App\ndef make():\n    return App()",
    ),
    "two Apps": Case(
        "hello",
        ["error U302: hello.py has several Apps; name one of hello:one, hello:two"],
        hello="from ulak import App\none, two = App(), App()",
    ),
    "no task": Case(
        "hello:app",
        [
            "error U302: hello:app has no tasks, so every job would have to be held",
            "  name a module that imports those which define them",
        ],
        hello="from ulak import App\napp = App('sqlite:///jobs.db')",
    ),
    "a module that raises": Case(
        "hello:app",
        [
            "error U302: importing hello raised ZeroDivisionError: division by zero",
            "  at hello.py:1, in <module>; -v shows the whole traceback",
            "  set by 'hello:app' on the command line",
        ],
        hello="1 / 0",
    ),
    "a bad URL in the module": Case(
        "hello:app",
        [
            (
                "error U302: importing hello raised ConfigError: a store's URL starts with a scheme: 'memory://', "
                "'memory://name', 'sqlite:///jobs.db', 'postgresql://user@host/database' [U302]"
            ),
            "  at hello.py:2, in <module>; -v shows the whole traceback",
            "  set by 'hello:app' on the command line",
        ],
        hello="from ulak import App\napp = App('jobs.db')",
    ),
    "a task that cannot be": Case(
        "hello:app",
        [
            (
                "error U302: importing hello raised ArgumentError: a queue's name must match "
                "[a-z0-9][a-z0-9._-]{0,63}, got 'E-Mail' [U110]"
            ),
            "  at hello.py:3, in <module>; -v shows the whole traceback",
            "  set by 'hello:app' on the command line",
        ],
        hello="from ulak import App\napp = App()\n@app.task(queue='E-Mail')\ndef f(): ...",
    ),
    "a loop for plain functions": Case(
        "hello:app --executor async",
        [
            (
                "error U110: executor='async' is for tasks that are all async def; a def would block the loop: "
                "hello.f"
            ),
            "  set by --executor on the command line, or the lack of it",
        ],
        hello="from ulak import App\napp = App('sqlite:///jobs.db')\n@app.task\ndef f(): ...",
    ),
    "less memory than it takes": Case(
        "hello:app --max-rss 1M",
        ["error U302: --max-rss 1M is less than the RSS that hello:app takes before its first job"],
    ),
    # The store
    "a store in memory": Case(
        "hello:app",
        [
            "error U302: hello:app is on memory://, and what is in memory only its own process sees",
            # Not --url alone: the program that enqueues would still do so in memory.
            (
                '  write App("sqlite:///jobs.db"), so that the program that enqueues is on it too; or let that '
                'one work: "with app.workers():"'
            ),
        ],
        hello=HELLO.replace("sqlite:///jobs.db", "memory://"),
    ),
    "a store in memory, by --url": Case(
        "hello:app --url memory://",
        [
            "error U302: hello:app is on memory://, and what is in memory only its own process sees",
            "  name a file: --url sqlite:///jobs.db",
        ],
    ),
    "a URL without a scheme": Case(
        "hello:app --url jobs.db",
        [
            (
                "error U302: a store's URL starts with a scheme: 'memory://', 'memory://name', "
                "'sqlite:///jobs.db', 'postgresql://user@host/database'"
            ),
            BY_URL,
        ],
    ),
    "two slashes": Case(
        "hello:app --url sqlite://jobs.db",
        [
            (
                "error U302: a SQLite store's URL is 'sqlite:///jobs.db', relative to the current directory, or "
                "'sqlite:////var/lib/app/jobs.db'"
            ),
            BY_URL,
        ],
    ),
    "an unknown setting of the URL": Case(
        "hello:app --url sqlite:///jobs.db?journal=off",
        ["error U302: journal= is one of wal, truncate", BY_URL],
    ),
    "a store that is not there yet": Case(
        "hello:app --url redis://ada:secret@localhost/0",
        [
            (
                "error U302: no store for 'redis://'; this version has 'memory://', 'memory://name', "
                "'sqlite:///jobs.db' and 'postgresql://user@host/database'"
            ),
            BY_URL,
        ],
    ),
    "a folder that is not there": Case(
        "hello:app --url sqlite:///no/jobs.db",
        [
            (
                'error U302: the directory of "HERE/no/jobs.db" does not exist; create it, or correct the path in '
                "the URL"
            ),
            BY_URL,
        ],
    ),
    "a folder in place of a file": Case(
        "hello:app --url sqlite:///folder",
        ['error U302: "HERE/folder" is a directory; name a database file in the URL', BY_URL],
    ),
    "no database": Case(
        "hello:app",
        [
            'error U204: "HERE/jobs.db" is no SQLite database',
            "  name the file of a store, or one that is not there yet",
            BY_APP,
        ],
        status=69,
    ),
    "a database of another program": Case(
        "hello:app --url sqlite:///foreign.db",
        [
            'error U204: "HERE/foreign.db" is a SQLite database, but not one of ulak; nothing was changed',
            "  give ulak a file of its own",
            BY_URL,
        ],
        status=69,
    ),
    "a newer schema": Case(
        "hello:app --url sqlite:///newer.db",
        [
            'error U204: "HERE/newer.db" has schema 99, which is newer than 3, the newest this ulak knows',
            "  update ulak; nothing was changed",
            BY_URL,
        ],
        status=69,
    ),
    "a read-only folder": Case(
        "hello:app --url sqlite:///folder/jobs.db",
        [
            (
                'error U201: this user may not write in "HERE/folder"; the directory must be writable, not only '
                "the file"
            ),
            BY_URL,
        ],
        status=69,
    ),
    "a network file system": Case(
        "hello:app --url sqlite:///far/jobs.db",
        [
            (
                'error U302: "HERE/far/jobs.db" is on a network file system (nfs4), where locks cannot be relied '
                "on; put it on a local disk, or use postgresql://"
            ),
            BY_URL,
        ],
    ),
}


def test_there_are_at_least_25_of_them() -> None:
    assert len(FIRST_CONTACT) >= 25


@pytest.fixture
def stores(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What some of the URLs name."""
    (folder / "folder").mkdir()
    (folder / "far").mkdir()
    table = folder / "mountinfo"
    table.write_text(f"1 0 254:0 / / rw - ext4 /dev/vda rw\n2 1 0:5 / {folder}/far rw - nfs4 there rw\n")
    monkeypatch.setattr(place, "_MOUNTINFO", table)
    monkeypatch.setattr(place, "_mount_output", lambda: f"there on {folder}/far (nfs4)\n")
    # Whoever runs the tests may be allowed to write everywhere.
    monkeypatch.setattr(place.os, "access", lambda path, _: not str(path).startswith(f"{folder}/folder"))
    with closing(sqlite3.connect(folder / "foreign.db")) as db:
        db.execute("CREATE TABLE orders (id)")
    with Queue(f"sqlite:///{folder}/newer.db") as queue:
        queue.counts()
    with closing(sqlite3.connect(folder / "newer.db")) as db:
        db.execute("PRAGMA user_version = 99")


@pytest.mark.usefixtures("stores")
@pytest.mark.parametrize("case", FIRST_CONTACT.values(), ids=FIRST_CONTACT)
def test_what_it_cannot_work_with_is_told(
    refused: Refused, folder: Path, case: Case, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("ulak.cli.work_process.spelled_size", lambda size: "1M" if size == 2**20 else "RSS")
    if "is no SQLite database" in case.lines[0]:
        (folder / "jobs.db").write_text("a letter, not a database" * 100)
    expected = [line.replace("HERE", str(folder)) for line in case.lines]
    assert refused(*case.args.split(), hello=case.hello) == (case.status, expected)


def test_no_secret_is_told(refused: Refused) -> None:
    _, lines = refused("hello:app", "--url", "postgresql://ada:s3cret@localhost/jobs")
    assert "s3cret" not in "".join(lines)


def test_with_v_the_traceback_comes_too(folder: Path) -> None:
    (folder / "hello.py").write_text("1 / 0")
    with running(*COMMAND, "work", "hello:app", "-v", folder=folder) as command:
        assert command.ended() == 2
        assert "Traceback (most recent call last):" in command.err.rest()


@pytest.mark.parametrize(
    "args", [[], ["--processes", "2"], ["--reload"]], ids=["alone", "processes", "reload"]
)
def test_a_process_says_it_in_the_same_words(folder: Path, args: list[str]) -> None:
    command = [sys.executable, "-m", "ulak", "work", "hello:app", "--grace", "soon", *args]
    with running(*command, folder=folder) as worker:
        assert worker.ended() == 2
        assert worker.err.rest() == [
            (
                "error U302: --grace: cannot read 'soon' as a duration; write a number with ms, s, m, h or d, such "
                "as 20ms or 1.5m"
            ),
            HELP,
        ]


@pytest.mark.parametrize(
    "args", [[], ["--processes", "2"], ["--reload"]], ids=["alone", "processes", "reload"]
)
def test_a_directory_that_was_removed_is_told(tmp_path: Path, args: list[str]) -> None:
    (gone := tmp_path / "gone").mkdir()
    removing = ["sh", "-c", 'rmdir "$PWD"; exec "$@"', "sh"]
    with running(*removing, *COMMAND, "work", "hello:app", *args, folder=gone) as worker:
        assert worker.ended() == 2
        assert worker.err.rest() == [
            "error U302: the current directory was removed, so no module can be found in it",
            "  go to one that is there",
        ]


def test_what_was_not_given_on_the_command_line_is_told_with_who_has_set_it(
    refused: Refused, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ULAK_QUEUES", "mial")
    assert refused("hello:app")[1][-1] == "  set by ULAK_QUEUES"
    assert refused("hello:app", "--queues", "mial")[1][-1] == "  set by --queues on the command line"
