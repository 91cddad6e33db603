"""Turns an exception into what is stored of it: bounded valid text, no objects, no local variables."""

from __future__ import annotations

import contextlib
import os
import re
from collections import deque
from types import TracebackType
from typing import cast

from ulak.core.job import Failure

ERROR_TEXT_MAX = 8 * 1024
TRACEBACK_MAX = 8 * 1024
_FRAMES_MAX = 20
_NAME_MAX = 200
_FIRST_LINE_MAX = 300

_FRAME = re.compile(r'File "(?P<file>.*)", line (?P<line>[0-9]+), in .*')

# The base class's own, since an exception may bring a `__traceback__` that raises.
_traceback_of = BaseException.__dict__["__traceback__"].__get__

_OWN = f"{__file__.rpartition(os.sep)[0]}{os.sep}"


def capture(error: BaseException | str) -> Failure:
    """What is stored of an error. Never raises, whatever the exception does when it is looked at.

    Texts are cut to 8 KiB; characters that are not valid Unicode are replaced.
    """
    # By its type alone: looking at `__class__`, as isinstance does, may run the exception's own code.
    if issubclass(type(error), str):
        return Failure(type="", text=bounded(cast("str", error), ERROR_TEXT_MAX))
    error = cast("BaseException", error)
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
    """The last frames, innermost last. Without the lines' text: reading sources costs more than most jobs.

    The outermost are ulak's, which called what has failed: they are left out.
    """
    frames: deque[str] = deque(maxlen=_FRAMES_MAX)
    trace: TracebackType | None = _traceback_of(error)
    while trace is not None and trace.tb_next is not None and _is_own(trace.tb_frame.f_code.co_filename):
        trace = trace.tb_next
    while trace is not None:
        code = trace.tb_frame.f_code
        frames.append(f'File "{code.co_filename}", line {trace.tb_lineno}, in {code.co_qualname}\n')
        trace = trace.tb_next
    return "".join(frames)


def _is_own(file: str) -> bool:
    """Whether it is a file of ulak's, or what stands between two of them."""
    return file.startswith(_OWN) or file == contextlib.__file__


# What is shown of what is stored


def said_of(failure: Failure) -> str:
    """An error in a line, with where it was raised: `ValueError: no such user (hello.py:8)`."""
    said = failure.text.strip().partition("\n")[0][:_FIRST_LINE_MAX]
    text = ": ".join(part for part in (failure.type, said) if part)
    place = place_of(failure)
    return f"{text} ({place})" if place else text


def place_of(failure: Failure) -> str:
    """Where an error was raised, as in `hello.py:8`; empty if that is not known. See `frame_of`."""
    match = _FRAME.fullmatch(frame_of(failure))
    if match is None:
        return ""
    # Only whoever shows errors pays for its import.
    from pathlib import Path

    file = match["file"]
    with contextlib.suppress(OSError):  # the directory is gone
        file = file.removeprefix(f"{Path.cwd()}{os.sep}")
    return f"{file}:{match['line']}"


def frame_of(failure: Failure) -> str:
    """The innermost frame of an error that is not in a file of ulak's, if it has one; else its innermost.

    So an error that ulak raised for what a task did is placed there.
    """
    frames = failure.traceback.strip().split("\n")
    for frame in reversed(frames):
        match = _FRAME.fullmatch(frame)
        if match is not None and not _is_own(match["file"]):
            return frame
    return frames[-1]
