"""How the processes of a pool find and load their App, and what is said where they cannot."""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import ulak
from tests.support.doors import door
from tests.support.modules import forgotten
from tests.support.pids import is_alive
from tests.support.threads import Running
from tests.support.waiting import WAIT_S, eventually
from ulak import App, ArgumentError, Backoff, ConfigError, events
from ulak.executors import start_of
from ulak.testing import Jobs, ManualClock
from ulak.worker import children
from ulak.worker.children import Children

SHOP = """
    import os
    from ulak import App
    app = App("memory://")

    @app.task
    def pid() -> int:
        return os.getpid()
"""


@pytest.fixture
def folder(tmp_path: Path, monkeypatch) -> Iterator[Path]:
    """A new current directory, that modules are imported from and forgotten."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    with forgotten(tmp_path):
        yield tmp_path


def write(file: Path, code: str) -> None:
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(textwrap.dedent(code))


def imported(name: str, attribute: str = "app") -> App:
    """The App of a module, on a file in the current directory."""
    __import__(name)
    app: App = getattr(sys.modules[name], attribute)
    app.url = "sqlite:///jobs.db"
    return app


def ran_in(app: App, task: str, **options: Any) -> int:
    """The process that a job of this task runs in."""
    with app, app.workers(1, executor="process", **options):
        return app.find(task).enqueue().result(WAIT_S)


def refused(app: App, **options: Any) -> str:
    """Why a pool of processes does not start; what it had opened is closed."""
    with app, pytest.raises(ConfigError) as caught, app.workers(1, executor="process", **options):
        pytest.fail("it has started")
    assert len(str(caught.value).splitlines()) <= 6
    return str(caught.value)


# Finding it


def test_an_app_is_found_where_its_tasks_are_with_all_of_them(folder: Path) -> None:
    write(folder / "shop/__init__.py", "")
    write(folder / "shop/base.py", "from ulak import App\napplication = App('memory://')\n")
    for name in ("mail", "bills"):
        write(
            folder / f"shop/{name}.py",
            f"""
            import os
            from shop.base import application as our_app

            @our_app.task(name="{name}.pid")
            def pid() -> int:
                return os.getpid()
            """,
        )
    __import__("shop.mail")
    app = imported("shop.bills", "our_app")
    assert os.getpid() not in {ran_in(app, "mail.pid"), ran_in(app, "bills.pid")}


def test_an_app_that_is_no_global_there_is_found_by_its_target(folder: Path) -> None:
    write(folder / "base.py", "from ulak import App\nclass Holder:\n    app = App('memory://')\n")
    write(
        folder / "jobs.py",
        """
        import os, base

        @base.Holder.app.task
        def pid() -> int:
            return os.getpid()
        """,
    )
    __import__("jobs")
    app = sys.modules["base"].Holder.app
    app.url = "sqlite:///jobs.db"
    with pytest.raises(ArgumentError, match=r"say where it is: workers\(target='shop.jobs:app'\)"), app:
        app.workers(executor="process")
    assert ran_in(app, "jobs.pid", target="base:Holder.app") != os.getpid()


@pytest.mark.parametrize("target", ["shop", "shop.py:app", "shop:", ":app", "a b:app", "shop:app:x", 3])
def test_a_target_that_names_no_app_of_a_module_is_refused(folder: Path, target: Any) -> None:
    write(folder / "shop.py", SHOP)
    app = imported("shop")
    with (
        app,
        pytest.raises(ArgumentError, match="target names a module and the App in it, as in"),
    ):
        app.workers(executor="process", target=target)


SCRIPT = """
import os
import sys
from ulak import App, ConfigError
app = App("sqlite:///jobs.db")
print("imported as", __name__, *sys.argv[1:])

@app.task
def pid() -> int:
    return os.getpid()

def main() -> None:
    try:
        with app.workers(1, executor="process"):
            print(pid.name, pid.enqueue().result(20) != os.getpid())
    except Exception as error:
        print(type(error).__name__, error, flush=True)
