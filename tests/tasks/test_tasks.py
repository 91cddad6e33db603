"""What a decorated function is: its name, its options, and that it is still a function."""

from __future__ import annotations

import asyncio
import functools
import inspect
import logging
import os
import pickle
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import ulak
import ulak.errors
from ulak import App, ArgumentError, Backoff, ConfigError, Context, Task, UlakError

app = App()


@app.task
def welcome(email: str, *, loud: bool = False) -> str:
    """Greets."""
    return f"welcome, {email}{'!' * loud}"


@app.task
async def awelcome(email: str) -> str:
    return f"welcome, {email}"


class Holder:
    @app.task
    @staticmethod
    def held(n: int) -> int:
        return n + 1


def test_a_task_is_still_its_function() -> None:
    assert welcome("ada", loud=True) == "welcome, ada!"
    assert (welcome.__name__, welcome.__doc__, welcome.__module__) == ("welcome", "Greets.", __name__)
    assert list(inspect.signature(welcome).parameters) == ["email", "loud"]
    assert Holder.held(1) == Holder().held(1) == 2
    coroutine = awelcome("ada")
    assert inspect.iscoroutine(coroutine)
    coroutine.close()


def test_making_an_app_and_its_tasks_opens_nothing(tmp_path: Path) -> None:
    file = App(f"sqlite:///{tmp_path / 'jobs.db'}", queues=["mail"])

    @file.task(queue="slow")
    def send() -> None: ...

    send.using(delay=3)
    assert file.queue("mail").name == "mail"
    assert file.queues == ("mail", "slow")
    file.close()
    assert list(tmp_path.iterdir()) == []


def test_a_task_is_named_after_its_file_and_its_own_name() -> None:
    assert welcome.name == "test_tasks.welcome"
    assert Holder.held.name == "test_tasks.Holder.held"
    other = App()

    @other.task
    def inner() -> None: ...

    assert inner.name == "test_tasks.test_a_task_is_named_after_its_file_and_its_own_name.inner"
    assert app.tasks["test_tasks.welcome"] is welcome


@pytest.mark.parametrize("name", ["mail.welcome", "A", "9.x-y_z"])
def test_a_name_may_be_given(name: str) -> None:
    assert App().task(name=name)(lambda: None).name == name


@pytest.mark.parametrize("name", ["", "_x", "a b", "a" * 129, "é", 3])
def test_a_name_that_cannot_be_is_refused(name: Any) -> None:
    with pytest.raises(ArgumentError, match="a task's name must match"):
        App().task(name=name)(lambda: None)


def test_a_function_whose_own_name_cannot_be_a_tasks_has_to_be_given_one() -> None:
    with pytest.raises(ArgumentError, match="give it one that stays"):
        App().task(lambda: None)


PROGRAM = """
from ulak import App
app = App("memory://")
@app.task
def welcome(email: str) -> str: ...
print(welcome.name)
"""


@pytest.mark.parametrize(
    ("command", "name"),
    [
        (["hello.py"], "hello.welcome"),
        (["-m", "hello"], "hello.welcome"),
        (["-m", "package.hello"], "hello.welcome"),
        (["-m", "package"], "package.welcome"),
        (["folder"], "folder.welcome"),
        (["-c", "import package.hello"], "hello.welcome"),
        (["-c", PROGRAM], "main.welcome"),
    ],
)
def test_a_function_of_the_main_program_is_named_as_if_it_were_imported(command, name, tmp_path) -> None:
    (tmp_path / "hello.py").write_text(PROGRAM)
    for folder in ("package", "folder"):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "__main__.py").write_text(PROGRAM)
    (tmp_path / "package/__init__.py").touch()
    (tmp_path / "package/hello.py").write_text(PROGRAM)
    assert said_by(command, tmp_path) == [name]


