"""`ulak prune` on every storage: what it would remove, and what it removes."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.cli.command import Done, Run, read
from tests.cli.everywhere import url  # noqa: F401 - a fixture
from tests.contract.conftest import clock, kind  # noqa: F401 - fixtures
from ulak import Keep, NewJob, Queue, Retention, State
from ulak.cli import main
from ulak.cli.inspect_prune import foretell, prune
from ulak.testing import ManualClock

DAY_S = 86_400.0
FEW = Retention(*[Keep(3, 10.0)] * 4)


@pytest.fixture
def q(kind, clock: ManualClock) -> Iterator[Queue]:  # noqa: F811
    """A queue on the test's clock, that keeps three jobs of each state for ten seconds."""
    with Queue(kind.url(), "mail", max_attempts=1, clock=clock) as q:
        q.counts()
        yield q


def end(q: Queue, number: int, *, fails: bool = False) -> None:
    q.enqueue_many(["x"] * number)
    leases = q.deliver_many(number)
    if fails:
        for lease in leases:
            q.nack(lease)
    else:
        q.ack_many(leases)


def test_nothing_beyond_its_retention_is_nothing_to_prune(q: Queue) -> None:
    end(q, 5)
    assert foretell(q._edge) == {}
    assert prune(q._edge.store) == {}


@pytest.mark.parametrize("waits_s", [0.0, 10.0, 11.0])
def test_what_is_foretold_is_what_is_pruned(q: Queue, clock: ManualClock, waits_s: float) -> None:  # noqa: F811
    end(q, 4)
    end(q, 2, fails=True)
    clock.advance(waits_s)
    end(q, 1)
    q.cancel([q.enqueue("x")])
    q.enqueue_many([NewJob("x", expires=5), NewJob("x", expires=50), NewJob("x", delay=60, expires=5)])
    clock.advance(6)
    q.configure(retention=FEW)
    foretold = foretell(q._edge)
    expected = {
        0.0: {State.SUCCEEDED: 2, State.EXPIRED: 2},
        10.0: {State.SUCCEEDED: 4, State.DEAD: 2, State.EXPIRED: 2},
        11.0: {State.SUCCEEDED: 4, State.DEAD: 2, State.EXPIRED: 2},
    }[waits_s]
    assert foretold == {"mail": expected}
    assert prune(q._edge.store) == expected
    assert foretell(q._edge) == {}


def test_more_than_one_round_of_jobs_is_pruned(q: Queue, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ulak.cli.inspect_prune._AT_ONCE", 2)
    end(q, 9)
    q.configure(retention=FEW)
    assert prune(q._edge.store) == {State.SUCCEEDED: 6}


# The command


@pytest.fixture
def run(url: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Run:  # noqa: F811
    """Run `ulak prune ARGS` in this process."""
    monkeypatch.setenv("ULAK_URL", url)

    def go(*argv: object) -> Done:
        status = main(["prune", *map(str, argv)])
        return Done(status, *capsys.readouterr())

    return go


def test_nothing_is_done_without_yes(run: Run, url: str) -> None:  # noqa: F811
    with Queue(url, "mail", max_attempts=1) as q:
        end(q, 5)
        end(q, 4, fails=True)
        q.configure(retention=FEW)
        would = "3 jobs would be pruned: 2 succeeded, 1 dead\n  queue mail: 2 succeeded, 1 dead\n"
        assert run() == (1, would, "nothing was done yet: give --yes to do it\n")
        assert run("--dry-run") == (0, would, "")
        numbers = {"succeeded": 2, "dead": 1}
        assert read(run, "--dry-run") == {"done": False, "jobs": numbers, "queues": {"mail": numbers}}
        assert q.counts().acked == 5
        assert run("--yes") == (0, "3 jobs are pruned: 2 succeeded, 1 dead\n", "")
        assert (q.counts().acked, q.counts().dead) == (3, 3)
        assert run() == (0, "0 jobs would be pruned\n", "")
        assert read(run, "--yes") == {"done": True, "jobs": {}}


def test_both_options_are_one_too_many(run: Run, url: str) -> None:  # noqa: F811
    done = run("--yes", "--dry-run")
    assert (done.status, done.out) == (2, "")
