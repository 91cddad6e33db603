"""How a command starts children of its own: with this interpreter, and this very package."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import ulak

# On one line, since lists of processes show it. Until they have handlers of their own, a signal ends them in
# order: nothing has begun. They find this very package, wherever it was imported from, but no module of the
# directory they are started in: that may hold a random.py.
_BOOT = (
    "import os, signal, sys; both = (signal.SIGINT, signal.SIGTERM); "
    "[signal.signal(number, lambda *_: os._exit(0)) for number in both]; "
    "signal.pthread_sigmask(signal.SIG_UNBLOCK, both); "
    "root = sys.argv.pop(1); root in sys.path or sys.path.insert(0, root); "
    "from ulak.cli.{module} import main; sys.exit(main(*sys.argv[1:]))"
)


def child_command(module: str, *arguments: str) -> list[str]:
    """What runs `main(*arguments)` of a module of the command line in a process of its own."""
    flags = subprocess._args_from_interpreter_flags()  # type: ignore[attr-defined]  # noqa: SLF001
    root = Path(ulak.__file__).resolve().parent.parent
    return [sys.executable, *flags, "-P", "-c", _BOOT.format(module=module), str(root), *arguments]
