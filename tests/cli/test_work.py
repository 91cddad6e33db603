"""`ulak work` as a process: it runs jobs of others, and ends as it is told to, by real signals."""

from __future__ import annotations

import contextlib
import signal
import sqlite3
import sys
from pathlib import Path

import pytest

from tests.cli.working import HELLO, SIGNALS, Caller, Python, Work, jobs
from tests.support.commands import running
from tests.support.doors import Door
from tests.support.waiting import eventually
from ulak import State
from ulak.cli.work import queues


@pytest.mark.parametrize("task", ["welcome", "awelcome"])
def test_it_runs_what_another_process_enqueues_and_that_gets_the_result(
    work: Work, python: Python, task: str
) -> None:
    worker = work("hello:app")
    assert python(f"print({task}.enqueue('ada').result(timeout=20))") == "welcome ada"
    assert worker.out.next() == "welcome ada"


def test_tasks_of_a_script_have_the_same_names_in_a_worker(work: Work, folder: Path) -> None:
    script = f"{HELLO}\nif __name__ == '__main__':\n    print(welcome.enqueue('ada').result(timeout=20))\n"
    (folder / "hello.py").write_text(script)
    work("hello:app")
    with running(sys.executable, "hello.py", folder=folder) as command:
        assert command.out.next() == "welcome ada"


def test_it_says_what_it_works_on(work: Work, folder: Path) -> None:
    worker = work("hello:app", "--concurrency", "3", ready=False)
    assert worker.err.next() == (
        f"ulak works on {folder}/jobs.db: tasks hello.welcome, hello.awelcome, hello.send, hello.hold, "
        "hello.stand, and 3 more; queues default, mail; concurrency 3"
    )


def test_what_a_handler_prints_is_seen_at_once(work: Work, folder: Path, caller: Caller, gate: Door) -> None:
    (folder / "hello.py").write_text(
        HELLO.replace("    word, _ = knock", "    print('standing')\n    word, _ = knock")
    )
    worker = work("hello:app")
    caller.stand.enqueue(gate.place)
    guest = gate.guest()
    assert worker.out.next() == "standing"
    guest.let_go()


@SIGNALS
def test_an_idle_worker_ends_at_the_first_signal(work: Work, number: signal.Signals) -> None:
    worker = work("hello:app")
    worker.signal(number)
    assert worker.ended() == 0
    assert worker.err.rest() == [
        f"ulak stops on {number.name}: running jobs have 30.00s to finish; a second one hands them back now",
        f"ulak stopped on {number.name}: 0 jobs handed back, 0 jobs open",
    ]


@SIGNALS
def test_W1_a_running_job_is_finished_and_nothing_else_is_taken(
    work: Work, python: Python, folder: Path, number: signal.Signals
) -> None:
    worker = work("hello:app", "--concurrency", "1")
    python("hold.enqueue(); welcome.enqueue('ada')")
    assert worker.out.next() == "holding"
    worker.signal(number)
    worker.err.until("ulak stops on")
    worker.tell()
    assert worker.ended() == 0
    assert worker.out.rest() == ["let go"]
    assert [job.state for job in jobs(folder)] == [State.SUCCEEDED, State.READY]


def test_W2_W3_what_is_not_finished_within_the_grace_is_handed_back_unspent(
    work: Work, python: Python, folder: Path
) -> None:
    worker = work("hello:app", "--grace", "10ms")
    python("hold.enqueue()")
    assert worker.out.next() == "holding"
    worker.signal(signal.SIGTERM)
    assert worker.ended() == 0
    assert worker.err.rest()[-1] == "ulak stopped on SIGTERM: 1 job handed back, 1 job open"
    (job,) = jobs(folder)
    assert (job.state, job.attempt, job.history[0].cause) == (State.READY, 0, "shutdown")


