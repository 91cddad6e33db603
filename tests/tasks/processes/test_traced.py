"""Traces of jobs that run in processes of their own."""

from __future__ import annotations

from pathlib import Path

from opentelemetry.trace import format_trace_id

from tests.support.waiting import WAIT_S
from tests.tasks.processes.traced import app, provider, seen


def test_a_job_in_another_process_runs_in_a_span_that_links_to_its_enqueue(tmp_path: Path) -> None:
    app.url = f"sqlite:///{tmp_path / 'jobs.db'}"
    with app, app.workers(1, executor="process"):
        with provider.get_tracer("test").start_as_current_span("request") as request:
            job = seen.enqueue()
        created = format_trace_id(request.get_span_context().trace_id)
        assert job.result(WAIT_S) == ["process default", created]
