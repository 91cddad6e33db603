"""One measurement, printed as JSON: `python -m bench.onserver.measure SIDE CASE JOBS URL`."""

from __future__ import annotations

import importlib
import json
import sys

# Side -> the module that has its cases, and their name there.
SIDES = {
    "ulak": ("ulak_side", "CASES"),
    "ulak, bounded": ("ulak_side", "BOUNDED"),
    "ulak, lone": ("ulak_side", "LONE"),
    "raw": ("yardsticks", "RAW"),
    "raw, unnest": ("yardsticks", "UNNEST"),
    "raw, batches": ("yardsticks", "BATCHES"),
    "raw, fused": ("yardsticks", "FUSED_TURNS"),
    "raw, woken": ("yardsticks", "WOKEN"),
    "pgqueuer": ("pgqueuer_side", "CASES"),
    "procrastinate": ("procrastinate_side", "CASES"),
}


def main(side, case, jobs, url):
    module, cases = SIDES[side]
    found = getattr(importlib.import_module(f"bench.onserver.{module}"), cases)
    print(json.dumps(found[case](int(jobs), url)))


if __name__ == "__main__":
    main(*sys.argv[1:])
