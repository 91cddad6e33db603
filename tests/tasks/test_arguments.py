"""Every argument arrives as it was given, equal and of its type, or is refused where it was given."""

from __future__ import annotations

import enum
import math
import tracemalloc
import typing
import uuid
import weakref
from dataclasses import dataclass, field
from datetime import UTC, date, datetime, time, timedelta, timezone
from decimal import Decimal
from typing import Any, Literal, NamedTuple, TypedDict, Unpack
from zoneinfo import ZoneInfo

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ulak import ArgumentError, Context, PayloadError
from ulak.arguments import Misfit, Parameters
from ulak.exact import Different, check_same


class Colour(enum.Enum):
    RED = "red"
    BLUE = "blue"


class Level(enum.IntEnum):
    LOW = 1
    HIGH = 2


@dataclass
class Item:
    price: Decimal
    tags: list[str] = field(default_factory=list)
    parent: Item | None = None


class Point(msgspec.Struct, frozen=True):
    x: float
    y: float = 0.0


class Pair(NamedTuple):
    left: int
    right: str


class Options(TypedDict, total=False):
    loud: bool
    times: int


def parameters(function: Any) -> Parameters:
    return Parameters(function, f"m.{function.__name__}")


def for_one(hint: Any) -> Parameters:
    """A function of one parameter that is annotated so."""

    def f(x): ...

    f.__annotations__ = {"x": hint}
    return parameters(f)


def sent(hint: Any, value: Any) -> Any:
    """What arrives of a value that is annotated so."""
    p = for_one(hint)
    (args, kwargs) = p.decode(p.encode((value,), {}), "json")
    return args[0] if args else kwargs["x"]


texts = st.text(st.characters(exclude_categories=["Cs"]), max_size=20)
ints = st.integers(-(2**70), 2**70)
floats = st.floats(allow_nan=False, allow_infinity=False)
zones = st.sampled_from([UTC, timezone(timedelta(hours=-3, minutes=30)), ZoneInfo("Europe/Berlin")])
naive = st.datetimes().map(lambda at: at.replace(fold=0))
moments = st.datetimes(datetime(1950, 1, 1), timezones=zones) | naive  # noqa: DTZ001
items = st.recursive(
    st.builds(Item, st.decimals(allow_nan=False), st.lists(texts, max_size=3)),
    lambda inner: st.builds(Item, st.decimals(allow_nan=False), st.just(["a"]), inner),
    max_leaves=4,
)

TYPES: list[tuple[Any, st.SearchStrategy[Any]]] = [
    (str, texts),
    (int, ints),
    (float, floats),
    (bool, st.booleans()),
    (None, st.none()),
    (bytes, st.binary(max_size=20)),
    (bytearray, st.builds(bytearray, st.binary(max_size=20))),
    (datetime, moments),
    (date, st.dates()),
    (time, st.times(timezones=st.none() | st.just(UTC)).map(lambda at: at.replace(fold=0))),
    (timedelta, st.timedeltas()),
    (uuid.UUID, st.uuids()),
    (Decimal, st.decimals(allow_nan=False)),
    (Colour, st.sampled_from(Colour)),
    (Level, st.sampled_from(Level)),
    (Literal["a", 1], st.sampled_from(["a", 1])),
    (Item, items),
    (Point, st.builds(Point, floats, floats)),
    (Pair, st.builds(Pair, ints, texts)),
    (Options, st.fixed_dictionaries({}, optional={"loud": st.booleans(), "times": ints})),
    (list[int], st.lists(ints)),
    (tuple[int, str], st.tuples(ints, texts)),
    (tuple[float, ...], st.lists(floats).map(tuple)),
    (set[str], st.sets(texts)),
    (frozenset[date], st.frozensets(st.dates())),
    (dict[str, Decimal], st.dictionaries(texts, st.decimals(allow_nan=False))),
    (dict[int, list[bytes]], st.dictionaries(ints, st.lists(st.binary(max_size=5)))),
    (dict[uuid.UUID, Item | None], st.dictionaries(st.uuids(), items | st.none(), max_size=3)),
    (typing.Iterable[int], st.lists(ints)),
    (typing.Mapping[str, int], st.dictionaries(texts, ints)),
    (str | None, texts | st.none()),
    (int | float | None, ints | floats | st.none()),
    (Any, st.recursive(texts | ints | floats | st.booleans() | st.none(), st.lists, max_leaves=9)),
    (object, st.dictionaries(texts, texts | ints)),
]


