"""What a process owes its store: what was done for somebody who does not know, and is to be undone.

The answer to a claim may be lost with its connection, or its caller be struck before it has it. What it has
leased then names this process, which lives and does not know of it: nobody runs it, nobody renews it. So each
run of a claim has a number, which stands in the rows that it leases; those of a claim whose answer was lost
are looked for and handed back unspent, and no others.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Sequence
from typing import Any, Protocol

import msgspec

from ulak.clock import MACHINE
from ulak.core import rules
from ulak.errors import UlakError
from ulak.storage.helper import Helper
from ulak.storage.postgres.asks import Execute, Scene, Step
from ulak.storage.postgres.ledger import Ledger
from ulak.storage.postgres.records import LOOK_COLUMNS, QUEUE_COLUMNS, job_of
from ulak.storage.postgres.settles import settle_with_care
from ulak.storage.stored import JobRow, Leases, QueueRow

AGAIN_S = 0.2
"""How long to rest between two tries."""

DOUBT_S = 60.0
"""So long a claim is looked for at most, while the server's process that worked at it seems to be there."""

Make = Callable[[Scene], Step[Any]]

_IS_THERE = "SELECT 1 FROM pg_stat_activity WHERE pid = %s::int"
_QUEUE_WIDTH = len(QUEUE_COLUMNS.split(", "))
_CLAIMED = (
    f"SELECT {', '.join(f'q.{name}' for name in QUEUE_COLUMNS.split(', '))}, j.* "
    "FROM unnest(%(queues)s::text[]) AS named (name) JOIN queues q ON q.name = named.name CROSS JOIN LATERAL "
    f"(SELECT {LOOK_COLUMNS} FROM jobs WHERE queue = q.id AND state = 2 AND claim = %(claim)s::bigint) AS j"
)


def hand_back(queues: Sequence[str], claim: int, backend: int | None, scene: Scene) -> Step[bool]:
    """Hand back what a claim has leased. False: nothing, and it may still come to it.

    backend: the server's process that may be at work on it, if any.
    """
    # First: what it commits after this look, the next one sees.
    is_there = [] if backend is None else (yield Execute(_IS_THERE, (backend,), alone=True))
    rows = yield Execute(_CLAIMED, {"queues": list(dict.fromkeys(queues)), "claim": claim}, alone=True)
    make, settlements = Leases(scene.uid, scene.epoch), []
    for row in rows:
        job: JobRow = job_of(row[_QUEUE_WIDTH:])
        settlements += [
            (lease, rules.give_back()) for lease in make.of(QueueRow(*row[:_QUEUE_WIDTH]), [job], ())
        ]
    if settlements:
        yield from settle_with_care(Ledger(scene), settlements)
    return bool(settlements) or not is_there


class Runner(Protocol):
    """Runs a step in a transaction."""

    def __call__(self, make: Make, *, repeats: bool = False) -> Any:  # noqa: ANN401 - what the step returns
        """What it returns."""


class Debt(msgspec.Struct, frozen=True, eq=False):
    """make: a step that may be run twice; where it answers False, it is run again until `until`."""

    make: Make
    until: float


class Debts:
    """What is owed, and the thread that sees to it, while there is anything."""

    def __init__(self, run: Runner) -> None:
        self._run = run
        self._owed: list[Debt] = []
        self._is_closing = threading.Event()
        self._helper = Helper("ulak-debts")

    def owe(self, make: Make) -> None:
        """Have this step run soon, and again until it was."""
        self._owed.append(Debt(make, MACHINE.interval() + DOUBT_S))
        # Where the system has no more threads, the next one may get one, or the end sees to it.
        with contextlib.suppress(RuntimeError):
            self._helper.ask(self._pay_all)

    def _pay_all(self) -> None:
        while self._owed and not self._is_closing.is_set():
            self._pay()
            if self._owed:
                self._is_closing.wait(AGAIN_S)

    def _pay(self) -> None:
        for debt in list(self._owed):
            try:
                is_paid = self._run(debt.make, repeats=True) is not False
            except UlakError:
                # The others would fare no better now; next time they come first.
                self._owed.remove(debt)
                self._owed.append(debt)
                return
            if is_paid or MACHINE.interval() > debt.until:
                self._owed.remove(debt)

    def close(self) -> None:
        """Try once more, and let the rest be: others find it once its leases end."""
        self._is_closing.set()
        self._helper.close()
        if self._owed:
            self._pay()
