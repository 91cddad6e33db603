"""The pages that list what there is name all of it and nothing else, and show what commands do print."""

from __future__ import annotations

import argparse
import fnmatch
import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from ulak import App, Context, JobInfo, Queue, errors
from ulak.cli import parser_of as command_line
from ulak.core.job import Attempt

ROOT = Path(__file__).parents[2]
CLI = (ROOT / "docs/cli.md").read_text()
REFERENCE = (ROOT / "docs/reference.md").read_text()


def rows(page: str) -> list[list[str]]:
    """The cells of all tables, but for their heads' rules."""
    lines = re.findall(r"^\| (.*) \|$", page, re.MULTILINE)
    return [line.split(" | ") for line in lines]


def named(page: str) -> list[str]:
    """What stands first in each row, as far as it is code, without its parameters."""
    first = [found for row in rows(page) if (found := re.match(r"`(\w+)", row[0]))]
    return [found[1] for found in first]


def test_the_page_of_errors_has_each_code_and_class_and_no_other() -> None:
    listed = [(row[0], row[1].strip("`")) for row in rows((ROOT / "docs/errors.md").read_text())[1:]]
    there = {
        (kind.code, name)
        for name, kind in vars(errors).items()
        if isinstance(kind, type) and issubclass(kind, errors.UlakError) and "code" in vars(kind)
    }
    assert listed == sorted(there)
    assert len({code for code, _ in there}) == len(there)


def test_each_error_is_told_what_happened_and_what_to_do() -> None:
    for row in rows((ROOT / "docs/errors.md").read_text()):
        assert len(row) == 4
        assert all(cell.strip() for cell in row)


def public(kind: type) -> set[str]:
    own = {name for name in vars(kind) if not name.startswith("_")}
    return own | {name for name in getattr(kind, "__struct_fields__", ()) if not name.startswith("_")}


# What the worker says to a Context, and reads of it.
_OF_THE_WORKER = {"ask_to_stop", "limit", "progress_text"}


@pytest.mark.parametrize(
    ("begin", "end", "there"),
    [
        ("## JobInfo", "\nAn `Attempt`", public(JobInfo)),
        ("\nAn `Attempt`", "\nA `Failure`", public(Attempt)),
        ("## Context", None, public(Context) - _OF_THE_WORKER),
    ],
    ids=["JobInfo", "Attempt", "Context"],
)
def test_the_tables_of_fields_have_each_and_no_other(begin: str, end: str | None, there: set[str]) -> None:
    part = REFERENCE.partition(begin)[2]
    listed = named(part.partition(end)[0] if end else part)
    assert sorted(listed) == sorted(there)


# The command line

COMMANDS = [
    *("work", "schedules", "enqueue", "counts", "ls", "show", "tail"),
    *("retry", "cancel", "rm", "reprioritise"),
    *("dead ls", "dead show", "dead retry", "dead drop", "dead edit", "dead export", "dead import"),
    *("pause", "resume", "queue set", "workers", "prune", "migrate", "doctor"),
    *("health", "config", "demo", "bench"),
]
SHARED = {"-h", "--help", "-u", "--url", "--json", "-v", "--verbose"}


def parser_of(words: str) -> argparse.ArgumentParser:
    parser: argparse.ArgumentParser = command_line()
    for word in words.split():
        (below,) = (one for one in parser._actions if isinstance(one, argparse._SubParsersAction))
        parser = below.choices[word]
    return parser


def section(command: str) -> str:
    command = "pause" if command == "resume" else command
    return CLI.partition(f"\n## ulak {command}\n")[2].partition("\n## ")[0]


def test_every_command_has_its_place_on_the_page() -> None:
    (below,) = (one for one in command_line()._actions if isinstance(one, argparse._SubParsersAction))
    assert {command.partition(" ")[0] for command in COMMANDS} == set(below.choices)
    assert all(section(command) for command in COMMANDS)


@pytest.mark.parametrize("command", COMMANDS)
def test_every_option_of_a_command_is_in_its_table_and_no_other(command: str) -> None:
    there = {option for action in parser_of(command)._actions for option in action.option_strings}
    listed = {option for row in rows(section(command)) for option in re.findall(r"`(-[-a-z]+)`", row[0])}
    assert listed == there - SHARED


