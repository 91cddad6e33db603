"""`ulak tail`: what a look tells, on every storage and on the test's clock; the command goes on looking."""

from __future__ import annotations

import io
import json
import os
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.cli.command import COMMAND, Terminal, environment, ulak
from tests.contract.conftest import clock, kind  # noqa: F401 - fixtures
from ulak import Lease, Queue
from ulak.cli import tail_follow
from ulak.cli.tail_follow import Follower, Printer
from ulak.core.job import Hold
from ulak.testing import ManualClock


@pytest.fixture
def q(kind, clock: ManualClock) -> Iterator[Queue]:  # noqa: F811
    """A queue on the test's clock."""
    with Queue(kind.url(), "mail", max_attempts=2, clock=clock) as q:
        q.counts()
        yield q


def look(follower: Follower) -> list[str]:
    """What a look tells, as id and what."""
    return [f"{event.id} {event.what}" for event in follower.look()]


def taken(q: Queue) -> Lease:
    lease = q.deliver()
    assert lease is not None
    return lease


def test_each_step_of_a_life_is_told_once(q: Queue, clock: ManualClock) -> None:  # noqa: F811
    follower = Follower(q._edge)
    assert look(follower) == []
    q.enqueue("a")
    assert look(follower) == ["1 enqueued"]
    lease = taken(q)
    assert look(follower) == ["1 attempt 1 runs"]
    clock.advance(2)
    q.nack(lease, error=ValueError("no"))
    assert look(follower) == ["1 attempt 1: nack"]
    q.ack(taken(q))
    assert look(follower) == ["1 attempt 2: ack", "1 succeeded"]
    assert look(follower) == []
    assert follower.remarks == []


def test_what_happened_between_two_looks_is_told_in_order(q: Queue, clock: ManualClock) -> None:  # noqa: F811
    follower = Follower(q._edge)
    q.enqueue_many(["a", "b"])
    first, second = q.deliver_many(2)
    clock.advance(1)
    q.ack(second)
    clock.advance(1)
    q.nack(first)
    assert look(follower) == [
        *("1 enqueued", "2 enqueued", "2 attempt 1: ack", "2 succeeded", "1 attempt 1: nack"),
    ]
    assert look(follower) == []


def test_an_event_says_who_how_long_and_why(q: Queue, clock: ManualClock) -> None:  # noqa: F811
    follower = Follower(q._edge)
    q.enqueue("a", max_attempts=1)
    lease = taken(q)
    clock.advance(2)
    q.nack(lease, error=ValueError("no address"))
    _, attempt, dead = follower.look()
    assert (attempt.took_s, attempt.attempt, attempt.error) == (2.0, 1, "ValueError: no address")
    assert attempt.worker == lease.worker
    assert (dead.what, dead.at) == ("dead", clock.calendar())


def test_only_what_comes_after_the_start_is_told_of_older_jobs(q: Queue, clock: ManualClock) -> None:  # noqa: F811
    q.enqueue_many(["a", "b", "c"])
    q.ack(taken(q))
    lease = taken(q)
    clock.advance(1)
    follower = Follower(q._edge)
    assert look(follower) == []
    q.ack(lease)
    assert look(follower) == ["2 attempt 1: ack", "2 succeeded"]
    # Of one that waits too, though it came and went between two looks.
    q.ack(taken(q))
    assert look(follower) == ["3 attempt 1: ack", "3 succeeded"]


def test_an_operators_acts_are_told(q: Queue, clock: ManualClock) -> None:  # noqa: F811
    follower = Follower(q._edge)
    q.enqueue("a", max_attempts=1)
    q.nack(taken(q))
    assert look(follower)[-1] == "1 dead"
    clock.advance(1)
    q.redrive([1])
    assert look(follower) == ["1 ready"]
    q.cancel([1])
    assert look(follower) == ["1 cancelled"]
    q.delete([1])
    assert look(follower) == []


def test_a_held_job_is_told(q: Queue) -> None:
    follower = Follower(q._edge)
    q.enqueue("a")
    q._edge.store.settle([(taken(q), Hold())])
    assert look(follower) == ["1 enqueued", "1 attempt 1: unknown task"]


def test_the_last_lines_are_of_the_newest_jobs(q: Queue, clock: ManualClock) -> None:  # noqa: F811
    for payload in "abc":
        q.enqueue(payload)
        clock.advance(1)
    q.ack(taken(q))
    follower = Follower(q._edge)
    told = [f"{event.id} {event.what}" for event in follower.last(3)]
    assert told == ["3 enqueued", "1 attempt 1: ack", "1 succeeded"]
    assert follower.last(0) == []
    assert len(follower.last(100)) == 5
    # What was told of before is not told again.
    assert look(follower) == []


def test_only_what_is_asked_for_is_followed(q: Queue) -> None:
    with Queue(q.url, "reports", clock=q._edge.clock) as other:  # type: ignore[arg-type]
        everything, mail = Follower(q._edge), Follower(q._edge, queue="mail")
        none = Follower(q._edge, task="shop.send")
        other.enqueue("a")
        q.enqueue("b")
        assert look(everything) == ["1 enqueued", "2 enqueued"]
        assert look(mail) == ["2 enqueued"]
        assert look(none) == []


