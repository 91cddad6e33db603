"""The rule book against tables written from the text of the design, never from the functions under test."""

from __future__ import annotations

from collections import Counter
from itertools import product
from typing import Any, NamedTuple

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.core.make import lease, leased_job
from ulak.core import rules
from ulak.core.backoff import Backoff
from ulak.core.job import (
    OPEN,
    Attempt,
    Cancelled,
    Cause,
    Dead,
    Done,
    Failure,
    Hold,
    Job,
    Lease,
    Retry,
    State,
    Verdict,
)
from ulak.core.rules import Event

ALMOST_1 = 1 - 2.0**-53
NOW_AT = 1_000.0
ERROR = Failure(type="ValueError", text="no such address")

# The state machine

WAITING: dict[str, str] = {"cancel": "cancelled", "expire": "expired", "claim": "leased", "delete": "gone"}
MACHINE: dict[str, dict[str, str]] = {
    "ready": {**WAITING, "edit": "ready", "reprioritise": "ready"},
    "scheduled": {**WAITING, "edit": "scheduled", "reprioritise": "scheduled"},
    "held": {**WAITING, "redrive": "ready", "edit": "held", "reprioritise": "held"},
    "leased": {
        "ack": "succeeded",
        "retry": "ready",
        "retry later": "scheduled",
        "hold": "held",
        "bury": "dead",
        "cancel": "cancelled",
        "expire": "expired",
        "reprioritise": "leased",
        "delete": "gone",
    },
    "succeeded": {"delete": "gone"},
    "dead": {"redrive": "ready", "edit": "dead", "delete": "gone"},
    "cancelled": {"redrive": "ready", "edit": "cancelled", "delete": "gone"},
    "expired": {"redrive": "ready", "edit": "expired", "delete": "gone"},
}


@pytest.mark.parametrize("event", Event)
@pytest.mark.parametrize("state", State)
def test_each_event_leads_where_the_machine_says_or_cannot_happen(state: State, event: Event) -> None:
    table = rules.TABLE[event]
    leads_to = table.get(state, "nowhere")
    expected = MACHINE[state.value].get(event.value, "nowhere")
    assert leads_to == (None if expected == "gone" else expected)


def test_the_machine_knows_all_states_and_events() -> None:
    assert set(MACHINE) == {state.value for state in State}
    assert {event for events in MACHINE.values() for event in events} == {event.value for event in Event}


# What an operator may do: freely, and with force.
OPERATOR: dict[str, tuple[str, str]] = {
    "redrive": ("held dead cancelled expired", ""),
    "cancel": ("ready scheduled held leased", ""),
    "reprioritise": ("ready scheduled held", "leased"),
    "delete": ("ready scheduled held succeeded dead cancelled expired", "leased"),
    "edit": ("ready scheduled held dead cancelled expired", ""),
}


@pytest.mark.parametrize("state", State)
@pytest.mark.parametrize("act", OPERATOR)
def test_an_operator_may_do_what_the_table_says_and_no_more(act: str, state: State) -> None:
    freely, forced = (states.split() for states in OPERATOR[act])
    assert rules.may(state, Event(act)) is (state.value in freely)
    assert rules.may(state, Event(act), force=False) is (state.value in freely)
    assert rules.may(state, Event(act), force=True) is (state.value in freely + forced)


# Where a verdict lands a job. The job is in its attempt 2 of 5, was due at 900 and has crashed once.


class Verdicts(NamedTuple):
    """A verdict and what the design says of it when nobody cancels and nothing expires."""

    verdict: Verdict
    state: str
    due_at: float | None  # None: it does not come back, and keeps the due time it had
    failed: bool
    attempt: int
    crashes: int