def test_W5_at_a_second_signal_it_hands_back_what_runs_and_ends(
    work: Work, python: Python, folder: Path
) -> None:
    worker = work("hello:app")
    python("hold.enqueue()")
    assert worker.out.next() == "holding"
    worker.signal(signal.SIGTERM)
    worker.err.until("ulak stops on SIGTERM")
    worker.signal(signal.SIGINT)
    assert worker.ended() == 128 + signal.SIGINT
    said = [line for line in worker.err.rest() if not line.startswith("warning")]
    assert said == ["ulak stopped on SIGINT: 1 job handed back, 1 job open"]
    (job,) = jobs(folder)
    assert (job.state, job.attempt, job.history[0].cause) == (State.READY, 0, "shutdown")


def test_at_a_second_signal_it_ends_soon_also_where_nothing_can_be_handed_back(
    work: Work, python: Python, folder: Path
) -> None:
    worker = work("hello:app")
    python("hold.enqueue()")
    assert worker.out.next() == "holding"
    with contextlib.closing(sqlite3.connect(folder / "jobs.db")) as other:
        other.execute("BEGIN IMMEDIATE")
        worker.signal(signal.SIGTERM)
        worker.err.until("ulak stops on SIGTERM")
        worker.signal(signal.SIGINT)
        assert worker.ended() == 128 + signal.SIGINT
    said = "ulak ended on SIGINT: jobs that still ran start again elsewhere, an attempt the fewer"
    assert worker.err.rest() == [said]
    # Its lease ends with it, and the next one takes the job over.
    successor = work("hello:app")
    assert successor.out.next() == "holding"


def test_a_third_signal_ends_it_at_once(work: Work, python: Python, folder: Path) -> None:
    worker = work("hello:app")
    python("hold.enqueue()")
    assert worker.out.next() == "holding"
    with contextlib.closing(sqlite3.connect(folder / "jobs.db")) as other:
        other.execute("BEGIN IMMEDIATE")
        worker.signal(signal.SIGTERM)
        worker.err.until("ulak stops on SIGTERM")
        worker.signal(signal.SIGTERM)
        # Of one kind, signals that nobody has seen yet are one.
        worker.signal(signal.SIGINT)
        assert worker.ended() in (128 + signal.SIGTERM, 128 + signal.SIGINT)


@SIGNALS
def test_a_signal_while_the_module_is_imported_ends_it_without_a_word(
    work: Work, folder: Path, number: signal.Signals
) -> None:
    (folder / "hello.py").write_text(
        f"import sys\nprint('importing', flush=True)\nsys.stdin.readline()\n{HELLO}"
    )
    worker = work("hello:app", ready=False)
    assert worker.out.next() == "importing"
    worker.signal(number)
    assert worker.ended() == 0
    assert worker.err.rest() == []


def test_a_drain_ends_when_nothing_is_left_retries_included(work: Work, python: Python, folder: Path) -> None:
    python("welcome.enqueue('ada'); fail.enqueue('s3cret'); send.enqueue(1)")
    worker = work("hello:app", "--drain")
    assert worker.ended() == 0
    assert sorted(worker.out.rest()) == ["send 1", "welcome ada"]
    assert [job.state for job in jobs(folder)] == [State.SUCCEEDED, State.DEAD]
    log = worker.err.rest()
    assert log[-1] == "ulak drained: 0 jobs open"
    assert [line.partition(":")[0] for line in log[:-1]] == ["warning ulak", "error ulak"]
    assert "s3cret" not in "\n".join(log)


def test_a_drain_says_what_it_leaves_and_why(work: Work, python: Python, folder: Path) -> None:
    python("welcome.enqueue('ada'); app.queue('mail').enqueue(b'no task'); app.queue('default').pause()")
    worker = work("hello:app", "--drain")
    assert worker.ended() == 0
    assert worker.err.rest()[-1] == (
        "ulak drained: 2 jobs open; 1 job held: no worker knows its task, or its arguments do not fit; "
        "a queue is paused"
    )


@SIGNALS
def test_a_signal_ends_a_drain_too(work: Work, python: Python, number: signal.Signals) -> None:
    python("hold.enqueue(); welcome.using(delay=3600).enqueue('ada')")
    worker = work("hello:app", "--drain")
    assert worker.out.next() == "holding"
    worker.signal(number)
    worker.err.until("ulak stops on")
    worker.tell()
    assert worker.ended() == 0
    assert worker.err.rest()[-1] == f"ulak stopped on {number.name}: 0 jobs handed back, 1 job open"


