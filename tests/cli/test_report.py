"""What is printed of a run, to the letter."""

from __future__ import annotations

import io
import os
import sys
from shlex import split
from typing import Any

import pytest

from tests.cli.command import on_terminal, ulak
from tests.cli.test_demo import plan
from ulak import __version__
from ulak.cli import demo_progress
from ulak.cli.demo_plan import DeadLetter, Latency, Result, Snapshot
from ulak.cli.demo_report import as_json, as_text, header
from ulak.metrics import Histogram


def result(**changes: Any) -> Result:
    latency = Latency(Histogram(), Histogram(), Histogram())
    for histogram in (latency.due_to_settled, latency.accepted_to_settled, latency.due_to_start):
        histogram.record(0.041)
    values: dict[str, Any] = {
        "plan": plan(jobs=2000, capacity=256, seed=7, fail_rate=0.2),
        "stopped": False,
        "enqueued": 2000,
        "processed": 2489,
        "succeeded": 1999,
        "failed": 490,
        "retries": 489,
        "dead_lettered": 1,
        "reclaimed": 0,
        "stale": 0,
        "rejected": 0,
        "open": 0,
        "dead_kept": 1,
        "dead_letters": (DeadLetter(1731, 5, "InjectedFailure: \x1b[31mno"),),
        "latency": latency,
        "predicted": (1999, 1),
        "peak_open": 256,
        "producing_s": 0.4,
        "blocked_s": 0.1,
        "elapsed_s": 0.5,
        "peak_rss_bytes": None,
    }
    return Result(**values | changes)


def test_the_summary_of_a_good_run() -> None:
    assert as_text(result()) == [
        "done in 500ms   4000 jobs/s   4978 attempts/s",
        "  enqueued 2000   processed 2489   succeeded 1999   failed 490",
        "  retries 489   dead-lettered 1   reclaimed 0   stale 0   rejected 0",
        "  producer blocked 100ms (25% of its time)   peak open 256 of 256",
        "  latency                       p50      p95      p99      max",
        "    enqueue to settled         41ms     41ms     41ms     41ms",
        "    accepted to settled        41ms     41ms     41ms     41ms",
        "    enqueue to first start     41ms     41ms     41ms     41ms",
        "  check ok      processed 2489 = succeeded 1999 + failed 490",
        "        ok      failed 490 = retries 489 + dead-lettered 1",
        "        ok      enqueued 2000 = succeeded 1999 + dead-lettered 1 + open 0",
        "        ok      foretold by seed 7: succeeded 1999, dead-lettered 1",
        "  1 dead letter",
        "    #1731, 5 attempts, InjectedFailure: \\x1b[31mno",
        "  next: more dead letters",
        "    ulak demo --seed 7 --fail-rate 0.9 --max-attempts 3",
    ]


def test_the_summary_of_a_stopped_run_has_open_jobs_and_no_prediction() -> None:
    lines = as_text(result(stopped=True, enqueued=2003, open=3, predicted=None))
    assert lines[0].startswith("stopped in 500ms")
    assert "        ok      enqueued 2003 = succeeded 1999 + dead-lettered 1 + open 3" in lines
    assert not any("foretold" in line for line in lines)
    assert lines[-2:] == ["  next: the same failures, to the end this time", "    ulak demo --seed 7"]


def test_the_summary_says_what_does_not_add_up() -> None:
    lines = as_text(result(processed=2490, predicted=(2000, 0)))
    assert "  check FAILED  processed 2490 = succeeded 1999 + failed 490" in lines
    assert "        FAILED  foretold by seed 7: succeeded 2000, dead-lettered 0" in lines


def test_the_summary_counts_the_dead_letters_it_does_not_show() -> None:
    lines = as_text(result(dead_lettered=9, dead_kept=4, plan=plan(fail_rate=0.9)))
    at = lines.index("  9 dead letters, 5 of them pruned (--keep-dead)")
    assert lines[at + 2] == "    and 3 more"
    assert lines[-2:] == [
        "  next: an open loop, less room",
        "    ulak demo --seed 7 --capacity 16 --rate 500",
    ]
    assert as_text(result(dead_lettered=9, dead_kept=0, dead_letters=()))[-3].startswith("  9 dead letters")


def test_what_to_run_next_repeats_the_options_and_can_be_pasted() -> None:
    given = {"--jobs": "600", "--base": "0.001s", "--capacity": "9", "--url": "x://ada:secret@host/a b"}
    head, command = as_text(result(plan=plan(fail_rate=0.9)), given)[-2:]
    assert head == "  next: an open loop, less room"
    assert split(command.replace("\\\n", "")) == [
        *("ulak", "demo", "--seed", "7", "--jobs", "600", "--base", "0.001s", "--capacity", "16"),
        *("--url", "x://***@host/a b", "--rate", "500"),
    ]
    assert max(map(len, command.splitlines())) <= 80


