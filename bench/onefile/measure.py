"""One measurement, printed as JSON: `python -m bench.onefile.measure SIDE CASE JOBS FOLDER`."""

from __future__ import annotations

import importlib
import json
import sys
import tempfile
from pathlib import Path

# Side -> the module that has its cases, and their name there.
SIDES = {
    "ulak": ("ulak_side", "CASES"),
    "raw": ("yardstick_side", "RAW"),
    "raw, kept": ("yardstick_side", "KEPT"),
    "raw, lean": ("yardstick_side", "LEAN"),
    "raw group": ("yardstick_side", "GROUP"),
    "fsync": ("yardstick_side", "FSYNC"),
    "huey": ("huey_side", "CASES"),
    "huey, one thread": ("huey_side", "CASES_LONE"),
    "persist-queue": ("persistqueue_side", "CASES"),
    "litequeue": ("litequeue_side", "CASES"),
    "honker": ("honker_side", "CASES"),
    "flexiq": ("flexiq_side", "CASES"),
}


def main(side, case, jobs, parent):
    module, cases = SIDES[side]
    found = getattr(importlib.import_module(f"bench.onefile.{module}"), cases)
    with tempfile.TemporaryDirectory(prefix="ulak-bench-", dir=parent, ignore_cleanup_errors=True) as folder:
        print(json.dumps(found[case](int(jobs), Path(folder))))


if __name__ == "__main__":
    main(*sys.argv[1:])
