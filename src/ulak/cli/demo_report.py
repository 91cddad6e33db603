"""What a demo prints when it is over: for people, or as one JSON object."""

from __future__ import annotations

import dataclasses
import json
import platform
import shlex
import textwrap
from collections.abc import Mapping

from ulak import __version__
from ulak.cli.demo_plan import Identity, Plan, Result
from ulak.cli.output import visible
from ulak.durations import format_duration
from ulak.local import masked
from ulak.metrics import Histogram

PERCENTILES = (50, 95, 99)
_COMMAND_COLUMNS = 70


def header(plan: Plan) -> list[str]:
    """What is about to run, in two or three lines."""
    rate = f"   {plan.rate:g} jobs/s" if plan.rate else ""
    backoff = f"{format_duration(plan.base_s)} to {format_duration(plan.cap_s)}"
    workers, jobs = _many(plan.workers, "worker"), _many(plan.jobs, "job")
    failing = f"fail-rate {100 * plan.fail_rate:g}%  max attempts {plan.max_attempts}"
    fleet = []
    if plan.processes is not None:
        processes = "1 process" if plan.processes == 1 else f"{plan.processes} processes"
        fleet = [f"  {processes} of {workers} each   crash-rate {100 * plan.crash_rate:g}%"]
    return [
        f"ulak {__version__}  {masked(plan.url)}  {workers}  capacity {plan.capacity}  {failing}",
        f"  {jobs}{rate}   priorities 0 to {plan.priorities - 1}   backoff {backoff}   seed {plan.seed}",
        *fleet,
    ]


def as_text(result: Result, given: Mapping[str, str] | None = None) -> list[str]:
    """The summary, in lines of at most 80 columns as long as its numbers have at most seven digits.

    given: the options that the run was started with, which its hint at what to do next repeats.
    """
    r = result
    ended = f"{'stopped' if r.stopped else 'done'} in {format_duration(r.elapsed_s)}"
    jobs_per_s, attempts_per_s = (
        _rate(r.succeeded + r.dead_lettered, r.elapsed_s),
        _rate(r.processed, r.elapsed_s),
    )
    # Other processes' refused calls nobody knows, and what was reclaimed has a line of its own.
    odd = "" if r.fleet else f"   reclaimed {r.reclaimed}   stale {r.stale}   rejected {r.rejected}"
    blocked = f"{format_duration(r.blocked_s)} ({100 * _rate(r.blocked_s, r.producing_s):.0f}% of its time)"
    return [
        f"{ended}   {jobs_per_s:.0f} jobs/s   {attempts_per_s:.0f} attempts/s",
        f"  enqueued {r.enqueued}   processed {r.processed}   succeeded {r.succeeded}   failed {r.failed}",
        f"  retries {r.retries}   dead-lettered {r.dead_lettered}{odd}",
        *_fleet_lines(result),
        f"  producer blocked {blocked}   peak open {r.peak_open} of {r.plan.capacity}",
        *_latency_lines(result),
        *_check_lines(result),
        *_dead_lines(result),
        *_next_lines(result, given or {}),
    ]


def _fleet_lines(result: Result) -> list[str]:
    fleet = result.fleet
    if fleet is None:
        return []
    kills = f"kills {fleet.kills}   redeliveries {result.reclaimed}   processes started {fleet.started}"
    lines = [f"  {kills}" + (f"   ended otherwise {fleet.other_ends}" if fleet.other_ends else "")]
    if fleet.left:
        done = (
            "not finished" if fleet.left_s is None else f"finished first, in {format_duration(fleet.left_s)}"
        )
        lines.insert(0, f"  {_many(fleet.left, 'job')} left open by an earlier run, {done}")
    return lines


def _latency_lines(result: Result) -> list[str]:
    latency = result.latency
    if latency is None:
        return []
    due = "due" if result.plan.rate else "enqueue"
    rows = [
        (f"{due} to settled", latency.due_to_settled),
        ("accepted to settled", latency.accepted_to_settled),
        (f"{due} to first start", latency.due_to_start),
    ]
    head = "".join(f"{name:>9}" for name in (*(f"p{p}" for p in PERCENTILES), "max"))
    lines = [f"  {'latency':<24}{head}"]
    for name, histogram in rows:
        values = (*(histogram.percentile(p) for p in PERCENTILES), histogram.max_s)
        shown = (format_duration(value) if histogram.count else "-" for value in values)
        lines.append(f"    {name:<22}" + "".join(f"{text:>9}" for text in shown))
    return lines


def _check_lines(result: Result) -> list[str]:
    checks: list[tuple[bool, str]] = []
    for identity in result.identities:
        total, *parts = (f"{name} {value}" for name, value in (identity.total, *identity.parts))
        checks.append((identity.holds, f"{total} = {' + '.join(parts)}"))
    if result.predicted is not None:
        succeeded, dead = result.predicted
        foretold = f"foretold by seed {result.plan.seed}: succeeded {succeeded}, dead-lettered {dead}"
        checks.append((result.as_predicted is True, foretold))
    if result.fleet is not None:
        checks.append(_none_lost(result))
    heads = ("check", *("" for _ in checks[1:]))
    return [
        f"  {head:<6}{'ok    ' if holds else 'FAILED'}  {text}"
        for head, (holds, text) in zip(heads, checks, strict=True)
    ]


