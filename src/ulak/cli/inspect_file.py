"""The examination of a SQLite store's file: each check gives a part, and none changes what is stored."""

from __future__ import annotations

import shutil
import sqlite3
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import msgspec

from ulak.cli.inspect_open import journal_of
from ulak.cli.inspect_others import lock_holders, others_part
from ulak.cli.inspect_parts import Finding, Part, bytes_text, finding_of
from ulak.cli.inspect_table import age, many
from ulak.clock import MACHINE, boot_id, pause
from ulak.errors import StorageBusy, UlakError
from ulak.storage.sqlite.link import Link, Options
from ulak.storage.sqlite.looks import queue_rows
from ulak.storage.sqlite.others import GONE_AFTER_S
from ulak.storage.sqlite.place import check_place
from ulak.storage.sqlite.presence import Presence
from ulak.storage.sqlite.records import STATES
from ulak.storage.sqlite.schema import VERSION

PINNED_AFTER_S = 1.1
OVER_S = 10.0
FREE_BYTES_MIN = 64 * 1024 * 1024
LOG_BYTES_MAX = 16 * 1024 * 1024

_FRAME_HEAD_BYTES = 24
_NAMED = 5
# Bytes of the -shm file that a reader locks, one for each mark: WAL_READ_LOCK(0) to (4) of the library.
_READ_LOCKS = range(123, 128)


class Place(msgspec.Struct, frozen=True):
    """Where a store is, and how its URL asks for it to be used."""

    path: str
    options: Options

    def beside(self, suffix: str) -> Path:
        """A file that belongs to it."""
        return Path(self.path + suffix)


def examine(place: Place, *, deep: bool) -> list[Part]:
    """All that can be said of the store; it stops at what makes the rest meaningless."""
    parts = [library_part(), file_part(place)]
    try:
        real = Place(str(check_place(Path(place.path))), place.options)
        mode = journal_of(real.path)
        link = Link(real.path, msgspec.structs.replace(place.options, journal=mode))
    except StorageBusy:
        raise
    except UlakError as error:
        return [*parts, Part("open", "cannot be opened", {}, (finding_of(error),))]
    try:
        parts += [journal_part(mode, place.options), durability_part(mode, place.options)]
        parts += _checks(link, real, mode, deep=deep)
    finally:
        link.close()
    return parts


def _checks(link: Link, place: Place, mode: str, *, deep: bool) -> Iterator[Part]:
    presence = Presence(place.beside("-workers"))
    checks: dict[str, Callable[[], Part]] = {
        "schema": lambda: link.read(schema_part),
        "integrity": lambda: link.read(lambda db: integrity_part(db, deep=deep)),
        "counts": lambda: _in_snapshot(link, counts_part),
        "rows": lambda: _in_snapshot(link, rows_part),
        "processes": lambda: processes_part(link, presence),
    }
    if mode == "wal":
        checks["log"] = lambda: log_part(link, place)
        has_race = has_reset_race(sqlite3.sqlite_version_info)
        checks["others"] = lambda: others_part(place.path, has_race=has_race)
    for name, check in checks.items():
        try:
            yield check()
        except UlakError as error:
            yield Part(name, "cannot be read", {}, (finding_of(error),))


def _in_snapshot(link: Link, check: Callable[[sqlite3.Connection], Part]) -> Part:
    with link.reading() as db:
        return check(db)


# What is in force


def has_reset_race(version: tuple[int, int, int]) -> bool:
    """Whether this library can lose committed pages when a checkpoint overlaps a commit that resets the log.

    So can all from 3.7.0 to 3.51.2, but for 3.44.6 and 3.50.7, which have the repair.
    """
    return (3, 7, 0) <= version <= (3, 51, 2) and version not in ((3, 44, 6), (3, 50, 7))


