"""Every error ulak raises at a caller, under one base.

Expected answers (FULL, STALE, Duplicate) are return values, not errors. A message says what happened,
to what, and what to do, in at most six lines; it never holds a payload or a secret.
"""

from __future__ import annotations

from typing import ClassVar, Protocol


class Stored(Protocol):
    """What is stored of an error."""

    @property
    def type(self) -> str:
        """The name of its class."""

    @property
    def text(self) -> str:
        """Its message."""

    @property
    def traceback(self) -> str:
        """Where it was raised, innermost last."""


class UlakError(Exception):
    """The base of all of ulak's errors. `code` is stable and names the error in documentation."""

    code: ClassVar[str] = "U000"

    def __str__(self) -> str:
        return f"{super().__str__()} [{self.code}]"


class QueueFull(UlakError):
    """An enqueue found no room in the time it was given; nothing was stored."""

    code = "U101"


class Closed(UlakError):
    """An enqueue came after every producer had finished, or a call after close(); nothing was stored."""

    code = "U102"


class WouldDeadlock(UlakError):
    """A call inside a handler would have waited without a limit; nothing was stored."""

    code = "U103"


class WrongQueue(UlakError):
    """A lease was used on another queue than its own; nothing was changed there."""

    code = "U104"


class LeaseLost(UlakError):
    """The lease had ended before the call that must not go on without it."""

    code = "U105"


class JobForgotten(UlakError):
    """The job is unknown here: never enqueued, deleted, or ended so long ago that retention removed it."""

    code = "U106"


class JobEnded(UlakError):
    """The base of what `result()` raises for a job that ended without one.

    job_id: which. failure: what is stored of its last error, with `type`, `text` and `traceback`; if any.
    """

    def __init__(self, message: str = "", job_id: int = 0, failure: Stored | None = None) -> None:
        # All arguments, so that it can be copied and pickled.
        super().__init__(message, job_id, failure)
        self.job_id = job_id
        self.failure = failure

    def __str__(self) -> str:
        return f"{self.args[0]} [{self.code}]"


class JobFailed(JobEnded):
    """The job is dead: its last attempt has failed, or it was rejected."""

    code = "U107"


class JobCancelled(JobEnded):
    """The job was cancelled."""

    code = "U108"


class JobExpired(JobEnded):
    """The job was not started, or not started again, before it expired."""

    code = "U109"


class ArgumentError(UlakError, ValueError):
    """An argument is outside what the call accepts; nothing was stored or changed."""

    code = "U110"


class PayloadError(UlakError, TypeError):
    """A payload would not come back equal in value and type, or is too large; nothing was stored."""

    code = "U111"


class ResultTimeout(UlakError, TimeoutError):
    """The job had not ended when time was over; the message says what it waits for. It goes on."""

    code = "U112"


class StorageUnavailable(UlakError):
    """The store did not answer, so whether the call took effect is unknown.

    Repeating it is safe where its documentation says so: settling the same lease, enqueuing under the same
    idempotency key.
    """

    code = "U201"


class StorageGone(StorageUnavailable):
    """The store was taken away from under this process, which will not have it back: start it again.

    Its file was removed, or another put in its place; or, where `is_lost_here_only`, other code of this
    process has closed what ulak had open. Pools on it end by themselves.
    """

    code = "U205"
    is_lost_here_only = False


class StorageBusy(UlakError):
    """The store answered that others hold it for too long; nothing was changed. Try again."""

    code = "U202"


class StorageFull(UlakError):
    """The store has no space left on its disk or in its memory limit; nothing was changed."""

    code = "U203"


class SchemaError(UlakError):
    """The store was made by another version, or is not ulak's; it was not touched."""

    code = "U204"


class MissingExtra(UlakError):
    """An optional package is not installed; the message names the command that installs it."""

    code = "U301"


class ConfigError(UlakError, ValueError):
    """A setting (a URL, a name, an option) cannot be understood."""

    code = "U302"
