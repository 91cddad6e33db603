"""What ends a worker by itself: so many jobs, so much memory, changed source; what must not hold it up."""

from __future__ import annotations

import os
import signal
import sys
import textwrap
import time
from pathlib import Path

import pytest

from tests.cli.working import HELLO, Caller, Work
from tests.support.commands import running
from tests.support.doors import Door
from tests.support.pids import children_of
from tests.support.waiting import WAIT_S, eventually
from ulak import State
from ulak.cli.options import size, spelled_size
from ulak.cli.work_limits import Sources, all_in, imported, rss_bytes, too_large

MEGABYTE = 2**20


# So many jobs


def test_a_lone_worker_ends_after_so_many_jobs(work: Work, caller: Caller) -> None:
    made = [caller.welcome.enqueue(str(number)) for number in range(5)]
    worker = work("hello:app", "--concurrency", "1", "--max-jobs", "3")
    assert worker.ended() == 0
    assert worker.err.rest() == [
        "ulak takes no more jobs: it has run 3 jobs",
        "ulak ended, since it has run 3 jobs; 2 jobs open",
    ]
    assert [job.status() for job in made] == [State.SUCCEEDED] * 3 + [State.READY] * 2


def test_S10_processes_that_run_one_job_each_run_every_job_once(work: Work, caller: Caller) -> None:
    made = [caller.whoami.enqueue() for _ in range(10)]
    worker = work("hello:app", "--processes", "2", "--concurrency", "1", "--max-jobs", "1", "--drain")
    assert worker.ended() == 0
    # Not a word of what is no failure.
    assert worker.err.rest() == ["ulak drained: 0 jobs open"]
    assert len({job.result(0) for job in made}) == 10
    assert {(info.attempt, info.delivery) for info in (job.info() for job in made)} == {(1, 1)}


def test_the_last_jobs_are_finished_however_long_they_take(work: Work, caller: Caller, gate: Door) -> None:
    worker = work("hello:app", "--concurrency", "2", "--max-jobs", "2", "--grace", "10ms")
    standing = [caller.stand.enqueue(gate.place) for _ in range(2)]
    first, second = gate.guest(), gate.guest()
    waiting = caller.welcome.enqueue("ada")
    first.let_go()
    eventually(lambda: State.SUCCEEDED in [job.status() for job in standing])
    second.let_go()
    assert worker.ended() == 0
    assert [job.status() for job in (*standing, waiting)] == [State.SUCCEEDED, State.SUCCEEDED, State.READY]


def test_a_signal_after_the_last_job_has_begun_still_has_its_grace(
    work: Work, caller: Caller, gate: Door
) -> None:
    worker = work("hello:app", "--concurrency", "1", "--max-jobs", "1", "--grace", "10ms")
    job = caller.stand.enqueue(gate.place)
    gate.guest()
    worker.signal(signal.SIGTERM)
    assert worker.ended() == 0
    assert worker.err.rest()[-1] == "ulak stopped on SIGTERM: 1 job handed back, 1 job open"
    assert (job.status(), job.info().attempt) == (State.READY, 0)


# So much memory


GROWS_AND_STANDS = """
@app.task
def grow_and_stand(size: int, place: str) -> str:
    grow(size)
    return stand(place)
"""


def test_a_lone_worker_ends_once_it_takes_too_much(
    work: Work, caller: Caller, gate: Door, folder: Path
) -> None:
    # Its only worker stands, so that none has a claim under way when it says that it takes no more.
    (folder / "hello.py").write_text(HELLO + GROWS_AND_STANDS)

    @caller.app.task(name="hello.grow_and_stand")
    def grow_and_stand(size: int, place: str) -> str:
        raise NotImplementedError

    worker = work("hello:app", "--max-rss", "180M", "--concurrency", "1", "--grace", "10ms")
    standing = grow_and_stand.enqueue(200 * MEGABYTE, gate.place)
    guest = gate.guest()
    assert worker.err.next().startswith("ulak takes no more jobs: it takes ")
    waiting = caller.welcome.enqueue("ada")
    guest.let_go("home")
    assert worker.ended() == 0
    assert worker.err.rest()[-1].endswith(" of memory; 1 job open")
    assert (standing.result(0), waiting.status()) == ("home", State.READY)


