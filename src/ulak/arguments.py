"""A task's arguments and result as bytes and back, typed by its function's annotations.

The caller encodes, decodes what came of it as a worker will, and compares: whatever would arrive otherwise
than it was given is refused where it was given. Error texts hold names, paths and types, never a value.
"""

from __future__ import annotations

import contextlib
import difflib
import inspect
from collections.abc import Callable, Container, Mapping, Sequence
from typing import Any

import msgspec
from msgspec.structs import astuple

from ulak import codec, foreign
from ulak.annotations import (
    ANY,
    Annotations,
    Missing,
    as_text,
    is_async,
    means_context,
    of_parameter,
    of_return,
    why_not,
)
from ulak.bounds import why_beyond
from ulak.codec import PAYLOAD_BYTES_MAX
from ulak.errors import ArgumentError, PayloadError
from ulak.exact import check_same, shown
from ulak.reasons import why_not_read, why_refused
from ulak.shape import Arguments, Field, Shape, decoder_of, encode_json

RESULT_BYTES_MAX = 64 * 1024
_TEXT_MAX = 160
_DIFFERENCES_MAX = 8


class Misfit(Exception):
    """Stored arguments do not fit the function's signature. The text is the difference, without values."""


class Parameters:
    """What a function takes and gives, as callers and workers pass it on.

    is_async: it is `async def`. context_name: the parameter that the worker fills in with the job's
    `Context`, if there is one; context_is_first: it does so by place. text: the function as errors show it.
    nearby: names that are in scope where the function is defined, but not in its module. options: what may
    be said of a job, and is no argument.
    Raises ArgumentError if the function cannot be a task's. Annotations that cannot be resolved yet are
    looked at again at the first use.
    """

    def __init__(
        self,
        function: Callable[..., Any],
        name: str,
        *,
        nearby: Mapping[str, Any] | None = None,
        options: Container[str] = (),
    ) -> None:
        self.name = name
        self._options = options
        self.is_async = is_async(function)
        self._annotations = Annotations(function, nearby)
        whole = _signature_of(function, name)
        self.context_name, self.context_is_first = self._find_context(whole)
        given = [parameter for parameter in whole.parameters.values() if parameter.name != self.context_name]
        self._signature = whole.replace(parameters=given)
        self.text = _text_of(name, self._signature)
        self._shape: Shape | None = None
        self._returned: Returned | None = None
        with contextlib.suppress(Missing):
            self._look()
        self._annotations.forget_nearby()

    # Arguments

    @property
    def fields(self) -> Sequence[Field]:
        """What callers may give; what is only taken by name comes last. Raises ArgumentError as `encode`."""
        return (self._shape or self._look_again()).fields

    def encode(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> bytes:
        """The arguments of one call as JSON: an object of what was given, by the parameters' names.

        Raises ArgumentError if they do not fit the signature, or would not arrive as they were given.
        """
        shape = self._shape or self._look_again()
        try:
            given = shape.bind(args, kwargs)
            # A **kwargs would take also what is the worker's to fill in.
            is_ours = not kwargs or self.context_name not in kwargs
            if is_ours and shape.is_plain(given):
                body = encode_json(given)
                if len(body) <= PAYLOAD_BYTES_MAX:
                    return body
            elif is_ours and why_beyond(astuple(given), PAYLOAD_BYTES_MAX, 1) is None:
                body = encode_json(given)
                if len(body) <= PAYLOAD_BYTES_MAX and not codec.is_too_deep(body):
                    shape.check(given, shape.decode(body))
                    return body
        except Exception:  # noqa: BLE001, S110 - of the user's own classes too; it is told below
            pass
        # Out here and not where it was caught, since some exceptions hold the value.
        raise ArgumentError(self._refusal(shape, args, kwargs))

    def decode(self, body: bytes, tag: str) -> Arguments:
        """The arguments as a call takes them.

        Raises Misfit if they do not fit the signature, PayloadError if the bytes are not readable at all.
        """
        shape = self._shape or self._look_again()
        if tag == "json" and (shape.is_flat or not codec.is_too_deep(body)):
            try:
                return shape.spread(shape.decode(body))
            except Exception:  # noqa: BLE001, S110 - as above
                pass
        stored = codec.decode(body, tag)
        raise Misfit(self._difference(shape, stored, body))

    # Results

    def encode_result(self, value: object) -> bytes | None:
        """What a call returned, as JSON; None, and all that a function annotated None returns, as None.

        Raises PayloadError if it would not arrive as it is, or is larger than 64 KiB.
        """
        return None if value is None else self._result().encode(value)

    def decode_result(self, body: bytes | None) -> Any:  # noqa: ANN401 - what the function returns
        """What a call returned. Raises PayloadError if that is not what the function returns now."""
        return None if body is None else self._result().decode(body)

    # Looking at the function

    def _find_context(self, whole: inspect.Signature) -> tuple[str | None, bool]:
        found = [given for given in whole.parameters.values() if self._is_context(given.annotation)]
        if not found:
            return None, False
        if len(found) > 1:
            raise ArgumentError(f"task {self.name}: one parameter may be annotated Context, not {len(found)}")
        name, is_first = found[0].name, found[0] is next(iter(whole.parameters.values()))
        by_place = found[0].kind in (
            inspect.Parameter.POSITIONAL_ONLY,
            inspect.Parameter.POSITIONAL_OR_KEYWORD,
        )
        if is_first and by_place:
            return name, True
        by_name = found[0].kind in (inspect.Parameter.KEYWORD_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
        rest = [given.name for given in whole.parameters.values() if given.kind is given.VAR_POSITIONAL]
        if rest and by_place and by_name:
            raise ArgumentError(
                f"task {self.name}: the worker fills in parameter {name!r}, and what *{rest[0]} takes would "
                f"come in its place\n  make it the first one, or move it behind *{rest[0]}"
            )
        if by_name and found[0].default is not inspect.Parameter.empty:
            return name, False
        raise ArgumentError(
            f"task {self.name}: the worker fills in parameter {name!r}, so callers must be able to leave it "
            f"out\n  make it the first one, or give it a default: {name}: Context | None = None"
        )

    def _is_context(self, annotation: object) -> bool:
        try:
            return means_context(self._annotations.resolve(annotation))
        except Exception:  # noqa: BLE001 - told when the parameter's own turn comes
            # Imported for type checkers only, perhaps.
            return means_context(annotation)

    def _look(self) -> Shape:
        """Resolve the annotations.

        Raises ArgumentError for a type that cannot travel, Missing for a name that is not there.
        """
        fields: list[Field] = []
        for name, given in self._signature.parameters.items():
            try:
                fields.append(self._field_of(given))
            except Missing as missing:
                raise Missing(str(missing), name) from None
        with contextlib.suppress(Missing):
            self._look_at_result()
        self._shape = Shape(self._signature, fields)
        return self._shape

    def _field_of(self, given: inspect.Parameter) -> Field:
        hint = self._resolved(
            given.annotation, f"parameter {given.name!r}", lambda hint: Field(given, of_parameter(hint)).hint
        )
        return Field(given, of_parameter(hint))

    def _resolved(self, hint: Any, what: str, stored_as: Callable[[Any], Any]) -> Any:  # noqa: ANN401 - a type
        """The type that is meant. Raises as `_look`."""
        reason = None
        try:
            hint = self._annotations.resolve(hint)
            reason = why_not(stored_as(hint))
        except Missing:
            raise
        except Exception as error:  # noqa: BLE001 - Python reads what is in quotes for the first time here
            reason = f"reading it raised {type(error).__name__}"
        if reason is not None:
            raise ArgumentError(f"task {self.name}: {what} is annotated {as_text(hint)}: {reason}")
        return hint

    def _look_again(self) -> Shape:
        try:
            return self._look()
        except Missing as error:
            missing, name = error.args
        raise ArgumentError(
            f"task {self.name}: the annotation of parameter {name!r} names {missing!r}, which is not there "
            f"at run time\n  define or import it in the task's module, not only under TYPE_CHECKING"
        )

    def _look_at_result(self) -> Returned:
        hint = self._resolved(self._signature.return_annotation, "its result", of_return)
        self._returned = Returned(of_return(hint))
        return self._returned

    def _result(self) -> Returned:
        if self._returned is None:
            try:
                return self._look_at_result()
            except Missing:
                # Nothing that must be known before the task can run: stored as if it were not annotated.
                self._returned = Returned(ANY)
        return self._returned

    # Saying what is wrong

    def _refusal(self, shape: Shape, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> str:
        """Why these arguments are refused."""
        # As plain texts: a name may be of a class of the user's.
        kwargs = {str.__str__(name): value for name, value in kwargs.items()}
        if (wrong := self._misnamed(kwargs)) is not None:
            return f"{self.text}: {wrong}"
        try:
            given = self._signature.bind(*args, **kwargs).arguments
        except TypeError as error:
            return f"{self.text}: {str(error)[:_TEXT_MAX]}"
        for field in shape.fields:
            if field.name not in given:
                continue
            if (why := why_refused(field.hint, given[field.name], is_any=field.is_any)) is not None:
                return f"{self.text}: argument '{field.name}{why[0]}'{why[1]}"
        return (
            f"{self.text}: the arguments are more than {PAYLOAD_BYTES_MAX:,} bytes as JSON, or nested more "
            f"than {codec.NESTING_MAX} deep\n  keep the data elsewhere, and pass a reference to it"
        )

    def _misnamed(self, kwargs: Mapping[str, Any]) -> str | None:
        """What is wrong with the names of the arguments, if anything."""
        known = [given.name for given in self._signature.parameters.values()]
        takes_any = any(given.kind is given.VAR_KEYWORD for given in self._signature.parameters.values())
        for name in kwargs:
            if name == self.context_name:
                return f"leave {name!r} out: the worker fills it in"
            if name in known or takes_any:
                continue
            option = f"{name}=..." if name in self._options else foreign.OPTION.get(name)
            if option is not None:
                own = self.name.rpartition(".")[2]
                return f"no parameter {name!r}; an option of its job? {own}.using({option}).enqueue(...)"
            near = difflib.get_close_matches(name, known, 1)
            return f"no parameter {shown(name)}{f'; did you mean {near[0]!r}?' if near else ''}"
        return None

    def _difference(self, shape: Shape, stored: object, body: bytes) -> str:
        """How stored arguments differ from what the function takes."""
        if not isinstance(stored, dict):
            return (
                f"{self.text}: what is stored is of type {type(stored).__name__}, not an object of arguments"
            )
        parts = msgspec.json.decode(body, type=dict[str, msgspec.Raw])
        expected = {field.key: field for field in shape.fields}
        differences = [
            *(
                f"no argument {key!r} is stored"
                for key, field in expected.items()
                if field.is_required and key not in parts
            ),
            *(
                f"argument {shown(key)} is stored, which it does not take"
                for key in parts
                if key not in expected
            ),
            *(
                f"argument '{key}{why[0]}'{why[1]}"
                for key, field in expected.items()
                if key in parts and (why := why_not_read(field.hint, parts[key])) is not None
            ),
        ]
        more = len(differences) - _DIFFERENCES_MAX
        text = "; ".join(differences[:_DIFFERENCES_MAX]) or "what is stored does not fit"
        return f"{self.text}: {text}{f'; and {more} more' if more > 0 else ''}"


class Returned:
    """What a function returns, as it is stored."""

    def __init__(self, hint: Any) -> None:  # noqa: ANN401 - a type, in any of its forms
        self._hint = hint
        self._decode = decoder_of(hint)

    def encode(self, value: object) -> bytes | None:
        """As JSON. Raises PayloadError."""
        if self._hint is type(None):
            return None
        try:
            body = encode_json(value) if why_beyond([value], RESULT_BYTES_MAX) is None else None
            if body is not None and len(body) <= RESULT_BYTES_MAX and not codec.is_too_deep(body):
                if self._hint is ANY:
                    codec.check_json(value, what="")
                else:
                    check_same(value, self._decode(body))
                return body
        except Exception:  # noqa: BLE001, S110 - of the user's own classes too; it is told below
            pass
        is_any, most = self._hint is ANY, RESULT_BYTES_MAX
        reason = why_refused(self._hint, value, is_any=is_any, limit_bytes=most, level=0)
        where, why = reason or ("", " cannot be stored")
        raise PayloadError(f"the result{where}{why}")

    def decode(self, body: bytes) -> Any:  # noqa: ANN401 - as annotated
        """What was stored. Raises PayloadError if it is not what is annotated now."""
        try:
            return self._decode(body)
        except Exception:  # noqa: BLE001, S110 - as above
            pass
        where, why = why_not_read(self._hint, body) or ("", " cannot be read")
        raise PayloadError(f"the stored result{where}{why}")


def _signature_of(function: Callable[..., Any], name: str) -> inspect.Signature:
    try:
        return inspect.signature(function)
    except (TypeError, ValueError):
        raise ArgumentError(
            f"task {name}: {type(function).__name__} has no signature to check calls against\n"
            f"  wrap it in a def with annotated parameters"
        ) from None


def _text_of(name: str, signature: inspect.Signature) -> str:
    """The function as errors show it, without its defaults, which may be anything."""
    parts: list[str] = []
    for given in signature.parameters.values():
        stars = "*" * ((given.kind is given.VAR_POSITIONAL) + 2 * (given.kind is given.VAR_KEYWORD))
        hint: object = given.annotation
        if hint is given.empty:
            parts.append(f"{stars}{given.name}{'' if given.default is given.empty else '=...'}")
        else:
            default = "" if given.default is given.empty else " = ..."
            parts.append(f"{stars}{given.name}: {hint if isinstance(hint, str) else as_text(hint)}{default}")
    text = f"{name}({', '.join(parts)})"
    return text if len(text) <= _TEXT_MAX else f"{text[: _TEXT_MAX - 2]}…)"
