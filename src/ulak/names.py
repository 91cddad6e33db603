"""What queues, tasks and keys may be called."""

from __future__ import annotations

import re

from ulak.errors import ArgumentError

QUEUE_NAME = re.compile(r"[a-z0-9][a-z0-9._-]{0,63}")
TASK_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,127}")
KEY_BYTES_MAX = 512


def check_queue_name(name: object) -> str:
    """The name, if a queue may have it; else ArgumentError."""
    if type(name) is not str or not QUEUE_NAME.fullmatch(name):
        raise ArgumentError(f"a queue's name must match {QUEUE_NAME.pattern}, got {_shown(name)}")
    return name


def check_task_name(name: object, what: str = "a task") -> str:
    """The name, if a task (or a schedule: what) may have it; else ArgumentError."""
    if type(name) is not str or not TASK_NAME.fullmatch(name):
        raise ArgumentError(f"{what}'s name must match {TASK_NAME.pattern}, got {_shown(name)}")
    return name


def check_key(key: object, *, name: str) -> str | None:
    """A unique or idempotency key: None, or 1 to 512 bytes of valid text; else ArgumentError."""
    if key is None:
        return None
    if type(key) is not str:
        raise ArgumentError(f"{name} must be a str, got {type(key).__name__}")
    try:
        length = len(key.encode())
    except UnicodeEncodeError:
        raise ArgumentError(f"{name} holds a lone surrogate, which is not valid text") from None
    if not 1 <= length <= KEY_BYTES_MAX:
        raise ArgumentError(f"{name} must have 1 to {KEY_BYTES_MAX} bytes, got {length}")
    return key


def _shown(name: object) -> str:
    return repr(name[:80]) if isinstance(name, str) else type(name).__name__
