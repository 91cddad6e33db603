"""What trials came to, in a few lines."""

from __future__ import annotations

import msgspec

from tests.support.processes.deaths import part
from tests.support.processes.trial import Outcome

SHOWN_MAX = 20


def told(outcome: Outcome) -> str:
    """One trial, with its first problems."""
    struck = ", ".join(f"{n} {what}" for what, n in sorted(outcome.struck.items()))
    lines = [
        f"trial of {outcome.took_s:.0f} s: {struck}; {outcome.left_files} presence files left",
        f"  {outcome.verdict}",
        f"  seen: {', '.join(f'{n} {what}' for what, n in sorted(outcome.verdict.seen.items()) if n)}",
    ]
    return "\n".join(lines + [f"  {problem}" for problem in outcome.problems[:SHOWN_MAX]])


class Tally(msgspec.Struct):
    """Several trials."""

    jobs: int = 0
    kills: int = 0
    pauses: int = 0
    deliveries: int = 0
    took_s: float = 0.0
    problems: list[str] = msgspec.field(default_factory=list)
    restarts_s: list[float] = msgspec.field(default_factory=list)

    def add(self, outcome: Outcome) -> None:
        """Count a trial in."""
        self.jobs += outcome.verdict.jobs
        self.kills += outcome.kills
        self.pauses += outcome.pauses
        self.deliveries += outcome.verdict.deliveries
        self.took_s += outcome.took_s
        self.problems += outcome.problems + [str(problem) for problem in outcome.verdict.problems]
        self.restarts_s = sorted(self.restarts_s + outcome.restarts_s)

    def restart_s(self, share: float) -> float:
        """So soon this share of what killed processes held started again."""
        return part(self.restarts_s, share)

    def finish(self) -> int:
        """Print the sums; the exit status."""
        times = ", ".join(f"{name} {self.restart_s(share):.2f} s" for name, share in _SHARES)
        print(
            f"{self.kills:,} kills, {self.pauses:,} pauses, {self.jobs:,} jobs, "
            f"{self.deliveries:,} deliveries in {self.took_s:.0f} s"
        )
        print(f"{len(self.restarts_s):,} jobs of killed processes started again after: {times}")
        print(f"{self.jobs} passed, {len(self.problems)} failed")
        return 1 if self.problems or not self.jobs else 0


_SHARES = (("p50", 0.5), ("p99", 0.99), ("max", 1.0))
