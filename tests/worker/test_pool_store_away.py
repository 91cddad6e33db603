"""A store that refuses a settle for a while: the worker waits and settles the same delivery again."""

import pytest

from tests.support.pools import AT_ONCE, KINDS, of_kind
from tests.support.stores import nth_write, refuse
from tests.support.waiting import eventually
from ulak import StorageBusy, StorageFull, StorageUnavailable, Terminal


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("error", [StorageUnavailable("away"), StorageBusy("busy"), StorageFull("full")])
def test_a_verdict_that_the_store_refused_is_settled_again_and_the_job_runs_once(make, kind, error):
    q, ran = make(), []
    refuse(q, nth_write(1, error))
    with q.workers(of_kind(kind, ran.append), count=1, backoff=AT_ONCE) as pool:
        job_id = q.enqueue("payload")
        eventually(lambda: q.terminal_of(job_id) is Terminal.ACKED)
        metrics = pool.metrics()
    assert ran == ["payload"]
    assert (metrics.processed, metrics.succeeded, metrics.stale) == (1, 1, 0)
