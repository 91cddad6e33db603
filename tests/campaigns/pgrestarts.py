"""A PostgreSQL server is stopped under load and started: `pgrestarts [RESTARTS] [--every S] [--seed N]`.

It is stopped in every way. Two producers and three workers work on it, and none of them is started anew. The
judge of histories is the oracle, and after each restart work has to go on within seconds.
"""

from __future__ import annotations

import argparse
import random
import shutil
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path

from tests.support.pgkeeper import STOPS
from tests.support.postgres import own_server
from tests.support.unsteady import BACK_S, Unsteady

RESTARTS = 10
_REST_MAX_S = 0.5


def main() -> int:
    parser = argparse.ArgumentParser(prog="pgrestarts", description=__doc__)
    parser.add_argument("restarts", nargs="?", type=int, default=RESTARTS)
    parser.add_argument("--every", type=float, default=_REST_MAX_S / 2, help="seconds between two, about")
    parser.add_argument("--seed", type=int, default=random.randrange(2**31))
    chosen = parser.parse_args()
    print(f"pgrestarts: {chosen.restarts:,} restarts, seed {chosen.seed}", flush=True)
    place = Path(tempfile.mkdtemp(prefix="ulak-restarts-"))
    ways: Counter[str] = Counter()
    with own_server(durable=True) as server:

        def strike(draw: random.Random) -> None:
            time.sleep(draw.uniform(0.0, 2 * chosen.every))
            how = draw.choice(sorted(STOPS))
            ways[how] += 1
            server.stop(how)
            time.sleep(draw.choice((0.0, 0.0, draw.uniform(0.0, BACK_S))))
            server.start()

        url = f"{server.url}&schema=ulak"
        outcome = Unsteady(place, url, url, seed=chosen.seed).run(chosen.restarts, strike, lambda: None)
    problems = outcome.problems + [str(problem) for problem in outcome.verdict.problems]
    if outcome.longest_s > BACK_S:
        problems.append(f"nothing was done for {outcome.longest_s:.1f} s after the server was back")
    if problems:
        problems.append(f"what was told: {place}")
    else:
        shutil.rmtree(place)
    print(f"{dict(ways)} in {outcome.took_s:.0f} s: {outcome.verdict}")
    print(f"after a restart the next job was done within {outcome.longest_s:.2f} s")
    print("\n".join(problems[:20]))
    print(f"{outcome.verdict.jobs} passed, {len(problems)} failed")
    return 1 if problems or not outcome.verdict.jobs else 0


if __name__ == "__main__":
    sys.exit(main())
