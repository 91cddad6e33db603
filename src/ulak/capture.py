"""Turns an exception into what is stored of it: bounded valid text, no objects, no local variables."""

from __future__ import annotations

import traceback

from ulak.core.job import Failure

ERROR_TEXT_MAX = 8 * 1024
TRACEBACK_MAX = 8 * 1024
_FRAMES_MAX = 20
_NAME_MAX = 200


def capture(error: BaseException | str) -> Failure:
    """What is stored of an error. Never raises, whatever the exception does when it is looked at.

    Texts are cut to 8 KiB; characters that are not valid Unicode are replaced.
    """
    if isinstance(error, str):
        return Failure(type="", text=bounded(error, ERROR_TEXT_MAX))
    return Failure(
        type=bounded(type(error).__qualname__, _NAME_MAX),
        text=bounded(_text_of(error), ERROR_TEXT_MAX),
        traceback=bounded(_frames_of(error), TRACEBACK_MAX),
    )


def bounded(text: str, limit_bytes: int) -> str:
    """The text as valid Unicode of at most `limit_bytes` of UTF-8."""
    # Cut before encoding too, so that a text of many megabytes is not copied whole.
    body = text[:limit_bytes].encode("utf-8", "replace")
    if len(body) <= limit_bytes and len(text) <= limit_bytes:
        return body.decode("utf-8")
    return body[: limit_bytes - 3].decode("utf-8", "ignore") + "..."


def _text_of(error: BaseException) -> str:
    try:
        text = str(error)
        # A subclass of str could bring its own methods along.
        return text if type(text) is str else str.__str__(text)
    except BaseException as hostile:  # noqa: BLE001 - a user's __str__ may raise anything
        return f"(its text cannot be shown: __str__ raised {type(hostile).__qualname__})"


def _frames_of(error: BaseException) -> str:
    try:
        frames = traceback.extract_tb(error.__traceback__, limit=-_FRAMES_MAX)
        return "".join(traceback.format_list(frames))
    except BaseException as hostile:  # noqa: BLE001 - a broken loader or source file may raise anything
        return f"(no traceback: {type(hostile).__qualname__})"
