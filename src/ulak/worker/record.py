"""What a pool has the store keep for views: how long jobs waited and ran, summed up, written each minute."""

from __future__ import annotations

import contextlib
from collections.abc import Sequence

from ulak.core.flows import Flow, ask
from ulak.core.history import MINUTE_S, Took
from ulak.core.job import Cancelled, Cause, Dead, Done, Outcome, Retry, Verdict
from ulak.core.store import Settled, Settlement, Store
from ulak.errors import StorageFull
from ulak.metrics import bucket_of


class Recorder:
    """Notes each attempt of a pool in memory; a duty of the pool hands the sums to the store.

    Workers note without a lock, since each job is: of two that meet in a bucket one may be lost.
    """

    def __init__(self, queues: Sequence[str]) -> None:
        self._queues = tuple(queues)
        self._wait, self._run = self._empty(), self._empty()

    def _empty(self) -> dict[str, dict[int, int]]:
        return {queue: {} for queue in self._queues}

    def note(self, settlements: Sequence[Settlement], settled: Sequence[Settled], run_s: float) -> None:
        """An attempt that took so long was settled; what did not count as one is left out."""
        for (lease, verdict), answer in zip(settlements, settled, strict=True):
            if answer is Outcome.STALE or (type(verdict) is not Done and not _is_attempt(verdict)):
                continue
            work = lease.work
            queue, bucket = work.spec.queue, bucket_of(run_s)
            run = self._run[queue]
            run[bucket] = run.get(bucket, 0) + 1
            if lease.delivery == 1:
                wait, bucket = self._wait[queue], bucket_of(lease.claimed_at - work.created_at)
                wait[bucket] = wait.get(bucket, 0) + 1

    def duty(self) -> Flow[float | None]:
        """Have the store keep what was noted; in how many seconds to do so again."""
        # On a full disk the past can wait, and the workers need not say so each second.
        with contextlib.suppress(StorageFull):
            yield from self.record()
        return MINUTE_S

    def record(self) -> Flow[None]:
        """Have the store keep what was noted. If it does not, it is noted still."""
        wait, self._wait = self._wait, self._empty()
        run, self._run = self._run, self._empty()
        try:
            yield from ask(Store.record, {queue: Took(wait[queue], run[queue]) for queue in self._queues})
        except BaseException:
            for lost, noted in ((wait, self._wait), (run, self._run)):
                for queue, buckets in lost.items():
                    for bucket, count in buckets.items():
                        noted[queue][bucket] = noted[queue].get(bucket, 0) + count
            raise


def _is_attempt(verdict: Verdict) -> bool:
    """Whether a handler ran to its end, and that counts; nobody knows when a lost one ended."""
    if verdict.cause is Cause.LOST:
        return False
    return isinstance(verdict, Dead | Cancelled) or (isinstance(verdict, Retry) and not verdict.refund)
