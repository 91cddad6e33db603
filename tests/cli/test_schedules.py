"""`ulak schedules`: the next runs of an App's schedules, and what it says of the last ones."""

from __future__ import annotations

import io
import itertools
import json
import sys
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from tests.cli.command import Done, Terminal, lines_of
from tests.support.modules import forgotten
from ulak import App, Queue
from ulak.cli import main
from ulak.cli.schedules import as_json, outlooks_of, print_outlooks
from ulak.schedules import Schedules

NOW = datetime(2026, 3, 28, 12, tzinfo=UTC).timestamp()

APP = """
from ulak import App

app = App("sqlite:///jobs.db")

@app.every(3600)
@app.cron("0 9 * * MON", tz="Europe/Istanbul", catch_up="skip", name="weekly")
@app.task(queue="mail")
def report() -> None:
    raise AssertionError("nothing runs here")
"""


def some() -> Schedules:
    app = App(queues=["mail"])
    app.cron("30 2 * * *", tz="Europe/Berlin", catch_up="all")(app.task(name="a.daily")(nothing))
    app.every(0.5, name="tick")(app.task(name="a.tick")(nothing))
    return app.schedules


def nothing() -> None:
    """It never runs here."""


# What is printed


def test_each_schedule_is_listed_with_its_next_five_runs_in_local_time_and_utc() -> None:
    out = io.StringIO()
    print_outlooks(outlooks_of(some(), {}, NOW)[:1], to=out)
    facts = "Europe/Berlin a.daily mail all 30 2 * * *"
    assert [" ".join(line.split()) for line in lines_of(out)] == [
        "schedule run local utc zone task queue catch_up rule",
        # The clock leaves this time out.
        f"a.daily 1 2026-03-29T03:00:00+02:00 2026-03-29T01:00:00Z {facts}",
        f"a.daily 2 2026-03-30T02:30:00+02:00 2026-03-30T00:30:00Z {facts}",
        f"a.daily 3 2026-03-31T02:30:00+02:00 2026-03-31T00:30:00Z {facts}",
        f"a.daily 4 2026-04-01T02:30:00+02:00 2026-04-01T00:30:00Z {facts}",
        f"a.daily 5 2026-04-02T02:30:00+02:00 2026-04-02T00:30:00Z {facts}",
    ]


def test_the_last_tick_comes_first_where_it_is_known() -> None:
    out = io.StringIO()
    print_outlooks(outlooks_of(some(), {"tick": NOW - 0.5}, NOW)[1:], to=out)
    assert [line.split()[:4] for line in lines_of(out)[1:3]] == [
        ["tick", "last", "2026-03-28T11:59:59.500000Z", "2026-03-28T11:59:59.500000Z"],
        ["tick", "1", "2026-03-28T12:00:00.500000Z", "2026-03-28T12:00:00.500000Z"],
    ]


