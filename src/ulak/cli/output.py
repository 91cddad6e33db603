"""Text on its way out: no control character of somebody else's, no character the stream cannot encode."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TextIO

# C0 and C1, what turns lines around or ends them, and lone surrogates: all that makes a terminal or a log
# show something else than what was written.
_CONTROL = re.compile("[\x00-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069\ud800-\udfff]")
_ASCII = str.maketrans({"µ": "u", "…": "..."})


class Unwritten(OSError):
    """Standard output has not taken all that was to be said; a reader that has gone is a BrokenPipeError."""


def visible(text: str) -> str:
    r"""The text on one line, with its control characters escaped, as in `\x1b`."""
    return _CONTROL.sub(lambda found: ascii(found.group())[1:-1], text)


def encodable(text: str, encoding: str) -> str:
    """The text, if the encoding has all of it; else its nearest form that it does have."""
    try:
        text.encode(encoding)
    except UnicodeEncodeError:
        return text.translate(_ASCII).encode(encoding, "replace").decode(encoding)
    return text


@contextmanager
def written(to: object) -> Iterator[None]:
    """Inside, an error of writing is Unwritten, if `to` is standard output."""
    try:
        yield
    except BrokenPipeError:
        raise
    except OSError as error:
        if to is not sys.stdout:
            raise
        raise Unwritten(f"standard output could not be written: {error.strerror or error}") from error


def say(text: str, *, to: TextIO | None) -> None:
    """Write lines, at once. A stream that is None (the process has none) takes nothing."""
    if to is not None:
        with written(to):
            to.write(encodable(text, to.encoding or "utf-8") + "\n")
            to.flush()
