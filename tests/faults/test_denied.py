"""Files that may not be written, or are gone: one clear error, never a false answer."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
import textwrap
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.faults.losses import DATABASE
from ulak import Queue, StorageUnavailable

NOBODY = 65534
CHILD_S = 30

# Root may write everything, so the child gives that up, once it has loaded what only root may read.
CHILD = f"""
import os, sys
import ulak
with ulak.Queue("sqlite:///" + sys.argv[2], name="mail") as q:
    q.enqueue("loads all there is")
if os.geteuid() == 0:
    os.setgroups([])
    os.setgid({NOBODY})
    os.setuid({NOBODY})
try:
    with ulak.Queue(sys.argv[1], name="mail") as q:
        q.enqueue("new")
except ulak.UlakError as error:
    print(type(error).__name__, error)
else:
    print("enqueued")
"""


@pytest.fixture
def kept(place: Path) -> Iterator[Path]:
    """A store with one job, closed, that another user could write."""
    place.chmod(0o777)
    path = place / "kept" / DATABASE
    path.parent.mkdir()
    with Queue(f"sqlite:///{path}", name="mail") as q:
        q.enqueue("old")
    for file in (path, path.parent, *path.parent.rglob("*")):
        file.chmod(0o777)
    yield path
    path.parent.chmod(0o700)


def enqueue_as_nobody(path: Path, options: str = "") -> str:
    """What an enqueue in another process, of a user without privileges, comes to."""
    command = [
        sys.executable,
        "-c",
        textwrap.dedent(CHILD),
        f"sqlite:///{path}{options}",
        str(path.parents[1] / "other.db"),
    ]
    done = subprocess.run(
        command,
        check=False,
        env=os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)},
        capture_output=True,
        timeout=CHILD_S,
    )
    assert done.returncode == 0, done.stderr.decode()
    return done.stdout.decode().strip()


def payloads(path: Path) -> list[object]:
    with Queue(f"sqlite:///{path}", name="mail") as q:
        return [job.payload for job in q.jobs()]


@contextlib.contextmanager
def until_closed(path: Path) -> Iterator[Queue]:
    """An open queue whose close may fail too: it has leases to hand back, and no file to do it in."""
    q = Queue(f"sqlite:///{path}", name="mail")
    try:
        yield q
    finally:
        with contextlib.suppress(StorageUnavailable):
            q.close()


@pytest.mark.parametrize("options", ["", "?journal=truncate"])
def test_another_user_may_work_where_all_may_write(kept: Path, options: str) -> None:
    assert enqueue_as_nobody(kept, options) == "enqueued"
    assert payloads(kept) == ["old", "new"]


@pytest.mark.parametrize("options", ["", "?journal=truncate"])
def test_T5_a_read_only_file_is_refused_with_its_name(kept: Path, options: str) -> None:
    kept.chmod(0o444)
    told = enqueue_as_nobody(kept, options)
    assert told.startswith("StorageUnavailable")
    assert str(kept) in told
    assert payloads(kept) == ["old"]


@pytest.mark.parametrize("options", ["", "?journal=truncate"])
@pytest.mark.parametrize("name", [DATABASE, "new.db"])
def test_T5_a_read_only_directory_is_refused_with_its_name(kept: Path, name: str, options: str) -> None:
    kept.parent.chmod(0o555)
    told = enqueue_as_nobody(kept.parent / name, options)
    assert told.startswith("StorageUnavailable")
    assert str(kept.parent) in told
    kept.parent.chmod(0o777)
    assert payloads(kept) == ["old"]
    assert not (kept.parent / "new.db").exists()


def test_a_log_of_another_user_is_refused_with_its_name(kept: Path) -> None:
    with Queue(f"sqlite:///{kept}", name="mail") as q:
        q.enqueue("open")
        for file in kept.parent.glob(f"{DATABASE}-*"):
            file.chmod(0o600 if file.is_file() else 0o777)
        if os.geteuid() != 0:
            pytest.skip("only root has another user to try it with")
        told = enqueue_as_nobody(kept)
        assert told.startswith("StorageUnavailable")
        assert str(kept) in told
        assert [job.payload for job in q.jobs()] == ["old", "open"]


@pytest.fixture
def always_looking(monkeypatch: pytest.MonkeyPatch) -> None:
    """Stores look after each call whether their files are still there, and not only now and then."""
    monkeypatch.setattr("ulak.storage.sqlite.link.FILES_S", 0.0)


@pytest.mark.usefixtures("always_looking")
@pytest.mark.parametrize("suffix", ["", "-wal", "-shm"])
def test_a_file_deleted_under_an_open_store_is_told_and_nothing_answers_ok(kept: Path, suffix: str) -> None:
    with until_closed(kept) as q:
        lease = q.deliver()
        assert lease is not None
        kept.with_name(DATABASE + suffix).unlink()
        for call in (lambda: q.enqueue("lost"), lambda: q.ack(lease), q.counts, q.deliver):
            with pytest.raises(StorageUnavailable, match="removed or replaced"):
                call()


@pytest.mark.usefixtures("always_looking")
def test_a_file_replaced_under_an_open_store_is_told_and_nothing_answers_ok(kept: Path) -> None:
    other = kept.with_name("other.db")
    with Queue(f"sqlite:///{other}", name="mail") as q:
        q.enqueue("another")
    with until_closed(kept) as q:
        q.enqueue("open")
        other.rename(kept)
        with pytest.raises(StorageUnavailable, match="removed or replaced"):
            q.enqueue("lost")