def test_a_terminal_gets_the_rules_apart_and_the_days_of_the_week(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    out = Terminal()
    print_outlooks(outlooks_of(some(), {}, NOW), to=out)
    lines = [" ".join(line.split()) for line in lines_of(out)]
    assert lines[:6] == [
        "schedule zone task queue catch_up rule",
        "a.daily Europe/Berlin a.daily mail all 30 2 * * *",
        "tick UTC a.tick mail once every 0.5 s",
        "",
        "schedule run local utc",
        "a.daily 1 Sun 2026-03-29 03:00:00+02:00 Sun 2026-03-29 01:00:00Z",
    ]
    assert len(lines) == 5 + 10


def test_programs_get_one_object() -> None:
    (daily, tick) = as_json(outlooks_of(some(), {"a.daily": NOW}, NOW))["schedules"]  # type: ignore[misc]
    runs = daily.pop("next")
    assert daily == {
        "name": "a.daily",
        "task": "a.daily",
        "queue": "mail",
        "rule": "30 2 * * *",
        "tz": "Europe/Berlin",
        "catch_up": "all",
        "last": {"local": "2026-03-28T13:00:00+01:00", "utc": "2026-03-28T12:00:00+00:00"},
    }
    assert len(runs) == 5
    assert runs[0] == {"local": "2026-03-29T03:00:00+02:00", "utc": "2026-03-29T01:00:00+00:00"}
    assert (tick["rule"], tick["tz"], tick["last"]) == ("every 0.5 s", "UTC", None)


def test_no_stream_takes_nothing() -> None:
    print_outlooks(outlooks_of(some(), {}, NOW), to=None)


# The command

Ulak = Callable[..., Done]


@pytest.fixture
def ulak_in(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Iterator[Ulak]:
    """Runs `ulak ARGS` in this process, in a new current directory that holds hello.py."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", sys.path.copy())
    (tmp_path / "hello.py").write_text(APP)

    def go(*argv: str) -> Done:
        return Done(main(argv), *capsys.readouterr())

    with forgotten(tmp_path):
        yield go


def test_the_schedules_of_an_app_are_read_from_its_module(ulak_in: Ulak) -> None:
    done = ulak_in("schedules", "hello:app", "--json")
    assert done.status == 0
    weekly, hourly = json.loads(done.out)["schedules"]
    assert (weekly["name"], weekly["task"], weekly["queue"]) == ("weekly", "hello.report", "mail")
    assert (weekly["catch_up"], weekly["rule"]) == ("skip", "0 9 * * MON")
    assert [datetime.fromisoformat(run["utc"]).strftime("%a %H:%M") for run in weekly["next"]] == [
        "Mon 06:00"
    ] * 5
    assert (hourly["name"], hourly["rule"], hourly["last"]) == ("hello.report", "every 3600 s", None)
    hours = [datetime.fromisoformat(run["utc"]) for run in hourly["next"]]
    assert {later - earlier for earlier, later in itertools.pairwise(hours)} == {timedelta(hours=1)}


def test_a_store_that_is_not_there_is_said_and_not_made(ulak_in: Ulak, tmp_path: Path) -> None:
    done = ulak_in("schedules", "hello:app")
    assert done.status == 0
    assert done.err == (
        "last ticks are not known: there is no file jobs.db (named by hello:app); nothing was created\n"
    )
    assert len(done.out.splitlines()) == 11
    assert not (tmp_path / "jobs.db").exists()


def test_the_last_ticks_are_those_of_the_store(ulak_in: Ulak) -> None:
    with Queue("sqlite:///jobs.db") as q:
        q._edge.store.fire("weekly", NOW, "default")
    done = ulak_in("schedules", "hello:app")
    assert done.err == ""
    assert "weekly        last  2026-03-28T15:00:00+03:00  2026-03-28T12:00:00Z" in done.out


def test_another_store_can_be_named_by_the_option_and_not_by_the_environment(
    ulak_in: Ulak, monkeypatch: pytest.MonkeyPatch
) -> None:
    with Queue("sqlite:///other.db") as q:
        q._edge.store.fire("weekly", NOW, "default")
    monkeypatch.setenv("ULAK_URL", "sqlite:///other.db")
    assert "no file jobs.db (named by hello:app)" in ulak_in("schedules", "hello:app").err
    assert " last " in ulak_in("schedules", "hello:app", "--url", "sqlite:///other.db").out
    done = ulak_in("schedules", "hello:app", "--url", "sqlite:///third.db")
    assert "no file third.db (named by --url)" in done.err


@pytest.mark.parametrize("url", ["memory://", "memory://shared"])
def test_of_a_store_in_memory_nothing_can_be_seen(ulak_in: Ulak, url: str) -> None:
    done = ulak_in("schedules", "hello:app", "--url", url)
    assert done.status == 0
    assert "last ticks are not known: a memory:// store lives inside its process" in done.err


def test_a_store_that_is_none_is_said(ulak_in: Ulak, tmp_path: Path) -> None:
    (tmp_path / "jobs.db").write_bytes(b"not a database at all, and long enough to be looked at")
    done = ulak_in("schedules", "hello:app")
    assert done.status == 0
    assert done.err.startswith("last ticks are not known: ")
    assert len(done.out.splitlines()) == 11


def test_an_app_without_schedules_says_so(ulak_in: Ulak, tmp_path: Path) -> None:
    (tmp_path / "bare.py").write_text('from ulak import App\n\napp = App("memory://")\n')
    done = ulak_in("schedules", "bare:app")
    assert done == (0, "", "bare:app has no schedules\n")
    assert json.loads(ulak_in("schedules", "bare:app", "--json").out) == {"schedules": []}
