"""Names of other job queues: what they are called here must be there."""

from __future__ import annotations

import inspect
import re

import pytest

from ulak import App, TaskOptions, TaskSettings, foreign

app = App()


@app.task
def task() -> None: ...


@pytest.mark.parametrize(("owner", "known"), [(task, foreign.TASK), (app, foreign.APP)], ids=["task", "app"])
def test_what_a_name_is_called_here_is_there_and_the_name_is_not(owner, known) -> None:
    named = {"task": task, "app": app}
    for name, here in known.items():
        assert not hasattr(owner, name), name
        for what, attribute in re.findall(r"\b(task|app)\.([a-z_]+)", here.format(task="task")):
            assert hasattr(named[what], attribute), here


@pytest.mark.parametrize(
    ("known", "takes"),
    [
        (foreign.OPTION, TaskOptions.__annotations__),
        (foreign.SETTING, TaskSettings.__annotations__),
        (foreign.APP_OPTION, inspect.signature(App).parameters),
    ],
    ids=["job", "task", "app"],
)
def test_what_an_option_is_called_here_is_taken_and_the_foreign_name_is_not(known, takes) -> None:
    for name, here in known.items():
        assert name not in takes, name
        if named := re.match(r"(\w+)=", here):
            assert named[1] in takes, here
