"""What every command shares: usage errors, help, versions, streams that are odd or gone."""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.cli.command import COMMAND, environment, told_a_reader_of_one_line, ulak
from ulak import Queue, __version__
from ulak.cli import MODULES, demo_report, main, parser_of

REFUSED = {
    "unknown command": (
        ["dmo"],
        "error U302: unknown command 'dmo'; did you mean demo?\n  see ulak --help\n",
    ),
    "unknown command, nothing like it": (
        ["x"],
        f"error U302: unknown command 'x'; there is {', '.join(MODULES)}\n  see ulak --help\n",
    ),
    "unknown option before the command": (
        ["--versoin"],
        "error U302: unknown option '--versoin'; did you mean --version?\n  see ulak --help\n",
    ),
    "an option of a command before it": (
        ["-v", "--jobs", "5", "demo"],
        "error U302: unknown option '--jobs'; the options of a command come after it\n  see ulak --help\n",
    ),
    "unknown option": (
        ["demo", "--job", "5"],
        "error U302: unknown option '--job'; did you mean --jobs?\n  see ulak demo --help\n",
    ),
    "unknown option with its value": (
        ["demo", "--failrate=0.5"],
        "error U302: unknown option '--failrate'; did you mean --fail-rate?\n  see ulak demo --help\n",
    ),
    "unknown option, nothing like it": (
        ["demo", "--zzz"],
        "error U302: unknown option '--zzz'\n  see ulak demo --help\n",
    ),
    "unexpected argument": (
        ["demo", "now"],
        "error U302: unexpected argument 'now'\n  see ulak demo --help\n",
    ),
    "a long argument is cut": (
        ["demo", "x" * 100],
        f"error U302: unexpected argument '{'x' * 39}…'\n  see ulak demo --help\n",
    ),
    "control characters are escaped": (
        ["demo", "a\x1b[31mb\nc"],
        "error U302: unexpected argument 'a\\x1b[31mb\\nc'\n  see ulak demo --help\n",
    ),
    "no value": (
        ["demo", "--jobs"],
        "error U302: --jobs: expected one argument\n  see ulak demo --help\n",
    ),
    "not a number": (
        ["demo", "--jobs", "many"],
        "error U302: --jobs: 'many' is not a whole number from 0 to 1,000,000,000\n  see ulak demo --help\n",
    ),
    "too small a number": (
        ["demo", "--workers", "0"],
        "error U302: --workers: '0' is not a whole number from 1 to 10,000\n  see ulak demo --help\n",
    ),
    "too many digits": (
        ["demo", "--seed", "9" * 5000],
        f"error U302: --seed: '{'9' * 39}…' is not a whole number\n  see ulak demo --help\n",
    ),
    "not a share": (
        ["demo", "--fail-rate", "120%"],
        (
            "error U302: --fail-rate: '120%' is not a share; write 0.2 or 20%, at most 100%\n"
            "  see ulak demo --help\n"
        ),
    ),
    "not a share, though a number to Python": (
        ["demo", "--fail-rate", "nan"],
        (
            "error U302: --fail-rate: 'nan' is not a share; write 0.2 or 20%, at most 100%\n"
            "  see ulak demo --help\n"
        ),
    ),
    "not a rate": (
        ["demo", "--rate", "fast"],
        "error U302: --rate: 'fast' is not a number per second, such as 500 or 0.5\n  see ulak demo --help\n",
    ),
    "not a duration": (
        ["demo", "--base", "5 weeks"],
        (
            "error U302: --base: cannot read '5 weeks' as a duration; write a number with ms, s, m, h or d, "
            "such as 20ms or 1.5m\n  see ulak demo --help\n"
        ),
    ),
    "not a log format, nothing like it": (
        ["demo", "--log-format", "xml"],
        (
            "error U302: --log-format: unknown value 'xml'; there is console, json, logfmt\n"
            "  see ulak demo --help\n"
        ),
    ),
    "not a log format": (
        ["demo", "--log-format", "jsn"],
        "error U302: --log-format: unknown value 'jsn'; did you mean json?\n  see ulak demo --help\n",
    ),
    "base above cap": (
        ["demo", "--base", "2s", "--cap", "1s"],
        (
            "error U302: --base must be more than 0 and at most --cap: --base is 2s and --cap is 1s\n"
            "  see ulak demo --help\n"
        ),
    ),
    "a store that is not there yet": (
        ["demo", "--url", "redis://h/0"],
        (
            "error U302: no store for 'redis://'; this version has 'memory://', 'memory://name', "
            "'sqlite:///jobs.db' and 'postgresql://user@host/database'\n"
        ),
    ),
    "no URL": (
        ["demo", "--url", "jobs.db"],
        (
            "error U302: a store's URL starts with a scheme: 'memory://', 'memory://name', "
            "'sqlite:///jobs.db', 'postgresql://user@host/database'\n"
        ),
    ),
}


