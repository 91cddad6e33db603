"""Payloads, local variables and passwords are told nowhere, unless somebody asks for them: in no log, metric,
repr or output, at no level, however a job or a connection ends.
"""

from __future__ import annotations

import contextlib
import logging
import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from prometheus_client import CollectorRegistry, generate_latest

import ulak
from tests.cli.command import Done
from tests.cli.everywhere import url  # noqa: F401 - a fixture
from tests.support.waiting import WAIT_S, eventually
from ulak import App, Backoff, Context, Job, StorageUnavailable
from ulak.cli import logs, main
from ulak.cli.logs import FORMATS
from ulak.core.job import Draft
from ulak.core.store import Delete

PAYLOAD, LOCAL, RESULT, HEADER, PASSWORD = (
    f"hunter2-{name}" for name in ("payload", "local", "result", "header", "password")
)
SECRET = "hunter2-"

SHOWS = (
    *("counts", "ls", "ls --json", "tail --for 0s --last 99", "tail --for 0s --last 99 --json", "workers"),
    *("dead ls", "dead ls --json", "dead show {fingerprint}", "dead show {fingerprint} --json"),
    *("dead retry {fingerprint}", "dead drop {fingerprint}", "retry --state dead", "cancel -q default"),
    *("rm --state dead", "reprioritise -q default --priority 1", "pause default", "resume default"),
    *("queue set default --capacity 9", "prune --dry-run", "doctor", "doctor --json", "config"),
)


def swallow(done: threading.Event, name: str) -> Callable[..., Any]:
    """A task that holds secrets and ends as it is called."""

    def succeed(text: str) -> str:
        return RESULT

    def fail(text: str) -> None:
        local = LOCAL
        raise KeyError(f"no such user, of {len(local)} letters")

    def overrun(ctx: Context, text: str) -> None:
        local = LOCAL
        while not ctx.timed_out:
            done.wait(0.01)
        raise TimeoutError(f"after {len(local)} rounds")

    def lose(ctx: Context, text: str) -> str:
        _thieves[-1](ctx.id)
        return RESULT

    return locals()[name]  # type: ignore[no-any-return]


# What takes a job away from its worker.
_thieves: list[Callable[[int], object]] = []


class Told:
    """An App, and all that is told while its jobs end in every way."""

    def __init__(self, url: str) -> None:  # noqa: F811
        self.never = threading.Event()
        self.events: list[object] = []
        self.app = App(url, backoff=Backoff(base=0.001, cap=0.001))
        self.app.on(self.events.append)
        self.jobs: list[Job[Any]] = []
        self.registry = CollectorRegistry()
        ulak.metrics_of(self.app, self.registry)

    def task(self, name: str, **settings: Any) -> Any:
        return self.app.task(name=f"t.{name}", **settings)(swallow(self.never, name))

    def go(self) -> None:
        store = self.app.open().queue("default")._edge.store
        _thieves.append(lambda job_id: store.amend([job_id], Delete(), force=True))
        tasks = [
            self.task("succeed"),
            self.task("fail", max_attempts=2),
            self.task("overrun", max_attempts=1, timeout=0.05),
            self.task("lose"),
        ]
        with self.app.workers(2) as pool:
            self.jobs = [task.enqueue(PAYLOAD) for task in tasks]
            misfit = b'{"another": "' + PAYLOAD.encode() + b'"}'
            garbage = b"\xff" + PAYLOAD.encode()
            headers = {"authorization": HEADER}
            drafts = [Draft(body, "json", task="t.succeed", headers=headers) for body in (misfit, garbage)]
            store.add("default", drafts)
            counts = self.app.queue("default").counts
            eventually(lambda: (c := counts()).held == 1 and c.dead == 3 and c.acked == 1)
            eventually(lambda: pool.metrics().stale == 1)
            assert self.jobs[0].result(WAIT_S) == RESULT
            with pytest.raises(ulak.JobFailed) as failed:
                self.jobs[1].result(WAIT_S)
            self.events.append(str(failed.value))

    def shown(self) -> str:
        """The reprs of all there is to hold, and the metrics."""
        q = self.app.queue("default")
        q.enqueue(PAYLOAD)
        infos = [q.get(job_id) for job_id in range(1, 8)]
        leases = [lease := q.deliver(), lease and lease.work]
        things = [*self.events, *self.jobs, *infos, *leases, self.app, q, self.app.tasks, q.settings()]
        return "\n".join(map(repr, things)) + generate_latest(self.registry).decode()


