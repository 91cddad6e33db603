"""flexiq: its own worker threads on a file, polling every ms."""

from __future__ import annotations

import logging
import sys

from flexiq import Queue

from bench.tasking import probe

POLL_MS = 1

logging.disable(logging.WARNING)


def opened(workers=1):
    q = Queue(
        db_path=str(probe.folder() / "jobs.db"),
        workers=workers,
        scheduler_poll_interval_ms=POLL_MS,
        scheduler_batch_size=workers,
    )

    @q.task(name="slow")
    def slow(argument):
        probe.slow(argument)

    return q, slow


class Side:
    """As the process sees it that enqueues."""

    def __init__(self):
        self.q, self.task = opened()

    def slow(self, argument):
        self.task.delay(argument)

    def command(self, concurrency):
        return [__name__, str(concurrency)]

    def open_jobs(self):
        stats = self.q.stats()
        return stats["pending"] + stats["running"]


def main(concurrency):
    opened(int(concurrency))[0].run_worker()


if __name__ == "__main__":
    main(*sys.argv[1:])