"""
GUARDED = f"{SCRIPT}\nif __name__ == '__main__':\n    main()\n"


def run_python(folder: Path, *command: str) -> str:
    """What a program prints."""
    env = {**os.environ, "PYTHONPATH": str(Path(ulak.__file__).parents[1])}
    argv = [sys.executable, *command]
    done = subprocess.run(
        argv, cwd=folder, env=env, capture_output=True, text=True, check=False, timeout=WAIT_S
    )
    return done.stdout + done.stderr


@pytest.mark.parametrize(
    ("command", "module"),
    [(["hello.py"], "hello"), (["-m", "hello"], "hello"), (["-m", "pack.hello"], "pack.hello")],
)
def test_a_program_is_imported_as_its_file_is_named(tmp_path: Path, command: list[str], module: str) -> None:
    write(tmp_path / "hello.py", GUARDED)
    write(tmp_path / "pack/hello.py", GUARDED)
    printed = run_python(tmp_path, *command, "--its-own").splitlines()
    assert printed == [f"imported as {name} --its-own" for name in ("__main__", module)] + ["hello.pid True"]


def test_a_program_in_another_folder_is_found_too(tmp_path: Path) -> None:
    write(tmp_path / "programs/hello.py", GUARDED)
    assert "hello.pid True" in run_python(tmp_path, "programs/hello.py")


def test_a_program_that_starts_its_pool_wherever_it_is_imported_is_told_how_not_to(tmp_path: Path) -> None:
    write(tmp_path / "hello.py", f"{SCRIPT}\nmain()\n")
    printed = run_python(tmp_path, "hello.py")
    assert "workers are started where the App is imported" in printed
    # Nobody but the program itself.
    assert printed.count('put what only the program does under: if __name__ == "__main__":') == 1


@pytest.mark.parametrize("command", [["-m", "pack"], ["pack"], ["-c", GUARDED], ["my.hello.py"]])
def test_a_program_that_cannot_be_imported_is_refused(tmp_path: Path, command: list[str]) -> None:
    write(tmp_path / "pack/__main__.py", GUARDED)
    write(tmp_path / "my.hello.py", GUARDED)
    printed = run_python(tmp_path, *command)
    assert "ArgumentError executor='process' imports the App anew" in printed
    assert "define it in a module of its own, and import that" in printed


def test_a_program_called_like_another_module_is_told_to_be_renamed(tmp_path: Path) -> None:
    write(tmp_path / "a/hello.py", "")
    code = f"import sys\nsys.path.insert(0, {str(tmp_path / 'a')!r})\n{GUARDED}"
    write(tmp_path / "hello.py", code)
    assert "'hello' is the name of another module" in run_python(tmp_path, "hello.py")


# Loading it


def test_a_module_that_cannot_be_imported_again_is_told_with_its_reason(folder: Path, monkeypatch) -> None:
    write(
        folder / "shop.py",
        SHOP
        + """
    if "BREAK" in os.environ:
        raise KeyError("no such setting")
    """,
    )
    app = imported("shop")
    monkeypatch.setenv("BREAK", "yes")
    said = refused(app)
    assert "executor='process' cannot run shop:app: importing shop raised KeyError: 'no such setting'" in said
    assert 'shop.py", line ' in said
    monkeypatch.delenv("BREAK")
    assert ran_in(app, "shop.pid") != os.getpid()


@pytest.mark.parametrize(
    ("act", "said"),
    [
        ("sys.exit(3)", "importing shop raised SystemExit: 3"),
        ("os._exit(3)", "its process ended with status 3 before it had the App; what it wrote to stderr"),
        ("os.abort()", "its process ended by SIGABRT before it had the App"),
        (
            "import nowhere_at_all",
            "importing shop raised ModuleNotFoundError: No module named 'nowhere_at_all'",
        ),
        ("del app", "shop:app is no App there, but NoneType"),
        ("app = 3", "shop:app is no App there, but int"),
        ("app = App('memory://')", "importing shop makes no task shop.pid"),
        ("app.open()", "has opened its store; set its url before the first use"),
        ("app.workers()", "workers are started where the App is imported"),
    ],
)
def test_what_goes_wrong_in_a_process_is_said_where_the_pool_starts(folder, monkeypatch, act, said) -> None:
    write(folder / "shop.py", f"{SHOP}\n    import sys\n    if 'BREAK' in os.environ:\n        {act}\n")
    app = imported("shop")
    monkeypatch.setenv("BREAK", "yes")
    assert said in refused(app)


def test_tasks_that_no_import_makes_are_named(folder: Path) -> None:
    write(folder / "shop.py", SHOP)
    app = imported("shop")

    def make() -> None:
        for number in range(7):
            app.task(name=f"t{number}")(lambda: None)

    make.__module__ = "shop"
    make()
    said = refused(app)
    assert "makes no task t0, t1, t2, t3, t4 and 2 more" in said
    assert "define tasks at the level of a module" in said


def test_a_broken_deploy_keeps_jobs_unspent_until_it_is_mended(folder: Path, monkeypatch, caplog) -> None:
    monkeypatch.setattr(children, "RESTARTS", Backoff(base=0.05, cap=0.05))
    write(folder / "shop.py", SHOP)
    app = imported("shop")
    with app, app.workers(2, executor="process") as pool:
        pid = app.find("shop.pid").enqueue().result(WAIT_S)
        write(folder / "shop.py", "raise RuntimeError('half a deploy')")
        os.kill(pid, 9)
        eventually(lambda: not is_alive(pid))
        job = app.find("shop.pid").using(max_attempts=1).enqueue()
        eventually(lambda: len(job.info().history) >= 3)
        assert {attempt.cause for attempt in job.info().history} == {"release"}
        assert "importing shop raised RuntimeError: half a deploy" in job.info().history[0].error.text
        write(folder / "shop.py", SHOP)
        assert job.result(WAIT_S) != pid
        assert (pool.size, pool.metrics().failed) == (2, 0)
    assert f"process {pid} of shop:app ended by SIGKILL, while it had no job" in caplog.text
    assert "no process can run shop:app, and jobs wait; the next try comes in 0.05 s" in caplog.text


def broken(folder: Path, code: str = "") -> Children:
    """What runs the jobs of an App, which no process can load any more; on a clock of the test's."""
    write(folder / "shop.py", SHOP)
    app = imported("shop")
    runs = Children(app._handler(ManualClock()), start_of(app, None))
    runs.open()
    write(folder / "shop.py", f"open('tries', 'a').write('.')\n{code}\nraise RuntimeError('half a deploy')")
    return runs