@pytest.fixture
def told(url: str) -> Iterator[Told]:  # noqa: F811
    told = Told(url)
    with told.app:
        yield told
    _thieves.clear()


def test_however_jobs_end_no_log_metric_repr_or_output_has_what_is_theirs(
    told: Told,
    url: str,  # noqa: F811
    capsys: pytest.CaptureFixture[str],
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    caplog.set_level(logging.DEBUG)
    with contextlib.ExitStack() as shown:
        for log_format in FORMATS:
            shown.enter_context(logs.shown(log_format, logging.DEBUG))
        told.go()
    logged = capsys.readouterr()
    # Otherwise this would prove nothing.
    assert len(caplog.records) > 8
    assert logged.err.count("t.fail") > 8
    assert SECRET not in caplog.text
    assert SECRET not in logged.out + logged.err
    held = told.shown()
    assert "Lease(" in held
    assert SECRET not in held

    monkeypatch.setenv("ULAK_URL", url)

    def run(line: str) -> Done:
        status = main(line.split())
        return Done(status, *capsys.readouterr())

    fingerprint = run("dead ls").out.splitlines()[1].split()[0]
    lines = [*SHOWS, *(f"show {job_id}" for job_id in range(1, 7))]
    for line in lines:
        for level in ("", " -v", " -vv"):
            done = run(line.format(fingerprint=fingerprint) + level)
            assert done.status in {0, 1, 3}, (line, done)
            assert done.out or done.status
            assert SECRET not in done.out + done.err, line
    # What is asked for is shown.
    assert PAYLOAD in run("show 2 --payload").out


SERVER = f"postgresql://ada:{PASSWORD}@127.0.0.1:1/jobs?password={PASSWORD}"


def test_a_connection_that_fails_does_not_tell_its_password(
    capsys: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    caplog.set_level(logging.DEBUG)
    app = App(SERVER)
    task = app.task(name="t.succeed")(swallow(threading.Event(), "succeed"))
    with pytest.raises(StorageUnavailable) as caught:
        task.enqueue(PAYLOAD)
    said = [repr(app), str(caught.value), repr(caught.value), repr(task)]
    error: BaseException | None = caught.value
    while error is not None:
        said.append(f"{error!r} {error}")
        error = error.__cause__ or error.__context__
    assert SECRET not in "\n".join(said)
    monkeypatch.setenv("ULAK_URL", SERVER)
    for line in SHOWS:
        for level in ("", " -vv"):
            main([*line.format(fingerprint="e0000000").split(), *level.split()])
            printed = capsys.readouterr()
            assert printed.out + printed.err
            assert SECRET not in printed.out + printed.err, line
    assert SECRET not in caplog.text


def test_a_worker_and_a_demo_on_a_server_that_is_away_do_not_tell_its_password(
    capsys: pytest.CaptureFixture[str], tmp_path: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "away.py").write_text("import ulak\napp = ulak.App()\n@app.task\ndef f() -> None: ...\n")
    for line in ("work away:app -vv --drain", "schedules away:app -vv", "demo -vv", "enqueue away:app f -vv"):
        main([*line.split(), "-u", SERVER])
        printed = capsys.readouterr()
        assert printed.out + printed.err
        assert SECRET not in printed.out + printed.err, line


@pytest.mark.parametrize(
    "bad",
    [
        f"postgresql://ada:{PASSWORD}@127.0.0.1:nan/jobs",
        f"postgresql://ada:{PASSWORD}@/jobs?nonsense=1",
        f"mysql://ada:{PASSWORD}@host/jobs",
        f"sqlite://ada:{PASSWORD}@host/jobs.db",
        f"memory://ada:{PASSWORD}@host",
        f"ada:{PASSWORD}@host",
    ],
)
@pytest.mark.parametrize("level", [[], ["-vv"]])
def test_a_url_that_is_none_is_refused_without_its_password(
    bad: str, level: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    for line in ("counts", "doctor", "config", "demo"):
        main([line, "-u", bad, *level])
        printed = capsys.readouterr()
        assert printed.out + printed.err
        assert SECRET not in printed.out + printed.err, line
    try:
        said = repr(App(bad))
    except ulak.UlakError as error:
        said = f"{error!r} {error}"
    assert SECRET not in said