@pytest.mark.parametrize(("hint", "values"), TYPES, ids=[str(hint) for hint, _ in TYPES])
@given(data=st.data())
def test_y1_every_supported_type_arrives_equal_in_value_and_type(hint, values, data) -> None:
    given_value = data.draw(values)
    back = sent(hint, given_value)
    assert back == given_value or _is_same_instant(back, given_value)
    assert type(back) is type(given_value)
    assert repr(_without_zones(back)) == repr(_without_zones(given_value))


def _is_same_instant(back: Any, given_value: Any) -> bool:
    # Python never calls times in an overlap equal to those of another zone.
    return back.utcoffset() == given_value.utcoffset() and str(back) == str(given_value)


def _without_zones(value: Any) -> Any:
    """A set has no order, and a zone arrives as its offset."""
    if isinstance(value, datetime):
        return value.isoformat()
    return sorted(value) if isinstance(value, set | frozenset) else value


anything = st.recursive(
    texts
    | ints
    | st.floats()
    | st.booleans()
    | st.none()
    | st.binary(max_size=5)
    | moments
    | st.times(timezones=st.none() | zones)
    | st.dates()
    | st.decimals()
    | st.uuids()
    | st.sampled_from([*Colour, *Level])
    | st.builds(Point, floats)
    | items
    | st.builds(Pair, ints, texts),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.lists(inner, max_size=3).map(tuple)
        | st.dictionaries(texts | ints, inner, max_size=3)
    ),
    max_leaves=5,
)


@given(hint=st.sampled_from([hint for hint, _ in TYPES]), value=anything)
def test_y1_whatever_is_passed_arrives_equal_or_is_refused_in_the_caller(hint, value) -> None:
    p = for_one(hint)
    try:
        body = p.encode((value,), {})
    except ArgumentError:
        return
    (args, kwargs) = p.decode(body, "json")
    (back,) = args or kwargs.values()
    if isinstance(back, datetime):
        assert (back.isoformat(), type(value)) == (value.isoformat(), datetime)
    else:
        assert back == value
        # A float may be given as an int, and an int or str as a member of an enum.
        assert (
            type(back) is type(value)
            or isinstance(value, type(back))
            or (type(back), type(value)) == (float, int)
        )


AMSTERDAM = ZoneInfo("Europe/Amsterdam")
FOLDED = datetime(2026, 10, 25, 2, 30, fold=1)  # noqa: DTZ001


