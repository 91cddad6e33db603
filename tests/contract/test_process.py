"""What one process knows of a queue: its handles, its producers, what it warns of and logs."""

from __future__ import annotations

import logging

import pytest

from ulak import ArgumentError, Closed, Keep, Retention
from ulak.core.store import BATCH_MAX


def warnings_of(caplog) -> list[str]:
    return [record.getMessage() for record in caplog.records if record.levelno == logging.WARNING]


def test_another_capacity_is_a_warning_that_names_the_way_to_change_it(make, caplog):
    first = make(capacity=5)
    second = make(capacity=9)
    assert second.settings().capacity == 5
    (line,) = warnings_of(caplog)
    assert "q.configure(capacity=" in line
    assert ("capacity 5" in line, "9" in line) == (True, True)
    first.configure(capacity=9)
    make(capacity=9)
    assert len(warnings_of(caplog)) == 1


def test_dead_jobs_that_retention_removes_are_counted_and_logged(make, caplog):
    caplog.set_level(logging.INFO, "ulak")
    keep = Keep(count=2, age_s=3600.0)
    q = make(max_attempts=1, retention=Retention(keep, keep, keep, keep))
    for number in range(5):
        q.enqueue(number)
        q.nack(q.deliver())
        q.enqueue(number)
        q.ack(q.deliver())
    q.prune()
    counts = q.counts()
    assert (counts.dead, counts.acked, counts.pruned) == (2, 2, 6)
    assert [job.payload for job in q.jobs("dead")] == [3, 4]
    # Only what was dead is told, since only that may be missed.
    lines = [record.getMessage() for record in caplog.records if "dead jobs removed" in record.getMessage()]
    assert lines
    assert sum(int(line.partition(": ")[2].split()[0]) for line in lines) == 3
    assert all(q.name in line for line in lines)


def test_the_producers_are_forgotten_when_the_last_handle_closes(make):
    first, second = make(), make()
    first.mark_producer_finished()
    first.close()
    with pytest.raises(Closed, match="producer"):
        second.enqueue("the other handle knows it still")
    second.close()
    again = make()
    assert again.enqueue("nobody knows of a producer")
    assert again.deliver().payload == "nobody knows of a producer"


def test_closing_a_handle_does_not_finish_its_producers(make):
    first, second = make(), make()
    producer = first.producer()
    second.mark_producer_finished()
    first.close()
    assert second.enqueue("one producer has not finished")
    producer.finish()
    with pytest.raises(Closed, match="producer"):
        second.enqueue("too late")


def test_a_batch_of_100_000_jobs_is_taken_and_one_more_refused(make):
    q = make()
    assert BATCH_MAX == 100_000
    with pytest.raises(ArgumentError, match="100,000"):
        q.enqueue_many([b""] * 100_001)
    assert q.counts().total == 0
    assert len(set(q.enqueue_many([b""] * 100_000))) == 100_000
    assert q.counts().ready == 100_000
