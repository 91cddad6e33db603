"""The names by which OpenTelemetry's semantic conventions call what is traced: of messaging, version 1.44.0.

They are in development there, so a later version may have others; this file is all that changes then.
"""

from __future__ import annotations

SCHEMA_URL = "https://opentelemetry.io/schemas/1.44.0"

SYSTEM = "messaging.system"
DESTINATION = "messaging.destination.name"
OPERATION = "messaging.operation.name"
OPERATION_TYPE = "messaging.operation.type"
MESSAGE_ID = "messaging.message.id"
BATCH_COUNT = "messaging.batch.message_count"
CLIENT_ID = "messaging.client.id"
ERROR_TYPE = "error.type"

SEND, PROCESS, SETTLE = "send", "process", "settle"
"""Values of both `OPERATION` and `OPERATION_TYPE`."""

# Of ulak's own.
ULAK = "ulak"
TASK = "ulak.job.task"
ATTEMPT = "ulak.job.attempt"
MAX_ATTEMPTS = "ulak.job.max_attempts"
PRIORITY = "ulak.job.priority"
EXISTED = "ulak.job.existed"
OUTCOME = "ulak.job.outcome"
CAUSE = "ulak.job.cause"
DELAY_S = "ulak.job.retry_delay_s"
