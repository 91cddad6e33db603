"""From the words of a command line to a call's arguments: each is read as its parameter is annotated."""

from __future__ import annotations

import inspect
from collections.abc import Sequence
from typing import Any, get_args, get_origin

import msgspec

from ulak.annotations import ANY, as_text
from ulak.arguments import Parameters
from ulak.errors import ArgumentError
from ulak.shape import decoder_of

_REST, _NAMED_REST = inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD
_BY_PLACE = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)


def values_of(parameters: Parameters, words: Sequence[str]) -> tuple[list[Any], dict[str, Any]]:
    """The arguments that these words are, by place and by name.

    What the function does not take is passed on as it stands: whoever binds the call says what is wrong.
    Raises ArgumentError for a word that cannot be what its parameter is annotated as.
    """
    fields = parameters.fields
    places = [(field.name, field.hint) for field in fields if field.kind in _BY_PLACE]
    names = {field.name: field.hint for field in fields if field.kind not in (_REST, _NAMED_REST)}
    rest = next((_each(field.hint) for field in fields if field.kind is _REST), ANY)
    named_rest = next((_each(field.hint) for field in fields if field.kind is _NAMED_REST), ANY)
    by_place: list[Any] = []
    by_name: dict[str, Any] = {}
    for word in words:
        name, equals, text = word.partition("=")
        if equals and name.isidentifier():
            if name in by_name:
                raise ArgumentError(f"argument {name!r} is given twice")
            by_name[name] = value_of(text, names.get(name, named_rest), name)
        elif by_name:
            raise ArgumentError("arguments by place come before those by name")
        else:
            number = len(by_place)
            name, hint = places[number] if number < len(places) else (f"number {number + 1}", rest)
            by_place.append(value_of(word, hint, name))
    return by_place, by_name


def _each(hint: Any) -> Any:  # noqa: ANN401 - a type
    """The type of one of those that take the rest; ANY where they are not all of one type."""
    if get_origin(hint) in (tuple, dict):
        return get_args(hint)[0 if get_origin(hint) is tuple else 1]
    return ANY


def value_of(text: str, hint: Any, name: str) -> Any:  # noqa: ANN401 - of the type that the hint is
    """A word as a value of this type. Raises ArgumentError, which does not hold it.

    >>> value_of("5", int, "n"), value_of("5", str, "n"), value_of("5", str | None, "n")
    (5, '5', '5')
    """
    if hint is str:
        return text
    try:
        return decoder_of(hint)(text.encode())
    except Exception:  # noqa: BLE001, S110 - of the user's own classes too: then it is no JSON
        pass
    if hint is ANY:
        return text
    try:
        return msgspec.convert(text, hint, strict=False)
    except Exception:  # noqa: BLE001, S110 - as above
        pass
    raise ArgumentError(f"argument {name!r} cannot be read as {as_text(hint)}")
