"""A process that runs an App's jobs for a pool of another process, one at a time."""

from __future__ import annotations

import contextlib
import contextvars
import faulthandler
import importlib
import os
import queue
import select
import signal
import socket
import sys
import threading
from collections.abc import Mapping
from pathlib import Path
from types import FrameType, ModuleType
from typing import Protocol, runtime_checkable

from ulak.capture import bounded, capture
from ulak.clock import SYSTEM
from ulak.context import Context
from ulak.core.job import Lease
from ulak.core.store import Store
from ulak.errors import ConfigError
from ulak.worker.execute import Runs
from ulak.worker.supervisor import die_with_parent
from ulak.worker.wire import (
    Broken,
    Garbled,
    Module,
    Pipe,
    Progress,
    Ready,
    Run,
    Start,
    Stop,
    ToChild,
    ended,
)

PROGRESS_EVERY_S = 0.2
"""How soon a job's progress is passed on."""

LEAVE_S = 10.0
"""How long this process may take to end in order, once nothing more comes; a pool that lives waits less."""

LOOK_S = 0.5
"""How often it looks whether its parent lives, where the system would not end it with that."""

LOST_STATUS = 70
"""The exit status of a process that can say nothing to its pool any more."""

_REASON_BYTES_MAX = 2_000
_TASKS_SHOWN = 5

is_loading = False
"""Whether this process imports the App's modules now: what a script does at its top level happens again."""


@runtime_checkable
class Served(Protocol):
    """An App, as far as a child needs it."""

    url: str

    @property
    def tasks(self) -> Mapping[str, object]:
        """Its tasks by name."""

    def _handler(self) -> Runs:
        """What runs its jobs."""

    def _store(self) -> Store:
        """Its store, opened."""

    def close(self) -> None:
        """Let go of the store."""


def main(end: socket.socket, parent_pid: int) -> None:
    """The whole life of a child. end: the socket that it shares with its parent."""
    os.set_inheritable(end.fileno(), False)  # noqa: FBT003 - its only argument
    pipe: Pipe[ToChild] = Pipe(end, ToChild)
    is_tied = die_with_parent()
    if os.getppid() != parent_pid:
        os._exit(LOST_STATUS)
    _behave(pipe)
    start = pipe.receive()
    if not isinstance(start, Start):
        return
    sys.argv[:] = start.argv
    try:
        app = _load(start)
    except ConfigError as error:
        pipe.send(Broken(bounded(str(error.args[0]), _REASON_BYTES_MAX)))
        return
    runs = app._handler()  # noqa: SLF001 - for this process
    runs.open()
    pipe.send(Ready())
    _Desk(pipe, app, runs, None if is_tied else parent_pid).work()
    runs.close()
    with contextlib.suppress(Exception):  # the store may be away, and nothing is lost with it
        app.close()


def _behave(pipe: Pipe[ToChild]) -> None:
    """Leave alone what is meant for the parent, and tell of a crash."""
    # Whoever ends a service may signal all of its processes; the pool decides what becomes of a running job.
    # A function, and not SIG_IGN, since that would be inherited by the programs that a job starts.
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, _ignore)

    def forget() -> None:
        pipe.close()
        for number, default in (
            (signal.SIGTERM, signal.SIG_DFL),
            (signal.SIGINT, signal.default_int_handler),
        ):
            if signal.getsignal(number) is _ignore:
                signal.signal(number, default)

    os.register_at_fork(after_in_child=forget)
    with contextlib.suppress(Exception):  # without a stderr there is nobody to tell
        faulthandler.enable()


def _ignore(_: int, __: FrameType | None) -> None:
    """Nothing."""


# Loading the App


def _load(start: Start) -> Served:
    """The App. Raises ConfigError, with a reason of a few lines."""
    global is_loading  # noqa: PLW0603 - there is one loading in a process
    is_loading = True
    try:
        modules = [_imported(module) for module in start.modules]
    finally:
        is_loading = False
    found: object = modules[0]
    for name in start.attribute.split("."):
        found = getattr(found, name, None)
    where = f"{start.modules[0].name}:{start.attribute}"
    if not isinstance(found, Served):
        raise ConfigError(f"{where} is no App there, but {type(found).__name__}")
    missing = [name for name in start.tasks if name not in found.tasks]
    if missing:
        more = f" and {len(missing) - _TASKS_SHOWN} more" if len(missing) > _TASKS_SHOWN else ""
        raise ConfigError(
            f"importing {', '.join(module.name for module in start.modules)} makes no task "
            f"{', '.join(missing[:_TASKS_SHOWN])}{more}\n"
            "  define tasks at the level of a module, and not in a function or under a condition"
        )
    if found.url != start.url:
        found.url = start.url
    return found


