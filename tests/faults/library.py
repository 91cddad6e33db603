"""The SQLite library inside this Python, by ctypes: its file systems (VFS) and their methods.

Only the very copy that the standard `sqlite3` module uses will do: a VFS registered in another copy is
never asked.
"""

from __future__ import annotations

import ctypes
import sqlite3
from collections.abc import Callable
from ctypes import POINTER, Structure, c_char_p, c_int, c_int64, c_void_p
from typing import Any

# Result codes, as sqlite3.h has them.
OK = 0
BUSY = 5
FULL = 13
CANTOPEN = 14
IOERR = 10
IOERR_READ = IOERR | (1 << 8)
IOERR_WRITE = IOERR | (3 << 8)
IOERR_FSYNC = IOERR | (4 << 8)
IOERR_TRUNCATE = IOERR | (6 << 8)
IOERR_DELETE = IOERR | (10 << 8)
IOERR_LOCK = IOERR | (15 << 8)
IOERR_SHMLOCK = IOERR | (20 << 8)
IOERR_SHMMAP = IOERR | (21 << 8)

OPEN_CREATE = 0x4
OPEN_MAIN_DB = 0x100
# A new one of these is synced together with the directory that names it: the journals and the log.
OPEN_JOURNALS = 0x800 | 0x4000 | 0x80000

XOpen = ctypes.CFUNCTYPE(c_int, c_void_p, c_void_p, c_void_p, c_int, POINTER(c_int))
XDelete = ctypes.CFUNCTYPE(c_int, c_void_p, c_void_p, c_int)
XSleep = ctypes.CFUNCTYPE(c_int, c_void_p, c_int)
XClose = ctypes.CFUNCTYPE(c_int, c_void_p)
XRead = ctypes.CFUNCTYPE(c_int, c_void_p, c_void_p, c_int, c_int64)
XWrite = ctypes.CFUNCTYPE(c_int, c_void_p, c_void_p, c_int, c_int64)
XTruncate = ctypes.CFUNCTYPE(c_int, c_void_p, c_int64)
XSync = ctypes.CFUNCTYPE(c_int, c_void_p, c_int)
XLock = ctypes.CFUNCTYPE(c_int, c_void_p, c_int)
XShmMap = ctypes.CFUNCTYPE(c_int, c_void_p, c_int, c_int, c_int, c_void_p)
XShmLock = ctypes.CFUNCTYPE(c_int, c_void_p, c_int, c_int, c_int)

SHM_UNLOCK = 1


def _pointers(*names: str) -> list[Any]:
    return [(name, c_void_p) for name in names]


class IoMethods(Structure):
    """`sqlite3_io_methods`: what can be done with an open file."""

    _fields_ = [
        ("iVersion", c_int),
        *_pointers("xClose", "xRead", "xWrite", "xTruncate", "xSync", "xFileSize"),
        *_pointers("xLock", "xUnlock", "xCheckReservedLock"),
        *_pointers("xFileControl", "xSectorSize", "xDeviceCharacteristics"),
        *_pointers("xShmMap", "xShmLock", "xShmBarrier", "xShmUnmap"),
        *_pointers("xFetch", "xUnfetch"),
    ]


class File(Structure):
    """`sqlite3_file`: the head of an open file; its VFS keeps its own things behind it."""

    _fields_ = [("pMethods", POINTER(IoMethods))]


class Vfs(Structure):
    """`sqlite3_vfs`: a file system."""

    _fields_ = [
        ("iVersion", c_int),
        ("szOsFile", c_int),
        ("mxPathname", c_int),
        ("pNext", c_void_p),
        ("zName", c_char_p),
        *_pointers("pAppData", "xOpen", "xDelete", "xAccess", "xFullPathname"),
        *_pointers("xDlOpen", "xDlError", "xDlSym", "xDlClose"),
        *_pointers("xRandomness", "xSleep", "xCurrentTime", "xGetLastError", "xCurrentTimeInt64"),
        *_pointers("xSetSystemCall", "xGetSystemCall", "xNextSystemCall"),
    ]


class HiddenLibrary(Exception):
    """This Python hides its SQLite, so no VFS can be registered in it."""


def load() -> ctypes.CDLL:
    """The library that `sqlite3` uses. Raises HiddenLibrary.

    A symbol is looked for in the extension module and in what it was linked with, in that order, so it
    does not matter whether SQLite is a library of its own or part of the module.
    """
    import _sqlite3

    try:
        library = ctypes.CDLL(getattr(_sqlite3, "__file__", None))
        library.sqlite3_vfs_find.restype = c_void_p
        library.sqlite3_vfs_find.argtypes = [c_char_p]
        library.sqlite3_vfs_register.argtypes = [c_void_p, c_int]
        library.sqlite3_libversion.restype = c_char_p
    except (OSError, AttributeError) as error:
        raise HiddenLibrary(
            f"the SQLite in this Python's sqlite3 module is linked statically and hides its symbols: {error}"
        ) from error
    # Two copies may be loaded, and then the wrong one may have been found.
    found = library.sqlite3_libversion().decode()
    if found != sqlite3.sqlite_version:
        raise HiddenLibrary(f"found SQLite {found}, but the sqlite3 module uses {sqlite3.sqlite_version}")
    return library


def pointer_to(callback: Callable[..., int]) -> int:
    """The address of a ctypes callback, which must be kept alive by the caller."""
    return ctypes.cast(callback, c_void_p).value or 0  # type: ignore[arg-type]


def default_vfs(library: ctypes.CDLL) -> Vfs:
    """The VFS that files are opened with when nobody names one."""
    return Vfs.from_address(library.sqlite3_vfs_find(None))
