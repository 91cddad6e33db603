"""From `module:app` on a command line to the App: its module is imported once, under its own name."""

from __future__ import annotations

import difflib
import importlib
import inspect
import os
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any

from ulak.cli.options import current_folder
from ulak.errors import ConfigError

if TYPE_CHECKING:
    from ulak.app import App

_FORM = "an App is named as MODULE:NAME, such as hello:app, hello.py:app or shop.jobs:app"
_NAMES_SHOWN = 6
_TEXT_CHARS_MAX = 300
_TEXT_LINES_MAX = 3


def load_app(target: str) -> App:
    """The App that the target names; as `locate`."""
    app, _ = locate(target)
    return app


def locate(target: str) -> tuple[App, str]:
    """The App that the target names, and as MODULE:NAME where another process finds it.

    target: `hello:app`, `shop.jobs:app`, `hello.py:app`; `hello` alone for its only App, or the one that is
    called `app`. The current directory comes first on Python's path, before that the file's own.
    Raises ConfigError for what cannot be loaded; what the module raised is its cause.
    """
    place, colon, attribute = target.partition(":")
    file = Path(place) if place.endswith(".py") or os.sep in place else None
    is_form = file is not None or all(place.split("."))
    if not is_form or (colon and not all(map(str.isidentifier, attribute.split(".")))):
        raise ConfigError(f"{_cut(target)!r} names no App\n  {_FORM}")
    _put_on_path(current_folder())
    if file is None:
        module = _imported(place, target)
        _refuse_hidden(module, place)
    else:
        module = _imported(_name_of(file, target), target)
        _refuse_another(module, file)
    attribute = attribute or _only(module, target)
    found = _named(module, attribute, target)
    _refuse_stranger(found, module, attribute, target)
    return found, f"{module.__name__}:{attribute}"  # type: ignore[return-value]


def _put_on_path(folder: Path) -> None:
    if sys.path[:1] != [str(folder)]:
        sys.path.insert(0, str(folder))


def _name_of(file: Path, target: str) -> str:
    """The name under which others import the file's module too, once its folder has been put on the path."""
    if not file.is_file() or file.suffix != ".py":
        raise ConfigError(
            f"there is no Python file {_cut(str(file))}{_nearest_file(file, target)}\n  {_set_by(target)}"
        )
    if "." in file.stem:
        raise ConfigError(f"{file.name} cannot be imported, since its name has a dot in it: rename it")
    file = file.absolute()
    folder, parts = file.parent, [] if file.stem == "__init__" else [file.stem]
    while (folder / "__init__.py").is_file():
        parts.insert(0, folder.name)
        folder = folder.parent
    _put_on_path(folder)
    return ".".join(parts)


def _imported(name: str, target: str) -> ModuleType:
    try:
        found: object = importlib.import_module(name)
    except KeyboardInterrupt:
        raise
    except BaseException as error:
        if isinstance(error, ModuleNotFoundError) and error.name and f"{name}.".startswith(f"{error.name}."):
            raise ConfigError(_no_module(name, error.name, target)) from None
        raise ConfigError(_broken(f"importing {name}", error, target)) from error
    if not isinstance(found, ModuleType):
        put = f"it puts {_a(_kind_of(found))} in its place in sys.modules"
        raise ConfigError(f"{name!r} is no module: {put}\n  {_set_by(target)}")
    return found


def _refuse_hidden(module: ModuleType, place: str) -> None:
    """A module of the current directory that has the name of another one, as types.py has, is not found."""
    file = Path.cwd().joinpath(*place.split(".")).with_suffix(".py")
    found = getattr(module, "__file__", None)
    if file.is_file() and (found is None or not Path(found).is_relative_to(Path.cwd())):
        _refuse_another(module, file)


def _refuse_another(module: ModuleType, file: Path) -> None:
    """A file that is called like a module which is loaded already, such as queue.py, is not the one meant."""
    found = getattr(module, "__file__", None)
    if found is None or not file.samefile(found):
        whose = "a module of Python's own" if _is_of_python(module.__name__) else "another module"
        where = found or "built in"
        raise ConfigError(
            f"{_short(str(file))} cannot be imported: {module.__name__!r} is the name of {whose} ({where})\n"
            f"  rename the file"
        )


def _is_of_python(name: str) -> bool:
    return name.partition(".")[0] in sys.stdlib_module_names