@pytest.mark.parametrize(
    ("hint", "value", "said"),
    [
        (str, 42, "argument 'x' got int, expected str"),
        (int, True, "argument 'x' got bool, expected int"),
        (int, 1.0, "argument 'x' got float, expected int"),
        (int, 2**2200, "an int of 2,201 bits"),
        (float, 2**60 + 1, "an int that a float cannot hold exactly"),
        (float, math.nan, "argument 'x' is NaN or infinite, which JSON does not have"),
        (list[float], [1.0, -math.inf], "argument 'x[1]' is NaN or infinite, which JSON does not have"),
        (date, datetime(2026, 1, 1, tzinfo=UTC), "argument 'x' got datetime.datetime, expected"),
        (datetime, FOLDED, "a time without a zone that has fold=1"),
        (datetime, datetime(1900, 1, 1, tzinfo=AMSTERDAM), "its zone's offset has seconds"),
        (time, time(1, 2, tzinfo=ZoneInfo("Europe/Berlin")), "a time of day in a zone"),
        (Decimal, Decimal("NaN"), "it would not come back equal"),
        (Decimal, Decimal("sNaN"), "cannot be compared"),
        (Decimal, 1, "argument 'x' got int, expected decimal.Decimal"),
        (uuid.UUID, "a8ccc002-72d9-4fd9-85e8-cce5cbfc6408", "argument 'x' got str, expected uuid.UUID"),
        (Colour, "red", "argument 'x' got str, expected tests.tasks.test_arguments.Colour"),
        (Level, 1, "argument 'x' got int, expected"),
        (str, b"x", "argument 'x' got bytes, expected str"),
        (str, "\ud800", "argument 'x' holds a lone surrogate"),
        (list[int], (1, 2), "argument 'x' got tuple, expected list[int]"),
        (set[int], frozenset({1}), "argument 'x' got frozenset, expected set[int]"),
        (dict[str, Any], {"a": [1, {"b": (1,)}]}, """argument 'x["a"][1]["b"]': got tuple, which would"""),
        (dict, {1: "a"}, "argument 'x': a key: got int, which would come back as str"),
        (dict[str, Any], {1: "a", "1": "b"}, "two of its keys would become one"),
        (list[Item], [Item(Decimal(1), [3])], "argument 'x[0].tags[0]': expected `str`, got `int`"),
        (list[Any], [[{"a": lambda: 1}]], """argument 'x[0][0]["a"]' is a function and cannot travel"""),
        (Any, {1, 2}, "argument 'x': a set would come back as a list"),
        (Any, b"x", "argument 'x' is bytes, which travels only where it is annotated"),
        (Any, datetime.now(UTC), "annotate the parameter: datetime.datetime"),
        (Any, open, "argument 'x' is a function and cannot travel"),
        (Any, (n for n in "ab"), "argument 'x' is a generator and cannot travel; pass a list"),
    ],
)  # fmt: skip
def test_what_would_not_arrive_as_it_is_is_refused_by_its_path(hint, value, said) -> None:
    with pytest.raises(ArgumentError) as caught:
        for_one(hint).encode((value,), {})
    assert said in str(caught.value)
    assert caught.value.__cause__ is None
    assert caught.value.__context__ is None


SECRET = "hunter2"


@pytest.mark.parametrize(
    ("hint", "value"),
    [
        (int, SECRET),
        (Colour, SECRET),
        (uuid.UUID, SECRET),
        (Item, {"price": SECRET}),
        (Literal["a"], SECRET),
        (Any, {"a": {SECRET}}),
        (str, f"{SECRET}\ud800"),
        (list[int], [SECRET]),
    ],
)
def test_no_error_shows_a_value(hint, value) -> None:
    with pytest.raises(ArgumentError) as caught:
        for_one(hint).encode((value,), {})
    assert SECRET not in str(caught.value)
    assert caught.value.__context__ is None
    body = msgspec.json.encode({"x": SECRET})
    if hint not in (str, Any):
        with pytest.raises(Misfit) as misfit:
            for_one(hint).decode(body, "json")
        assert SECRET not in str(misfit.value)


def test_calls_are_bound_as_the_function_would_bind_them() -> None:
    def f(a: int, b: int = 2, /, c: int = 3, *rest: int, d: int, e: int = 5, **more: int): ...

    p = parameters(f)
    for args, kwargs in [
        ((1,), {"d": 4}),
        ((1, 2), {"d": 4, "c": 3}),
        ((1, 2, 3, 9, 10), {"d": 4, "z": 1, "a": 7}),
        ((1,), {"d": 4, "e": 6, "c": 8}),
    ]:
        args_back, kwargs_back = p.decode(p.encode(args, kwargs), "json")
        assert _seen(args_back, kwargs_back) == _seen(args, kwargs)


