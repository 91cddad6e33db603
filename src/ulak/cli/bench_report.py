"""What a benchmark prints, for people."""

from __future__ import annotations

from ulak import __version__
from ulak.cli.bench_plan import PERCENTILES, Plan
from ulak.cli.bench_result import Result, Series, name_of
from ulak.cli.options import spelled_size
from ulak.durations import format_duration
from ulak.local import is_on_server, masked

_NAME_COLUMNS = 33
_COLUMN = 9

# What a row is called, and what it shows; the second is left out of a saturated run, which has no schedule.
_HEAD_ROWS = (
    ("enqueue call", "call"),
    ("  of it blocked, for want of room", "blocked"),
    ("due to call", "late"),
)
_BLOCKS = (
    ("to start", "start"),
    ("to settled, first attempt", "first"),
    ("to settled, with retries", "settled"),
)
_ORIGINS = (("due", "due"), ("call", "call"), ("return", "return"))


def header(plan: Plan) -> list[str]:
    """What is about to run."""
    capacity = "none" if plan.capacity is None else f"{plan.capacity:,}"
    backoff = f"{format_duration(plan.base_s)} to {format_duration(plan.cap_s)}"
    limits = f"capacity {capacity}  max attempts {plan.max_attempts}  backoff {backoff}"
    jobs = f"payload {plan.payload_bytes:,} B   {_many(plan.priorities, 'priority', 'priorities')}"
    runs = f"{_many(plan.repeat, 'run')}{'; medians' if plan.repeat > 1 else ''}"
    return [
        f"ulak {__version__}  {masked(plan.url)}  {_workers(plan)}  {limits}",
        f"  {_load(plan)}   {_length(plan)}",
        f"  {jobs}   seed {plan.seed}   {runs}",
    ]


def _workers(plan: Plan) -> str:
    kind = {"thread": "threads", "async": "one loop"}[plan.executor]
    each = f"{_many(plan.workers, 'worker')} ({kind})"
    return each if plan.processes is None else f"{_many(plan.processes, 'process', 'processes')} of {each}"


def _load(plan: Plan) -> str:
    producers = _many(plan.producers, "producer")
    if not plan.rate:
        return f"saturated by {producers}"
    kind = "Poisson arrivals" if plan.is_poisson else "equal gaps"
    return f"open loop, {plan.rate:,.10g} jobs/s from {producers}, {kind}"


def _length(plan: Plan) -> str:
    if plan.duration_s is not None:
        return f"for {format_duration(plan.duration_s)}, of which a tenth is to warm up"
    return f"{plan.jobs:,} jobs after {plan.warm_up:,} to warm up"


def as_text(result: Result) -> list[str]:
    """The figures of all runs, and whether they count."""
    lines: list[str] = []
    for series in result.series:
        lines += ["", *_series_lines(result.plan, series)]
    return [*lines, *_compared(result), "", *_verdict(result)]


def _series_lines(plan: Plan, series: Series) -> list[str]:
    heads = "".join(f"{name:>{_COLUMN}}" for name in PERCENTILES)
    lines = [_summary(plan, series), f"  {'':{_NAME_COLUMNS}}{heads}"]
    lines += [_row(series, name, measure) for name, measure in _HEAD_ROWS if plan.rate or measure != "late"]
    for block, measure in _BLOCKS:
        if measure == "settled" and not series.fail_rate:
            continue
        for origin, suffix in _ORIGINS:
            if plan.rate or suffix != "due":
                lines.append(_row(series, f"{origin} {block}", f"{measure}_{suffix}"))
    if len(series.runs) > 1:
        lines.append(_spread_line(series))
    return lines


def _summary(plan: Plan, series: Series) -> str:
    """The figures that are no latencies."""

    def median(name: str) -> float | None:
        found = series.spread(lambda run: getattr(run, name))
        return None if found is None else found.median

    parts = [f"{name_of(series)}: {median('jobs_per_s'):,.0f} jobs/s"]
    of = "" if plan.capacity is None else f" of {plan.capacity:,}"
    parts.append(f"peak open {median('peak_open'):,.0f}{of}")
    parts.append(f"blocked {100 * (median('blocked_share') or 0.0):.1f}%")
    parts.append(f"cpu {shown(median('cpu_a_job_s') or 0.0)} a job")
    if (memory := median("memory_bytes")) is not None:
        parts.append(f"memory +{spelled_size(memory)}")
    return "   ".join(parts)


def _row(series: Series, name: str, measure: str) -> str:
    values = "".join(f"{shown(series.at(measure, p).median):>{_COLUMN}}" for p in PERCENTILES)
    return f"  {name:{_NAME_COLUMNS}}{values}"


def _spread_line(series: Series) -> str:
    rate = series.spread(lambda run: run.jobs_per_s)
    assert rate is not None
    p50, p99 = (_percent(series.at("start_call", p).share) for p in ("p50", "p99"))
    return f"  the runs lie apart by: jobs/s {_percent(rate.share)}, call to start p50 {p50} and p99 {p99}"


def _compared(result: Result) -> list[str]:
    """What failures do to the first attempts, which do not wait for any backoff."""
    if len(result.series) < 2:
        return []
    clean, failing = result.series
    times = ", ".join(
        f"{p} {_ratio(failing.at('first_call', p).median, clean.at('first_call', p).median)}"
        for p in ("p50", "p99")
    )
    base, cap = format_duration(result.plan.base_s), format_duration(result.plan.cap_s)
    first = f"which is up to {base} after a first failure, and up to {cap} at most"
    return [
        "",
        f"first attempts, against no failures: {times}",
        f"with failures the tail is the backoff, {first}: it says nothing about the queue",
    ]


def _verdict(result: Result) -> list[str]:
    if problems := result.problems:
        return ["NOT VALID: no figure above counts", *(f"  {problem}" for problem in problems)]
    lines = ["valid: the schedule was kept, and the runs agree" if result.plan.repeat > 1 else "valid"]
    if result.plan.repeat == 1:
        lines.append("  one run: how far runs lie apart is not known; --repeat 5 tells")
    if any(run.others_cpus is None for series in result.series for run in series.runs):
        why = "a run was too short, or it does not tell"
        if is_on_server(result.plan.url):
            why = "what a server does counts as others' work too"
        lines.append(f"  how busy the machine was is not known: {why}")
    return lines


def shown(value_s: float) -> str:
    """A duration in a few characters, to a tenth of a microsecond where it is short.

    >>> shown(0.0000041), shown(0.000041), shown(0.0041)
    ('4.1µs', '41µs', '4.1ms')
    """
    return f"{value_s * 1e6:.1f}µs" if 0 < value_s < 9.95e-6 else format_duration(value_s)


def _percent(share: float) -> str:
    return f"{100 * share:.0f}%"


def _ratio(number: float, per: float) -> str:
    return f"x{number / per:.2f}" if per else "-"


def _many(number: int, noun: str, plural: str | None = None) -> str:
    return f"{number:,} {noun if number == 1 else plural or noun + 's'}"