@pytest.mark.parametrize("stored", [0, 1, 2, 3, 7, 8, 9])
def test_following_begins_after_the_newest_job(q: Queue, stored: int) -> None:
    if stored:
        q.enqueue_many(["x"] * stored)
        q.delete([1, stored - 1] if stored > 2 else [])
    follower = Follower(q._edge)
    assert follower._last_id == (stored if stored != 1 else 1)
    q.enqueue("new")
    assert look(follower) == [f"{stored + 1} enqueued"]


def test_more_new_jobs_than_a_look_takes_are_owned_up_to(q: Queue, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tail_follow, "NEW_MAX", 3)
    follower = Follower(q._edge)
    q.enqueue_many(["x"] * 8)
    assert look(follower) == ["1 enqueued", "2 enqueued", "3 enqueued"]
    assert follower.remarks == ["more new jobs than can be shown: those after 3, up to 8"]
    q.enqueue("x")
    assert "9 enqueued" in look(follower)


def test_attempts_that_nobody_could_see_are_owned_up_to(q: Queue, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tail_follow, "NEXT_MAX", 2)
    q.enqueue_many(["x"] * 9)
    follower = Follower(q._edge)
    q.ack_many(q.deliver_many(7))
    assert len(look(follower)) == 4
    assert follower.remarks == ["5 more attempts ended than could be shown"]
    follower.remarks.clear()
    q.ack_many(q.deliver_many(2))
    assert len(look(follower)) == 4
    assert (look(follower), follower.remarks) == ([], [])


def test_what_is_kept_of_jobs_is_bounded(q: Queue, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tail_follow, "WATCHED_MAX", 4)
    follower = Follower(q._edge)
    for _ in range(3):
        q.enqueue_many(["x"] * 5)
        look(follower)
        q.ack_many(q.deliver_many(5))
        look(follower)
    assert len(follower._watched) <= 4
    assert len(follower._over) <= 4


# How it is printed


def test_a_terminal_gets_lines_that_fit(q: Queue, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "60")
    follower = Follower(q._edge)
    q.enqueue("a", max_attempts=1)
    q.nack(taken(q), error=ValueError("no " * 100 + "\x1b[31m"))
    events = follower.look()
    pipe, terminal = io.StringIO(), Terminal()
    Printer(pipe, as_json=False).print(events)
    Printer(terminal, as_json=False).print(events)
    assert max(map(len, terminal.getvalue().splitlines())) == 60
    enqueued, attempt, _ = pipe.getvalue().splitlines()
    assert enqueued.split()[2:] == ["1", "mail", "-", "enqueued", "-", "-"]
    assert "\\x1b[31m" in attempt
    Printer(None, as_json=True).print(events)


# The command


@pytest.fixture
def file(path: Path) -> Iterator[Queue]:
    with Queue(f"sqlite:///{path}", "mail") as q:
        q.counts()
        yield q


def test_it_begins_with_what_was_and_ends_when_told(file: Queue, path: Path) -> None:
    file.enqueue("a")
    done = ulak("tail", "--json", "--for", "0s", "-u", f"sqlite:///{path}")
    (line,) = done.stdout.splitlines()
    assert (done.returncode, done.stderr) == (0, "")
    told = json.loads(line)
    assert told.pop("at")
    assert told == {
        "id": 1,
        "queue": "mail",
        "task": None,
        "what": "enqueued",
        **dict.fromkeys(("took_s", "attempt", "worker", "error")),
    }


@pytest.mark.parametrize(("number", "status"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_it_follows_until_it_is_stopped(number: int, status: int, file: Queue, path: Path) -> None:
    command = [*COMMAND, "tail", "--every", "50ms", "--last", "1", "-u", f"sqlite:///{path}"]
    file.enqueue("before")
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment()
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline().split()[2] == "1"
        file.enqueue("a")
        assert process.stdout.readline().split()[2:6] == ["2", "mail", "-", "enqueued"]
        os.kill(process.pid, number)
        out, err = process.communicate(timeout=60)
    assert (process.returncode, out, err) == (status, "", "")


def test_a_reader_that_goes_ends_it_quietly(file: Queue, path: Path) -> None:
    command = [*COMMAND, "tail", "--every", "50ms", "-u", f"sqlite:///{path}"]
    file.enqueue("a")
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment()
    ) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        assert process.stdout.readline()
        process.stdout.close()
        file.enqueue("b")
        assert process.stderr.read() == ""
        assert process.wait(60) == 141


def test_an_unknown_queue_and_no_store_are_told(file: Queue, path: Path) -> None:
    url = f"sqlite:///{path}"
    done = ulak("tail", "-q", "mial", "-u", url)
    assert (done.returncode, done.stderr) == (3, "error: there is no queue 'mial'; there is mail\n")
    assert ulak("tail", "-u", f"{url}.not").returncode == 3
