"""Workers inside somebody else's program: beside a server, in a thread, on a running loop, in a script."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import signal
import sys
import threading
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager
from pathlib import Path

import pytest

from tests.support.commands import running
from tests.support.threads import Running
from tests.support.waiting import WAIT_S, eventually
from tests.tasks.conftest import MakeApp
from ulak import App, ArgumentError, Job, State

Lifespan = Callable[[object], AbstractAsyncContextManager[None]]
HANDLED = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGCHLD)


def handlers() -> list[object]:
    return [signal.getsignal(number) for number in HANDLED]


@contextlib.asynccontextmanager
async def served(lifespan: Lifespan) -> AsyncIterator[None]:
    """What an ASGI server and its framework do around the time in which they serve."""
    begun, over = asyncio.Event(), asyncio.Event()

    async def life() -> None:
        async with lifespan("the framework's own application") as state:
            assert state is None
            begun.set()
            await over.wait()

    living = asyncio.create_task(life())
    waiting = asyncio.create_task(begun.wait())
    await asyncio.wait([living, waiting], return_when=asyncio.FIRST_COMPLETED)
    try:
        yield
    finally:
        over.set()
        await asyncio.wait_for(living, WAIT_S)


@pytest.fixture
def app(make_app: MakeApp) -> App:
    """One whose store stays open when it is closed, as one in a file does."""
    make_app().open()
    return make_app()


def test_jobs_run_on_the_servers_loop_while_it_serves(app: App) -> None:
    loops: list[object] = []

    @app.task
    async def note(number: int) -> int:
        loops.append(asyncio.get_running_loop())
        return number

    async def serve() -> None:
        before = handlers()
        async with served(app.lifespan):
            assert handlers() == before
            jobs = [await note.aenqueue(number) for number in range(5)]
            assert [await job.aresult(WAIT_S) for job in jobs] == list(range(5))
            assert set(loops) == {asyncio.get_running_loop()}
        assert handlers() == before

    asyncio.run(serve())


def test_plain_functions_run_beside_the_loop_and_the_server_goes_on(app: App) -> None:
    begun, go_on = threading.Event(), threading.Event()

    @app.task
    def wait() -> str:
        begun.set()
        assert go_on.wait(WAIT_S)
        return threading.current_thread().name

    async def serve() -> str:
        async with served(app.lifespan):
            job = await wait.aenqueue()
            await asyncio.to_thread(begun.wait, WAIT_S)
            go_on.set()
            return await job.aresult(WAIT_S)

    assert asyncio.run(serve()) != threading.current_thread().name


@pytest.mark.parametrize("said", [True, False], ids=["finished", "unsaid"])
def test_the_end_of_the_server_lets_running_jobs_finish_and_takes_no_others(app: App, said: bool) -> None:
    begun, go_on = threading.Event(), threading.Event()

    @app.task
    def wait() -> None:
        begun.set()
        assert go_on.wait(WAIT_S)

    async def serve() -> list[Job[None]]:
        async with served(functools.partial(app.lifespan, count=1)):
            jobs = [await wait.aenqueue() for _ in range(2)]
            if said:
                # A server that ends does not wait for what is still to be done, as a drain would.
                app.queue("default").mark_producer_finished()
            await asyncio.to_thread(begun.wait, WAIT_S)
            asyncio.get_running_loop().call_later(0.01, go_on.set)
        return jobs

    assert [job.status() for job in asyncio.run(serve())] == [State.SUCCEEDED, State.READY]


def test_what_is_not_finished_within_the_grace_is_handed_back_unspent(app: App) -> None:
    begun, go_on = threading.Event(), threading.Event()

    @app.task
    async def wait() -> None:
        begun.set()
        await asyncio.to_thread(go_on.wait, WAIT_S)

    async def serve() -> Job[None]:
        async with served(functools.partial(app.lifespan, grace=0.01)):
            job = await wait.aenqueue()
            await asyncio.to_thread(begun.wait, WAIT_S)
        go_on.set()
        return job

    info = asyncio.run(serve()).info()
    assert (info.state, info.attempt, info.history[0].cause) == (State.READY, 0, "shutdown")


def test_a_server_that_loses_patience_gets_what_runs_handed_back_at_once(app: App) -> None:
    begun, go_on = threading.Event(), threading.Event()

    @app.task
    def wait() -> None:
        begun.set()
        go_on.wait(WAIT_S)

    async def serve() -> Job[None]:
        is_there, is_leaving = asyncio.Event(), asyncio.Event()

        async def life() -> None:
            async with app.lifespan(grace=3600):
                is_there.set()
                try:
                    await asyncio.Event().wait()
                finally:
                    is_leaving.set()

        living = asyncio.create_task(life())
        await is_there.wait()
        job = await wait.aenqueue()
        await asyncio.to_thread(begun.wait, WAIT_S)
        living.cancel()
        await is_leaving.wait()
        assert not living.done()
        living.cancel()
        await asyncio.wait([living], timeout=WAIT_S)
        assert living.cancelled()
        go_on.set()
        return job

    info = asyncio.run(serve()).info()
    assert (info.state, info.attempt) == (State.READY, 0)


def test_a_server_that_fails_ends_the_workers_too(app: App) -> None:
    app.task(name="t")(print)

    async def serve() -> None:
        with pytest.raises(ZeroDivisionError):
            async with app.lifespan():
                raise ZeroDivisionError

    asyncio.run(serve())


def test_an_app_that_cannot_work_does_not_let_the_server_start(make_app: MakeApp) -> None:
    async def serve() -> None:
        with pytest.raises(ArgumentError, match="an App without tasks"):
            async with served(make_app().lifespan):
                pytest.fail("it started")

    asyncio.run(serve())


def test_an_app_may_be_served_again_and_on_another_loop(app: App) -> None:
    @app.task
    async def double(number: int) -> int:
        return 2 * number

    async def serve() -> None:
        for number in range(2):
            async with served(app.lifespan):
                job = await double.aenqueue(number)
                assert await job.aresult(WAIT_S) == 2 * number

    asyncio.run(serve())
    asyncio.run(serve())


def test_workers_in_a_thread_leave_signals_alone(app: App) -> None:
    @app.task
    def double(number: int) -> int:
        return 2 * number

    ready, over = threading.Event(), threading.Event()

    def work() -> None:
        with app.workers(2):
            ready.set()
            assert over.wait(WAIT_S)

    before = handlers()
    thread = Running(work)
    assert ready.wait(WAIT_S)
    assert double.enqueue(2).result(WAIT_S) == 4
    assert handlers() == before
    over.set()
    thread.result()


def test_workers_inside_a_running_loop(app: App) -> None:
    @app.task
    def double(number: int) -> int:
        return 2 * number

    @app.task
    async def triple(number: int) -> int:
        await asyncio.sleep(0)
        return 3 * number

    async def main() -> list[int]:
        before = handlers()
        async with app.aworkers(2):
            jobs = [await double.aenqueue(1), await triple.aenqueue(1)]
            results = [await job.aresult(WAIT_S) for job in jobs]
        # And those of threads, for whoever cannot await.
        with app.workers(2):
            jobs = [await double.aenqueue(2), await triple.aenqueue(2)]
            results += [await job.aresult(WAIT_S) for job in jobs]
        assert handlers() == before
        return results

    assert asyncio.run(main()) == [2, 3, 4, 6]


def test_workers_leave_after_as_many_jobs_as_they_may_run(app: App) -> None:
    ran: list[int] = []
    note = app.task(name="note")(ran.append)
    note.enqueue_many([note.call(number) for number in range(5)])
    with app.workers(1, max_jobs=3) as pool:
        assert pool.join(WAIT_S)
        assert ran == [0, 1, 2]
    with app.workers(1, max_jobs=3) as pool:
        eventually(lambda: len(ran) == 5)
        assert pool.size == 1


def test_S10_pools_of_one_job_each_run_every_job_once(app: App) -> None:
    ran: list[int] = []
    note = app.task(name="note")(ran.append)
    jobs = note.enqueue_many([note.call(number) for number in range(200)])
    for _ in jobs:
        with app.workers(1, max_jobs=1) as pool:
            assert pool.join(WAIT_S)
    assert ran == list(range(200))
    assert app.queue("default").counts().totals.failed == 0


@pytest.mark.parametrize("count", [0, -1, 1.0, True, "3"])
def test_a_number_of_jobs_that_cannot_be_is_refused(app: App, count: object) -> None:
    app.task(name="t")(print)
    with pytest.raises(ArgumentError, match="max_jobs is how many jobs a pool runs"):
        app.workers(max_jobs=count)  # type: ignore[arg-type]


def test_who_wants_to_hear_no_more_is_told_no_more(app: App) -> None:
    heard: list[object] = []
    note = app.task(name="note")(lambda: None)
    app.on(heard.append)
    note.enqueue()
    assert len(heard) == 1
    app.off(heard.append)
    app.off(print)
    note.enqueue()
    assert len(heard) == 1


SCRIPT = """
import signal
from ulak import App

