"""Measuring several sides fairly: a fresh process for each figure, in alternating order, with its spread."""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
from dataclasses import dataclass

from bench.kit.environment import FAILED, ROOT

MEASUREMENT_MAX_S = 600


@dataclass(frozen=True, slots=True)
class Spread:
    """The figures of all rounds."""

    runs: list[float]

    @property
    def median(self):
        return statistics.median(self.runs)

    @property
    def low(self):
        return min(self.runs)

    @property
    def high(self):
        return max(self.runs)


def run_apart(python, module, *arguments):
    """What `python -m module arguments` prints as its last line of JSON, in a process of its own."""
    command = [python, "-m", module, *map(str, arguments)]
    # The peers' interpreter must not see what is on our path.
    environment = dict(os.environ)
    if python != sys.executable:
        environment.pop("PYTHONPATH", None)
    try:
        done = subprocess.run(
            command,
            cwd=ROOT,
            env=environment,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=MEASUREMENT_MAX_S,
            check=False,
        )
    except subprocess.TimeoutExpired:
        stop(command, f"it did not end within {MEASUREMENT_MAX_S} s")
    if done.returncode != 0 or not done.stdout.strip():
        stop(command, done.stderr)
    return json.loads(done.stdout.splitlines()[-1])


def stop(command, why):
    print(f"bench: no figure from {' '.join(map(str, command))}\n{why}", file=sys.stderr)
    sys.exit(FAILED)


def interleaved(measure, sides, rounds, tell=lambda side, number: None):
    """Measure each side once a round, forwards and backwards in turn; side -> figure -> Spread.

    measure: side -> figures by name.
    """
    found = {side: [] for side in sides}
    for number in range(rounds):
        for side in list(sides)[:: -1 if number % 2 else 1]:
            tell(side, number)
            found[side].append(measure(side))
    return {
        side: {figure: Spread([run[figure] for run in runs]) for figure in runs[0]}
        for side, runs in found.items()
    }
