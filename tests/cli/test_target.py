"""`module:app` on a command line: what it may name, and what is said of what it cannot."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.support.modules import forgotten
from ulak import App, ConfigError
from ulak.cli.target import load_app

HELLO = """
from ulak import App

app = App("memory://hello")

@app.task
def welcome(email: str) -> str:
    return f"welcome {email}"
"""
Write = Callable[..., Path]


@pytest.fixture
def write(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Write]:
    """Writes a file of the current directory, which is a new one; what is imported from it is forgotten."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", sys.path.copy())

    def put(name: str, text: str = HELLO) -> Path:
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
        return path

    with forgotten(tmp_path):
        yield put


def refused(target: str) -> list[str]:
    """The lines in which the target is refused."""
    with pytest.raises(ConfigError) as error:
        load_app(target)
    lines = str(error.value.args[0]).splitlines()
    assert len(lines) <= 6
    return lines


@pytest.mark.parametrize("target", ["hello:app", "hello.py:app", "./hello.py:app", "hello", "hello.py"])
def test_a_module_is_named_by_its_name_or_its_file(write: Write, target: str) -> None:
    write("hello.py")
    app = load_app(target)
    assert list(app.tasks) == ["hello.welcome"]
    assert sys.modules["hello"].app is app


def test_a_file_elsewhere_is_imported_under_its_own_name_and_finds_its_neighbours(
    write: Write, tmp_path: Path
) -> None:
    write("there/hello.py", f"import names\n{HELLO}")
    write("there/names.py", "")
    assert list(load_app(str(tmp_path / "there/hello.py")).tasks) == ["hello.welcome"]


@pytest.mark.parametrize("target", ["shop.jobs:app", "shop/jobs.py:app", "shop.jobs", "shop/jobs.py"])
def test_a_file_of_a_package_is_the_module_that_others_import(write: Write, target: str) -> None:
    write("shop/__init__.py", "")
    write("shop/jobs.py", f"from . import mail\n{HELLO}")
    write("shop/mail.py", "loaded = []")
    app = load_app(target)
    assert sys.modules["shop.jobs"].app is app
    assert "jobs" not in sys.modules


@pytest.mark.parametrize("target", ["shop:app", "shop/__init__.py:app"])
def test_a_package_is_a_module_too(write: Write, target: str) -> None:
    write("shop/__init__.py")
    assert sys.modules[load_app(target).tasks["shop.welcome"].function.__module__].__name__ == "shop"


def test_a_module_is_imported_once_however_it_is_named(write: Write) -> None:
    write("hello.py", f"import tally\ntally.imports += 1\n{HELLO}")
    write("tally.py", "imports = 0")
    assert load_app("hello:app") is load_app("hello.py:app") is load_app("hello")
    assert sys.modules["tally"].imports == 1


def test_the_current_directory_comes_before_all_others(write: Write, tmp_path: Path) -> None:
    write("there/hello.py", "raise AssertionError")
    sys.path.insert(0, str(tmp_path / "there"))
    write("hello.py")
    load_app("hello:app")


def test_an_app_may_be_an_attribute_of_something_else(write: Write) -> None:
    write("hello.py", f"{HELLO}\nclass Services:\n    jobs = app\n\nservices = Services()")
    assert list(load_app("hello:services.jobs").tasks) == ["hello.welcome"]


def test_without_a_name_the_only_app_is_taken_whatever_it_is_called(write: Write) -> None:
    write("hello.py", HELLO.replace("app = ", "same = jobs = ").replace("@app", "@jobs"))
    load_app("hello")


def test_without_a_name_the_app_called_app_comes_before_others(write: Write) -> None:
    write("hello.py", HELLO + '\nother = App("memory://other")')
    assert isinstance(load_app("hello"), App)
    assert list(load_app("hello").tasks) == ["hello.welcome"]


def test_several_apps_of_which_none_is_called_app_have_to_be_named(write: Write) -> None:
    write("hello.py", 'from ulak import App\none = App("memory://one")\ntwo = App("memory://two")')
    assert refused("hello") == ["hello.py has several Apps; name one of hello:one, hello:two"]


@pytest.mark.parametrize(
    "target", ["", ":app", "hello:", "hello:a b", "hello:app:x", "a..b:app", "hello:app()"]
)
def test_what_names_nothing_is_told_the_form(write: Write, target: str) -> None:
    assert refused(target) == [
        f"{target!r} names no App",
        "  an App is named as MODULE:NAME, such as hello:app, hello.py:app or shop.jobs:app",
    ]


