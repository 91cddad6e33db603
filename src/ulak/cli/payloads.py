"""A payload as a command line has it: JSON, in a word or on the standard input."""

from __future__ import annotations

import sys

from ulak import codec
from ulak.errors import ConfigError, PayloadError


def read_json(word: str) -> bytes:
    """The JSON that the word is; `-`: that on the standard input. Raises ConfigError if it is none.

    It has been checked that it can be a payload.
    """
    text = sys.stdin.buffer.read() if word == "-" else word.encode(errors="surrogateescape")
    try:
        value = codec.decode(text, "json")
    except PayloadError:
        raise ConfigError(
            f"--payload is no JSON, or is nested more than {codec.NESTING_MAX} deep\n"
            "  a text has quotation marks: '\"text\"'"
        ) from None
    try:
        codec.encode(value)
    except PayloadError as error:
        raise ConfigError(f"--{error.args[0]}") from None
    return text