def tries(folder: Path) -> int:
    return len((folder / "tries").read_text())


def test_after_a_start_that_came_to_nothing_the_next_one_waits_longer_each_time(folder: Path) -> None:
    runs = broken(folder)
    clock = runs._clock
    assert isinstance(clock, ManualClock)
    with pytest.raises(children._NotStarted, match="RuntimeError: half a deploy"):
        runs._begin()
    for nth, (delay_s, then_s) in enumerate([(0.2, 0.4), (0.4, 0.8), (0.8, 1.6)], start=1):
        waiting = Running(runs._begin)
        # The waiter, and the thread that watches the processes.
        eventually(lambda: clock.sleepers == 2)
        clock.advance(delay_s * 0.9)
        assert (tries(folder), waiting.is_over) == (nth, False)
        clock.advance(delay_s * 0.2)
        with pytest.raises(children._NotStarted) as caught:
            waiting.result()
        assert (caught.value.delay_s, tries(folder)) == (then_s, nth + 1)
    runs.close()


def test_starts_that_come_to_nothing_together_count_as_one_and_are_told_once(folder, caplog) -> None:
    with door() as gate:
        runs = broken(folder, f"from tests.support.doors import knock\nknock({gate.place!r})")
        both = [Running(runs._begin) for _ in range(2)]
        for guest in [gate.guest(), gate.guest()]:
            guest.let_go()
        for begin in both:
            with pytest.raises(children._NotStarted):
                begin.result()
    assert runs._failures == 1
    assert caplog.text.count("no process can run shop:app, and jobs wait; the next try comes in 0.2 s") == 1
    # Whoever waits for the next try learns of the end.
    waiting = Running(runs._begin)
    runs.close()
    with pytest.raises(children._Halted):
        waiting.result()
    assert tries(folder) == 2


