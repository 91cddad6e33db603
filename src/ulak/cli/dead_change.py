"""`ulak dead retry` and `ulak dead drop`: what becomes of dead letters, a few first, or slowly."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence

from ulak.cli.dead_groups import is_fingerprint, named_by
from ulak.cli.inspect import ID_MAX
from ulak.cli.inspect_change import (
    RETRY,
    RM,
    Deed,
    Forecast,
    Wish,
    foretell,
    tell_changed,
    tell_forecast,
)
from ulak.cli.inspect_open import Missing, finding, opened
from ulak.cli.inspect_table import age, many
from ulak.cli.output import say
from ulak.clock import pause
from ulak.core.job import State
from ulak.core.store import Changed, Refusal, Store
from ulak.errors import ConfigError

AT_ONCE_S = 0.1
"""How long the steps are by which a rate is kept."""

_DEAD_ONLY = "not dead"
DEAD_RETRY = RETRY._replace(states=(State.DEAD,), wrong=_DEAD_ONLY)
DEAD_DROP = RM._replace(states=(State.DEAD,), wrong=_DEAD_ONLY)


def run_retry(args: argparse.Namespace) -> int:
    """Have them run again if --yes is given; the statuses are those of `ulak retry`."""
    return finding(lambda _: _run(args, DEAD_RETRY, first=args.first, rate=args.rate), args)


def run_drop(args: argparse.Namespace) -> int:
    """Remove them if --yes is given; the statuses are those of `ulak rm`."""
    return finding(lambda _: _run(args, DEAD_DROP), args)


def _run(args: argparse.Namespace, deed: Deed, *, first: int | None = None, rate: float | None = None) -> int:
    for target in args.targets:
        if not (is_fingerprint(target) or _is_id(target)):
            raise ConfigError(f"{target[:40]!r} is neither a fingerprint nor an id\n  see ulak dead ls")
    with opened(args) as edge:
        store, now_at = edge.store, edge.clock.calendar()
        ids, unknown = named_by(store, args.targets, now_at)
        if unknown:
            raise Missing(f"there is no dead job of {unknown[0]}; ulak dead ls tells what there is")
        ids = ids[:first]
        if not args.yes:
            forecast: Forecast = foretell(store, Wish(tuple(ids)), deed, now_at)
            return tell_forecast(forecast, deed, as_json=args.json)
        if rate is not None and len(ids) > rate and not args.json:
            takes = f"{many(len(ids), 'job')} at {rate:g}/s take about {age(len(ids) / rate)}"
            say(f"{takes}; if this is stopped, the others stay dead", to=sys.stderr)
        changed = carry_out(store, ids, deed, rate=rate)
    return tell_changed(changed, deed, (), as_json=args.json)


def carry_out(store: Store, ids: Sequence[int], deed: Deed, *, rate: float | None = None) -> Changed:
    """Do it to those that are dead; at most `rate` per second, if one is given."""
    at_once = len(ids) if rate is None else max(1, int(rate * AT_ONCE_S))
    done: list[int] = []
    refused: dict[Refusal, list[int]] = {}
    for start in range(0, len(ids), max(1, at_once)):
        if start and rate is not None:
            pause(at_once / rate)
        # Somebody else may have brought one back since they were looked up.
        changed = store.amend(ids[start : start + at_once], deed.act, states=frozenset(deed.states))
        done += changed.done
        for reason, jobs in changed.refused.items():
            refused.setdefault(reason, []).extend(jobs)
    return Changed(tuple(done), {reason: tuple(jobs) for reason, jobs in refused.items()})


def _is_id(word: str) -> bool:
    # Python refuses to read very many digits.
    return word.isdecimal() and len(word) <= len(str(ID_MAX)) and 1 <= int(word) <= ID_MAX
