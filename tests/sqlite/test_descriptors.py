"""Other code of the process closes what a store has open: it is lost there, and says so at once."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from ulak import Queue

pytestmark = pytest.mark.skipif(not Path("/proc/self/fd").exists(), reason="it must find its descriptors")

_TORN = """
import os, sys, time
from ulak import Queue, StorageGone
url, part = sys.argv[1:]
q = Queue(url)
q.enqueue("x")
q.deliver(0)

def is_meant(name):
    file = f"/proc/self/fd/{name}"
    return os.path.exists(file) and os.readlink(file).endswith(part)

numbers = [int(name) for name in os.listdir("/proc/self/fd") if is_meant(name)]
assert numbers
for number in numbers:
    os.close(number)
# Somebody else gets the numbers.
assert {os.open("other", os.O_RDONLY | os.O_CREAT) for _ in range(50)} > set(numbers)
until = time.monotonic() + 30
try:
    while time.monotonic() < until:
        q.enqueue_many(["y" * 1000] * 1000)
        q.tick_timeouts()
    sys.exit("it was not found out")
except StorageGone as error:
    assert error.is_lost_here_only
try:
    q.close()
except StorageGone:
    pass
for number in numbers:
    os.fstat(number)
"""


@pytest.mark.parametrize("part", ["jobs.db", "jobs.db-wal", ".lock"])
def test_a_store_whose_files_were_closed_is_gone_and_closes_none_that_got_their_numbers(
    tmp_path: Path, part: str
) -> None:
    url = f"sqlite:///{tmp_path}/jobs.db"
    path = ":".join(entry for entry in sys.path if entry)
    done = subprocess.run(
        [sys.executable, "-c", _TORN, url, part],
        cwd=tmp_path,
        env={"PYTHONPATH": path},
        capture_output=True,
        check=False,
        text=True,
        timeout=60,
    )
    assert (done.returncode, done.stderr) == (0, "")
    with Queue(url) as q:
        assert q.counts().open > 0
