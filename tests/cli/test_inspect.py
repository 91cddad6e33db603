"""What the inspection commands read from a store and how they print it, on a store in memory."""

from __future__ import annotations

import argparse
import io
import itertools
import json
import re
from collections.abc import Iterator
from typing import Any

import pytest

from tests.cli.command import Terminal, lines_of
from ulak import Backoff, NewJob, Queue
from ulak.cli import dead_groups, inspect_change, inspect_counts, inspect_jobs, inspect_show
from ulak.cli.inspect_choice import Choice
from ulak.cli.inspect_open import Missing
from ulak.cli.inspect_table import print_json
from ulak.core.job import Hold, Lease
from ulak.core.store import Changed, Filter, Refusal
from ulak.errors import ConfigError
from ulak.testing import ManualClock

_numbers = itertools.count(1)


class Scene:
    """Two queues of one store, on a clock that the test owns: "mail" has room for ten, "reports" for all."""

    def __init__(self) -> None:
        self.clock = ManualClock()
        url = f"memory://inspect-{next(_numbers)}"
        self.mail = Queue(url, "mail", capacity=10, max_attempts=2, clock=self.clock)
        self.reports = Queue(url, "reports", clock=self.clock)
        self.mail.counts()
        self.reports.counts()
        self.edge = self.mail._edge

    def taken(self) -> Lease:
        lease = self.mail.deliver()
        assert lease is not None
        return lease

    def dead(self, payload: object = "x", error: str = "no") -> int:
        """The id of a job that failed for good at once."""
        job_id = self.mail.enqueue(payload, 100, max_attempts=1)
        self.mail.nack(self.taken(), error=error)
        return job_id

    def page(
        self,
        which: Filter | None = None,
        *,
        after: int = 0,
        limit: int = 50,
        older_s: float | None = None,
        error: str | None = None,
    ) -> inspect_jobs.Page:
        choice, now_at = Choice(which or Filter(), older_s, error), self.clock.calendar()
        return inspect_jobs.page_of(self.edge.store, choice, after=after, limit=limit, now_at=now_at)

    def foretell(
        self, wish: inspect_change.Wish, deed: inspect_change.Deed = inspect_change.RETRY
    ) -> inspect_change.Forecast:
        return inspect_change.foretell(self.edge.store, wish, deed, self.clock.calendar())

    def carry_out(
        self, wish: inspect_change.Wish, deed: inspect_change.Deed = inspect_change.RETRY
    ) -> Changed:
        return inspect_change.carry_out(self.edge.store, wish, deed, self.clock.calendar())


@pytest.fixture
def scene() -> Iterator[Scene]:
    scene = Scene()
    yield scene
    scene.mail.close()
    scene.reports.close()


# counts


def test_counts_name_every_state_and_how_old_the_oldest_are(scene: Scene) -> None:
    scene.mail.enqueue_many(["a", "b", "c", NewJob("d", delay=60)])
    scene.clock.advance(3)
    scene.mail.ack(scene.taken())
    scene.taken()
    scene.clock.advance(31)
    scene.dead()
    scene.reports.pause()
    out = io.StringIO()
    inspect_counts.print_counts(inspect_counts.facts_of(scene.edge), to=out)
    # The first lease is over after 30 s, and to deliver is to reclaim: so the job waits again.
    head = "queue ready scheduled leased held succeeded dead cancelled expired open capacity paused"
    assert [" ".join(line.split()) for line in lines_of(out)] == [
        f"{head} oldest_ready oldest_leased leases_over",
        "mail 2 1 0 0 1 1 0 0 3 10 no 34.00s - 0",
        "reports 0 0 0 0 0 0 0 0 0 - yes - - 0",
    ]


def test_counts_tell_the_oldest_lease_and_those_that_are_over(scene: Scene) -> None:
    scene.mail.enqueue_many(["a", "b"])
    scene.taken()
    scene.clock.advance(25)
    scene.taken()
    scene.clock.advance(6)
    (fact,) = inspect_counts.facts_of(scene.edge, "mail")
    assert (fact.counts.leased, fact.oldest_leased_s, fact.leases_over) == (2, 31.0, 1)
    assert fact.oldest_ready_s is None


