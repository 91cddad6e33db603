"""A file and the command on it; an App and workers of it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.cli.command import Done, Run
from tests.cli.working import caller, folder, gate, python, refused, work  # noqa: F401 - fixtures
from ulak import Queue
from ulak.cli import main


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "jobs.db"


@pytest.fixture
def run(path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Run:
    """Run `ulak ARGS` in this process, on the file."""
    monkeypatch.setenv("ULAK_URL", f"sqlite:///{path}")

    def go(*argv: object) -> Done:
        status = main([str(word) for word in argv])
        return Done(status, *capsys.readouterr())

    return go


@pytest.fixture
def mail(path: Path) -> Iterator[Queue]:
    """An open queue on the file, as a program that runs meanwhile has it."""
    with Queue(f"sqlite:///{path}", "mail", max_attempts=1, capacity=10) as q:
        yield q