def library_part() -> Part:
    """The SQLite library of this Python."""
    version = sqlite3.sqlite_version
    affected = has_reset_race(sqlite3.sqlite_version_info)
    race = "has the WAL-reset race (see the journal)" if affected else "free of the WAL-reset race"
    return Part("library", f"SQLite {version}, {race}", {"version": version, "wal_reset_race": affected})


def journal_part(mode: str, options: Options) -> Part:
    """How commits are made safe, and what that means with this library."""
    values = {"mode": mode, "asked_for": options.journal}
    findings: list[Finding] = []
    if options.journal not in (None, mode):
        findings.append(
            Finding(
                f"the URL asks for journal={options.journal}, but the file is in mode {mode}",
                "use one URL for all; a worker that opens it by this one changes the mode if it can",
                is_problem=False,
            )
        )
    if mode != "wal":
        return Part(
            "journal",
            "truncate: a rollback journal; readers and writers wait for each other",
            values,
            tuple(findings),
        )
    text = "wal: a log; checkpoints are ulak's own"
    if has_reset_race(sqlite3.sqlite_version_info):
        text += ", made while the write lock is held, because of the library's race"
        findings.append(
            Finding(
                f"SQLite {sqlite3.sqlite_version} can lose commits when a checkpoint meets a commit that "
                "resets the log; ulak's checkpoints are guarded against it, those of other programs that "
                "write this file are not",
                "let nothing but ulak write the file; or use SQLite 3.51.3 or newer; or add "
                "?journal=truncate to the URL",
                is_problem=False,
            )
        )
    return Part("journal", text, values, tuple(findings))


def durability_part(mode: str, options: Options) -> Part:
    """What is on the disk when a call returns."""
    values = {"durability": options.durability}
    if options.durability == "full":
        lone = ", but for who has taken a job: after a power cut it runs again" if mode == "wal" else ""
        text = f"full: what a call has stored is on the disk before it returns{lone}"
        return Part("durability", text, values)
    if mode != "wal":
        return Part("durability", "relaxed, which a rollback journal does not have: as full", values)
    text = "relaxed: a power cut can undo the last calls, though not a crash of the process"
    fix = "take durability=relaxed out of the URL, unless these jobs can be lost"
    return Part(
        "durability", text, values, (Finding("a power cut can lose jobs here", fix, is_problem=False),)
    )


def file_part(place: Place) -> Part:
    """How large it is, and how much room its disk has left."""
    size, log = (_size_of(place.beside(suffix)) for suffix in ("", "-wal"))
    free = shutil.disk_usage(Path(place.path).resolve().parent).free
    findings: list[Finding] = []
    if free < FREE_BYTES_MIN:
        what = f"its disk has only {bytes_text(free)} left; an enqueue on a full disk raises StorageFull"
        findings.append(Finding(what, "free some space, or move the store"))
    if log > LOG_BYTES_MAX:
        what = f"the log has {bytes_text(log)}: it grows while a reader stays, and is reused afterwards"
        fix = (
            "nothing, unless a reader is reported too; the last process that closes the store removes the log"
        )
        findings.append(Finding(what, fix, is_problem=False))
    text = f"{bytes_text(size)}, log {bytes_text(log)}, {bytes_text(free)} free on its disk"
    return Part("file", text, {"bytes": size, "log_bytes": log, "free_bytes": free}, tuple(findings))


def _size_of(path: Path) -> int:
    try:
        return path.stat().st_size
    except FileNotFoundError:
        return 0


def schema_part(db: sqlite3.Connection) -> Part:
    """Its version, and since when the machine has been up for it."""
    (version,) = db.execute("PRAGMA user_version").fetchone()
    uid, epoch, boot = db.execute("SELECT uid, epoch, boot FROM store").fetchone()
    same = boot == boot_id()
    since = (
        "opened since the machine's boot"
        if same
        else "not opened since the machine's boot: all leases are over"
    )
    text = f"version {version}, the newest known here is {VERSION}; store {uid}; {since}"
    values = {"version": version, "uid": uid, "epoch": epoch, "boot": boot, "is_this_boot": same}
    return Part("schema", text, values)