def _seen(args, kwargs):
    """What the function of the test above sees."""

    def f(a, b=2, /, c=3, *rest, d, e=5, **more):
        return a, b, c, rest, d, e, more

    return f(*args, **kwargs)


@pytest.mark.parametrize(
    ("args", "kwargs", "said"),
    [
        ((), {}, "missing a required argument: 'to'"),
        (("a", "b", "c"), {}, "too many positional arguments"),
        (("a",), {"to": "b"}, "multiple values for argument 'to'"),
        (("a",), {"subjct": "b"}, """no parameter "subjct"; did you mean 'subject'?"""),
        (("a",), {"zzz": "b"}, 'no parameter "zzz"'),
        (("a",), {"ctx": "b"}, "leave 'ctx' out: the worker fills it in"),
    ],
)
def test_wrong_missing_and_unknown_arguments_are_named(args, kwargs, said) -> None:
    def send(ctx: Context, to: str, subject: str = ""): ...

    with pytest.raises(ArgumentError) as caught:
        parameters(send).encode(args, kwargs)
    assert said in str(caught.value)
    assert str(caught.value).startswith("m.send(to: str, subject: str = ...): ")


def test_the_workers_parameter_is_no_name_for_the_rest_to_take() -> None:
    def first(ctx: Context, **more: int): ...

    def named(*, job: Context | None = None, **more: int): ...

    for function, name in ((first, "ctx"), (named, "job")):
        with pytest.raises(ArgumentError, match=f"leave '{name}' out: the worker fills it in"):
            parameters(function).encode((), {name: 1})
        assert parameters(function).encode((), {"other": 1}) == b'{"**more":{"other":1}}'


def test_only_what_was_given_is_stored_so_that_defaults_are_the_workers() -> None:
    def f(a: int, b: int = 2, *, c: int = 3): ...

    assert parameters(f).encode((1,), {}) == b'{"a":1}'
    assert parameters(f).encode((1,), {"c": 3}) == b'{"a":1,"c":3}'


def test_what_takes_the_rest_is_stored_under_its_starred_name() -> None:
    def f(a: int, *rest: date, **more: bytes): ...

    p = parameters(f)
    body = p.encode((1, date(2026, 1, 1)), {"x": b"y"})
    assert body == b'{"a":1,"*rest":["2026-01-01"],"**more":{"x":"eQ=="}}'
    assert p.decode(body, "json") == ((1, date(2026, 1, 1)), {"x": b"y"})


def test_named_rest_may_be_annotated_key_by_key() -> None:
    def f(**more: Unpack[Options]): ...

    p = parameters(f)
    assert p.decode(p.encode((), {"loud": True}), "json") == ((), {"loud": True})
    with pytest.raises(ArgumentError, match="expected `bool`, got `int`"):
        p.encode((), {"loud": 1})


def test_an_added_parameter_before_the_rest_gets_its_default() -> None:
    def new(a: int, b: int = 7, *rest: int): ...

    assert parameters(new).decode(b'{"a":1,"*rest":[2,3]}', "json") == ((1, 7, 2, 3), {})


@pytest.mark.parametrize(
    ("body", "said"),
    [
        (b"{}", "no argument 'a' is stored"),
        (b'{"a":"x"}', "argument 'a': expected `int`, got `str`"),
        (b'{"a":1,"gone":2}', 'argument "gone" is stored, which it does not take'),
        (b'{"a":1,"when":"soon"}', "argument 'when': invalid RFC3339 encoded datetime"),
        (b'{"a":1,"items":[{}]}', "argument 'items[0]': object missing required field `price`"),
        (b"[1]", "what is stored is of type list, not an object of arguments"),
    ],
)
def test_stored_arguments_that_do_not_fit_are_told_apart(body, said) -> None:
    def f(a: int, when: datetime | None = None, items: list[Item] = []): ...  # noqa: B006

    with pytest.raises(Misfit) as caught:
        parameters(f).decode(body, "json")
    assert said in str(caught.value)


