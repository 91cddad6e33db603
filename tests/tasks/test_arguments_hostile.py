"""Values that are equal and not the same, and classes that raise when they are looked at, are refused."""

from __future__ import annotations

import collections.abc
import enum
import types
import typing
from dataclasses import dataclass
from datetime import datetime, time
from typing import Annotated, Any, TypedDict
from zoneinfo import ZoneInfo

import msgspec
import pytest

from tests.tasks.test_arguments import for_one, returning, sent
from ulak import ArgumentError, Context, PayloadError
from ulak.arguments import Parameters

SECRET = "hunter2"


class Flags(TypedDict, total=False):
    loud: bool


# Times that come twice


@dataclass(frozen=True)
class Kept:
    at: datetime


class Noted(msgspec.Struct, frozen=True):
    at: datetime


LATER = datetime(2026, 10, 25, 2, 30, fold=1)  # noqa: DTZ001
IN_OVERLAP = LATER.replace(tzinfo=ZoneInfo("Europe/Berlin"))


@pytest.mark.parametrize(
    ("hint", "value"),
    [
        (set[datetime], {LATER}),
        (frozenset[time], frozenset({LATER.time()})),
        (set[tuple[datetime, int]], {(LATER, 1)}),
        (list[set[datetime]], [{LATER}]),
        (dict[datetime, int], {LATER: 1}),
        (Kept, Kept(LATER)),
        (set[Kept], {Kept(LATER)}),
        (Noted, Noted(LATER)),
        (set[Noted], {Noted(LATER)}),
    ],
)
def test_a_time_that_would_come_an_hour_earlier_is_refused_wherever_it_is(hint: Any, value: Any) -> None:
    with pytest.raises(ArgumentError, match="a time without a zone that has fold=1"):
        for_one(hint).encode((value,), {})


@pytest.mark.parametrize(
    ("hint", "value"), [(set[datetime], {IN_OVERLAP}), (dict[datetime, int], {IN_OVERLAP: 1})]
)
def test_a_time_is_refused_that_would_not_be_found_any_more(hint: Any, value: Any) -> None:
    with pytest.raises(ArgumentError, match="it would not come back equal"):
        for_one(hint).encode((value,), {})


def test_a_time_that_comes_once_travels_in_sets_and_as_a_key() -> None:
    once = IN_OVERLAP.replace(hour=12)
    assert sent(set[datetime], {once}) == {once}
    assert sent(dict[datetime, int], {once: 1})[once] == 1


def test_a_time_in_a_pydantic_model_is_looked_at_too() -> None:
    pydantic = pytest.importorskip("pydantic")
    model = pydantic.create_model("Model", at=(datetime, ...))
    with pytest.raises(ArgumentError, match=r"argument 'x\.at': a time without a zone that has fold=1"):
        for_one(model).encode((model(at=LATER),), {})
    assert sent(model, model(at=LATER.replace(fold=0))).at == LATER


# Classes that raise


def strike(*_: object, **__: object) -> Any:
    raise LookupError(SECRET)


class Text(str):
    __slots__ = ()
    __eq__ = __ne__ = __hash__ = __repr__ = __str__ = __getitem__ = __iter__ = __len__ = strike


class Key(str):
    __slots__ = ()
    __repr__ = __str__ = __getitem__ = strike


class Many(list[Any]):
    __iter__ = __len__ = __getitem__ = strike


class Table(dict[str, Any]):
    __iter__ = __len__ = __getitem__ = items = keys = values = strike  # type: ignore[assignment]


class Number(int):
    __eq__ = __ne__ = __hash__ = __repr__ = __lt__ = __gt__ = __neg__ = strike


class Lookup(collections.abc.Mapping[str, int]):
    __getitem__ = __iter__ = __len__ = items = strike  # type: ignore[assignment]


class Veiled:
    __class__ = property(strike)  # type: ignore[assignment]


class Meta(type):
    __dir__ = __getattribute__ = strike  # type: ignore[assignment]


class Shielded(metaclass=Meta):
    pass


class Choice(enum.Enum):
    A = "a"

    @classmethod
    def _missing_(cls, value: object) -> None:
        raise LookupError(SECRET)


# Not themselves, as pytest would look at them.
MAKERS: list[Any] = [
    lambda: Text(SECRET),
    lambda: {Key(SECRET): object()},
    lambda: Many([SECRET]),
    lambda: Table({"a": SECRET}),
    lambda: Number(7),
    lambda: Lookup(),  # noqa: PLW0108 - as above
    lambda: Veiled(),  # noqa: PLW0108
    lambda: Shielded(),  # noqa: PLW0108
]


@pytest.mark.parametrize("hint", [Any, object, int, list[int], dict[str, int], Choice, Kept], ids=str)
@pytest.mark.parametrize("make", MAKERS)
def test_what_a_class_raises_as_it_is_looked_at_is_no_error_of_the_caller(hint: Any, make: Any) -> None:
    for value in (make(), [make()], {"a": make()}):
        with pytest.raises(ArgumentError, match="argument 'x") as caught:
            for_one(hint).encode((value,), {})
        assert SECRET not in str(caught.value)
        assert caught.value.__cause__ is None
        assert caught.value.__context__ is None
        with pytest.raises(PayloadError, match="the result") as unstored:
            returning(hint).encode_result(value)
        assert SECRET not in str(unstored.value)


