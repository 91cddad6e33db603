"""The public surface under two type checkers and at run time."""

import importlib
import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

HERE = Path(__file__).parent
ROOT = HERE.parents[1]


def refused_by_mypy(path: Path) -> set[int]:
    command = [sys.executable, "-m", "mypy", "--strict", "--no-error-summary", str(path)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode in (0, 1), done.stdout + done.stderr
    return {int(line) for line in re.findall(rf"{path.name}:(\d+): error", done.stdout)}


def refused_by_basedpyright(path: Path) -> set[int]:
    basedpyright = [sys.executable, "-m", "basedpyright", "--pythonpath", sys.executable]
    command = [*basedpyright, "--level", "error", "--outputjson", str(path)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    found = json.loads(done.stdout)["generalDiagnostics"]
    return {problem["range"]["start"]["line"] + 1 for problem in found}


CHECKERS = pytest.mark.parametrize("refused_by", [refused_by_mypy, refused_by_basedpyright])


@pytest.mark.parametrize("name", ["surface", "surface_tasks"])
def test_the_surface_runs(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(HERE))
    importlib.import_module(name).main()


@CHECKERS
@pytest.mark.parametrize("name", ["surface.py", "surface_tasks.py"])
def test_the_surface_is_accepted_whole(name: str, refused_by) -> None:
    assert refused_by(HERE / name) == set()


@CHECKERS
@pytest.mark.parametrize("name", ["refused.py", "refused_tasks.py"])
def test_g1_wrong_calls_are_refused_and_no_other(name: str, refused_by) -> None:
    path = HERE / name
    marked = {n for n, line in enumerate(path.read_text().splitlines(), 1) if line.endswith("# refused")}
    assert refused_by(path) == marked