def test_z1_a_pickle_is_never_loaded_but_unreadable() -> None:
    bomb = b"cos\nsystem\n(S'echo boom'\ntR."
    p = for_one(Any)
    with pytest.raises(PayloadError):
        p.decode(bomb, "json")
    with pytest.raises(PayloadError, match='the codec "pickle"'):
        p.decode(bomb, "pickle")
    with pytest.raises(Misfit, match="of type bytes"):
        p.decode(bomb, "bytes")


def test_stored_json_that_is_nested_too_deep_is_refused_before_it_is_decoded() -> None:
    with pytest.raises(PayloadError, match="nested more than 32 deep"):
        for_one(list[Any]).decode(b'{"x":' + b"[" * 100_000 + b"]" * 100_000 + b"}", "json")
    assert for_one(list[Any]).decode(b'{"x":' + b"[" * 31 + b"]" * 31 + b"}", "json")
    with pytest.raises(PayloadError, match="nested more than 32 deep"):
        for_one(list[Any]).decode(b'{"x":' + b"[" * 32 + b"]" * 32 + b"}", "json")


class Node(msgspec.Struct):
    children: list[Node] = []


def nested(levels: int) -> Node:
    node = Node()
    for _ in range(levels):
        node = Node([node])
    return node


def test_too_large_and_too_deep_arguments_are_refused() -> None:
    assert sent(str, "x" * 262_000)
    with pytest.raises(ArgumentError, match="more than 262,144 bytes as JSON"):
        for_one(str).encode(("x" * 262_144,), {})
    assert sent(Node, nested(14))
    with pytest.raises(ArgumentError, match="nested more than 32 deep"):
        for_one(Node).encode((nested(15),), {})
    loop: list[Any] = []
    loop.append(loop)
    with pytest.raises(ArgumentError, match="contains itself"):
        for_one(list[Any]).encode((loop,), {})


class Bag(msgspec.Struct):
    items: list[Any]


class Sparse(msgspec.Struct, omit_defaults=True):
    # Not written, so nothing of it is too large.
    text: str = "x" * 300_000


@dataclass
class Box:
    bag: dict[str, Bag]


MANY = list(range(1_000)) * 1_000
LARGE: list[tuple[Any, Any]] = [
    (list[int], MANY),
    (Any, MANY),
    (Any, {"rows": [MANY]}),
    (Any, {"rows": [MANY, object()]}),
    (tuple[int, ...], tuple(MANY)),
    (set[int], set(range(200_000))),
    (dict[int, int], dict.fromkeys(range(200_000), 1)),
    (Box, Box({"a": Bag([[[MANY]]])})),
    (Bag, Bag([["x" * 1_000] * 1_000])),
    (list[bytes], [b"x" * 1_000] * 1_000),
    (Any, [object()] * 1_000_000),
    (str, "x" * 5_000_000),
]


@pytest.mark.parametrize(("hint", "value"), LARGE)
def test_what_is_far_too_large_is_refused_before_it_is_encoded(hint, value) -> None:
    p, returns = for_one(hint), returning(hint)
    tracemalloc.start()
    try:
        with pytest.raises(ArgumentError, match="argument 'x' is more than 262,144 bytes as JSON"):
            p.encode((value,), {})
        with pytest.raises(PayloadError, match="the result is more than 65,536 bytes as JSON"):
            returns.encode_result(value)
        assert tracemalloc.get_traced_memory()[1] < 1_000_000
    finally:
        tracemalloc.stop()


def test_arguments_that_are_too_large_together_are_refused_before_they_are_encoded() -> None:
    def f(*parts: list[int], **more: list[int]) -> None: ...

    p, part = parameters(f), [1] * 100_000
    tracemalloc.start()
    try:
        with pytest.raises(ArgumentError, match="the arguments are more than 262,144 bytes as JSON"):
            p.encode((part,), {"other": part})
        assert tracemalloc.get_traced_memory()[1] < 3_000_000
    finally:
        tracemalloc.stop()