def _imported(module: Module) -> ModuleType:
    try:
        imported = importlib.import_module(module.name)
    except BaseException as error:
        raise ConfigError(_broken(module.name, error)) from error
    file = getattr(imported, "__file__", None)
    if module.file is not None and (file is None or not Path(module.file).samefile(file)):
        raise ConfigError(
            f"{module.file} cannot be imported, since {module.name!r} is the name of another module "
            f"({file or 'built into Python'})\n  rename the file"
        )
    return imported


def _broken(name: str, error: BaseException) -> str:
    shown = capture(error)
    text = f"importing {name} raised {shown.type}: {shown.text.strip()}".rstrip(": ")
    # Its own lines, and not those of what imports it.
    lines = shown.traceback.splitlines()
    frames = [line for line in lines if "importlib" not in line and __file__ not in line]
    return f"{text}\n  {frames[-1].strip()}" if frames else text


# Working


class _Desk:
    """Runs what its parent sends, in the main thread, while another one listens.

    parent_pid: given where this process has to look by itself whether its parent lives.
    """

    def __init__(self, pipe: Pipe[ToChild], app: Served, runs: Runs, parent_pid: int | None) -> None:
        self._pipe = pipe
        self._app = app
        self._runs = runs
        self._parent_pid = parent_pid
        self._inbox: queue.SimpleQueue[tuple[Lease, Context] | None] = queue.SimpleQueue()
        # The errand that is not answered yet.
        self._number = 0
        self._context: Context | None = None
        self._told = ""

    def work(self) -> None:
        """Run jobs until nothing more comes."""
        threading.Thread(target=self._listen, name="ulak-parent", daemon=True).start()
        while (errand := self._inbox.get()) is not None:
            self._run(*errand)

    def _run(self, lease: Lease, context: Context) -> None:
        ending = contextvars.copy_context().run(self._runs.run, lease, context)
        # It is seen before the job is known to have ended, and is not lost with this process later.
        for stream in (sys.stdout, sys.stderr):
            with contextlib.suppress(Exception):
                stream.flush()
        self._context = None
        try:
            self._pipe.send(ended(ending, acked=context.acked))
        except OSError:
            os._exit(LOST_STATUS)

    def _listen(self) -> None:
        """Take in what the parent says, and tell it of progress."""
        try:
            while (frame := self._next()) is not None:
                self._take(frame)
        except (OSError, Garbled):
            os._exit(LOST_STATUS)
        if self._context is not None:
            # Nobody waits for this job any more, and it must not go on.
            os._exit(LOST_STATUS)
        self._inbox.put(None)
        SYSTEM.wait(threading.Event(), LEAVE_S)
        os._exit(LOST_STATUS)

    def _take(self, frame: ToChild) -> None:
        match frame:
            case Run():
                self._number, self._told, lease = frame.number, "", frame.lease
                self._context = context = Context(lease, _store=self._app._store)  # noqa: SLF001 - as above
                self._inbox.put((lease, context))
            case Stop(number):
                if self._context is not None and number == self._number:
                    self._context.ask_to_stop()
            case Start():
                raise Garbled

    def _next(self) -> ToChild | None:
        """The next frame; None once the parent has closed its end."""
        poll = select.poll()
        poll.register(self._pipe.fileno(), select.POLLIN)
        while not self._pipe.has_more:
            wait_s = LOOK_S if self._parent_pid is not None else None
            if self._context is not None:
                wait_s = PROGRESS_EVERY_S
            if poll.poll(None if wait_s is None else wait_s * 1000):
                break
            self._tell()
            if self._parent_pid is not None and os.getppid() != self._parent_pid:
                os._exit(LOST_STATUS)
        return self._pipe.receive()

    def _tell(self) -> None:
        context = self._context
        if context is not None and (text := context.progress_text) is not None and text != self._told:
            self._told = text
            self._pipe.send(Progress(self._number, text))
