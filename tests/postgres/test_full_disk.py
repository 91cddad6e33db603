"""A server whose disk is full: no call says that it has stored what it has not, and workers go on after it.

On a disk that is really full, where one may be mounted. Everywhere, and call by call: a trigger raises what
the server raises then (53100); no byte is missing there.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import secrets
import subprocess
import tempfile
from pathlib import Path

import pytest

from tests.postgres.roles import look
from tests.support.postgres import conninfo, own_server
from tests.support.roles import LONG_S, QUEUE
from tests.support.waiting import eventually
from ulak import AsyncQueue, Queue, StorageFull, StorageUnavailable

DISK_BYTES = 160 * 2**20
LEFT_BYTES = 3 * 2**20
FILL_MAX = 200
BACK_S = 30.0

FAIL = """
CREATE FUNCTION {0}.full() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN
    RAISE EXCEPTION 'could not extend file "base/1/1": No space left on device' USING ERRCODE = '53100';
END $$
"""


@contextlib.contextmanager
def full(url):
    """No row can be written, while inside."""
    look(url, FAIL)
    for table in ("jobs", "ended", "tallies"):
        look(
            url,
            f"CREATE TRIGGER full_disk BEFORE INSERT OR UPDATE ON {{0}}.{table} "
            "FOR EACH ROW EXECUTE FUNCTION {0}.full()",
        )
    try:
        yield
    finally:
        look(url, "DROP FUNCTION {0}.full CASCADE")


def enqueue_in_a_transaction(q):
    import psycopg

    with psycopg.connect(conninfo(q.url)) as db:
        db.execute("SELECT 1")
        return q.enqueue("joined", connection=db)


CALLS = {
    "enqueue": lambda q, lease: q.enqueue("new"),
    "try_enqueue": lambda q, lease: q.try_enqueue("new"),
    "enqueue_many": lambda q, lease: q.enqueue_many(["new"] * 100),
    "enqueue with keys": lambda q, lease: q.enqueue("new", unique_key="u", idempotency_key="i"),
    "enqueue in a transaction": lambda q, lease: enqueue_in_a_transaction(q),
    "deliver": lambda q, lease: q.deliver().id,
    "ack": lambda q, lease: q.ack(lease),
    "nack": lambda q, lease: q.nack(lease, delay=0),
    "release": lambda q, lease: q.release(lease),
    "extend": lambda q, lease: q.extend(lease, 60),
    "cancel": lambda q, lease: q.cancel([2]).done,
}


@pytest.mark.parametrize("call", CALLS)
def test_a_call_that_finds_no_room_changes_nothing_and_is_done_once_there_is_some(make, url, call):
    q = make(capacity=1_000)
    q.enqueue_many(["first", "second"])
    lease = q.deliver()
    before = q.counts()
    with full(url):
        for _ in range(2):
            with pytest.raises(StorageFull, match="DiskFull, 53100") as caught:
                CALLS[call](q, lease)
        assert "nothing was changed" in str(caught.value)
        # Whoever only looks may.
        assert q.counts() == before
    assert CALLS[call](q, lease)
    assert q.counts() != before or call == "extend"


def test_calls_of_an_event_loop_are_told_too(make, url):
    make().enqueue("first")

    async def run():
        async with AsyncQueue(url, QUEUE) as q:
            with full(url):
                answers = await asyncio.gather(*(q.enqueue("new") for _ in range(20)), return_exceptions=True)
            assert {type(answer) for answer in answers} == {StorageFull}
            assert (await q.counts()).ready == 1
            await q.enqueue("new")

    asyncio.run(run())


def test_workers_go_on_by_themselves_once_there_is_room(make, url):
    q = make()
    ran = []
    with q.workers(ran.append, count=2):
        q.enqueue("before")
        eventually(lambda: q.counts().acked == 1)
        with full(url), pytest.raises(StorageFull):
            q.enqueue("meanwhile")
        q.enqueue_many(["after", "at last"])
        eventually(lambda: q.counts().acked == 3, within_s=BACK_S)
    assert sorted(ran) == ["after", "at last", "before"]


def test_a_job_that_ended_while_there_was_no_room_is_finished_once_and_not_run_again(make, url):
    q = make()
    ran = []
    with contextlib.ExitStack() as stack:

        def handler(payload):
            if not ran:
                stack.enter_context(full(url))
            ran.append(payload)

        with q.workers(handler, count=1):
            q.enqueue("ends as the disk fills")
            eventually(lambda: ran)
            with pytest.raises(StorageFull):
                q.enqueue("no room")
            assert q.counts().acked == 0
            stack.close()
            eventually(lambda: q.counts().acked == 1, within_s=BACK_S)
    assert len(ran) == 1


# On a disk that is full


@pytest.fixture
def disk():
    """A small disk that any user may enter."""
    place = Path(tempfile.mkdtemp(prefix="ulak-disk-"))
    command = ["mount", "-t", "tmpfs", "-o", f"size={DISK_BYTES},mode=1777", "tmpfs", str(place)]
    try:
        done = subprocess.run(command, capture_output=True, check=False)
        failure = done.stderr.decode().strip() if done.returncode else ""
    except FileNotFoundError:
        failure = "there is no mount command"
    if failure:
        place.rmdir()
        pytest.skip(f"cannot mount here ({failure}); the trigger stands for it")
    try:
        yield place
    finally:
        subprocess.run(["umount", "-l", str(place)], check=True)
        place.rmdir()


def test_on_a_full_disk_all_that_was_told_as_stored_is_run_and_workers_are_not_restarted(disk, monkeypatch):
    monkeypatch.setenv("TMPDIR", str(disk))
    with own_server(durable=True) as server, Queue(server.url, QUEUE, visibility_timeout=LONG_S) as q:
        assert Path(server.place).is_relative_to(disk)
        ran, told, failures = [], [], []

        def handler(payload):
            ran.append(payload[:16])

        def enqueue():
            name = secrets.token_hex(8)
            try:
                # Random, or the server would make it small.
                q.enqueue(name + secrets.token_urlsafe(150_000))
            except (StorageFull, StorageUnavailable) as error:
                failures.append(error)
            else:
                told.append(name)

        q.enqueue("0" * 16)
        q.pause()
        with q.workers(handler, count=2):
            ballast = disk / "ballast"
            free = os.statvfs(disk).f_bavail * os.statvfs(disk).f_frsize
            ballast.write_bytes(bytes(free - LEFT_BYTES))
            for _ in range(FILL_MAX):
                enqueue()
                if len(failures) == 5:
                    break
            assert told
            assert failures
            assert any(isinstance(error, StorageFull) for error in failures)
            ballast.unlink()
            before = len(told)

            def goes_on():
                enqueue()
                return len(told) > before

            eventually(goes_on, within_s=BACK_S)
            q.resume()
            eventually(lambda: set(told) <= set(ran), within_s=BACK_S)
        assert len(ran) == len(set(ran))
        assert q.counts().open == 0