def _only(module: ModuleType, target: str) -> str:
    """The name of the App called `app`, or of the only one."""
    apps = {name: value for name, value in vars(module).items() if _is_app(value)}
    if "app" in apps:
        return "app"
    if len({id(app) for app in apps.values()}) > 1:
        choice = ", ".join(f"{target}:{name}" for name in list(apps)[:_NAMES_SHOWN])
        raise ConfigError(f"{_file_of(module)} has several Apps; name one of {choice}")
    if not apps:
        raise ConfigError(
            f"{_file_of(module)} has no App{_contents(module)}\n"
            f'  make one at the level of the module: app = ulak.App("sqlite:///jobs.db")\n  {_set_by(target)}'
        )
    return next(iter(apps))


def _named(module: ModuleType, attribute: str, target: str) -> object:
    found: object = module
    for part in attribute.split("."):
        names = _names_of(found)
        try:
            found = getattr(found, part)
        except KeyboardInterrupt:
            raise
        except BaseException as error:
            if not isinstance(error, AttributeError) or part in names:
                text = _broken(f"looking for {attribute!r} in {_file_of(module)}", error, target)
                raise ConfigError(text) from error
            near = difflib.get_close_matches(part, names, 1)
            hint = f"; did you mean {near[0]!r}?" if near else _contents(module)
            text = f"{_file_of(module)} has no {attribute!r}{hint}\n  {_set_by(target)}"
            raise ConfigError(text) from None
    return found


def _names_of(value: object) -> list[str]:
    """The names that it says it has; whatever its class does."""
    try:
        names: list[object] = [*dir(value)]
        return [name for name in names if isinstance(name, str) and not name.startswith("__")]
    except Exception:  # noqa: BLE001 - as it says; they are for a hint alone
        return []


def _refuse_stranger(found: object, module: ModuleType, attribute: str, target: str) -> None:
    """Raises ConfigError for what is no App, with what to name instead."""
    if _is_app(found):
        return
    apps = [name for name, value in vars(module).items() if _is_app(value)]
    place = target.partition(":")[0]
    if apps:
        fix = f"the module's App is {', '.join(f'{place}:{name}' for name in apps[:_NAMES_SHOWN])}"
    elif _is(inspect.isroutine, found):
        fix = f"functions are not called here: add a line app = {attribute}(), and name {place}:app"
    else:
        fix = 'an App is made by app = ulak.App("sqlite:///jobs.db"), at the level of the module'
    what = f"{attribute!r} of {_file_of(module)} is {_a(_kind_of(found))}, not an App"
    raise ConfigError(f"{what}\n  {fix}\n  {_set_by(target)}")


# What errors say


def _no_module(name: str, missing: str, target: str) -> str:
    """missing: the part of the name that is not there: `shp` of `shp.jobs`."""
    parent, _, last = missing.rpartition(".")
    holder = sys.modules.get(parent)
    if holder is not None and not hasattr(holder, "__path__"):
        hint = f"; did you mean {parent}:{last}?" if hasattr(holder, last) else ""
        return f"there is no module {name!r}: {parent} is no package{hint}\n  {_set_by(target)}"
    folder = Path.cwd().joinpath(*parent.split("."))
    near = difflib.get_close_matches(last, _modules_in(folder), 1)
    if near:
        right = ".".join(part for part in (parent, near[0]) if part) + name.removeprefix(missing)
        hint = f"; did you mean {right}{target.removeprefix(name)}?"
    else:
        hint = (
            "\n  go to the directory that has it, or give its path: path/to/file.py:app"
            "\n  a relative path in sqlite:///jobs.db belongs to the directory you are in then"
        )
    return f"there is no module {name!r} in {folder} or elsewhere on Python's path{hint}\n  {_set_by(target)}"


def _nearest_file(file: Path, target: str) -> str:
    if file.is_dir():
        return ": that is a folder"
    near = difflib.get_close_matches(file.name, [f"{stem}.py" for stem in _modules_in(file.parent)], 1)
    _, colon, attribute = target.partition(":")
    return f"; did you mean {file.parent / near[0]}{colon}{attribute}?" if near else f" in {Path.cwd()}"


def _modules_in(folder: Path) -> list[str]:
    try:
        entries = sorted(folder.iterdir())
    except OSError:
        return []
    return [entry.stem for entry in entries if entry.suffix == ".py" or (entry / "__init__.py").is_file()]


