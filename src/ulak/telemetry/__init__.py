"""An App's figures for Prometheus. The library is imported by the first call, and by nothing else."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ulak.app import App
from ulak.errors import MissingExtra

if TYPE_CHECKING:
    from prometheus_client import CollectorRegistry

    from ulak.telemetry.prometheus import AppMetrics


def metrics_of(app: App, registry: CollectorRegistry | None = None) -> AppMetrics:
    """Register the figures of an App, and of all queues in its store, with Prometheus's own library.

    registry: of prometheus-client; None for its default one. Totals and states are read from the store at
    each scrape, which opens it; durations are counted from now on, of what happens in this process.
    Returns what was registered; its `close()` takes that back. A registry takes one App.
    Raises MissingExtra if prometheus-client is not installed.
    """
    try:
        from ulak.telemetry.prometheus import AppMetrics
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] != "prometheus_client":
            raise
        raise MissingExtra("metrics need prometheus-client: pip install 'ulak[web]'") from None
    return AppMetrics(app, registry)
