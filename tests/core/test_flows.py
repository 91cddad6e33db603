"""The flows but enqueue, driven by hand: the order of their asks, and what they do at each answer."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.core.make import lease
from tests.core.stage import Script, Stage, call
from ulak.core import flows
from ulak.core.backoff import Backoff
from ulak.core.flows import Call, Do, Draw, Flow, NewSignal, Now, Sleep
from ulak.core.job import Cause, Counts, Dead, Done, Failure, Lease, Outcome, Retry, State
from ulak.core.store import Filter, Settings, Store, Until
from ulak.errors import StorageBusy

QUEUE = "mail"
TIMEOUT_S = 5.0
QUEUES = call("queues")


# Asking


def test_each_ask_carries_the_operation_or_the_wish_and_hands_its_answer_back() -> None:
    stage = Stage()
    assert stage.play(flows.ask(Store.get, [1]), [(call("get", [1]), [None])]) == [None]
    assert stage.play(
        flows.ask(Store.scan, Filter(), after=3), [(call("scan", Filter(), after=3), ["job"])]
    ) == ["job"]
    assert stage.play(flows.now(), [(Now(), 4.5)]) == 4.5
    assert stage.play(flows.draw(), [(Draw(), 0.25)]) == 0.25
    assert stage.play(flows.new_signal(), [(NewSignal(), stage.signal)]) is stage.signal
    assert stage.play(flows.sleep(stage.signal, 2.0), [(Sleep(stage.signal, 2.0), True)]) is None


def test_an_ask_to_call_a_foreign_function_is_a_value_too() -> None:
    assert Do(print) == Do(print)


@pytest.mark.parametrize(
    ("limits_s", "shortest_s"),
    [
        ((), None),
        ((None,), None),
        ((None, None), None),
        ((3.0,), 3.0),
        ((None, 3.0), 3.0),
        ((3.0, None, 2.0), 2.0),
        ((0.0, None, 2.0), 0.0),
    ],
)
def test_the_least_of_optional_limits(limits_s: tuple[float | None, ...], shortest_s: float | None) -> None:
    assert flows.least(*limits_s) == shortest_s


@pytest.mark.parametrize(("answers", "first"), [([], None), ([5], 5), ([5, 6], 5), ([0, 6], 0)])
def test_the_first_of_what_a_flow_answers_if_there_is_any(answers: list[int], first: int | None) -> None:
    answer = Stage().play(flows.first(flows.ask(Store.get, [1])), [(call("get", [1]), answers)])
    assert (answer, type(answer)) == (first, type(first))


# Deliver

ENDED = call("ended", [QUEUE], 100)
CLAIM = call("claim", [QUEUE], 2, worker="w1", lease_s=30.0)
HORIZON = call("horizon", [QUEUE])
COUNTS = call("counts", [QUEUE])
LOOK: Script = [(ENDED, []), (CLAIM, [])]
TAKEN = [lease(id=1), lease(id=2)]


def deliver(stage: Stage, timeout_s: float | None) -> Flow[list[Lease]]:
    return flows.deliver(stage, QUEUE, 2, worker="w1", lease_s=30.0, timeout_s=timeout_s)


def finds_nothing(stage: Stage) -> Script:
    """A deliver looks, finds nothing, stands in its lines at time 100, and looks once more."""
    return [
        *LOOK,
        (Now(), 100.0),
        (NewSignal(), stage.signal),
        *[
            (call("line", until, QUEUE), stage.lines[until])
            for until in (Until.READY, Until.DUE, Until.DRAINED)
        ],
        "join ready",
        "join due",
        "join drained",
        "clear",
        *LOOK,
    ]


LEAVES = ("leave ready", "leave due", "leave drained")


@pytest.mark.parametrize("timeout_s", [None, 0.0, 5.0])
@pytest.mark.parametrize("finished", [False, True])
def test_deliver_with_work_takes_it_and_does_not_wait(timeout_s: float | None, finished: bool) -> None:
    stage = Stage(finished=finished)
    assert stage.play(deliver(stage, timeout_s), [(ENDED, []), (CLAIM, TAKEN)]) == TAKEN


@pytest.mark.parametrize("finished", [False, True])
def test_deliver_with_a_timeout_of_zero_looks_once(finished: bool) -> None:
    stage = Stage(finished=finished)
    assert stage.play(deliver(stage, 0.0), LOOK) == []


def test_deliver_joins_its_lines_then_looks_again_then_sleeps() -> None:
    stage = Stage()
    script: Script = [
        *finds_nothing(stage),
        (Now(), 100.0),
        (HORIZON, None),
        (Sleep(stage.signal, 1.0), None),
        "clear",
        (ENDED, []),
        (CLAIM, TAKEN),
        *LEAVES,
    ]
    assert stage.play(deliver(stage, TIMEOUT_S), script) == TAKEN


def test_work_that_came_between_the_first_look_and_joining_is_taken_without_a_sleep() -> None:
    stage = Stage()
    script: Script = [*finds_nothing(stage)[:-1], (CLAIM, TAKEN), *LEAVES]
    assert stage.play(deliver(stage, None), script) == TAKEN


@pytest.mark.parametrize(
    ("left_s", "horizon_s", "sleep_s"),
    [
        (4.0, None, 1.0),
        (0.25, None, 0.25),
        (4.0, 0.5, 0.5),
        (0.25, 0.5, 0.25),
        (4.0, 60.0, 1.0),
        (4.0, 0.0, 0.0),
    ],
)
def test_deliver_sleeps_to_the_first_of_its_timeout_the_horizon_and_one_second(
    left_s: float, horizon_s: float | None, sleep_s: float
) -> None:
    stage = Stage()
    script: Script = [
        *finds_nothing(stage),
        (Now(), 105.0 - left_s),
        (HORIZON, horizon_s),
        (Sleep(stage.signal, sleep_s), None),
        "clear",
        (ENDED, []),
        (CLAIM, TAKEN),
        *LEAVES,
    ]
    assert stage.play(deliver(stage, TIMEOUT_S), script) == TAKEN


def test_deliver_gives_up_after_a_last_look_when_time_is_over() -> None:
    stage = Stage()
    script: Script = [
        *finds_nothing(stage),
        (Now(), 104.5),
        (HORIZON, None),
        (Sleep(stage.signal, 0.5), None),
        "clear",
        *LOOK,
        (Now(), 105.0),
        *LEAVES,
    ]
    assert stage.play(deliver(stage, TIMEOUT_S), script) == []


def test_deliver_without_a_limit_asks_for_no_more_time_and_goes_on() -> None:
    stage = Stage()
    script: Script = [
        *finds_nothing(stage),
        *[(HORIZON, 7.0), (Sleep(stage.signal, 1.0), None), "clear", *LOOK] * 3,
        (HORIZON, 0.5),
        (Sleep(stage.signal, 0.5), None),
        "clear",
        (ENDED, []),
        (CLAIM, TAKEN),
        *LEAVES,
    ]
    assert stage.play(deliver(stage, None), script) == TAKEN


@pytest.mark.parametrize("timeout_s", [None, 5.0])
def test_deliver_ends_when_all_producers_have_finished_and_nothing_is_open(timeout_s: float | None) -> None:
    stage = Stage(finished=True)
    script: Script = [
        *finds_nothing(stage),
        (COUNTS, {QUEUE: Counts(acked=9)}),
        (QUEUES, {QUEUE: Settings()}),
        *LEAVES,
    ]
    assert stage.play(deliver(stage, timeout_s), script) == []


def test_deliver_goes_on_while_another_holds_the_last_job() -> None:
    stage = Stage(finished=True)
    script: Script = [
        *finds_nothing(stage),
        (COUNTS, {QUEUE: Counts(leased=1)}),
        (QUEUES, {QUEUE: Settings()}),
        (HORIZON, 20.0),
        (Sleep(stage.signal, 1.0), None),
        "clear",
        *LOOK,
        (COUNTS, {QUEUE: Counts(acked=1)}),
        (QUEUES, {QUEUE: Settings()}),
        *LEAVES,
    ]
    assert stage.play(deliver(stage, None), script) == []


def test_a_waiting_deliver_ends_when_the_last_producer_finishes() -> None:
    stage = Stage()
    script: Script = [
        *finds_nothing(stage),
        (HORIZON, None),
        (Sleep(stage.signal, 1.0), stage.finish),
        "clear",
        *LOOK,
        (COUNTS, {QUEUE: Counts()}),
        (QUEUES, {QUEUE: Settings()}),
        *LEAVES,
    ]
    assert stage.play(deliver(stage, None), script) == []


def test_deliver_reclaims_ended_leases_before_it_claims() -> None:
    stage = Stage()
    lost = lease(id=1)
    script: Script = [
        (ENDED, [lost]),
        (Draw(), 0.5),
        (call("settle", [(lost, Retry(cause=Cause.LOST))]), [State.READY]),
        (ENDED, []),
        (CLAIM, TAKEN),
    ]
    assert stage.play(deliver(stage, 0.0), script) == TAKEN


@pytest.mark.parametrize("error", [StorageBusy("held"), KeyboardInterrupt()], ids=repr)
@pytest.mark.parametrize("where", ["look", "horizon", "sleep"])
def test_whatever_ends_a_waiting_deliver_takes_it_out_of_its_lines(where: str, error: BaseException) -> None:
    stage = Stage()
    waits: dict[str, Script] = {
        "look": [*finds_nothing(stage)[:-1], (CLAIM, error)],
        "horizon": [*finds_nothing(stage), (HORIZON, error)],
        "sleep": [*finds_nothing(stage), (HORIZON, None), (Sleep(stage.signal, 1.0), error)],
    }
    with pytest.raises(type(error)):
        stage.play(deliver(stage, None), [*waits[where], *LEAVES])


# Reclaim, crash, release


def lost_batch(first_id: int, size: int, *, crashed: bool, answers: list[Any]) -> Script:
    """Leases without a stored policy are drawn for one by one and settled in one step."""
    leases = [lease(id=first_id + i) for i in range(size)]
    verdict = Retry(cause=Cause.LOST, crashed=crashed)
    return [*[(Draw(), 0.5)] * size, (call("settle", [(item, verdict) for item in leases]), answers)]


def test_reclaim_goes_on_in_batches_until_no_lease_has_ended() -> None:
    stage = Stage()
    script: Script = [
        (ENDED, [lease(id=i) for i in range(1, 101)]),
        *lost_batch(1, 100, crashed=False, answers=[State.READY] * 100),
        (ENDED, [lease(id=i) for i in range(101, 104)]),
        *lost_batch(101, 3, crashed=False, answers=[State.READY, Outcome.STALE, State.DEAD]),
        (ENDED, []),
    ]
    assert stage.play(flows.reclaim([QUEUE]), script) == 102
    assert stage.stale == 0


def test_each_end_is_noted_as_soon_as_it_is_stored_and_those_of_others_are_not() -> None:
    stage, noted = Stage(), []
    flow = flows.reclaim([QUEUE], lambda of, verdict, answer: noted.append((of.id, verdict, answer)))
    answers = [State.READY, Outcome.STALE, State.CANCELLED]
    fails: Script = [
        (ENDED, [lease(id=i) for i in (1, 2, 3)]),
        *lost_batch(1, 3, crashed=False, answers=answers),
        (ENDED, StorageBusy("held")),
    ]
    with pytest.raises(StorageBusy):
        stage.play(flow, fails)
    verdict = Retry(cause=Cause.LOST)
    assert noted == [(1, verdict, State.READY), (3, verdict, State.CANCELLED)]


def test_reclaim_names_all_its_queues() -> None:
    stage = Stage()
    assert stage.play(flows.reclaim(["a", "b"]), [(call("ended", ["a", "b"], 100), [])]) == 0


def test_reclaim_uses_the_stored_policy_of_each_job_with_a_draw_of_its_own() -> None:
    stage = Stage()
    policy = Backoff(base=4.0, cap=100.0)
    leases = [
        lease(id=1, attempt=1, backoff=policy),
        lease(id=2, attempt=2, backoff=policy),
        lease(id=3, attempt=2),
        lease(id=4, attempt=5, backoff=policy),
    ]
    settlements = [
        (leases[0], Retry(delay_s=2.0, cause=Cause.LOST)),
        (leases[1], Retry(delay_s=6.0, cause=Cause.LOST)),
        (leases[2], Retry(cause=Cause.LOST)),
        (leases[3], Dead(cause=Cause.LOST)),
    ]
    script: Script = [
        (ENDED, leases),
        *[(Draw(), u) for u in (0.5, 0.75, 0.5, 0.5)],
        (call("settle", settlements), [State.SCHEDULED, State.SCHEDULED, State.READY, State.DEAD]),
        (ENDED, []),
    ]
    assert stage.play(flows.reclaim([QUEUE]), script) == 4


def test_a_store_error_in_one_batch_comes_out_and_the_next_call_goes_on() -> None:
    stage = Stage()
    fails: Script = [
        (ENDED, [lease(id=1)]),
        (Draw(), 0.5),
        (call("settle", [(lease(id=1), Retry(cause=Cause.LOST))]), StorageBusy("held")),
    ]
    with pytest.raises(StorageBusy):
        stage.play(flows.reclaim([QUEUE]), fails)
    again: Script = [
        (ENDED, [lease(id=1)]),
        *lost_batch(1, 1, crashed=False, answers=[State.READY]),
        (ENDED, []),
    ]
    assert stage.play(flows.reclaim([QUEUE]), again) == 1


def leased(after: int, **worker: str) -> Call:
    return call("leased", QUEUE, **worker, after=after, limit=1_000)


def test_crash_reclaims_every_lease_page_by_page_whatever_its_deadline() -> None:
    stage = Stage()
    script: Script = [
        (leased(0), [lease(id=i, crashes=0) for i in range(1, 101)]),
        *[(Draw(), 0.5)] * 100,
        (
            call(
                "settle",
                [(lease(id=i, crashes=0), Retry(cause=Cause.LOST, crashed=True)) for i in range(1, 101)],
            ),
            [State.READY] * 100,
        ),
        (leased(100), [lease(id=140)]),
        *lost_batch(140, 1, crashed=True, answers=[Outcome.STALE]),
        (leased(140), []),
    ]
    noted: list[int] = []
    assert stage.play(flows.crash(QUEUE, lambda of, *_: noted.append(of.id)), script) == 100
    assert noted == list(range(1, 101))


def test_crash_without_leases_settles_nothing() -> None:
    stage = Stage()
    assert stage.play(flows.crash(QUEUE), [(leased(0), [])]) == 0


@pytest.mark.parametrize("cause", [Cause.RELEASE, Cause.SHUTDOWN])
def test_release_all_hands_back_unspent_what_this_worker_holds(cause: Cause) -> None:
    stage = Stage()
    pages = [[lease(id=3), lease(id=5)], [lease(id=9)]]
    unspent = Retry(cause=cause, refund=True)
    script: Script = [
        (leased(0, worker="w1"), pages[0]),
        (call("settle", [(item, unspent) for item in pages[0]]), [State.READY, Outcome.STALE]),
        (leased(5, worker="w1"), pages[1]),
        (call("settle", [(item, unspent) for item in pages[1]]), [State.CANCELLED]),
        (leased(9, worker="w1"), []),
    ]
    noted: list[tuple[Any, ...]] = []
    flow = flows.release_all(QUEUE, "w1", cause, lambda of, *said: noted.append((of.id, *said)))
    assert stage.play(flow, script) == 2
    assert noted == [(3, unspent, State.READY), (9, unspent, State.CANCELLED)]


def test_release_all_is_a_release_unless_told() -> None:
    stage = Stage()
    script: Script = [
        (leased(0, worker="w1"), [lease(id=3)]),
        (call("settle", [(lease(id=3), Retry(cause=Cause.RELEASE, refund=True))]), [State.READY]),
        (leased(3, worker="w1"), []),
    ]
    assert stage.play(flows.release_all(QUEUE, "w1"), script) == 1


# Settle, nack, extend


def test_settle_answers_ok_or_stale_per_lease_and_counts_the_stale_ones() -> None:
    stage = Stage()
    settlements = [(lease(id=i), Done()) for i in (1, 2, 3, 4)]
    answers = [State.SUCCEEDED, Outcome.STALE, State.CANCELLED, Outcome.STALE]
    assert stage.play(flows.settle(stage, settlements), [(call("settle", settlements), answers)]) == [
        Outcome.OK,
        Outcome.STALE,
        Outcome.OK,
        Outcome.STALE,
    ]
    assert stage.stale == 2


ERROR = Failure(type="ValueError", text="no such address")


@pytest.mark.parametrize(
    ("policy", "attempt", "delay_s", "verdict"),
    [
        (None, 1, None, Retry(delay_s=0.0, error=ERROR)),
        (None, 1, 9.0, Retry(delay_s=9.0, error=ERROR)),
        (Backoff(base=4, cap=10), 1, None, Retry(delay_s=1.0, error=ERROR)),
        (Backoff(base=4, cap=10), 2, None, Retry(delay_s=2.0, error=ERROR)),
        (Backoff(base=4, cap=10), 3, None, Retry(delay_s=2.5, error=ERROR)),
        (Backoff(base=4, cap=10), 1, 9.0, Retry(delay_s=9.0, error=ERROR)),
        (Backoff(base=4, cap=10), 1, 0.0, Retry(delay_s=0.0, error=ERROR)),
        (Backoff(base=4, cap=10), 5, None, Dead(error=ERROR)),
        (Backoff(base=4, cap=10), 5, 9.0, Dead(error=ERROR)),
    ],
)
def test_nack_waits_as_told_or_by_the_stored_policy_and_kills_at_the_last_attempt(
    policy: Backoff | None, attempt: int, delay_s: float | None, verdict: Retry | Dead
) -> None:
    stage = Stage()
    failing = lease(attempt=attempt, max_attempts=5, backoff=policy)
    script: Script = [(Draw(), 0.25), (call("settle", [(failing, verdict)]), [State.SCHEDULED])]
    assert stage.play(flows.nack(stage, failing, delay_s=delay_s, error=ERROR), script) is Outcome.OK
    assert stage.stale == 0


def test_a_stale_nack_is_counted() -> None:
    stage = Stage()
    script: Script = [(Draw(), 0.5), (call("settle", [(lease(), Retry())]), [Outcome.STALE])]
    assert stage.play(flows.nack(stage, lease(), delay_s=None, error=None), script) is Outcome.STALE
    assert stage.stale == 1


@pytest.mark.parametrize(
    ("answer", "outcome", "stale"),
    [(False, Outcome.OK, 0), (True, Outcome.OK, 0), (Outcome.STALE, Outcome.STALE, 1)],
    ids=["extended", "extended, cancel requested", "stale"],
)
def test_extend_answers_ok_or_stale(answer: bool | Outcome, outcome: Outcome, stale: int) -> None:
    stage = Stage()
    script: Script = [(call("extend", [lease()], 30.0), [answer])]
    assert stage.play(flows.extend(stage, lease(), 30.0), script) is outcome
    assert stage.stale == stale


# Drained


@pytest.mark.parametrize(
    ("counts", "paused", "drained"),
    [
        (Counts(), False, True),
        (Counts(acked=5, dead=5, cancelled=5, expired=5), False, True),
        (Counts(ready=1), False, False),
        (Counts(scheduled=1), False, False),
        (Counts(leased=1), False, False),
        (Counts(held=1), False, True),
        (Counts(held=1, ready=1), False, False),
        (Counts(ready=1), True, True),
        (Counts(scheduled=1), True, True),
        (Counts(leased=1), True, False),
        (Counts(held=1), True, True),
    ],
)
def test_a_queue_is_drained_when_nothing_is_left_that_could_run_here(
    counts: Counts, paused: bool, drained: bool
) -> None:
    stage = Stage()
    script: Script = [
        (COUNTS, {QUEUE: counts}),
        (QUEUES, {QUEUE: Settings(paused=paused), "other": Settings()}),
    ]
    assert stage.play(flows.is_drained([QUEUE]), script) is drained


@given(st.lists(st.booleans(), max_size=4))
def test_several_queues_are_drained_when_each_is(empty: list[bool]) -> None:
    stage = Stage()
    names = [f"q{i}" for i in range(len(empty))]
    counts = {name: Counts(ready=int(not is_empty)) for name, is_empty in zip(names, empty, strict=True)}
    script: Script = [(call("counts", names), counts), (QUEUES, {name: Settings() for name in names})]
    assert stage.play(flows.is_drained(names), script) is (False not in empty)
