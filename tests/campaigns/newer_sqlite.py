"""The contract and the races on a file, with a current SQLite library in place of the machine's."""

from __future__ import annotations

import os
import subprocess
import sys

FOLDERS = ("tests/contract", "tests/race")


def main(*arguments: str) -> int:
    command = [sys.executable, "-m", "pytest", "-q", "-n", "2", "-p", "tests.support.newer_sqlite"]
    environment = {**os.environ, "ULAK_STORAGES": "sqlite"}
    done = subprocess.run([*command, *FOLDERS, *arguments], env=environment, check=False)
    print("1 passed, 0 failed" if done.returncode == 0 else "0 passed, 1 failed")
    return done.returncode


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