def test_a_process_that_takes_too_much_is_replaced(work: Work, caller: Caller) -> None:
    worker = work("hello:app", "--processes", "1", "--max-rss", "180M")
    first = caller.whoami.enqueue().result(WAIT_S)
    caller.grow.enqueue(200 * MEGABYTE).result(WAIT_S)
    eventually(lambda: children_of(worker.pid) not in ([], [first]))
    assert caller.whoami.enqueue().result(WAIT_S) != first
    worker.signal(signal.SIGTERM)
    assert worker.ended() == 0
    assert len(worker.err.rest()) == 2


def test_memory_is_measured_in_bytes() -> None:
    before = rss_bytes()
    assert 5 * MEGABYTE < before < 4096 * MEGABYTE
    kept = b"x" * (50 * MEGABYTE)
    assert 40 * MEGABYTE < rss_bytes() - before < 70 * MEGABYTE
    del kept


def test_elsewhere_than_on_linux_the_peak_is_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ulak.cli.work_limits._STATM", Path("/nowhere"))
    assert rss_bytes() >= 5 * MEGABYTE


def test_memory_is_too_much_above_the_limit_only() -> None:
    assert too_large(rss_bytes() + 50 * MEGABYTE)() is None
    assert too_large(MEGABYTE)() == f"it takes {spelled_size(rss_bytes())} of memory"


@pytest.mark.parametrize(
    ("text", "bytes_"),
    [("512M", 512 * MEGABYTE), ("64kb", 65_536), (" 1.5 GiB ", 1536 * MEGABYTE), ("1K", 1024)],
)
def test_a_size_is_read(text: str, bytes_: int) -> None:
    assert size(text) == bytes_


# Changed source


def test_a_changed_file_starts_the_worker_again(work: Work, caller: Caller, folder: Path) -> None:
    (folder / "words.py").write_text("GREETING = 'welcome'")
    (folder / "hello.py").write_text(f"import words\n{HELLO}".replace('f"welcome {', 'f"{words.GREETING} {'))
    worker = work("hello:app", "--reload")
    assert caller.welcome.enqueue("ada").result(WAIT_S) == "welcome ada"
    (folder / "words.py").write_text("GREETING = 'hello'")
    assert worker.err.next() == "ulak starts again: words.py has changed"
    # The one that says so may have a claim under way.
    eventually(lambda: caller.welcome.enqueue("ada").result(WAIT_S) == "hello ada")
    worker.signal(signal.SIGINT)
    assert worker.ended() == 0


def test_running_jobs_are_handed_back_within_the_grace(
    work: Work, caller: Caller, folder: Path, gate: Door
) -> None:
    work("hello:app", "--reload", "--grace", "10ms")
    job = caller.stand.enqueue(gate.place)
    first = gate.guest()
    (folder / "hello.py").write_text(f"{HELLO}\n")
    second = gate.guest()
    second.let_go("home")
    assert (job.result(WAIT_S), job.info().attempt) == ("home", 1)
    assert first.pid != second.pid


def test_what_an_edit_breaks_is_told_and_waits_for_the_next(work: Work, caller: Caller, folder: Path) -> None:
    worker = work("hello:app", "--reload")
    (folder / "hello.py").write_text("1 / 0")
    worker.err.until("error U302: importing hello raised ZeroDivisionError: division by zero")
    worker.err.until("ulak starts again once a Python file below this directory changes")
    (folder / "hello.py").write_text(HELLO)
    worker.err.until("ulak starts again: hello.py has changed")
    assert caller.welcome.enqueue("ada").result(WAIT_S) == "welcome ada"


def test_what_is_broken_from_the_start_waits_too_and_ends_at_a_signal(work: Work, folder: Path) -> None:
    (folder / "hello.py").write_text("import missing")
    worker = work("hello:app", "--reload", ready=False)
    worker.err.until("ulak starts again once a Python file below this directory changes")
    (folder / "missing.py").write_text("1 / 0")
    worker.err.until("ulak starts again: missing.py has changed")
    worker.err.until("ulak starts again once a Python file below this directory changes")
    worker.signal(signal.SIGTERM)
    assert worker.ended() == 0