# Whether it is whole


def integrity_part(db: sqlite3.Connection, *, deep: bool) -> Part:
    """Whether the file's pages are whole, and with `deep` its indexes too."""
    pragma = "integrity_check" if deep else "quick_check"
    before = MACHINE.interval()
    try:
        lines = [str(line) for (line,) in db.execute(f"PRAGMA {pragma}({_NAMED})")]
    except sqlite3.OperationalError:
        raise
    except sqlite3.DatabaseError as error:
        # So bad that the check itself cannot go on.
        lines = [str(error)]
    took_s = MACHINE.interval() - before
    is_whole = lines == ["ok"]
    findings = (
        ()
        if is_whole
        else (
            Finding(
                f"the file is damaged: {'; '.join(lines)}",
                "stop all workers, copy the file with its -wal; restore a backup, or use sqlite3's .recover",
            ),
        )
    )
    text = f"{'ok' if is_whole else 'DAMAGED'} ({pragma}, {age(took_s)})"
    return Part("integrity", text, {"check": pragma, "ok": is_whole, "took_s": took_s}, findings)


def counts_part(db: sqlite3.Connection) -> Part:
    """Whether the counters of each queue equal a recount of its jobs."""
    recount: dict[int, Counter[str]] = {}
    for queue, state, number in db.execute("SELECT queue, state, count(*) FROM jobs GROUP BY queue, state"):
        name = STATES[state].value if 0 <= state < len(STATES) else "unknown"
        recount.setdefault(queue, Counter())[name] += number
    rows = queue_rows(db)
    wrong: list[str] = []
    for row in rows.values():
        there = recount.get(row.id, Counter())
        wrong += [
            f"{row.name}: {state.value} is {counted}, and there are {there[state.value]}"
            for state in STATES
            if (counted := getattr(row, state.value)) != there[state.value]
        ]
    jobs = sum(counter.total() for counter in recount.values())
    findings = (
        ()
        if not wrong
        else (
            Finding(
                f"counters differ from what is stored: {'; '.join(wrong[:_NAMED])}",
                "another program has changed the tables; restore a backup, or report it if it was none",
            ),
        )
    )
    sum_of_it = "differ from a recount" if wrong else "equal a recount"
    text = f"{many(len(rows), 'queue')}, {many(jobs, 'job')}; the counters {sum_of_it}"
    return Part("counts", text, {"queues": len(rows), "jobs": jobs, "equal": not wrong}, findings)


def rows_part(db: sqlite3.Connection) -> Part:
    """Whether there are jobs that cannot be."""
    (impossible,) = db.execute(
        "SELECT count(*) FROM jobs WHERE state NOT BETWEEN 0 AND 7 OR queue NOT IN (SELECT id FROM queues)"
    ).fetchone()
    findings: tuple[Finding, ...] = ()
    if impossible:
        findings = (
            Finding(
                f"{many(impossible, 'job')} in a state or a queue that does not exist, by another program",
                "a worker buries what it meets of them; look at the others in table jobs with sqlite3",
            ),
        )
    text = f"{impossible} that cannot be" if impossible else "every job is in a state and a queue that exist"
    return Part("rows", text, {"impossible": impossible}, findings)


# Who is using it


