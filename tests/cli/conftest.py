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
def url(path: Path) -> str:
    """The store that `run` and `mail` are on; a module that has one of its own is on others too."""
    return f"sqlite:///{path}"


@pytest.fixture
def run(url: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Run:
    """Run `ulak ARGS` in this process, on the store."""
    monkeypatch.setenv("ULAK_URL", url)

    def go(*argv: object) -> Done:
        status = main([str(word) for word in argv])
        return Done(status, *capsys.readouterr())

    return go


@pytest.fixture
def mail(url: str) -> Iterator[Queue]:
    """An open queue on the store, as a program that runs meanwhile has it."""
    with Queue(url, "mail", max_attempts=1, capacity=10) as q:
        yield q
