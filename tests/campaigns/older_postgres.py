"""The contract, and what only a server can do, on the PostgreSQL that this machine has, if it has one.

The suite runs on the one that tests bring along; users have others.
"""

from __future__ import annotations

import os
import subprocess
import sys

from tests.support.postgres import PROGRAMS, installed_programs, programs

SUITES = (
    "tests/contract/test_process.py",
    "tests/contract/test_scenarios_text.py",
    "tests/contract/test_storage_cases.py",
    "tests/contract/test_storage_ends.py",
    "tests/contract/test_storage_queues.py",
    "tests/contract/test_storage_refused.py",
    "tests/contract/test_storage_upkeep.py",
    "tests/contract/test_storage_waiting.py",
    "tests/postgres/test_scenarios_rows.py",
    "tests/postgres/test_scenarios_transactions.py",
)


def main(*arguments: str) -> int:
    other = installed_programs()
    if other is None or other == programs():
        print("this machine has no other PostgreSQL than the suite runs on")
        return 0
    told = subprocess.run([other / "postgres", "--version"], capture_output=True, text=True, check=True)
    print(told.stdout.strip(), flush=True)
    environment = {**os.environ, PROGRAMS: str(other), "ULAK_STORAGES": "postgres"}
    command = [sys.executable, "-m", "pytest", "-q", "-n", "2", *SUITES, *arguments]
    done = subprocess.run(command, env=environment, check=False)
    print("1 passed, 0 failed" if done.returncode == 0 else "0 passed, 1 failed")
    return done.returncode


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
