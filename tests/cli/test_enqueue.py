"""`ulak enqueue`: words of a command line become the arguments of a call; a payload goes to any store."""

from __future__ import annotations

import io
import itertools
import sys
from collections.abc import Iterator
from datetime import UTC, date, datetime
from pathlib import Path
from typing import Any

import pytest

from tests.cli.command import Run, read
from tests.cli.everywhere import url  # noqa: F401 - a fixture
from tests.support.modules import forgotten
from tests.support.waiting import WAIT_S
from ulak import App, JobInfo, Queue, Reject
from ulak.cli.enqueue_values import value_of, values_of
from ulak.errors import ArgumentError
from ulak.local import joined_store
from ulak.task import runnable_of

APP = """
from ulak import App

app = App("{url}", queues={{"default": None, "mail": 10}})

@app.task(priority=3)
def send(to: str, times: int = 1, *, urgent: bool = False) -> str:
    return f"sent to {{to}}"

@app.task
def resend(to: str) -> None: ...
"""
_numbers = itertools.count(1)


@pytest.fixture
def shop(
    url: str,  # noqa: F811 - the fixture
    mail: Queue,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> Iterator[str]:
    """An App of this name, on the store that `mail` is on too, as MODULE:NAME."""
    mail.counts()
    name = f"shop{next(_numbers)}"
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", sys.path.copy())
    monkeypatch.delenv("ULAK_URL", raising=False)
    (tmp_path / f"{name}.py").write_text(APP.format(url=url))
    with forgotten(tmp_path):
        yield f"{name}:app"


def stored(mail: Queue, queue: str = "default") -> list[JobInfo]:
    """What the App's store holds."""
    with Queue(mail.url, queue) as q:
        return q.jobs()


def test_a_call_is_enqueued_with_its_options(run: Run, mail: Queue, shop: str) -> None:
    task = f"{shop.partition(':')[0]}.send"
    options = ("--priority", 9, "--in", "5m", "--unique", "ada", "--idempotency", "once")
    done = run("enqueue", shop, task, "ada", "times=3", "urgent=true", *options)
    said = f"job 1 of queue default: {task}; ulak show 1 tells how it goes\n"
    assert done == (0, "1\n", said)
    (job,) = stored(mail)
    assert (job.task, job.payload) == (task, {"to": "ada", "times": 3, "urgent": True})
    assert (job.priority, job.unique_key, job.idempotency_key) == (9, "ada", "once")
    assert 295 < (job.run_at - job.created_at).total_seconds() < 305


def test_a_call_has_what_its_task_says_unless_it_is_told_otherwise(run: Run, mail: Queue, shop: str) -> None:
    assert run("enqueue", shop, "send", "to=a=b", "-q", "mail").status == 0
    (job,) = stored(mail, "mail")
    assert (job.payload["to"], job.priority) == ("a=b", 3)
    at = ("--at", "2096-01-31T09:00+01:00")
    answer = read(run, "enqueue", shop, "resend", "ada", *at)
    assert answer == {
        "id": 2,
        "queue": "default",
        "task": shop.partition(":")[0] + ".resend",
        "existed": False,
    }
    assert stored(mail)[0].run_at == datetime(2096, 1, 31, 8, tzinfo=UTC)


@pytest.mark.parametrize("option", ["--unique", "--idempotency"])
def test_a_key_that_is_taken_has_a_status_of_its_own_and_gives_the_id(
    run: Run, mail: Queue, shop: str, option: str
) -> None:
    taken = "job 1 stands for this key: nothing new was enqueued\n"
    for words in ((shop, "send", "ada"), ("--payload", "1", "-q", "mail", "-u", mail.url)):
        first = run("enqueue", *words, option, "ada")
        again = run("enqueue", *words, option, "ada")
        assert (first.status, again.status, again.out) == (0, 1, first.out)
        assert again.err == taken.replace("1", first.out.strip())
        assert read(run, "enqueue", *words, option, "ada", status=1)["existed"] is True
    assert len(stored(mail)) + len(stored(mail, "mail")) == 2


def test_the_result_can_be_waited_for(run: Run, mail: Queue, shop: str) -> None:
    app = App(mail.url, queues={"default": None, "mail": 10})
    name = shop.partition(":")[0]

    @app.task(name=f"{name}.send")
    def send(to: str, times: int = 1, *, urgent: bool = False) -> str:
        if times == 0:
            raise Reject("no times")
        return f"sent to {to}"

    with app, app.workers(1):
        done = run("enqueue", shop, "send", "to=ada", "--wait", f"{WAIT_S}s")
        assert (done.status, done.out) == (0, '1\n"sent to ada"\n')
        answer = read(run, "enqueue", shop, "send", "to=bob", "--wait", f"{WAIT_S}s")
        assert (answer["id"], answer["result"]) == (2, "sent to bob")
        done = run("enqueue", shop, "send", "to=ada", "times=0", "--wait", f"{WAIT_S}s")
        assert (done.status, done.out) == (1, "3\n")
        assert "no times" in done.err
    # Nobody works any more.
    done = run("enqueue", shop, "send", "to=ada", "--wait", "10ms")
    assert (done.status, done.out) == (75, "4\n")
    assert "error U112: job 4 has not ended " in done.err
    assert run("enqueue", "--payload", "1", "-q", "mail", "--wait", "1s").status == 2


def test_a_queue_without_room_has_a_status_of_its_own(run: Run, mail: Queue, shop: str) -> None:
    mail.enqueue_many(["x"] * 10)
    for words in ((shop, "send", "ada", "-q", "mail"), ("--payload", "1", "-q", "mail", "-u", mail.url)):
        done = run("enqueue", *words)
        assert (done.status, done.out) == (75, "")
        assert done.err == (
            "error U101: queue 'mail' holds as many open jobs as it may; nothing was stored\n"
            "  try again later, or raise its capacity: ulak queue set mail --capacity N\n"
        )
    assert mail.counts().open == 10


def test_a_payload_needs_no_app(run: Run, mail: Queue, monkeypatch: pytest.MonkeyPatch) -> None:
    mail.counts()
    asked = ("enqueue", "-q", "mail", "--payload")
    done = run(*asked, '{"to": ["ada", "é"]}', "--priority", 7)
    assert done == (0, "1\n", "job 1 of queue mail; ulak show 1 tells how it goes\n")
    assert run(*asked, '"text"').status == 0
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(b" [1, null] ")))
    assert read(run, *asked, "-") == {"id": 3, "queue": "mail", "task": None, "existed": False}
    first, second, third = mail.jobs()
    assert (first.payload, first.priority, first.codec) == ({"to": ["ada", "é"]}, 7, "json")
    assert (second.payload, second.codec) == ("text", "str")
    assert (third.payload, third.max_attempts) == ([1, None], 5)


