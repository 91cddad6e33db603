"""`ulak doctor` on real files: what it says of a healthy one, and that it finds what is planted."""

from __future__ import annotations

import contextlib
import functools
import json
import os
import re
import sqlite3
import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from tests.cli.command import Run, ulak
from ulak import Queue
from ulak.cli import inspect_file
from ulak.cli.inspect_file import has_reset_race
from ulak.core.job import Cause, Hold
from ulak.storage.sqlite import link, place


@pytest.fixture
def mail(path: Path) -> Iterator[Queue]:
    with Queue(f"sqlite:///{path}", "mail") as q:
        yield q


@pytest.fixture
def run(run: Run) -> Run:
    """Run `ulak doctor ARGS` in this process, on the file."""
    return functools.partial(run, "doctor")


def examined(run: Run, *argv: str) -> dict[str, Any]:
    """The result of a run, whose status says whether there is a problem, and whether it is the store."""
    done = run("--json", *argv)
    result: dict[str, Any] = json.loads(done.out)
    unusable = {"cannot be opened", "cannot be reached", "cannot be used"}
    is_usable = unusable.isdisjoint(part["text"] for part in result["parts"].values())
    assert (done.status, done.err) == (0 if result["ok"] else 1 if is_usable else 69, "")
    return result


def problems(result: dict[str, Any]) -> list[str]:
    return [found["what"] for found in result["findings"] if found["level"] == "problem"]


def write(path: Path, *statements: str) -> None:
    """Change the file as another program would."""
    with closing(sqlite3.connect(path)) as db, db:
        for statement in statements:
            db.execute(statement)


# What is in force


def test_a_healthy_store_has_nothing_wrong(run: Run, mail: Queue) -> None:
    mail.enqueue_many(["a", "b"])
    lease = mail.deliver()
    assert lease is not None
    result = examined(run)
    assert problems(result) == []
    parts = result["parts"]
    assert list(parts) == [
        *("library", "file", "journal", "durability", "schema", "integrity", "counts", "rows", "processes"),
        *("log", "others", "waiting", "held", "workers"),
    ]
    assert parts["journal"]["mode"] == "wal"
    assert parts["durability"]["durability"] == "full"
    assert parts["integrity"]["check"] == "quick_check"
    assert (parts["counts"]["jobs"], parts["counts"]["equal"]) == (2, True)
    assert parts["schema"]["is_this_boot"] is True
    assert len(parts["processes"]["live"]) == 1
    assert (parts["processes"]["leases"], parts["processes"]["orphaned"]) == (1, 0)
    assert parts["log"]["pinned"] is False
    assert parts["file"]["bytes"] + parts["file"]["log_bytes"] > 4096


def test_the_text_ends_with_the_sum_of_it_and_each_finding_has_its_remedy(run: Run, mail: Queue) -> None:
    mail.enqueue("a")
    done = run()
    assert (done.status, done.err) == (0, "")
    lines = done.out.splitlines()
    notes = [number for number, line in enumerate(lines) if line.startswith("note")]
    sums = {1: "; 1 note, which is advice", 2: "; 2 notes, which are advice"}
    assert lines[-1] == f"nothing is wrong{sums[len(notes)]}"
    for start in notes:
        end = lines.index("", start)
        assert any(line.startswith("  fix ") for line in lines[start:end])
    assert max(map(len, lines[1:])) <= 80


def test_deep_looks_at_every_index(run: Run, mail: Queue) -> None:
    mail.enqueue("a")
    assert examined(run, "--deep")["parts"]["integrity"]["check"] == "integrity_check"


@pytest.mark.parametrize(
    ("version", "affected"),
    [
        ((3, 6, 23), False),
        ((3, 7, 0), True),
        ((3, 40, 1), True),
        ((3, 44, 5), True),
        ((3, 44, 6), False),
        ((3, 50, 6), True),
        ((3, 50, 7), False),
        ((3, 51, 2), True),
        ((3, 51, 3), False),
        ((3, 52, 0), False),
    ],
)
def test_which_libraries_have_the_reset_race(version: tuple[int, int, int], *, affected: bool) -> None:
    assert has_reset_race(version) is affected


