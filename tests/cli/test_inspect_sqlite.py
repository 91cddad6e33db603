"""The inspection commands on a real file, as a user runs them."""

from __future__ import annotations

import contextlib
import json
import os
import re
import sqlite3
import subprocess
import sys
from pathlib import Path

import pytest

from tests.cli.command import COMMAND, Run, environment, on_terminal, read, told_a_reader_of_one_line, ulak
from ulak import Queue
from ulak.cli import main
from ulak.storage.sqlite import link


def die(q: Queue, payload: object = "x", error: str = "no") -> int:
    """The id of a job that failed for good."""
    job_id = q.enqueue(payload, 100)
    lease = q.deliver()
    assert lease is not None
    q.nack(lease, error=error)
    return job_id


def test_counts_see_what_another_handle_does(run: Run, mail: Queue) -> None:
    mail.enqueue_many(["a", "b", "c"])
    die(mail)
    assert mail.deliver() is not None
    counts = read(run, "counts")["queues"]["mail"]
    assert {
        name: counts[name] for name in ("ready", "leased", "dead", "open", "capacity", "leases_over")
    } == {
        "ready": 2,
        "leased": 1,
        "dead": 1,
        "open": 3,
        "capacity": 10,
        "leases_over": 0,
    }
    assert 0 <= counts["oldest_leased_s"] <= counts["oldest_ready_s"] < 60
    assert run("counts", "-q", "mail").out.splitlines()[1].split()[:3] == ["mail", "2", "0"]


def test_a_list_is_paged_by_the_option_it_names(run: Run, mail: Queue) -> None:
    ids = mail.enqueue_many(["x"] * 5)
    first = run("ls", "--limit", 2)
    assert (first.status, first.err) == (0, f"there are more: --after {ids[1]}\n")
    seen = [line.split()[0] for line in first.out.splitlines()[1:]]
    rest = run("ls", "--after", ids[1])
    assert rest.err == ""
    seen += [line.split()[0] for line in rest.out.splitlines()[1:]]
    assert seen == [str(job_id) for job_id in ids]


def test_a_list_is_narrowed_by_state_queue_and_task(run: Run, mail: Queue) -> None:
    mail.enqueue("a")
    dead = die(mail)
    assert [job["id"] for job in read(run, "ls", "--state", "dead")["jobs"]] == [dead]
    assert [group["last_id"] for group in read(run, "dead", "ls")["groups"]] == [dead]
    assert read(run, "ls", "--state", "dead", "--state", "ready")["jobs"][1]["state"] == "dead"
    assert read(run, "ls", "--task", "no.such")["jobs"] == []
    assert run("ls", "-q", "mial").status == 3


def test_a_list_of_nothing_says_so(run: Run, mail: Queue) -> None:
    mail.enqueue("a")
    done = run("dead", "ls")
    assert (done.status, done.out.count("\n"), done.err) == (0, 1, "there is no such job\n")
    assert run("ls", "--after", 1).err == "there is no such job after 1\n"


def test_counts_name_the_command_for_what_wants_a_look(run: Run, mail: Queue) -> None:
    mail.enqueue("a")
    assert run("counts").err == ""
    die(mail)
    mail.pause()
    assert run("counts").err.splitlines() == [
        "mail: 1 job dead; ulak dead ls -q mail tells of what",
        "mail: paused with 1 job waiting; ulak resume mail --yes delivers again",
    ]


def test_show_knows_the_seconds_that_are_left_of_a_lease(run: Run, mail: Queue) -> None:
    job_id = mail.enqueue({"n": 1})
    lease = mail.deliver()
    assert lease is not None
    shown = read(run, "show", job_id)
    assert shown["worker"] == lease.worker
    assert 20 < shown["lease_left_s"] <= 30
    assert "payload" not in shown
    assert read(run, "show", job_id, "--payload")["payload"] == {"n": 1}
    assert f"held by {lease.worker}, " in run("show", job_id).out


def test_retry_without_yes_only_counts(run: Run, mail: Queue) -> None:
    dead = die(mail)
    done = run("retry", dead)
    assert done == (1, "1 job would run again\n", "nothing was done yet: give --yes to do it\n")
    assert read(run, "retry", dead, status=1) == {"done": [], "would_change": 1, "refused": {}, "room": {}}
    assert mail.counts().dead == 1