def test_a_queue_that_is_not_there_is_not_made(run: Run, mail: Queue) -> None:
    mail.counts()
    done = run("enqueue", "-q", "mial", "--payload", "1")
    assert done == (3, "", "error: there is no queue 'mial'; there is mail\n")
    assert list(read(run, "counts")["queues"]) == ["mail"]


@pytest.mark.parametrize(
    ("argv", "said"),
    [
        (("send",), "to"),
        (("send", "ada", "times=many"), "argument 'times' cannot be read as int"),
        (("send", "ada", "tmes=1"), "tmes"),
        (("send", "to=a", "b"), "arguments by place come before those by name"),
        (("send", "to=a", "to=b"), "argument 'to' is given twice"),
        (("sned",), "send"),
        (("send", "a", "--in", "1s", "--at", "2096-01-31T09:00Z"), "give --in or --at, not both"),
        (("send", "a", "--at", "2096-01-31T09:00"), "--at: an instant is a date, a time and a zone"),
        (("send", "a", "-q", "letters"), "letters"),
        (("send", "a", "--payload", "1"), "give an App and a task, or --payload, not both"),
        (("send", "a", "--priority", str(2**63)), "priority"),
        ((), "name an App and a task"),
    ],
)
def test_what_cannot_be_is_refused_and_nothing_is_stored(
    run: Run, mail: Queue, shop: str, argv: tuple[str, ...], said: str
) -> None:
    done = run("enqueue", shop, *argv)
    assert (done.status, done.out) == (2, "")
    assert said in done.err
    assert len(done.err.splitlines()) <= 6
    assert stored(mail) == []


@pytest.mark.parametrize("payload", ["grace", "NaN", "[" * 40 + "]" * 40, f'"{"x" * 300_000}"'])
def test_a_payload_that_cannot_be_is_refused(run: Run, mail: Queue, payload: str) -> None:
    mail.counts()
    done = run("enqueue", "-q", "mail", "--payload", payload)
    assert (done.status, done.out) == (2, "")
    assert "--payload" in done.err
    assert "xxx" not in done.err
    assert run("enqueue", "--payload", "1").err.startswith("error U302: --payload needs a queue: -q mail\n")
    assert mail.counts().open == 0


def test_an_app_in_the_memory_of_nobody_is_refused(run: Run, shop: str) -> None:
    for url in ("memory://", "memory://of-nobody"):  # noqa: F402 - the fixture is not used here
        done = run("enqueue", shop, "send", "ada", "--url", url)
        assert done.status == 2
        assert "only its own process sees" in done.err


def test_a_store_in_memory_is_let_go_of(run: Run, mail: Queue, shop: str) -> None:
    assert run("enqueue", shop, "send", "ada").status == 0
    mail.close()
    assert joined_store(mail.url) is None


@pytest.mark.parametrize(
    ("text", "hint", "value"),
    [
        ("5", str, "5"),
        ("5", int, 5),
        ("5", float, 5.0),
        ("5", str | None, "5"),
        ("null", str | None, None),
        ("true", bool, True),
        ("2026-01-31", date, date(2026, 1, 31)),
        ("[1, 2]", list[int], [1, 2]),
        ('{"a": [1]}', Any, {"a": [1]}),
        ("ada", Any, "ada"),
    ],
)
def test_a_word_is_read_as_its_parameter_is_annotated(text: str, hint: Any, value: object) -> None:
    found = value_of(text, hint, "x")
    assert (found, type(found)) == (value, type(value))


def test_a_word_that_cannot_be_read_is_not_repeated() -> None:
    with pytest.raises(ArgumentError) as raised:
        value_of("secret", int, "n")
    assert "secret" not in str(raised.value)


def test_what_takes_the_rest_is_read_as_one_of_it() -> None:
    app = App()

    @app.task
    def total(first: str, *numbers: int, **named: float) -> None: ...

    parameters = runnable_of(total).parameters
    assert values_of(parameters, ["1", "2", "3", "x=4"]) == (["1", 2, 3], {"x": 4.0})
    assert values_of(parameters, ["a:b=1"]) == (["a:b=1"], {})