def test_a_module_that_is_not_there_is_told_the_nearest_one(write: Write, tmp_path: Path) -> None:
    write("hello.py")
    assert refused("helo:app") == [
        f"there is no module 'helo' in {tmp_path} or elsewhere on Python's path; did you mean hello:app?",
        "  set by 'helo:app' on the command line",
    ]


@pytest.mark.parametrize(
    ("target", "right"),
    [("shp.jobs:app", "shop.jobs:app"), ("shop.jbs:app", "shop.jobs:app"), ("shop.jbs", "shop.jobs")],
)
def test_a_wrong_part_of_a_dotted_name_is_mended(write: Write, target: str, right: str) -> None:
    write("shop/__init__.py", "")
    write("shop/jobs.py")
    assert refused(target)[0].endswith(f"; did you mean {right}?")


def test_a_dot_in_place_of_the_colon_is_told(write: Write) -> None:
    write("hello.py")
    assert refused("hello.app") == [
        "there is no module 'hello.app': hello is no package; did you mean hello:app?",
        "  set by 'hello.app' on the command line",
    ]
    assert refused("hello.nothing")[0] == "there is no module 'hello.nothing': hello is no package"


def test_a_module_with_nothing_near_says_where_it_was_looked_for(write: Write, tmp_path: Path) -> None:
    assert refused("hello:app") == [
        f"there is no module 'hello' in {tmp_path} or elsewhere on Python's path",
        "  go to the directory that has it, or give its path: path/to/file.py:app",
        "  a relative path in sqlite:///jobs.db belongs to the directory you are in then",
        "  set by 'hello:app' on the command line",
    ]


def test_a_file_that_is_not_there_is_told_the_nearest_one(write: Write, tmp_path: Path) -> None:
    write("hello.py")
    assert refused("helo.py:app")[0] == "there is no Python file helo.py; did you mean hello.py:app?"
    assert refused("x/helo.py")[0] == f"there is no Python file x/helo.py in {tmp_path}"
    write("y/hello.py")
    assert refused("y/")[0] == "there is no Python file y: that is a folder"
    assert refused("y/hallo.py")[0] == "there is no Python file y/hallo.py; did you mean y/hello.py?"


def test_a_file_called_like_a_loaded_module_is_refused(write: Write) -> None:
    write("queue.py")
    first, fix = refused("queue.py:app")
    assert first.startswith("queue.py cannot be imported: 'queue' is the name of a module of Python's own (")
    assert fix == "  rename the file"


def test_a_module_that_is_hidden_by_one_of_pythons_own_is_refused(write: Write) -> None:
    write("types.py")
    for target in ("types:app", "types"):
        first, fix = refused(target)
        assert first.startswith(
            "types.py cannot be imported: 'types' is the name of a module of Python's own ("
        )
        assert fix == "  rename the file"