def said_by(command: list[str], folder: Path) -> list[str]:
    """The words that a Python program prints."""
    env = {**os.environ, "PYTHONPATH": str(Path(ulak.__file__).parents[1])}
    command = [sys.executable, *command]
    done = subprocess.run(command, cwd=folder, env=env, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout.split()


def test_a_module_that_is_both_the_program_and_imported_has_two_apps_and_no_clash(tmp_path: Path) -> None:
    (tmp_path / "hello.py").write_text(f"{PROGRAM}\nif __name__ == '__main__':\n    import hello\n")
    assert said_by(["hello.py"], tmp_path) == ["hello.welcome", "hello.welcome"]


def test_two_tasks_of_one_name_are_refused_when_the_second_is_made() -> None:
    mine = App()
    mine.task(name="a", aliases=["b"])(lambda: None)
    for settings in ({"name": "a"}, {"name": "b"}, {"name": "c", "aliases": ["a"]}):
        with pytest.raises(ArgumentError, match=r"is the name of another task, <Task a\(\)>"):
            mine.task(**settings)(lambda: None)
    assert list(mine.tasks) == ["a"]


def test_a_task_is_found_by_its_name_and_its_aliases() -> None:
    mine = App()
    task = mine.task(name="mail.send", aliases=("mail.old",))(lambda: None)
    assert mine.find("mail.send") is mine.find("mail.old") is task
    assert list(mine.tasks) == ["mail.send"]
    with pytest.raises(ArgumentError, match=r"no task 'mail.sent'; did you mean 'mail.send'\?"):
        mine.find("mail.sent")


def refused(make: Any, **settings: Any) -> str:
    with pytest.raises(ArgumentError) as caught:
        App().task(**{"name": "t", **settings})(make)
    return str(caught.value)


def test_what_cannot_be_a_task_is_refused_with_what_to_do() -> None:
    def yields(n: int) -> Any:
        yield n

    async def ayields(n: int) -> Any:
        yield n

    class Mailer:
        def send(self, to: str) -> None: ...

        @classmethod
        def make(cls) -> None: ...

    assert "yields, so its calls would never run" in refused(yields)
    assert "yields, so its calls would never run" in refused(ayields)
    assert "yields, so its calls would never run" in refused(functools.partial(yields, 1))
    assert "is a method, and its 'self' cannot travel" in refused(Mailer.send)
    assert "a task is a def or async def, got type" in refused(Mailer)
    assert "is a task already" in refused(welcome)
    with pytest.raises(ArgumentError, match=r"settings go by name: @app.task\(name='mail.welcome'\)"):
        App().task("mail.welcome")  # type: ignore[call-overload]
    with pytest.raises(ArgumentError, match=r"app\.task takes a function, got classmethod"):
        App().task(Mailer.__dict__["make"])


def test_a_bound_method_and_a_partial_may_be_tasks() -> None:
    class Mailer:
        def send(self, to: str) -> str:
            return f"sent to {to}"

    def add(a: int, b: int) -> int:
        return a + b

    mine = App()
    bound = mine.task(name="a")(Mailer().send)
    part = mine.task(name="b")(functools.partial(add, 3))
    with mine.workers(1):
        assert bound.enqueue("ada").result(5) == "sent to ada"
        assert bound("ada") == "sent to ada"
        assert part.enqueue(b=4).result(5) == 7


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"max_retries": 3}, "app.task has no option 'max_retries'; it is max_attempts=..., which"),
        ({"time_out": 3}, "app.task has no option 'time_out'; did you mean 'timeout'?"),
        ({"zzz": 3}, "app.task has no option 'zzz'; there are aliases, backoff,"),
        ({"timeout": 0}, "timeout must be more than 0"),
        ({"timeout": b"1m"}, "timeout must be seconds"),
        ({"timeout": "soon"}, "timeout: cannot read 'soon' as a duration"),
        ({"delay": 3}, "app.task has no option 'delay': it is a job's, task.using(delay=...)"),
        ({"max_attempts": -1}, "max_attempts counts the first run"),
        ({"max_attempts": 0}, "max_attempts counts the first run"),
        ({"queue": ""}, "a queue's name must match"),
        ({"queue": "Mail"}, "a queue's name must match"),
        ({"priority": "high"}, "priority must be an int"),
        ({"backoff": 3}, "backoff is a Backoff, or a function of (attempt, error)"),
        ({"backoff": Backoff}, "backoff is a Backoff, or a function"),
        ({"give_up_on": (ValueError, 3)}, "give_up_on is a tuple of exception classes, and has int"),
        ({"give_up_on": [ValueError]}, "give_up_on is a tuple of exception classes, and has list"),
        ({"retry_on": int}, "retry_on is a tuple of exception classes, and has int"),
        ({"aliases": "old"}, "aliases is a list of names, got str"),
        ({"expires": -3}, "expires must be from 0"),
    ],
)
def test_g4_a_setting_that_there_is_not_or_cannot_be_is_refused_with_the_nearest(settings, said) -> None:
    assert said in refused(lambda: None, **settings)


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"dealy": 3}, "t.using has no option 'dealy'; did you mean 'delay'?"),
        ({"eta": 3}, "t.using has no option 'eta'; it is run_at=... here"),
        ({"xyz": 3}, "t.using has no option 'xyz'; there are"),
        ({"delay": -1}, "delay must be from 0"),
        ({"queue": "mial"}, "the App has no queue 'mial'; did you mean 'mail'?"),
        ({"queue": 3}, "the App has no queue that is int"),
        ({"wait": "x"}, "wait: cannot read 'x' as a duration"),
        ({"timeout": 3}, "how long an enqueue waits for room is using(wait=...)"),
    ],
)
def test_g4_an_option_that_there_is_not_or_cannot_be_is_refused_with_the_nearest(options, said) -> None:
    mine = App(queues=["mail", "slow"])
    task = mine.task(name="t")(lambda: None)
    with pytest.raises(ArgumentError) as caught:
        task.using(**options)
    assert said in str(caught.value)


