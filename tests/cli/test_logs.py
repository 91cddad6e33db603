"""The log on stderr: its forms, its levels, and what it escapes."""

from __future__ import annotations

import json
import logging
import os
import sys
from datetime import datetime

import pytest

from tests.cli.command import ulak
from ulak.cli.logs import level_of, shown
from ulak.cli.output import encodable, say, visible

log = logging.getLogger("ulak")
FAILING = ("demo", "--jobs", 5, "--fail-rate", 1, "--max-attempts", 2, "--base", "1ms", "--cap", "1ms")
HOSTILE = 'a "b"=\\ c\n\x1b[31m\x7f\x9b\u202e\udc80'


def say_something_hostile(form: str) -> None:
    """As the logger would, but past pytest's own log, whose reports cannot hold a lone surrogate."""
    with shown(form, logging.INFO):
        log.handlers[-1].handle(logging.makeLogRecord({"name": "ulak", "levelname": "INFO", "msg": HOSTILE}))


def test_injected_failures_are_not_shown_unless_asked_for() -> None:
    assert ulak(*FAILING).stderr == ""


def test_with_v_every_injected_failure_is_a_line() -> None:
    lines = ulak(*FAILING, "-v").stderr.splitlines()
    assert len(lines) == 10
    retried = "warning ulak: job 1 of queue demo, attempt 1 of 2: retried (InjectedFailure"
    died = "error ulak: job 5 of queue demo, attempt 2 of 2: died (InjectedFailure"
    assert [sum(line.startswith(start) for line in lines) for start in (retried, died)] == [1, 1]


def test_with_vv_successes_are_shown_too() -> None:
    lines = ulak("-v", "demo", "--jobs", 5, "--fail-rate", 0, "-v").stderr.splitlines()
    assert "debug ulak: job 3 of queue demo, attempt 1 of 5: succeeded" in lines


def test_json_lines_of_the_demo_can_be_read_back() -> None:
    records = [json.loads(line) for line in ulak(*FAILING, "-v", "--log-format", "json").stderr.splitlines()]
    assert len(records) == 10
    (first,) = (record for record in records if (record["job_id"], record["attempt"]) == (1, 1))
    assert datetime.fromisoformat(first.pop("at")).tzinfo is not None
    message = first.pop("message")
    assert message.startswith("job 1 of queue demo, attempt 1 of 2: retried (InjectedFailure")
    assert first == {
        "level": "warning",
        "logger": "ulak",
        "job_id": 1,
        "queue": "demo",
        "attempt": 1,
    }


def test_logfmt_lines_of_the_demo() -> None:
    lines = ulak(*FAILING, "-v", "--log-format", "logfmt").stderr.splitlines()
    assert all(line.startswith("at=20") for line in lines)
    start = 'level=warning logger=ulak message="job 1 of queue demo, attempt 1 of 2: retried (InjectedFailure'
    (line,) = (line for line in lines if line.partition(" ")[2].startswith(start))
    assert line.endswith(' s" job_id=1 queue=demo attempt=1')


def test_levels(capsys: pytest.CaptureFixture[str]) -> None:
    assert [level_of(n) for n in range(4)] == [logging.WARNING, logging.INFO, logging.DEBUG, logging.DEBUG]
    with shown("console", logging.INFO):
        log.info("shown")
        log.debug("not shown")
    assert capsys.readouterr().err == "info ulak: shown\n"


def test_a_hostile_message_stays_one_line_of_console(capsys: pytest.CaptureFixture[str]) -> None:
    say_something_hostile("console")
    assert capsys.readouterr().err == ('info ulak: a "b"=\\ c\\n\\x1b[31m\\x7f\\x9b\\u202e\\udc80\n')


def test_a_traceback_has_lines_of_its_own_on_the_console_only(capsys: pytest.CaptureFixture[str]) -> None:
    for form in ("console", "json", "logfmt"):
        with shown(form, logging.WARNING):
            try:
                int("what\x1bever")
            except ValueError:
                log.exception("it failed")
    lines = capsys.readouterr().err.splitlines()
    assert lines[:2] == ["error ulak: it failed", "Traceback (most recent call last):"]
    said = "ValueError: invalid literal for int() with base 10: 'what\\x1bever'"
    assert lines[-3] == said
    assert json.loads(lines[-2])["traceback"].endswith(said)
    assert lines[-1].endswith(said.replace("\\", "\\\\") + '"')


def test_a_hostile_message_stays_one_line_of_json_and_logfmt(capsys: pytest.CaptureFixture[str]) -> None:
    say_something_hostile("json")
    say_something_hostile("logfmt")
    as_json, as_logfmt = capsys.readouterr().err.splitlines()
    assert as_json.isascii()
    assert as_json.isprintable()
    assert json.loads(as_json)["message"] == HOSTILE
    expected = r'message="a \"b\"=\\ c\n\x1b[31m\x7f\x9b\u202e\udc80"'
    assert as_logfmt.partition("logger=ulak ")[2] == expected


def test_an_empty_value_is_quoted_in_logfmt(capsys: pytest.CaptureFixture[str]) -> None:
    with shown("logfmt", logging.WARNING):
        log.warning("")
    assert capsys.readouterr().err.endswith(' message=""\n')


def test_a_log_that_nobody_reads_stops_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    reader, writer = os.pipe()
    os.close(reader)
    with os.fdopen(writer, "w", buffering=1) as stream, shown("console", logging.WARNING):
        monkeypatch.setattr(sys, "stderr", stream)
        log.warning("into the void")
        monkeypatch.setattr(sys, "stderr", None)
        log.warning("into nothing")
        os.dup2(os.open(os.devnull, os.O_WRONLY), writer)


def test_the_logger_is_left_as_it_was_found() -> None:
    before = log.level, list(log.handlers)
    with shown("json", logging.DEBUG):
        assert log.level == logging.DEBUG
    assert (log.level, log.handlers) == before


def test_text_is_made_fit_for_its_stream() -> None:
    assert visible("a\tb\x00\u2028é") == "a\\tb\\x00\\u2028é"
    assert encodable("5µs … é", "ascii") == "5us ... ?"
    assert encodable("5µs", "utf-8") == "5µs"
    say("nowhere to go", to=None)
