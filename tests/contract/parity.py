"""The two systems that ulak contains whole: what they tested or left untested, and which test here has it.

The first is an in-memory priority queue with leases, the second a bounded worker pool with retries.
"""

from __future__ import annotations

from collections.abc import Mapping

LEASE = "tests.contract.test_parity_lease"
EDGES = "tests.contract.test_parity_edges"
DEFECTIVE = "tests.contract.test_parity_defects"
PROPERTIES = "tests.contract.test_parity_properties"
RULES = "tests.contract.test_parity_rules"
CONFLICTS = "tests.contract.test_parity_conflicts"
ASYNC = "tests.contract.test_parity_async"
DEMO = "tests.contract.test_parity_demo"
POOL = "tests.worker.test_parity_pool"
POOL_RULES = "tests.worker.test_parity_pool_rules"
POOL_ENDS = "tests.worker.test_parity_pool_ends"

FILES = (LEASE, EDGES, DEFECTIVE, PROPERTIES, RULES, CONFLICTS, ASYNC, DEMO, POOL, POOL_RULES, POOL_ENDS)

UNIT_TESTS = (
    "enqueue_makes_pending",
    "deliver_then_ack",
    "deliver_empty_is_none",
    "deliver_respects_priority",
    "deliver_fifo_within_priority",
    "no_priority_inversion_with_interleaving",
    "acked_never_redelivered",
    "double_ack_is_stale",
    "nack_requeues",
    "reaches_dlq_after_max_attempts",
    "stale_ack_rejected_after_redelivery",
    "crash_does_not_lose_inflight",
    "stale_ack_rejected_after_crash",
    "timeout_reclaims_expired",
    "timeout_keeps_fresh_inflight",
    "pops_in_priority_then_fifo_order",
)
INTEGRATION_TESTS = (
    "property_delivery_order_is_priority_then_fifo",
    "property_state_counts_consistent",
    "liveness_all_messages_terminate",
    "recovery_no_loss_under_crash_at_any_point",
    "concurrent_workers_ack_each_message_once",
)
END_TO_END_TESTS = (
    "producer_worker_pool_drains_all_jobs",
    "crashed_worker_jobs_are_recovered",
    "poison_jobs_go_to_dlq_others_succeed",
    "high_priority_jobs_processed_first",
)
SEED_TESTS = (*UNIT_TESTS, *INTEGRATION_TESTS, *END_TO_END_TESTS)
"""The names of all tests of the first system."""

UNTESTED = (
    "late ack",
    "timeout at the last attempt",
    "crash at the last attempt",
    "redelivery position",
    "cross-queue lease",
    "memory growth",
    "two sweepers",
    "ack racing tick",
    "unknown ids",
)
"""What the first system left untested."""

DEFECTS = ("cross-queue lease", "poisoning", "lost dead payload", "endless terminals")
"""What the first system does wrong, so that ulak must not."""

MIRRORS: Mapping[str, tuple[str, str]] = {
    "enqueue_makes_pending": (LEASE, "test_an_enqueued_job_is_pending"),
    "deliver_then_ack": (LEASE, "test_a_delivered_job_ends_by_its_ack"),
    "deliver_empty_is_none": (LEASE, "test_nothing_is_delivered_from_an_empty_queue"),
    "deliver_respects_priority": (LEASE, "test_the_larger_priority_is_delivered_first"),
    "deliver_fifo_within_priority": (LEASE, "test_jobs_of_one_priority_are_delivered_as_they_came"),
    "no_priority_inversion_with_interleaving": (LEASE, "test_a_later_job_of_higher_priority_goes_first"),
    "acked_never_redelivered": (LEASE, "test_an_acked_job_never_comes_back"),
    "double_ack_is_stale": (LEASE, "test_a_second_ack_is_stale_and_counts_nothing"),
    "nack_requeues": (LEASE, "test_a_nacked_job_is_delivered_again"),
    "reaches_dlq_after_max_attempts": (LEASE, "test_a_job_is_dead_after_its_last_attempt"),
    "stale_ack_rejected_after_redelivery": (LEASE, "test_the_lease_before_a_redelivery_is_stale"),
    "crash_does_not_lose_inflight": (LEASE, "test_a_crash_brings_back_what_was_in_flight"),
    "stale_ack_rejected_after_crash": (LEASE, "test_a_lease_is_stale_after_a_crash"),
    "timeout_reclaims_expired": (LEASE, "test_a_tick_reclaims_what_is_past_its_deadline"),
    "timeout_keeps_fresh_inflight": (LEASE, "test_a_tick_leaves_fresh_leases_alone"),
    "pops_in_priority_then_fifo_order": (LEASE, "test_the_order_is_priority_then_age"),
    "property_delivery_order_is_priority_then_fifo": (PROPERTIES, "test_SAFE_5_priority_then_fifo"),
    "property_state_counts_consistent": (PROPERTIES, "test_SAFE_4_the_states_sum_to_all_ever_enqueued"),
    "liveness_all_messages_terminate": (PROPERTIES, "test_LIVE_1_under_endless_failure_every_job_ends"),
    "recovery_no_loss_under_crash_at_any_point": (PROPERTIES, "test_a_crash_at_any_point_loses_nothing"),
    "concurrent_workers_ack_each_message_once": (PROPERTIES, "test_threads_ack_each_job_once"),
    "producer_worker_pool_drains_all_jobs": (POOL, "test_a_pool_drains_all_jobs_of_its_producer"),
    "crashed_worker_jobs_are_recovered": (POOL, "test_the_jobs_of_a_crashed_worker_are_recovered"),
    "poison_jobs_go_to_dlq_others_succeed": (POOL, "test_poison_jobs_die_and_the_others_succeed"),
    "high_priority_jobs_processed_first": (POOL, "test_jobs_of_high_priority_are_processed_first"),
}
"""For each test of the first system, the test here with the same intent."""

ANSWERS: Mapping[str, tuple[str, str]] = {
    "late ack": (EDGES, "test_a_late_ack_or_nack_before_the_tick_is_honoured"),
    "timeout at the last attempt": (EDGES, "test_with_one_attempt_a_timeout_or_a_crash_is_death"),
    "crash at the last attempt": (EDGES, "test_with_one_attempt_a_timeout_or_a_crash_is_death"),
    "redelivery position": (EDGES, "test_after_a_crash_jobs_come_back_to_their_old_places"),
    "cross-queue lease": (DEFECTIVE, "test_a_lease_of_another_queue_is_refused"),
    "memory growth": (DEFECTIVE, "test_memory_does_not_grow_with_what_is_finished"),
    "two sweepers": (EDGES, "test_two_sweepers_reclaim_each_lease_once"),
    "ack racing tick": (EDGES, "test_an_ack_racing_a_tick_has_one_winner"),
    "unknown ids": (EDGES, "test_an_unknown_id_has_no_terminal"),
    "poisoning": (DEFECTIVE, "test_a_hostile_payload_is_refused_and_poisons_nothing"),
    "lost dead payload": (DEFECTIVE, "test_a_dead_job_keeps_its_payload"),
    "endless terminals": (DEFECTIVE, "test_what_is_kept_of_ended_jobs_is_bounded"),
}
"""For each gap and each defect of the first system, the test here that settles it."""

NUMBERED = (
    *(f"T{number}" for number in range(1, 16)),
    *(f"C{number}" for number in range(1, 7)),
    *(f"SAFE_{number}" for number in range(1, 6)),
    "LIVE_1",
)
"""Rules with a name of their own; each has at least one test that begins with it."""
