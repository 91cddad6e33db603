"""One function's arguments as a struct type: bound, encoded and decoded by msgspec, in C."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Mapping
from datetime import datetime
from typing import Any, TypeAlias, Unpack, cast, get_args, get_origin

import msgspec
from msgspec import UNSET
from msgspec.structs import astuple

from ulak import codec
from ulak.annotations import ANY
from ulak.codec import PAYLOAD_BYTES_MAX
from ulak.exact import check_same, is_pydantic

Arguments: TypeAlias = tuple[tuple[Any, ...], dict[str, Any]]
"""As a call takes them: by place, and by name."""

_BY_PLACE = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
_PLACE_ONLY = inspect.Parameter.POSITIONAL_ONLY
_NAME_ONLY = inspect.Parameter.KEYWORD_ONLY
_REST, _NAMED_REST = inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD

# Equal, and of one of these types on both sides, an argument needs no second look.
_SCALARS = frozenset({str, bool, type(None), float, type(UNSET)})
_INT_LOOKED_AT = 2**63


def _to_json(value: object) -> Any:  # noqa: ANN401 - whatever the encoder takes
    """What the encoder writes for an object that it does not know."""
    if is_pydantic(type(value)):
        return cast("Any", value).model_dump(mode="json", by_alias=True, round_trip=True, warnings=False)
    # A str or datetime of a class of its own (marked as safe HTML, frozen for a test) arrives as a plain one.
    if isinstance(value, str):
        return "".join(value)
    if isinstance(value, datetime):
        return value.isoformat()
    raise NotImplementedError


def _from_json(kind: type, value: object) -> object:
    """What the decoder makes of JSON where a class is annotated that it does not know."""
    if kind is object:
        return value
    if is_pydantic(kind):
        return cast("Any", kind).model_validate(value)
    raise NotImplementedError


encode_json: Callable[[object], bytes] = msgspec.json.Encoder(enc_hook=_to_json).encode


def decoder_of(hint: Any) -> Callable[[bytes | msgspec.Raw], Any]:  # noqa: ANN401 - a type, in any of its forms
    """Decodes JSON as values of this type, strictly."""
    return msgspec.json.Decoder(hint, dec_hook=_from_json).decode


class Field:
    """One parameter, and what is stored of its argument.

    key: its name there; `*name` and `**name` for what takes the rest. hint: the type, `ANY` as codec.encode.
    """

    def __init__(self, parameter: inspect.Parameter, hint: Any) -> None:  # noqa: ANN401 - as above
        self.name = parameter.name
        self.kind = parameter.kind
        self.default = parameter.default
        self.is_any = hint is ANY
        self.hint: Any
        match self.kind:
            case inspect.Parameter.VAR_POSITIONAL:
                self.key, self.hint = f"*{self.name}", tuple[hint, ...]
            case inspect.Parameter.VAR_KEYWORD if get_origin(hint) is Unpack:
                self.key, self.hint = f"**{self.name}", get_args(hint)[0]
            case inspect.Parameter.VAR_KEYWORD:
                self.key, self.hint = f"**{self.name}", dict[str, hint]
            case _:
                self.key, self.hint = self.name, hint
        self.is_required = self.key == self.name and self.default is inspect.Parameter.empty

    def check(self, given: object, back: object) -> None:
        """Raise Different or PayloadError unless the argument came back as it was given."""
        if not self.is_any:
            check_same(given, back)
        else:
            # What takes the rest is given as a tuple, which only an annotation could bring back.
            plain = list(cast("Iterable[object]", given)) if self.kind is _REST else given
            codec.check_json(plain, what="")


class Shape:
    """The struct type of a function's arguments: how it is filled, compared and spread.

    fields: in the struct's order, those that are only taken by name last.
    """

    def __init__(self, signature: inspect.Signature, fields: Iterable[Field]) -> None:
        self._signature = signature
        named = [field for field in fields if field.kind is _NAME_ONLY]
        placed = [field for field in fields if field.kind is not _NAME_ONLY]
        self.fields = placed + named
        rename = {field.name: field.key for field in self.fields}
        base = _struct(named, msgspec.Struct, rename, kw_only=True)
        self._struct = _struct(placed, base, rename, kw_only=False)
        # Then the struct's own constructor takes arguments exactly as the function would.
        self._is_simple = all(field.kind in (_BY_PLACE[1], _NAME_ONLY) for field in self.fields)
        self._is_row = all(field.kind in _BY_PLACE and field.is_required for field in self.fields)
        self._plain = _plain_of(self.fields)
        # Then a decoder stops at the first bracket, however many come after it.
        self.is_flat = self._plain is not None
        self.decode = decoder_of(self._struct)

    def is_plain(self, given: Any) -> bool:  # noqa: ANN401 - of the struct type
        """Whether all arguments are plain values of the very types that are annotated, and not very long.

        They come back as they were given, and nothing in them is nested.
        """
        plain = self._plain
        if plain is None:
            return False
        for value, kind in zip(astuple(given), plain, strict=True):
            if type(value) is not kind:
                return False
            if kind is str and len(value) > PAYLOAD_BYTES_MAX:  # type: ignore[arg-type] # narrowed
                return False
            if kind is int and not -_INT_LOOKED_AT < value < _INT_LOOKED_AT:  # type: ignore[operator] # narrowed
                return False
        return True

    def bind(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:  # noqa: ANN401 - of the struct type
        """The arguments as the function would take them. Raises TypeError."""
        if self._is_simple:
            return self._struct(*args, **kwargs)
        return self._struct(**self._signature.bind(*args, **kwargs).arguments)

    def check(self, given: Any, back: Any) -> None:  # noqa: ANN401 - of the struct type
        """Raise Different or PayloadError unless all arguments came back as they were given."""
        for field, mine, theirs in zip(self.fields, astuple(given), astuple(back), strict=True):
            kind = type(mine)
            is_plain = kind in _SCALARS or (kind is int and -_INT_LOOKED_AT < mine < _INT_LOOKED_AT)
            if not (is_plain and kind is type(theirs) and mine == theirs):
                field.check(mine, theirs)

    def spread(self, back: Any) -> Arguments:  # noqa: ANN401 - of the struct type
        """The arguments as a call takes them, only those that were given."""
        values = astuple(back)
        if self._is_row:
            return values, {}
        given = dict(zip((field.name for field in self.fields), values, strict=True))
        given = {name: value for name, value in given.items() if value is not UNSET}
        by_place = [field for field in self.fields if field.kind in _BY_PLACE]
        rest: tuple[Any, ...] = ()
        more: dict[str, Any] = {}
        for field in self.fields:
            if field.kind is _REST:
                rest = given.pop(field.name, ())
            elif field.kind is _NAMED_REST:
                more = given.pop(field.name, {})
        # What *args takes can only be reached by place, past defaults that were left out.
        last = 0
        for number, field in enumerate(by_place, 1):
            if rest or (field.kind is _PLACE_ONLY and field.name in given):
                last = number
        args = [given.pop(field.name, field.default) for field in by_place[:last]]
        return (*args, *rest), {**given, **more}


def _plain_of(fields: Iterable[Field]) -> tuple[type, ...] | None:
    """The type of each argument, where all have to be given and of a type that JSON has as it is."""
    kinds = [field.hint if field.kind in _BY_PLACE and field.is_required else None for field in fields]
    plain = [kind for kind in kinds if kind is str or kind is int or kind is bool]
    return tuple(plain) if len(plain) == len(kinds) else None


def _struct(fields: list[Field], base: type[Any], rename: dict[str, str], *, kw_only: bool) -> type[Any]:
    return msgspec.defstruct(
        # Python changes names such as __x inside a class, unless that has no letter in its own.
        "_",
        [
            (field.name, field.hint) if field.is_required else (field.name, field.hint, UNSET)
            for field in fields
        ],
        bases=(base,),
        rename=rename,
        kw_only=kw_only,
        forbid_unknown_fields=True,
        eq=False,
        gc=False,
    )
