"""An App's figures for Prometheus, its jobs for OpenTelemetry. Calls import the library they need."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

from ulak.app import App
from ulak.errors import MissingExtra
from ulak.local import LocalStore

if TYPE_CHECKING:
    from opentelemetry.propagators.textmap import TextMapPropagator
    from opentelemetry.trace import TracerProvider
    from prometheus_client import CollectorRegistry

    from ulak.telemetry.otel import AppTraces
    from ulak.telemetry.prometheus import AppMetrics


def metrics_of(app: App, registry: CollectorRegistry | None = None) -> AppMetrics:
    """Register the figures of an App, and of all queues in its store, with Prometheus's own library.

    registry: of prometheus-client; None for its default one. Totals and states are read from the store at
    each scrape, which opens it; durations are counted from now on, of what happens in this process.
    Returns what was registered; its `close()` takes that back. A registry takes one App.
    Raises MissingExtra if prometheus-client is not installed.
    """
    with _needed(*_PROMETHEUS):
        from ulak.telemetry.prometheus import AppMetrics
    return AppMetrics(app, registry)


def registry_of(app: App) -> CollectorRegistry:
    """A registry of an App's figures alone. Raises MissingExtra."""
    with _needed(*_PROMETHEUS):
        from prometheus_client import CollectorRegistry
    registry = CollectorRegistry()
    metrics_of(app, registry)
    return registry


def registry_of_store(opened: Callable[[], LocalStore], url: Callable[[], str]) -> CollectorRegistry:
    """A registry of a store's figures alone, where no App is. Raises MissingExtra."""
    with _needed(*_PROMETHEUS):
        from prometheus_client import CollectorRegistry

        from ulak.telemetry.prometheus import StoreFigures
    registry = CollectorRegistry()
    registry.register(StoreFigures(opened, url, counts_refused=False))
    return registry


def traces_of(
    app: App, provider: TracerProvider | None = None, *, propagator: TextMapPropagator | None = None
) -> AppTraces:
    """Trace the jobs of an App's tasks: where they are enqueued, each attempt, what became of failed ones.

    provider: of opentelemetry; None for its global one, also if that is set later. propagator: what writes a
    span's context into a job's headers (None: W3C Trace Context, without baggage).
    Returns what traces; its `close()` ends that. Raises MissingExtra if opentelemetry-api is not installed,
    ArgumentError for an App that is traced already.
    """
    with _needed("opentelemetry", "traces need opentelemetry-api: pip install 'ulak[otel]'"):
        from ulak.telemetry.otel import AppTraces
    return AppTraces(app, provider, propagator)


_PROMETHEUS = "prometheus_client", "metrics need prometheus-client: pip install 'ulak[web]'"


@contextlib.contextmanager
def _needed(library: str, hint: str) -> Iterator[None]:
    """While inside, the library is imported. Raises MissingExtra without it."""
    try:
        yield
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] != library:
            raise
        raise MissingExtra(hint) from None
