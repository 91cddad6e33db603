"""What a change must pass beside the suite, in the sizes that fit before it lands."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
import time
from collections import deque
from collections.abc import Iterable

STEPS = (
    ("tests.campaigns.coverage",),
    ("tests.campaigns.contract", "300"),
    ("tests.campaigns.explore", "ci"),
    ("tests.campaigns.simulate", "2000"),
    ("tests.campaigns.races", "500"),
    ("tests.campaigns.mutants",),
    ("tests.campaigns.kills", "500", "10000"),
    ("tests.campaigns.pauses", "100"),
    ("tests.campaigns.power", "2000"),
    ("tests.campaigns.iofaults", "400"),
    ("tests.campaigns.corruption", "600"),
    ("tests.campaigns.newer_sqlite",),
    ("tests.campaigns.checkpoints", "20000"),
    ("tests.campaigns.executors", "50", "1500"),
    ("tests.campaigns.stops", "40", "--rounds", "1", "--jobs", "40"),
    ("tests.campaigns.soak", "1"),
    ("tests.campaigns.pgkills", "100", "2000"),
    ("tests.campaigns.pgcuts", "200"),
    ("tests.campaigns.pgrestarts", "10"),
    ("tests.campaigns.older_postgres",),
    ("bench.guard",),
)


# Of a step that failed, told again at the end: whoever reads only the end of a long log sees why.
LAST_LINES = 30


def run(step: tuple[str, ...]) -> list[str] | None:
    """Run a step, showing what it prints; the last lines of one that failed."""
    start = time.monotonic()
    print(f"--- {' '.join(step)}", flush=True)
    last: deque[str] = deque(maxlen=LAST_LINES)

    def show(lines: Iterable[str]) -> None:
        for line in lines:
            print(line, end="", flush=True)
            last.append(line)

    command = [sys.executable, "-m", *step]
    child = subprocess.Popen(
        command,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        errors="replace",
        env={**os.environ, "PYTHONUNBUFFERED": "1"},
    )
    assert child.stdout is not None
    reader = threading.Thread(target=show, args=(child.stdout,), daemon=True)
    reader.start()
    code = child.wait()
    reader.join(10)  # Not for ever: what a step left behind may hold its output open.
    print(f"--- {step[0]}: {time.monotonic() - start:.0f} s, exit {code}", flush=True)
    return [*last] if code != 0 else None


def main() -> int:
    ended = {step[0]: run(step) for step in STEPS}
    failed = {name: lines for name, lines in ended.items() if lines is not None}
    for name, lines in failed.items():
        print(f"--- the end of {name}, which failed:", *map(str.rstrip, lines), sep="\n| ")
    print(f"{len(STEPS) - len(failed)} passed, {len(failed)} failed", *failed)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
