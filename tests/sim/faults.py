"""What may go wrong in a simulation, how often, and how often it really did."""

from __future__ import annotations

import random
from collections import Counter

import msgspec

from ulak.errors import StorageBusy, StorageFull, StorageUnavailable, UlakError


class Rates(msgspec.Struct, frozen=True):
    """How often each fault strikes.

    Per call of a store: before (an error, nothing done), busy (likewise, and the caller knows), after (done,
    and an error in place of the answer), twice (done two times, one answer), slow (the question arrives
    late), late (the answer does).
    Per step: freeze (an actor), stop (a home with all its actors), kill (an actor), crash (a home), turn (the
    calendar clock), outage (of the store, for everybody), deaf (a home hears no wake-ups).
    """

    before: float = 0.0
    busy: float = 0.0
    after: float = 0.0
    twice: float = 0.0
    slow: float = 0.0
    late: float = 0.0
    freeze: float = 0.0
    stop: float = 0.0
    kill: float = 0.0
    crash: float = 0.0
    turn: float = 0.0
    outage: float = 0.0
    deaf: float = 0.0


CALM = Rates()
DEPLOYS = ("deploys", "deploys under fire")
"""Where pools are processes of `ulak work`, which are stopped and started again and again."""

PROFILES: dict[str, Rates] = {
    "calm": CALM,
    "deploys": CALM,
    "deploys under fire": Rates(
        before=0.01,
        after=0.01,
        slow=0.01,
        late=0.01,
        freeze=0.004,
        stop=0.003,
        kill=0.002,
        crash=0.004,
        outage=0.0015,
        deaf=0.002,
    ),
    "stalls": Rates(freeze=0.012, stop=0.004, kill=0.006),
    "errors": Rates(
        before=0.02, busy=0.01, after=0.03, twice=0.03, slow=0.02, late=0.02, outage=0.002, kill=0.003
    ),
    "clock": Rates(turn=0.02, freeze=0.004),
    "crashes": Rates(crash=0.006, stop=0.004, kill=0.004, slow=0.03, late=0.03, deaf=0.004),
    "all": Rates(
        before=0.01,
        busy=0.005,
        after=0.015,
        twice=0.015,
        slow=0.01,
        late=0.01,
        freeze=0.006,
        stop=0.002,
        kill=0.003,
        crash=0.003,
        turn=0.006,
        outage=0.001,
        deaf=0.002,
    ),
}

# These may take a wake-up along: whoever was woken does not look, or nobody is told.
LOSE_WAKEUPS = frozenset({"before", "busy", "after", "twice", "outage", "kill", "crash", "deaf"})

PER_CALL = ("before", "busy", "after", "twice", "slow", "late")
PER_STEP = ("freeze", "stop", "kill", "crash", "turn", "outage", "deaf")


class Faults:
    """Draws faults from a source of its own, and counts those that struck.

    outage_until: until then the store answers nobody. lost_at: when a wake-up may last have been lost.
    """

    def __init__(self, rng: random.Random, rates: Rates) -> None:
        self.rng = rng
        self.rates = rates
        self.is_on = True
        self.struck: Counter[str] = Counter()
        self.outage_until = self.lost_at = 0.0

    @property
    def is_calm(self) -> bool:
        """Whether nothing ever goes wrong in this run."""
        return self.rates == CALM

    def strikes(self, fault: str, now: float) -> None:
        """Count a fault that strikes."""
        self.struck[fault] += 1
        if fault in LOSE_WAKEUPS:
            self.lost_at = max(self.lost_at, now)

    def of_call(self, now: float) -> str:
        """The fault that strikes this call; "" for none."""
        if not self.is_on or self.is_calm:
            return ""
        if now < self.outage_until:
            return "outage"
        return self._drawn(PER_CALL)

    def of_step(self) -> str:
        """The fault that strikes now, whoever is on turn; "" for none."""
        return self._drawn(PER_STEP) if self.is_on and not self.is_calm else ""

    def _drawn(self, names: tuple[str, ...]) -> str:
        left = self.rng.random()
        for name in names:
            left -= getattr(self.rates, name)
            if left < 0:
                return name
        return ""

    def error(self, fault: str) -> UlakError:
        """What the caller is told in place of an answer."""
        if fault == "busy":
            kind = self.rng.choice((StorageBusy, StorageFull))
            return kind("simulated: the store refused, and nothing was changed")
        return StorageUnavailable("simulated: the store did not answer")

    def pause_s(self) -> float:
        """How long something is held up: mostly shorter than a lease, sometimes longer than any."""
        return self.rng.choice((0.01, 0.05, 0.2, 0.5, 1.0, 2.0, 4.0, 8.0)) * self.rng.uniform(0.5, 1.0)
