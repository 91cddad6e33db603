"""`ulak workers`: who takes jobs, and which are running, on every store."""

from __future__ import annotations

import io
import threading
from collections.abc import Iterator
from datetime import datetime

import pytest

from tests.cli.command import Run, Terminal, lines_of, read
from tests.cli.everywhere import url  # noqa: F401 - a fixture
from tests.support.waiting import eventually
from ulak import Queue
from ulak.cli import inspect_workers
from ulak.storage.drive import Edge
from ulak.testing import ManualClock


def beat(q: Queue, worker: str, **info: str) -> None:
    """As a pool says that it is there."""
    q._edge.store.beat(worker, info)


def test_a_pool_is_listed_with_the_jobs_that_it_has(run: Run, mail: Queue) -> None:
    began, may_end = threading.Event(), threading.Event()

    def handle(_: object) -> None:
        began.set()
        assert may_end.wait(60)

    job_id = mail.enqueue("a")
    with mail.workers(handle, count=3) as pool:
        try:
            assert began.wait(60)
            eventually(lambda: bool(read(run, "workers")["workers"][0]["size"]))
            (worker,) = read(run, "workers")["workers"]
            done = run("workers")
        finally:
            may_end.set()
            pool.shutdown()
    (job,) = worker.pop("jobs")
    assert (worker["state"], worker["size"], worker["takes"]) == ("live", 3, "payloads")
    assert worker["queues"] == ["mail"]
    assert datetime.fromisoformat(worker["since"]) <= datetime.fromisoformat(worker["seen_at"])
    assert (job["id"], job["queue"], job["attempt"], job["max_attempts"]) == (job_id, "mail", 1, 1)
    assert 0 <= job["for_s"] < 60
    assert 0 < job["lease_left_s"] <= 30
    assert (done.status, done.err) == (0, "")
    assert done.out.splitlines()[1].split()[:2] == [worker["worker"], "live"]
    assert read(run, "workers")["workers"] == []


def test_nobody_is_said_with_how_to_start_somebody(run: Run, mail: Queue) -> None:
    mail.counts()
    done = run("workers")
    assert (done.status, done.out.count("\n")) == (0, 1)
    assert done.err == "no worker has said that it is there: ulak work module:app starts one\n"


def test_who_takes_single_jobs_is_listed_with_them(run: Run, mail: Queue) -> None:
    job_id = mail.enqueue("a")
    lease = mail.deliver()
    assert lease is not None
    (worker,) = read(run, "workers")["workers"]
    assert (worker["worker"], worker["state"], worker["seen_at"]) == (lease.worker, "unlisted", None)
    assert [job["id"] for job in worker["jobs"]] == [job_id]


def test_what_a_worker_says_of_itself_is_escaped_and_may_be_nonsense(run: Run, mail: Queue) -> None:
    mail.counts()
    beat(mail, "w-\x1b[2J", size="many", tasks="\x1b", queues="mail,\x07", since_at="nan")
    done = run("workers")
    assert not set("\x1b\x07") & set(done.out + done.err)
    assert r"w-\x1b[2J" in done.out
    (worker,) = read(run, "workers")["workers"]
    assert (worker["size"], worker["takes"], worker["since"]) == (None, None, None)


# How it looks


@pytest.fixture
def edge() -> Iterator[Edge]:
    """A live worker with two jobs, a stale one with a job whose lease is over, and an idle one."""
    clock = ManualClock()
    with Queue("memory://", "mail", clock=clock, visibility_timeout=20) as q:
        store, began_at = q._edge.store, f"{clock.calendar() - 60:.3f}"
        q.enqueue_many(["a"] * 3)
        store.claim(["mail"], 1, worker="w2", lease_s=20)
        beat(q, "w2", queues="mail", size="4", tasks="app", since_at=began_at)
        clock.advance(25)
        store.claim(["mail"], 2, worker="w1", lease_s=20)
        clock.advance(3.5)
        for name in ("w1", "w3"):
            queues = "mail,reports,invoices,letters,receipts"
            beat(q, name, queues=queues, size="8", tasks="plain", since_at=began_at)
        yield q._edge


WHO = """\
worker  state     up    seen  runs  size  takes     queues                                |
w1      live   1m29s      0s     2     8  payloads  mail,reports,invoices,letters,receipts|
w1      live   1m29s      0s     2     8  payloads  mail,reports,invoices,letters,receipts|
w2      stale  1m29s  28.50s     1     4  tasks     mail                                  |
w3      live   1m29s      0s     0     8  payloads  mail,reports,invoices,letters,receipts|
"""
WHAT = """\
  job  queue  attempt     for   lease  task
    2  mail       1/5   3.50s  16.50s  -
    3  mail       1/5   3.50s  16.50s  -
    1  mail       1/5  28.50s    over  -
    -  -            -       -       -  -
"""


def test_a_pipe_gets_a_line_per_job_and_per_idle_worker(edge: Edge) -> None:
    out = io.StringIO()
    inspect_workers.print_workers(inspect_workers.workers_of(edge), to=out)
    halves = zip(WHO.splitlines(), WHAT.splitlines(), strict=True)
    assert out.getvalue().splitlines() == [who.rstrip("|") + what for who, what in halves]


@pytest.mark.parametrize("columns", [80, 120])
def test_a_terminal_gets_workers_and_jobs_apart(
    edge: Edge, columns: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", str(columns))
    out = Terminal()
    inspect_workers.print_workers(inspect_workers.workers_of(edge), to=out)
    queues = {80: "mail,reports,invoices,lette…", 120: "mail,reports,invoices,letters,receipts"}[columns]
    assert [line.rstrip() for line in lines_of(out)] == [
        "worker  state     up    seen  runs  size  takes     queues",
        f"w1      live   1m29s      0s     2     8  payloads  {queues}",
        "w2      stale  1m29s  28.50s     1     4  tasks     mail",
        f"w3      live   1m29s      0s     0     8  payloads  {queues}",
        "",
        "worker  job  queue  attempt     for   lease  task",
        "w1        2  mail       1/5   3.50s  16.50s  -",
        "w1        3  mail       1/5   3.50s  16.50s  -",
        "w2        1  mail       1/5  28.50s    over  -",
    ]


def test_a_stale_worker_is_remarked_on(edge: Edge) -> None:
    assert list(inspect_workers.remarks_on(inspect_workers.workers_of(edge))) == [
        "w2: not heard of for 28.50s, and has 1 job; ulak doctor tells more"
    ]