RETRIES: dict[str, Verdicts] = {
    f"retry delay={delay_s:g} {cause.value}{' refund' * refund}{' crashed' * crashed}": Verdicts(
        Retry(delay_s=delay_s, cause=cause, refund=refund, crashed=crashed),
        state="scheduled" if delay_s else "ready",
        due_at=1_000 + delay_s,
        failed=not refund,
        attempt={False: 2, True: 1}[refund],
        crashes={False: 1, True: 2}[crashed],
    )
    for delay_s, cause, refund, crashed in product(
        (0.0, 0.001, 60.0), (Cause.NACK, Cause.LOST), (False, True), (False, True)
    )
}
VERDICTS: dict[str, Verdicts] = {
    **RETRIES,
    "ack": Verdicts(Done(b"1"), "succeeded", None, failed=False, attempt=2, crashes=1),
    "hold": Verdicts(Hold(), "held", 1_000, failed=False, attempt=1, crashes=1),
    "release": Verdicts(rules.give_back(), "ready", 1_000, failed=False, attempt=1, crashes=1),
    "shutdown": Verdicts(rules.give_back(Cause.SHUTDOWN), "ready", 1_000, failed=False, attempt=1, crashes=1),
    "snooze": Verdicts(
        rules.give_back(Cause.SNOOZE, delay_s=5.0), "scheduled", 1_005, failed=False, attempt=1, crashes=1
    ),
    "dead": Verdicts(Dead(), "dead", None, failed=True, attempt=2, crashes=1),
    "rejected": Verdicts(
        Dead(cause=Cause.REJECT, error=ERROR), "dead", None, failed=True, attempt=2, crashes=1
    ),
    "dead, lost": Verdicts(Dead(cause=Cause.LOST), "dead", None, failed=True, attempt=2, crashes=1),
    "dead, crashed": Verdicts(
        Dead(cause=Cause.LOST, crashed=True), "dead", None, failed=True, attempt=2, crashes=2
    ),
    "cancelled by its handler": Verdicts(Cancelled(), "cancelled", None, failed=True, attempt=2, crashes=1),
}

# Which totals grow, by where the job lands and whether this was a failed attempt.
TOTALS: dict[tuple[str, bool], str] = {
    ("succeeded", False): "processed succeeded",
    ("ready", True): "processed failed retries",
    ("ready", False): "",
    ("scheduled", True): "processed failed retries",
    ("scheduled", False): "",
    ("held", False): "",
    ("dead", True): "processed failed dead_lettered",
    ("cancelled", True): "processed failed cut cancelled",
    ("cancelled", False): "cancelled",
    ("expired", True): "processed failed cut expired",
    ("expired", False): "expired",
}

# expires_at, from when the job would be due again; at the instant itself it has passed.
EXPIRES: dict[str, tuple[float | None, bool]] = {
    "never expires": (None, False),
    "expires before due": (-0.5, True),
    "expires when due": (0.0, True),
    "expires after due": (0.5, False),
}


@pytest.mark.parametrize("expires", EXPIRES)
@pytest.mark.parametrize("cancel_requested", [False, True], ids=["", "cancel requested"])
@pytest.mark.parametrize("name", VERDICTS)
def test_a_verdict_lands_where_the_table_says(name: str, cancel_requested: bool, expires: str) -> None:
    row = VERDICTS[name]
    offset_s, passed = EXPIRES[expires]
    due_at = NOW_AT if row.due_at is None else row.due_at
    job = leased_job(
        cancel_requested=cancel_requested, expires_at=None if offset_s is None else due_at + offset_s
    )
    state = row.state
    if cancel_requested and state != "succeeded":
        state = "cancelled"
    elif passed and row.due_at is not None:
        state = "expired"
    totals = Counter(TOTALS[state, row.failed].split())
    totals["reclaimed"] += row.verdict.cause is Cause.LOST
    before = msgspec.structs.replace(job)

    landing = rules.land(job, row.verdict, now_at=NOW_AT)

    comes_back = state in ("ready", "scheduled", "held")
    assert landing.state is State(state)
    assert landing.run_at == (row.due_at if comes_back else 900.0)
    assert (landing.attempt, landing.crashes) == (row.attempt, row.crashes)
    assert Counter(landing.totals) == +totals
    assert job == before


def test_a_job_that_expired_while_it_ran_is_still_acked() -> None:
    job = leased_job(expires_at=950.0)
    assert rules.land(job, Done(), now_at=NOW_AT).state is State.SUCCEEDED


@pytest.mark.parametrize("state", [state for state in State if state is not State.LEASED])
def test_only_a_leased_job_can_be_landed(state: State) -> None:
    job = leased_job(state=state)
    with pytest.raises(AssertionError):
        rules.land(job, Done(), now_at=NOW_AT)


def test_a_failed_last_attempt_cannot_come_back() -> None:
    job = leased_job(attempt=5, max_attempts=5)
    with pytest.raises(AssertionError, match=r"^the last failed attempt is Dead"):
        rules.land(job, Retry(), now_at=NOW_AT)


def test_handing_back_the_last_attempt_never_kills() -> None:
    job = leased_job(attempt=5, max_attempts=5)
    landing = rules.land(job, rules.give_back(), now_at=NOW_AT)
    assert (landing.state, landing.attempt) == (State.READY, 4)