def test_retry_with_yes_brings_back_what_it_can_and_says_why_not_the_rest(run: Run, mail: Queue) -> None:
    dead, waiting = die(mail), mail.enqueue("w")
    done = run("retry", dead, waiting, 999, "--yes")
    next_step = f"a worker takes it from here; ulak show {dead} tells how it goes\n"
    assert (done.status, done.err) == (1, next_step)
    assert done.out.splitlines() == [
        f"1 job waits to run again: {dead}",
        f"  1 job left alone, neither dead, cancelled, expired nor held: {waiting}",
        "  1 job left alone, not stored here: 999",
    ]
    assert (mail.counts().dead, mail.counts().ready) == (0, 2)


def test_retry_of_all_dead_ones_of_a_queue(run: Run, mail: Queue) -> None:
    dead = [die(mail), die(mail)]
    assert run("retry", "--state", "dead", "-q", "mail").out == "2 jobs would run again\n"
    assert read(run, "retry", "--state", "dead", "-q", "mail", "--yes")["done"] == dead
    none = (0, "there is no such job to run again\n", "")
    assert run("retry", "--state", "dead", "--yes") == run("retry", "--state", "dead") == none


def test_retry_of_several_says_how_many_wait_and_what_tells_how_it_goes(run: Run, mail: Queue) -> None:
    dead = [die(mail), die(mail)]
    done = run("retry", *dead, "--yes")
    assert done.out == f"2 jobs wait to run again: {dead[0]}, {dead[1]}\n"
    assert done.err == "a worker takes them from here; ulak counts tells how it goes\n"


def test_retry_into_a_full_queue_says_how_much_room_there_is(run: Run, mail: Queue) -> None:
    die(mail)
    die(mail)
    mail.enqueue_many(["x"] * 9)
    room = "  queue mail has room for 1 only; the others would stay\n"
    assert run("retry", "--state", "dead").out == f"2 jobs would run again\n{room}"
    done = run("retry", "--state", "dead", "--yes")
    assert done.status == 1
    assert "1 job left alone, no room in the queue: again when there is" in done.out


def test_retry_of_unknown_ids_is_not_found(run: Run, mail: Queue) -> None:
    mail.counts()
    assert run("retry", 7).status == 3
    assert run("retry", 7, "--yes").status == 3


def test_pause_and_resume_reach_a_program_that_runs(run: Run, mail: Queue) -> None:
    mail.enqueue("a")
    next_step = "enqueuing goes on; ulak resume mail --yes delivers again\n"
    paused = "queue mail is paused: 1 job waits, 0 jobs run\n"
    assert run("pause", "mail", "--yes") == (0, paused, next_step)
    assert mail.deliver() is None
    already = "queue mail is paused already: 1 job waits, 0 jobs run\n"
    assert run("pause", "mail").out == run("pause", "mail", "--yes").out == already
    assert read(run, "resume", "mail", "--yes") == {
        "queue": "mail",
        "paused": False,
        "changed": True,
        "would_change": False,
        "pending": 1,
        "leased": 0,
    }
    assert mail.deliver() is not None


def test_pause_and_resume_without_yes_only_say_what_waits(run: Run, mail: Queue) -> None:
    mail.enqueue("a")
    not_yet = "nothing was done yet: give --yes to do it\n"
    would = "queue mail would be paused: 1 job waits, 0 jobs run\n"
    assert run("pause", "mail") == (1, would, not_yet)
    assert mail.settings().paused is False
    mail.pause()
    would = "queue mail would be active: 1 job waits, 0 jobs run\n"
    assert run("resume", "mail") == (1, would, not_yet)
    answer = read(run, "resume", "mail", status=1)
    assert (answer["paused"], answer["changed"], answer["would_change"]) == (True, False, True)


def test_pause_of_an_unknown_queue_makes_none(run: Run, mail: Queue) -> None:
    mail.counts()
    assert run("pause", "mial") == (3, "", "error: there is no queue 'mial'; there is mail\n")
    assert list(read(run, "counts")["queues"]) == ["mail"]


COMMANDS = (
    *("counts", "ls", "show 1", "retry 1 --yes", "pause mail --yes", "resume mail --yes"),
    *("queue set mail --capacity 9 --yes", "workers", "enqueue --payload 1 -q mail"),
    *("dead ls", "dead show e1234567", "dead retry 1 --yes", "dead drop 1 --yes"),
    *("dead export", "dead edit 1 --payload 2 --yes"),
    *("reprioritise 1 --priority 9 --yes", "cancel 1 --yes", "rm 1 --yes", "doctor"),
)


