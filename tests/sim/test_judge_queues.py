"""The judge of histories on what is about a queue as a whole: keys, room, numbers."""

from __future__ import annotations

import pytest

from tests.sim.tale import Tale, told

# Keys


def test_two_open_jobs_of_one_unique_key_are_a_problem():
    tale = Tale()
    for job in (1, 2):
        tale.put(job, unique_key="u")
    assert tale.judged(at_rest=False).kinds == ["unique"]


def test_a_unique_key_is_free_again_when_its_job_has_ended():
    tale = Tale()
    tale.put(unique_key="u")
    tale.hand()
    tale.end()
    tale.put(2, unique_key="u")
    assert tale.judged(at_rest=False).kinds == []


def test_a_duplicate_of_a_job_that_has_ended_is_a_problem():
    tale = Tale()
    tale.put(unique_key="u")
    tale.hand()
    tale.end()
    tale.put(2, known_as=1, unique_key="u")
    assert tale.judged(at_rest=False).kinds == ["duplicate"]


def test_a_duplicate_without_a_common_key_is_a_problem():
    tale = Tale()
    tale.put(unique_key="u")
    tale.put(2, known_as=1, unique_key="v")
    assert tale.judged(at_rest=False).kinds == ["duplicate"]


def test_a_duplicate_of_nothing_is_a_problem():
    tale = Tale()
    tale.put(2, known_as=1, unique_key="u")
    assert tale.judged(at_rest=False).kinds == ["duplicate"]


def test_two_jobs_of_one_idempotency_key_are_a_problem():
    tale = Tale()
    tale.put(1, idempotency_key="i", mark="m")
    tale.put(2, idempotency_key="i", mark="m")
    assert tale.judged(at_rest=False).kinds == ["idempotency"]


def test_an_idempotency_key_answers_the_same_id_whatever_became_of_the_job():
    tale = Tale()
    tale.put(idempotency_key="i")
    tale.hand()
    tale.end()
    tale.put(known_as=1, idempotency_key="i")
    assert tale.judged(at_rest=False).kinds == []


# Room and numbers


def test_more_open_jobs_than_the_capacity_are_a_problem():
    tale = Tale()
    tale.put(1)
    tale.put(2)
    assert tale.judged(at_rest=False, capacity={"q": 1}).kinds == ["over capacity"]
    assert tale.judged(at_rest=False, capacity={"q": 2}).kinds == []


def test_a_writer_that_knows_the_room_tells_of_an_overshoot_and_of_a_false_full():
    tale = Tale()
    tale.put(told_room=(3, 2))
    assert tale.judged(at_rest=False).kinds == ["over capacity"]
    for op, kinds in (("add", ["false full"]), ("add known", [])):
        tale = Tale()
        tale.put(op=op)
        tale.lines[-1] = type(tale.lines[-1])("ada", 1, 1.0, answer="full", room=(1, 2))
        assert tale.judged(at_rest=False).kinds == kinds


def test_numbers_that_do_not_add_up_are_a_problem():
    tale = Tale()
    tale.count(enqueued=1, ready=1)
    assert tale.judged().kinds == []
    tale.count(enqueued=1, ready=1, processed=1)
    assert tale.judged().kinds == ["totals"]


@pytest.mark.parametrize("wrong", [{"processed": 1}, {"redriven": 1}, {"retries": 1}, {"ready": 2}])
def test_numbers_at_rest_that_do_not_add_up_are_a_problem(wrong):
    tale = Tale()
    tale.count(**{"enqueued": 1, "ready": 1} | wrong)
    assert tale.judged(at_rest=False).kinds == ["totals"]
    tale = Tale()
    tale.put()
    tale.stored(state="ready", delivery=0)
    tale.counted(**{"enqueued": 1, "ready": 1} | wrong)
    assert tale.judged().kinds == ["totals", "unfinished"]


def test_totals_that_go_down_are_a_problem():
    tale = Tale()
    tale.count(enqueued=2, ready=2)
    tale.count(enqueued=1, ready=1)
    assert tale.judged().kinds == ["totals"]


@pytest.mark.parametrize(
    "wrong",
    [
        {"acked": 0, "dead": 1},
        {"enqueued": 2, "ready": 1},
        {"succeeded": 0, "processed": 1, "failed": 1, "cut": 1},
        {"reclaimed": 1},
    ],
)
def test_numbers_at_rest_are_a_recount_and_what_callers_were_told(wrong):
    right = {"enqueued": 1, "acked": 1, "processed": 1, "succeeded": 1}
    tale = told("put", "hand", "end", "stored")
    tale.counted(**right)
    assert tale.judged().kinds == []
    tale.counted(**right | wrong)
    assert tale.judged().kinds == ["totals"]
