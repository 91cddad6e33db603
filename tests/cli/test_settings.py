"""What is set beside the command line: by whom, that commands use it, and what `ulak config` shows of it."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.cli.command import Done
from ulak import Queue
from ulak.cli import CONFIGURED, main, read
from ulak.config import SETTINGS, settings_of, variable_of

Here = Callable[..., Done]


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Here:
    """Run `ulak ARGS` in this process, in a directory of its own, with nothing set."""
    monkeypatch.chdir(tmp_path)
    for name in SETTINGS:
        monkeypatch.delenv(variable_of(name), raising=False)

    def go(*argv: str) -> Done:
        status = main(argv)
        return Done(status, *capsys.readouterr())

    return go


def write(text: str) -> None:
    """Make this the pyproject.toml of the directory."""
    Path("pyproject.toml").write_text(text, encoding="utf-8")


def set_in_file(text: str) -> None:
    write(f'[project]\nname = "shop"\n\n[tool.ulak]\n{text}\n')


def taken(*argv: str) -> dict[str, object]:
    """What a command makes of its options."""
    args = read(argv)
    assert args is not None
    return vars(args)


def shown(here: Here, *argv: str) -> dict[str, tuple[str, str]]:
    """The settings as `ulak config` has them: value and source."""
    done = here("config", "--json", *argv)
    assert (done.status, done.err) == (0, ""), done
    return {name: (one["value"], one["from"]) for name, one in json.loads(done.out)["settings"].items()}


# Who sets what


def test_without_anything_all_is_as_by_default(here: Here) -> None:
    settings = shown(here)
    assert list(settings) == list(SETTINGS)
    assert {source for _, source in settings.values()} == {"default"}
    assert (settings["grace"][0], settings["concurrency"][0], settings["url"][0]) == ("30s", "8", None)


def test_the_first_of_option_environment_file_and_default_counts(
    here: Here, monkeypatch: pytest.MonkeyPatch
) -> None:
    set_in_file('concurrency = 2\ngrace = "5s"\nlate = 60')
    monkeypatch.setenv("ULAK_CONCURRENCY", "3")
    assert (taken("work", "shop:app")["concurrency"], taken("work", "shop:app")["grace"]) == (3, 5.0)
    assert taken("work", "shop:app", "--concurrency", "4")["concurrency"] == 4
    assert taken("doctor")["late"] == 60.0
    settings = shown(here, "--concurrency", "4")
    assert settings["concurrency"] == ("4", "--concurrency")
    assert settings["grace"] == ("5s", "[tool.ulak] in pyproject.toml")
    assert shown(here)["concurrency"] == ("3", "ULAK_CONCURRENCY")
    assert settings["executor"] == (None, "default")


def test_every_setting_of_a_worker_can_be_set_in_the_file(here: Here) -> None:
    set_in_file(
        'concurrency = 2\nqueues = ["mail=3", "default"]\nprocesses = 4\nexecutor = "thread"\ngrace = 1.5\n'
        'max-jobs = 100\nmax-rss = "512M"\nhealth = ":9107"\nlog-format = "json"'
    )
    args = taken("work", "shop:app")
    assert (args["concurrency"], args["queues"], args["processes"]) == (2, {"mail": 3, "default": None}, 4)
    assert (args["executor"], args["grace"], args["max_jobs"]) == ("thread", 1.5, 100)
    assert (args["max_rss"], str(args["health"]), args["log_format"]) == (2**29, "127.0.0.1:9107", "json")
    assert all(source.startswith("[tool.ulak]") for _, source in list(shown(here).values())[2:])


@pytest.mark.parametrize("where", ["environment", "file"])
def test_the_store_of_the_commands_that_look_can_be_set(
    where: str, here: Here, monkeypatch: pytest.MonkeyPatch
) -> None:
    with Queue("sqlite:///jobs.db", "mail") as q:
        q.counts()
    if where == "file":
        set_in_file('url = "sqlite:///jobs.db"')
    else:
        monkeypatch.setenv("ULAK_URL", "sqlite:///jobs.db")
    done = here("counts")
    assert (done.status, done.out.splitlines()[1].split()[0]) == (0, "mail")
    # A worker's store is its App's.
    assert taken("work", "shop:app")["url"] is None


def test_the_settings_and_who_has_them_are_those_of_the_command_line() -> None:
    assert {*SETTINGS.values()} - {""} == {*CONFIGURED}


def test_what_is_set_to_nothing_is_not_set(here: Here, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ULAK_GRACE", "")
    assert shown(here)["grace"] == ("30s", "default")


@pytest.mark.parametrize("text", ["", "[tool.ruff]\n", "[tool]\nulak = {}\n", "x = 'ulak'\n"])
def test_a_file_without_settings_sets_nothing(text: str, here: Here) -> None:
    write(text)
    assert {source for _, source in shown(here).values()} == {"default"}


# What cannot be


REFUSED = {
    "unknown": (
        "concurency = 2",
        "[tool.ulak] in pyproject.toml has 'concurency', which is no setting; did you mean concurrency?",
    ),
    "underscore": (
        "max_jobs = 2",
        "[tool.ulak] in pyproject.toml has 'max_jobs', which is no setting; did you mean max-jobs?",
    ),
    "value": (
        "concurrency = 0",
        "concurrency, set by [tool.ulak] in pyproject.toml: '0' is not a whole number from 1 to 10,000",
    ),
    "name of a queue": (
        'queues = "Mail!"',
        (
            "queues, set by [tool.ulak] in pyproject.toml: a queue's name must match "
            "[a-z0-9][a-z0-9._-]{0,63}, got 'Mail!'"
        ),
    ),
    "number for names": (
        "queues = 5",
        "queues of [tool.ulak] in pyproject.toml is no text or list of texts, but a number",
    ),
    "far from any": (
        "capacty = 5",
        f"[tool.ulak] in pyproject.toml has 'capacty', which is no setting; there is {', '.join(SETTINGS)}",
    ),
    "choice": (
        'executor = "gevent"',
        "executor, set by [tool.ulak] in pyproject.toml: 'gevent' is none of thread, process, async",
    ),
    "type": (
        "grace = true",
        "grace of [tool.ulak] in pyproject.toml is no text, number or list of texts",
    ),
    "syntax": ("grace = ", "pyproject.toml cannot be read: Invalid value (at line 5, column 9)"),
}


@pytest.mark.parametrize(("text", "expected"), REFUSED.values(), ids=REFUSED)
@pytest.mark.parametrize("argv", [["config"], ["work", "shop:app"]], ids=" ".join)
def test_what_cannot_be_set_is_refused_by_where_it_stands(
    argv: list[str], text: str, expected: str, here: Here
) -> None:
    set_in_file(text)
    done = here(*argv)
    assert (done.status, done.out, done.err) == (2, "", f"error U302: {expected}\n")


def test_a_table_that_is_none_is_refused(here: Here) -> None:
    write("[tool]\nulak = 1\n")
    assert here("config").err == "error U302: [tool.ulak] in pyproject.toml is no table\n"


def test_a_misspelt_variable_is_refused_and_somebody_elses_is_not(
    here: Here, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ULAK_TEST_SOMETHING", "1")
    assert here("config").status == 0
    monkeypatch.setenv("ULAK_CONCURENCY", "2")
    for argv in (["config"], ["work", "shop:app"], ["counts"]):
        assert here(*argv) == (
            2,
            "",
            "error U302: ULAK_CONCURENCY is no setting; did you mean ULAK_CONCURRENCY?\n",
        )


def test_help_is_there_whatever_is_set(here: Here) -> None:
    set_in_file("nonsense = 1")
    assert here("work", "--help").status == 0
    assert here("config", "--help").status == 0


def test_a_file_that_is_a_directory_is_refused(here: Here) -> None:
    Path("pyproject.toml").mkdir()
    assert here("config").err == "error U302: pyproject.toml cannot be read: Is a directory\n"


# How it is shown


def test_secrets_in_a_url_are_hidden(here: Here, monkeypatch: pytest.MonkeyPatch) -> None:
    secret = "postgresql://ada:hunter2@db.example.org/jobs?password=hunter2"
    monkeypatch.setenv("ULAK_URL", secret)
    for argv in (["config"], ["config", "--json"], ["config", "-u", secret], ["config", "-vv"]):
        done = here(*argv)
        assert done.status == 0
        assert "hunter2" not in done.out + done.err
        assert "db.example.org" in done.out


def test_the_table_has_a_line_for_each_setting(here: Here) -> None:
    lines = here("config").out.splitlines()
    assert lines[0].split() == ["setting", "value", "from"]
    assert [line.split()[0] for line in lines[1:]] == list(SETTINGS)


def test_both_are_read_as_they_are() -> None:
    assert settings_of({"PATH": "/bin", "ULAK_GRACE": "5s"}, Path("/nowhere")) == {
        "grace": ("5s", "ULAK_GRACE")
    }
