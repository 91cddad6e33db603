"""What a disk holds after the power went: a tape of what was done to files, and the images it allows.

The model: what was synced survives; each write or cut since is kept, dropped, or torn sector by sector; a
name made or removed survives only once its directory was synced, and in the order of what was done.
A sync that *failed* loses what it should have written, for good, although it can still be read until then: so
Linux does it.
"""

from __future__ import annotations

import contextlib
import random
import time
from collections.abc import Iterable, Mapping
from enum import Enum
from pathlib import Path
from typing import NamedTuple, Self

from tests.faults.python import seen
from tests.faults.vfs import Call, Kind, Strike, Watch

SECTOR_BYTES = 512

Files = Mapping[str, bytes]


class Loss(Enum):
    """What became of what was not synced."""

    ALL = "all unsynced dropped"
    SOME = "random subset kept"
    TORN = "torn at 512 bytes"


class Event(NamedTuple):
    """Something done to the file of this name. is_lost: a sync that failed, and so lost what it was for."""

    kind: Kind
    name: str
    offset: int = 0
    data: bytes = b""
    syncs_directory: bool = False
    is_lost: bool = False


CHANGES = frozenset({Kind.OPEN, Kind.DELETE, Kind.WRITE, Kind.TRUNCATE, Kind.SYNC})


class Tape(Watch):
    """Records what is done in a directory, which holds `start` and nothing else at first.

    sync_s: what a sync takes longer than it would: on a slow disk more calls come together.
    """

    def __init__(self, directory: Path, start: Files | None = None, *, sync_s: float = 0.0) -> None:
        super().__init__(directory)
        self._sync_s = sync_s
        self._python = contextlib.ExitStack()
        self.start: Files = start or {}
        self.events: list[Event] = []

    def __enter__(self) -> Self:
        super().__enter__()
        self._python.enter_context(seen(self))
        return self

    def __exit__(self, *error: object) -> None:
        self._python.close()
        super().__exit__(*error)

    @property
    def now(self) -> int:
        """How many events there are: a moment."""
        return len(self.events)

    def saw(self, call: Call) -> None:
        if call.kind in CHANGES:
            self._record(call)
        if call.kind is Kind.SYNC and self._sync_s:
            time.sleep(self._sync_s)

    def failed(self, call: Call, strike: Strike) -> None:
        if call.kind is Kind.SYNC:
            self._record(call, is_lost=True)
        elif call.kind is Kind.WRITE and strike.half_done:
            self._record(call._replace(data=call.data[: len(call.data) // 2]))

    def _record(self, call: Call, *, is_lost: bool = False) -> None:
        name = call.path[len(self.directory) + 1 :]
        self.events.append(Event(call.kind, name, call.offset, call.data, call.syncs_directory, is_lost))


class _Inode:
    """One file: what is surely there, and what was done since."""

    def __init__(self, content: bytes = b"") -> None:
        self.synced = bytearray(content)
        self.pending: list[Event] = []

    def sync(self) -> None:
        for event in self.pending:
            _apply(self.synced, event)
        self.pending.clear()

    def after(self, loss: Loss, draw: random.Random) -> bytes:
        content = bytearray(self.synced)
        if loss is not Loss.ALL:
            share = draw.choice((0.1, 0.5, 0.9))
            for event in self.pending:
                if loss is Loss.SOME or event.kind is Kind.TRUNCATE:
                    if draw.random() < share:
                        _apply(content, event)
                else:
                    _apply_torn(content, event, share, draw)
        return bytes(content)


def _apply(content: bytearray, event: Event) -> None:
    if event.kind is Kind.TRUNCATE:
        _resize(content, event.offset)
    else:
        _put(content, event.offset, event.data)


def _put(content: bytearray, offset: int, data: bytes) -> None:
    if len(content) < offset:
        _resize(content, offset)
    content[offset : offset + len(data)] = data


def _resize(content: bytearray, size: int) -> None:
    del content[size:]
    content.extend(bytes(size - len(content)))


def _apply_torn(content: bytearray, event: Event, share: float, draw: random.Random) -> None:
    """Keep each sector that the write touches, or not."""
    done = 0
    while done < len(event.data):
        at = event.offset + done
        until = min(len(event.data), done + SECTOR_BYTES - at % SECTOR_BYTES)
        if draw.random() < share:
            _put(content, at, event.data[done:until])
        done = until


class Disk:
    """The files of one directory, as events reach them."""

    def __init__(self, start: Files) -> None:
        self._live = {name: _Inode(content) for name, content in start.items()}
        self._synced = dict(self._live)
        self._pending: list[tuple[str, _Inode | None]] = []

    def apply(self, event: Event) -> None:
        match event.kind:
            case Kind.OPEN:
                if event.name not in self._live:
                    self._name(event.name, _Inode())
            case Kind.DELETE:
                if event.name in self._live:
                    self._name(event.name, None)
                if event.syncs_directory:
                    self._sync_names()
            case Kind.SYNC if event.is_lost:
                self._live[event.name].pending.clear()
            case Kind.SYNC:
                self._live[event.name].sync()
                if event.syncs_directory:
                    self._sync_names()
            case _:
                self._live[event.name].pending.append(event)

    def _name(self, name: str, inode: _Inode | None) -> None:
        self._pending.append((name, inode))
        self._put_name(self._live, name, inode)

    @staticmethod
    def _put_name(names: dict[str, _Inode], name: str, inode: _Inode | None) -> None:
        if inode is None:
            names.pop(name, None)
        else:
            names[name] = inode

    def _sync_names(self) -> None:
        self._synced = dict(self._live)
        self._pending.clear()

    def image(self, loss: Loss, draw: random.Random) -> dict[str, bytes]:
        """The files after a power loss now."""
        names = dict(self._synced)
        if loss is not Loss.ALL:
            for name, inode in self._pending[: draw.randint(0, len(self._pending))]:
                self._put_name(names, name, inode)
        return {name: inode.after(loss, draw) for name, inode in names.items()}


def play(start: Files, events: Iterable[Event]) -> Disk:
    """The disk after these events."""
    disk = Disk(start)
    for event in events:
        disk.apply(event)
    return disk


def write_files(directory: Path, files: Files) -> None:
    """Put an image where a store can be opened on it; the directory is new."""
    directory.mkdir()
    for name, content in files.items():
        (directory / name).write_bytes(content)
