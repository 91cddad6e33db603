"""From a command's options to an open store: one that is there already, since looking creates nothing."""

from __future__ import annotations

import argparse
import difflib
import sys
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from urllib.parse import urlencode

import msgspec

from ulak.cli.output import say, visible
from ulak.cli.settings import here
from ulak.clock import SYSTEM
from ulak.core.store import Settings, Store
from ulak.errors import ConfigError
from ulak.local import (
    LocalStore,
    check_library,
    check_url,
    file_of,
    is_on_server,
    joined_store,
    local_store,
    masked,
    server_of,
)
from ulak.storage.drive import Edge

NOT_FOUND = 3

_SQLITE = "sqlite:///"


class Missing(Exception):
    """What a command was asked about is not there: a file, a queue, a job."""


def finding(command: Callable[[argparse.Namespace], int], args: argparse.Namespace) -> int:
    """The status of the command; 3, and why on stderr, if what it was asked about is not there."""
    try:
        return command(args)
    except Missing as missing:
        say("\n".join(map(visible, f"error: {missing}".splitlines())), to=sys.stderr)
        return NOT_FOUND


class Target(msgspec.Struct, frozen=True):
    """The store a command is for. source: who named it."""

    url: str
    source: str

    @property
    def is_in_memory(self) -> bool:
        """Whether it lives inside a process."""
        return self.url.startswith("memory://")

    def __str__(self) -> str:
        return f"{masked(self.url)}, named by {self.source}"


def target_of(args: argparse.Namespace) -> Target:
    """The store that the options or the environment name. Raises ConfigError if none, or none that could be.

    A store in memory is refused, unless a program that calls `main` itself has it open: there is no way into
    another process's.
    """
    target = Target(args.url, "--url") if args.url is not None else _target_set()
    check_url(target.url)
    if target.is_in_memory:
        _joined(target).close_handle()
    return target


def _target_set() -> Target:
    given = here().get("url")
    if given is None:
        raise ConfigError("no store is named: give --url sqlite:///jobs.db, or set ULAK_URL")
    return Target(*given)


@contextmanager
def opened(args: argparse.Namespace) -> Iterator[Edge]:
    """The store of this command, open while inside. Raises Missing if it is not there; nothing is created."""
    with opened_at(target_of(args)) as edge:
        yield edge


@contextmanager
def opened_at(target: Target) -> Iterator[Edge]:
    """A store, open while inside. Raises Missing if it is not there; nothing is created."""
    if target.is_in_memory:
        local = _joined(target)
    else:
        local = _on_server(target) if is_on_server(target.url) else _of_file(target)
    try:
        yield local.edge
    finally:
        local.close_handle()


def _joined(target: Target) -> LocalStore:
    local = joined_store(target.url)
    if local is None:
        raise ConfigError(
            f"a memory:// store ({target.source}) lives inside its process, where no command can look; "
            "name a file: sqlite:///jobs.db"
        )
    return local


def _of_file(target: Target) -> LocalStore:
    path, options = place_of(target)
    # As the file is: opened by a URL that asks for another journal, it would be changed to that.
    options = {**options, "journal": journal_of(path)}
    return local_store(f"{_SQLITE}{path}?{urlencode(options)}", SYSTEM)


def _on_server(target: Target) -> LocalStore:
    check_library()
    from ulak.storage.postgres.schema import check_current

    place = server_of(target.url)
    if check_current(place) == 0:
        raise Missing(f"there is no store in {place} (named by {target.source}); nothing was created")
    return local_store(target.url, SYSTEM)


def place_of(target: Target) -> tuple[str, dict[str, str]]:
    """The store's file and the options of its URL. Raises Missing if the file is not there."""
    path, options = file_of(target.url)
    if not Path(path).exists():
        raise Missing(f"there is no file {path} (named by {target.source}); nothing was created")
    return path, options


def journal_of(path: str) -> str:
    """The journal that the store's file is in: wal or truncate.

    Raises SchemaError if it holds something else than a store of this version; Missing if it holds nothing,
    since opening it would make a store of it.
    """
    from ulak.storage.sqlite.link import connect_to_look, with_patience
    from ulak.storage.sqlite.place import check_place
    from ulak.storage.sqlite.schema import check_current

    def look() -> str:
        if check_current(db, path) == 0:
            raise Missing(f"the file {path} holds no store yet; nothing was changed")
        (mode,) = db.execute("PRAGMA journal_mode").fetchone()
        return "wal" if mode == "wal" else "truncate"

    check_place(Path(path))
    with closing(connect_to_look(path)) as db:
        return with_patience(look, path)


def settings_of(store: Store, queue: str) -> Settings:
    """What is stored with a queue. Raises Missing, with the nearest name, if there is no such queue."""
    queues = store.queues()
    if queue not in queues:
        near = difflib.get_close_matches(queue, queues, 1) or sorted(queues)[:5]
        hint = f"; there is {', '.join(near)}" if near else "; the store has no queue yet"
        raise Missing(f"there is no queue {queue[:64]!r}{hint}")
    return queues[queue]
