"""A full disk: what needs no room goes on working, what does says so and changes nothing."""

from __future__ import annotations

import contextlib
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.faults import library as lib
from tests.faults.losses import DATABASE, all_jobs, check_file, recount
from tests.faults.vfs import Call, Kind, Strike, Watch
from ulak import Outcome, Queue, StorageFull

DISK_BYTES = 24 * 1024 * 1024
LOG_MAX_BYTES = 16 * 1024 * 1024
LEASED = 200
ENQUEUED_MAX = 1_000
PAYLOAD = "x" * 10_000

Free = Callable[[], None]


class Quota(Watch):
    """A disk of so many bytes: a write for which there is no room is done by half, as a real one does it."""

    def __init__(self, directory: Path, disk_bytes: int) -> None:
        super().__init__(directory)
        self.disk_bytes = disk_bytes

    def strike(self, call: Call) -> Strike | None:
        if call.kind is not Kind.WRITE:
            return None
        files = {
            path: path.stat().st_size for path in Path(self.directory).glob(f"{DATABASE}*") if path.is_file()
        }
        grown = max(0, call.offset + len(call.data) - files.get(Path(call.path), 0))
        return Strike(lib.FULL, half_done=True) if sum(files.values()) + grown > self.disk_bytes else None


@contextlib.contextmanager
def counted_disk(place: Path) -> Iterator[tuple[Path, Free]]:
    with Quota(place, DISK_BYTES) as quota:

        def free() -> None:
            quota.disk_bytes *= 2

        yield place, free


@contextlib.contextmanager
def mounted_disk(place: Path) -> Iterator[tuple[Path, Free]]:
    """A memory file system of that size, where this user may mount one."""
    command = ["mount", "-t", "tmpfs", "-o", f"size={DISK_BYTES}", "tmpfs", str(place)]
    try:
        done = subprocess.run(command, capture_output=True, check=False)
    except FileNotFoundError:
        pytest.skip("there is no mount command; the counted disk stands for it")
    if done.returncode != 0:
        pytest.skip(f"cannot mount here ({done.stderr.decode().strip()}); the counted disk stands for it")

    def free() -> None:
        subprocess.run(["mount", "-o", f"remount,size={2 * DISK_BYTES}", str(place)], check=True)

    try:
        yield place, free
    finally:
        subprocess.run(["umount", "-l", str(place)], check=True)


DISKS = {"counted": counted_disk, "mounted": mounted_disk}


def fill(q: Queue, payload: str) -> None:
    for _ in range(ENQUEUED_MAX):
        q.enqueue(payload)


@pytest.mark.parametrize("journal", ["wal", "truncate"])
@pytest.mark.parametrize("disk", DISKS)
def test_a_full_disk_refuses_enqueues_and_lets_jobs_be_finished(place: Path, disk: str, journal: str) -> None:
    with DISKS[disk](place) as (directory, free):
        with Queue(f"sqlite:///{directory / DATABASE}?journal={journal}", name="mail", max_attempts=1) as q:
            q.enqueue_many([f"{n}" for n in range(LEASED + 2)])
            leases = q.deliver_many(LEASED)
            for payload_bytes in (200_000, 20_000, 2_000, 10):
                with pytest.raises(StorageFull):
                    fill(q, "x" * payload_bytes)
            stored = q.counts().total
            with pytest.raises(StorageFull):
                q.enqueue_many([PAYLOAD] * 100)
            assert q.counts().total == stored
            # One by one, as workers do it: each must be stored where there is no room for anything new.
            assert [q.ack(lease) for lease in leases[2:]] == [Outcome.OK] * (LEASED - 2)
            assert q.extend(leases[0], 60) is Outcome.OK
            assert q.nack(leases[0], error="it broke") is Outcome.OK
            assert q.release(leases[1]) is Outcome.OK
            taken = q.deliver()
            assert taken is not None
            assert q.ack(taken) is Outcome.OK
            free()
            q.enqueue(PAYLOAD)
            assert q.counts().total == stored + 1
            assert not recount(all_jobs(q), q.counts())
        assert not check_file(directory / DATABASE)


def test_a_log_of_large_payloads_is_written_back_before_it_has_grown_large(place: Path) -> None:
    log = place / f"{DATABASE}-wal"
    with Queue(f"sqlite:///{place / DATABASE}", name="mail") as q:
        for _ in range(120):
            q.enqueue("x" * 200_000)
            assert log.stat().st_size <= LOG_MAX_BYTES
