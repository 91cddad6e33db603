"""Celery on a file by SQLAlchemy: put into a WAL here, FULL; acks late, one a slot, results ignored.

Its transport cannot set how often it looks (a second): what it is told goes to SQLAlchemy, which refuses it.
So that is set in its class. What it has taken it marks so, and marks nothing when it is acknowledged.
"""

from __future__ import annotations

import logging
import sqlite3
from contextlib import closing

from celery import Celery
from kombu.transport.sqlalchemy import Transport

from bench.tasking import probe
from bench.tasking.loop import arguments

POLL_S = 0.001
DATABASE = probe.folder() / "jobs.db"
# Many threads on one file wait long for one another.
BUSY_TIMEOUT_S = 60

logging.disable(logging.WARNING)
Transport.polling_interval = POLL_S
app = Celery("bench", broker=f"sqla+sqlite:///{DATABASE}")
app.conf.update(
    broker_transport_options={"connect_args": {"timeout": BUSY_TIMEOUT_S}},
    broker_connection_retry_on_startup=True,
    task_ignore_result=True,
    task_acks_late=True,
    worker_prefetch_multiplier=1,
    worker_enable_remote_control=False,
    worker_send_task_events=False,
    worker_hijack_root_logger=False,
)
count, ring = probe.Count(), probe.Bell()


@app.task(name="no_op")
def no_op(argument):
    count()


@app.task(name="ping")
def ping(argument):
    ring()


@app.task(name="slow")
def slow(argument):
    probe.slow(argument)


class Side:
    """As the process sees it that enqueues."""

    def __init__(self):
        with closing(sqlite3.connect(DATABASE)) as db:
            db.execute("PRAGMA journal_mode = WAL")

    def fill(self, jobs):
        for argument in arguments(jobs):
            no_op.delay(argument)

    def ping(self, argument):
        ping.delay(argument)

    def slow(self, argument):
        slow.delay(argument)

    def command(self, concurrency):
        quiet = ["--without-gossip", "--without-mingle", "--without-heartbeat", "--loglevel", "ERROR"]
        return ["celery", "-A", f"{__name__}:app", "worker", "-P", "threads", "-c", str(concurrency), *quiet]

    def open_jobs(self):
        return self.jobs("visible")

    def finished(self):
        return self.jobs("NOT visible")

    def jobs(self, where):
        with closing(sqlite3.connect(DATABASE)) as db:
            return db.execute(f"SELECT count(*) FROM kombu_message WHERE {where}").fetchone()[0]