def _none_lost(result: Result) -> tuple[bool, str]:
    """What the third sum means: as many jobs have ended as there were, each once."""
    third = result.identities[2]
    short = third.total[1] - sum(value for _, value in third.parts)
    lost, twice = max(0, short), max(0, -short)
    is_left = result.open > 0 and not result.stopped
    left = f", left open {result.open}" if result.open else ""
    return not short and not is_left, f"jobs lost {lost}, ended twice {twice}{left}"


def _dead_lines(result: Result) -> list[str]:
    if not result.dead_lettered:
        return []
    pruned = f", {result.dead_pruned} of them pruned (--keep-dead)" if result.dead_pruned else ""
    if result.fleet is not None and result.fleet.dead_by_crash:
        pruned += f", {result.fleet.dead_by_crash} of them lost with their process at the last attempt"
    lines = [f"  {_many(result.dead_lettered, 'dead letter')}{pruned}"]
    lines.extend(
        f"    #{letter.id}, {_many(letter.attempts, 'attempt')}, {visible(letter.error)}"
        for letter in result.dead_letters
    )
    more = result.dead_kept - len(result.dead_letters)
    return [*lines, f"    and {more} more"] if more else lines


def _next_lines(result: Result, given: Mapping[str, str]) -> list[str]:
    """What to run next, and the command for it, which a shell can take as it is."""
    plan = result.plan
    if result.stopped:
        what, changes = "the same failures, to the end this time", {}
    elif plan.fail_rate < 0.5:
        what, changes = "more dead letters", {"--fail-rate": "0.9", "--max-attempts": "3"}
    else:
        what, changes = "an open loop, less room", {"--capacity": "16", "--rate": "500"}
    options = {"--seed": str(plan.seed), **given, **changes}
    if "--url" in options:
        options["--url"] = masked(options["--url"])
    words = [f"{name} {shlex.quote(value)}" for name, value in options.items()]
    command = textwrap.wrap(
        " ".join(["ulak demo", *words]), _COMMAND_COLUMNS, break_long_words=False, break_on_hyphens=False
    )
    return [f"  next: {what}", "    " + " \\\n      ".join(command)]


def as_json(result: Result) -> str:
    """Everything, as one JSON object on one line. Durations are in seconds."""
    r = result
    return json.dumps(
        {
            "settings": _settings(r.plan),
            "seed": r.plan.seed,
            "stopped": r.stopped,
            **{name: getattr(r, name) for name in _NUMBERS},
            **_of_fleet(r),
            "elapsed_s": r.elapsed_s,
            "jobs_per_s": _rate(r.succeeded + r.dead_lettered, r.elapsed_s),
            "attempts_per_s": _rate(r.processed, r.elapsed_s),
            "producer_blocked_s": r.blocked_s,
            "producer_blocked_share": _rate(r.blocked_s, r.producing_s),
            "latency_s": r.latency
            and {
                field.name: _percentiles(getattr(r.latency, field.name))
                for field in dataclasses.fields(r.latency)
            },
            "identities": [_identity(identity) for identity in r.identities],
            "identities_hold": r.holds,
            "predicted": r.predicted and dict(zip(("succeeded", "dead_lettered"), r.predicted, strict=True)),
            "as_predicted": r.as_predicted,
            "dead_letters": [dataclasses.asdict(letter) for letter in r.dead_letters],
            "peak_rss_bytes": r.peak_rss_bytes,
            "versions": {
                "ulak": __version__,
                "python": platform.python_version(),
                "system": platform.system(),
            },
        }
    )


def _settings(plan: Plan) -> dict[str, object]:
    settings = dataclasses.asdict(plan) | {"url": masked(plan.url)}
    if plan.processes is None:
        del settings["processes"], settings["crash_rate"]
    return settings


def _of_fleet(result: Result) -> dict[str, object]:
    if result.fleet is None:
        return {}
    fleet = dataclasses.asdict(result.fleet)
    return {"kills": fleet.pop("kills"), "redeliveries": result.reclaimed, "processes": fleet}


_NUMBERS = (
    *("enqueued", "processed", "succeeded", "failed", "retries", "dead_lettered"),
    *("reclaimed", "stale", "rejected", "open", "peak_open", "dead_kept", "dead_pruned"),
)


def _percentiles(histogram: Histogram) -> dict[str, float]:
    return {
        "count": histogram.count,
        **{f"p{p}": histogram.percentile(p) for p in PERCENTILES},
        "max": histogram.max_s,
        "mean": histogram.mean_s,
    }


def _identity(identity: Identity) -> dict[str, object]:
    names, values = zip(identity.total, *identity.parts, strict=True)
    return {
        "identity": f"{names[0]} = {' + '.join(names[1:])}",
        "values": f"{values[0]} = {' + '.join(map(str, values[1:]))}",
        "holds": identity.holds,
    }


def _many(number: int, noun: str) -> str:
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"


def _rate(number: float, per: float) -> float:
    return number / per if per else 0.0
