"""What jobs leave behind in the table of open ones is cleared away by the process that has ended them."""

from __future__ import annotations

import pytest

from tests.support.postgres import execute
from tests.support.waiting import eventually
from ulak.local import server_of
from ulak.storage.postgres import sweep


def vacuums(url: str) -> int:
    execute(url, "SELECT pg_stat_clear_snapshot()")
    ((number,),) = execute(
        url,
        "SELECT coalesce(sum(vacuum_count), 0)::int FROM pg_stat_user_tables "
        f"WHERE schemaname = '{server_of(url).schema}' AND relname = 'jobs'",
    )
    return number


def test_the_table_is_swept_after_many_jobs_have_ended_and_not_before(make, url, monkeypatch):
    monkeypatch.setattr(sweep, "EVERY", 100)
    q = make()
    q.enqueue_many(range(200))
    q.ack_many(q.deliver_many(60))
    assert vacuums(url) == 0
    q.ack_many(q.deliver_many(60))
    eventually(lambda: vacuums(url) == 1)
    assert q.counts().acked == 120


@pytest.mark.parametrize("answer", [[(False,)], []])
def test_who_does_not_own_the_table_does_not_try(answer):
    class Guest:
        is_proxied = False

        def __init__(self):
            self.asked = []

        def execute(self, ask):
            self.asked.append(ask.text)
            return answer

    guest = Guest()
    sweeper = sweep.Sweeper(lambda call: call(guest))
    for _ in range(3):
        sweeper.note(sweep.EVERY)
    sweeper.close()
    assert not [text for text in guest.asked if text.startswith("VACUUM")]
