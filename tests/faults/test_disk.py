"""The recording, and the model of the disk, shown on plain SQLite: it must see what is known of each mode."""

from __future__ import annotations

import random
import sqlite3
from pathlib import Path

import pytest

from tests.faults.disk import Disk, Loss, Tape, write_files

COMMITS = 12


def commit_all(path: Path, tape: Tape, journal: str, synchronous: str) -> list[int]:
    """Commit one row at a time; when each had returned."""
    kept = sqlite3.connect(path, isolation_level=None)
    kept.execute(f"PRAGMA journal_mode={journal}")
    kept.execute(f"PRAGMA synchronous={synchronous}")
    kept.execute("PRAGMA wal_autocheckpoint=4")
    kept.execute("CREATE TABLE kept(n INTEGER PRIMARY KEY)")
    done = []
    for n in range(COMMITS):
        kept.execute("INSERT INTO kept VALUES (?)", (n,))
        done.append(tape.now)
    kept.close()
    return done


def losses_of(place: Path, journal: str, synchronous: str) -> tuple[int, int]:
    """How many images lost a row, and how many were corrupt, over every event and loss."""
    live = place / "live"
    live.mkdir()
    with Tape(live) as tape:
        done = commit_all(live / "a.db", tape, journal, synchronous)
    draw = random.Random(1)
    disk = Disk({})
    lost = corrupt = 0
    for moment, event in enumerate(tape.events, 1):
        disk.apply(event)
        for loss in Loss:
            write_files(place / f"{moment}-{loss.name}", disk.image(loss, draw))
            rows = read_rows(place / f"{moment}-{loss.name}" / "a.db")
            corrupt += rows is None
            lost += rows is not None and not rows >= {n for n, at in enumerate(done) if at <= moment}
    return lost, corrupt


def read_rows(path: Path) -> set[int] | None:
    reopened = sqlite3.connect(path)
    try:
        assert reopened.execute("PRAGMA integrity_check").fetchall() == [("ok",)]
        if not reopened.execute("SELECT * FROM sqlite_master").fetchall():
            return set()
        return {n for (n,) in reopened.execute("SELECT n FROM kept")}
    except (sqlite3.DatabaseError, AssertionError):
        return None
    finally:
        reopened.close()


@pytest.mark.parametrize(
    ("journal", "synchronous"),
    [("WAL", "FULL"), ("TRUNCATE", "FULL"), ("PERSIST", "FULL"), ("DELETE", "EXTRA")],
)
def test_what_sqlite_promises_to_keep_is_kept(place: Path, journal: str, synchronous: str) -> None:
    assert losses_of(place, journal, synchronous) == (0, 0)


@pytest.mark.parametrize(
    ("journal", "synchronous"), [("WAL", "NORMAL"), ("TRUNCATE", "NORMAL"), ("DELETE", "FULL")]
)
def test_what_weaker_settings_lose_is_seen(place: Path, journal: str, synchronous: str) -> None:
    lost, _ = losses_of(place, journal, synchronous)
    assert lost > 0


def test_without_any_sync_files_are_seen_to_break(place: Path) -> None:
    lost, corrupt = losses_of(place, "WAL", "OFF")
    assert lost > 0
    assert corrupt > 0
