"""The command `ulak bench`: from its options to runs, and from these to what is printed and drawn."""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path

from ulak.cli import bench_report, logs
from ulak.cli.bench import JOBS_MAX
from ulak.cli.bench_load import HEAD
from ulak.cli.bench_machine import machine
from ulak.cli.bench_plan import Figures, Plan
from ulak.cli.bench_progress import Progress
from ulak.cli.bench_result import Result, Series
from ulak.cli.options import spelled
from ulak.cli.output import say
from ulak.cli.stops import Stopped, Stops
from ulak.codec import PAYLOAD_BYTES_MAX
from ulak.errors import ConfigError
from ulak.local import check_url

JOBS = 20_000
WARM_UP_MAX = 10_000
INTERRUPTED = 130
SATURATED_MAX_PER_S = 500_000
"""More jobs a second than any store takes: the room for records of a run that ends by time."""


def run(args: argparse.Namespace) -> int:
    """Measure, print, draw; 0 if the runs count."""
    plan = plan_of(args)
    plot = _plot_path(args.plot)
    log_level = logs.level_of(args.verbose)
    out = None if args.json else sys.stdout
    say("\n".join(bench_report.header(plan)), to=out)
    with Stops() as stops, logs.shown("console", log_level):
        try:
            # A run that is broken off leaves nothing behind: no open job, no process, no file.
            with stops.breaking_off():
                result = measure_all(plan, Progress(sys.stderr), log_level=log_level)
        except Stopped:
            return stops.status or INTERRUPTED
    if args.json:
        say(json.dumps(result.as_json), to=sys.stdout)
    say("\n".join(bench_report.as_text(result)), to=out)
    if plot is not None:
        from ulak.cli import bench_plot

        plot.write_text(bench_plot.drawn(result), encoding="utf-8")
        say(f"drawn in {plot}", to=sys.stderr)
    return 1 if result.problems else 0


def measure_all(plan: Plan, progress: Progress, *, log_level: int) -> Result:
    """All runs: where attempts are to fail, each beside one without failures, the two taking turns."""
    import dataclasses

    from ulak.cli.bench_run import measure

    rates = sorted({0.0, plan.fail_rate})
    found: dict[float, list[Figures]] = {rate: [] for rate in rates}
    try:
        for number in range(plan.repeat):
            for rate in rates[:: -1 if number % 2 else 1]:
                what = f"{100 * rate:g}% of attempts fail" if rate else "no failures"
                progress.begin(f"run {number + 1} of {plan.repeat}, {what}")
                one = dataclasses.replace(plan, fail_rate=rate)
                found[rate].append(measure(one, progress.watch, log_level=log_level))
    finally:
        progress.end()
    series = tuple(Series(rate, tuple(runs)) for rate, runs in found.items())
    return Result(plan, machine(), series)


def plan_of(args: argparse.Namespace) -> Plan:
    """The plan that the options make. Raises ConfigError for options that cannot go together."""
    check_url(args.url)
    _refuse(args)
    jobs, duration_s = args.jobs or JOBS, None
    if args.duration is not None and args.rate:
        jobs = max(1, round(args.rate * args.duration))
    elif args.duration is not None:
        jobs, duration_s = min(JOBS_MAX, round(args.duration * SATURATED_MAX_PER_S)), args.duration
    warm_up = min(WARM_UP_MAX, jobs // 10) if args.warm_up is None else args.warm_up
    if duration_s is not None:
        warm_up = 0
    if jobs + warm_up > JOBS_MAX:
        raise _impossible(f"a run has at most {JOBS_MAX:,} jobs, and this would be {jobs + warm_up:,}")
    return Plan(
        url=args.url,
        rate=args.rate,
        is_poisson=args.arrivals == "poisson",
        jobs=jobs,
        warm_up=warm_up,
        duration_s=duration_s,
        capacity=args.capacity,
        fail_rate=args.fail_rate,
        max_attempts=args.max_attempts,
        base_s=args.base,
        cap_s=args.cap,
        workers=args.workers,
        executor=args.executor,
        processes=args.processes,
        producers=args.producers,
        payload_bytes=args.payload,
        priorities=args.priorities,
        repeat=args.repeat,
        seed=args.seed,
    )


def _refuse(args: argparse.Namespace) -> None:
    """Raises ConfigError for options that cannot go together."""
    if args.jobs is not None and args.duration is not None:
        raise _impossible("a run ends after --jobs or after --duration: give one of them")
    if args.duration is not None and args.duration <= 0:
        raise _impossible("--duration must be more than 0")
    if args.duration is not None and not args.rate and args.warm_up is not None:
        raise _impossible("--warm-up counts jobs; a saturated run of a --duration leaves out its first tenth")
    if not 0 < args.base <= args.cap:
        base, cap = spelled(args.base), spelled(args.cap)
        raise _impossible(
            f"--base must be more than 0 and at most --cap: --base is {base} and --cap is {cap}"
        )
    if args.processes is not None and args.url.startswith("memory:"):
        raise ConfigError(
            "--processes needs a store that processes share: memory:// is one process's own; "
            "add --url sqlite:///bench.db"
        )
    if not HEAD.size <= args.payload <= PAYLOAD_BYTES_MAX:
        raise _impossible(f"--payload is from {HEAD.size} to {PAYLOAD_BYTES_MAX:,} bytes")
    if args.producers > (args.jobs or JOBS):
        raise _impossible("there are more --producers than --jobs")


def _impossible(text: str) -> ConfigError:
    return ConfigError(f"{text}\n  see ulak bench --help")


def _plot_path(given: str | None) -> Path | None:
    """Where the plot goes. Raises ConfigError before anything runs if it cannot."""
    if given is None:
        return None
    path = Path(given)
    if path.suffix.lower() != ".svg":
        raise ConfigError(f"--plot draws SVG, which browsers show: name it {path.stem or 'bench'}.svg")
    if not path.parent.is_dir():
        raise ConfigError(f"--plot: there is no folder {path.parent}")
    return path
