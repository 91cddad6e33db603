"""ulak: a reliable job queue, bounded, prioritised, leased, retried, dead-lettered, observable."""

import importlib
import logging
from typing import TYPE_CHECKING

from ulak.aqueue import AsyncQueue
from ulak.context import Cancel, Context, Reject, Retry, Snooze, current_job
from ulak.core.backoff import Backoff
from ulak.core.job import (
    FULL,
    Attempt,
    Counts,
    Duplicate,
    Failure,
    Full,
    Lease,
    Outcome,
    State,
    Terminal,
    Totals,
)
from ulak.core.store import Changed, Filter, Keep, Refusal, Retention, Settings
from ulak.errors import (
    ArgumentError,
    Closed,
    ConfigError,
    JobCancelled,
    JobEnded,
    JobExpired,
    JobFailed,
    JobForgotten,
    LeaseLost,
    MissingExtra,
    PayloadError,
    QueueFull,
    ResultTimeout,
    SchemaError,
    StorageBusy,
    StorageFull,
    StorageGone,
    StorageUnavailable,
    UlakError,
    WouldDeadlock,
    WrongQueue,
)
from ulak.info import JobInfo
from ulak.local import Producer
from ulak.newjob import JobOptions, NewJob
from ulak.queue import Queue
from ulak.worker.pool import AsyncPool, Pool
from ulak.worker.runtime import PoolMetrics, Report

if TYPE_CHECKING:
    from ulak.app import App
    from ulak.calls import Call, TaskOptions
    from ulak.job import Job
    from ulak.task import Task, TaskSettings

__version__ = "0.1.0"

# Who uses queues alone does not pay for tasks: a quarter of the time that everything takes.
_LATER = {
    "App": "ulak.app",
    "Call": "ulak.calls",
    "Job": "ulak.job",
    "Task": "ulak.task",
    "TaskOptions": "ulak.calls",
    "TaskSettings": "ulak.task",
}

# A library says nothing unless its user asks for it.
logging.getLogger("ulak").addHandler(logging.NullHandler())

__all__ = [
    "FULL",
    "App",
    "ArgumentError",
    "AsyncPool",
    "AsyncQueue",
    "Attempt",
    "Backoff",
    "Call",
    "Cancel",
    "Changed",
    "Closed",
    "ConfigError",
    "Context",
    "Counts",
    "Duplicate",
    "Failure",
    "Filter",
    "Full",
    "Job",
    "JobCancelled",
    "JobEnded",
    "JobExpired",
    "JobFailed",
    "JobForgotten",
    "JobInfo",
    "JobOptions",
    "Keep",
    "Lease",
    "LeaseLost",
    "MissingExtra",
    "NewJob",
    "Outcome",
    "PayloadError",
    "Pool",
    "PoolMetrics",
    "Producer",
    "Queue",
    "QueueFull",
    "Refusal",
    "Reject",
    "Report",
    "ResultTimeout",
    "Retention",
    "Retry",
    "SchemaError",
    "Settings",
    "Snooze",
    "State",
    "StorageBusy",
    "StorageFull",
    "StorageGone",
    "StorageUnavailable",
    "Task",
    "TaskOptions",
    "TaskSettings",
    "Terminal",
    "Totals",
    "UlakError",
    "WouldDeadlock",
    "WrongQueue",
    "current_job",
]


def __getattr__(name: str) -> object:
    if name not in _LATER:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value: object = getattr(importlib.import_module(_LATER[name]), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
