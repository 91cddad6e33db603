"""ulak: a reliable job queue, bounded, prioritised, leased, retried, dead-lettered, observable."""

import importlib
import logging
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from ulak.app import App
    from ulak.aqueue import AsyncQueue
    from ulak.calls import Call, TaskOptions
    from ulak.context import Cancel, Context, Reject, Retry, Snooze, current_job
    from ulak.core.backoff import Backoff
    from ulak.core.job import (
        FULL,
        Attempt,
        Cause,
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
    from ulak.job import Job
    from ulak.local import Producer
    from ulak.newjob import JobOptions, NewJob
    from ulak.queue import Queue
    from ulak.task import Task, TaskSettings
    from ulak.telemetry import metrics_of, traces_of
    from ulak.worker.pool import AsyncPool, Pool
    from ulak.worker.report import PoolMetrics, Report

__version__ = "0.1.0"

# Each name is loaded when somebody asks for it: a program pays for what it uses, and the command line, which
# is to know in its first moments what to do about a signal, for next to nothing.
_WHERE = {
    "ulak.app": "App",
    "ulak.aqueue": "AsyncQueue",
    "ulak.calls": "Call TaskOptions",
    "ulak.context": "Cancel Context Reject Retry Snooze current_job",
    "ulak.core.backoff": "Backoff",
    "ulak.core.job": "Attempt Cause Counts Duplicate FULL Failure Full Lease Outcome State Terminal Totals",
    "ulak.core.store": "Changed Filter Keep Refusal Retention Settings",
    "ulak.errors": (
        "ArgumentError Closed ConfigError JobCancelled JobEnded JobExpired JobFailed JobForgotten "
        "LeaseLost MissingExtra PayloadError QueueFull ResultTimeout SchemaError StorageBusy "
        "StorageFull StorageGone StorageUnavailable UlakError WouldDeadlock WrongQueue"
    ),
    "ulak.info": "JobInfo",
    "ulak.job": "Job",
    "ulak.local": "Producer",
    "ulak.newjob": "JobOptions NewJob",
    "ulak.queue": "Queue",
    "ulak.task": "Task TaskSettings",
    "ulak.telemetry": "metrics_of traces_of",
    "ulak.worker.pool": "AsyncPool Pool",
    "ulak.worker.report": "PoolMetrics Report",
}
_MODULES = {name: module for module, names in _WHERE.items() for name in names.split()}

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
    "Cause",
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
    "metrics_of",
    "traces_of",
]


def __getattr__(name: str) -> object:
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value: object = getattr(importlib.import_module(_MODULES[name]), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