def _broken(act: str, error: BaseException, target: str) -> str:
    from ulak.capture import capture

    shown = capture(error)
    text = [_cut(line.strip()) for line in shown.text.splitlines()[:_TEXT_LINES_MAX]] or [""]
    lines = [f"{act} raised {shown.type}: {text[0]}".rstrip(": "), *text[1:]]
    lines.append(f"at {_place_of(error)}; -v shows the whole traceback")
    if (hiding := _hiding()) is not None:
        lines.append(f"{hiding} hides a module of Python's own: rename it")
    if isinstance(error, ModuleNotFoundError):
        lines.append(f"is that installed for {sys.executable}?")
    elif isinstance(error, SystemExit):
        lines.append('put what only a script does under: if __name__ == "__main__":')
    return "\n  ".join([*lines, _set_by(target)])


def _hiding() -> str | None:
    """A file of the current directory that was imported in the place of one of Python's own modules."""
    for name in _modules_in(Path.cwd()):
        found = getattr(sys.modules.get(name), "__file__", None)
        if _is_of_python(name) and found is not None and Path(found).is_relative_to(Path.cwd()):
            return _short(found)
    return None


def _place_of(error: BaseException) -> str:
    """File and line of what went wrong: the last that is the user's own, if any is."""
    import traceback

    if isinstance(error, SyntaxError) and error.filename:
        return f"{_short(error.filename)}:{error.lineno}"
    frames = traceback.extract_tb(error.__traceback__)
    frame = ([frame for frame in frames if not _is_library(frame.filename)] or frames)[-1]
    return f"{_short(frame.filename)}:{frame.lineno}, in {frame.name}"


def _is_library(filename: str) -> bool:
    import sysconfig

    # Also ulak's own files, since what an annotation of the user's does wrong is found out there.
    folders = [
        Path(__file__).parents[1],
        *map(Path, map(sysconfig.get_path, ("stdlib", "purelib", "platlib"))),
    ]
    return filename.startswith("<") or any(Path(filename).is_relative_to(folder) for folder in folders)


def _short(filename: str) -> str:
    path = Path(filename)
    return str(path.relative_to(Path.cwd()) if path.is_relative_to(Path.cwd()) else path)


def _file_of(module: ModuleType) -> str:
    file = getattr(module, "__file__", None)
    return f"module {module.__name__}" if file is None else f"{_short(file)}"


def _contents(module: ModuleType) -> str:
    """What the module has of its own, by name and kind."""
    own = [
        f"{name} ({_kind_of(value)})"
        for name, value in vars(module).items()
        if not name.startswith("_") and not _is(inspect.ismodule, value) and _is_from(value, module)
    ]
    more = ", …" if len(own) > _NAMES_SHOWN else ""
    return f"; it has {', '.join(own[:_NAMES_SHOWN])}{more}" if own else "; it is empty"


def _is_from(value: object, module: ModuleType) -> bool:
    """Whether the module made it, as far as one can tell."""
    if not (_is(inspect.isclass, value) or _is(inspect.isroutine, value)):
        return True
    return _is(lambda made: made.__module__ == module.__name__, value)


def _is_app(value: object) -> bool:
    """Whether it is one, and does not only say so of itself."""
    from ulak.app import App

    return issubclass(type(value), App)


def _is(test: Callable[[Any], bool], value: object) -> bool:
    """Whether a look finds that; not where the value's class lets nobody look."""
    try:
        return test(value)
    except Exception:  # noqa: BLE001 - whatever that class does
        return False


def _kind_of(value: object) -> str:
    from ulak.task import Task

    if value is None:
        return "None"
    if _is_app(value) or issubclass(type(value), Task):
        return "App" if _is_app(value) else "task"
    if _is(inspect.isclass, value) or _is(inspect.isroutine, value):
        return "class" if _is(inspect.isclass, value) else "function"
    kind = type(value)
    place = type.__getattribute__(kind, "__module__")
    return f"{place}.{kind.__name__}" if isinstance(place, str) and place != "builtins" else kind.__name__


def _a(noun: str) -> str:
    if noun == "None":
        return noun
    return f"{'an' if noun[:1].lower() in 'aeiou' else 'a'} {noun}"


def _set_by(target: str) -> str:
    return f"set by {_cut(target)!r} on the command line"


def _cut(text: str) -> str:
    return text if len(text) <= _TEXT_CHARS_MAX else f"{text[: _TEXT_CHARS_MAX - 1]}…"
