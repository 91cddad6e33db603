"""One measurement, printed as JSON: `python -m bench.inmemory.measure SIDE CASE JOBS`."""

from __future__ import annotations

import importlib
import json
import sys

# Side -> the module that has its cases, and their name there.
SIDES = {
    "ulak": ("ulak_side", "CASES"),
    "ulak, priority 0": ("ulak_side", "CASES_PLAIN"),
    "ulak, one loop": ("ulak_side", "CASES_ONE_LOOP"),
    "ulak, slowed": ("ulak_side", "CASES_SLOWED"),
    "heap": ("yardstick_side", "HEAP"),
    "deques": ("yardstick_side", "DEQUES"),
    "lockless": ("yardstick_side", "LOCKLESS"),
    "pool": ("yardstick_side", "POOL"),
    "condition": ("yardstick_side", "CONDITION"),
    "huey": ("huey_side", "CASES"),
    "dramatiq": ("dramatiq_side", "CASES"),
    "taskiq": ("taskiq_side", "CASES"),
    "taskiq, in place": ("taskiq_side", "CASES_IN_PLACE"),
    "celery": ("celery_side", "CASES"),
}


def main(side, case, jobs):
    module, cases = SIDES[side]
    found = getattr(importlib.import_module(f"bench.inmemory.{module}"), cases)
    print(json.dumps(found[case](int(jobs))))


if __name__ == "__main__":
    main(*sys.argv[1:])
