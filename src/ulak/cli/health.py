"""`ulak health`: asks a worker's `--health` address, for a probe that runs a command."""

from __future__ import annotations

import argparse
import sys
from typing import Any

from ulak.cli.options import Address, add_verbose, address, duration
from ulak.cli.output import say, visible
from ulak.clock import SYSTEM
from ulak.durations import format_duration

TIMEOUT_S = 2.0
ANSWER_BYTES_MAX = 64 * 1024

_DESCRIPTION = """
Asks the worker that was started with --health at this address. Exits with 0 if it is so, with 1 if it is not
or nobody answers.
"""


def add(commands: Any) -> None:  # noqa: ANN401 - argparse has no public name for it
    """Add the command to the command line."""
    parser = commands.add_parser(
        "health", help="whether a worker lives, or is ready", description=_DESCRIPTION
    )
    where = "as --health of the worker has it: :9100, HOST:PORT or a URL"
    parser.add_argument("where", metavar="WHERE", type=_address, help=where)
    which = parser.add_mutually_exclusive_group()
    which.add_argument("--live", dest="path", action="store_const", const="/livez", help="does it go round?")
    ready = "does its store answer, and does it take jobs? (this one, unless told otherwise)"
    which.add_argument("--ready", dest="path", action="store_const", const="/readyz", help=ready)
    limit = f"how long the answer may take ({TIMEOUT_S:g}s)"
    parser.add_argument("--timeout", metavar="TIME", type=duration, default=TIMEOUT_S, help=limit)
    add_verbose(parser, dest="more_verbose")
    parser.set_defaults(run=run, path="/readyz")


def _address(text: str) -> Address:
    # What stands before an "@" is a user's, and is not to be shown.
    return address(text.removeprefix("http://").partition("/")[0].rpartition("@")[2])


def run(args: argparse.Namespace) -> int:
    """Ask, and print the answer; 0 if it is a good one, else 1."""
    try:
        status, body = _asked(args.where, args.path, args.timeout)
    except (OSError, ValueError) as error:
        why = getattr(error, "strerror", None) or str(error)
        if isinstance(error, TimeoutError) and error.errno is None:
            why = f"it took more than {format_duration(args.timeout)}"
        say(f"nobody answers at {args.where}: {visible(why)}", to=sys.stderr)
        return 1
    is_ok = status == 200
    say("\n".join(map(visible, body.splitlines())), to=sys.stdout if is_ok else sys.stderr)
    return 0 if is_ok else 1


def _asked(where: Address, path: str, timeout_s: float) -> tuple[int, str]:
    """Status and body. Not by http.client, which takes as long to import as all the rest."""
    import socket

    until = SYSTEM.interval() + timeout_s

    def left_s() -> float:
        if (left_s := until - SYSTEM.interval()) <= 0:
            raise TimeoutError
        return left_s

    with socket.create_connection(where, left_s()) as line:
        line.sendall(f"GET {path} HTTP/1.1\r\nHost: {where}\r\nConnection: close\r\n\r\n".encode())
        told = b""
        read = b"..."
        while read and len(told) < ANSWER_BYTES_MAX:
            line.settimeout(left_s())
            read = line.recv(ANSWER_BYTES_MAX)
            told += read
    head, _, body = told.partition(b"\r\n\r\n")
    words = head.split(b" ", 2)
    if len(words) != 3 or not words[0].startswith(b"HTTP/1."):
        raise ValueError("what answers speaks no HTTP")
    return int(words[1]), body.decode("utf-8", "replace")
