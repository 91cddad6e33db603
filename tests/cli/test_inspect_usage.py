"""How the inspection commands print a table, refuse what cannot be, and explain themselves."""

from __future__ import annotations

import io
import subprocess
import sys

import pytest

from tests.cli.command import Terminal, lines_of
from ulak import Queue
from ulak.cli import main
from ulak.cli.inspect_table import Column, print_json, print_table
from ulak.testing import ManualClock

COMMANDS = (
    *(["counts"], ["ls"], ["show", "1"], ["retry", "1"], ["dead", "ls"]),
    *(["dead", "show", "e1234567"], ["dead", "retry", "1"], ["dead", "drop", "1"]),
    *(["dead", "export"], ["dead", "import", "dead.jsonl"], ["dead", "edit", "1", "--payload", "2"]),
    *(["cancel", "1"], ["rm", "1"], ["reprioritise", "1", "--priority", "9"]),
    *(["pause", "mail"], ["resume", "mail"], ["doctor"]),
    *(["queue", "set", "mail", "--capacity", "9"], ["workers"]),
    ["enqueue", "--payload", "1", "-q", "mail"],
)


def test_a_cell_without_a_value_is_a_dash_so_that_columns_can_be_split() -> None:
    out = io.StringIO()
    print_table([Column("a b"), Column("n", right=True)], [["", "1"], ["x", "22"]], to=out)
    assert lines_of(out) == ["a_b   n", "-     1", "x    22"]


def test_a_table_in_the_plain_locale_replaces_what_it_cannot_show(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "20")
    terminal = type("T", (io.TextIOWrapper,), {"isatty": lambda _: True})(io.BytesIO(), encoding="ascii")
    print_table([Column("error", cut=True)], [["é" * 30]], to=terminal)
    terminal.seek(0)
    assert lines_of(io.StringIO(terminal.read()))[1:] == ["?" * 19 + "..."]