# The failure step

POLICY = Backoff(base=2.0, cap=5.0)
WIDEST_S = {1: 2.0, 2: 4.0, 3: 5.0}  # after failed attempt 1, 2, 3
WIDEST_AFTER_CRASH_S = {1: 0.0, 2: 2.0, 3: 4.0, 4: 5.0}  # a job's first crash is retried at once


@pytest.mark.parametrize("cause", [Cause.NACK, Cause.ERROR, Cause.TIMEOUT, Cause.LOST])
@pytest.mark.parametrize(("attempt", "max_attempts"), [(1, 1), (1, 2), (2, 2), (1, 3), (2, 3), (3, 3)])
def test_the_failure_step_is_one_for_all_causes(attempt: int, max_attempts: int, cause: Cause) -> None:
    for given_s, policy, crashed, crashes, draw in product(
        (None, 0.0, 7.0), (None, POLICY), (False, True), (0, 1, 2, 3), (0.0, 0.5, ALMOST_1)
    ):
        failing = lease(attempt=attempt, max_attempts=max_attempts, crashes=crashes, backoff=policy)
        widest_s = WIDEST_AFTER_CRASH_S[crashes + 1] if crashed else WIDEST_S[attempt]
        expected: Verdict
        if attempt == max_attempts:
            expected = Dead(cause=cause, crashed=crashed, error=ERROR)
        else:
            wait_s = 0.0 if policy is None else draw * widest_s
            expected = Retry(
                delay_s=wait_s if given_s is None else given_s, cause=cause, crashed=crashed, error=ERROR
            )
        got = rules.failure(failing, cause, draw=draw, delay_s=given_s, error=ERROR, crashed=crashed)
        case = (given_s, policy, crashed, crashes, draw)
        assert (case, got) == (case, expected)


def test_a_delivery_beyond_the_last_attempt_is_dead_too() -> None:
    verdict = rules.failure(lease(attempt=6, max_attempts=5), Cause.ERROR, draw=0.5)
    assert verdict == Dead(cause=Cause.ERROR)


class Ending(NamedTuple):
    """One line of the design's table of how a delivery ends."""

    verdict: Verdict
    attempt: int
    crashes: int
    delay_s: float


def failed(
    cause: Cause, *, delay_s: float | None = None, crashes: int | None = None, policy: bool = True
) -> Verdict:
    """The failure step for attempt 2 of 5 at draw 0.5; `crashes` given: its worker is gone."""
    failing = lease(crashes=crashes or 0, backoff=POLICY if policy else None)
    return rules.failure(failing, cause, draw=0.5, delay_s=delay_s, crashed=crashes is not None)


@pytest.mark.parametrize(
    "line",
    [
        pytest.param(Ending(failed(Cause.NACK), 2, 0, 2.0), id="nack"),
        pytest.param(Ending(failed(Cause.ERROR), 2, 0, 2.0), id="an error"),
        pytest.param(Ending(failed(Cause.TIMEOUT), 2, 0, 2.0), id="a timeout"),
        pytest.param(Ending(failed(Cause.LOST), 2, 0, 2.0), id="a passed deadline"),
        pytest.param(Ending(failed(Cause.NACK, policy=False), 2, 0, 0.0), id="nack, no policy"),
        pytest.param(Ending(failed(Cause.LOST, policy=False), 2, 0, 0.0), id="a passed deadline, no policy"),
        pytest.param(Ending(failed(Cause.NACK, delay_s=9.0), 2, 0, 9.0), id="nack(delay=9)"),
        pytest.param(Ending(failed(Cause.NACK, delay_s=0.0), 2, 0, 0.0), id="nack(delay=0)"),
        pytest.param(Ending(failed(Cause.LOST, crashes=0), 2, 1, 0.0), id="worker gone, the first time"),
        pytest.param(Ending(failed(Cause.LOST, crashes=1), 2, 2, 1.0), id="worker gone, the second time"),
        pytest.param(Ending(failed(Cause.LOST, crashes=2), 2, 3, 2.0), id="worker gone, the third time"),
        pytest.param(
            Ending(failed(Cause.LOST, crashes=2, policy=False), 2, 3, 0.0), id="worker gone, no policy"
        ),
        pytest.param(Ending(rules.give_back(), 1, 0, 0.0), id="release"),
        pytest.param(Ending(rules.give_back(Cause.SHUTDOWN), 1, 0, 0.0), id="shutdown"),
        pytest.param(Ending(Hold(), 1, 0, 0.0), id="hold"),
        pytest.param(Ending(rules.give_back(Cause.SNOOZE, delay_s=60.0), 1, 0, 60.0), id="snooze(60)"),
    ],
)
def test_the_end_of_a_delivery_spends_or_refunds_and_waits_as_designed(line: Ending) -> None:
    crashes = line.crashes - getattr(line.verdict, "crashed", False)
    landing = rules.land(leased_job(crashes=crashes), line.verdict, now_at=NOW_AT)
    assert (landing.attempt, landing.crashes, landing.run_at - NOW_AT) == line[1:]