def test_what_a_list_is_reached_by_many_ways_is_looked_at_no_more_than_it_could_be_written() -> None:
    many: list[Any] = []
    for _ in range(30):
        many = [many, many]
    with pytest.raises(ArgumentError, match="more than 262,144 bytes as JSON"):
        for_one(list[Any]).encode((many,), {})


def test_what_just_fits_is_taken() -> None:
    deep: Any = [b"x"]
    hint: Any = list[bytes]
    for _ in range(30):
        deep, hint = [deep], list[hint]
    assert sent(hint, deep) == deep
    for value in ([1] * 131_000, ["x" * 97] * 2_600, {str(n): [n] for n in range(1_000)}):
        assert sent(Any, value) == value
        assert sent(list[Any] if isinstance(value, list) else dict[str, Any], value) == value
    assert sent(Sparse, Sparse()) == Sparse()


def test_a_text_or_time_of_a_derived_class_arrives_as_a_plain_one() -> None:
    class Safe(str):
        __slots__ = ()

    class Frozen(datetime):
        pass

    assert type(sent(str, Safe("<b>"))) is str
    assert type(sent(datetime, Frozen(2026, 1, 1, tzinfo=UTC))) is datetime


def test_an_object_of_a_derived_class_is_refused_where_something_would_be_lost() -> None:
    @dataclass
    class Special(Item):
        extra: int = 1

    with pytest.raises(ArgumentError, match="got Special, expected"):
        for_one(Item).encode((Special(Decimal(1)),), {})


def test_a_class_whose_equality_says_nothing_is_compared_field_by_field() -> None:
    @dataclass(eq=False)
    class Plain:
        n: int

    @dataclass(eq=False)
    class Growing(Plain):
        def __post_init__(self) -> None:
            self.n += 1

    p = for_one(Plain)
    (args, _) = p.decode(p.encode((Plain(3),), {}), "json")
    assert args[0].n == 3
    with pytest.raises(ArgumentError, match=r"'x.n': it would not come back equal"):
        for_one(Growing).encode((Growing(3),), {})


def test_a_lying_equality_hides_nothing() -> None:
    class Always(msgspec.Struct, eq=False):
        n: Any

        def __eq__(self, other: object) -> bool:
            return True

        __hash__ = None  # type: ignore[assignment]

    with pytest.raises(Different):
        check_same(Always((1,)), Always([1]))
    with pytest.raises(ArgumentError, match=r"'x.n': got tuple, which would come back as list"):
        for_one(Always).encode((Always((1,)),), {})


# Annotations


def test_annotations_that_cannot_travel_are_refused_when_the_task_is_made() -> None:
    class Thing:
        pass

    for hint, said in [
        (Thing, "Thing cannot travel; pass what it is made of, or an id"),
        (typing.Callable[[], int], "a function cannot travel"),
        (list[Thing], "Thing cannot travel"),
        (str | datetime, "type unions may not contain more than one str-like type"),
        (typing.Iterator[int], "an iterator cannot travel; annotate list"),
        (complex, "complex cannot travel"),
    ]:
        with pytest.raises(ArgumentError) as caught:
            for_one(hint)
        assert said in str(caught.value)
        assert "parameter 'x'" in str(caught.value)


def test_an_annotation_is_resolved_where_its_function_is_defined() -> None:
    @dataclass
    class Here:
        n: int

    def f(a: Here) -> list[Here]: ...

    p = Parameters(f, "m.f", nearby=locals())
    body = p.encode((Here(1),), {})
    assert p.decode(body, "json") == ((Here(1),), {})


def test_names_around_a_function_are_let_go_once_they_were_looked_at() -> None:
    class Local:
        pass

    local = Local()
    ref = weakref.ref(local)

    def f(a: int): ...

    p = Parameters(f, "m.f", nearby={"local": local})
    del local
    assert ref() is None
    assert p.encode((1,), {}) == b'{"a":1}'


