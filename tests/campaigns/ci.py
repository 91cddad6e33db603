"""What a change must pass beside the suite, in the sizes that fit before it lands."""

from __future__ import annotations

import subprocess
import sys
import time

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


def main() -> int:
    failed = []
    for step in STEPS:
        start = time.monotonic()
        print(f"--- {' '.join(step)}", flush=True)
        if subprocess.run([sys.executable, "-m", *step], check=False).returncode != 0:
            failed.append(step[0])
        print(f"--- {step[0]}: {time.monotonic() - start:.0f} s", flush=True)
    print(f"{len(STEPS) - len(failed)} passed, {len(failed)} failed")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
