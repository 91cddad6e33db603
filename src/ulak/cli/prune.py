"""`ulak prune`: its options.

What it does is in the module beside this one, which loads when it runs: `--help` stays quick.
"""

from __future__ import annotations

import argparse
from typing import Any

from ulak.cli.inspect import command

_DESCRIPTION = """
Remove ended jobs for which the retention of their queue has no place any more, and end as expired what waits
past its time. Workers do so by themselves, little by little. Without --yes it only says how many that would
be, and exits with 1; with --dry-run with 0.
"""


def add(commands: Any) -> None:  # noqa: ANN401 - argparse has no public name for it
    """Add the command to the command line."""

    def run(args: argparse.Namespace) -> int:
        from ulak.cli import inspect_prune

        return inspect_prune.run(args)

    parser = command(commands, "prune", "remove what retention does not keep", _DESCRIPTION, run)
    which = parser.add_mutually_exclusive_group()
    which.add_argument("--dry-run", action="store_true", help="only say how many that would be")
    which.add_argument("--yes", action="store_true", help="do it, and not only say what it would do")
