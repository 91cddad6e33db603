"""Every Python block of the documents runs as it stands."""

import json
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support import postgres
from ulak import JobOptions, Queue, TaskOptions, TaskSettings
from ulak.cli import read

ROOT = Path(__file__).parents[2]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
SERVER = "://localhost/app"
"""The database of the pages' examples."""
BLOCK = re.compile(r"^```python\n(.*?)^```", re.MULTILINE | re.DOTALL)


def blocks() -> list[object]:
    found = []
    for page in PAGES:
        for block in BLOCK.finditer(page.read_text()):
            line = page.read_text()[: block.start()].count("\n") + 2
            found.append(pytest.param(block.group(1), id=f"{page.name}:{line}"))
    return found


@pytest.mark.parametrize("code", blocks())
def test_the_code_block_runs(code: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    if SERVER in code:
        postgres.need()
        code = code.replace(SERVER, postgres.fresh_database().partition("postgresql")[2])
    exec(compile(code, "block", "exec"), {"__name__": "__main__"})


def test_the_first_page_has_code_to_run() -> None:
    assert len(BLOCK.findall((ROOT / "README.md").read_text())) >= 3


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_every_link_inside_the_project_leads_somewhere(page: Path) -> None:
    for target in re.findall(r"\]\(([^)#:]+)(?:#[^)]*)?\)", page.read_text()):
        assert (page.parent / target).exists(), target


def commands_to_work() -> list[str]:
    """Each `ulak work` of a document, as far as a line, a unit or an image's list says it."""
    found: list[str] = []
    for page in PAGES:
        for block in re.findall(r"^```\w*\n(.*?)^```", page.read_text(), re.MULTILINE | re.DOTALL):
            found += re.findall(r"^(?:ExecStart=\S*/)?ulak work [^#\n]+", block, re.MULTILINE)
            found += [
                " ".join(json.loads(line))
                for line in re.findall(r'^CMD (\["ulak", .*)$', block, re.MULTILINE)
            ]
    return found


@pytest.mark.parametrize("line", commands_to_work())
def test_every_command_line_of_a_worker_is_one(line: str) -> None:
    args = read(shlex.split(line)[1:])
    assert args is not None
    assert args.app


def test_the_page_about_deploying_has_a_line_a_unit_and_an_image() -> None:
    lines = commands_to_work()
    assert len(lines) >= 8
    assert sum(line.startswith("ExecStart=") for line in lines) == 1


def test_the_blocks_of_the_first_page_pass_a_strict_type_checker(tmp_path: Path) -> None:
    paths = [
        tmp_path / f"block_{n}.py" for n, _ in enumerate(BLOCK.findall((ROOT / "README.md").read_text()))
    ]
    for path, code in zip(paths, BLOCK.findall((ROOT / "README.md").read_text()), strict=True):
        path.write_text(code)
    command = [sys.executable, "-m", "mypy", "--strict", *map(str, paths)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


def test_every_option_of_a_job_is_in_the_table_and_in_the_docstring() -> None:
    table = (ROOT / "docs/semantics.md").read_text()
    for option in JobOptions.__annotations__:
        assert f"\n| `{option}` |" in table
        assert re.search(rf"\b{option}\b", Queue.enqueue.__doc__ or ""), option


def test_every_setting_of_a_task_is_in_the_table_and_every_option_is_named() -> None:
    page = (ROOT / "docs/tasks.md").read_text()
    for setting in TaskSettings.__annotations__:
        assert re.search(rf"\n\| [^|]*`{setting}`[^|]* \|", page), setting
    for option in TaskOptions.__annotations__.keys() - JobOptions.__annotations__.keys():
        assert f"`{option}`" in page


def test_every_test_that_a_page_names_is_there() -> None:
    named = {
        (path, name)
        for page in PAGES
        for path, name in re.findall(r"`(tests/[\w/]+\.py)::(\w+)`", page.read_text())
    }
    assert len(named) > 20
    for path, name in sorted(named):
        assert re.search(rf"^def {name}\(", (ROOT / path).read_text(), re.MULTILINE), f"{path}::{name}"