def test_the_first_queue_of_a_list_is_emptied_before_the_next(work: Work, python: Python) -> None:
    python("[welcome.enqueue(str(n)) for n in range(3)]; [send.enqueue(n) for n in range(3)]")
    worker = work("hello:app", "--queues", "mail,default", "--concurrency", "1", "--drain")
    assert worker.ended() == 0
    assert [line.split()[0] for line in worker.out.rest()] == ["send"] * 3 + ["welcome"] * 3


def test_weights_give_every_queue_its_turns(work: Work, python: Python) -> None:
    python("[welcome.enqueue(str(n)) for n in range(3)]; [send.enqueue(n) for n in range(6)]")
    worker = work("hello:app", "--queues", "mail=2,default=1", "--concurrency", "1", "--drain")
    assert worker.ended() == 0
    kinds = [line.split()[0] for line in worker.out.rest()]
    assert [kinds[at : at + 3].count("welcome") for at in (0, 3, 6)] == [1, 1, 1]


def test_a_queue_that_is_not_named_is_left_alone(work: Work, python: Python, folder: Path) -> None:
    python("welcome.enqueue('ada'); send.enqueue(1)")
    worker = work("hello:app", "--queues", "mail", "--drain")
    assert worker.ended() == 0
    assert worker.out.rest() == ["send 1"]
    assert [job.state for job in jobs(folder)] == [State.READY]


def test_another_store_than_the_apps_own_may_be_named(work: Work, folder: Path) -> None:
    worker = work("hello:app", "--url", "sqlite:///other.db", ready=False)
    assert worker.err.next().startswith(f"ulak works on {folder}/other.db: ")
    assert not (folder / "jobs.db").exists()


def test_the_store_that_the_other_commands_look_into_is_not_worked_on_in_silence(
    work: Work, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A program that enqueues does not know of it, so its jobs would never be run."""
    for named, said in (
        ("sqlite:///other.db", "(and not on ULAK_URL's, sqlite:///other.db; --url is for that): tasks"),
        (f"sqlite:///{folder}/jobs.db", f"ulak works on {folder}/jobs.db: tasks "),
    ):
        monkeypatch.setenv("ULAK_URL", named)
        assert said in work("hello:app", ready=False).err.next()
    assert not (folder / "other.db").exists()


def test_the_log_takes_the_form_that_is_asked_for(work: Work, python: Python) -> None:
    python("fail.enqueue('s3cret')")
    worker = work("hello:app", "--drain", "--log-format", "json", "-vv")
    assert worker.ended() == 0
    assert any('"task": "hello.fail"' in line for line in worker.err.rest())


@pytest.mark.parametrize(
    ("text", "read"),
    [
        ("mail", {"mail": None}),
        ("mail, default", {"mail": None, "default": None}),
        ("mail,default=3", {"mail": None, "default": 3}),
    ],
)
def test_queues_are_read_in_order_with_their_weights(text: str, read: dict[str, int | None]) -> None:
    assert list(queues(text).items()) == list(read.items())


@pytest.mark.parametrize("processes", [(), ("--processes", "2")], ids=["alone", "fleet"])
def test_a_worker_whose_file_was_removed_ends_with_69_and_makes_no_new_one(
    work: Work, folder: Path, processes: tuple[str, ...]
) -> None:
    worker = work("hello:app", *processes)
    with contextlib.closing(sqlite3.connect(folder / "jobs.db")) as db:
        count = 2 if processes else 1
        eventually(lambda: db.execute("SELECT count(*) FROM workers").fetchone() == (count,))
    for file in folder.glob("jobs.db*"):
        if file.is_file():
            file.unlink()
    assert worker.ended() == 69
    lines = worker.err.rest()
    (first,) = (
        n for n, line in enumerate(lines) if line.startswith(f'error U205: "{folder}/jobs.db" was removed')
    )
    assert lines[first + 1] == "  stop all programs that use it, then start them again"
    assert not (folder / "jobs.db").exists()