def test_a_terminal_too_narrow_for_a_table_gets_a_line_a_cell_and_no_word_is_broken(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    columns = [Column("worker"), Column("runs", right=True), Column("queues", cut=True)]
    rows = [["vm-22388-app-1", "12", "mail,reports,bills"], ["vm-4", "1", "mail"]]
    monkeypatch.setenv("COLUMNS", "33")
    out = Terminal()
    print_table(columns, rows, to=out)
    assert [line.rstrip() for line in lines_of(out)] == [
        *("worker  vm-22388-app-1", "runs    12", "queues  mail,reports,bills", ""),
        *("worker  vm-4", "runs    1", "queues  mail"),
    ]
    monkeypatch.setenv("COLUMNS", "34")
    out = Terminal()
    print_table(columns, rows, to=out)
    assert [line.rstrip() for line in lines_of(out)] == [
        "worker          runs  queues",
        "vm-22388-app-1    12  mail,report…",
        "vm-4               1  mail",
    ]


def test_a_table_without_colours_has_no_style_at_all(monkeypatch: pytest.MonkeyPatch) -> None:
    for no_color, is_styled in (("", True), ("1", False)):
        monkeypatch.setenv("NO_COLOR", no_color)
        out = Terminal()
        print_table([Column("a")], [["b"]], to=out)
        assert ("\x1b" in out.getvalue()) is is_styled


def test_no_stream_takes_no_table() -> None:
    print_table([Column("a")], [["b"]], to=None)
    print_json({}, to=None)


REFUSED = {
    "no store": (
        ["counts"],
        "error U302: no store is named: give --url sqlite:///jobs.db, or set ULAK_URL\n",
    ),
    "memory": (
        ["counts", "-u", "memory://here"],
        (
            "error U302: a memory:// store (--url) lives inside its process, where no command can look; name "
            "a file: sqlite:///jobs.db\n"
        ),
    ),
    "no id": (["show"], "error U302: the following arguments are required: ID\n  see ulak show --help\n"),
    "id 0": (
        ["show", "0"],
        (
            "error U302: ID: '0' is not a whole number from 1 to 9,223,372,036,854,775,807\n"
            "  see ulak show --help\n"
        ),
    ),
    "no such state": (
        ["ls", "--state", "ded"],
        "error U302: --state: unknown value 'ded'; did you mean dead?\n  see ulak ls --help\n",
    ),
    "no command of dead": (
        ["dead"],
        (
            "error U302: dead needs a command; there is ls, show, retry, drop, edit, export, import\n"
            "  see ulak dead --help\n"
        ),
    ),
    "option of dead ls": (
        ["dead", "ls", "--taks", "3"],
        "error U302: unknown option '--taks'; did you mean --task?\n  see ulak dead ls --help\n",
    ),
    "dead retry of what is neither": (
        ["dead", "retry", "-u", "sqlite:///x.db", "e12"],
        "error U302: 'e12' is neither a fingerprint nor an id\n  see ulak dead ls\n",
    ),
    "dead retry at no rate": (
        ["dead", "retry", "1", "--rate", "0/s"],
        "error U302: --rate: a rate is more than 0 per second, such as 10/s\n  see ulak dead retry --help\n",
    ),
    "no command of queue": (
        ["queue"],
        "error U302: queue needs a command; there is set\n  see ulak queue --help\n",
    ),
    "a capacity of nothing": (
        ["queue", "set", "mail", "--capacity", "0"],
        (
            "error U302: --capacity: '0' is not a whole number from 1 to 9,223,372,036,854,775,807\n"
            "  see ulak queue set --help\n"
        ),
    ),
    "a backoff without a cap": (
        ["queue", "set", "mail", "--backoff", "1s"],
        (
            "error U302: --backoff: a backoff is a base and a cap, such as 1s,5m, and maybe a floor\n"
            "  see ulak queue set --help\n"
        ),
    ),
    "a retention of what has not ended": (
        ["queue", "set", "mail", "--retention", "ready=1,1d"],
        (
            "error U302: --retention: a retention is a state (succeeded, dead, cancelled or expired), a "
            "number and a time, such as dead=1000,30d\n  see ulak queue set --help\n"
        ),
    ),
    "nothing to set": (
        ["queue", "set", "mail"],
        ("error U302: say what to set: --capacity, --backoff or --retention\n  see ulak queue set --help\n"),
    ),
    "retry of nothing": (
        ["retry", "-u", "sqlite:///x.db"],
        "error U302: say which jobs: ids, or --state dead\n  see ulak retry --help\n",
    ),
    "retry of ids and a state": (
        ["retry", "-u", "sqlite:///x.db", "1", "--state", "dead"],
        "error U302: give ids, or --state and other filters, not both\n  see ulak retry --help\n",
    ),
    "cancel of nothing": (
        ["cancel", "-u", "sqlite:///x.db"],
        "error U302: say which jobs: ids, or --state ready\n  see ulak cancel --help\n",
    ),
    "rm without a state": (
        ["rm", "-u", "sqlite:///x.db", "--task", "shop.send"],
        "error U302: say which jobs: ids, or --state dead\n  see ulak rm --help\n",
    ),
    "rm of what runs": (
        ["rm", "--state", "leased"],
        "error U302: --state: unknown value 'leased'; did you mean dead?\n  see ulak rm --help\n",
    ),
    "reprioritise without a priority": (
        ["reprioritise", "1"],
        "error U302: the following arguments are required: --priority\n  see ulak reprioritise --help\n",
    ),
    "a time that is none": (
        ["ls", "--older", "soon"],
        (
            "error U302: --older: cannot read 'soon' as a duration; write a number with ms, s, m, h or d, "
            "such as 20ms or 1.5m\n  see ulak ls --help\n"
        ),
    ),
    "retry of what is open": (
        ["retry", "--state", "ready"],
        "error U302: --state: unknown value 'ready'; did you mean dead?\n  see ulak retry --help\n",
    ),
}


@pytest.mark.parametrize(("argv", "expected"), REFUSED.values(), ids=REFUSED)
def test_what_cannot_be_used_is_refused_in_a_few_lines(
    argv: list[str], expected: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("ULAK_URL", raising=False)
    assert main(argv) == 2
    assert capsys.readouterr() == ("", expected)


def test_the_environment_names_the_store_unless_the_option_does(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ULAK_URL", "memory://")
    assert main(["counts"]) == 2
    assert "(ULAK_URL)" in capsys.readouterr().err
    assert main(["counts", "-u", "memory://"]) == 2
    assert "(--url)" in capsys.readouterr().err
    # An empty one, as a shell has it that never set it, is none.
    monkeypatch.setenv("ULAK_URL", "")
    assert main(["counts"]) == 2
    assert "no store is named" in capsys.readouterr().err


def _named(argv: list[str]) -> list[str]:
    """The command alone."""
    return argv[:2] if argv[0] in ("dead", "queue") else argv[:1]


@pytest.mark.parametrize("argv", COMMANDS, ids=" ".join)
def test_help_fits_80_columns_of_plain_ascii(
    argv: list[str], capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    assert main([*_named(argv), "--help"]) == 0
    printed = capsys.readouterr()
    assert printed.err == ""
    assert printed.out.isascii()
    assert max(map(len, printed.out.splitlines())) <= 80
    for option in ("--url", "--json", "--verbose"):
        assert option in printed.out


def test_help_loads_nothing_that_only_a_run_needs() -> None:
    heavy = {"rich", "sqlite3", "ulak.cli.inspect_open", "ulak.cli.inspect_table", "ulak.cli.inspect_file"}
    code = (
        "import sys; from ulak.cli import main\n"
        f"for words in {[*map(_named, COMMANDS)]!r}: main([*words, '--help'])\n"
        f"print(sorted({heavy!r} & set(sys.modules)), file=sys.stderr)"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60
    )
    assert done.stderr == "[]\n"


def test_a_store_in_memory_that_this_process_has_open_can_be_looked_at(
    capsys: pytest.CaptureFixture[str],
) -> None:
    clock = ManualClock()
    with Queue("memory://looked-at", "mail", clock=clock) as q:
        q.enqueue("a")
        assert main(["ls", "-u", "memory://looked-at"]) == 0
        assert capsys.readouterr().out.splitlines()[1].split()[:3] == ["1", "mail", "ready"]
        assert main(["cancel", "-u", "memory://looked-at", "1", "--yes"]) == 0
        assert q.counts().cancelled == 1
    # To look has not kept it open.
    assert main(["ls", "-u", "memory://looked-at"]) == 2