def test_an_annotation_that_is_not_there_yet_is_looked_at_again_at_the_first_use() -> None:
    def f(a: Later): ...  # noqa: F821

    p = parameters(f)
    with pytest.raises(ArgumentError, match="parameter 'a' names 'Later', which is not there at run time"):
        p.encode((1,), {})
    globals()["Later"] = int
    try:
        assert p.encode((1,), {}) == b'{"a":1}'
    finally:
        del globals()["Later"]


def test_a_context_is_found_also_where_only_type_checkers_see_it() -> None:
    def first(job: "Context", a: int): ...  # noqa: UP037

    def named(a: int, *, job: ulak.Context | None = None): ...  # noqa: F821

    assert (parameters(first).context_name, parameters(first).context_is_first) == ("job", True)
    assert (parameters(named).context_name, parameters(named).context_is_first) == ("job", False)


def test_a_context_that_callers_could_not_leave_out_is_refused() -> None:
    def second(a: int, job: Context): ...

    def two(job: Context, other: Context | None = None): ...

    with pytest.raises(ArgumentError, match="make it the first one, or give it a default"):
        parameters(second)
    with pytest.raises(ArgumentError, match="one parameter may be annotated Context, not 2"):
        parameters(two)


# Results


def returning(hint: Any) -> Parameters:
    def f(): ...

    f.__annotations__ = {"return": hint}
    return parameters(f)


@pytest.mark.parametrize(("hint", "values"), TYPES, ids=[str(hint) for hint, _ in TYPES])
@given(data=st.data())
def test_results_arrive_as_they_are_annotated(hint, values, data) -> None:
    value = data.draw(values)
    p = returning(hint)
    back = p.decode_result(p.encode_result(value))
    assert type(back) is type(value)
    assert back == value or _is_same_instant(back, value)


def test_a_result_of_none_is_no_result() -> None:
    assert returning(int | None).encode_result(None) is None
    assert returning(None).encode_result("dropped") is None
    assert returning(typing.NoReturn).encode_result("dropped") is None
    assert returning(int).decode_result(None) is None


@pytest.mark.parametrize(
    ("hint", "value", "said"),
    [
        (int, "x", "the result got str, expected int"),
        (Any, (1,), "the result: a tuple would come back as a list"),
        (Any, {"a": open}, """the result["a"] is a function and cannot travel"""),
        (str, "x" * 65_535, "the result is more than 65,536 bytes as JSON"),
        (Any, "x" * 65_535, "the result is more than 65,536 bytes as JSON"),
        (list[Item], [Item(Decimal("NaN"))], "the result[0].price: it would not come back equal"),
    ],
)
def test_a_result_that_would_not_arrive_is_refused(hint, value, said) -> None:
    with pytest.raises(PayloadError) as caught:
        returning(hint).encode_result(value)
    assert said in str(caught.value)
    assert caught.value.__context__ is None


def test_a_result_of_another_version_is_told() -> None:
    with pytest.raises(PayloadError, match="the stored result: expected `int`, got `str`"):
        returning(int).decode_result(b'"x"')


def test_what_a_coroutine_gives_in_the_end_is_its_result() -> None:
    assert returning(typing.Awaitable[date]).encode_result(date(2026, 1, 1)) == b'"2026-01-01"'


def test_a_result_whose_annotation_is_never_there_is_plain_json() -> None:
    def f() -> Nowhere: ...  # noqa: F821

    p = parameters(f)
    assert p.encode((), {}) == b"{}"
    assert p.decode_result(p.encode_result({"a": 1})) == {"a": 1}
    with pytest.raises(PayloadError):
        p.encode_result(uuid.UUID("a8ccc002-72d9-4fd9-85e8-cce5cbfc6408"))


def test_a_result_that_cannot_travel_is_refused_when_the_task_is_made() -> None:
    with pytest.raises(ArgumentError, match="its result is annotated complex: complex cannot travel"):
        returning(complex)