@pytest.mark.parametrize("command", [one for one in COMMANDS if one not in ("work", "health")])
def test_every_command_but_those_of_workers_has_the_shared_options(command: str) -> None:
    there = {option for action in parser_of(command)._actions for option in action.option_strings}
    assert there >= SHARED


def session() -> list[tuple[str, str]]:
    """Each line that is typed on the page, and what comes of it."""
    blocks = re.findall(r"^```console\n(.*?)^```", CLI, re.MULTILINE | re.DOTALL)
    typed = [part for block in blocks for part in re.split(r"^\$ ", block, flags=re.MULTILINE)[1:]]
    return [(line, out) for line, _, out in (part.partition("\n") for part in typed)]


VARYING = (
    (r"\d{4}-\d\d-\d\d[ T][\d:.]+(Z|[+-]\d\d:\d\d)", "<time>"),
    (r"\d\d:\d\d:\d\d\.\d+Z", "<time>"),
    (r"\b(\d+m\d\ds|[\d.e-]+ ?(ns|µs|ms|s))\b", "<took>"),
    (r"\b\S+-\d+-app-\d+\b", "<worker>"),
    (r"\be[0-9a-f]{7}\b", "<fingerprint>"),
    (r"\d+ pages? \([^)]*\)", "<pages>"),
    (r"is wrong; .*", "is wrong; <notes>"),
    (r"[ -]+", " "),
)


def plain(text: str, folder: Path) -> str:
    """The text without what differs from run to run."""
    for place in (str(folder), "/srv/shop"):
        text = text.replace(place, "<folder>")
    for pattern, name in VARYING:
        text = re.sub(pattern, name, text)
    return text


# Some fifty processes, one after the other.
@pytest.mark.timeout(300)
def test_what_the_page_shows_is_what_the_commands_print(tmp_path: Path) -> None:
    (module,) = re.findall(r"^```python\n(.*?)^```", CLI, re.MULTILINE | re.DOTALL)
    (tmp_path / "shop.py").write_text(module)
    env = {**os.environ, "PYTHONPATH": str(ROOT / "src"), "PYTHONUNBUFFERED": "1", "COLUMNS": "80"}
    env.pop("ULAK_URL", None)
    ran = []
    for line, expected in session():
        words = shlex.split(line)
        if words[0] == "export":
            name, _, value = words[1].partition("=")
            env[name] = value
            continue
        command = {"ulak": [sys.executable, "-m", "ulak"], "python": [sys.executable]}[words[0]]
        done = subprocess.run(
            [*command, *words[1:]],
            cwd=tmp_path,
            env=env,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            check=False,
            timeout=60,
        )
        pattern = re.escape(plain(expected, tmp_path)).replace(r"\.\.\." + "\\\n", r"(?:.*\n)*?")
        shown = plain(done.stdout, tmp_path)
        assert re.fullmatch(pattern, shown), f"$ {line}\n{done.stdout}"
        ran.append(words[1])
    assert {command.partition(" ")[0] for command in COMMANDS} <= set(ran)


# Where the file of a store lies, and what lies beside it


def test_the_first_page_tells_how_to_keep_a_scripts_file_beside_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    script, elsewhere = tmp_path / "script", tmp_path / "elsewhere"
    script.mkdir()
    elsewhere.mkdir()
    monkeypatch.chdir(elsewhere)
    (made,) = re.findall(r"`(App\(f.*?\))`", (ROOT / "README.md").read_text())
    app = eval(made, {"App": App, "Path": Path, "__file__": str(script / "hello.py")})
    with app:
        assert (script / "hello.db").exists()
    assert list(elsewhere.iterdir()) == []


@pytest.mark.parametrize("journal", ["wal", "truncate"])
def test_git_is_told_of_every_file_that_a_store_makes(tmp_path: Path, journal: str) -> None:
    patterns = [line.rstrip("/") for line in (ROOT / ".gitignore").read_text().splitlines()]
    hint = re.findall(r"`([^`]*)`", (ROOT / "README.md").read_text())
    with Queue(f"sqlite:///{tmp_path}/jobs.db?journal={journal}") as q:
        q.enqueue("a")
        assert q.deliver() is not None
        made = sorted(path.name for path in tmp_path.iterdir())
    assert len(made) >= 4
    for name in made:
        assert any(fnmatch.fnmatch(name, pattern) for pattern in patterns), name
    assert "jobs.db*" in hint
