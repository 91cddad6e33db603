"""The judge of histories finds each kind of defect in a tale told by hand, and explains what can be."""

from __future__ import annotations

import pytest

from tests.sim.tale import LEASE_S, UNKNOWN, Tale, ran, told


def test_a_good_history_has_no_problems():
    verdict = told("put", "hand", "end", "stored").judged()
    assert verdict.problems == []
    assert (verdict.jobs, verdict.deliveries, verdict.acked, verdict.recovered) == (1, 1, 1, 0)
    assert str(verdict).startswith("3 calls (0 with an unknown answer), 1 jobs")


# Lost, and never there


def test_an_enqueued_job_that_is_not_stored_is_lost():
    assert told("put").judged().kinds == ["lost"]
    assert told("put").judged(at_rest=False).kinds == []


def test_a_deleted_job_is_not_lost():
    tale = told("put")
    tale.act("Delete")
    assert tale.judged().kinds == []


def test_a_job_that_retention_removed_is_not_lost():
    tale = told("put", "hand", "end")
    tale.counted(enqueued=1, processed=1, succeeded=1, pruned=1)
    assert tale.judged().kinds == []


def test_a_job_that_has_not_ended_is_unfinished():
    tale = told("put")
    tale.stored(state="ready", delivery=0)
    assert tale.judged().kinds == ["unfinished"]
    assert tale.judged(at_rest=False).kinds == []


@pytest.mark.parametrize("answer", ["refused", "full"])
def test_a_job_whose_enqueue_certainly_failed_is_unexpected(answer):
    tale = Tale()
    tale.put(answer=answer)
    tale.hand()
    tale.end()
    tale.stored()
    assert tale.judged().kinds == ["unexpected"]


@pytest.mark.parametrize("answer", [UNKNOWN, "killed"])
def test_a_job_whose_enqueue_was_never_answered_may_be_there_or_not(answer):
    tale = Tale()
    tale.put(answer=answer)
    assert tale.judged().kinds == []
    tale.hand()
    tale.end()
    tale.stored()
    assert tale.judged().kinds == []
    assert tale.judged().recovered == 1


def test_a_job_that_is_stored_more_often_than_it_was_asked_for_is_unexpected():
    tale = Tale()
    tale.put(answer=UNKNOWN)
    for job in (1, 2):
        tale.hand(job, mark="m1")
        tale.end(job)
        tale.stored(job, mark="m1")
    assert tale.judged().kinds == ["unexpected"]


def test_another_payload_than_was_enqueued_is_a_problem_unless_it_was_edited():
    tale = told("put")
    tale.hand(mark="other")
    tale.end()
    tale.stored()
    assert tale.judged().kinds == ["payload"]
    edited = told("put")
    edited.act("Edit", mark="other")
    edited.hand(mark="other")
    edited.end()
    edited.stored(mark="other")
    assert edited.judged().kinds == []


# Handed out again


CAUSES = {
    "lost": "after expiry",
    "nack": "after failure",
    "error": "after failure",
    "timeout": "after failure",
    "release": "after release",
    "shutdown": "after release",
    "snooze": "after release",
    "unknown task": "after release",
}


@pytest.mark.parametrize("cause", CAUSES)
def test_each_redelivery_is_explained_by_how_the_delivery_before_it_ended(cause):
    tale = told("put", "hand")
    tale.now += LEASE_S
    is_refund = CAUSES[cause] == "after release"
    tale.end(cause=cause, refund=is_refund and cause != "unknown task")
    tale.hand(delivery=2, attempt=1 if is_refund else 2)
    tale.end(delivery=2)
    tale.stored(delivery=2)
    assert tale.judged().kinds == []
    assert tale.judged().again == {CAUSES[cause]: 1}


def test_a_redelivery_after_a_crash_is_explained_before_the_lease_ends():
    tale = told("put", "hand")
    tale.end(cause="lost", crashed=True)
    tale.hand(delivery=2)
    tale.end(delivery=2)
    tale.stored(delivery=2)
    assert tale.judged().again == {"after crash": 1}
    assert tale.judged().kinds == []


