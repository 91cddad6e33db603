"""`ulak work` where a job harms the process that runs it: that ends, and another one takes over."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.cli.working import HELLO, Caller, Python, Work
from tests.support.waiting import WAIT_S

pytestmark = pytest.mark.skipif(not Path("/proc/self/fd").exists(), reason="it must find its descriptors")

_TEARS = """
@app.task
def tear(*parts: str) -> None:
    for name in os.listdir("/proc/self/fd"):
        try:
            file = os.readlink(f"/proc/self/fd/{name}")
        except OSError:
            continue
        if any(part in file for part in parts):
            os.close(int(name))
"""


def test_a_worker_whose_files_a_job_has_closed_ends_and_another_takes_over(
    work: Work, python: Python, caller: Caller, folder: Path
) -> None:
    (folder / "hello.py").write_text(HELLO + _TEARS)
    worker = work("hello:app", "--concurrency", "2")
    python("tear.enqueue('.lock')")
    assert worker.ended() == 69
    said = worker.err.rest()
    assert said[-2].startswith("error U205: ")
    assert said[-2].endswith("is lost to this process: a job, or other code in it, has closed its files")
    assert not any("Traceback" in line for line in said)
    work("hello:app", "--concurrency", "2")
    assert caller.welcome.enqueue("ada").result(WAIT_S) == "welcome ada"


def test_one_of_several_processes_is_replaced_then(
    work: Work, python: Python, caller: Caller, folder: Path
) -> None:
    (folder / "hello.py").write_text(HELLO + _TEARS)
    worker = work("hello:app", "--processes", "1", "--concurrency", "2")
    python("tear.enqueue('.lock')")
    assert " ended with status 69: error U205: " in worker.err.until(" ended with ")
    assert caller.welcome.enqueue("ada").result(WAIT_S) == "welcome ada"
