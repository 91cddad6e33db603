"""All runs of a benchmark together: medians, spreads, and whether they say anything."""

from __future__ import annotations

import dataclasses
import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from ulak.cli.bench_figures import MEASURES
from ulak.cli.bench_plan import PERCENTILES, Figures, Plan
from ulak.durations import format_duration

LAG_MAX_S = 0.010
"""By how much the generator may be late by its own fault, at p99."""
BEHIND_MAX_S = 0.010
BEHIND_MAX_SHARE = 0.02
"""How late the last calls may be, whoever's fault that is: so long, or this share of the whole schedule."""
SPREAD_MAX = 0.25
"""How far the runs' throughput and medians may be apart, as a share of the median."""
OTHERS_MAX_SHARE = 0.1
"""How much of the machine others may take."""

Number = Callable[[Figures], float | None]


@dataclass(frozen=True, slots=True)
class Spread:
    """A figure of several runs."""

    median: float
    low: float
    high: float

    @property
    def share(self) -> float:
        """How far the runs are apart, as a share of their median."""
        return (self.high - self.low) / self.median if self.median else 0.0

    @property
    def is_alone(self) -> bool:
        """Whether there is nothing to compare it with."""
        return self.low == self.high


@dataclass(frozen=True, slots=True)
class Series:
    """The runs of one load. fail_rate: 0 for those without failures."""

    fail_rate: float
    runs: tuple[Figures, ...]

    def spread(self, number: Number) -> Spread | None:
        """A figure of all runs; None where it is not known of every one."""
        values = [value for run in self.runs if (value := number(run)) is not None]
        if len(values) < len(self.runs):
            return None
        return Spread(statistics.median(values), min(values), max(values))

    def at(self, measure: str, percentile: str) -> Spread:
        """A percentile of a latency."""
        found = self.spread(lambda run: run.latency[measure].at[percentile])
        assert found is not None
        return found

    @property
    def middle(self) -> Figures:
        """The run whose median latency is the middle one: a plot shows a run that was, not a mixture."""
        ordered = sorted(self.runs, key=lambda run: run.latency["first_call"].at["p50"])
        return ordered[len(ordered) // 2]


@dataclass(frozen=True, slots=True)
class Result:
    """What came of a benchmark. series: without failures, and with them if the plan has some."""

    plan: Plan
    machine: dict[str, object]
    series: tuple[Series, ...]

    @property
    def problems(self) -> list[str]:
        """Why the runs say nothing; empty if they do."""
        found = []
        for series in self.series:
            name = name_of(series)
            for number, run in enumerate(series.runs, 1):
                where = f"{name}, run {number}: " if len(series.runs) > 1 else f"{name}: "
                found += [where + problem for problem in _of_run(self.plan, run, self.processors)]
            found += [f"{name}: {problem}" for problem in _of_spread(series)]
        return found

    @property
    def processors(self) -> int:
        """How many the machine has."""
        return int(str(self.machine.get("processors") or 1))

    @property
    def as_json(self) -> dict[str, object]:
        """Everything, for a file."""
        return {
            "kind": "ulak bench",
            "settings": dataclasses.asdict(self.plan),
            "machine": self.machine,
            "series": {name_of(series): _series_json(series) for series in self.series},
            "problems": self.problems,
            "valid": not self.problems,
        }


def name_of(series: Series) -> str:
    """What a series is called."""
    return f"{100 * series.fail_rate:g}% of attempts fail" if series.fail_rate else "no failures"


NUMBERS: dict[str, Number] = {
    "jobs_per_s": lambda run: run.jobs_per_s,
    "cpu_a_job_s": lambda run: run.cpu_a_job_s,
    "peak_open": lambda run: run.peak_open,
    "memory_bytes": lambda run: run.memory_bytes,
    "blocked_share": lambda run: run.blocked_share,
}


def _series_json(series: Series) -> dict[str, object]:
    numbers = {name: series.spread(number) for name, number in NUMBERS.items()}
    return {
        **{name: None if found is None else dataclasses.asdict(found) for name, found in numbers.items()},
        "latency_s": {
            measure: {p: dataclasses.asdict(series.at(measure, p)) for p in PERCENTILES}
            for measure in (*MEASURES, "blocked")
        },
        "runs": [dataclasses.asdict(run) for run in series.runs],
    }


def _of_run(plan: Plan, run: Figures, processors: int) -> list[str]:
    found = []
    if run.lost:
        processes = "1 worker process" if run.lost == 1 else f"{run.lost} worker processes"
        found.append(f"{processes} ended before their time")
    if not run.is_as_drawn:
        ended = f"{run.succeeded:,} succeeded and {run.dead_lettered:,} died"
        found.append(f"{ended}, which is not what seed {plan.seed} has drawn: a job was lost or ran twice")
    if run.lag_p99_s > LAG_MAX_S:
        found.append(
            f"the generator fell behind its schedule by itself: p99 {_shown(run.lag_p99_s)} late, "
            f"{_shown(LAG_MAX_S)} allowed"
        )
    elif run.behind_s > max(BEHIND_MAX_S, BEHIND_MAX_SHARE * run.due_span_s):
        why = "waiting for room" if run.blocked_share > 0.5 else "in enqueue calls"
        found.append(
            f"{plan.rate:,.0f} jobs/s were not taken: the last calls came {_shown(run.behind_s)} late, "
            f"most of the time {why}; {run.jobs_per_s:,.0f} jobs/s were done"
        )
    if run.others_cpus is not None and run.others_cpus > OTHERS_MAX_SHARE * processors:
        found.append(f"the machine was busy: others took {run.others_cpus:.2f} of {processors} processors")
    return found


def _of_spread(series: Series) -> Sequence[str]:
    watched = {
        "jobs/s": series.spread(lambda run: run.jobs_per_s),
        "p50 from enqueue to start": series.at("start_call", "p50"),
    }
    return [
        f"too noisy: {name} of the runs lie {100 * found.share:.0f}% apart, {100 * SPREAD_MAX:.0f}% allowed"
        for name, found in watched.items()
        if found is not None and found.share > SPREAD_MAX
    ]


def _shown(value_s: float) -> str:
    return format_duration(value_s)
