"""What an App's pool runs jobs in: threads, an event loop, or processes of their own."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable
from pathlib import Path
from types import ModuleType
from typing import Any, Literal, TypeAlias, get_args

from ulak.annotations import function_behind
from ulak.core.store import Store
from ulak.errors import ArgumentError, ConfigError
from ulak.home import Host
from ulak.local import masked
from ulak.worker.execute import Runs
from ulak.worker.tasks import TaskHandler
from ulak.worker.wire import Module, Start

Executor: TypeAlias = Literal["thread", "process", "async"]
"""thread: each worker is a thread. async: all are tasks of one event loop. process: each has a process."""

EXECUTORS: tuple[Executor, ...] = get_args(Executor)
_NAMES_SHOWN = 5


def executor_of(
    app: Host,
    store: Store,
    handler: TaskHandler,
    executor: Executor | None,
    target: str | None,
    *,
    is_trial: bool = False,
) -> Runs:
    """What runs the jobs. executor: None for a loop where all tasks are async, else threads.

    target: what processes import, as in "shop.jobs:app"; None to find it. is_trial: in a user's tests, whose
    store no other process sees, and where threads stand for processes. Raises ArgumentError.
    """
    if executor is not None and executor not in EXECUTORS:
        raise ArgumentError(f"executor is one of {', '.join(EXECUTORS)}; got {executor!r:.80}")
    if target is not None and executor != "process":
        raise ArgumentError("target is what processes import; it goes with executor='process'")
    if executor == "process" and not is_trial:
        # Only whoever asks for it pays for its import.
        from ulak.worker.children import Children

        if not store.capabilities.processes:
            raise ArgumentError(
                f"executor='process' needs a store that other processes can open, such as sqlite:///jobs.db; "
                f"this one is {masked(app.url)}"
            )
        return Children(handler, start_of(app, target))
    limited = [name for name, task in app.tasks.items() if task.kill_after_s is not None]
    if limited and not is_trial:
        raise ArgumentError(
            f"kill_after of {_shown(limited)}: only a process can be killed\n"
            f"  run them by workers(executor='process'), or leave it out"
        )
    if executor == "async" and not handler.is_async:
        plain = [name for name, task in app.tasks.items() if not task.is_async]
        raise ArgumentError(
            f"executor='async' is for tasks that are all async def; a def would block the loop: "
            f"{_shown(plain)}"
        )
    if executor in ("thread", "process"):
        handler.is_async = False
    return handler


def refuse_while_loading() -> None:
    """Raises ConfigError in a process of an executor that is still importing its App."""
    child = sys.modules.get("ulak.worker.child")
    if child is not None and child.is_loading:
        raise ConfigError(
            "workers are started where the App is imported, so its own processes would start them again\n"
            '  put what only the program does under: if __name__ == "__main__":'
        )


# What the processes import


def start_of(app: Host, target: str | None) -> Start:
    """What a process is told, so that it has this App with its tasks. Raises ArgumentError."""
    functions = [task.function for task in app.tasks.values()]
    modules = list(dict.fromkeys(_modules_of(functions)))
    if target is not None:
        module, attribute = _parted(target)
    else:
        module, attribute = _found(app, modules)
    imported = [_as_imported(name) for name in dict.fromkeys([module, *modules])]
    return Start(list(sys.argv), imported, attribute, list(app.tasks), app.url)


def _modules_of(functions: Iterable[Callable[..., Any]]) -> list[str]:
    """The modules that define them, as far as they are modules."""
    names = [getattr(function_behind(function), "__module__", None) for function in functions]
    return [name for name in names if name in sys.modules]


def _parted(target: str) -> tuple[str, str]:
    module, _, attribute = str(target).partition(":")
    parts = *module.split("."), *attribute.split(".")
    if module.endswith(".py") or not all(part.isidentifier() for part in parts):
        raise ArgumentError(
            f"target names a module and the App in it, as in 'shop.jobs:app'; got {target!r:.80}"
        )
    return module, attribute


def _found(app: Host, modules: Iterable[str]) -> tuple[str, str]:
    """Where the App is a global, among the modules of its tasks."""
    for module in modules:
        for name, value in vars(sys.modules[module]).items():
            if value is app:
                return module, name
    raise ArgumentError(
        "executor='process' imports the App anew, and no module of its tasks has it as a global\n"
        "  make it one, as in app = App(...), or say where it is: workers(target='shop.jobs:app')"
    )


def _as_imported(name: str) -> Module:
    """A module under the name that another process imports it by. Raises ArgumentError if there is none."""
    if name != "__main__":
        return Module(name)
    main: ModuleType = sys.modules["__main__"]
    spec, file = main.__spec__, getattr(main, "__file__", None)
    named = Path(file or "").stem if spec is None or spec.name == "__main__" else spec.name
    if file is None or named.rpartition(".")[2] == "__main__" or ("." in named and spec is None):
        raise ArgumentError(
            "executor='process' imports the App anew, which what is typed in, a __main__.py, or a file with "
            "a dot in its name does not allow\n"
            "  define it in a module of its own, and import that"
        )
    return Module(named, str(Path(file).absolute()))


def _shown(names: list[str]) -> str:
    more = f" and {len(names) - _NAMES_SHOWN} more" if len(names) > _NAMES_SHOWN else ""
    return ", ".join(names[:_NAMES_SHOWN]) + more
