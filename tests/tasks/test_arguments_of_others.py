"""Objects of other libraries as arguments: pydantic models travel, rows and sessions are refused by name."""

from __future__ import annotations

import sqlite3
import subprocess
import sys
from datetime import UTC, datetime
from typing import Any

import pytest

from ulak import ArgumentError
from ulak.arguments import Parameters

pydantic = pytest.importorskip("pydantic")
sqlalchemy = pytest.importorskip("sqlalchemy")
orm = pytest.importorskip("sqlalchemy.orm")


class Address(pydantic.BaseModel):
    city: str
    since: datetime
    tags: frozenset[str] = frozenset()


class User(pydantic.BaseModel):
    name: str = pydantic.Field(alias="userName")
    home: Address | None = None
    secret: pydantic.SecretStr | None = None


class Base(orm.DeclarativeBase):
    pass


class Row(Base):
    __tablename__ = "rows"
    id: orm.Mapped[int] = orm.mapped_column(primary_key=True)


def for_one(hint: Any) -> Parameters:
    def f(x): ...

    f.__annotations__ = {"x": hint}
    return Parameters(f, "m.f")


HOME = Address(city="Ankara", since=datetime(2026, 1, 1, tzinfo=UTC), tags=frozenset({"a"}))


@pytest.mark.parametrize(
    ("hint", "value"),
    [
        (Address, HOME),
        (User, User(userName="ada", home=HOME)),
        (list[Address], [HOME, HOME]),
        (Address | None, None),
        (dict[str, Address], {"home": HOME}),
    ],
)
def test_a_pydantic_model_arrives_as_the_model(hint, value) -> None:
    p = for_one(hint)
    ((back,), _) = p.decode(p.encode((value,), {}), "json")
    assert back == value
    assert type(back) is type(value)


def test_a_model_that_would_lose_something_is_refused() -> None:
    with pytest.raises(ArgumentError, match="argument 'x'"):
        for_one(User).encode((User(userName="ada", secret="hunter2"),), {})
    with pytest.raises(ArgumentError, match="argument 'x' got dict, expected"):
        for_one(Address).encode(({"city": "Ankara", "since": "2026-01-01T00:00:00Z"},), {})


def test_an_error_of_a_model_shows_no_value() -> None:
    with pytest.raises(ArgumentError) as caught:
        for_one(Address).encode(({"city": ["hunter2"]},), {})
    assert "hunter2" not in str(caught.value)


def test_rows_and_sessions_are_refused_by_name_with_what_to_do() -> None:
    for hint, said in [
        (Row, "a SQLAlchemy model cannot travel; pass its id, and load it in the task"),
        (list[Row], "a SQLAlchemy model cannot travel"),
        (orm.Session, "a database session cannot travel; open one in the task"),
        (sqlite3.Connection, "a database connection cannot travel; open one in the task"),
    ]:
        with pytest.raises(ArgumentError) as caught:
            for_one(hint)
        assert said in str(caught.value)


def test_a_row_without_an_annotation_is_refused_in_the_caller() -> None:
    with pytest.raises(
        ArgumentError, match=r"argument 'x' is a SQLAlchemy model and cannot travel; pass its id"
    ):
        for_one(Any).encode((Row(id=1),), {})
    with pytest.raises(ArgumentError, match=r"argument 'x\[0\]' is a SQLAlchemy model"):
        for_one(list[Any]).encode(([Row(id=1)],), {})


DJANGO = """
import django
from django.conf import settings
settings.configure(DATABASES={}, INSTALLED_APPS=[])
django.setup()
from django.db import models
class Person(models.Model):
    class Meta:
        app_label = "people"
from django.utils.safestring import mark_safe
from ulak import ArgumentError
from ulak.arguments import Parameters
try:
    Parameters(lambda x: None, "f").encode((Person(id=1),), {})
except ArgumentError as error:
    print(error)
def g(x: Person): ...
try:
    Parameters(g, "g")
except ArgumentError as error:
    print(error)
def h(x: str): ...
print(Parameters(h, "h").encode((mark_safe("<b>"),), {}))
"""


def test_django_rows_are_refused_by_name_and_its_safe_strings_travel() -> None:
    pytest.importorskip("django")
    done = subprocess.run([sys.executable, "-c", DJANGO], capture_output=True, text=True, check=True)
    first, second, third = done.stdout.splitlines()
    assert "argument 'x' is a Django model and cannot travel; pass its id, and load it in the task" in first
    assert "parameter 'x' is annotated Person: a Django model cannot travel" in second
    assert third == """b'{"x":"<b>"}'"""


def test_pydantic_is_not_imported_to_find_out() -> None:
    code = "import sys, ulak; from ulak.arguments import Parameters\ndef f(x: int): ...\n"
    code += "Parameters(f, 'f').encode((1,), {}); assert 'pydantic' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True)
