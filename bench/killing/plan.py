"""Whose workers are killed, and how each is set up."""

from __future__ import annotations

CONCURRENCY = 4
JOBS = 6
"""So many as run at the same time are killed at their work; the others wait. The next worker has a place for
each of them, so that none waits for another one."""
ALIVE_S = 0.3
"""How long the first jobs have run when their worker is killed."""
WAIT_S = 330.0
"""How long one waits for what was killed to run again: longer than the 300 s that some have by default."""

# Side -> the module that has it, and what its `Side` is told.
SIDES = {
    "ulak": ("bench.tasking.onfile.ulak_app", "plain"),
    "huey": ("bench.tasking.onfile.huey_app",),
    "dramatiq": ("bench.tasking.onfile.dramatiq_app",),
    "celery": ("bench.tasking.onfile.celery_app",),
    "persist-queue": ("bench.killing.persistqueue_app",),
    "litequeue": ("bench.killing.litequeue_app",),
    "honker": ("bench.killing.honker_app",),
    "flexiq": ("bench.killing.flexiq_app",),
}
PEERS = tuple(side for side in SIDES if side != "ulak")

# As each comes, but for the settings that bench tasks and bench sqlite give it too.
SETTINGS = {
    "ulak": "ulak work, defaults: a dead process is seen by its lock, and its jobs are reclaimed at once",
    "huey": "SqliteHuey, huey_consumer: a job is deleted as it is taken",
    "dramatiq": "dramatiq-sqlite, of others: a job is marked as it is taken, and nothing takes the mark away",
    "celery": "sqla+sqlite://, acks_late: a job is marked as it is taken, and the mark is never taken away",
    "persist-queue": "SQLiteAckQueue(auto_resume=True), no worker of its own: threads that get, run and ack",
    "litequeue": "no worker of its own: threads that pop, run and call done",
    "honker": "its own claim loop, visibility timeout of 300 s, its default",
    "flexiq": "its own worker, polling every ms, otherwise defaults",
}