@pytest.mark.parametrize(
    ("args", "status", "first"),
    [
        (["--max-rss", "1M"], 2, "error U302: --max-rss 1M is less than the "),
        (["--url", "memory://"], 2, "error U302: hello:app is on memory://"),
        (["--url", "http://x"], 2, "error U302: no store for 'http://'"),
        (["--url", "sqlite:///no/folder/x.db"], 2, "error U302: the directory of "),
        (["--url", "sqlite:///hello.py"], 69, "error U"),
    ],
)
def test_what_no_edit_mends_ends_it(work: Work, args: list[str], *, status: int, first: str) -> None:
    worker = work("hello:app", "--reload", *args, ready=False)
    assert worker.ended() == status
    lines = worker.err.rest()
    assert lines[0].startswith(first)
    assert not any("starts again" in line for line in lines)


def changed_at(path: Path, at_s: float) -> None:
    os.utime(path, ns=(int(at_s * 1e9),) * 2)


def test_files_are_as_they_were_until_one_changes(tmp_path: Path) -> None:
    files = [tmp_path / "a.py", tmp_path / "b.py"]
    for path in files:
        path.touch()
        changed_at(path, 1000)
    sources = Sources(tmp_path, lambda: files, since=2000)
    assert sources.look() is None
    changed_at(files[1], 1000.001)
    assert sources.look() == "b.py has changed"


def test_a_file_that_is_away_for_a_moment_has_not_changed_yet(tmp_path: Path) -> None:
    path = tmp_path / "a.py"
    path.touch()
    sources = Sources(tmp_path, lambda: [path], since=time.time() + 10)
    path.unlink()
    assert sources.look() is None
    path.touch()
    assert sources.look() == "a.py has changed"


def test_what_changes_while_it_is_imported_is_seen(tmp_path: Path) -> None:
    path = tmp_path / "a.py"
    path.touch()
    assert Sources(tmp_path, lambda: [path], since=time.time() - 100).look() == "a.py has changed"
    # One whose clock runs ahead has not changed, or it would for ever.
    changed_at(path, time.time() + 1000)
    assert Sources(tmp_path, lambda: [path], since=time.time() - 100).look() is None


def test_what_changes_while_it_is_first_looked_at_is_seen(tmp_path: Path) -> None:
    path = tmp_path / "a.py"

    def edited() -> list[Path]:
        if not path.exists():
            path.touch()
            changed_at(path, time.time())
        return [path]

    assert Sources(tmp_path, edited, since=time.time() - 1).look() == "a.py has changed"


@pytest.mark.parametrize("sees_new", [False, True])
def test_a_new_file_is_a_change_only_where_nothing_could_be_imported(tmp_path: Path, sees_new: bool) -> None:
    files: list[Path] = []
    sources = Sources(tmp_path, lambda: files, since=time.time(), sees_new=sees_new)
    files.append(tmp_path / "a.py")
    files[0].touch()
    assert sources.look() == ("a.py has changed" if sees_new else None)