app = App("{url}")

@app.task
def double(number: int) -> int:
    return 2 * number

if __name__ == "__main__":
    before = [signal.getsignal(number) for number in signal.Signals]
    with app.workers(2):
        assert before == [signal.getsignal(number) for number in signal.Signals]
        print(double.enqueue(21).result(20), flush=True)
        {end}
"""


@pytest.mark.parametrize("url", ["memory://", "sqlite:///jobs.db"])
def test_workers_in_a_script_end_with_it(tmp_path: Path, url: str) -> None:
    (tmp_path / "script.py").write_text(SCRIPT.format(url=url, end=""))
    with running(sys.executable, "script.py", folder=tmp_path) as script:
        assert script.out.next() == "42"
        assert (script.ended(), script.err.rest()) == (0, [])


@pytest.mark.parametrize("url", ["memory://", "sqlite:///jobs.db"])
def test_a_script_gets_its_ctrl_c_itself(tmp_path: Path, url: str) -> None:
    (tmp_path / "script.py").write_text(SCRIPT.format(url=url, end="signal.pause()"))
    with running(sys.executable, "script.py", folder=tmp_path) as script:
        assert script.out.next() == "42"
        script.signal(signal.SIGINT)
        assert script.ended() == -signal.SIGINT
        assert script.err.rest()[-1] == "KeyboardInterrupt"
