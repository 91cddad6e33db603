"""Every state of the store within a scope: `explore [small | ci | full] [SCOPE ...]`, without a word full."""

from __future__ import annotations

import resource
import sys

from tests.explore.explorer import explore
from tests.explore.scope import CI, FULL, SMALL

SIZES = {"small": SMALL, "ci": CI, "full": FULL}


def main(size: str = "full", *names: str) -> int:
    if size not in SIZES or not set(names) <= set(SIZES[size]):
        scopes = "\n".join(f"  {size}: {', '.join(map(repr, known))}" for size, known in SIZES.items())
        print(f"explore [SIZE [SCOPE ...]]; there are\n{scopes}")
        return 2
    failed = states = transitions = 0
    seconds = 0.0
    for scope in SIZES[size].values():
        if not names or scope.name in names:
            result = explore(scope)
            print(result, flush=True)
            failed += not result.is_complete
            states += result.states
            transitions += result.transitions
            seconds += result.seconds
    peak_mb = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024
    print(f"{states:,} states, {transitions:,} transitions in {seconds:,.0f} s, peak {peak_mb:,} MB")
    print(f"{len(names or SIZES[size]) - failed} passed, {failed} failed")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