@pytest.mark.parametrize("words", COMMANDS[:-1])
def test_a_file_that_is_not_there_is_an_error_and_stays_so(words: str, run: Run, path: Path) -> None:
    done = run(*words.split())
    assert done == (3, "", f"error: there is no file {path} (named by ULAK_URL); nothing was created\n")
    assert list(path.parent.iterdir()) == []


@pytest.mark.parametrize("words", COMMANDS)
def test_an_empty_file_does_not_become_a_store(words: str, run: Run, path: Path) -> None:
    path.touch()
    assert run(*words.split()).status == 3
    assert [(file.name, file.stat().st_size) for file in path.parent.iterdir()] == [("jobs.db", 0)]


@pytest.mark.parametrize("words", COMMANDS[:-1])
def test_somebody_elses_database_is_refused_unchanged(words: str, run: Run, path: Path) -> None:
    with sqlite3.connect(path) as db:
        db.execute("CREATE TABLE theirs (x)")
    db.close()
    before = path.read_bytes()
    done = run(*words.split())
    assert (done.status, done.out) == (69, "")
    assert "not one of ulak" in done.err
    assert path.read_bytes() == before


@pytest.mark.parametrize("words", COMMANDS[:-1])
def test_a_database_without_tables_does_not_become_a_store(words: str, run: Run, path: Path) -> None:
    with sqlite3.connect(path) as db:
        db.execute("CREATE TABLE t (x)")
        db.execute("DROP TABLE t")
    db.close()
    assert run(*words.split()).status == 3
    with sqlite3.connect(path) as db:
        assert db.execute("SELECT count(*) FROM sqlite_schema").fetchone() == (0,)
    db.close()


def test_looking_leaves_the_journal_as_it_is(run: Run, path: Path) -> None:
    with Queue(f"sqlite:///{path}?journal=truncate", "mail") as q:
        q.enqueue("a")
    for words in ("counts", "ls", "show 1", "doctor"):
        assert run(*words.split()).status == 0
    db = sqlite3.connect(path)
    assert db.execute("PRAGMA journal_mode").fetchone() == ("delete",)
    db.close()


def test_looking_takes_nothing_and_leaves_no_process_behind(run: Run, path: Path) -> None:
    with Queue(f"sqlite:///{path}", "mail") as q:
        q.enqueue("a")
    for words in COMMANDS:
        if not words.startswith(("rm", "enqueue")):
            run(*words.split())
    db = sqlite3.connect(path)
    assert db.execute("SELECT count(*) FROM holders").fetchone() == (0,)
    assert db.execute("SELECT delivery FROM jobs").fetchall() == [(0,)]
    db.close()


# Streams


def filled(path: Path) -> str:
    """The URL of a store with a job in each of several states, one of them with a nasty error."""
    url = f"sqlite:///{path}"
    with Queue(url, "mail", max_attempts=1, capacity=100) as q:
        q.enqueue_many(["x"] * 30)
        die(q, error="é \x1b[2Jno\nway " * 20)
    return url


