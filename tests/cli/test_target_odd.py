"""Objects in the place of an App whose classes do as they like: each is refused in a few lines."""

from __future__ import annotations

import sys
from collections.abc import Iterator

import pytest

from tests.cli.test_target import Write, refused, write

__all__ = ["write"]

ODD = """
import json as some_module
from ulak import App

class Class: pass
class Attributes:
    def __getattr__(self, name): raise RuntimeError("not now")
class EachAttribute:
    def __getattribute__(self, name): raise RuntimeError("not now")
class Names:
    def __dir__(self): raise RuntimeError("no names")
class OddNames:
    def __dir__(self): return [1, None, "apple"]
class Kind:
    @property
    def __class__(self): raise RuntimeError("no class")
class Pretends:
    @property
    def __class__(self): return App
class Place:
    @property
    def __module__(self): raise RuntimeError("no module")
    def __call__(self): pass
class Meta(type):
    def __getattr__(cls, name): raise RuntimeError("not of this class")
class OfMeta(metaclass=Meta): pass
class Exits:
    @property
    def app(self): raise SystemExit(3)
class Missing:
    @property
    def app(self): raise AttributeError("something else")

attributes, each_attribute, names, odd_names = Attributes(), EachAttribute(), Names(), OddNames()
kind, pretends, place, of_meta = Kind(), Pretends(), Place(), OfMeta()
exits, missing, nothing = Exits(), Missing(), None
"""


@pytest.fixture(autouse=True)
def forgotten_oddity() -> Iterator[None]:
    """What puts itself in a module's place is not forgotten as modules are."""
    yield
    sys.modules.pop("odd", None)


MAKE = '  an App is made by app = ulak.App("sqlite:///jobs.db"), at the level of the module'


@pytest.mark.parametrize(
    ("name", "is_what"),
    [
        ("Class", "a class"),
        ("some_module", "a module"),
        ("nothing", "None"),
        ("attributes", "an odd.Attributes"),
        ("each_attribute", "an odd.EachAttribute"),
        ("names", "an odd.Names"),
        ("kind", "an odd.Kind"),
        ("pretends", "an odd.Pretends"),
        ("place", "a Place"),
        ("of_meta", "an odd.OfMeta"),
        ("OfMeta", "a class"),
    ],
)
def test_what_is_no_app_is_told_what_it_is_whatever_its_class_does(
    write: Write, name: str, is_what: str
) -> None:
    write("odd.py", ODD)
    set_by = f"  set by 'odd:{name}' on the command line"
    assert refused(f"odd:{name}") == [f"{name!r} of odd.py is {is_what}, not an App", MAKE, set_by]


@pytest.mark.parametrize(
    ("name", "raised"),
    [
        ("attributes.app", "RuntimeError: not now"),
        ("each_attribute.app", "RuntimeError: not now"),
        ("OfMeta.app", "RuntimeError: not of this class"),
        ("exits.app", "SystemExit: 3"),
        ("missing.app", "AttributeError: something else"),
    ],
)
def test_a_look_that_raises_is_told_with_error_and_line(write: Write, name: str, raised: str) -> None:
    write("odd.py", ODD)
    first, second, *_, last = refused(f"odd:{name}")
    assert first == f"looking for {name!r} in odd.py raised {raised}"
    assert second.startswith("  at odd.py:")
    assert last == f"  set by 'odd:{name}' on the command line"


@pytest.mark.parametrize("name", ["names.app", "odd_names.app", "nothing.app", "kind.app"])
def test_a_name_that_is_not_there_is_told_whatever_names_there_are(write: Write, name: str) -> None:
    write("odd.py", ODD)
    assert refused(f"odd:{name}")[0].startswith(f"odd.py has no {name!r}")


@pytest.mark.parametrize("target", ["odd", "odd:app"])
@pytest.mark.parametrize("put", ["None", "3", "Class()"])
def test_a_module_that_puts_something_else_in_its_place_is_refused(
    write: Write, target: str, put: str
) -> None:
    write("odd.py", f"{ODD}\nimport sys\nsys.modules[__name__] = {put}")
    first, *_ = refused(target)
    assert first.startswith("'odd' is no module: ")


def test_a_module_whose_own_look_raises_is_told_with_error_and_line(write: Write) -> None:
    write(
        "odd.py",
        "def __getattr__(name):\n if name == 'app': raise RuntimeError('not now')\n raise AttributeError",
    )
    assert refused("odd:app")[0] == "looking for 'app' in odd.py raised RuntimeError: not now"
