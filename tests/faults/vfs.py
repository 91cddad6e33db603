"""A file system for SQLite that is the default one, but seen and struck call by call, in watched directories.

It is registered once for the process and stays. A file opened elsewhere is left alone and costs nothing. Of a
watched file only the methods that matter are replaced, in a copy of its method table; all others stay native,
so that reading and locking run at full speed.
"""

from __future__ import annotations

import atexit
import ctypes
import threading
from collections.abc import Callable
from enum import Enum
from pathlib import Path
from typing import Any, NamedTuple

from tests.faults import library as lib

Method = Callable[..., int]


class Kind(Enum):
    """What SQLite asks of the file system."""

    OPEN = "open"
    DELETE = "delete"
    READ = "read"
    WRITE = "write"
    TRUNCATE = "truncate"
    SYNC = "sync"
    LOCK = "lock"
    SHM_LOCK = "lock of the log"
    SHM_MAP = "map shared memory"


class Call(NamedTuple):
    """One call. offset: where it writes, or the size it cuts to. syncs_directory: the names with the file."""

    kind: Kind
    path: str
    offset: int = 0
    data: bytes = b""
    syncs_directory: bool = False


class Strike(NamedTuple):
    """Let a call fail with this result code; of a write, its first half may have been done."""

    code: int
    half_done: bool = False


class Watch:
    """Sees the calls on the files below one directory: derive from it.

    hasty: meanwhile the library does not sleep when it waits for others.
    locks, reads: whether those calls (with locks: of shared memory) are seen too. They are many, and no power
    loss depends on them.
    """

    hasty = False
    locks = False
    reads = False

    def __init__(self, directory: Path) -> None:
        self.directory = str(directory.resolve())
        self.lock = threading.RLock()
        # A callback cannot raise into SQLite, so what went wrong in one is kept for whoever looks after.
        self.broken: list[BaseException] = []

    def strike(self, call: Call) -> Strike | None:
        """Asked before each call: None lets it happen."""
        return None

    def saw(self, call: Call) -> None:
        """Told after each call that succeeded."""

    def failed(self, call: Call, strike: Strike) -> None:
        """Told after each call that was struck."""

    def __enter__(self) -> Any:
        _install()
        _watches[self.directory] = self
        return self

    def __exit__(self, *_: object) -> None:
        # Files still open go on telling; only new ones are not watched any more.
        del _watches[self.directory]
        if self.broken:
            raise self.broken[0]


class _Opened:
    """One open file that is watched."""

    def __init__(self, watch: Watch, path: str, real: lib.IoMethods, *, owes_directory: bool) -> None:
        self.watch = watch
        self.path = path
        self.real = real
        self.owes_directory = owes_directory
        self.close: Method = lib.XClose(real.xClose)
        self.read: Method = lib.XRead(real.xRead)
        self.write: Method = lib.XWrite(real.xWrite)
        self.truncate: Method = lib.XTruncate(real.xTruncate)
        self.sync: Method = lib.XSync(real.xSync)
        self.xlock: Method = lib.XLock(real.xLock)
        self.shm_lock: Method = lib.XShmLock(real.xShmLock or 0)
        self.shm_map: Method = lib.XShmMap(real.xShmMap or 0)


_watches: dict[str, Watch] = {}
_opened: dict[int, _Opened] = {}
# What SQLite points into must live as long as the process.
_kept: list[Any] = []
_tables: dict[tuple[int, bool, bool], lib.IoMethods] = {}
_install_lock = threading.Lock()


def _install() -> None:
    with _install_lock:
        if _kept:
            return
        library = lib.load()
        real = lib.default_vfs(library)
        shim = lib.Vfs()
        ctypes.pointer(shim)[0] = real
        shim.pNext = None
        shim.zName = b"ulak-watched"
        callbacks = (
            lib.XOpen(_open_with(real)),
            lib.XDelete(_delete_with(real)),
            lib.XSleep(_sleep_with(real)),
        )
        shim.xOpen, shim.xDelete, shim.xSleep = map(lib.pointer_to, callbacks)
        _kept.extend((library, real, shim, callbacks))
        assert library.sqlite3_vfs_register(ctypes.byref(shim), 1) == lib.OK
        atexit.register(_let_go)


def _let_go() -> None:
    """Give every open file its own methods back: what closes it later may find no Python to call."""
    library, real = _kept[:2]
    library.sqlite3_vfs_register(ctypes.addressof(real), 1)
    for file, opened in _opened.items():
        lib.File.from_address(file).pMethods = ctypes.pointer(opened.real)


def _watch_of(path: str) -> Watch | None:
    return next((watch for place, watch in list(_watches.items()) if path.startswith(place + "/")), None)


def _do(watch: Watch, call: Call, act: Callable[[], int], partly: Callable[[], object] | None = None) -> int:
    """Make one call, unless it is struck; one at a time, so that what is seen is in the order of what was."""
    try:
        with watch.lock:
            strike = watch.strike(call)
            if strike is not None:
                if strike.half_done and partly is not None:
                    partly()
                watch.failed(call, strike)
                return strike.code
            result = act()
            if result == lib.OK:
                watch.saw(call)
            return result
    except BaseException as error:  # noqa: BLE001 - ctypes would print it and answer OK
        watch.broken.append(error)
        return lib.IOERR


