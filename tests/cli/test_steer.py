"""The commands that change jobs, on every store, as a user runs them."""

from __future__ import annotations

import pytest

from tests.cli.command import Run, read
from tests.cli.everywhere import url  # noqa: F401 - a fixture
from ulak import Queue
from ulak.cli import dead_change

NOT_YET = "nothing was done yet: give --yes to do it\n"


def die(q: Queue, error: str = "no") -> int:
    """The id of a job that failed for good."""
    job_id = q.enqueue("x", 100)
    lease = q.deliver()
    assert lease is not None
    q.nack(lease, error=error)
    return job_id


def test_cancel_tells_first_how_many_wait_and_how_many_run(run: Run, mail: Queue) -> None:
    running, waiting = mail.enqueue_many(["a", "b"])
    assert mail.deliver() is not None
    would = "1 job would be asked to stop\n1 job would be cancelled\n"
    assert run("cancel", "-q", "mail") == (1, would, NOT_YET)
    assert mail.counts().open == 2
    done = run("cancel", "-q", "mail", "--yes")
    assert done == (0, f"1 job is asked to stop: {running}\n1 job is cancelled: {waiting}\n", "")
    assert (mail.counts().cancelled, mail.counts().leased) == (1, 1)
    assert "its cancel is requested" in run("show", running).out


def test_cancel_of_what_only_runs_does_not_call_it_cancelled(run: Run, mail: Queue) -> None:
    one, other, waiting = mail.enqueue_many(["a", "b", "c"])
    assert len(mail.deliver_many(2)) == 2
    assert run("cancel", one, other) == (1, "2 jobs would be asked to stop\n", NOT_YET)
    assert run("cancel", one, other, "--yes") == (0, f"2 jobs are asked to stop: {one}, {other}\n", "")
    assert read(run, "cancel", other, "--yes") == {"done": [other], "refused": {}, "running": [other]}
    assert run("cancel", waiting, "--yes").out == f"1 job is cancelled: {waiting}\n"


def test_cancel_of_what_has_ended_leaves_it_alone(run: Run, mail: Queue) -> None:
    dead, waiting = die(mail), mail.enqueue("a")
    assert read(run, "cancel", dead, waiting, 99, status=1) == {
        "done": [],
        "would_change": 1,
        "refused": {"not possible in its state": [dead], "not found": [99]},
        "running": 0,
    }
    done = run("cancel", dead, waiting, "--yes")
    left = f"  1 job left alone, ended already: {dead}\n"
    assert (done.status, done.out) == (1, f"1 job is cancelled: {waiting}\n{left}")
    assert run("cancel", 99, "--yes").status == 3
    none = (0, "there is no such job to cancel\n", "")
    assert run("cancel", "--state", "held") == run("cancel", "--state", "held", "--yes") == none


def test_jobs_are_chosen_by_what_their_last_error_says(run: Run, mail: Queue) -> None:
    refused, other = die(mail, "connection refused"), die(mail, "no such user")
    assert [job["id"] for job in read(run, "ls", "--error", "REFUSED")["jobs"]] == [refused]
    assert run("rm", "--state", "dead", "--error", "refused").out == "1 job would be removed for good\n"
    assert read(run, "rm", "--state", "dead", "--error", "refused", "--yes") == {
        "done": [refused],
        "refused": {},
    }
    assert (mail.get(refused), mail.counts().dead) == (None, 1)
    assert read(run, "retry", "--state", "dead", "--error", "user", "--yes")["done"] == [other]


def test_jobs_are_chosen_by_their_age(run: Run, mail: Queue) -> None:
    job_id = mail.enqueue("a")
    assert [job["id"] for job in read(run, "ls", "--older", "0s")["jobs"]] == [job_id]
    assert read(run, "ls", "--older", "10m")["jobs"] == []
    assert run("cancel", "--older", "10m", "--yes").out == "there is no such job to cancel\n"
    assert run("cancel", "--older", "0s", "--yes").out == f"1 job is cancelled: {job_id}\n"


def test_rm_removes_what_has_ended_and_what_waits_but_nothing_that_runs(run: Run, mail: Queue) -> None:
    running = mail.enqueue("r")
    assert mail.deliver() is not None
    dead, waiting = die(mail), mail.enqueue("w")
    done = run("rm", dead, waiting, running, "--yes")
    left = f"  1 job left alone, running now: {running}\n"
    assert done == (1, f"2 jobs are removed for good: {dead}, {waiting}\n{left}", "")
    assert run("rm", dead).status == 3
    assert [job.id for job in mail.jobs()] == [running]


def test_rm_of_a_state_that_is_counted_by_another_name(run: Run, mail: Queue) -> None:
    mail.enqueue("a")
    lease = mail.deliver()
    assert lease is not None
    mail.ack(lease)
    assert run("rm", "--state", "succeeded").out == "1 job would be removed for good\n"
    assert run("rm", "--state", "succeeded", "--yes").status == 0
    assert mail.counts().acked == 0