@pytest.mark.parametrize("answer", [UNKNOWN, "killed"])
def test_a_redelivery_is_explained_by_a_verdict_whose_answer_was_lost(answer):
    tale = told("put", "hand")
    tale.end(cause="nack", answer=answer)
    tale.hand(delivery=2)
    tale.end(delivery=2)
    tale.stored(delivery=2)
    assert tale.judged().again == {"after lost reply": 1}
    assert tale.judged().kinds == []


def test_a_redelivery_is_explained_by_a_redrive():
    tale = told("put", "hand")
    tale.end(cause="reject", how="dead", state="dead")
    tale.act("Redrive")
    tale.hand(delivery=2, attempt=1)
    tale.end(delivery=2)
    tale.stored(delivery=2)
    assert tale.judged().again == {"after redrive": 1}
    assert tale.judged().kinds == []


@pytest.mark.parametrize("cause", ["unknown task", "undecodable"])
def test_a_held_job_comes_again_with_the_attempt_it_had(cause):
    tale = told("put", "hand")
    tale.end(cause="nack")
    tale.hand(delivery=2)
    tale.end(delivery=2, cause=cause, how="hold", state="held")
    tale.act("Redrive")
    tale.hand(delivery=3, attempt=2)
    tale.end(delivery=3)
    tale.stored(delivery=3, attempt=2)
    assert tale.judged().again == {"after failure": 1, "after release": 1}
    assert tale.judged().kinds == []


def test_a_hold_that_spends_the_attempt_is_a_problem():
    tale = told("put", "hand")
    tale.end(cause="undecodable", how="hold", state="held")
    tale.act("Redrive")
    tale.hand(delivery=2, attempt=2)
    tale.end(delivery=2)
    tale.stored(delivery=2)
    assert tale.judged().kinds == ["attempts"]


def test_a_redelivery_that_nothing_explains_is_a_problem():
    tale = told("put", "hand")
    tale.hand(delivery=2)
    tale.end(delivery=2)
    tale.stored(delivery=2)
    verdict = tale.judged()
    assert verdict.again == {"unexplained": 1}
    assert verdict.kinds == ["unended", "unexplained"]


def test_one_delivery_to_two_callers_is_an_overlap():
    tale = told("put", "hand", "hand", "end", "stored")
    assert tale.judged().kinds == ["overlap"]


def test_a_delivery_while_the_one_before_is_current_is_an_overlap():
    tale = told("put", "hand")
    tale.hand(delivery=2)
    tale.end(cause="nack")
    tale.end(delivery=2)
    tale.stored(delivery=2)
    assert {"overlap", "stale accepted"} <= set(tale.judged().kinds)


def test_calls_that_overlap_may_have_happened_in_either_order():
    tale = told("put", "hand")
    tale.end(cause="nack", t=10.0, until=20.0)
    tale.hand(delivery=2, t=5.0, until=15.0)
    tale.end(delivery=2, t=30.0)
    tale.stored(delivery=2)
    assert tale.judged().kinds == []


def test_a_delivery_after_the_end_is_a_problem():
    tale = told("put", "hand", "end")
    tale.hand(delivery=2)
    tale.end(delivery=2, answer=UNKNOWN)
    tale.stored(delivery=2)
    assert "after end" in tale.judged().kinds


def test_a_delivery_that_went_to_nobody_is_skipped_unless_a_claim_was_never_answered():
    def tale(answer: str, queues: str = "q") -> Tale:
        tale = told("put")
        tale.call("claim", answer=answer, queue=queues)
        tale.end(cause="lost", crashed=True)
        tale.hand(delivery=2)
        tale.end(delivery=2)
        tale.stored(delivery=2)
        return tale

    assert tale("ok").judged(at_rest=False).kinds == ["skipped"]
    assert tale("ok").judged().kinds == ["skipped"]
    assert tale(UNKNOWN).judged().kinds == []
    assert tale(UNKNOWN, "mail,q").judged().kinds == []
    assert tale(UNKNOWN, "mail").judged().kinds == ["skipped"]


