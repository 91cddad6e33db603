"""Dead letters as JSON lines: all that is stored of a job, and back to a job that can be enqueued."""

from __future__ import annotations

import base64
import binascii
from collections.abc import Iterator
from typing import IO, NamedTuple

import msgspec

from ulak import codec
from ulak.checks import draft_of
from ulak.cli.inspect_show import MADE_FROM, record_json
from ulak.core.backoff import Backoff
from ulak.core.job import Draft, Job
from ulak.errors import ArgumentError, ConfigError, PayloadError
from ulak.names import check_queue_name, check_task_name
from ulak.newjob import NewJob

LINE_BYTES_MAX = 8 * 2**20
"""The longest line that is read: of a whole payload, headers and twenty attempts with their tracebacks, each
character escaped.
"""


class Line(msgspec.Struct, kw_only=True):
    """What an import needs of a line; the rest of it is for people."""

    store: str
    id: int
    delivery: int
    queue: str
    codec: str
    max_attempts: int
    payload: msgspec.Raw = msgspec.field(default_factory=msgspec.Raw)
    payload_base64: str | None = None
    task: str | None = None
    priority: int = 0
    headers: dict[str, str] | None = None
    unique_key: str | None = None
    backoff: Backoff | None = None


class Letter(NamedTuple):
    """A job to be enqueued in the place of a dead one."""

    queue: str
    draft: Draft


def line_of(job: Job, store_uid: str) -> dict[str, object]:
    """A job as a line, with its payload and headers."""
    return {"store": store_uid, **record_json(job, with_payload=True)}


def letter_of(job: Job, store_uid: str, payload: bytes) -> Letter:
    """A job to be enqueued in the place of this dead one, with this JSON as its payload.

    Raises ArgumentError, PayloadError.
    """
    same = {name: getattr(job, name) for name in _SAME}
    headers = dict(job.headers or {})
    return _letter(Line(store=store_uid, headers=headers, payload=msgspec.Raw(payload), **same))


_SAME = (
    *("id", "delivery", "queue", "codec", "max_attempts"),
    *("task", "priority", "unique_key", "backoff"),
)


def letters_of(file: IO[bytes], name: str) -> Iterator[Letter]:
    """The jobs of a file. Raises ConfigError, with its number, for a line that cannot be one."""
    for number, text in enumerate(iter(lambda: file.readline(LINE_BYTES_MAX + 1), b""), 1):
        if not text.strip():
            continue
        found = _read(text)
        if not isinstance(found, Letter):
            what = f"line {number} of {name} is not as ulak dead export writes it"
            raise ConfigError(f"{what}: {found}\n  nothing was enqueued")
        yield found


def _read(text: bytes) -> Letter | str:
    """A line as a job, or why it is none. No error leaves here, since some hold what was read."""
    if len(text) > LINE_BYTES_MAX:
        return f"it is longer than {LINE_BYTES_MAX:,} bytes"
    try:
        return _letter(msgspec.json.decode(text, type=Line))
    except (msgspec.MsgspecError, ArgumentError, PayloadError, ValueError) as error:
        return str(error.args[0]).partition("\n")[0] if error.args else type(error).__name__


def _letter(line: Line) -> Letter:
    """Enqueued once, however often it is asked for: it is known by the delivery that it died of."""
    body, tag = _payload(line)
    # Without its own mark, so that there is room for that again.
    headers = {name: text for name, text in (line.headers or {}).items() if name != MADE_FROM}
    new = NewJob(
        None,
        line.priority,
        unique_key=line.unique_key,
        idempotency_key=f"dead-{line.store}-{line.id}-{line.delivery}",
        headers=headers,
        backoff=line.backoff,
        max_attempts=line.max_attempts,
    )
    task = None if line.task is None else check_task_name(line.task)
    draft = draft_of(new, body, tag, max_attempts=line.max_attempts, task=task)
    marked = {**(draft.headers or {}), MADE_FROM: str(line.id)}
    return Letter(check_queue_name(line.queue), msgspec.structs.replace(draft, headers=marked))


def _payload(line: Line) -> tuple[bytes, str]:
    if line.payload_base64 is not None:
        try:
            body = base64.b64decode(line.payload_base64, validate=True)
        except binascii.Error:
            raise ValueError("payload_base64 is no base64") from None
        codec.encode(body)
        codec.decode(body, line.codec)
        return body, line.codec
    if not bytes(line.payload):
        raise ValueError("it has neither payload nor payload_base64")
    return codec.encode(codec.decode(bytes(line.payload), "json"))