def test_reprioritise_puts_jobs_first_or_last(run: Run, mail: Queue) -> None:
    first, second = mail.enqueue_many(["a", "b"])
    assert run("reprioritise", second, "--priority", 9).out == "1 job would get priority 9\n"
    assert run("reprioritise", second, "--priority", 9, "--yes").out == f"1 job has priority 9: {second}\n"
    lease = mail.deliver()
    assert lease is not None
    assert lease.id == second
    done = run("reprioritise", "--state", "ready", "--priority", -5, "--yes")
    assert (done.status, done.out) == (0, f"1 job has priority -5: {first}\n")
    assert run("reprioritise", second, "--priority", 1, "--yes").status == 1


# dead


def group_of(run: Run) -> str:
    """The fingerprint of the largest group."""
    fingerprint: str = read(run, "dead", "ls")["groups"][0]["fingerprint"]
    return fingerprint


def test_dead_ls_tells_what_jobs_died_of_and_the_next_step(run: Run, mail: Queue) -> None:
    dead = [die(mail, f"no user {n}") for n in range(3)]
    die(mail, "timed out")
    done = run("dead", "ls")
    name = group_of(run)
    assert [line.split()[1] for line in done.out.splitlines()[1:]] == ["3", "1"]
    assert done.out.splitlines()[1].startswith(name)
    assert f"ulak dead retry {name} --first 3 would try a few" in done.err
    shown = read(run, "dead", "show", name)
    assert [job["id"] for job in shown["jobs"]] == dead
    page = run("dead", "show", name, "--limit", 2)
    assert page.err == f"there are more: --after {dead[1]}\n"
    assert run("dead", "show", name, "--after", dead[2]).status == 3
    assert read(run, "dead", "ls", "--error", "TIMED")["groups"][0]["jobs"] == 1


def test_a_few_of_a_group_are_tried_first_and_then_the_rest_of_it(run: Run, mail: Queue) -> None:
    dead = [die(mail, f"no user {n}") for n in range(4)]
    other = die(mail, "timed out")
    name = group_of(run)
    assert run("dead", "retry", name) == (1, "4 jobs would run again\n", NOT_YET)
    assert run("dead", "retry", name, "--first", 1).out == "1 job would run again\n"
    assert read(run, "dead", "retry", name, "--first", 1, "--yes") == {"done": dead[:1], "refused": {}}
    assert read(run, "dead", "retry", name, "--rate", "100/s", "--yes")["done"] == dead[1:]
    assert run("dead", "retry", name, "--yes").status == 3
    assert (mail.counts().ready, [job.id for job in mail.jobs("dead")]) == (4, [other])


def test_a_rate_keeps_jobs_apart(run: Run, mail: Queue, monkeypatch: pytest.MonkeyPatch) -> None:
    slept: list[float] = []
    monkeypatch.setattr(dead_change, "pause", slept.append)
    for n in range(5):
        die(mail, f"no user {n}")
    assert len(read(run, "dead", "retry", group_of(run), "--rate", "20/s", "--yes")["done"]) == 5
    assert slept == [0.1, 0.1]


def test_how_long_a_rate_takes_is_said_beforehand(
    run: Run, mail: Queue, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(dead_change, "pause", lambda _: None)
    ids = [die(mail) for _ in range(4)]
    done = run("dead", "retry", *ids, "--rate", "2/s", "--yes")
    assert (
        done.err.splitlines()[0] == "4 jobs at 2/s take about 2.00s; if this is stopped, the others stay dead"
    )
    assert (done.status, mail.counts().ready) == (0, 4)


def test_dead_drop_removes_dead_jobs_and_no_others(run: Run, mail: Queue) -> None:
    dead, second, waiting = die(mail), die(mail, "other"), mail.enqueue("w")
    assert run("dead", "drop", dead, waiting).out.splitlines() == [
        "1 job would be removed for good",
        f"  1 job left alone, not dead: {waiting}",
    ]
    done = run("dead", "drop", dead, waiting, 99, "--yes")
    assert done.status == 1
    assert done.out.splitlines() == [
        f"1 job is removed for good: {dead}",
        f"  1 job left alone, not dead: {waiting}",
        "  1 job left alone, not stored here: 99",
    ]
    assert [job.id for job in mail.jobs()] == [second, waiting]


def test_dead_retry_leaves_alone_what_runs_or_waits(run: Run, mail: Queue) -> None:
    running, waiting = mail.enqueue_many(["a", "b"])
    assert mail.deliver() is not None
    for words in ((), ("--yes",)):
        done = run("dead", "retry", running, waiting, *words)
        left = f"  2 jobs left alone, not dead: {running}, {waiting}\n"
        assert done == (1, f"there is no such job to run again\n{left}", "")