def test_what_a_lost_claim_has_leased_is_ended_by_the_store_unspent():
    tale = told("put")
    tale.call("claim", answer=UNKNOWN)
    tale.hand(delivery=2, attempt=1)
    tale.end(delivery=2)
    tale.stored(delivery=2, attempt=1)
    assert tale.judged().again == {"after lost claim": 1}
    assert tale.judged().kinds == []


def test_a_last_delivery_that_went_to_nobody_is_skipped():
    tale = told("put", "hand")
    tale.end(cause="nack")
    tale.end(delivery=2)
    tale.stored(delivery=2)
    assert tale.judged().kinds == ["skipped"]


# Fences


def test_ok_to_a_delivery_that_is_not_current_is_a_problem():
    tale = told("put", "hand")
    tale.end(cause="nack", answer=UNKNOWN)
    tale.hand(delivery=2)
    tale.end(cause="ack")
    tale.stored(delivery=2)
    assert "stale accepted" in tale.judged().kinds


def test_an_extension_of_a_delivery_that_is_not_current_is_a_problem():
    tale = told("put", "hand", "end", "extend", "stored")
    assert tale.judged().kinds == ["stale accepted"]


def test_stale_to_a_current_delivery_is_a_problem():
    tale = told("put", "hand")
    tale.end(state="stale")
    tale.end()
    tale.stored()
    assert tale.judged().kinds == ["false stale"]
    tale = told("put", "hand")
    tale.extend(told="stale")
    tale.end()
    tale.stored()
    assert tale.judged().kinds == ["false stale"]


def test_stale_is_explained_by_any_other_end_that_may_have_come_first():
    tale = told("put", "hand")
    tale.end(answer=UNKNOWN)
    tale.end(state="stale")
    tale.stored()
    assert tale.judged().kinds == []
    tale = told("put", "hand")
    tale.act("Delete")
    tale.end(state="stale")
    assert tale.judged().kinds == []


def test_a_reclaim_may_be_stale_because_the_lease_was_extended():
    tale = told("put", "hand")
    tale.end(cause="lost", state="stale")
    tale.end()
    tale.stored()
    assert tale.judged().kinds == []


def test_ok_twice_for_one_delivery_is_a_problem():
    tale = told("put", "hand")
    tale.end(cause="nack")
    tale.end(cause="release", refund=True)
    tale.stored(state="succeeded")
    assert "settled twice" in tale.judged().kinds


def test_two_acks_are_a_problem():
    tale = told("put", "hand", "end", "end", "stored")
    assert {"acked twice", "settled twice"} <= set(tale.judged().kinds)


# Attempts


def test_more_attempts_than_there_may_be_are_a_problem():
    tale = told("put")
    tale.hand(max_attempts=0)
    tale.end()
    tale.stored()
    assert tale.judged().kinds == ["over attempts"]


@pytest.mark.parametrize(("refund", "attempt"), [(True, 2), (False, 1), (False, 3)])
def test_an_attempt_that_is_counted_wrongly_is_a_problem(refund, attempt):
    tale = told("put", "hand")
    tale.end(cause="release" if refund else "nack", refund=refund)
    tale.hand(delivery=2, attempt=attempt)
    tale.end(delivery=2)
    tale.stored(delivery=2)
    assert tale.judged().kinds == ["attempts"]


@pytest.mark.parametrize("cause", ["release", "shutdown", "snooze"])
def test_a_delivery_that_is_handed_back_must_not_spend_an_attempt(cause):
    tale = told("put", "hand")
    tale.end(cause=cause)
    tale.hand(delivery=2)
    tale.end(delivery=2)
    tale.stored(delivery=2)
    assert tale.judged().kinds == ["attempts"]


