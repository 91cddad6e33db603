"""`ulak migrate`: its options.

What it does is in the module beside this one, which loads when it runs: `--help` stays quick.
"""

from __future__ import annotations

import argparse
from typing import Any

from ulak.cli.inspect import command

_DESCRIPTION = """
Make a store's schema, or bring it up to date. What comes before a deploy leaves programs of the version
before at work, and the first program of this version would do it too; what comes after it, with --after, is
done by this command alone, once no program of an older version runs. On a file, all comes before.
"""


def add(commands: Any) -> None:  # noqa: ANN401 - argparse has no public name for it
    """Add the command to the command line."""

    def run(args: argparse.Namespace) -> int:
        from ulak.cli import migrate_run

        return migrate_run.run(args)

    parser = command(commands, "migrate", "make a store's schema, or bring it up to date", _DESCRIPTION, run)
    help_text = "do what comes after the deploy, once no program of an older version runs"
    parser.add_argument("--after", action="store_true", help=help_text)
    which = parser.add_mutually_exclusive_group()
    help_text = "only say what is to be done, before the deploy and after it"
    which.add_argument("--plan", action="store_true", help=help_text)
    help_text = "only print the SQL, for who administers a server"
    which.add_argument("--sql", action="store_true", help=help_text)
    help_text = "only print the SQL that grants a user of a server what programs need, and no more"
    which.add_argument("--grants", metavar="ROLE", help=help_text)