@pytest.mark.parametrize("version", [(3, 40, 1), (3, 51, 3)], ids=["affected", "repaired"])
def test_the_mode_is_explained_by_the_library(
    version: tuple[int, int, int], run: Run, mail: Queue, monkeypatch: pytest.MonkeyPatch
) -> None:
    mail.counts()
    monkeypatch.setattr(sqlite3, "sqlite_version_info", version)
    result = examined(run)
    fixes = [found["fix"] for found in result["findings"] if "journal=truncate" in found["fix"]]
    assert len(fixes) == (version == (3, 40, 1))
    assert ("because of the library's race" in result["parts"]["journal"]["text"]) is bool(fixes)


def test_truncate_has_no_race_and_no_log(run: Run, path: Path) -> None:
    url = f"sqlite:///{path}?journal=truncate"
    with Queue(url, "mail") as q:
        q.counts()
        result = examined(run, "--url", url)
    assert result["findings"] == []
    assert result["parts"]["journal"]["mode"] == "truncate"
    assert "log" not in result["parts"]


def test_a_url_that_asks_for_another_journal_is_noted_and_changes_nothing(run: Run, path: Path) -> None:
    with Queue(f"sqlite:///{path}?journal=truncate", "mail") as q:
        q.counts()
    result = examined(run, "--url", f"sqlite:///{path}?journal=wal")
    assert [found["what"] for found in result["findings"]] == [
        "the URL asks for journal=wal, but the file is in mode truncate"
    ]
    with closing(sqlite3.connect(path)) as db:
        assert db.execute("PRAGMA journal_mode").fetchone() == ("delete",)


def test_relaxed_durability_is_noted(run: Run, mail: Queue, path: Path) -> None:
    mail.counts()
    result = examined(run, "--url", f"sqlite:///{path}?durability=relaxed")
    assert "a power cut can lose jobs here" in [found["what"] for found in result["findings"]]
    assert result["ok"] is True


# What is wrong with the file


def test_counters_that_differ_from_what_is_stored_are_a_problem(run: Run, mail: Queue, path: Path) -> None:
    mail.enqueue_many(["a", "b", "c"])
    write(path, "UPDATE queues SET dead = 2 WHERE name = 'mail'", "DELETE FROM jobs WHERE id = 3")
    (found,) = problems(examined(run))
    _, *wrong = re.split("; |stored: ", found)
    assert wrong == ["mail: ready is 3, and there are 2", "mail: dead is 2, and there are 0"]


def test_jobs_in_an_impossible_state_or_queue_are_a_problem(run: Run, mail: Queue, path: Path) -> None:
    mail.enqueue_many(["a", "b", "c"])
    write(path, "UPDATE jobs SET state = 99 WHERE id = 1", "UPDATE jobs SET queue = 77 WHERE id = 2")
    result = examined(run)
    assert result["parts"]["rows"]["impossible"] == 2
    assert "2 jobs in a state or a queue that does not exist, by another program" in problems(result)


def test_held_jobs_are_a_problem_that_names_their_task(run: Run, mail: Queue, path: Path) -> None:
    mail.enqueue("a")
    write(path, "UPDATE jobs SET task = 'shop.welcome'")
    lease = mail.deliver()
    assert lease is not None
    mail._edge.store.settle([(lease, Hold())])
    assert problems(examined(run)) == [
        "jobs are held, since no worker that met them knows their task: shop.welcome (1 in mail)"
    ]


def test_refused_jobs_are_a_problem_of_their_own(run: Run, mail: Queue, path: Path) -> None:
    mail.enqueue_many(["a", "b"])
    write(path, "UPDATE jobs SET task = 'shop.welcome'")
    one, other = mail.deliver_many(2)
    mail._edge.store.settle([(one, Hold()), (other, Hold(Cause.UNDECODABLE))])
    result = examined(run)
    assert problems(result) == [
        "jobs are held, since no worker that met them knows their task: shop.welcome (1 in mail)",
        "jobs are held, since their payload does not fit their task: shop.welcome (1 in mail)",
    ]
    assert result["parts"]["held"]["held"] == 2


