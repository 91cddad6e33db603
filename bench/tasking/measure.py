"""One measurement, printed as JSON: `python -m bench.tasking.measure SIDE CASE JOBS`."""

from __future__ import annotations

import importlib
import json
import sys

# Side -> the module that has its cases, and their name there.
SIDES = {
    "ulak": ("ulak_side", "TASK"),
    "bare pool": ("ulak_side", "BARE"),
    "huey": ("huey_side", "TASK"),
}


def main(side, case, jobs):
    module, cases = SIDES[side]
    found = getattr(importlib.import_module(f"bench.tasking.{module}"), cases)
    print(json.dumps(found[case](int(jobs))))


if __name__ == "__main__":
    main(*sys.argv[1:])