def test_dead_before_the_last_attempt_is_a_problem_unless_it_was_rejected():
    tale = told("put", "hand")
    tale.end(cause="nack", how="dead", state="dead")
    tale.stored(state="dead")
    assert tale.judged().kinds == ["attempts"]
    tale = told("put", "hand")
    tale.end(cause="reject", how="dead", state="dead")
    tale.stored(state="dead")
    assert tale.judged().kinds == []


# Times


@pytest.mark.parametrize(("came_at", "kinds"), [(104.9, ["early"]), (105.0, [])])
def test_a_job_may_not_come_before_its_delay_is_over(came_at, kinds):
    tale = Tale()
    tale.put(delay_s=5.0, told_store_at=100.0)
    tale.hand(told_store_at=came_at)
    tale.end()
    tale.stored()
    assert tale.judged().kinds == kinds


def test_a_retry_may_not_come_before_its_backoff_is_over():
    tale = told("put", "hand")
    tale.end(cause="nack", delay_s=5.0, told_store_at=100.0)
    tale.hand(delivery=2, told_store_at=104.0)
    tale.end(delivery=2)
    tale.stored(delivery=2)
    assert tale.judged().kinds == ["early"]


def test_a_job_may_not_come_before_its_time_by_its_own_record():
    tale = told("put", "hand")
    tale.end(cause="nack", delay_s=5.0)
    tale.hand(delivery=2)
    tale.end(delivery=2)
    tale.stored(delivery=2, ran=(ran(1, 1.0, 2.0), ran(2, 6.0, 7.0)))
    assert tale.judged().kinds == ["early"]


def test_a_clock_that_was_set_back_explains_an_early_job():
    tale = Tale()
    tale.put(delay_s=5.0, told_store_at=100.0)
    tale.turn_back()
    tale.hand(told_store_at=90.0)
    tale.end()
    tale.stored()
    assert tale.judged().kinds == []


def test_a_redrive_does_not_wait_for_the_delay():
    tale = Tale()
    tale.put(delay_s=500.0, told_store_at=100.0)
    tale.act("Cancel")
    tale.act("Redrive")
    tale.hand(told_store_at=110.0)
    tale.end()
    tale.stored()
    assert tale.judged().kinds == []


@pytest.mark.parametrize(("waits_s", "kinds"), [(LEASE_S - 3.0, ["early reclaim"]), (LEASE_S, [])])
def test_a_lease_may_not_be_reclaimed_before_it_ends(waits_s, kinds):
    tale = told("put", "hand")
    tale.end(cause="lost", t=2.0 + waits_s)
    tale.hand(delivery=2)
    tale.end(delivery=2)
    tale.stored(delivery=2)
    assert tale.judged().kinds == kinds


def test_a_lease_may_not_be_reclaimed_before_its_extension_ends():
    tale = told("put", "hand", "extend")
    tale.end(cause="lost", t=2.0 + LEASE_S)
    tale.hand(delivery=2)
    tale.end(delivery=2)
    tale.stored(delivery=2)
    assert tale.judged().kinds == ["early reclaim"]
    assert tale.judged(slack_s=5.0).kinds == []


# Ends


@pytest.mark.parametrize("state", ["dead", "ready"])
def test_an_end_that_changes_is_a_problem(state):
    tale = told("put", "hand", "end")
    tale.see(1, state)
    tale.stored()
    assert tale.judged().kinds == ["terminal changed"]


def test_an_end_that_is_forgotten_is_a_loss():
    tale = told("put", "hand", "end")
    tale.see(1, None)
    tale.stored()
    assert tale.judged().kinds == ["lost"]


def test_an_end_that_nobody_gave_is_a_problem():
    tale = told("put", "hand")
    tale.end(cause="nack")
    tale.stored(state="succeeded")
    assert tale.judged().kinds == ["unsaid end"]


def test_a_delivery_that_nobody_ended_is_a_problem():
    tale = told("put", "hand")
    tale.stored(state="cancelled")
    assert tale.judged().kinds == ["unended"]
