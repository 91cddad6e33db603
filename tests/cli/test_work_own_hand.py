"""`ulak work` where a job harms the process that runs it: that ends, and another one takes over."""

from __future__ import annotations

import signal
from pathlib import Path

import pytest

from tests.cli.working import HELLO, Caller, Python, Work
from tests.support.doors import Door
from tests.support.waiting import WAIT_S
from ulak import State

FINDS = pytest.mark.skipif(not Path("/proc/self/fd").exists(), reason="it must find its descriptors")
ALONE_OR_NOT = pytest.mark.parametrize("more", [[], ["--processes", "1"]], ids=["alone", "processes"])

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


@FINDS
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


@FINDS
def test_one_of_several_processes_is_replaced_then(
    work: Work, python: Python, caller: Caller, folder: Path
) -> None:
    (folder / "hello.py").write_text(HELLO + _TEARS)
    worker = work("hello:app", "--processes", "1", "--concurrency", "2")
    python("tear.enqueue('.lock')")
    assert " ended with status 69: error U205: " in worker.err.until(" ended with ")
    assert caller.welcome.enqueue("ada").result(WAIT_S) == "welcome ada"


# As where RLIMIT_AS is reached, or RLIMIT_NPROC.
_STARVES = """
import threading
import time
from ulak.worker.runtime import Crew

def start_none(_: object) -> None:
    raise RuntimeError("can't start new thread")

def strike(*_: object) -> None:
    raise SystemError

def starve_the_started() -> None:
    while not any(thread.name == "ulak-default,mail-keeper" for thread in threading.enumerate()):
        time.sleep(0.001)  # the last of its threads to be started
    threading.Thread.start = start_none

@app.task(max_attempts=1)
def strangle() -> None:
    threading.Thread.start = start_none
    Crew._settlements = strike
"""


@ALONE_OR_NOT
def test_a_process_that_can_start_no_thread_stops_in_order(
    work: Work, caller: Caller, gate: Door, folder: Path, more: list[str]
) -> None:
    starved = HELLO.replace("    word, ", "    starve_the_started()\n    word, ")
    (folder / "hello.py").write_text(starved + _STARVES)
    worker = work("hello:app", "--concurrency", "2", *more)
    job = caller.stand.enqueue(gate.place)
    guest = gate.guest()
    worker.signal(signal.SIGTERM)
    guest.let_go("home")
    assert worker.ended() == 0
    assert worker.err.rest()[-1] == "ulak stopped on SIGTERM: 0 jobs handed back, 0 jobs open"
    assert (job.result(0), job.info().attempt) == ("home", 1)


_LACKS = """
import threading

start = threading.Thread.start

def start_others(thread: threading.Thread) -> None:
    if thread.name == {name!r}:
        raise RuntimeError("can't start new thread")
    start(thread)

threading.Thread.start = start_others
"""
POOL = "ulak-default,mail"
THREADS = ["ulak-look", "ulak-hear-end", f"{POOL}-1", f"{POOL}-2", f"{POOL}-keeper"]


@pytest.mark.parametrize("name", THREADS)
def test_a_process_that_cannot_start_one_of_its_threads_says_so_and_ends(
    work: Work, caller: Caller, folder: Path, name: str
) -> None:
    (folder / "hello.py").write_text(HELLO + _LACKS.format(name=name))
    job = caller.welcome.enqueue("ada")
    worker = work("hello:app", "--concurrency", "2")
    assert worker.ended() == 1
    assert worker.err.rest()[-2:] == [
        "error: can't start new thread: the system gives no more",
        "  it has no memory, or a limit is reached: ulimit -u or -v, or a container's",
    ]
    assert job.status() in (State.READY, State.SUCCEEDED)


@ALONE_OR_NOT
def test_a_process_whose_workers_die_and_cannot_be_replaced_ends(
    work: Work, python: Python, caller: Caller, folder: Path, more: list[str]
) -> None:
    (folder / "hello.py").write_text(HELLO + _STARVES)
    worker = work("hello:app", "--concurrency", "1", "--grace", "10ms", *more)
    python("strangle.enqueue()")
    text = "takes no more jobs: 1 of its 1 workers has died, and no other can be started"
    worker.err.until(text)
    if not more:
        assert worker.ended() == 0
        worker = work("hello:app", "--concurrency", "1")
    assert caller.welcome.enqueue("ada").result(WAIT_S) == "welcome ada"


# As where a job has left none: what the worker itself does next finds no memory either. With a limit that is
# really reached, the interpreter itself may fall.
_STRIKES = """
from ulak.worker.runtime import Crew

def strike(*_: object) -> None:
    raise MemoryError

@app.task(max_attempts=1)
def eat() -> None:
    Crew._settlements = strike
"""


@ALONE_OR_NOT
def test_a_process_without_memory_says_so_hands_its_jobs_back_and_ends(
    work: Work, python: Python, caller: Caller, gate: Door, folder: Path, *, more: list[str]
) -> None:
    (folder / "hello.py").write_text(HELLO + _STRIKES)
    worker = work("hello:app", "--concurrency", "2", "--grace", "100ms", *more)
    standing = caller.stand.enqueue(gate.place)
    guest = gate.guest()
    python("eat.enqueue()")
    said = worker.err.until("error: this process has no memory left")
    if more:
        assert " ended with status 1: error: this process has no memory left; the next one starts " in said
        assert gate.guest().pid != guest.pid
    else:
        assert worker.ended() == 1
        assert len(worker.err.rest()) <= 3
    assert (standing.status(), standing.info().attempt) == ((State.LEASED, 1) if more else (State.READY, 0))
    assert not any("bug" in line or "Traceback" in line for line in worker.err.seen)
