"""One pool's shared state, and the flows of its workers, its drain and its shutdown."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from functools import partial

from ulak import events
from ulak.context import Context
from ulak.core import flows, rules
from ulak.core.flows import LOOK_AGAIN_S, Do, Flow, ask, least
from ulak.core.job import Cause, Done, Failure, Hold, Lease, Outcome, Retry, State, Verdict
from ulak.core.store import Line, Settled, Settlement, Signal, Store, Tasks, Until
from ulak.errors import StorageBusy, StorageFull, StorageGone, StorageUnavailable
from ulak.events import Events
from ulak.local import LocalQueue
from ulak.metrics import RunTimes
from ulak.seldom import Seldom, again, in_a_line
from ulak.storage.line import WaitLine
from ulak.ways import quick_hands
from ulak.worker.execute import DONE, NO_TASK, Ending, Failed
from ulak.worker.late import fail_late
from ulak.worker.record import Recorder
from ulak.worker.report import Report, Tally
from ulak.worker.seat import Hands, Left, Seat
from ulak.worker.turns import Turns

_log = logging.getLogger("ulak")


HALT_S = 2.0
"""How long workers may take to hand back what was ended under them."""

CLAIM_S = 1.0
"""How long an end waits for claims that are under way, to hand back what they bring."""


_ROLLED_BACK = Failed(
    Cause.ERROR,
    Failure("NotCommitted", "the handler returned before it committed the transaction that finishes its job"),
)


class Crew:
    """The state of one pool, and its flows.

    local_queues: its queues, as this process sees them, in order. known: what its handler knows by now.
    has_looked: held jobs that could run here have been brought back, as far as there were any at first.
    halt: ends what still runs when time is over, where that can be done; for crews of threads.
    taking: workers take new jobs. stopped: the keeper may go too.
    """

    def __init__(
        self,
        store: Store,
        local_queues: Sequence[LocalQueue],
        *,
        worker: str,
        count: int,
        lease_s: float,
        known: Callable[[], Tasks] = lambda: NO_TASK,
        turns: Mapping[str, int] | None = None,
        told: Events | None = None,
        jobs_max: int | None = None,
        has_looked: Callable[[], bool] = lambda: True,
        halt: Callable[[], None] | None = None,
        recorder: Recorder | None = None,
    ) -> None:
        self.store = store
        self._recorder = recorder
        self.local_queues = tuple(local_queues)
        self.queues = tuple(local.name for local in local_queues)
        self.label = ",".join(self.queues)
        self._known = known
        self._tasks = known()
        self.worker = worker
        self.lease_s = lease_s
        self.seats = [Seat(number) for number in range(1, count + 1)]
        self.taking = True
        self.stopped = False
        self.gone = WaitLine(Until.DRAINED)
        self.events = told or Events()
        self.quick = None
        # Several queues have an order among them, which one short way does not know; and it does not count.
        if len(self.queues) == 1 and jobs_max is None:
            self.quick = quick_hands(store, self.local_queues[0], worker=worker, lease_s=lease_s)
        self.run_times = RunTimes()
        self.seldom = Seldom()
        self._away_since: float | None = None
        self._failed_at = 0.0
        # Why the store will not answer here any more, if that is so.
        self.store_gone: StorageGone | None = None
        self._jobs_left, self.is_spent = jobs_max, False
        self.has_looked = has_looked
        self.halt = halt
        # Jobs that workers handed back because the pool was halted.
        self._returned: list[int] = []
        self._turns = Turns(self.queues, turns)
        self._local_of = {local.name: local for local in local_queues}
        self._joinable = (lambda: store) if store.capabilities.transactions else None
        self.tally = Tally(local_queues)

    @property
    def size(self) -> int:
        """How many workers there are."""
        return sum(not seat.left for seat in self.seats)

    @property
    def runs_tasks(self) -> bool:
        """Whether it runs jobs of tasks; else it holds them."""
        return None not in self._tasks

    @property
    def finished(self) -> bool:
        """Whether producers of this process have registered, and every one has finished."""
        return any(local.finished for local in self.local_queues) and not self.awaited

    @property
    def awaited(self) -> bool:
        """Whether a registered producer has not finished yet."""
        return any(local.awaited for local in self.local_queues)

    def wake_all(self) -> None:
        """Have every worker of the process look again."""
        for local in self.local_queues:
            local.wake_all()

    # One worker

    def work(self, seat: Seat, hands: Hands) -> Flow[None]:
        """Take jobs and run them, one at a time, until the pool stops or nothing can come any more."""
        signal = yield from flows.new_signal()
        left: list[Left] | None = []
        try:
            while left is not None:
                signal.clear()
                left = yield from self._round(seat, hands, signal, left)
        finally:
            seat.is_claiming = False
            _leave(seat.standing, signal)

    def _round(self, seat: Seat, hands: Hands, signal: Signal, left: list[Left]) -> Flow[list[Left] | None]:
        """Settle what is left, take a job and run it; what is left then, None if nothing can come."""
        if self.quick is not None and self.taking and not seat.asked_to_end:
            left = yield Do(partial(hands.burst, seat, left, partial(_leave, seat.standing, signal)))
            if seat.has_more and not left:
                return []
            if not left and not self.finished and not seat.looks_closer and self.quick.is_empty():
                yield from self._rest(seat, signal)
                return []
        settlements = yield from self._settlements(left)
        taking = self.taking and not seat.asked_to_end
        # Where the short way goes, the next job is taken by it if it can be.
        goes_on = taking and seat.has_more
        limit = int(taking and not goes_on)
        seat.is_claiming |= limit > 0
        turned = yield from self._turn(seat, settlements, limit=limit)
        if turned is None:
            seat.is_claiming = False
            if self.stopped or self.store_gone is not None:
                return None
            # Not all at once, when it is back.
            yield from flows.sleep(signal, LOOK_AGAIN_S * (0.5 + (yield from flows.draw())))
            return list(settlements)
        settled, leases = turned
        self._note(settlements, settled, seat.run_s)
        seat.running = None
        if leases and self.stopped:
            # The end came between the look at `taking` and the claim: nobody renews these any more.
            return [(lease, rules.give_back(Cause.SHUTDOWN)) for lease in leases]
        seat.is_claiming = False
        if leases:
            _leave(seat.standing, signal)
            ending = yield from self._run(seat, leases[0], hands)
            return [] if ending is None else [(leases[0], ending)]
        if goes_on:
            return []
        if not taking or (yield from self.is_over()):
            return None
        seat.looks_closer = False
        yield from self._rest(seat, signal)
        return []

    def _rest(self, seat: Seat, signal: Signal) -> Flow[None]:
        """Stand in line; whoever stood there already, and so has looked since, sleeps."""
        if not (yield from self._stand(seat.standing, signal)):
            # A wake-up may be lost to an exception that strikes whoever gives it.
            yield from flows.sleep(signal, LOOK_AGAIN_S)
            seat.looks_closer = not signal.is_set()

    def _settlements(self, left: list[Left]) -> Flow[list[Settlement]]:
        """What is left to settle, with its verdicts."""
        settlements: list[Settlement] = []
        for lease, ending in left:
            if isinstance(ending, Failed):
                settlements.append((lease, ending.verdict(lease, (yield from flows.draw()))))
            else:
                settlements.append((lease, ending))
        return settlements

    def _turn(
        self, seat: Seat, settlements: list[Settlement], *, limit: int
    ) -> Flow[tuple[list[Settled], list[Lease]] | None]:
        """Settle and claim; None if the store is away. Settling the same leases again later is safe."""
        try:
            turned = yield from ask(
                Store.turn,
                settlements,
                self._turns.next(),
                limit,
                worker=self.worker,
                lease_s=self.lease_s,
                tasks=self._known(),
            )
        except (StorageUnavailable, StorageBusy, StorageFull) as error:
            yield from self.store_failed(error, f"worker {seat.number}")
            return None
        # A look that finds nothing writes nothing, and may be answered while the store cannot be written.
        if any(turned):
            yield from self.store_answered()
        return turned

    def store_failed(self, error: Exception, who: str) -> Flow[None]:
        """Say so, seldom; take no more jobs if the store will never answer again."""
        if self.store_gone is not None:
            return
        self._failed_at = now = yield from flows.now()
        self._away_since = now if self._away_since is None else self._away_since
        if isinstance(error, StorageGone):
            self.store_gone, self.taking = error, False
            for seat in self.seats:
                # What it does cannot be stored any more.
                if (running := seat.running) is not None:
                    running[1].ask_to_stop()
            _log.error("the workers of queue %s end: %s", self.label, str(error).partition("\n")[0])
            self.wake_all()
        elif (kept_back := self.seldom.may_say(type(error).__name__, now)) is not None:
            text = "%s of queue %s waits for its store: %s%s"
            _log.warning(text, who, self.label, in_a_line(error), again(kept_back))

    def store_answered(self, quiet_s: float = 0.0) -> Flow[None]:
        """It has stored something: say so, if it had failed before, but not in the last `quiet_s`."""
        if (since := self._away_since) is None or self.store_gone is not None:
            return
        now = yield from flows.now()
        if now - self._failed_at >= quiet_s:
            self._away_since = None
            self.seldom.forget()
            _log.warning("the store of queue %s answers again, after %.1f s", self.label, now - since)

    def _stand(self, standing: list[Line], signal: Signal) -> Flow[bool]:
        """Join the lines that an idle worker stands in; whether it joined one and must look again."""
        missing = [line for line in (yield from self._lines()) if line not in standing]
        for line in missing:
            line.join(signal)
        standing.extend(missing)
        return bool(missing)

    def is_over(self) -> Flow[bool]:
        """Whether every producer has finished and nothing is left that could run."""
        return self.finished and (yield from flows.is_drained(self.queues))

    def _lines(self) -> Flow[list[Line]]:
        """Where an idle worker stands: also where the end of all work is called, once that can come."""
        is_finished = self.finished
        if self.quick is not None and not is_finished:
            return [self.quick.ready]
        untils = (Until.READY, Until.DRAINED) if is_finished else (Until.READY,)
        lines: list[Line] = []
        for queue in self.queues:
            lines += yield from flows.lines_of(queue, *untils)
        return lines

    def _run(self, seat: Seat, lease: Lease, hands: Hands) -> Flow[Ending | None]:
        """Run the handler; how the delivery ended, or None if the handler has settled it itself."""
        if lease.task not in self._tasks and not self._learns(lease.task):
            return Hold()
        context = Context(lease, _store=self._joinable)
        seat.running = lease, context
        self._spend()
        if self.events.is_heard:
            self.events.tell(events.started(lease))
        ending: Ending = yield Do(lambda: hands.handle(seat, lease, context))
        if context.acked:
            (job,) = yield from ask(Store.get, [lease.id])
            if job is None or (job.state, job.delivery) == (State.SUCCEEDED, lease.delivery):
                seat.running = None
                if self._recorder is not None:
                    self._recorder.note([(lease, DONE)], [State.SUCCEEDED], seat.run_s)
                return None
            ending = ending if isinstance(ending, Failed) else _ROLLED_BACK
        if isinstance(ending, Failed) and ending.cause is Cause.LOST:
            yield from self._settle_lost(seat, ending)
            return None
        return ending

    def _learns(self, task: str | None) -> bool:
        """Whether a task was registered since this looked last."""
        self._tasks = self._known()
        return task in self._tasks

    def _settle_lost(self, seat: Seat, failed: Failed) -> Flow[None]:
        """Settle a job whose process was lost, as soon as the store answers."""
        signal = yield from flows.new_signal()
        while not self.stopped and self.store_gone is None:
            try:
                yield from self.lost(seat, failed.error)
            except (StorageUnavailable, StorageBusy, StorageFull) as error:
                yield from self.store_failed(error, f"worker {seat.number}")
                yield from flows.sleep(signal, LOOK_AGAIN_S * (0.5 + (yield from flows.draw())))
            else:
                yield from self.store_answered()
                return

    def _spend(self) -> None:
        """Count a job that begins; after the last that the pool may run, it takes no more."""
        if self._jobs_left is not None:
            self._jobs_left -= 1
            if self._jobs_left <= 0 and not self.is_spent:
                self.is_spent, self.taking = True, False
                self.wake_all()

    @property
    def is_telling(self) -> bool:
        """Whether somebody is told of each delivery, which the short way does not do."""
        return self.events.is_heard or events.is_logged(events.Succeeded)

    def finish_quickly(self, left: list[Left], draw: Callable[[], float]) -> bool:
        """Settle what is left by the store's short way; False if that does not go."""
        return all(self.end_quickly(lease, ending, draw) for lease, ending in left)

    def end_quickly(self, lease: Lease, ending: Ending, draw: Callable[[], float]) -> bool:
        """Settle one by the store's short way; False if that does not go."""
        assert self.quick is not None
        if type(ending) is Done:
            return self.quick.finish(lease, _result=ending.result) is not None
        if not isinstance(ending, Failed) or ending.cause is Cause.LOST:
            return False
        verdict = ending.verdict(lease, draw())
        state = self.quick.fail(lease, verdict) if type(verdict) is Retry else None
        if state is None:
            return False
        self._note([(lease, verdict)], [state], 0.0)
        return True

    def take_quickly(self, seat: Seat, begin: Callable[[], None]) -> tuple[Lease, Context | Verdict] | None:
        """Take a job by the store's short way, with its context, or with its verdict if it must not run."""
        assert self.quick is not None
        if not self.taking or seat.asked_to_end or (lease := self.quick.take(0)) is None:
            seat.running = None
            return None
        if seat.standing:
            begin()
        if (task := lease.work.spec.task) not in self._tasks and not self._learns(task):
            return lease, Hold()
        if self.stopped:
            return lease, rules.give_back(Cause.SHUTDOWN)
        seat.running = taken = lease, Context(lease)
        return taken

    def _note(self, settlements: Sequence[Settlement], settled: Sequence[Settled], run_s: float) -> None:
        if self._recorder is not None:
            self._recorder.note(settlements, settled, run_s)
        for (lease, verdict), answer in zip(settlements, settled, strict=True):
            if answer is Outcome.STALE:
                self._local_of[lease.queue].count_stale(1)
            elif verdict.cause is Cause.SHUTDOWN and self.halt is not None:
                self._returned.append(lease.id)
            elif answer is State.SUCCEEDED:
                self.run_times.record(lease.task, run_s)
                if not self.is_telling:
                    continue
            self.events.tell(events.settled(lease, verdict, answer, run_s))

    def tell_settled(self, lease: Lease, verdict: Verdict, answer: Settled) -> None:
        """Tell of a delivery that was settled in its worker's place."""
        self.events.tell(events.settled(lease, verdict, answer, 0.0))

    def lost(self, seat: Seat, error: Failure | None = None) -> Flow[None]:
        """Settle what a worker held that died of something else than its job, or whose process did.

        error: how that ended.
        """
        if seat.running is None:
            return
        held, _ = seat.running
        while True:
            # As it is now: a lease that was renewed since the worker took it has another end; and it may be
            # renewed once more before it is settled, by a keeper that has just begun to.
            lease = yield from self._as_it_is(held)
            if lease is None:
                break
            draw = yield from flows.draw()
            verdict = rules.failure(lease, Cause.LOST, draw=draw, error=error, crashed=True)
            settled = yield from ask(Store.settle, [(lease, verdict)])
            if settled != [Outcome.STALE]:
                self._note([(lease, verdict)], settled, seat.run_s if error else 0.0)
                break
        seat.running = None

    def _as_it_is(self, held: Lease) -> Flow[Lease | None]:
        """A lease as it is stored now; None if it has ended."""
        leases = yield from ask(Store.leased, held.queue, worker=self.worker, after=held.id - 1, limit=1)
        same = [lease for lease in leases if (lease.id, lease.delivery) == (held.id, held.delivery)]
        return same[0] if same else None

    # The end

    def left(self, timeout_s: float | None, *, claiming: bool = False) -> Flow[bool]:
        """Wait until every worker has left, for at most `timeout_s`; whether they have.

        claiming: only for those whose claim is under way.
        """

        def are_gone() -> bool:
            return all(seat.left or (claiming and not seat.is_claiming) for seat in self.seats)

        start = yield from flows.now()
        signal = yield from flows.new_signal()
        self.gone.join(signal)
        try:
            while True:
                signal.clear()
                left_s = None if timeout_s is None else start + timeout_s - (yield from flows.now())
                if are_gone() or (left_s is not None and left_s <= 0):
                    return are_gone()
                yield from flows.sleep(signal, least(left_s, LOOK_AGAIN_S))
        finally:
            self.gone.leave(signal)

    def drain(self, timeout_s: float | None, grace_s: float, hands: Hands) -> Flow[Report]:
        """Run until every registered producer has finished and nothing is left that could run, then stop.

        When time is over first, stop at once and hand back what runs.
        """
        start = yield from flows.now()
        signal = yield from flows.new_signal()
        lines: list[Line] = []
        for queue in self.queues:
            lines += yield from flows.lines_of(queue, Until.DRAINED)
        for line in lines:
            line.join(signal)
        try:
            while True:
                signal.clear()
                if not self.taking:
                    break
                # In this order: whatever the last producer enqueued is counted.
                if not self.awaited and self.has_looked() and (yield from flows.is_drained(self.queues)):
                    break
                left_s = None if timeout_s is None else start + timeout_s - (yield from flows.now())
                if left_s is not None and left_s <= 0:
                    grace_s = 0.0
                    break
                yield from flows.sleep(signal, least(left_s, LOOK_AGAIN_S))
        finally:
            _leave(lines, signal)
        return (yield from self.shutdown(grace_s, hands))

    def shutdown(self, grace_s: float, hands: Hands) -> Flow[Report]:
        """Take nothing new, let what runs finish within `grace_s`, then hand the rest back unspent."""
        self.taking = False
        self.wake_all()
        start = yield from flows.now()
        signal = yield from flows.new_signal()
        self.gone.join(signal)
        try:
            while True:
                signal.clear()
                left_s = start + grace_s - (yield from flows.now())
                # Stopped: another call has ended the pool meanwhile, or long ago.
                if self.size == 0 or left_s <= 0 or self.stopped:
                    break
                yield from flows.sleep(signal, left_s)
        finally:
            self.gone.leave(signal)
        if self.halt is not None and self.size and not self.stopped:
            # So nobody else begins what still runs here: its workers hand it back themselves.
            yield Do(self.halt)
            yield from self.left(HALT_S)
        self.stopped = True
        self.gone.ring(len(self.gone))
        self.wake_all()
        # A worker whose claim is under way hands back what that brings; the process may end right after this.
        yield from self.left(CLAIM_S, claiming=True)
        returned, self._returned = self._returned, []
        released = len(returned)
        try:
            yield from fail_late(self.seats, self.tell_settled)
            for queue in self.queues:
                released += yield from flows.release_all(
                    queue, self.worker, Cause.SHUTDOWN, self.tell_settled
                )
        finally:
            # Also when the store is away: what runs must learn that nobody waits for it.
            for seat in self.seats:
                if (running := seat.running) is not None:
                    running[1].ask_to_stop()
            hands.abandon()
        return (yield from self._report(released))

    def _report(self, released: int) -> Flow[Report]:
        # In this order: whatever the last producer enqueued is counted. One look, so it agrees with itself.
        is_awaited = self.awaited
        counts = yield from ask(Store.counts, self.queues)
        left = sum(of_queue.open for of_queue in counts.values())
        if left:
            are = "1 job is" if left == 1 else f"{left} jobs are"
            text = "the workers of queue %s stopped; %s left open there"
            _log.warning(text, self.label, are, extra={"left_open": left})
        settings = yield from ask(Store.queues)
        at_rest = [flows.is_at_rest(of_queue, settings[queue]) for queue, of_queue in counts.items()]
        return Report(
            drained=not is_awaited and all(at_rest),
            open=left,
            held=sum(of_queue.held for of_queue in counts.values()),
            paused=any(settings[queue].paused for queue in self.queues),
            released=released,
            dead=sum(of_queue.dead for of_queue in counts.values()),
        )

    def seat_left(self, seat: Seat) -> None:
        """A worker has gone for good."""
        seat.left = True
        self.gone.ring(len(self.gone))


def _leave(standing: list[Line], signal: Signal) -> None:
    for line in standing:
        line.leave(signal)
    standing.clear()