def test_g4_a_misspelt_argument_of_an_app_is_no_argument() -> None:
    with pytest.raises(ArgumentError, match="App has no option 'max_atempts'; did you mean 'max_attempts'"):
        App(max_atempts=3)  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match="no store for"):
        App("redis://host")
    with pytest.raises(ArgumentError, match="a queue's name must match"):
        App(queues=["Mail"])
    with pytest.raises(ArgumentError, match="queues is a list of names"):
        App(queues="mail")


def test_the_queues_of_an_app_are_those_it_is_given_and_those_of_its_tasks() -> None:
    mine = App(queues=["mail", "slow"])
    first = mine.task(name="a")(lambda: None)
    other = mine.task(name="b", queue="other")(lambda: None)
    assert (first.queue, other.queue) == ("mail", "other")
    assert mine.queues == ("mail", "slow", "other")
    bare = App()
    assert bare.task(name="a")(lambda: None).queue == "default"
    assert bare.queues == ("default",)
    with pytest.raises(ArgumentError, match=r"the App has no queue 'defualt'; did you mean 'default'\?"):
        bare.queue("defualt")
    with pytest.raises(ArgumentError, match=r"the App has no queue 'sl0w'; did you mean 'slow'\?"):
        mine.workers(queues=["sl0w"])


def test_an_app_may_bound_its_queues() -> None:
    mine = App(queues={"mail": 1, "slow": None})
    mine.task(name="a")(lambda: None).enqueue()
    assert mine.queue("mail").try_enqueue(1).__class__.__name__ == "Full"
    assert mine.queue("slow").settings().capacity is None
    mine.close()


@pytest.mark.parametrize("none", [[], {}])
def test_no_queues_at_all_are_not_taken_for_all(none) -> None:
    app = App()
    app.task(name="t")(print)
    with pytest.raises(ArgumentError, match="queues is a list of names or a mapping to weights"):
        app.workers(queues=none)


def test_the_timeout_of_a_def_task_says_that_it_is_cooperative(caplog) -> None:
    caplog.set_level(logging.INFO, "ulak")
    App().task(name="a", timeout=3)(lambda: None)
    assert "a thread cannot be stopped, so its timeout of 3 s counts when it returns" in caplog.text
    caplog.clear()

    async def quick() -> None: ...

    App().task(name="b", timeout=3)(quick)
    assert caplog.text == ""


def test_a_plain_call_of_a_task_with_a_context_needs_a_job(make_app) -> None:
    mine = make_app()

    @mine.task
    def first(ctx: Context, n: int) -> tuple[int, int]:
        return ctx.id, n

    @mine.task
    def named(n: int, *, job: Context | None = None) -> tuple[int | None, int]:
        return None if job is None else job.id, n

    @mine.task
    def outer() -> list[Any]:
        return [list(first(1)), list(named(2)), list(named(3, job=None))]

    with pytest.raises(ArgumentError, match=r"first.function\(ctx, ...\) with a Context of yours"):
        first(1)
    assert named(1) == (None, 1)
    with mine.workers(1):
        job = outer.enqueue()
        assert job.result(10) == [[job.id, 1], [job.id, 2], [None, 3]]


def test_what_a_job_leaves_behind_on_its_loop_has_no_context_any_more(make_app) -> None:
    mine = make_app()
    ended = asyncio.Event()
    said: list[Any] = []

    @mine.task
    async def first(ctx: Context) -> None: ...

    @mine.task
    async def outer() -> None:
        async def later() -> None:
            await ended.wait()
            try:
                await first()
            except ArgumentError as error:
                said.append(str(error))

        said.append(asyncio.create_task(later()))

    async def main() -> None:
        async with mine.aworkers(1):
            await (await outer.aenqueue())
            ended.set()
            await said[0]

    asyncio.run(main())
    assert "no job is running here" in said[1]


def test_attributes_of_a_function_do_not_stand_in_the_way(make_app) -> None:
    def f() -> int:
        return 3

    f.enqueue = f.name = f.__wrapped = "mine"  # type: ignore[attr-defined]
    task = make_app().task(name="f")(f)
    assert task.name == "f"
    assert task.enqueue().task == "f"


def test_a_task_travels_as_its_function_does() -> None:
    assert pickle.loads(pickle.dumps(welcome)) is welcome
    with pytest.raises(TypeError, match="an App cannot be copied or pickled"):
        pickle.dumps(app)


def test_reprs_say_what_it_is() -> None:
    assert repr(welcome) == "<Task test_tasks.welcome(email: str, loud: bool = ...)>"
    assert repr(App("memory://x")) == "App('memory://x', 0 tasks)"
    assert isinstance(welcome, Task)


def test_errors_have_codes_of_their_own() -> None:
    named = vars(ulak.errors).values()
    kinds = [kind for kind in named if isinstance(kind, type) and issubclass(kind, UlakError)]
    codes = [kind.code for kind in kinds if "code" in vars(kind)]
    assert len(set(codes)) == len(codes)
