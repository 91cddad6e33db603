"""What `ulak enqueue` does: a call of an App's task, or a payload for a queue."""

from __future__ import annotations

import argparse
import sys
from typing import Any, NamedTuple

import msgspec

from ulak import codec
from ulak.app import App
from ulak.checks import draft_of
from ulak.cli.enqueue_values import values_of
from ulak.cli.inspect_open import finding, opened, settings_of
from ulak.cli.inspect_table import print_json
from ulak.cli.output import say, visible
from ulak.cli.payloads import read_json
from ulak.cli.target import load_app
from ulak.core.job import Duplicate, Full
from ulak.core.store import Store
from ulak.errors import ConfigError, QueueFull
from ulak.local import joined_store
from ulak.newjob import NewJob
from ulak.shape import encode_json
from ulak.task import Task, runnable_of

DONE, NOT_DONE = 0, 1

MAX_ATTEMPTS = 5
"""How often a payload is tried, as `Queue` has it."""

_SEE = "see ulak enqueue --help"


class Enqueued(NamedTuple):
    """A job that was stored, or that stands for its key already."""

    id: int
    queue: str
    task: str | None
    existed: bool


def run(args: argparse.Namespace) -> int:
    """Enqueue it; 0, or 1 if a job stands for its key already."""
    if args.delay is not None and args.at is not None:
        raise ConfigError(f"give --in or --at, not both\n  {_SEE}")
    return finding(_run, args)


def _run(args: argparse.Namespace) -> int:
    if args.payload is None:
        return _call(args)
    if args.wait is not None:
        raise ConfigError(f"--wait is for a task; a payload alone has no result\n  {_SEE}")
    if args.words:
        raise ConfigError(f"give an App and a task, or --payload, not both\n  {_SEE}")
    if args.queue is None:
        raise ConfigError(f"--payload needs a queue: -q mail\n  {_SEE}")
    body = read_json(args.payload)
    with opened(args) as edge:
        done = put_payload(edge.store, args.queue, body, NewJob(None, args.priority or 0, **_given(args)))
    return _tell(done, as_json=args.json)


def _given(args: argparse.Namespace) -> dict[str, Any]:
    """The options that are the same for tasks and payloads."""
    options = {"delay": args.delay, "run_at": args.at}
    options |= {"unique_key": args.unique, "idempotency_key": args.idempotency}
    return {name: value for name, value in options.items() if value is not None}


def put_payload(store: Store, queue: str, payload: bytes, new: NewJob) -> Enqueued:
    """Store a job with this JSON as its payload. Raises Missing for an unknown queue, QueueFull."""
    settings_of(store, queue)
    body, tag = codec.encode(codec.decode(payload, "json"))
    answer = store.add(queue, [draft_of(new, body, tag, max_attempts=MAX_ATTEMPTS)])
    if isinstance(answer, Full):
        raise _full(queue)
    return Enqueued(int(answer[0]), queue, None, isinstance(answer[0], Duplicate))


def _full(queue: str) -> QueueFull:
    return QueueFull(
        f"queue {queue!r} holds as many open jobs as it may; nothing was stored\n"
        f"  try again later, or raise its capacity: ulak queue set {queue} --capacity N"
    )


def _call(args: argparse.Namespace) -> int:
    if len(args.words) < 2:
        raise ConfigError(
            f"name an App and a task: ulak enqueue shop:app shop.send; or give --payload\n  {_SEE}"
        )
    target, name, *words = args.words
    app = load_app(target)
    if args.url is not None:
        app.url = args.url
    _refuse_memory(app, target)
    task = task_of(app, name)
    by_place, by_name = values_of(runnable_of(task).parameters, words)
    given = _given(args)
    given |= {} if args.priority is None else {"priority": args.priority}
    given |= {} if args.queue is None else {"queue": args.queue}
    # No wait for room: a script decides itself when to try again.
    calls = task.using(**given, wait=0)
    with app:
        try:
            job = calls.enqueue(*by_place, **by_name)
        except QueueFull:
            raise _full(calls.queue) from None
        done = Enqueued(job.id, job.queue, job.task, job.existed)
        if args.wait is None:
            return _tell(done, as_json=args.json)
        if not args.json:
            _tell(done, as_json=False)
        result = msgspec.json.decode(encode_json(job.result(args.wait)))
    print_json(done._asdict() | {"result": result} if args.json else result, to=sys.stdout)
    return DONE


def _refuse_memory(app: App, target: str) -> None:
    """What is in memory only its own process sees: one that has it open, or the job is gone at once."""
    if not app.url.startswith("memory:"):
        return
    joined = joined_store(app.url)
    if joined is None:
        raise ConfigError(
            f"{target} is on {app.url}, and what is in memory only its own process sees\n"
            "  name a file: --url sqlite:///jobs.db"
        )
    joined.close_handle()


def task_of(app: App, name: str) -> Task[..., Any]:
    """The task of this name, or the only one whose name ends so. Raises ArgumentError."""
    ends = [task for full, task in app.tasks.items() if full.endswith(f".{name}")]
    return ends[0] if len(ends) == 1 and name not in app.tasks else app.find(name)


def _tell(done: Enqueued, *, as_json: bool) -> int:
    if as_json:
        print_json(done._asdict(), to=sys.stdout)
    else:
        say(str(done.id), to=sys.stdout)
        if done.existed:
            say(f"job {done.id} stands for this key: nothing new was enqueued", to=sys.stderr)
        else:
            what = f"job {done.id} of queue {done.queue}{f': {done.task}' if done.task else ''}"
            say(visible(f"{what}; ulak show {done.id} tells how it goes"), to=sys.stderr)
    return NOT_DONE if done.existed else DONE
