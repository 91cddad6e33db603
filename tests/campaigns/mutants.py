"""Plants one named defect at a time in a copy of the code, and runs the checks that must find it.

`python3 dev.py campaign mutants [NAME ...]`: all of them, or these. Exit status 1 if one survives, or if the
code that it changes is not there any more: then the table below is to be brought up to date.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from tests.campaigns.named import MUTANTS, Mutant

ROOT = Path(__file__).resolve().parents[2]
AT_ONCE = 2
TIMEOUT_S = 120


def changed(mutant: Mutant) -> str:
    """The text of its file with the defect in it. Raises ValueError if it does not fit."""
    before, found, after = (ROOT / "src/ulak" / mutant.file).read_text().partition(mutant.old)
    if not found:
        raise ValueError(f"{mutant.name}: {mutant.file} has no {mutant.old!r}")
    return before + mutant.new + after


def planted(mutant: Mutant, folder: Path) -> None:
    """Make a copy of the code with the defect in it."""
    shutil.copytree(ROOT / "src", folder / "src", ignore=shutil.ignore_patterns("__pycache__"))
    (folder / "src/ulak" / mutant.file).write_text(changed(mutant))


def is_killed(mutant: Mutant) -> tuple[bool, float]:
    """Whether a check fails on the mutant, and how long that took, in seconds."""
    start = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="ulak-mutant-") as name:
        folder = Path(name)
        planted(mutant, folder)
        # None is planted in the store of a server, which takes longer to start than most take to be found.
        chosen = ["-x", "-k", "not postgres", "-p", "no:cacheprovider", "--timeout=20"]
        command = [sys.executable, "-m", "pytest", "-q", *chosen]
        try:
            done = subprocess.run(
                [*command, *mutant.checks],
                cwd=ROOT,
                env={
                    "PYTHONPATH": f"{folder / 'src'}:{ROOT}",
                    "PATH": "/usr/bin:/bin",
                    "ULAK_EXAMPLES": "200",
                },
                capture_output=True,
                timeout=TIMEOUT_S,
                check=False,
            )
        except subprocess.TimeoutExpired:
            return True, time.monotonic() - start
    # 1: a test failed. Anything else means that the checks did not run.
    if done.returncode not in {0, 1}:
        raise RuntimeError(
            f"{mutant.name}: pytest ended with {done.returncode}: {done.stdout.decode()[-500:]}"
        )
    return done.returncode == 1, time.monotonic() - start


def main(*names: str) -> int:
    chosen = [mutant for mutant in MUTANTS if not names or mutant.name in names]
    survived = 0
    with ThreadPoolExecutor(AT_ONCE) as pool:
        for mutant, (killed, took_s) in zip(chosen, pool.map(is_killed, chosen), strict=True):
            survived += not killed
            print(f"{'killed' if killed else 'SURVIVED'}  {mutant.name} ({took_s:.1f} s)", flush=True)
    print(f"{len(chosen) - survived} killed, {survived} survived")
    return 1 if survived else 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