def test_the_files_are_those_of_the_user(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("a.py", "b.txt", "sub/c.py", ".git/d.py", ".venv/e.py", "env/pyvenv.cfg", "env/f.py"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).touch()
    assert sorted(path.relative_to(tmp_path).as_posix() for path in all_in(tmp_path)) == ["a.py", "sub/c.py"]
    monkeypatch.setattr("ulak.cli.work_limits.FILES_MAX", 1)
    assert len(all_in(tmp_path)) == 1
    root = Path(__file__).parents[2]
    assert Path(__file__) in imported(root)
    assert imported(tmp_path) == []
    assert not any("site-packages" in path.parts for path in imported(Path("/")))


# What must not hold it up


def ended_in_s(work: Work, folder: Path, more: str, *args: str) -> float:
    """How long `ulak work` took to end after a SIGTERM, where the module does this too."""
    (folder / "hello.py").write_text(HELLO + textwrap.dedent(more))
    worker = work("hello:app", "--grace", "10ms", *args)
    began_at = time.monotonic()
    worker.signal(signal.SIGTERM)
    assert worker.ended() == 0
    took_s = time.monotonic() - began_at
    assert worker.err.rest()[-1].startswith("ulak stopped on SIGTERM")
    return took_s


THAT_LINGER = {
    "thread": "import threading\nthreading.Thread(target=threading.Event().wait).start()",
    "atexit": "import atexit, threading\natexit.register(threading.Event().wait)",
    "executor": """
        import threading
        from concurrent.futures import ThreadPoolExecutor
        ThreadPoolExecutor().submit(threading.Event().wait)
    """,
}


@pytest.mark.parametrize("args", [[], ["--processes", "2"]], ids=["alone", "processes"])
@pytest.mark.parametrize("more", THAT_LINGER.values(), ids=THAT_LINGER)
def test_what_else_runs_in_the_process_does_not_keep_it(
    work: Work, folder: Path, more: str, args: list[str]
) -> None:
    assert ended_in_s(work, folder, more, *args) <= 2.0


@pytest.mark.parametrize("args", [[], ["--processes", "2"]], ids=["alone", "processes"])
def test_W6_a_job_that_waits_for_a_loop_that_has_stopped_does_not_keep_it(
    work: Work, folder: Path, caller: Caller, args: list[str]
) -> None:
    (folder / "hello.py").write_text(
        HELLO
        + textwrap.dedent("""
            import asyncio
            stopped = asyncio.new_event_loop()

            @app.task(name="hello.wait")
            def wait() -> None:
                future = asyncio.run_coroutine_threadsafe(asyncio.sleep(0), stopped)
                print("waiting")
                future.result()
        """)
    )
    job = caller.app.task(name="hello.wait")(lambda: None).enqueue()
    worker = work("hello:app", "--grace", "10ms", *args)
    assert worker.out.next() == "waiting"
    began_at = time.monotonic()
    worker.signal(signal.SIGTERM)
    assert worker.ended() == 0
    assert time.monotonic() - began_at <= 2.0
    assert (job.status(), job.info().attempt) == (State.READY, 0)


def test_a_handler_that_was_left_behind_and_prints_does_not_break_the_end(
    work: Work, folder: Path, caller: Caller
) -> None:
    (folder / "hello.py").write_text(
        HELLO
        + textwrap.dedent("""
            import atexit
            atexit.register(lambda: open("exited", "w").close())

            @app.task(name="hello.whoami2")
            def spin() -> None:
                print("spinning")
                while True:
                    print("." * 100)
        """)
    )
    spin = caller.app.task(name="hello.whoami2")(lambda: None)
    worker = work("hello:app", "--grace", "10ms")
    job = spin.enqueue()
    worker.out.until("spinning")
    worker.signal(signal.SIGTERM)
    assert worker.ended() == 0
    assert worker.err.rest()[-1] == "ulak stopped on SIGTERM: 1 job handed back, 1 job open"
    assert (folder / "exited").exists()
    assert (job.status(), job.info().attempt) == (State.READY, 0)


PATCHED = """
import sys, threading
from ulak.cli import main, work_process
{patch}
sys.argv[1:] = ["work", "hello:app", *sys.argv[1:]]
sys.exit(main())
"""


def test_a_drained_worker_does_not_wait_for_threads_for_ever(folder: Path) -> None:
    (folder / "hello.py").write_text(
        f"{HELLO}\nimport threading\nthreading.Thread(target=threading.Event().wait).start()"
    )
    code = PATCHED.format(patch="work_process.LINGER_S = 0.01")
    with running(sys.executable, "-c", code, "--drain", folder=folder) as worker:
        assert worker.ended() == 0
        assert worker.err.rest()[-1] == "ulak drained: 0 jobs open"


def test_a_worker_that_cannot_hand_back_ends_all_the_same_and_says_so_by_its_status(
    folder: Path, caller: Caller, gate: Door
) -> None:
    patch = "from ulak import Pool\nPool.shutdown = lambda *_: threading.Event().wait()"
    code = PATCHED.format(patch=patch)
    with running(sys.executable, "-c", code, "--grace", "10ms", folder=folder) as worker:
        caller.stand.enqueue(gate.place)
        gate.guest()
        worker.signal(signal.SIGTERM)
        assert worker.ended() == 1
