"""What other job queues call it, and what it is called here: for errors about names that there are not."""

from __future__ import annotations

from collections.abc import Mapping

TASK: Mapping[str, str] = {
    "delay": "{task}.enqueue(...)",
    "apply_async": "{task}.using(delay=...).enqueue(...)",
    "send": "{task}.enqueue(...)",
    "send_with_options": "{task}.using(delay=...).enqueue(...)",
    "schedule": "{task}.using(delay=...).enqueue(...)",
    "enqueue_in": "{task}.using(delay=...).enqueue(...)",
    "enqueue_at": "{task}.using(run_at=...).enqueue(...)",
    "defer": "{task}.enqueue(...)",
    "defer_async": "await {task}.aenqueue(...)",
    "configure": "{task}.using(...)",
    "options": "{task}.using(...)",
    "kiq": "await {task}.aenqueue(...)",
    "kicker": "{task}.using(...)",
    "s": "{task}.call(...), for {task}.enqueue_many",
    "si": "{task}.call(...), for {task}.enqueue_many",
    "signature": "{task}.call(...), for {task}.enqueue_many",
    "message": "{task}.call(...), for {task}.enqueue_many",
    "apply": "{task}(...), which runs it here and now",
    "call_local": "{task}(...), which runs it here and now",
    "fn": "{task}.function",
    "retry": "raise ulak.Retry(after=...), in the task",
    "update_state": "ctx.progress(...), of the task's Context",
    "request": "current_job(), or a parameter annotated Context",
}
"""Of a task, or of its calls with options."""

APP: Mapping[str, str] = {
    "enqueue": "task.enqueue(...), of the task",
    "send_task": "app.find(name).enqueue(...)",
    "delay": "task.enqueue(...), of the task",
    "defer": "task.enqueue(...), of the task",
    "submit": "task.enqueue(...), of the task",
    "actor": "@app.task",
    "job": "@app.task, or task.job(id) for one that was enqueued",
    "register": "@app.task",
    "periodic_task": "@app.cron(...) or @app.every(...)",
    "periodic": "@app.cron(...) or @app.every(...)",
    "schedule": "@app.cron(...) or @app.every(...)",
    "run": "with app.workers():, or ulak work module:app",
    "start": "with app.workers():, or ulak work module:app",
    "work": "with app.workers():, or ulak work module:app",
    "worker": "with app.workers():, or ulak work module:app",
    "run_worker": "with app.workers():, or ulak work module:app",
    "worker_main": "with app.workers():, or ulak work module:app",
    "middleware": "@app.around, for what goes on around each job; app.on, for events",
    "counts": "app.queue(name).counts()",
    "pause": "app.queue(name).pause()",
    "purge": "app.queue(name).delete(...)",
}
"""Of an App."""


def no_attribute(owner: object, name: str, known_here: Mapping[str, str], task: str = "") -> AttributeError:
    """The error about a name that an object does not have, with what it is called here, if that is known."""
    text = f"{type(owner).__name__!r} object has no attribute {name!r}"
    if (here := known_here.get(name)) is not None:
        text += f"; it is {here.format(task=task)} here"
    return AttributeError(text, name=name, obj=owner)
