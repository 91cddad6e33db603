"""How pools of processes end, what they are embedded in, and what they do in transactions of their jobs."""

from __future__ import annotations

import asyncio
import os
import signal
import sqlite3
import threading
from pathlib import Path
from typing import Any

import pytest

from tests.support.children import Parent, child
from tests.support.doors import Door
from tests.support.pids import children_of, is_alive
from tests.support.pools import causes
from tests.support.threads import Running
from tests.support.waiting import WAIT_S, eventually
from tests.tasks.processes import errands
from tests.tasks.processes.conftest import processes, run_all

app = errands.app

pytestmark = pytest.mark.usefixtures("url")

# The end of a pool


def test_w1_a_stop_lets_running_jobs_finish(gate: Door) -> None:
    job = errands.stand.enqueue(gate.place)
    with processes(2) as pool:
        guest = gate.guest()
        stop = Running(lambda: pool.shutdown(WAIT_S))
        eventually(lambda: pool.size == 1)
        guest.let_go("finished")
        assert stop.result().released == 0
    assert (job.result(), job.info().attempt) == ("finished", 1)


def test_w2_w3_what_runs_after_the_grace_is_killed_and_handed_back_unspent(gate: Door) -> None:
    job = errands.stand.using(max_attempts=1).enqueue(gate.place)
    for stop in (1, 2, 3):
        with processes(2) as pool:
            guest = gate.guest()
            report = pool.shutdown(0.05)
            assert (report.released, report.open) == (1, 1)
            assert guest.hear() == ""
        info = app.queue("default").get(job.id)
        assert (info.state, info.attempt, info.delivery) == ("ready", 0, stop)
        assert pool.metrics().stale == 0
    assert causes(info) == ["shutdown"] * 3
    with processes(1):
        gate.guest().let_go("in the end")
        assert job.result(WAIT_S) == "in the end"


def test_processes_without_a_job_end_in_order(tmp_path: Path) -> None:
    with processes(1):
        errands.leave_word.enqueue(str(tmp_path / "word")).result(WAIT_S)
    assert (tmp_path / "word").read_text() == "left in order"


def test_a_job_is_not_ready_again_before_its_process_is_gone(gate: Door) -> None:
    job = errands.stand.enqueue(gate.place)
    seen = []
    with processes(1) as pool:
        pid = gate.guest().pid
        app.on(lambda event: seen.append((event.job_id, is_alive(pid))))
        pool.shutdown(0)
    app._events._subscribers = ()
    assert seen == [(job.id, False)]


def test_w5_a_second_stop_ends_the_first_ones_grace(gate: Door) -> None:
    job = errands.stand.enqueue(gate.place)
    with processes(1) as pool:
        gate.guest()
        first = Running(lambda: pool.shutdown(3600))
        eventually(lambda: not pool._crew.taking)
        assert pool.shutdown(0).released + first.result().released == 1
    assert app.queue("default").get(job.id).state == "ready"


def test_w7_workers_stay_while_a_slow_producer_lets_the_queue_run_empty() -> None:
    q = app.queue("default")
    with processes(2) as pool:
        with q.producer():
            for number in range(3):
                errands.where.enqueue(number).result(WAIT_S)
                assert pool.size == 2
        assert pool.drain(WAIT_S).drained


def killed_parent(parent: Parent, url: str, place: str) -> None:
    """Runs a pool until it is killed."""
    app.url = url
    with processes(3):
        parent.say("runs", children_of())
        parent.wait_for("end")


def test_children_die_with_a_parent_that_is_killed_whatever_they_do(url: str, gate: Door) -> None:
    app.open()
    with child(killed_parent, url, gate.place) as parent:
        idle = parent.hear("runs")
        errands.keep_the_interpreter.using(max_attempts=5).enqueue(gate.place)
        hog = gate.guest()
        errands.untied.enqueue(gate.place)
        busy = gate.guest()
        parent.kill()
        assert hog.hear() == busy.hear() == ""
        eventually(lambda: not any(map(is_alive, [*idle, hog.pid, busy.pid])))


# Embedding


def test_n3_a_pool_starts_in_any_thread_and_inside_a_running_loop() -> None:
    before = [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM, signal.SIGCHLD)]

    def in_pool() -> int:
        with processes(1):
            return errands.where.enqueue().result(WAIT_S)

    async def in_loop() -> int:
        return in_pool()

    pids = {in_pool(), Running(in_pool).result(), asyncio.run(in_loop())}
    assert len(pids) == 3
    assert os.getpid() not in pids
    assert [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM, signal.SIGCHLD)] == before


def test_the_thread_that_starts_processes_outlives_what_strikes_it() -> None:
    from tests.support.pools import kill

    with processes(1):
        (pid,) = children_of()
        (thread,) = [thread for thread in threading.enumerate() if thread.name.endswith("-processes")]
        kill(thread)
        errands.die.using(max_attempts=1).enqueue("exit")
        eventually(lambda: not is_alive(pid))
        assert isinstance(errands.where.enqueue().result(WAIT_S), int)
        assert thread.is_alive()


# Transactions


@pytest.fixture
def file(url: str) -> str:
    return url.removeprefix("sqlite:///")


def effects(file: str) -> list[Any]:
    db = sqlite3.connect(file)
    found = db.execute("SELECT * FROM effects").fetchall()
    db.close()
    return found


def test_a_job_is_finished_together_with_what_it_writes(file: str) -> None:
    with processes(1) as pool:
        job = errands.write.enqueue(file, "", "commit")
        job.result(WAIT_S)
        pool.shutdown()
        assert pool.metrics().stale == 0
        assert (effects(file), causes(job.info())) == ([(job.id, 1)], ["ack"])


def test_a_job_whose_transaction_was_rolled_back_is_a_failed_attempt(file: str) -> None:
    job = errands.write.enqueue(file, "", "roll back")
    run_all()
    assert (job.status(), causes(job.info()), effects(file)) == ("dead", ["error"] * 2, [])
    assert job.info().error.type == "NotCommitted"


def test_a_kill_before_the_commit_undoes_the_end_of_the_job(file: str, gate: Door) -> None:
    with processes(1):
        job = errands.write.enqueue(file, gate.place, "stand before")
        os.kill(gate.guest().pid, signal.SIGKILL)
        gate.guest().let_go()
        job.result(WAIT_S)
    assert (effects(file), causes(job.info())) == ([(job.id, 2)], ["lost", "ack"])


def test_a_kill_after_the_commit_changes_nothing(file: str, gate: Door) -> None:
    with processes(1) as pool:
        job = errands.write.enqueue(file, gate.place, "stand after")
        guest = gate.guest()
        os.kill(guest.pid, signal.SIGKILL)
        job.result(WAIT_S)
        assert isinstance(errands.where.enqueue().result(WAIT_S), int)
        assert pool.metrics().stale == 0
    assert (effects(file), causes(job.info())) == ([(job.id, 1)], ["ack"])