def test_the_floor_of_a_policy_does_not_delay_the_first_recovery_from_a_crash() -> None:
    policy = Backoff(base=2.0, cap=5.0, floor=1.0)
    delays = [
        rules.failure(lease(crashes=crashes, backoff=policy), Cause.LOST, draw=0.0, crashed=True)
        for crashes in (0, 1)
    ]
    assert delays == [
        Retry(delay_s=0.0, cause=Cause.LOST, crashed=True),
        Retry(delay_s=1.0, cause=Cause.LOST, crashed=True),
    ]


def run_until_ended(max_attempts: int, cause: Cause, *, crashed: bool) -> list[float]:
    """Fail a job until it is dead; the delays between its runs. It ran once more than there are delays."""
    job = leased_job(attempt=1, max_attempts=max_attempts, crashes=0)
    delays: list[float] = []
    while True:
        running = lease(attempt=job.attempt, max_attempts=max_attempts, crashes=job.crashes, backoff=POLICY)
        landing = rules.land(job, rules.failure(running, cause, draw=0.5, crashed=crashed), now_at=NOW_AT)
        if landing.state is State.DEAD:
            assert landing.attempt == max_attempts
            return delays
        delays.append(landing.run_at - NOW_AT)
        job.attempt, job.crashes = landing.attempt + 1, landing.crashes


@pytest.mark.parametrize("max_attempts", [1, 2, 3, 7])
@pytest.mark.parametrize(
    ("cause", "crashed"),
    [
        (Cause.NACK, False),
        (Cause.ERROR, False),
        (Cause.TIMEOUT, False),
        (Cause.LOST, False),
        (Cause.LOST, True),
    ],
)
def test_r8_a_job_that_always_fails_runs_exactly_max_attempts_times(
    cause: Cause, crashed: bool, max_attempts: int
) -> None:
    assert len(run_until_ended(max_attempts, cause, crashed=crashed)) + 1 == max_attempts


def test_r6_a_job_that_kills_its_worker_each_time_is_spaced_by_backoff() -> None:
    assert run_until_ended(7, Cause.LOST, crashed=True) == [0.0, 1.0, 2.0, 2.5, 2.5, 2.5]


# Small rules


def test_a_hand_back_is_a_release_without_delay_unless_said_otherwise() -> None:
    assert rules.give_back() == Retry(
        delay_s=0.0, cause=Cause.RELEASE, refund=True, crashed=False, error=None
    )
    assert rules.give_back(Cause.SNOOZE, delay_s=3.0) == Retry(delay_s=3.0, cause=Cause.SNOOZE, refund=True)


def test_a_hand_back_tells_why_where_somebody_said_so() -> None:
    assert rules.give_back(Cause.SHUTDOWN, error=ERROR) == Retry(
        delay_s=0.0, cause=Cause.SHUTDOWN, refund=True, error=ERROR
    )


@pytest.mark.parametrize(
    ("verdict", "expected"),
    [
        (Retry(error=ERROR), ERROR),
        (Dead(error=ERROR), ERROR),
        (Cancelled(error=ERROR), ERROR),
        (Hold(Cause.UNDECODABLE, ERROR), ERROR),
        (Retry(), None),
        (Dead(), None),
        (Cancelled(), None),
        (Done(b"1"), None),
        (Hold(), None),
    ],
)
def test_the_error_of_a_verdict_is_found_where_it_has_one(verdict: Verdict, expected: Failure | None) -> None:
    assert rules.error_of(verdict) is expected


def entry(delivery: int) -> Attempt:
    return Attempt(delivery=delivery, attempt=1, worker="w1", started_at=0.0, ended_at=1.0, cause=Cause.NACK)