def _open_with(real: lib.Vfs) -> Callable[..., int]:
    real_open: Method = lib.XOpen(real.xOpen)
    real_at = ctypes.addressof(real)

    def xopen(_: int, name: int | None, file: int, flags: int, out: Any) -> int:
        path = ctypes.string_at(name).decode() if name else ""
        watch = _watch_of(path)
        if watch is None:
            return real_open(real_at, name, file, flags, out)

        def act() -> int:
            result = real_open(real_at, name, file, flags, out)
            if result == lib.OK:
                owes = bool(flags & lib.OPEN_CREATE and flags & lib.OPEN_JOURNALS)
                _take_over(file, watch, path, owes_directory=owes)
            return result

        # SQLite closes what has methods, so a file that could not be opened must have none.
        lib.File.from_address(file).pMethods = None
        return _do(watch, Call(Kind.OPEN, path), act)

    return xopen


def _delete_with(real: lib.Vfs) -> Callable[..., int]:
    real_delete: Method = lib.XDelete(real.xDelete)
    real_at = ctypes.addressof(real)

    def xdelete(_: int, name: int, sync_directory: int) -> int:
        path = ctypes.string_at(name).decode()
        watch = _watch_of(path)
        if watch is None:
            return real_delete(real_at, name, sync_directory)
        call = Call(Kind.DELETE, path, syncs_directory=bool(sync_directory))
        return _do(watch, call, lambda: real_delete(real_at, name, sync_directory))

    return xdelete


def _sleep_with(real: lib.Vfs) -> Method:
    real_sleep: Method = lib.XSleep(real.xSleep)
    real_at = ctypes.addressof(real)

    def xsleep(_: int, duration_us: int) -> int:
        if any(watch.hasty for watch in list(_watches.values())):
            return duration_us
        return real_sleep(real_at, duration_us)

    return xsleep


def _take_over(file: int, watch: Watch, path: str, *, owes_directory: bool) -> None:
    head = lib.File.from_address(file)
    real = head.pMethods.contents
    key = (ctypes.addressof(real), watch.reads, watch.locks)
    # One table only, whoever comes first: another's would be freed while a file points to it.
    with _install_lock:
        if key not in _tables:
            _tables[key] = _replace(real, reads=watch.reads, locks=watch.locks)
    _opened[file] = _Opened(watch, path, real, owes_directory=owes_directory)
    head.pMethods = ctypes.pointer(_tables[key])


def _replace(real: lib.IoMethods, *, reads: bool, locks: bool) -> lib.IoMethods:
    table = lib.IoMethods()
    ctypes.pointer(table)[0] = real
    methods: dict[str, Any] = {
        "xClose": lib.XClose(_xclose),
        "xWrite": lib.XWrite(_xwrite),
        "xTruncate": lib.XTruncate(_xtruncate),
        "xSync": lib.XSync(_xsync),
    }
    if reads:
        methods["xRead"] = lib.XRead(_xread)
    if locks:
        methods["xLock"] = lib.XLock(_xlock)
    if locks and real.xShmLock:
        methods["xShmLock"] = lib.XShmLock(_xshm_lock)
        methods["xShmMap"] = lib.XShmMap(_xshm_map)
    for name, callback in methods.items():
        setattr(table, name, lib.pointer_to(callback))
    _kept.append(methods)
    return table


def _xclose(file: int) -> int:
    # Taken out first: the memory may belong to another file as soon as this one is closed.
    return _opened.pop(file).close(file)


def _xread(file: int, buffer: int, size: int, offset: int) -> int:
    opened = _opened[file]
    return _do(
        opened.watch,
        Call(Kind.READ, opened.path, offset),
        lambda: opened.read(file, buffer, size, offset),
    )


def _xwrite(file: int, buffer: int, size: int, offset: int) -> int:
    opened = _opened[file]
    return _do(
        opened.watch,
        Call(Kind.WRITE, opened.path, offset, ctypes.string_at(buffer, size)),
        lambda: opened.write(file, buffer, size, offset),
        lambda: opened.write(file, buffer, size // 2, offset),
    )


def _xtruncate(file: int, size: int) -> int:
    opened = _opened[file]
    return _do(opened.watch, Call(Kind.TRUNCATE, opened.path, size), lambda: opened.truncate(file, size))


def _xsync(file: int, flags: int) -> int:
    opened = _opened[file]

    def act() -> int:
        result = opened.sync(file, flags)
        if result == lib.OK:
            opened.owes_directory = False
        return result

    call = Call(Kind.SYNC, opened.path, syncs_directory=opened.owes_directory)
    return _do(opened.watch, call, act)


def _xlock(file: int, level: int) -> int:
    opened = _opened[file]
    return _do(opened.watch, Call(Kind.LOCK, opened.path, level), lambda: opened.xlock(file, level))


def _xshm_lock(file: int, first: int, count: int, flags: int) -> int:
    opened = _opened[file]
    call = Call(Kind.SHM_LOCK, opened.path, first)
    if flags & lib.SHM_UNLOCK:  # never fails
        return opened.shm_lock(file, first, count, flags)
    return _do(opened.watch, call, lambda: opened.shm_lock(file, first, count, flags))


def _xshm_map(file: int, region: int, size: int, extend: int, out: int) -> int:
    opened = _opened[file]
    call = Call(Kind.SHM_MAP, opened.path, region)
    return _do(opened.watch, call, lambda: opened.shm_map(file, region, size, extend, out))
