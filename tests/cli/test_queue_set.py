"""`ulak queue set`: what is stored with a queue, on every store."""

from __future__ import annotations

import pytest

from tests.cli.command import Run, read
from tests.cli.everywhere import url  # noqa: F401 - a fixture
from ulak import Backoff, Keep, Queue, Retention
from ulak.core.store import DURABLE_RETENTION, MEMORY_RETENTION

NOT_YET = "nothing was done yet: give --yes to do it\n"


def default_of(q: Queue) -> Retention:
    """What is kept where nothing else was said."""
    return MEMORY_RETENTION if q.url.startswith("memory:") else DURABLE_RETENTION


def die(q: Queue) -> None:
    q.enqueue("x", 100)
    lease = q.deliver()
    assert lease is not None
    q.nack(lease)


def test_a_capacity_is_changed_for_a_program_that_runs(run: Run, mail: Queue) -> None:
    mail.enqueue("a")
    would = run("queue", "set", "mail", "--capacity", 1)
    assert (would.status, would.err) == (1, NOT_YET)
    assert would.out.splitlines()[:2] == ["queue mail: 1 job open", "  capacity   1 instead of 10"]
    assert mail.settings().capacity == 10
    did = run("queue", "set", "mail", "--capacity", 1, "--yes")
    assert (did.status, did.out.splitlines()[1], did.err) == (0, "  capacity   1, was 10", "")
    assert not mail.try_enqueue("b")
    so = run("queue", "set", "mail", "--capacity", 1)
    assert (so.status, so.out.splitlines()[1], so.err) == (0, "  capacity   1", "")
    answer = read(run, "queue", "set", "mail", "--capacity", "none", "--yes")
    assert (answer["was"]["capacity"], answer["settings"]["capacity"]) == (1, None)
    assert mail.settings().capacity is None


def test_a_backoff_is_stored_and_taken_away_again(run: Run, mail: Queue) -> None:
    mail.counts()
    done = run("queue", "set", "mail", "--backoff", "1s,5m,200ms", "--yes")
    assert done.out.splitlines()[2] == "  backoff    base 1.00s, cap 5m 00s, floor 200ms, was none"
    assert mail.settings().backoff == Backoff(1, 300, 0.2)
    assert read(run, "queue", "set", "mail", "--backoff", "none", "--yes")["settings"]["backoff"] is None
    assert mail.settings().backoff is None
    refused = run("queue", "set", "mail", "--backoff", "5m,1s", "--yes")
    assert (refused.status, refused.out) == (2, "")
    assert "Backoff needs 0 < base <= cap" in refused.err


def test_a_retention_of_one_state_leaves_the_others_as_they_are(run: Run, mail: Queue) -> None:
    for _ in range(3):
        die(mail)
    would = run("queue", "set", "mail", "--retention", "dead=1,30d")
    assert "  2 dead jobs would be removed for good" in would.out.splitlines()
    answer = read(run, "queue", "set", "mail", "--retention", "dead=1,30d", "--yes")
    assert (answer["done"], answer["forgets"]) == (True, {"dead": 2})
    keep = Keep(1, 30 * 86_400)
    default = default_of(mail)
    assert mail.settings().retention == Retention(default.succeeded, keep, default.cancelled, default.expired)
    mail.prune()
    assert mail.counts().dead == 1
    assert read(run, "queue", "set", "mail", "--retention", "default", "--yes")["settings"] == {
        "capacity": 10,
        "backoff": None,
        "retention": None,
    }
    assert mail.settings().retention is None


def test_jobs_that_are_older_than_a_retention_are_counted(run: Run, mail: Queue) -> None:
    die(mail)
    asked = ("queue", "set", "mail", "--retention")
    assert read(run, *asked, "dead=9,1d", status=1)["forgets"] == {}
    assert read(run, *asked, "dead=9,0.000001s", status=1)["forgets"] == {"dead": 1}


@pytest.mark.parametrize("states", [("dead=1,1d", "dead=2,1d"), ("default", "dead=1,1d")])
def test_a_retention_that_contradicts_itself_is_refused(
    run: Run, mail: Queue, states: tuple[str, str]
) -> None:
    mail.counts()
    done = run("queue", "set", "mail", "--retention", states[0], "--retention", states[1], "--yes")
    assert (done.status, done.out) == (2, "")
    assert "give --retention default alone, or a state of it once" in done.err
    assert mail.settings().retention is None


def test_a_queue_that_is_not_there_is_not_made(run: Run, mail: Queue) -> None:
    mail.counts()
    done = run("queue", "set", "mial", "--capacity", 1, "--yes")
    assert done == (3, "", "error: there is no queue 'mial'; there is mail\n")
    assert list(read(run, "counts")["queues"]) == ["mail"]


@pytest.mark.parametrize("paused", [True, False])
def test_a_queue_is_paused_and_resumed_with_yes_alone(run: Run, mail: Queue, paused: bool) -> None:
    mail.enqueue("a")
    if not paused:
        mail.pause()
    command = "pause" if paused else "resume"
    assert (run(command, "mail").status, mail.settings().paused) == (1, not paused)
    assert (run(command, "mail", "--yes").status, mail.settings().paused) == (0, paused)
