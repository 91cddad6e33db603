"""What the explorer says of queues that are broken on purpose: each is found, by the law that it breaks."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec
import pytest

from tests.explore import broken
from tests.explore.explorer import Violation, explore
from tests.explore.scope import SMALL, Scope
from ulak.core import flows, rules
from ulak.core.backoff import Backoff
from ulak.core.flows import Flow
from ulak.core.job import Dead, Retry
from ulak.core.store import Store
from ulak.local import LocalQueue

THREE_ATTEMPTS = Scope("three attempts", 1, 2, 3)
TWO_ATTEMPTS = Scope("two attempts, one refund", 1, 1, 2, refunds=1)

STORES = [
    (broken.AckIgnoresTheFence, SMALL["pair"], "fence"),
    (broken.NackIgnoresTheFence, THREE_ATTEMPTS, "fence"),
    (broken.ExtendIgnoresTheFence, SMALL["lease"], "fence"),
    (broken.ReclaimIgnoresAMovedEnd, SMALL["lease"], "fence"),
    (broken.ReclaimIgnoresTheDelivery, THREE_ATTEMPTS, "fence"),
    (broken.DeliveryNotBumped, SMALL["pair"], "attempts"),
    (broken.SecondAckIsOk, SMALL["pair"], "fence"),
    (broken.LateNackBringsBack, SMALL["pair"], "refused changes nothing"),
    (broken.RefundForgotten, TWO_ATTEMPTS, "attempts"),
    (broken.LostAttemptsAreFree, SMALL["pair"], "attempts"),
    (broken.NeverDead, SMALL["pair"], "attempts"),
    (broken.DeadTooEarly, SMALL["pair"], "attempts"),
    (broken.DelayForgotten, SMALL["retry"], "landing"),
    (broken.RetryNeedsRoom, SMALL["capacity 1"], "fence"),
    (broken.OneTooMany, SMALL["capacity 1"], "bound"),
    (broken.FullTooEarly, SMALL["capacity 1"], "bound"),
    (broken.DuplicateTakesASlot, SMALL["keys"], "no phantom"),
    (broken.HeldReturnsToReady, SMALL["hold"], "landing"),
    (broken.RefusedIsForItsTask, SMALL["refuse"], "order"),
    (broken.RedriveOfHeldBeginsAnew, SMALL["hold, redrive"], "totals"),
    (broken.CancelBeatsAck, SMALL["capacity 2"], "landing"),
    (broken.Overtaking, SMALL["order"], "order"),
    (broken.PriorityForgotten, SMALL["order"], "no phantom"),
    (broken.TotalsCountedTwice, SMALL["pair"], "totals"),
    (broken.PendingTooEarly, SMALL["pair"], "conservation"),
    (broken.ReapersSeeOne, SMALL["pair"], "reapers see all"),
    (broken.PauseForgotten, SMALL["operators"], "order"),
    (broken.ReprioritiseForgotten, SMALL["operators"], "landing"),
    (broken.RedriveKeepsAttempts, SMALL["operators"], "attempts"),
]


def told(what: str, violation: Violation | None) -> Violation:
    """The violation, which must be there; its size and its trace are printed."""
    assert violation is not None, f"{what} was not found"
    print(f"{what}: found in {len(violation.trace)} steps\n{violation}")
    return violation


@pytest.mark.parametrize(("make_store", "scope", "law"), STORES, ids=[each[0].__name__ for each in STORES])
def test_a_broken_store_is_found(make_store: type[broken.Broken], scope: Scope, law: str) -> None:
    """The first promise that it was seen to break is the one it breaks."""
    violation = told(make_store.__name__, explore(scope, make_store).violation)
    assert violation.law == law, violation


def _never_dead(lease: Any, cause: Any, **options: Any) -> Retry | Dead:
    step = FAILURE(lease, cause, **options)
    return rules.give_back(cause) if isinstance(step, Dead) else step


def _one_attempt_late(lease: Any, cause: Any, **options: Any) -> Retry | Dead:
    return FAILURE(msgspec.structs.replace(lease, max_attempts=lease.max_attempts + 1), cause, **options)


def _crash_waits(lease: Any, cause: Any, **options: Any) -> Retry | Dead:
    return FAILURE(msgspec.structs.replace(lease, crashes=lease.crashes + 1), cause, **options)


def _spent(*args: Any, **options: Any) -> Retry:
    return msgspec.structs.replace(GIVE_BACK(*args, **options), refund=False)


def _leased_may_go(queues: Any) -> Flow[bool]:
    counts = yield from flows.ask(Store.counts, queues)
    return all(count.pending == 0 for count in counts.values())


def _twice(self: Backoff, failed_attempt: int, draw: float) -> float:
    return 2 * DELAY_S(self, failed_attempt, draw)


def _ignored(*_: object, **__: object) -> None: ...


FAILURE, GIVE_BACK, DELAY_S = rules.failure, rules.give_back, Backoff.delay_s

PATCHES: list[tuple[str, object, str, Callable[..., Any], Scope, str]] = [
    ("the last attempt is given back", rules, "failure", _never_dead, SMALL["pair"], "attempts"),
    ("dead one attempt late", rules, "failure", _one_attempt_late, SMALL["pair"], "no exception"),
    ("a first crash waits", rules, "failure", _crash_waits, SMALL["retry"], "landing"),
    ("refunds are forgotten", rules, "give_back", _spent, SMALL["refund"], "no exception"),
    ("workers leave too early", flows, "is_drained", _leased_may_go, SMALL["close"], "close"),
    ("backoff above its cap", Backoff, "delay_s", _twice, SMALL["retry"], "landing"),
    ("closing is ignored", LocalQueue, "finish", _ignored, SMALL["close"], "close"),
]


@pytest.mark.parametrize(
    ("what", "owner", "name", "instead", "scope", "law"), PATCHES, ids=[each[0] for each in PATCHES]
)
def test_a_broken_rule_is_found(
    monkeypatch: pytest.MonkeyPatch,
    *,
    what: str,
    owner: object,
    name: str,
    instead: Callable[..., Any],
    scope: Scope,
    law: str,
) -> None:
    """A rule or a flow that decides wrongly is found as well, since they run as they are."""
    monkeypatch.setattr(owner, name, instead)
    violation = told(what, explore(scope).violation)
    assert violation.law == law, violation