def test_no_password_is_printed() -> None:
    secret = plan(url="x://ada:pass@word@host/0")
    for text in ("\n".join(header(secret)), as_json(result(plan=secret))):
        assert "x://***@host/0" in text
        assert "pass" not in text.replace("passes", "")


def test_a_run_without_any_job_divides_nothing_by_zero() -> None:
    empty = Latency(Histogram(), Histogram(), Histogram())
    lines = as_text(result(elapsed_s=0.0, producing_s=0.0, blocked_s=0.0, latency=empty))
    assert lines[0] == "done in 0s   0 jobs/s   0 attempts/s"
    assert "    enqueue to settled            -        -        -        -" in lines


def test_the_header() -> None:
    assert header(plan(workers=1, jobs=1, rate=50.0)) == [
        f"ulak {__version__}  memory://  1 worker  capacity 10  fail-rate 50%  max attempts 3",
        "  1 job   50 jobs/s   priorities 0 to 2   backoff 1.0ms to 2.0ms   seed 7",
    ]


def test_the_progress_line() -> None:
    at = Snapshot(elapsed_s=2.0, ended=2400, open=64, retrying=9, blocked_s=0.5, producing_s=2.0)
    expected = "2400/2000  1.2k/s  open 64/256  retrying 9  producer blocked 25%"
    assert demo_progress.line_of(result().plan, at) == expected
    assert (
        demo_progress.line_of(plan(), Snapshot()) == "0/100  0/s  open 0/10  retrying 0  producer blocked 0%"
    )
    assert "  1.5M/s  " in demo_progress.line_of(plan(), Snapshot(elapsed_s=2.0, ended=3_000_000))


def test_a_plain_line_comes_now_and_then() -> None:
    stream = io.StringIO()
    with demo_progress.shown(plan(), stream) as show:
        for tenth in range(50):
            show(Snapshot(elapsed_s=tenth / 10, ended=tenth))
    assert [line.split()[0] for line in stream.getvalue().splitlines()] == ["20/100", "40/100"]


def test_a_plain_line_that_nobody_reads_ends_a_run_only_if_its_result_goes_there_too(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    reader, writer = os.pipe()
    os.close(reader)
    with os.fdopen(writer, "w", closefd=False) as stream:
        monkeypatch.setattr(sys, "stdout", stream)
        with demo_progress.shown(plan(), stream) as show, pytest.raises(BrokenPipeError):
            show(Snapshot(elapsed_s=3.0))
        monkeypatch.undo()
        with demo_progress.shown(plan(), stream) as show:
            show(Snapshot(elapsed_s=3.0))
            show(Snapshot(elapsed_s=9.0))
        os.dup2(os.open(os.devnull, os.O_WRONLY), writer)
    os.close(writer)


def test_a_terminal_gets_a_live_line_and_its_cursor_back() -> None:
    status, shown, _ = on_terminal("demo", "--jobs", 1500, "--seed", 3)
    assert status == 0
    assert "\x1b[?25l" in shown
    assert "\x1b[?25h" in shown.rpartition("\x1b[?25l")[2]
    assert "1500/1500" in shown
    assert "\x1b[38;" in shown
    assert "done in" in shown


def test_with_json_the_live_line_is_on_stderr() -> None:
    status, shown, printed = on_terminal("demo", "--jobs", 300, "--json", stderr_only=True)
    assert status == 0
    assert "300/300" in shown
    assert printed.startswith('{"settings": ')
    assert printed.count("\n") == 1


def test_no_color_is_obeyed_on_a_terminal() -> None:
    status, shown, _ = on_terminal("demo", "--jobs", 300, env={"NO_COLOR": "1"})
    assert status == 0
    assert "300/300" in shown
    assert "\x1b[38;" not in shown


def test_a_dumb_terminal_gets_plain_lines() -> None:
    status, shown, _ = on_terminal("demo", "--jobs", 300, env={"TERM": "dumb"})
    assert status == 0
    assert "\x1b" not in shown
    assert "done in" in shown


@pytest.mark.parametrize("columns", [40, 80])
def test_the_live_line_stays_in_its_line(columns: int) -> None:
    status, shown, _ = on_terminal("demo", "--jobs", 300, "-v", columns=columns, env={"NO_COLOR": "1"})
    assert status == 0
    live, _, _ = shown.rpartition("\x1b[?25h")
    frames = live.rpartition("\x1b[2K")[2]
    assert len(frames.strip("\r\n")) <= columns


def test_a_terminal_in_the_plain_locale_gets_ascii() -> None:
    env = {"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}
    status, shown, _ = on_terminal("demo", "--jobs", 300, env=env)
    assert status == 0
    assert shown.isascii()


def test_no_color_and_a_pipe_show_no_escape_at_all() -> None:
    assert "\x1b" not in ulak("demo", "--jobs", 100, env={"FORCE_COLOR": "1"}).stdout