def test_counts_as_json_have_the_totals(scene: Scene) -> None:
    scene.dead()
    answer = inspect_counts.as_json(inspect_counts.facts_of(scene.edge))
    assert list(answer) == ["queues"]
    queues: Any = json.loads(json.dumps(answer))["queues"]
    assert list(queues) == ["mail", "reports"]
    assert queues["mail"]["totals"]["dead_lettered"] == 1
    assert {key: queues["mail"][key] for key in ("dead", "open", "capacity", "paused")} == {
        "dead": 1,
        "open": 0,
        "capacity": 10,
        "paused": False,
    }


def test_counts_on_a_terminal_fit_80_columns(scene: Scene, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    scene.mail.enqueue_many(["a"] * 10)
    terminal = Terminal()
    inspect_counts.print_counts(inspect_counts.facts_of(scene.edge), to=terminal)
    assert max(map(len, lines_of(terminal))) <= 80
    assert [line.split()[:2] for line in lines_of(terminal) if line.startswith("mail")] == [
        ["mail", "10"],
        ["mail", "10"],
    ]


def test_an_unknown_queue_is_missing_and_the_nearest_one_is_named(scene: Scene) -> None:
    with pytest.raises(Missing, match=r"there is no queue 'mial'; there is mail"):
        inspect_counts.facts_of(scene.edge, "mial")


# ls and dead ls


def test_a_list_has_a_line_per_job(scene: Scene) -> None:
    scene.mail.enqueue("a", 7)
    scene.mail.nack(scene.taken(), error=ValueError("broken"))
    scene.reports.enqueue("b", delay=9)
    scene.clock.advance(185)
    out = io.StringIO()
    inspect_jobs.print_jobs(scene.page(), inspect_jobs.LS, to=out)
    assert lines_of(out) == [
        "id  queue    state      priority  attempt    age  task  error",
        " 1  mail     ready             7      1/2  3m05s  -     ValueError: broken",
        " 2  reports  scheduled         0      0/5  3m05s  -     -",
    ]


def test_a_list_is_narrowed_by_state_and_queue(scene: Scene) -> None:
    scene.mail.enqueue("a")
    dead = scene.dead()
    scene.reports.enqueue("b")
    assert [line.id for line in scene.page(Filter(states="dead")).lines] == [dead]
    assert [line.queue for line in scene.page(Filter(queue="reports")).lines] == ["reports"]


def test_pages_hold_each_job_once_and_the_last_one_says_so(scene: Scene) -> None:
    scene.reports.enqueue_many(["x"] * 250)
    seen: list[int] = []
    mores = []
    after = 0
    for _ in range(3):
        page = scene.page(after=after, limit=125)
        seen += [line.id for line in page.lines]
        mores.append(page.more)
        if not page.more:
            break
        after = page.lines[-1].id
    assert seen == list(range(1, 251))
    assert mores == [True, False]
    assert inspect_jobs.as_json(scene.page(limit=250))["next_after"] is None
    assert inspect_jobs.as_json(scene.page(limit=249))["next_after"] == 249


def test_dead_letters_say_what_they_died_of_and_when(scene: Scene) -> None:
    scene.dead(error="the printer is on fire")
    scene.clock.advance(60)
    out = io.StringIO()
    inspect_jobs.print_jobs(scene.page(Filter(states="dead")), inspect_jobs.DEAD, to=out)
    assert lines_of(out)[1].split(maxsplit=6) == [
        *("1", "mail", "1/1", "1m00s", "nack", "-"),
        "the printer is on fire",
    ]


def test_dead_letters_of_one_error_are_one_group_whatever_numbers_it_has(scene: Scene) -> None:
    first, second = scene.dead(error="no user 17"), scene.dead(error="no user 18\nbecause")
    scene.clock.advance(60)
    scene.dead(error="timed out")
    jobs = scene.edge.store.scan(Filter(states="dead"))
    groups = dead_groups.groups_of(jobs)
    assert [group.jobs for group in groups] == [2, 1]
    assert [job.id for job in dead_groups.of_group(jobs, groups[0].fingerprint)] == [first, second]
    assert all(dead_groups.is_fingerprint(group.fingerprint) for group in groups)
    out = io.StringIO()
    dead_groups.print_groups(groups, scene.clock.calendar(), to=out)
    assert lines_of(out)[1].split(maxsplit=5)[1:] == ["2", "1m00s", "-", "-", r"no user 18\nbecause"]


def test_dead_letters_are_told_apart_by_where_their_error_was_raised(scene: Scene) -> None:
    def fail(here: bool) -> None:
        if here:
            raise ValueError("broken")
        raise ValueError("broken")

    for here in (True, False, True):
        job_id = scene.mail.enqueue("x", max_attempts=1)
        with pytest.raises(ValueError, match="broken") as raised:
            fail(here)
        scene.mail.nack(scene.taken(), error=raised.value)
    groups = dead_groups.groups_of(scene.edge.store.scan(Filter(states="dead")))
    assert [group.jobs for group in groups] == [2, 1]
    assert groups[0].last_id == job_id
    assert re.fullmatch(r"tests/cli/test_inspect.py:\d+", groups[0].place)


def test_control_characters_of_a_stored_text_never_reach_the_output(scene: Scene) -> None:
    scene.dead(error="a\x1b[2Jb\nc\x7f")
    out = io.StringIO()
    inspect_jobs.print_jobs(scene.page(), inspect_jobs.LS, to=out)
    terminal = Terminal()
    inspect_jobs.print_jobs(scene.page(), inspect_jobs.LS, to=terminal)
    print_json(inspect_jobs.as_json(scene.page()), to=out)
    inspect_show.print_job(
        inspect_show.shown_of(scene.edge, 1), with_payload=True, with_traceback=True, to=out
    )
    assert r"a\x1b[2Jb\nc\x7f" in out.getvalue()
    assert not set("\x1b\x7f\r") & set(out.getvalue())
    assert "\x1b[2J" not in terminal.getvalue()


def test_a_long_error_is_one_line_on_a_terminal_and_whole_in_a_pipe(
    scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    scene.dead(error="long " * 100)
    terminal, pipe = Terminal(), io.StringIO()
    for out in (terminal, pipe):
        inspect_jobs.print_jobs(scene.page(), inspect_jobs.LS, to=out)
    assert len(lines_of(terminal)) == len(lines_of(pipe)) == 2
    assert len(lines_of(terminal)[1]) <= 80
    assert lines_of(terminal)[1].split()[:5] == ["1", "mail", "dead", "100", "1/1"]
    assert lines_of(terminal)[1].endswith("long l…")
    assert lines_of(pipe)[1].count("long ") >= 99


# show


def test_show_tells_the_whole_life_of_a_job(scene: Scene) -> None:
    scene.mail.enqueue({"secret": 1}, 3, unique_key="ada", headers={"tenant": "acme"})
    scene.clock.advance(1)
    first = scene.taken()
    scene.clock.advance(0.5)
    scene.mail.nack(first, error=ValueError("broken"))
    scene.taken()
    scene.clock.advance(4)
    out = io.StringIO()
    shown = inspect_show.shown_of(scene.edge, 1)
    inspect_show.print_job(shown, with_payload=False, with_traceback=False, to=out)
    worker = first.worker
    gap = " " * (len(worker) - len("worker"))
    dash = " " * (len(worker) - 1)
    assert lines_of(out) == [
        "job 1   queue mail   leased",
        "  priority    3",
        "  attempts    2 of 2, delivered 2 times",
        "  enqueued    2026-01-01 00:00:00.000Z (5.50s ago)",
        "  unique key  ada",
        "  headers     tenant",
        "  payload     json, 12 bytes (--payload prints it)",
        f"  lease       held by {worker}, 26.0 s left",
        f"  next        runs on {worker}; its lease ends in 26.0 s",
        "",
        f"at             what              took  worker{gap}  error",
        f"00:00:00.000Z  enqueued             -  -{dash}  -",
        f"00:00:01.000Z  attempt 1: nack  500ms  {worker}  ValueError: broken",
        f"00:00:01.500Z  attempt 2 runs   4.00s  {worker}  -",
    ]
    assert "secret" not in out.getvalue()
    assert "acme" not in out.getvalue()


def test_show_prints_payload_and_headers_only_if_asked(scene: Scene) -> None:
    scene.mail.enqueue({"to": "ada", "n": [1, 2]}, headers={"tenant": "acme"})
    scene.mail.enqueue(b"\x00\xff")
    scene.mail.enqueue("two\nlines")
    shown = [inspect_show.shown_of(scene.edge, job_id) for job_id in (1, 2, 3)]
    assert "payload" not in inspect_show.as_json(shown[0], with_payload=False)
    assert "headers" not in inspect_show.as_json(shown[0], with_payload=False)
    with_payload = [inspect_show.as_json(one, with_payload=True) for one in shown]
    assert with_payload[0]["payload"] == {"to": "ada", "n": [1, 2]}
    assert with_payload[0]["headers"] == {"tenant": "acme"}
    assert with_payload[1]["payload_base64"] == "AP8="
    assert with_payload[2]["payload"] == "two\nlines"
    out = io.StringIO()
    for one in shown:
        inspect_show.print_job(one, with_payload=True, with_traceback=False, to=out)
    text = out.getvalue()
    assert '\n    "to": "ada",\n' in text
    assert "\nheader tenant: acme\n" in text
    assert "  b'\\x00\\xff'\n" in text
    assert "  two\n  lines\n" in text


def test_show_of_a_payload_that_does_not_fit_its_codec_shows_its_bytes(scene: Scene) -> None:
    scene.mail.enqueue("fine")
    shown = inspect_show.shown_of(scene.edge, 1)
    shown.job.payload, shown.job.codec = b"{", "json"
    damaged = inspect_show.as_json(shown, with_payload=True)
    assert damaged["payload_base64"] == "ew=="
    assert "not valid JSON" in str(damaged["payload_error"])
    out = io.StringIO()
    inspect_show.print_job(shown, with_payload=True, with_traceback=False, to=out)
    assert "  b'{'\n" in out.getvalue()


def test_show_of_a_dead_job_says_how_it_comes_back(scene: Scene) -> None:
    job_id = scene.dead()
    out = io.StringIO()
    inspect_show.print_job(
        inspect_show.shown_of(scene.edge, job_id), with_payload=False, with_traceback=False, to=out
    )
    assert f"ulak retry {job_id}" in out.getvalue()
    assert lines_of(out)[-1].split()[1] == "dead"


def test_show_says_that_a_queue_is_paused_and_that_a_lease_is_over(scene: Scene) -> None:
    scene.mail.enqueue_many(["a", "b"])
    scene.taken()
    scene.mail.pause()
    scene.clock.advance(31)
    leased, waiting = (inspect_show.shown_of(scene.edge, job_id) for job_id in (1, 2))
    assert leased.lease_left_s == -1.0
    assert waiting.next == "waits: its queue is paused"
    out = io.StringIO()
    inspect_show.print_job(leased, with_payload=False, with_traceback=False, to=out)
    assert f"  lease       held by {leased.job.worker}, over" in lines_of(out)


def test_show_names_what_its_history_has_not_kept(scene: Scene) -> None:
    scene.mail.enqueue("a", max_attempts=100)
    for _ in range(30):
        scene.mail.nack(scene.taken(), delay=0)
    events = [event.what for event in inspect_show.life_of(inspect_show.shown_of(scene.edge, 1))]
    assert events[:4] == ["enqueued", "attempt 1: nack", "(10 deliveries not kept)", "attempt 12: nack"]
    assert events[-1] == "attempt 30: nack"


def test_show_gives_the_traceback_of_an_attempt_with_v(scene: Scene) -> None:
    scene.mail.enqueue("a")
    with pytest.raises(ZeroDivisionError) as raised:
        _ = 1 / 0
    scene.mail.nack(scene.taken(), error=raised.value)
    shown = inspect_show.shown_of(scene.edge, 1)
    texts = []
    for with_traceback in (False, True):
        out = io.StringIO()
        inspect_show.print_job(shown, with_payload=False, with_traceback=with_traceback, to=out)
        texts.append(out.getvalue())
    assert "File" not in texts[0]
    assert re.search(r"  raised at   tests/cli/test_inspect.py:\d+, attempt 1 \(-v shows", texts[0])
    assert "traceback of attempt 1:\n  File" in texts[1]


def test_show_tells_policy_times_and_keys(scene: Scene) -> None:
    scene.mail.enqueue(
        "a", delay=60, expires=3600, idempotency_key="once", backoff=Backoff(base=1, cap=300), max_attempts=9
    )
    out = io.StringIO()
    inspect_show.print_job(
        inspect_show.shown_of(scene.edge, 1), with_payload=False, with_traceback=False, to=out
    )
    for line in (
        "  due         2026-01-01 00:01:00.000Z (in 1m 00s)",
        "  expires     2026-01-01 01:00:00.000Z (in 1h 00m)",
        "  idempotency once",
        "  backoff     base 1.00s, cap 5m 00s, floor 0s",
        "  next        due in 60.0 s",
    ):
        assert line in lines_of(out)


def test_an_unknown_job_is_missing(scene: Scene) -> None:
    with pytest.raises(Missing, match="there is no job 7"):
        inspect_show.shown_of(scene.edge, 7)


# retry


def wish(*argv: object, deed: inspect_change.Deed = inspect_change.RETRY) -> inspect_change.Wish:
    """The wish of `ulak retry ARGV`."""
    values: dict[str, Any] = dict.fromkeys(("state", "queue", "task", "older", "error"))
    args = argparse.Namespace(**{"ids": [], **values, **dict(argv)})  # type: ignore[arg-type]
    return inspect_change.wish_of(args, deed)


def test_a_forecast_changes_nothing_and_comes_true(scene: Scene) -> None:
    dead = scene.dead()
    waiting = scene.mail.enqueue("w")
    asked = wish(("ids", [dead, waiting, 99]))
    forecast = scene.foretell(asked)
    assert scene.mail.counts().dead == 1
    assert forecast.jobs == 1
    changed = scene.carry_out(asked)
    assert changed.done == (dead,)
    assert (
        dict(forecast.refused)
        == dict(changed.refused)
        == {Refusal.STATE: (waiting,), Refusal.NOT_FOUND: (99,)}
    )
    assert scene.mail.counts().dead == 0


def test_a_forecast_of_a_state_counts_all_queues_or_one(scene: Scene) -> None:
    scene.dead()
    scene.dead()
    cancelled = scene.reports.enqueue("c")
    scene.reports.cancel(cancelled)

    def jobs(*argv: object) -> int:
        return scene.foretell(wish(*argv)).jobs

    assert jobs(("state", ["dead"])) == 2
    assert jobs(("state", ["dead", "cancelled"])) == 3
    assert jobs(("state", ["dead", "cancelled"]), ("queue", "reports")) == 1
    assert jobs(("state", ["dead"]), ("task", "unknown.task")) == 0
    scene.carry_out(wish(("state", ["dead"]), ("queue", "reports")))
    assert scene.mail.counts().dead == 2


def test_a_forecast_of_held_jobs_needs_no_room(scene: Scene) -> None:
    scene.mail.enqueue_many(["x"] * 8)
    store = scene.edge.store
    store.settle([(lease, Hold()) for lease in scene.mail.deliver_many(8)])
    held = [job.id for job in scene.mail.jobs("held")]
    scene.dead()
    scene.dead()
    scene.mail.enqueue("last")
    for asked, jobs, room in (
        (wish(("ids", held)), 8, {}),
        (wish(("state", ["held"])), 8, {}),
        (wish(("state", ["held", "dead"])), 10, {"mail": 1}),
    ):
        forecast = scene.foretell(asked)
        assert (forecast.jobs, dict(forecast.refused), dict(forecast.room)) == (jobs, {}, room)
    assert scene.carry_out(wish(("state", ["held"]))).done == tuple(held)
    assert scene.mail.counts().held == 0


def test_a_forecast_warns_of_a_queue_without_room(scene: Scene) -> None:
    for _ in range(3):
        scene.dead()
    scene.mail.enqueue_many(["x"] * 9)
    asked = wish(("state", ["dead"]))
    assert dict(scene.foretell(asked).room) == {"mail": 1}
    changed = scene.carry_out(asked)
    assert len(changed.done) == 1
    assert len(changed.refused[Refusal.FULL]) == 2


# cancel, rm, reprioritise


def test_a_forecast_of_a_cancel_tells_which_can_only_be_asked(scene: Scene) -> None:
    running, waiting = scene.mail.enqueue_many(["a", "b"])
    ended = scene.dead()
    assert scene.mail.deliver() is not None
    asked = wish(("queue", "mail"), deed=inspect_change.CANCEL)
    forecast = scene.foretell(asked, inspect_change.CANCEL)
    assert (forecast.jobs, forecast.running) == (2, 1)
    named = wish(("ids", [running, waiting, ended]), deed=inspect_change.CANCEL)
    forecast = scene.foretell(named, inspect_change.CANCEL)
    assert (forecast.jobs, forecast.running, dict(forecast.refused)) == (2, 1, {Refusal.STATE: (ended,)})
    changed = scene.carry_out(asked, inspect_change.CANCEL)
    assert changed.done == (running, waiting)
    assert inspect_change.still_running(scene.edge.store, changed) == (running,)
    assert (scene.mail.counts().cancelled, scene.mail.counts().leased) == (1, 1)


def test_what_a_filter_cannot_tell_is_looked_at_job_by_job(scene: Scene) -> None:
    old = scene.mail.enqueue("a")
    scene.clock.advance(600)
    young = scene.mail.enqueue("b")
    dead = scene.dead(error="Connection REFUSED by peer")
    for choice, jobs in (
        ((("older", 600.0),), [old]),
        ((("older", 600.1),), []),
        ((("error", "refused"),), [dead]),
        ((("error", "refused"), ("older", 1.0)), []),
    ):
        named: dict[str, Any] = dict(choice)
        page = scene.page(older_s=named.get("older"), error=named.get("error"))
        assert [line.id for line in page.lines] == jobs
    asked = wish(("older", 60.0), deed=inspect_change.CANCEL)
    assert scene.foretell(asked, inspect_change.CANCEL).jobs == 1
    assert scene.carry_out(asked, inspect_change.CANCEL).done == (old,)
    assert scene.mail.terminal_of(young) is None


def test_a_removal_leaves_alone_what_runs_and_asks_for_a_state(scene: Scene) -> None:
    running, waiting = scene.mail.enqueue_many(["a", "b"])
    assert scene.mail.deliver() is not None
    asked = wish(("ids", [running, waiting]), deed=inspect_change.RM)
    forecast = scene.foretell(asked, inspect_change.RM)
    changed = scene.carry_out(asked, inspect_change.RM)
    assert (forecast.jobs, changed.done) == (1, (waiting,))
    assert dict(forecast.refused) == dict(changed.refused) == {Refusal.LEASED: (running,)}
    with pytest.raises(ConfigError, match="say which jobs: ids, or --state dead"):
        wish(("queue", "mail"), deed=inspect_change.RM)


def test_a_new_priority_is_given_to_what_waits(scene: Scene) -> None:
    deed = inspect_change.reprioritise(9)
    running, waiting = scene.mail.enqueue_many(["a", "b"])
    ended = scene.dead()
    assert scene.mail.deliver() is not None
    asked = wish(("ids", [running, waiting, ended]), deed=deed)
    forecast, changed = scene.foretell(asked, deed), scene.carry_out(asked, deed)
    assert (forecast.jobs, changed.done) == (1, (waiting,))
    refused = {Refusal.LEASED: (running,), Refusal.STATE: (ended,)}
    assert dict(forecast.refused) == dict(changed.refused) == refused
    (job,) = scene.edge.store.get([waiting])
    assert job is not None
    assert job.priority == 9