def processes_part(link: Link, presence: Presence) -> Part:
    """Which processes take jobs from it, whether they live, and what leases the others have left."""
    holders = {row[0]: (row[1], row[2]) for row in _rows(link, "SELECT id, token, pid FROM holders")}
    absent = {holder for holder, (token, _) in holders.items() if not presence.is_present(token)}
    if absent:
        # A process may just be taking its presence again, so one look does not condemn it.
        pause(GONE_AFTER_S)
        absent = {holder for holder in absent if not presence.is_present(holders[holder][0])}
    live = {pid for holder, (_, pid) in holders.items() if holder not in absent}
    # SQLite takes id and worker from the row that has the minimum.
    leases = _rows(
        link, "SELECT holder, count(*), min(lease_end), id, worker FROM jobs WHERE state = 2 GROUP BY holder"
    )
    orphans = sum(number for holder, number, *_ in leases if holder not in holders or holder in absent)
    firsts = [
        (end, f"job {job_id} of worker {worker} (process {holders[holder][1]})")
        for holder, _, end, job_id, worker in leases
        if holder in holders.keys() - absent and end is not None
    ]
    findings = [*_orphans(orphans, has_live=bool(live)), *_over(firsts)]
    leased = sum(number for _, number, *_ in leases)
    text = f"{_live_text(live)}; {many(leased, 'job')} leased"
    if absent or orphans:
        text += f"; {len(absent)} gone without a word, {orphans} of the leases theirs"
    values = {"live": sorted(live), "gone": len(absent), "leases": leased, "orphaned": orphans}
    return Part("processes", text, values, tuple(findings))


def _live_text(live: set[int]) -> str:
    """As in `2 processes take jobs (4242, 4243)`."""
    if not live:
        return "none takes jobs"
    named = f"{', '.join(map(str, sorted(live)[:_NAMED]))}{', ...' if len(live) > _NAMED else ''}"
    return f"{'1 process takes' if len(live) == 1 else f'{len(live)} processes take'} jobs ({named})"


def _rows(link: Link, statement: str) -> list[tuple[Any, ...]]:
    return link.read(lambda db: db.execute(statement).fetchall())


def _orphans(number: int, *, has_live: bool) -> Iterator[Finding]:
    if number:
        fix = "start a worker (ulak work module:app): it takes them over within a second"
        if has_live:
            fix = "nothing, if a worker of their queues is running: it takes them over within a second"
        yield Finding(
            f"{many(number, 'job')} leased by processes that are gone", fix, is_problem=not has_live
        )


def _over(firsts: list[tuple[float, str]]) -> Iterator[Finding]:
    """firsts: the end of a lease, and whose it is, for each process."""
    if not firsts:
        return
    end, whose = min(firsts)
    over_s = MACHINE.interval() - end
    if over_s > OVER_S:
        what = f"the lease of {whose} ended {age(over_s)} ago, and nobody has taken the job over"
        yield Finding(what, "look whether its process is stopped or blocked, and whether a worker is running")


def log_part(link: Link, place: Place) -> Part:
    """Whether the log can be written back, or somebody still reads what is old in it.

    A frame that is not written back, though asked for a second ago, is pinned: only a reader does that.
    """
    frames, done = link.checkpoint()
    pinned = done < frames
    if pinned:
        asked = frames
        pause(PINNED_AFTER_S)
        frames, done = link.checkpoint()
        pinned = done < asked <= frames
    (page_bytes,) = _rows(link, "PRAGMA page_size")[0]
    size = max(0, frames) * (page_bytes + _FRAME_HEAD_BYTES)
    readers = sorted(lock_holders(place.beside("-shm"), _READ_LOCKS)) if pinned else []
    findings = (_long_reader(size, readers),) if pinned else ()
    state = f"{frames - done} of them pinned by a reader" if pinned else "all written back"
    text = f"{many(max(0, frames), 'page')} ({bytes_text(size)}), {state}"
    values = {"frames": frames, "written_back": done, "pinned": pinned, "readers": readers}
    return Part("log", text, values, findings)


def _long_reader(size: int, readers: list[int]) -> Finding:
    named = f" (process {', '.join(map(str, readers))})" if readers else ""
    return Finding(
        f"a reader{named} has kept one snapshot for over {PINNED_AFTER_S:g} s: the log, now "
        f"{bytes_text(size)}, grows until it ends, and commits get slower",
        "end that program's transaction or cursor; look for an open sqlite3 shell, a backup, a notebook",
    )
