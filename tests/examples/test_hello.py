"""The first page: its file runs as a script, and its worker takes what another process enqueues."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

import ulak
from tests.cli.command import COMMAND
from tests.support.commands import running

ROOT = Path(__file__).parents[2]
EXAMPLE = ROOT / "examples/hello.py"
README = (ROOT / "README.md").read_text()


@pytest.fixture(params=["README.md", "examples/hello.py"])
def folder(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    block = re.search(r"^```python\n(.*?)^```", README, re.MULTILINE | re.DOTALL)
    assert block is not None
    code = block.group(1) if request.param == "README.md" else EXAMPLE.read_text()
    (tmp_path / "hello.py").write_text(code)
    return tmp_path


def python(folder: Path, *argv: str) -> str:
    env = os.environ | {"PYTHONPATH": str(Path(ulak.__file__).parents[1])}
    command = [sys.executable, *argv]
    done = subprocess.run(
        command, cwd=folder, env=env, capture_output=True, text=True, check=False, timeout=60
    )
    assert done.returncode == 0, done.stderr
    return done.stdout + done.stderr


def test_the_first_file_has_a_dozen_lines_and_prints_its_result(folder: Path) -> None:
    code = (folder / "hello.py").read_text().partition('"""\n\n')[2] or (folder / "hello.py").read_text()
    assert len([line for line in code.splitlines() if line.strip()]) <= 13
    assert python(folder, "hello.py") == "welcome, ada\n"


def test_a_worker_in_one_terminal_serves_a_call_from_another(folder: Path) -> None:
    with running(*COMMAND, "work", "hello:app", folder=folder) as worker:
        worker.err.until("ulak works on")
        call = re.search(r'^python -c "(.*?)"', README, re.MULTILINE)
        assert call is not None
        assert python(folder, "-c", call.group(1)) == "welcome, grace\n"


def test_the_script_says_what_it_needs() -> None:
    head = re.search(r"^# /// script\n((?:#.*\n)+?)# ///$", EXAMPLE.read_text(), re.MULTILINE)
    assert head is not None
    needs = tomllib.loads("".join(line[2:] for line in head.group(1).splitlines(keepends=True)))
    assert needs["dependencies"] == ["ulak"]
    assert (EXAMPLE.parent / needs["tool"]["uv"]["sources"]["ulak"]["path"] / "pyproject.toml").exists()