REMARK = "mail: 1 job dead; ulak dead ls -q mail tells of what\n"
STRICT_ASCII = {"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}


@pytest.mark.parametrize("words", ["counts", "ls", "show 31", "dead ls", "doctor"])
def test_the_plain_locale_is_enough(words: str, path: Path) -> None:
    done = ulak(*words.split(), "--url", filled(path), env=STRICT_ASCII, encoding="ascii")
    assert done.returncode == 0
    assert words not in ("counts", "ls", "show 31") or done.stderr == (REMARK if words == "counts" else "")
    assert "\x1b" not in done.stdout


@pytest.mark.parametrize("words", ["counts", "ls", "show 31", "dead ls", "doctor"])
def test_a_terminal_of_80_columns_has_room_for_it(words: str, path: Path) -> None:
    status, shown, _ = on_terminal(*words.split(), "--url", filled(path), env={"NO_COLOR": "1"})
    lines = re.sub("\x1b\\[[0-9;]*m", "", shown).splitlines()
    assert status == 0
    # Facts that come from outside may be longer: a path, a text. What is laid out has to fit.
    lines = lines[lines.index("") :] if words == "show 31" else lines[1:]
    assert max(map(len, lines)) <= 80, max(lines, key=len)
    assert "\x1b[2J" not in shown
    assert any(word in line for line in lines for word in ("mail", "at  ", "schema", "dead show"))


def test_a_reader_that_takes_one_line_and_goes_gets_no_traceback(path: Path) -> None:
    url = f"sqlite:///{path}"
    with Queue(url, "mail") as q:
        q.enqueue_many(["x"] * 5_000)
    assert told_a_reader_of_one_line("ls", "--limit", "5000", "--url", url).startswith("  id  queue")


def test_a_pipe_that_nobody_reads_ends_the_command_quietly(path: Path) -> None:
    reader, writer = os.pipe()
    os.close(reader)
    done = ulak("counts", "--url", filled(path), stdout=writer)
    os.close(writer)
    assert (done.returncode, done.stderr) == (141, "")


def test_streams_that_the_process_does_not_have_are_harmless(path: Path) -> None:
    done = subprocess.run(
        ["sh", "-c", 'exec "$@" >&-', "sh", *COMMAND, "counts", "--url", filled(path)],
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
        env=environment(),
    )
    assert (done.returncode, done.stderr) == (0, REMARK)


def test_a_relative_url_is_below_the_working_directory(
    run: Run, path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    filled(path)
    monkeypatch.chdir(path.parent)
    assert run("counts", "--url", "sqlite:///jobs.db").status == 0
    assert run("counts", "--url", "sqlite:///jobs.db?journal=wall").status == 2


def test_json_of_a_stored_text_is_ascii_and_whole(run: Run, path: Path) -> None:
    filled(path)
    done = run("dead", "ls", "--json")
    assert done.out.isascii()
    assert "\x1b" not in done.out
    assert json.loads(done.out)["groups"][0]["error"].startswith("é \x1b[2Jno\nway")


def test_a_table_in_a_pipe_loads_no_rich(path: Path) -> None:
    code = (
        "import sys; from ulak.cli import main; status = main(['counts', '--url', sys.argv[1]]);"
        "assert not {'rich', 'asyncio.base_events'} & set(sys.modules) - before; sys.exit(status)"
    )
    code = f"import sys, ulak; ulak.Queue; before = set(sys.modules); {code}"
    done = subprocess.run(
        [sys.executable, "-c", code, filled(path)], capture_output=True, text=True, check=False, timeout=60
    )
    assert (done.returncode, done.stderr) == (0, REMARK)


def test_a_store_that_others_hold_for_too_long_can_be_tried_again(
    run: Run, mail: Queue, path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    mail.counts()
    monkeypatch.setattr(link, "BUSY_S", 0.05)
    writer = sqlite3.connect(path, isolation_level=None)
    writer.execute("BEGIN IMMEDIATE")
    done = run("pause", "mail", "--yes")
    writer.close()
    assert (done.status, done.out) == (75, "")
    assert done.err.startswith("error U202: others have held ")
    assert mail.settings().paused is False


def test_retry_and_list_can_be_narrowed_to_a_task(run: Run, mail: Queue, path: Path) -> None:
    first, second = die(mail), die(mail)
    with sqlite3.connect(path) as db:
        db.execute("UPDATE jobs SET task = 'shop.welcome' WHERE id = ?", (second,))
    db.close()
    (group,) = read(run, "dead", "ls", "--task", "shop.welcome")["groups"]
    assert (group["tasks"], group["last_id"]) == ({"shop.welcome": 1}, second)
    asked = ("retry", "--state", "dead", "--task", "shop.welcome")
    assert run(*asked).out == "1 job would run again\n"
    assert read(run, *asked, "--yes")["done"] == [second]
    assert [group["last_id"] for group in read(run, "dead", "ls")["groups"]] == [first]


def test_a_look_beside_a_foreign_writer_ends_at_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    url = f"sqlite:///{tmp_path / 'jobs.db'}"
    with Queue(url, "mail") as q:
        q.enqueue("x")
    # Whoever waits for the writer does not get out of here.
    monkeypatch.setattr(link, "BUSY_S", 3600.0)
    with contextlib.closing(sqlite3.connect(tmp_path / "jobs.db", isolation_level=None)) as foreign:
        foreign.execute("BEGIN IMMEDIATE")
        assert main(["counts", "--url", url]) == 0
        foreign.execute("ROLLBACK")
    assert "mail" in capsys.readouterr().out