@pytest.mark.parametrize(("argv", "expected"), REFUSED.values(), ids=REFUSED)
def test_what_cannot_be_used_is_refused_in_a_few_lines(
    argv: list[str], expected: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(argv) == 2
    printed = capsys.readouterr()
    assert printed.err == expected
    assert printed.out == ""
    assert len(expected.splitlines()) <= 6


def test_a_refusal_comes_out_of_the_process_as_it_does_out_of_main() -> None:
    argv, expected = REFUSED["unknown option"]
    done = ulak(*argv)
    assert (done.returncode, done.stdout, done.stderr) == (2, "", expected)


def test_no_command_at_all_prints_the_help_and_is_wrong_usage(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([]) == 2
    printed = capsys.readouterr()
    assert printed.out == ""
    assert "demo" in printed.err


@pytest.mark.parametrize("argv", [["--help"], ["demo", "--help"]], ids=" ".join)
def test_help_fits_80_columns_of_plain_ascii(
    argv: list[str], capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    assert main(argv) == 0
    printed = capsys.readouterr()
    assert printed.err == ""
    assert printed.out.isascii()
    assert max(map(len, printed.out.splitlines())) <= 80


def test_help_names_every_option_of_the_demo(capsys: pytest.CaptureFixture[str]) -> None:
    main(["demo", "--help"])
    text = capsys.readouterr().out
    wanted = "jobs workers capacity max-attempts base cap fail-rate rate seed priorities keep-dead url json"
    assert [
        name
        for name in (*wanted.split(), "log-format")
        if f"--{name} " not in text.partition("\noptions:")[2]
    ] == []


def loaded_by(*argv: str) -> set[str]:
    """What a process has loaded at the end of `ulak ARGV`."""
    code = "import sys; from ulak.cli import main; main(sys.argv[1:]); print(*sys.modules, file=sys.stderr)"
    done = subprocess.run(
        [sys.executable, "-c", code, *argv], capture_output=True, text=True, check=True, timeout=60
    )
    return set(done.stderr.splitlines()[-1].split())


@pytest.mark.parametrize("argv", [["--help"], ["demo", "--help"]], ids=" ".join)
def test_help_loads_none_of_what_commands_need_to_run(argv: list[str]) -> None:
    assert {"rich", "msgspec", "sqlite3", "ulak.cli.demo_run", "ulak.cli.demo_report"} & loaded_by(
        *argv
    ) == set()


def test_a_command_loads_no_other() -> None:
    loaded = {name for name in loaded_by("health", "--live", ":1") if name.startswith("ulak.cli.")}
    parts = ("explain", "health", "options", "output", "stops")
    assert loaded == {f"ulak.cli.{part}" for part in parts}


def test_each_command_is_added_by_the_module_that_the_table_names() -> None:
    for command in MODULES:
        args = parser_of(command)
        (below,) = (one for one in args._actions if isinstance(one, argparse._SubParsersAction))
        assert command in below.choices
    (below,) = (one for one in parser_of()._actions if isinstance(one, argparse._SubParsersAction))
    assert list(below.choices) == list(MODULES)


def test_version(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--version"]) == 0
    assert capsys.readouterr().out == f"ulak {__version__}\n"


def test_arguments_come_from_the_process_unless_given(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "argv", ["ulak", "--version"])
    assert main() == 0
    assert capsys.readouterr().out.startswith("ulak ")


@pytest.mark.parametrize("argv", [["-v", "demo"], ["demo", "-v"]], ids=" ".join)
def test_a_traceback_is_shown_only_if_asked_for(argv: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert main([*argv, "--url", "x://"]) == 2
    lines = capsys.readouterr().err.splitlines()
    assert lines[0] == "Traceback (most recent call last):"
    assert lines[-1].startswith("error U302: no store for 'x://'")


def test_a_bug_is_explained_in_two_lines(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def broken(*_: object) -> list[str]:
        raise ZeroDivisionError("by\x1bzero")

    monkeypatch.setattr(demo_report, "as_text", broken)
    assert main(["demo", "--jobs", "1"]) == 1
    assert capsys.readouterr().err == (
        "error: ZeroDivisionError: by\\x1bzero\n  this is a bug in ulak; -v shows where\n"
    )


def test_ctrl_c_outside_of_a_run_is_no_traceback(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def interrupted(_: object) -> list[str]:
        raise KeyboardInterrupt

    monkeypatch.setattr(demo_report, "header", interrupted)
    assert main(["demo", "--jobs", "1"]) == 130
    assert capsys.readouterr() == ("", "")


@pytest.mark.parametrize("buffered", ["", "1"], ids=["buffered", "unbuffered"])
@pytest.mark.parametrize("argv", [["--help"], ["--version"], ["demo", "--jobs", "50"]], ids=" ".join)
def test_a_full_device_is_one_line_and_a_failure(argv: list[str], buffered: str) -> None:
    with Path("/dev/full").open("w") as full:
        done = ulak(*argv, stdout=full, env={"PYTHONUNBUFFERED": buffered})
    assert done.returncode == 74
    assert done.stderr == "error: standard output could not be written: No space left on device\n"


@pytest.mark.parametrize("buffered", ["", "1"], ids=["buffered", "unbuffered"])
def test_a_full_device_does_not_hide_that_a_change_was_made(tmp_path: Path, buffered: str) -> None:
    url = f"sqlite:///{tmp_path}/jobs.db"
    lines = "error: standard output could not be written: No space left on device\n"
    made = "  the change itself was made: look before you repeat the command\n"
    with Queue(url, "mail") as q, Path("/dev/full").open("w") as full:
        job_id = q.enqueue("x")
        for argv, more in (
            (["cancel", job_id], ""),
            (["cancel", job_id, "--yes", "--json"], made),
            (["pause", "mail", "--yes"], made),
            (["enqueue", "--payload", "1", "-q", "mail"], made),
            (["ls"], ""),
        ):
            done = ulak(*argv, "-u", url, stdout=full, env={"PYTHONUNBUFFERED": buffered})
            assert (done.returncode, done.stderr) == (74, lines + more), argv
        assert (q.counts().cancelled, q.counts().open) == (1, 1)


@pytest.mark.parametrize("argv", [["--help"], ["demo", "--jobs", "50"]], ids=" ".join)
def test_a_pipe_that_nobody_reads_ends_the_command_quietly(argv: list[str]) -> None:
    reader, writer = os.pipe()
    os.close(reader)
    done = ulak(*argv, stdout=writer)
    os.close(writer)
    assert (done.returncode, done.stderr) == (141, "")


def test_a_reader_that_takes_one_line_and_goes_gets_no_traceback() -> None:
    # More jobs than anybody would wait for: the run has to notice that its reader has gone.
    assert told_a_reader_of_one_line("demo", "--jobs", "1000000000").startswith("ulak ")


@pytest.mark.parametrize("closed", [">&-", "2>&-", ">&- 2>&-"])
def test_streams_that_the_process_does_not_have_are_harmless(closed: str) -> None:
    script = f'exec "$@" {closed}'
    done = subprocess.run(
        ["sh", "-c", script, "sh", *COMMAND, "demo", "--jobs", "20", "--fail-rate", "0"],
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
        env=environment(),
    )
    assert (done.returncode, done.stderr) == (0, "")


def test_an_error_without_anybody_to_read_it_keeps_its_status() -> None:
    reader, writer = os.pipe()
    os.close(reader)
    done = ulak("demo", "--nonsense", stderr=writer)
    os.close(writer)
    assert done.returncode == 2


STRICT_ASCII = {"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}


@pytest.mark.parametrize("env", [{"LC_ALL": "C"}, STRICT_ASCII], ids=["C", "C, strict"])
def test_the_plain_locale_is_enough(env: dict[str, str]) -> None:
    # 0.1 ms gives latencies in microseconds, whose sign ASCII does not have.
    args = ("demo", "--jobs", 50, "--rate", 2000, "--fail-rate", 0, "--seed", 1)
    done = ulak(*args, env=env, encoding="ascii" if env is STRICT_ASCII else "utf-8")
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.count(" ok ") == 4


def test_an_error_in_the_plain_locale_replaces_what_it_cannot_show() -> None:
    done = ulak("demo", "é" * 50, env=STRICT_ASCII, encoding="ascii")
    assert done.returncode == 2
    assert done.stderr.splitlines()[1] == "  see ulak demo --help"