def test_a_stop_waits_for_no_process_that_is_still_starting(folder: Path, monkeypatch) -> None:
    write(
        folder / "shop.py",
        SHOP
        + """
    from tests.support.doors import knock

    @app.task
    def stand(place: str) -> None:
        knock(place)

    if "HOLD" in os.environ:
        knock(os.environ["HOLD"], "starting")
    """,
    )
    app = imported("shop")
    with app, door() as gate, app.workers(2, executor="process", grace=WAIT_S) as pool:
        jobs = [app.find("shop.stand").enqueue(gate.place)]
        guests = [gate.guest()]
        monkeypatch.setenv("HOLD", gate.place)
        jobs.append(app.find("shop.stand").enqueue(gate.place))
        guests.append(gate.guest())
        assert guests[1].said == "starting"
        seen: list[Any] = []
        app.on(lambda event: seen.append((event.job_id, type(event), is_alive(guests[event.job_id - 1].pid))))
        assert pool.shutdown(0).released == 2
        assert sorted(seen) == [(job.id, events.Returned, False) for job in jobs]
        assert [job.info().attempt for job in jobs] == [0, 0]


# What does not go together


def test_a_store_that_other_processes_cannot_open_is_refused(folder: Path) -> None:
    write(folder / "shop.py", SHOP)
    __import__("shop")
    with sys.modules["shop"].app as app, pytest.raises(ArgumentError) as caught:
        app.workers(executor="process")
    assert "needs a store that other processes can open, such as sqlite:///jobs.db" in str(caught.value)
    assert "this one is memory://" in str(caught.value)


def test_kill_after_without_processes_is_refused_when_the_pool_is_made() -> None:
    app = App()
    app.task(name="a", timeout=3, kill_after=2)(lambda: None)
    for executor in (None, "thread"):
        with app, pytest.raises(ArgumentError, match="kill_after of a: only a process can be killed"):
            app.workers(executor=executor)


def test_the_executor_has_to_fit_the_tasks() -> None:
    app = App()
    app.task(name="plain")(lambda: None)
    with app:
        with pytest.raises(ArgumentError, match="executor is one of thread, process, async; got 'fork'"):
            app.workers(executor="fork")  # type: ignore[arg-type]
        with pytest.raises(
            ArgumentError, match="tasks that are all async def; a def would block the loop: plain"
        ):
            app.workers(executor="async")
        with pytest.raises(ArgumentError, match="target is what processes import"):
            app.workers(executor="thread", target="shop:app")


def test_async_tasks_run_on_threads_too_if_that_is_asked_for() -> None:
    app = App()

    @app.task(name="a")
    async def thread() -> int:
        return 3

    for executor, carriers in (("thread", 2), ("async", 0), (None, 0)):
        with app, app.workers(2, executor=executor) as pool:  # type: ignore[arg-type]
            assert thread.enqueue().result(WAIT_S) == 3
            assert len(getattr(pool._hands, "_threads", ())) == carriers


def test_in_a_users_tests_threads_stand_for_processes(folder: Path) -> None:
    write(
        folder / "shop.py", f"{SHOP}\n    @app.task(timeout=3, kill_after=2)\n    def hang() -> None: ...\n"
    )
    app = imported("shop")
    with Jobs() as jobs:
        app.find("shop.hang").enqueue()
        jobs.drain()
        assert [job.state for job in jobs.enqueued()] == ["succeeded"]
        with app.workers(1, executor="process"):
            assert app.find("shop.pid").enqueue().result(WAIT_S) == os.getpid()