def test_a_damaged_page_is_a_problem(run: Run, path: Path) -> None:
    with Queue(f"sqlite:///{path}", "mail") as q:
        q.enqueue_many(["x" * 2_000] * 500)
    whole = path.read_bytes()
    middle = len(whole) // 2 // 4096 * 4096
    path.write_bytes(whole[:middle] + b"\xff" * 4096 + whole[middle + 4096 :])
    result = examined(run)
    assert problems(result)[0].startswith("the file is damaged: ")
    assert result["parts"]["integrity"]["ok"] is False


def test_what_is_no_database_at_all_is_a_problem(run: Run, path: Path) -> None:
    path.write_bytes(b"these are no jobs\n" * 1_000)
    (found,) = problems(examined(run))
    assert "is no SQLite database" in found


def test_somebody_elses_database_is_a_problem_and_stays_as_it_is(run: Run, path: Path) -> None:
    write(path, "CREATE TABLE theirs (x)")
    before = path.read_bytes()
    (found,) = problems(examined(run))
    assert "not one of ulak" in found
    assert path.read_bytes() == before


def test_a_newer_schema_is_a_problem(run: Run, mail: Queue, path: Path) -> None:
    mail.counts()
    write(path, "PRAGMA user_version = 999")
    (found,) = problems(examined(run))
    assert "has schema 999, which is newer" in found


