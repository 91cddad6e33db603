"""What other job queues call it, and what it is called here: for errors about names that there are not.

Attributes of a task and of an App; then options, each as it would be given here.
"""

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

OPTION: Mapping[str, str] = {
    **dict.fromkeys(("countdown", "schedule_in", "defer_by", "_defer_by"), "delay=..."),
    **dict.fromkeys(("eta", "run_after", "schedule_at", "defer_until", "_defer_until"), "run_at=..."),
    **dict.fromkeys(("queue_name", "_queue_name", "routing_key"), "queue=..."),
    **dict.fromkeys(("retries", "max_retries", "max_tries"), "max_attempts=..."),
    **dict.fromkeys(("unique", "queueing_lock", "dedup_key"), "unique_key=..."),
    **dict.fromkeys(("task_id", "job_id", "_job_id"), "idempotency_key=..."),
    **dict.fromkeys(("meta", "labels"), "headers=..."),
}
"""Of a job, as `using` takes it."""

SETTING: Mapping[str, str] = {
    "bind": "a parameter annotated Context",
    "autoretry_for": "retry_on=...",
    "throws": "give_up_on=...",
    **dict.fromkeys(("time_limit", "soft_time_limit", "job_timeout"), "timeout=..."),
    **dict.fromkeys(("default_retry_delay", "retry_delay", "retry_backoff"), "backoff=Backoff(base=...)"),
    **dict.fromkeys(("retries", "max_retries", "max_tries"), "max_attempts=..., which counts the first run"),
    **dict.fromkeys(("queue_name", "task_queue"), "queue=..."),
    **dict.fromkeys(("task_name", "actor_name"), "name=..."),
    **dict.fromkeys(("cron", "crontab", "schedule", "periodic"), "@app.cron(...) or @app.every(...)"),
}
"""Of a task, as `@app.task` takes it."""

APP_OPTION: Mapping[str, str] = {
    **dict.fromkeys(("broker", "broker_url", "backend", "result_backend", "dsn", "redis_url"), "url=..."),
    **dict.fromkeys(("connection", "connector", "database", "db"), "url=..."),
    **dict.fromkeys(
        ("default_queue", "queue_name", "queue"), "queues=[...], of which the first is the default"
    ),
    **dict.fromkeys(("retries", "max_retries", "max_tries"), "max_attempts=..., which counts the first run"),
    **dict.fromkeys(("concurrency", "max_jobs"), "app.workers(8), or ulak work --concurrency 8"),
}
"""Of an App."""


def no_attribute(owner: object, name: str, known_here: Mapping[str, str], task: str = "") -> AttributeError:
    """The error about a name that an object does not have, with what it is called here, if that is known."""
    text = f"{type(owner).__name__!r} object has no attribute {name!r}"
    if (here := known_here.get(name)) is not None:
        text += f"; it is {here.format(task=task)} here"
    return AttributeError(text, name=name, obj=owner)