@pytest.mark.parametrize(
    ("deliveries", "kept"),
    [
        (1, [1]),
        (2, [1, 2]),
        (19, list(range(1, 20))),
        (20, list(range(1, 21))),
        (21, [1, *range(3, 22)]),
        (22, [1, *range(4, 23)]),
        (1_000, [1, *range(982, 1_001)]),
    ],
)
def test_history_keeps_the_first_attempt_and_the_last_nineteen(deliveries: int, kept: list[int]) -> None:
    history: tuple[Attempt, ...] = ()
    for delivery in range(1, deliveries + 1):
        history = rules.remember(history, entry(delivery))
    assert [attempt.delivery for attempt in history] == kept


@pytest.mark.parametrize(
    ("causes", "is_refused"),
    [
        ([], False),
        ([Cause.UNDECODABLE], True),
        ([Cause.NACK, Cause.UNDECODABLE], True),
        ([Cause.UNDECODABLE, Cause.UNKNOWN_TASK], False),
        ([Cause.UNKNOWN_TASK], False),
    ],
)
def test_a_held_job_is_refused_if_it_was_held_as_undecodable(causes: list[Cause], is_refused: bool) -> None:
    history = tuple(msgspec.structs.replace(entry(n), cause=cause) for n, cause in enumerate(causes, 1))
    assert rules.is_refused(history) is is_refused


# Totals, over whole lives of several jobs

MAX_ATTEMPTS = 3
ENDINGS = ("ack", "nack", "later", "lost", "crash", "release", "snooze", "hold", "reject", "give up")


def verdict_of(ending: str, running: Lease) -> Verdict:
    match ending:
        case "ack":
            return Done()
        case "nack":
            return rules.failure(running, Cause.NACK, draw=0.5)
        case "later":
            return rules.failure(running, Cause.NACK, draw=0.5, delay_s=5.0)
        case "lost":
            return rules.failure(running, Cause.LOST, draw=0.5)
        case "crash":
            return rules.failure(running, Cause.LOST, draw=0.5, crashed=True)
        case "release":
            return rules.give_back()
        case "snooze":
            return rules.give_back(Cause.SNOOZE, delay_s=5.0)
        case "hold":
            return Hold()
        case "reject":
            return Dead(cause=Cause.REJECT)
    return Cancelled()


class Books:
    """A few jobs and what has been counted of them; a storage in its simplest form."""

    def __init__(self) -> None:
        self.jobs: list[Job] = []
        self.totals: Counter[str] = Counter()

    def step(self, number: int, what: str) -> None:
        """Do to job `number` what is possible: deliver it and end that so, or redrive it; or add a job."""
        if number >= len(self.jobs):
            self.jobs.append(leased_job(state=State.READY, attempt=0, max_attempts=MAX_ATTEMPTS, crashes=0))
            self.totals["enqueued"] += 1
            return
        job = self.jobs[number]
        if what == "cancel":
            job.cancel_requested = True
        elif what == "expires":
            job.expires_at = NOW_AT
        elif what == "redrive" and job.state is State.HELD:
            job.state = State.READY
        elif job.state in OPEN:
            self.deliver(job, what)
        elif what == "redrive" and job.state is not State.SUCCEEDED:
            job.state, job.attempt, job.cancel_requested, job.expires_at = State.READY, 0, False, None
            self.totals["redriven"] += 1

    def deliver(self, job: Job, ending: str) -> None:
        job.state = State.LEASED
        job.attempt += 1
        assert job.attempt <= MAX_ATTEMPTS
        running = lease(attempt=job.attempt, max_attempts=MAX_ATTEMPTS, crashes=job.crashes)
        landing = rules.land(job, verdict_of(ending, running), now_at=NOW_AT)
        job.state, job.attempt, job.crashes = landing.state, landing.attempt, landing.crashes
        self.totals.update(landing.totals)


STEPS = st.tuples(st.integers(0, 4), st.sampled_from((*ENDINGS, "cancel", "expires", "redrive")))


@given(st.lists(STEPS, max_size=60))
def test_totals_balance_whatever_happens(steps: list[tuple[int, str]]) -> None:
    books = Books()
    for number, what in steps:
        books.step(number, what)
    t = books.totals
    states: Counter[Any] = Counter(job.state for job in books.jobs)
    still_open = sum(states[state] for state in OPEN)
    assert t["processed"] == t["succeeded"] + t["failed"]
    assert t["failed"] == t["retries"] + t["dead_lettered"] + t["cut"]
    assert (
        t["enqueued"] + t["redriven"]
        == t["succeeded"] + t["dead_lettered"] + t["cancelled"] + t["expired"] + still_open
    )
    assert t["succeeded"] == states[State.SUCCEEDED]