def test_a_network_file_system_is_a_problem(
    run: Run, mail: Queue, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    mail.counts()
    mounts = tmp_path / "mountinfo"
    mounts.write_text("1 0 0:1 / / rw - nfs4 server:/ rw\n", encoding="ascii")
    monkeypatch.setattr(place, "_MOUNTINFO", mounts)
    (found,) = problems(examined(run))
    assert "is on a network file system (nfs4)" in found


def test_little_room_on_the_disk_is_a_problem(run: Run, mail: Queue, monkeypatch: pytest.MonkeyPatch) -> None:
    mail.counts()
    monkeypatch.setattr(inspect_file, "FREE_BYTES_MIN", 2**62)
    (found,) = problems(examined(run))
    assert found.startswith("its disk has only ")


@pytest.mark.parametrize(
    ("which", "fix"),
    [
        ("file", "change its owner or mode"),
        ("directory", "the directory must be writable, not only the file"),
    ],
)
def test_a_file_that_may_not_be_written_is_a_problem(
    run: Run, mail: Queue, path: Path, monkeypatch: pytest.MonkeyPatch, *, which: str, fix: str
) -> None:
    mail.enqueue("a")
    refused = path if which == "file" else path.parent
    may = os.access
    # Whoever runs the tests may be root, who may write everything.
    monkeypatch.setattr(
        os, "access", lambda at, mode: may(at, mode) and not (mode & os.W_OK and Path(at) == refused)
    )
    result = examined(run)
    (found,) = [one for one in result["findings"] if one["level"] == "problem"]
    assert found["what"].startswith("this user may not write ")
    assert found["fix"] == fix
    assert result["parts"]["open"]["text"] == "cannot be opened"


@pytest.mark.parametrize("missing", ["jobs.db", "nowhere/jobs.db"])
def test_a_store_that_is_not_there_is_a_problem(missing: str, run: Run, path: Path) -> None:
    done = run("--json", "--url", f"sqlite:///{path.parent}/{missing}")
    (found,) = json.loads(done.out)["findings"]
    assert (done.status, done.err, found["level"]) == (3, "", "problem")
    assert found["what"].startswith("there is no file ")
    assert "see that the path is right" in found["fix"]
    assert list(path.parent.iterdir()) == []


def test_a_directory_in_the_place_of_the_store_is_a_problem(run: Run, path: Path) -> None:
    path.mkdir()
    (found,) = problems(examined(run))
    assert found == f'"{path}" is a directory'


def test_a_server_that_cannot_be_reached_is_a_problem(run: Run) -> None:
    result = examined(run, "--url", "postgresql://ada:hunter2@127.0.0.1:1/jobs")
    (found,) = result["findings"]
    assert found["level"] == "problem"
    assert "cannot be reached" in found["what"]
    assert found["fix"]
    assert "hunter2" not in str(result)


# Who is using it

_WRITES = """
import sqlite3, sys, time
db = sqlite3.connect(f"file:{sys.argv[1]}?mode={sys.argv[2]}", uri=True)
db.execute("SELECT count(*) FROM jobs").fetchone()
print("open", flush=True)
sys.stdin.read()
"""

_PRODUCES = """
import sys, ulak
ulak.Queue(sys.argv[1]).enqueue("a")
print("open", flush=True)
sys.stdin.read()
"""


@contextlib.contextmanager
def another_program(path: Path, mode: str) -> Iterator[int]:
    """A program that is not ulak has the file open; its number."""
    command = [sys.executable, "-c", _WRITES, str(path), mode]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "open\n"
        yield process.pid
        assert process.stdin is not None
        process.stdin.close()


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux tells who has a file open")
@pytest.mark.parametrize("version", [(3, 40, 1), (3, 51, 3)], ids=["affected", "repaired"])
def test_a_foreign_writer_is_a_problem_with_a_library_that_has_the_race(
    version: tuple[int, int, int], run: Run, mail: Queue, path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    mail.enqueue("a")
    monkeypatch.setattr(sqlite3, "sqlite_version_info", version)
    with another_program(path, "rw") as pid:
        result = examined(run)
    (found,) = [one for one in result["findings"] if "is not ulak may write" in one["what"]]
    assert f"process {pid} (" in found["what"]
    assert "mode=ro" in found["fix"]
    assert found["level"] == ("problem" if version == (3, 40, 1) else "note")
    assert [one["pid"] for one in result["parts"]["others"]["writers"]] == [pid]


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux tells who has a file open")
def test_a_foreign_reader_and_a_producer_of_ulaks_are_no_foreign_writers(
    run: Run, mail: Queue, path: Path
) -> None:
    mail.enqueue("a")
    command = [sys.executable, "-c", _PRODUCES, f"sqlite:///{path}"]
    with (
        another_program(path, "ro"),
        subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as producer,
    ):
        assert producer.stdout is not None
        assert producer.stdout.readline() == "open\n"
        assert examined(run)["parts"]["others"]["writers"] == []
        producer.communicate("")


_DIES_WITH_A_LEASE = """
import os, sys
from ulak import Queue
q = Queue(sys.argv[1], "mail")
assert q.deliver() is not None
print(os.getpid(), flush=True)
os._exit(0)
"""


def leave_a_lease(path: Path) -> None:
    """Take a job in a process that then dies without a word."""
    command = [sys.executable, "-c", _DIES_WITH_A_LEASE, f"sqlite:///{path}"]
    subprocess.run(command, check=True, capture_output=True, timeout=60)


def test_jobs_of_a_process_that_is_gone_are_a_problem_while_nobody_takes_over(
    run: Run, mail: Queue, path: Path
) -> None:
    mail.enqueue_many(["a", "b"])
    leave_a_lease(path)
    result = examined(run)
    assert problems(result) == ["1 job leased by processes that are gone"]
    part = result["parts"]["processes"]
    assert (part["live"], part["gone"]) == ([], 1)
    assert part["text"] == "none takes jobs; 1 job leased; 1 gone without a word, 1 of the leases theirs"


def test_they_are_only_a_note_while_a_process_lives(run: Run, mail: Queue, path: Path) -> None:
    mail.enqueue_many(["a", "b"])
    leave_a_lease(path)
    assert mail._edge.store.claim(["mail"], 1, worker="w", lease_s=60)
    result = examined(run)
    assert problems(result) == []
    assert "1 job leased by processes that are gone" in [found["what"] for found in result["findings"]]


def test_a_lease_that_is_over_and_that_nobody_takes_over_is_a_problem(
    run: Run, path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(inspect_file, "OVER_S", -60.0)
    with Queue(f"sqlite:///{path}", "mail", visibility_timeout=30) as q:
        job_id = q.enqueue("a")
        assert problems(examined(run)) == []
        lease = q.deliver()
        assert lease is not None
        (found,) = problems(examined(run))
    holder = rf"job {job_id} of worker {re.escape(lease.worker)} \(process {os.getpid()}\)"
    assert re.fullmatch(rf"the lease of {holder} ended .* ago, and nobody has taken the job over", found)


def test_jobs_that_wait_without_any_process_are_noted(run: Run, path: Path) -> None:
    with Queue(f"sqlite:///{path}", "mail") as q:
        q.enqueue_many(["a", "b"])
    result = examined(run)
    assert any(
        found["what"].startswith("queue mail has 2 jobs due, ") and "no worker" in found["what"]
        for found in result["findings"]
    )
    assert result["ok"] is True


def test_a_long_reader_is_a_problem_that_names_its_process(mail: Queue, path: Path) -> None:
    mail.enqueue("a")
    with closing(sqlite3.connect(path)) as reader:
        reader.execute("BEGIN")
        reader.execute("SELECT count(*) FROM jobs").fetchone()
        mail.enqueue_many(["x"] * 100)
        # In a process of its own: to itself it is never the reader that is in the way.
        done = ulak("doctor", "--json", "--url", f"sqlite:///{path}")
    result = json.loads(done.stdout)
    assert done.returncode == 1
    (found,) = problems(result)
    assert found.startswith("a reader")
    assert result["parts"]["log"]["pinned"] is True
    if sys.platform == "linux":
        assert f"(process {os.getpid()})" in found


def test_a_reader_that_has_gone_is_no_problem(run: Run, mail: Queue, path: Path) -> None:
    mail.enqueue("a")
    with closing(sqlite3.connect(path)) as reader:
        reader.execute("BEGIN")
        reader.execute("SELECT count(*) FROM jobs").fetchone()
        mail.enqueue_many(["x"] * 100)
        reader.execute("COMMIT")
        assert problems(examined(run)) == []


def test_a_writer_that_does_not_end_is_a_problem(
    run: Run, mail: Queue, path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    mail.enqueue("a")
    monkeypatch.setattr(link, "BUSY_S", 0.05)
    with closing(sqlite3.connect(path, isolation_level=None)) as writer:
        writer.execute("BEGIN IMMEDIATE")
        (found,) = problems(examined(run))
    assert found.startswith("others have held ")


def test_a_file_that_somebody_keeps_for_himself_can_be_tried_again(
    run: Run, path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with Queue(f"sqlite:///{path}?journal=truncate", "mail") as q:
        q.counts()
    monkeypatch.setattr(link, "BUSY_S", 0.05)
    with closing(sqlite3.connect(path, isolation_level=None)) as holder:
        holder.execute("BEGIN EXCLUSIVE")
        done = run()
    assert (done.status, done.out) == (75, "")
    assert done.err.startswith("error U202: ")


def test_a_large_log_without_a_reader_is_noted(
    run: Run, mail: Queue, monkeypatch: pytest.MonkeyPatch
) -> None:
    mail.enqueue("a")
    monkeypatch.setattr(inspect_file, "LOG_BYTES_MAX", 0)
    result = examined(run)
    assert result["ok"] is True
    assert any(found["what"].startswith("the log has ") for found in result["findings"])


def test_relaxed_durability_says_nothing_in_a_rollback_journal(run: Run, path: Path) -> None:
    url = f"sqlite:///{path}?journal=truncate&durability=relaxed"
    with Queue(url, "mail") as q:
        q.counts()
    result = examined(run, "--url", url)
    assert result["findings"] == []
    assert result["parts"]["durability"]["text"].endswith("as full")
