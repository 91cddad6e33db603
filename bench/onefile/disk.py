"""The disk beneath the files: where they lie, what one fsync costs there, how often a log was begun anew."""

from __future__ import annotations

import os
import tempfile
import time
from pathlib import Path

PAGE_BYTES = 4096
FILE_PAGES = 1024
WARM_UP_FSYNCS = 50
MEMORY_FILE_SYSTEMS = ("tmpfs", "ramfs", "overlay", "unknown")  # nothing there says what an fsync costs
WAL_SEQUENCE = slice(12, 16)  # in the header of a log: how often it was begun anew
WARM_UP_MAX_JOBS = 20_000
WARM_UP_STEP_JOBS = 200


def file_system(folder):
    """The type of the file system a folder lies on, as the kernel names it."""
    mounts = Path("/proc/self/mountinfo")
    found = (0, "unknown")
    for line in mounts.read_text().splitlines() if mounts.exists() else []:
        before, _, after = line.partition(" - ")
        point = before.split()[4]
        if folder.resolve().is_relative_to(point):
            found = max(found, (len(point), after.split()[0]), key=lambda mount: mount[0])
    return found[1]


def real_folder(root):
    """A folder for the files of a run that lies on a disk: the system's own for such files, if it does."""
    candidates = [Path(tempfile.gettempdir()), Path("/var/tmp"), root]
    for folder in candidates:
        if folder.is_dir() and file_system(folder) not in MEMORY_FILE_SYSTEMS:
            return folder
    return candidates[0]


def fsync_times(folder, count):
    """Seconds of each of `count` writes of a page followed by fdatasync, into space that is there already.

    A log that was begun anew writes so: over its old pages. Growing a file costs about twice as much.
    """
    path = folder / "fsync"
    page = os.urandom(PAGE_BYTES)
    handle = os.open(path, os.O_RDWR | os.O_CREAT)
    try:
        os.pwrite(handle, bytes(PAGE_BYTES * FILE_PAGES), 0)
        os.fsync(handle)
        took = []
        for number in range(WARM_UP_FSYNCS + count):
            start = time.perf_counter()
            os.pwrite(handle, page, number % FILE_PAGES * PAGE_BYTES)
            os.fdatasync(handle)
            took.append(time.perf_counter() - start)
    finally:
        os.close(handle)
        path.unlink()
    return took[WARM_UP_FSYNCS:]


def log_restarts(database):
    """How often the write-ahead log of a database was begun anew; 0 while there is none."""
    log = database.with_name(f"{database.name}-wal")
    if not log.exists():
        return 0
    with log.open("rb") as file:
        return int.from_bytes(file.read(WAL_SEQUENCE.stop)[WAL_SEQUENCE], "big")


def warm(put, database):
    """Put in jobs until the log has been written back and begun anew: from there on fsyncs cost half.

    Returns how many were put in.
    """
    warmed = 0
    before = log_restarts(database)
    while log_restarts(database) == before:
        if warmed >= WARM_UP_MAX_JOBS:
            raise SystemExit(f"{warmed:,} jobs, and the log of {database.name} was never begun anew")
        for _ in range(WARM_UP_STEP_JOBS):
            put()
        warmed += WARM_UP_STEP_JOBS
    return warmed