def test_what_an_enum_raises_for_a_value_is_not_shown() -> None:
    with pytest.raises(ArgumentError, match="argument 'x': not one of the values that are allowed") as caught:
        for_one(Choice).encode((SECRET,), {})
    assert SECRET not in str(caught.value)


def test_what_a_validator_raises_is_not_shown() -> None:
    pydantic = pytest.importorskip("pydantic")

    class Strict(pydantic.BaseModel):
        n: int

        _check = pydantic.field_validator("n")(lambda value: strike())

    with pytest.raises(ArgumentError, match=r"argument 'x': not what .*Strict takes") as caught:
        for_one(Strict).encode((Strict.model_construct(n=1),), {})
    assert SECRET not in str(caught.value)


def test_a_name_of_a_class_that_raises_is_taken_as_the_text_that_it_is() -> None:
    class Name(str):
        __slots__ = ()
        __hash__ = str.__hash__
        __eq__ = strike

    with pytest.raises(ArgumentError, match="no parameter"):
        for_one(int).encode((), {Name("y"): 1})


# JSON inside of what is annotated


@pytest.mark.parametrize(
    ("hint", "value", "said"),
    [
        (int, 10**5000, "argument 'x': an int of 16,610 bits, more than 2,126; pass it as a hex str"),
        (list[int], [1, 10**5000], "argument 'x[1]': an int of 16,610 bits"),
        (Any, object(), "argument 'x': an object has no exact JSON form"),
        (Flags, {"loud": True, "quiet": True}, "argument 'x': there is no key \"quiet\" in its type"),
    ],
    ids=["long", "long inside", "object", "key"],
)
def test_what_is_said_is_what_is_wrong(hint: Any, value: Any, said: str) -> None:
    with pytest.raises(ArgumentError) as caught:
        for_one(hint).encode((value,), {})
    assert said in str(caught.value)


@pytest.mark.parametrize(
    ("hint", "value"),
    [
        (dict[str, object], {"a": 1, "b": [None, {"c": 2.5}], "d": "e", "f": True}),
        (list[object], [1, "a", None, [], {"a": {}}]),
        (tuple[object, ...], (1, "a")),
        (object | None, {"a": [1]}),
    ],
)
def test_object_stands_for_whatever_json_has(hint: Any, value: Any) -> None:
    assert sent(hint, value) == value
    for other in ((1,), {1}, b"a", LATER, float("nan")):
        with pytest.raises(ArgumentError, match="argument 'x"):
            for_one(hint).encode((type(value)([other]) if not isinstance(value, dict) else {"a": other},), {})


# Signatures


def test_a_context_that_would_be_given_twice_is_refused() -> None:
    def before(a: int, job: Context | None = None, *rest: int): ...

    def behind(a: int, *rest: int, job: Context | None = None): ...

    def first(job: Context, *rest: int): ...

    with pytest.raises(ArgumentError, match=r"make it the first one, or move it behind \*rest"):
        Parameters(before, "m.f")
    for fine in (behind, first):
        p = Parameters(fine, "m.f")
        assert p.decode(p.encode((1, 2, 3), {}), "json") == ((1, 2, 3), {})


@pytest.mark.parametrize(
    "hint",
    [typing.Iterable, typing.Collection, collections.abc.Iterable, collections.abc.Collection],
)
def test_what_can_be_iterated_over_is_a_list_also_where_nothing_is_said_of_its_items(hint: Any) -> None:
    assert sent(hint, [1, "a"]) == [1, "a"]


def test_a_parameter_may_have_a_name_that_python_changes_in_a_class() -> None:
    def f(a, *, __b=2, __c=3): ...

    p = Parameters(f, "m.f")
    assert p.decode(p.encode((1,), {"__c": 4}), "json") == ((), {"a": 1, "__c": 4})


def test_a_context_may_be_annotated_further() -> None:
    def f(a: int, job: Annotated[Context | None, "mine"] = None): ...

    assert Parameters(f, "m.f").context_name == "job"


later = types.ModuleType("later")


@dataclass
class Around:
    inner: later.Inner  # type: ignore[name-defined]


@pytest.mark.parametrize("hint", ["later.Thing", "list[later.Thing]", "later.Thing | None"])
def test_a_name_that_a_module_does_not_have_yet_is_looked_at_again_at_the_first_use(hint: str) -> None:
    def f(a): ...

    f.__annotations__ = {"a": hint, "return": hint}
    p = Parameters(f, "m.f")
    with pytest.raises(ArgumentError, match="parameter 'a' names 'Thing', which is not there at run time"):
        p.encode((1,), {})
    later.Thing = int  # type: ignore[attr-defined]
    try:
        assert p.encode(([1] if "list" in hint else 1,), {})
    finally:
        del later.Thing  # type: ignore[attr-defined]


def test_a_name_that_is_missing_in_an_arguments_class_is_told_with_the_parameter() -> None:
    p = for_one(Around)
    with pytest.raises(ArgumentError, match="parameter 'x' names 'Inner', which is not there at run time"):
        p.encode((1,), {})


@pytest.mark.parametrize("hint", ["list[", "1 +", "int[3]", "1 / 0", "{}['a']", "(int, str)"])
def test_an_annotation_that_cannot_be_read_is_refused_when_the_task_is_made(hint: str) -> None:
    with pytest.raises(
        ArgumentError, match=r"parameter 'x' is annotated .*: reading it raised [A-Za-z]*Error"
    ):
        for_one(hint)
    with pytest.raises(ArgumentError, match=r"its result is annotated .*: reading it raised [A-Za-z]*Error"):
        returning(hint)
