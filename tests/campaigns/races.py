"""Controlled preemption, much longer than in the suite: `races [SCHEDULES [FIRST_SEED]]`.

SCHEDULES: for each operation of the store and of a queue, and for each case of handles, waiters and pools.
A failure prints its seed; `races 1 SEED` repeats it.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

SCHEDULES = 500
PROCESSES = 2


def main() -> int:
    schedules = int(sys.argv[1]) if len(sys.argv) > 1 else SCHEDULES
    first = int(sys.argv[2]) if len(sys.argv) > 2 else 0
    print(f"races: {schedules} schedules of each case, seeds {first} to {first + schedules - 1}", flush=True)
    files = sorted(map(str, Path("tests/race").glob("test_preempt*.py")))
    command = [sys.executable, "-m", "pytest", "-q", "-n", str(PROCESSES), "--timeout=3600", *files]
    chosen = {"ULAK_SCHEDULES": str(schedules), "ULAK_SEED": str(first)}
    return subprocess.run(command, env=os.environ | chosen, check=False).returncode


if __name__ == "__main__":
    sys.exit(main())
