"""What may be stored when some calls fail: one state, or several where an outcome is unknown."""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Callable, Iterable
from typing import Any, NamedTuple

from tests.faults.chronicle import Found, Shown
from tests.faults.story import LATER_S, LEASE_S, MAX_ATTEMPTS
from ulak import Lease, NewJob, Outcome, Queue, StorageBusy, StorageFull, StorageUnavailable, UlakError
from ulak.core.job import State

Maybe = Iterable[tuple[str, Shown | None]]


class Unsure(NamedTuple):
    """A settlement whose outcome is unknown, to be asked for again."""

    lease: Lease
    after: Shown


class Doubt:
    """Calls on a queue that may fail, and what each answer leaves possible.

    possible: per job, what it may be now; None is "not stored". kept: likewise, after a power loss now: what
    was surely synced, and all that may have come since. problems: answers that cannot be right.
    """

    def __init__(self) -> None:
        self.possible: dict[str, set[Shown | None]] = {}
        self.kept: dict[str, set[Shown | None]] = {}
        self.problems: list[str] = []
        self.answers: Counter[str] = Counter()
        self.leases: list[Lease] = []
        self._ids: dict[str, int] = {}
        self._unsure: list[Unsure] = []
        self._labels = (f"job-{n}" for n in itertools.count())

    def _try(self, what: str, call: Callable[[], Any], maybe: Maybe = ()) -> Any:
        """Make a call; None if it failed. maybe: what may be true afterwards if its outcome is unknown."""
        try:
            answer = call()
        except (StorageFull, StorageBusy) as error:
            self.answers[type(error).__name__] += 1
        except StorageUnavailable:
            self.answers["StorageUnavailable"] += 1
            for label, shown in maybe:
                self._add(label, shown)
        except UlakError as error:
            self.problems.append(f"{what} raised {error!r}")
        except Exception as error:  # noqa: BLE001 - none of it may reach a user
            self.problems.append(f"{what} let through {error!r}")
        else:
            self.answers["ok"] += 1
            return answer
        return None

    def _add(self, label: str, shown: Shown | None) -> None:
        self.possible.setdefault(label, {None}).add(shown)
        self.kept.setdefault(label, {None}).add(shown)

    def _is(self, label: str, shown: Shown, *, is_synced: bool = True) -> None:
        self.possible[label] = {shown}
        if is_synced:
            self.kept[label] = {shown}
        else:
            self.kept.setdefault(label, set()).add(shown)

    # Calls

    def enqueue(self, q: Queue, *, delay: float = 0.0) -> None:
        label = next(self._labels)
        new = Shown(State.SCHEDULED if delay else State.READY, 0, 0)
        job_id = self._try("enqueue", lambda: q.enqueue(label, delay=delay), [(label, new)])
        if job_id is not None:
            self._stored(label, job_id, new)

    def enqueue_many(self, q: Queue) -> None:
        labels = [next(self._labels) for _ in range(3)]
        new = Shown(State.READY, 0, 0)
        ids = self._try(
            "enqueue_many", lambda: q.enqueue_many(map(NewJob, labels)), [(label, new) for label in labels]
        )
        for label, job_id in zip(labels, ids or (), strict=False):
            self._stored(label, job_id, new)

    def _stored(self, label: str, job_id: int, new: Shown) -> None:
        if job_id in self._ids.values():
            self.problems.append(f"id {job_id} was given twice")
        self._ids[label] = job_id
        self._is(label, new)

    def deliver(self, q: Queue) -> None:
        lease = self._try("deliver", q.deliver, self._taken())
        if lease is not None:
            self.leases.append(lease)
            label, taken = str(lease.payload), Shown(State.LEASED, lease.attempt, lease.delivery)
            was = self.possible.get(label, set())
            if not {Shown(State.READY, lease.attempt - 1, lease.delivery - 1)} & was:
                self.problems.append(f"{label} was delivered as {taken}, but may be {was}")
            self._is(label, taken, is_synced=False)

    def _taken(self) -> list[tuple[str, Shown]]:
        """What a delivery of unknown outcome may have done: any ready job leased, or handed back since."""
        return [
            (label, after)
            for label, states in self.possible.items()
            for was in states
            if was is not None and was.state is State.READY
            for after in (
                Shown(State.LEASED, was.attempt + 1, was.delivery + 1),
                Shown(State.READY, was.attempt, was.delivery + 1),
            )
        ]

    def ack(self, q: Queue) -> None:
        self._settle("ack", q.ack, State.SUCCEEDED)

    def nack(self, q: Queue, delay: float | None = None) -> None:
        self._settle(
            "nack", lambda lease: q.nack(lease, delay=delay), State.SCHEDULED if delay else State.READY
        )

    def release(self, q: Queue) -> None:
        self._settle("release", q.release, State.READY, spent=0)

    def _settle(self, what: str, call: Callable[[Lease], Outcome], state: State, spent: int = 1) -> None:
        if not self.leases:
            return
        lease = self.leases.pop(0)
        label = str(lease.payload)
        if what == "nack" and lease.attempt == MAX_ATTEMPTS:
            state = State.DEAD
        after = Shown(state, lease.attempt - 1 + spent, lease.delivery)
        outcome = self._try(what, lambda: call(lease), [(label, after)])
        if outcome is None:
            self._unsure.append(Unsure(lease, after))
        elif outcome is not Outcome.OK:
            self.problems.append(
                f"{what} of {label} answered {outcome}, though it may be {self.possible[label]}"
            )
        else:
            self._is(label, after)

    def extend(self, q: Queue) -> None:
        if self.leases:
            outcome = self._try("extend", lambda: q.extend(self.leases[0], LEASE_S))
            if outcome not in (None, Outcome.OK):
                self.problems.append(f"extend answered {outcome}")

    def redrive(self, q: Queue) -> None:
        self._act("redrive", q.redrive, State.DEAD, State.READY)

    def cancel(self, q: Queue) -> None:
        self._act("cancel", q.cancel, State.SCHEDULED, State.CANCELLED)

    def _act(self, what: str, call: Callable[[int], Any], was: State, becomes: State) -> None:
        """An operator's act on one job that is surely in that state, if there is one."""
        for label, states in self.possible.items():
            (shown, *others) = states
            if shown is not None and shown.state is was and not others and label in self._ids:
                attempt = 0 if becomes is State.READY else shown.attempt
                after = Shown(becomes, attempt, shown.delivery)
                changed = self._try(what, lambda label=label: call(self._ids[label]), [(label, after)])  # type: ignore[misc]
                if changed is not None:
                    if not changed:
                        self.problems.append(f"{what} of {label} was refused: {changed}")
                    self._is(label, after)
                return

    def look(self, q: Queue) -> None:
        self._try("counts", q.counts)
        self._try("jobs", q.jobs)

    # The end

    def close(self, q: Queue) -> None:
        """Close the handle, which hands back its leases if it can; those it never heard of, too."""
        for label, states in list(self.possible.items()):
            for was in list(states):
                if was is not None and was.state is State.LEASED:
                    self._add(label, Shown(State.READY, was.attempt - 1, was.delivery))
        self.leases.clear()
        self._unsure.clear()
        self._try("close", q.close)

    def ask_again(self, q: Queue) -> None:
        """Settle anew what is unsure: that is promised to be safe."""
        unsure, self._unsure = self._unsure, []
        for lease, after in unsure:
            label = str(lease.payload)
            outcome = self._try("ack again", lambda lease=lease: q.ack(lease))  # type: ignore[misc]
            if outcome is Outcome.OK:
                self._is(label, Shown(State.SUCCEEDED, lease.attempt, lease.delivery))
            elif outcome is Outcome.STALE and after in self.possible[label]:
                self._is(label, after, is_synced=False)
            elif outcome is Outcome.STALE and any(
                s and s.delivery > after.delivery for s in self.possible[label]
            ):
                continue
            else:
                self.problems.append(
                    f"ack again of {label} answered {outcome}, though it may be {self.possible[label]}"
                )

    def judge(self, found: dict[str, Found], may: dict[str, set[Shown | None]]) -> list[str]:
        """What is wrong with what was found, by what may be."""
        problems = list(self.problems)
        problems += [f"{label}: nobody enqueued it" for label in found if label not in may]
        for label, states in may.items():
            is_there = found[label].shown if label in found else None
            if is_there not in states:
                problems.append(f"{label}: is {is_there}, may be {states}")
            if label in found and self._ids.get(label, found[label].id) != found[label].id:
                problems.append(f"{label}: has id {found[label].id}, its caller was told {self._ids[label]}")
        return problems


def go_through(doubt: Doubt, q: Queue, note: Callable[[], None]) -> None:
    """Make each call that a queue has, in an order in which each finds something to do; note after each."""
    calls: tuple[Callable[[Queue], None], ...] = (
        *(doubt.enqueue,) * 3,
        doubt.enqueue_many,
        *(doubt.deliver,) * 4,
        doubt.extend,
        doubt.ack,
        doubt.nack,
        doubt.release,
        lambda q: doubt.enqueue(q, delay=LATER_S),
        doubt.cancel,
        *(doubt.deliver,) * 3,
        lambda q: doubt.nack(q, delay=LATER_S),
        *(doubt.nack,) * 2,
        doubt.look,
        doubt.redrive,
        doubt.deliver,
        doubt.ack,
    )
    for call in calls:
        call(q)
        note()
