"""The jobs of a simulation: what each asks of its queue, and what its handler does."""

from __future__ import annotations

import random
from collections.abc import Callable, Generator
from typing import TYPE_CHECKING, Any

import msgspec

from tests.sim.home import SimSignal
from tests.sim.short import PLAIN_ATTEMPTS
from ulak.context import Cancel, Context, Reject, Retry, Snooze
from ulak.core import flows
from ulak.core.backoff import Backoff
from ulak.core.flows import Handling, Sleep
from ulak.core.job import Draft, Lease
from ulak.errors import UlakError, WouldDeadlock

if TYPE_CHECKING:
    from tests.sim.stage import Stage

KINDS = {
    "fine": 40,
    "fails": 14,
    "always fails": 5,
    "retries": 6,
    "snoozes": 5,
    "rejects": 3,
    "gives up": 3,
    "children": 8,
    "long": 9,
    "stalls": 4,
    "kills its worker": 3,
    "crashes its process": 2,
    "garbled": 1,
    "strange": 2,
}
MISFIT = "misfit"
"""What its task does not take before the next deploy."""

STRANGE = "a task that no pool here knows"
CONNOISSEUR = "connoisseur"
"""The worker that knows it."""


class Script(msgspec.Struct, frozen=True):
    """What a handler does with one job. times: how often it misbehaves before it is fine."""

    kind: str
    run_s: float
    looks: int
    times: int
    after_s: float
    heeds: bool


class Maker:
    """Makes jobs, each with a payload that names it and a script for its handler."""

    def __init__(self, rng: random.Random, *, for_processes: bool) -> None:
        self.scripts: dict[str, Script] = {}
        self._kinds = {**KINDS, MISFIT: 8, "long": 25} if for_processes else KINDS
        self._rng = rng
        self._made = 0

    def draft(self, *, is_child: bool = False) -> Draft:
        """A new job."""
        rng = self._rng
        self._made += 1
        mark = f"m{self._made}"
        kind = "fine" if is_child else rng.choices(list(self._kinds), list(self._kinds.values()))[0]
        self.scripts[mark] = Script(
            kind=kind,
            run_s=rng.choice((0.0, 0.02, 0.1, 0.4)) if kind != "long" else rng.uniform(1.0, 6.0),
            looks=rng.choice((1, 2)) if kind != "long" else 4,
            times=rng.randint(1, 3),
            after_s=rng.choice((0.0, 0.1, 1.0)),
            heeds=rng.random() < 0.5,
        )
        priority = rng.choice((0, 0, 0, 5, -3))
        if kind not in ("garbled", "strange") and rng.random() < 0.35:
            return Draft(mark.encode(), "str", priority, PLAIN_ATTEMPTS)
        timing = self._timing()
        return Draft(
            payload=mark.encode(),
            # As JSON these payloads are no JSON, so nobody can read them.
            codec="json" if kind == "garbled" else "str",
            priority=priority,
            max_attempts=rng.choice((1, 2, 3, 3, 4)),
            task=STRANGE if kind == "strange" else None,
            unique_key=f"u{rng.randint(1, 3)}" if rng.random() < 0.25 else None,
            idempotency_key=f"i-{mark}" if rng.random() < 0.6 else None,
            backoff=Backoff(base=0.1, cap=2.0) if rng.random() < 0.2 else None,
            **timing,
        )

    def _timing(self) -> dict[str, float]:
        rng = self._rng
        timing: dict[str, float] = {}
        if rng.random() < 0.25:
            timing["delay_s"] = rng.choice((0.05, 0.5, 2.0, 5.0))
        if rng.random() < 0.06:
            timing["expires_s"] = rng.choice((0.2, 1.0, 4.0))
        return timing


def nap(seconds: float) -> Generator[Any, Any, None]:
    """Let time pass."""
    yield Sleep(SimSignal(), seconds)


Outcome = Callable[[], None]
"""How a handler ends: called as the user's function, it returns or raises."""


def raising(error: BaseException) -> Outcome:
    """To end by this error."""

    def end() -> None:
        raise error

    return end


def perform(stage: Stage, lease: Lease, context: Context) -> Generator[Any, Any, Outcome]:
    """Do what a job's script says; how the handler is to end."""
    script = stage.maker.scripts[lease.body.decode()]
    for _ in range(script.looks):
        yield from nap(script.run_s / script.looks)
        stage.watch.looks(lease, context)
        if context.cancelled and script.heeds:
            return raising(Cancel("as asked"))
    is_early = context.delivery <= script.times
    if script.kind == "children":
        return (yield from _enqueue_children(stage, lease.queue))
    if script.kind == "stalls" and context.delivery == 1:
        stage.trouble.stall(lease.lease_s)
        yield from nap(0.0)
    elif script.kind == MISFIT and not stage.is_calm:
        return stage.misfit
    elif script.kind == "crashes its process" and is_early:
        yield from stage.trouble.crash_here()
    elif script.kind == "kills its worker":
        return stage.die
    error = _error(script, fails=context.attempt <= script.times, is_early=is_early)
    return (lambda: None) if error is None else raising(error)


def _error(script: Script, *, fails: bool, is_early: bool) -> BaseException | None:
    """What the handler is to raise, if anything."""
    match script.kind:
        case "fails" if fails:
            return RuntimeError("as written")
        case "always fails":
            return SystemExit("as written")
        case "retries" if fails:
            return Retry(script.after_s)
        case "snoozes" if is_early:
            return Snooze(script.after_s)
        case "rejects":
            return Reject("as written")
        case "gives up":
            return Cancel("as written")
        case _:
            return None


def _enqueue_children(stage: Stage, queue: str) -> Generator[Any, Any, Outcome]:
    """Enqueue from a handler, which may not wait without a limit."""
    actor = stage.world.current
    assert actor is not None
    local, rng = actor.home.local(queue), stage.rng
    drafts = [stage.maker.draft(is_child=True)]
    before, actor.doing = actor.doing, ("enqueue", queue, len(drafts))
    try:
        if rng.random() < 0.4:
            yield from flows.try_enqueue(local, queue, drafts, handler=Handling.THIS_QUEUE)
        else:
            timeout_s = rng.choice((None, 0.2))
            yield from flows.enqueue(local, queue, drafts, timeout_s=timeout_s, handler=Handling.THIS_QUEUE)
    except UlakError as error:
        stage.seen["would deadlock"] += isinstance(error, WouldDeadlock)
        return raising(error)
    finally:
        actor.doing = before
    return lambda: None
