"""An App that is traced wherever it is imported. Tests set its url."""

from __future__ import annotations

from typing import Any

from opentelemetry import trace
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.trace import format_trace_id

import ulak
from ulak import App

app = App("memory://")
provider = TracerProvider()
ulak.traces_of(app, provider)


@app.task
def seen() -> list[Any]:
    """The name of the span that it runs in, and the traces that one links to."""
    span = trace.get_current_span()
    assert isinstance(span, ReadableSpan)
    return [span.name, *(format_trace_id(link.context.trace_id) for link in span.links)]