def test_a_file_that_hides_one_of_pythons_modules_is_named_where_an_import_fails(
    write: Write, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Another test may have brought Python's own.
    monkeypatch.delitem(sys.modules, "stringprep", raising=False)
    write("stringprep.py", "mine = 1")
    write("hello.py", "import stringprep\nstringprep.in_table_a1")
    lines = refused("hello:app")
    assert lines[0].startswith("importing hello raised AttributeError: module 'stringprep' has no attribute")
    assert lines[2] == "  stringprep.py hides a module of Python's own: rename it"


def test_a_file_whose_name_has_a_dot_is_refused(write: Write) -> None:
    write("hello.v2.py")
    assert refused("hello.v2.py:app") == [
        "hello.v2.py cannot be imported, since its name has a dot in it: rename it"
    ]


def test_a_module_that_raises_is_told_with_error_and_line(write: Write) -> None:
    write("settings.py", 'import os\n\n\ndef read():\n    return {}["DATABASE"]\n')
    write("hello.py", f"import settings\nsettings.read()\n{HELLO}")
    assert refused("hello:app") == [
        "importing hello raised KeyError: 'DATABASE'",
        "  at settings.py:5, in read; -v shows the whole traceback",
        "  set by 'hello:app' on the command line",
    ]


def test_the_line_is_the_users_own_also_where_a_library_raised(write: Write) -> None:
    write("hello.py", 'import json\njson.loads("{")\n')
    assert refused("hello")[1] == "  at hello.py:2, in <module>; -v shows the whole traceback"
    write("hallo.py", HELLO.replace("@app.task", '@app.task(queue="Not A Name")'))
    assert refused("hallo")[-2].startswith("  at hallo.py:6, in <module>; ")


def test_the_modules_own_error_is_the_cause_for_a_traceback(write: Write) -> None:
    write("hello.py", "1 / 0")
    with pytest.raises(ConfigError) as error:
        load_app("hello:app")
    assert isinstance(error.value.__cause__, ZeroDivisionError)


def test_a_syntax_error_is_told_with_its_line(write: Write) -> None:
    write("hello.py", "import os\ndef welcome(:\n")
    assert refused("hello:app")[:2] == [
        "importing hello raised SyntaxError: invalid syntax (hello.py, line 2)",
        "  at hello.py:2; -v shows the whole traceback",
    ]


def test_a_missing_library_is_not_taken_for_a_missing_module(write: Write) -> None:
    write("hello.py", "import no_such_library\n")
    assert refused("hello:app") == [
        "importing hello raised ModuleNotFoundError: No module named 'no_such_library'",
        "  at hello.py:1, in <module>; -v shows the whole traceback",
        f"  is that installed for {sys.executable}?",
        "  set by 'hello:app' on the command line",
    ]


def test_a_script_that_exits_is_told_where_that_belongs(write: Write) -> None:
    write("hello.py", f"{HELLO}\nimport sys\nsys.exit(3)")
    assert refused("hello:app")[-2] == '  put what only a script does under: if __name__ == "__main__":'


def test_an_error_of_many_lines_stays_short(write: Write) -> None:
    write("hello.py", 'raise ValueError("\\n".join("x" * 10_000 for _ in range(100)))')
    assert max(map(len, refused("hello:app"))) < 400


def test_an_error_that_cannot_be_shown_is_told_all_the_same(write: Write) -> None:
    write("hello.py", "class Sly(Exception):\n    def __str__(self):\n        raise self\nraise Sly")
    assert refused("hello:app")[0].startswith("importing hello raised Sly: (its text cannot be shown")


def test_a_module_without_an_app_is_told_what_it_has(write: Write) -> None:
    write("hello.py", "import os\nfrom pathlib import Path\n\ndef main(): ...\nclass Mail: ...\nLIMIT = 3\n")
    assert refused("hello") == [
        "hello.py has no App; it has main (function), Mail (class), LIMIT (int)",
        '  make one at the level of the module: app = ulak.App("sqlite:///jobs.db")',
        "  set by 'hello' on the command line",
    ]
    write("empty.py", "")
    assert refused("empty")[0] == "empty.py has no App; it is empty"


def test_a_name_that_is_not_there_is_told_the_nearest_one(write: Write) -> None:
    write("hello.py")
    assert refused("hello:ap") == [
        "hello.py has no 'ap'; did you mean 'app'?",
        "  set by 'hello:ap' on the command line",
    ]
    assert refused("hello:zzz")[0] == ("hello.py has no 'zzz'; it has app (App), welcome (task)")


def test_a_factory_is_not_called(write: Write) -> None:
    write("hello.py", "from ulak import App\n\ndef make_app():\n    raise AssertionError\n")
    assert refused("hello:make_app") == [
        "'make_app' of hello.py is a function, not an App",
        "  functions are not called here: add a line app = make_app(), and name hello:app",
        "  set by 'hello:make_app' on the command line",
    ]


def test_what_is_no_app_is_told_which_one_is(write: Write) -> None:
    write("hello.py")
    assert refused("hello:welcome") == [
        "'welcome' of hello.py is a task, not an App",
        "  the module's App is hello:app",
        "  set by 'hello:welcome' on the command line",
    ]


def test_what_is_no_app_where_none_is_told_how_to_make_one(write: Write) -> None:
    write("hello.py", "app = {}")
    assert refused("hello:app") == [
        "'app' of hello.py is a dict, not an App",
        '  an App is made by app = ulak.App("sqlite:///jobs.db"), at the level of the module',
        "  set by 'hello:app' on the command line",
    ]


def test_ctrl_c_during_the_import_is_not_the_modules_error(write: Write) -> None:
    write("hello.py", "raise KeyboardInterrupt")
    with pytest.raises(KeyboardInterrupt):
        load_app("hello:app")
