"""The pytest plugin, in test runs of its own."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs/testing.md").read_text()
BLOCKS = re.findall(r"^```python\n(.*?)^```", PAGE, re.MULTILINE | re.DOTALL)
PLUGIN = ("-p", "ulak.pytest_plugin")

SHOP = """
from ulak import App

app = App("sqlite:///jobs.db")

@app.task
def welcome(email: str) -> None: ...
"""

TESTS = """
import asyncio
import pytest
from ulak.testing import Jobs
from shop import app, welcome

@pytest.mark.parametrize("turn", [1, 2])
def test_each_test_begins_with_nothing(jobs, turn):
    assert isinstance(jobs, Jobs)
    assert jobs.enqueued() == []
    welcome.enqueue("ada")
    assert len(jobs.enqueued(welcome, email="ada")) == 1
    assert jobs.drain() == 1

def test_that_fails(jobs):
    welcome.enqueue("ada")
    raise ValueError

def test_without_the_fixture_the_app_is_on_its_own_store():
    assert app.queue("default").counts().total == 0
    app.close()
"""


def pytest_run(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    """A test run in this folder, without plugins but ulak's."""
    path = os.pathsep.join(entry for entry in sys.path if entry)
    return subprocess.run(
        [sys.executable, "-m", "pytest", *PLUGIN, "-p", "no:cacheprovider", *arguments],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": path, "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"},
        capture_output=True,
        text=True,
        check=False,
    )


def test_the_fixture_gives_each_test_a_store_of_its_own(tmp_path: Path) -> None:
    (tmp_path / "shop.py").write_text(SHOP)
    (tmp_path / "test_shop.py").write_text(TESTS)
    done = pytest_run(tmp_path, "-q", "-W", "error")
    assert "1 failed, 3 passed" in done.stdout, done.stdout + done.stderr
    assert "FAILED test_shop.py::test_that_fails - ValueError" in done.stdout


def test_the_fixture_says_what_it_is(tmp_path: Path) -> None:
    listed = pytest_run(tmp_path, "--fixtures").stdout
    assert "Every App works on a store of the test's own" in listed


@pytest.mark.parametrize("block", [block for block in BLOCKS if "\ndef test_" in block])
def test_the_tests_of_the_page_pass(block: str, tmp_path: Path) -> None:
    (tmp_path / "test_block.py").write_text(block)
    done = pytest_run(tmp_path, "-q")
    assert done.returncode == 0, done.stdout + done.stderr
    assert not (tmp_path / "jobs.db").exists()


def test_the_plugin_loads_nothing_for_tests_before_it_is_used() -> None:
    code = (
        "import sys, ulak.pytest_plugin; print({'ulak.testing', 'ulak.app', 'ulak.task'} & set(sys.modules))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "set()\n"


def test_the_installed_distribution_brings_the_plugin() -> None:
    project = (ROOT / "pyproject.toml").read_text()
    assert '[project.entry-points.pytest11]\nulak = "ulak.pytest_plugin"\n' in project
